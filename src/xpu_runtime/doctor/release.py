"""Which release of ours this is, and on which distribution."""

from __future__ import annotations

from xpu_runtime.version import COMMIT, VERSION


def version() -> dict[str, str | None]:
    """Version and commit; the commit is None if it is not known."""
    return {"version": VERSION, "commit": COMMIT or None}


def distribution() -> str:
    """The name in /etc/os-release (os-release(5)); "" if it has none."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            with open(path, encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if line.startswith("PRETTY_NAME="):
                        return line.partition("=")[2].strip().strip("\"'")
        except OSError:
            continue
    return ""
