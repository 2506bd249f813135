"""A machine of the tests' own: Debian 12 with systemd, pure cgroup v2 and docker, emulated in software.

What a developer's container or CI has not: an init that is systemd, its cgroup driver, its /run. The root
file system is made from Debian's packages once and kept below build/machine; the product is laid onto a
second disk by `make install` at each boot. Nothing in the machine needs a network, nothing outside it
changes, and the emulator needs no KVM. The machine runs checks.py, which tells each result on its
second serial port, and turns itself off.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "packaging"))

import image  # noqa: E402

SUITE = "bookworm"
PACKAGES = (
    "apparmor", "dbus", "docker.io", "kmod", "linux-image-cloud-amd64", "python3", "systemd", "systemd-sysv",
    "udev",
)  # fmt: skip
#: The longest that a boot with all checks may take, in seconds; 80 to 150 are usual.
PATIENCE = 500

_FSTAB = """\
/dev/vda / ext4 defaults 0 0
/dev/vdb /usr/local ext4 ro 0 0
"""
_UNIT = """\
[Unit]
Description=Checks of the XPU container runtime
Requires=containerd.service
After=containerd.service dbus.socket systemd-udev-settle.service
RequiresMountsFor=/usr/local
SuccessAction=poweroff-immediate
FailureAction=poweroff-immediate

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I /usr/local/share/checks/checks.py /dev/ttyS1
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
"""
# The packages' defaults are for any machine; this one is known, boots often, and does nothing by itself.
_NO_DOCUMENTATION = "path-exclude=/usr/share/doc/*", "path-exclude=/usr/share/locale/*", "force-unsafe-io"
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
echo machine > "$1/etc/hostname"
chroot "$1" systemctl --quiet enable checks.service
chroot "$1" systemctl --quiet disable docker.service docker.socket
chroot "$1" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \\
    e2scrub_all.timer e2scrub_reap.service fstrim.timer getty.target
"""


class MachineError(Exception):
    """There is no such machine here, or it did not do what it was started for; says why."""


def prepare(cache: Path) -> Path:
    """The folder below `cache` with `root.img`, `vmlinuz` and `initrd`; made if it is not there.

    Its name says what it was made from. MachineError if the packages cannot be had.
    """
    recipe = json.dumps([SUITE, PACKAGES, _NO_DOCUMENTATION, _INITRD, _SETTINGS])
    folder = cache / hashlib.sha256(recipe.encode()).hexdigest()[:12]
    if folder.is_dir():
        return folder
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    made = cache / "being-made"
    made.mkdir()
    root = made / "root"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    command += [f"--dpkgopt={option}" for option in _NO_DOCUMENTATION]
    command += [f"--essential-hook={_INITRD}", f"--customize-hook={_SETTINGS}", SUITE, str(root)]
    _run(command, "cannot make a Debian root from its packages")
    for name in ("vmlinuz", "initrd"):
        (found,) = (root / "boot").glob(f"{name}*")
        shutil.copy(found, made / name)
    _make_disk(root, made / "root.img", spare_mib=600)
    shutil.rmtree(root)
    made.rename(folder)
    return folder


def boot(cache: Path, log: Path) -> dict[str, dict[str, object]]:
    """Starts the machine, waits until it is off, and returns what each check told, by name.

    `log` gets what it said on its console. MachineError if it does not come up or does not end.
    """
    parts = prepare(cache)
    with tempfile.TemporaryDirectory(prefix="machine-", dir=cache) as name:
        scratch = Path(name)
        product = _product(scratch)
        results = scratch / "results"
        command = [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048",
            "-kernel", str(parts / "vmlinuz"), "-initrd", str(parts / "initrd"),
            "-append", "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0",
            # What it writes to its disks is gone with it.
            "-drive", f"file={parts / 'root.img'},if=virtio,format=raw,snapshot=on,cache=unsafe",
            "-drive", f"file={product},if=virtio,format=raw,snapshot=on,cache=unsafe",
            "-serial", f"file:{log}", "-serial", f"file:{results}",
        ]  # fmt: skip
        try:
            _run(command, "the emulator failed", timeout=PATIENCE, environ={"TMPDIR": name})
        except subprocess.TimeoutExpired:
            raise MachineError(
                f"the machine was not off after {PATIENCE} s; it said last:\n{_end(log)}"
            ) from None
        lines = results.read_text(errors="replace").splitlines()
    told: list[dict[str, object]] = [json.loads(line) for line in lines if line.startswith("{")]
    if not told:
        raise MachineError(f"the machine told nothing; it said last:\n{_end(log)}")
    return {str(each["name"]): each for each in told}


def _product(scratch: Path) -> Path:
    """A disk for /usr/local: what `make install` leaves there, the checks, and an image for containers."""
    stage = scratch / "stage"
    # Not a part of the make that may have started us.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-C", str(REPOSITORY), "--no-print-directory", "install"]
    command += ["PREFIX=/usr/local", f"DESTDIR={stage}"]
    _run(command, "`make install` failed", environ=environ, only_this=True)
    share = stage / "usr/local/share/checks"
    share.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("checks.py"), share)
    image.make(str(scratch / "image"), [str(REPOSITORY / "build/probe/cuda-probe")])
    _run(["tar", "-C", str(scratch / "image"), "-cf", str(share / "image.tar"), "."], "cannot make an image")
    _make_disk(stage / "usr/local", scratch / "product.img", spare_mib=16)
    return scratch / "product.img"


def _make_disk(folder: Path, disk: Path, *, spare_mib: int) -> None:
    """An ext4 file system with what is in `folder`, and some room."""
    used = subprocess.run(["du", "-sm", folder], check=True, capture_output=True, text=True).stdout
    size = int(used.split()[0]) * 5 // 4 + spare_mib
    options = ["-O", "^has_journal", "-E", "lazy_itable_init=1", "-m", "0"]
    _run(
        ["mke2fs", "-q", "-t", "ext4", *options, "-d", str(folder), str(disk), f"{size}M"],
        "cannot make a disk",
    )


def _run(
    command: list[str],
    what: str,
    *,
    timeout: float | None = None,
    environ: dict[str, str] | None = None,
    only_this: bool = False,
) -> None:
    """Runs a program; MachineError that begins with `what` and has its last words, if it fails."""
    whole = environ if only_this else {**os.environ, **(environ or {})}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, env=whole
        )
    except FileNotFoundError:
        raise MachineError(
            f"{what}: {command[0]} is not installed; see TEST_PACKAGES in the Makefile"
        ) from None
    if done.returncode:
        raise MachineError(f"{what}: {command[0]} said\n{(done.stdout + done.stderr)[-3000:]}")


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:] if log.exists() else "nothing"
