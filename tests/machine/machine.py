"""A machine of the tests' own: Debian 12 with systemd, cgroup v2 alone, docker and podman, by an emulator.

A developer's container and CI lack systemd as init, with its cgroup driver and its /run. The root file system
is made once from Debian's packages, and kept below build/machine; at each boot `make install` puts the
product on a second disk. Nothing in the machine needs a network, it changes nothing outside, and the emulator
needs no KVM. The machine runs checks.py, which writes each result to the second serial port, and turns itself
off.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import image
import support
from support import pages

REPOSITORY = Path(__file__).resolve().parents[2]


SUITE = "bookworm"
PACKAGES = (
    "apparmor", "dbus", "docker.io", "kmod", "linux-image-cloud-amd64", "podman", "procps", "python3",
    "systemd", "systemd-sysv", "udev",
)  # fmt: skip
#: The longest time of a boot with all checks, in seconds; two idle cores need some 200.
PATIENCE = 800

_FSTAB = """\
/dev/vda / ext4 defaults 0 0
/dev/vdb /usr/local ext4 ro 0 0
"""
#: No container here has a network; setting one up would take a good part of the engine's start.
_ENGINE = """\
{ "bridge": "none", "iptables": false }
"""
_UNIT = """\
[Unit]
Description=Checks of the XPU container runtime
# Not Requires=: a check restarts it.
Wants=containerd.service
After=containerd.service dbus.socket
RequiresMountsFor=/usr/local
SuccessAction=poweroff-immediate
FailureAction=poweroff-immediate

[Service]
Type=oneshot
WorkingDirectory=/usr/local/share
ExecStart=/usr/bin/python3 -Es -m checks.checks /dev/ttyS1
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
"""
# The packages' defaults suit any machine; this one is known, boots often, and has no background work.
_OPTIONS = "path-exclude=/usr/share/doc/*", "path-exclude=/usr/share/locale/*", "force-unsafe-io"
_INITRD = """\
mkdir -p "$1/usr/share/initramfs-tools/modules.d" "$1/etc/initramfs-tools/conf.d"
echo MODULES=list > "$1/etc/initramfs-tools/conf.d/this-machine"
printf 'virtio_pci\\nvirtio_blk\\next4\\n' > "$1/usr/share/initramfs-tools/modules.d/this-machine"
"""
_SETTINGS = f"""\
cat > "$1/etc/fstab" <<'END'
{_FSTAB}END
cat > "$1/etc/systemd/system/checks.service" <<'END'
{_UNIT}END
mkdir -p "$1/etc/docker"
cat > "$1/etc/docker/daemon.json" <<'END'
{_ENGINE}END
echo machine > "$1/etc/hostname"
chroot "$1" systemctl --quiet enable checks.service
chroot "$1" systemctl --quiet disable docker.service docker.socket
chroot "$1" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \\
    e2scrub_all.timer e2scrub_reap.service fstrim.timer getty.target
"""


class MachineError(Exception):
    """There is no such machine here, or it did not finish its work; the message says why."""


class Output:
    """A machine's output: each check's result by the check's name, and the end of its console."""

    def __init__(self, lines: str, console: str) -> None:
        whole = [line for line in lines.splitlines(keepends=True) if line[:1] == "{" and line[-1:] == "\n"]
        self.results: dict[str, dict[str, Any]] = {each["name"]: each for each in map(json.loads, whole)}
        self.console = console


def prepare(cache: Path) -> Path:
    """The folder below `cache` with `root.img`, `vmlinuz` and `initrd`; made if it is missing.

    Its name is a digest of what it was made from. MachineError if the packages cannot be had.
    """
    recipe = json.dumps([SUITE, PACKAGES, _OPTIONS, _INITRD, _SETTINGS])
    folder = cache / hashlib.sha256(recipe.encode()).hexdigest()[:12]
    cache.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{cache}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            shutil.rmtree(cache, ignore_errors=True)
            (cache / "being-made").mkdir(parents=True)
            _make(cache / "being-made")
            (cache / "being-made").rename(folder)
    return folder


