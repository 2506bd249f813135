"""Takes possible secrets out of texts and documents, for a bug report that goes to strangers.

Of other programs' files only values known to be harmless are kept: no list of keys with secrets could be
complete. In texts of our own (logs, messages) words that look like secrets are taken out.
"""

from __future__ import annotations

import re
from typing import Any

LEFT_OUT = "[left out]"

_KEPT_WORDS = """
BinaryName Root SystemdCgroup base_runtime_spec bin_dir bridge cgroup cgroup-parent conf_dir containerd
data-root default-cgroupns-mode default-runtime default_runtime_name disabled_plugins exec-opts exec-root
group imports log-driver log-level path pod_annotations required_plugins root runtimeType runtime_engine
runtime_path runtime_root runtime_type snapshotter stages state storage-driver userns-remap version
"""
#: Keys of the engines' configuration and of hooks.d files whose texts are kept. All others' are not.
_KEPT = frozenset(_KEPT_WORDS.split())
_KNOWN_WORDS = """
add-runtime allow-nondistributable-artifacts annotations api-cors-header args authorization-plugins bip
builder cdi-spec-dirs cgroup-manager cluster-advertise cluster-store containerd-namespace
containerd-plugins-namespace cpu-rt-period cpu-rt-runtime debug default-address-pools default-gateway
default-gateway-v6 default-ipc-mode default-network-opts default-shm-size default-ulimits dns dns-opts
dns-search enabled entitlements experimental features buildkit containerd-snapshotter cdi fixed-cidr
fixed-cidr-v6 gc host-gateway-ip hosts http-proxy https-proxy icc init init-path insecure-registries ip
ip-forward ip-masq iptables ip6tables ipv6 labels live-restore log-format log-opts max-file max-size
maintenance max-concurrent-downloads max-concurrent-uploads max-download-attempts metrics-addr mtu
no-new-privileges no-proxy node-generic-resources oom-score-adjust pidfile policy proxies raw-logs
registry-mirrors rootless runtimes runtimeArgs seccomp-profile selinux-enabled shutdown-timeout
storage-opts swarm-default-advertise-addr tls tlscacert tlscert tlskey tlsverify userland-proxy
userland-proxy-path
address cni config_path configs containerd default_runtime device_ownership_from_security_context
disable_cgroup disable_apparmor enable_cdi enable_selinux enable_unprivileged_icmp
enable_unprivileged_ports grpc debug level format gid uid max_conf_num max_container_log_line_size
mirrors metrics oom_score options plugin_dir plugins plugin_id privileged_without_host_devices
privileged_without_host_devices_all_devices_allowed proxy_plugins registry restrict_oom_score_adj
root_path sandbox sandbox_image sandboxer sandbox_mode selinux_category_range shim stream_idle_timeout
stream_server_address stream_server_port systemd_cgroup temp timeouts tolerate_missing_hugetlb_controller
ttrpc type unset_seccomp_profile untrusted_workload_runtime NoPivotRoot NoNewKeyring ShimCgroup IoUid
IoGid CriuPath CriuImagePath CriuWorkPath
hook hooks when always commands hasBindMounts stage
crio runtime default_env cgroup_manager conmon conmon_cgroup allowed_annotations hooks_dir
monitor_path monitor_cgroup cdi_spec_dirs
auth username password identitytoken endpoint
xpu runc crun nvidia nvidia-cdi nvidia-legacy runsc kata gvisor youki io.containerd.runc.v2
overlayfs native btrfs zfs devmapper cri opt linux restart scheduler
"""
#: Keys that are kept; their texts are not, and the keys in them are. Every other key is a name that somebody
#: has chosen: of a registry, whose entry has a user's login; of a label.
_KNOWN = _KEPT | frozenset(_KNOWN_WORDS.split())
_PLUGIN = re.compile(r"io\.containerd\.[a-z]+[a-z-]*\.v[0-9]+(?:\.[a-z-]+){0,2}")
#: A known value in `exec-opts`, which is a list of assignments.
_EXEC_OPTION = re.compile(r"native\.cgroupdriver=(?:systemd|cgroupfs)")

