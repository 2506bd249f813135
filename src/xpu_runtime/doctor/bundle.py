"""A bug report as one file: a gzipped tar archive that is whole or not there, and root's alone to read.

What it holds is report.py's.
"""

from __future__ import annotations

import errno
import io
import os
import tarfile
import time
from collections.abc import Iterable

from xpu_runtime.doctor.report import Part
from xpu_runtime.errors import XpuError
from xpu_runtime.linux import files

#: Bytes, of one text and of all; a ledger with a thousand grants has 500 KB.
_LONGEST = 1 << 20
_MOST = 8 << 20


def check(path: str) -> None:
    """XpuError where no report can be written to `path`."""
    if not os.path.basename(path):
        raise XpuError(f'"{path}" names no file', "name one that is not there, such as /root/xpu.tar.gz")
    if os.path.lexists(path):
        raise XpuError(f"{path} is there already", "name a file that is not there")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise XpuError(f"{path}: there is no folder {folder}", "is the path spelt right?")


def write(path: str, parts: Iterable[Part]) -> list[str]:
    """Writes the report to the new file `path`; the names of its texts. XpuError; OSError leaves no file."""
    check(path)
    archive = io.BytesIO()
    top = time.strftime("xpu-doctor-%Y%m%dT%H%M%SZ", time.gmtime())
    names, left = [], _MOST
    with tarfile.open(fileobj=archive, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name, text in parts:
            data = text.encode("utf-8", "replace")
            if len(data) > min(_LONGEST, left):
                data = data[: max(0, min(_LONGEST, left))] + b"\n[cut short here]\n"
            left -= len(data)
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(data))
            names.append(name)
    try:
        _write(path, archive.getvalue())
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, path) from None
    return names


def _write(path: str, content: bytes) -> None:
    folder, file = os.path.split(os.path.abspath(path))
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        aside = files.create_aside(folder_fd, file, content, 0o600, fsync=True)
        try:
            _put(folder_fd, aside, file)
        except FileExistsError:
            raise XpuError(f"{path} is there already", "name a file that is not there") from None
        finally:
            try:
                os.unlink(aside, dir_fd=folder_fd)
            except FileNotFoundError:
                pass  # it was renamed
    finally:
        os.close(folder_fd)


def _put(folder_fd: int, aside: str, file: str) -> None:
    """Gives the new file its name; FileExistsError."""
    try:
        # Unlike a rename this never takes the place of a file that has come meanwhile.
        os.link(aside, file, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        check(f"/proc/self/fd/{folder_fd}/{file}")  # a file system without hard links: a USB stick
        os.rename(aside, file, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
