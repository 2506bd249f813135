"""A bug report as one file: a gzipped tar archive, and root's alone to read.

report.py makes its content.
"""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Iterable

from xpu_runtime.doctor.report import Part
from xpu_runtime.errors import XpuError

#: Bytes, of one text and of all; a ledger with a thousand grants has 500 KB.
_LONGEST = 1 << 20
_MOST = 8 << 20


def check(path: str) -> None:
    """XpuError where no report can be written to `path`."""
    if not os.path.basename(path):
        raise XpuError(f'"{path}" names no file', "name a new file, such as /root/xpu.tar.gz")
    if os.path.lexists(path):
        raise XpuError(f"{path} is there already", "name a new file")
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
    _write(path, archive.getvalue())
    return names


def _write(path: str, content: bytes) -> None:
    """Writes a new file; a file that someone else has made there stays unchanged."""
    name = os.path.basename(path)
    # By descriptor: the folder's owner could put another in its place while this is written.
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with open(fd, "wb") as file:
                file.write(content)
        except OSError:
            os.unlink(name, dir_fd=folder)
            raise
    except FileExistsError:
        raise XpuError(f"{path} is there already", "name a new file") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(folder)