_NAMES = "passw|passphrase|passwd|secret|token|auth|credential|private|(?:api|access|signing).?key"
_SECRET = re.compile(_NAMES, re.IGNORECASE)
#: The value of an assignment in a shell's words: quoted pieces, to their ends, and others, to a space.
_VALUE = r"""(?:'[^']*(?:'|$)|"(?:\\.|[^"\\])*(?:"|$)|[^\s'"])+"""
#: Names of our own texts whose values are no secrets.
_HARMLESS = "format|config|stamp|runtime|systemd\\.unified_cgroup_hierarchy|native\\.cgroupdriver"
#: Each with its replacement. Greedy: a match that goes too far only takes out too much.
_PATTERNS = (
    # A process's command line, as messages have it.
    (re.compile(r"(\bprocess \d+) \(.*\)"), rf"\1 ({LEFT_OUT})"),
    # Environment variables, those of a request among them, and a URL's query.
    (re.compile(rf"(?<![\w.])(?!(?:{_HARMLESS})=)([A-Za-z_][\w.-]*)={_VALUE}"), rf"\1={LEFT_OUT}"),
    # The user's part of a URL, which can have any letter in it.
    (re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*:(?://)?)[^\s\"'<>]*@"), rf"\1{LEFT_OUT}@"),
    # `password = ...`, `"token": ...`, to the end of the line.
    (re.compile(rf"((?:{_NAMES})[\w.-]*[\"']?\s*[=:]\s*)\S.*", re.IGNORECASE), rf"\1{LEFT_OUT}"),
    # `--db-pass ...`, `-u me:...`, `-p...`: options of a command line.
    (re.compile(rf"(\s--?[\w-]*(?:{_NAMES}|pass|pwd|pw)[\w-]*\s+)\S.*", re.IGNORECASE), rf"\1{LEFT_OUT}"),
    (re.compile(r"(\s-u\s*)[^\s:]+:\S*|(\s-p)[^\s-]\S*"), rf"\1\2{LEFT_OUT}"),
)
_QUOTATION = re.compile(r"""(?<!\w)'[^\n]*'(?!\w)|"[^\n]*\"""")


def text(words: str) -> str:
    """A text of ours, line by line, without words that look like secrets."""
    return "\n".join(_line(line) for line in words.split("\n"))


def _line(line: str) -> str:
    for pattern, replacement in _PATTERNS:
        line = pattern.sub(replacement, line)
    return line


def strings(value: Any) -> Any:
    """A document of ours, with `text` applied to each string in it."""
    if isinstance(value, dict):
        return {text(str(key)): strings(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [strings(each) for each in value]
    return text(value) if isinstance(value, str) else value


def quotations(value: Any) -> Any:
    """A document of ours, without the quotations in its texts."""
    if isinstance(value, dict):
        return {key: quotations(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [quotations(each) for each in value]
    return _QUOTATION.sub(LEFT_OUT, value) if isinstance(value, str) else value


def document(value: Any, key: str = "") -> Any:
    """A document of another program: keys that are known, and numbers and harmless texts of these."""
    if _SECRET.search(key):
        return LEFT_OUT
    if isinstance(value, dict):
        kept: dict[str, Any] = {}
        for name, each in value.items():
            known = name in _KNOWN or _PLUGIN.fullmatch(str(name)) is not None
            shown = str(name) if known else LEFT_OUT if LEFT_OUT not in kept else f"{LEFT_OUT} {len(kept)}"
            kept[shown] = document(each, str(name))
        return kept
    if isinstance(value, (list, tuple)):
        return [document(each, key) for each in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value if key in _KNOWN else LEFT_OUT
    kept_here = key in _KEPT and (key != "exec-opts" or _EXEC_OPTION.fullmatch(str(value)))
    return text(str(value)) if kept_here else LEFT_OUT
