"""Makes the root folder of a small container image from this machine's own files: image.py FOLDER PROGRAM...

It has busybox as a shell, the C library and its loader for programs that load a driver, and the named
programs. Like many small images it has no ldconfig and no loader cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

_LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}


def make(folder: str, programs: list[str]) -> None:
    """Fills `folder`; makes it if it is missing."""
    machine = os.uname().machine
    libraries = f"/lib/{machine}-linux-gnu"
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "usr/bin", f"usr{libraries}", "lib", "lib64"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    os.makedirs(os.path.join(folder, libraries[1:]), exist_ok=True)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise FileNotFoundError("no busybox on PATH, for the shell of the containers: install busybox-static")
    shutil.copy(busybox, os.path.join(folder, "bin"))
    applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for applet in applets:
        link = os.path.join(folder, "bin", applet)
        if not os.path.lexists(link):
            os.symlink("busybox", link)
    for path in [f"{libraries}/{name}" for name in _LIBRARIES] + [_LOADERS[machine]]:
        shutil.copy(path, os.path.join(folder, path[1:]))
    for program in programs:
        shutil.copy(program, os.path.join(folder, "usr/bin"))
    for name, line in (("passwd", "root:x:0:0:root:/:/bin/sh"), ("group", "root:x:0:")):
        with open(os.path.join(folder, "etc", name), "w") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2:])