def _make(folder: Path) -> None:
    root = folder / "root"
    # In a mount namespace: after a kill, /proc and /sys would otherwise stay mounted in the folder.
    command = ["unshare", "--mount", "--propagation=private"]
    command += ["mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    command += [f"--dpkgopt={option}" for option in _OPTIONS]
    command += [f"--essential-hook={_INITRD}", f"--customize-hook={_SETTINGS}", SUITE, str(root)]
    _run(command, "cannot make a Debian root from its packages")
    for name in ("vmlinuz", "initrd"):
        (found,) = (root / "boot").glob(f"{name}*")
        shutil.copy(found, folder / name)
    _make_disk(root, folder / "root.img", spare_mib=600)
    shutil.rmtree(root)


def boot(cache: Path, debs: list[Path], kubernetes_image: Path) -> Output:
    """Starts the machine, waits until it is off, and returns its output.

    MachineError if it cannot be made, or reports nothing.
    """
    parts = prepare(cache)
    with tempfile.TemporaryDirectory(prefix="running-", dir=cache) as name:
        scratch = Path(name)
        console, results = scratch / "console", scratch / "results"
        command = [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            # A processor without wide vectors, which an emulator makes slow, and without mitigations, which
            # nobody needs here: this saves a fifth of the time.
            "-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", "2", "-m", "2048",
            "-kernel", str(parts / "vmlinuz"), "-initrd", str(parts / "initrd"),
            "-append", "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 mitigations=off tsc=reliable",
            # Its writes to the disks are lost when it ends.
            "-drive", f"file={parts / 'root.img'},if=virtio,format=raw,snapshot=on,cache=unsafe", "-drive",
            f"file={_product(scratch, debs, kubernetes_image)},if=virtio,format=raw,snapshot=on,cache=unsafe",
            "-serial", f"file:{console}", "-serial", f"file:{results}",
        ]  # fmt: skip
        late = ""
        try:
            _run(command, "the emulator failed", timeout=PATIENCE, environ={**os.environ, "TMPDIR": name})
        except subprocess.TimeoutExpired:
            late = f"\nit was not off after {PATIENCE} s, and was stopped"
        output = Output(_text(results), _text(console)[-3000:] + late)
    if not output.results:
        raise MachineError(f"the machine told nothing; it said last:\n{output.console}")
    return output


def _product(scratch: Path, debs: list[Path], kubernetes_image: Path) -> Path:
    """A disk for /usr/local: the installed tree, the checks, an image for containers, the image for
    Kubernetes, and the packages with the pages that are followed."""
    stage = scratch / "stage"
    # This must not be a part of the make that may have started us.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-C", str(REPOSITORY), "--no-print-directory", "install"]
    command += ["PREFIX=/usr/local", f"DESTDIR={stage}"]
    _run(command, "`make install` failed", environ=environ)
    share = stage / "usr/local/share/checks"
    share.mkdir(parents=True)
    for name in ("checks.py", "checking.py", "following.py"):
        shutil.copy(Path(__file__).with_name(name), share)
    for folder, files in (
        (share / "pages", pages.followed_by("tests/machine")),
        (share / "packages", debs),
        (share.with_name("support"), [Path(support.__file__), Path(pages.__file__)]),
    ):
        folder.mkdir()
        for file in files:
            shutil.copy(file, folder)
    shutil.copy(kubernetes_image, share / "xpu-kubernetes.tar")
    for name in ("xpu-inventory.service", "xpu-agent.service", "60-xpu-container-runtime.rules"):
        shutil.copy(REPOSITORY / "packaging/node" / name, share)
    image.make(str(scratch / "image"), [str(REPOSITORY / "build/probe/cuda-probe")])
    _run(["tar", "-C", str(scratch / "image"), "-cf", str(share / "image.tar"), "."], "cannot make an image")
    _make_disk(stage / "usr/local", scratch / "product.img", spare_mib=16)
    return scratch / "product.img"


def _make_disk(folder: Path, disk: Path, *, spare_mib: int) -> None:
    """An ext4 file system with the files of `folder`, and some free space."""
    used = subprocess.run(["du", "-sm", folder], check=True, capture_output=True, text=True).stdout
    size = int(used.split()[0]) * 5 // 4 + spare_mib
    options = ["-O", "^has_journal", "-E", "lazy_itable_init=1", "-m", "0"]
    _run(
        ["mke2fs", "-q", "-t", "ext4", *options, "-d", str(folder), str(disk), f"{size}M"],
        "cannot make a disk",
    )


def _run(
    command: list[str], what: str, *, timeout: float | None = None, environ: dict[str, str] | None = None
) -> None:
    """Runs a program; if it fails, MachineError with `what` and the end of its output."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, env=environ
        )
    except FileNotFoundError:
        raise MachineError(
            f"{what}: {command[0]} is not installed; see TEST_PACKAGES in the Makefile"
        ) from None
    if done.returncode:
        raise MachineError(f"{what}: {' '.join(command[:4])} ... said\n{(done.stdout + done.stderr)[-3000:]}")


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
