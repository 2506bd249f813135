#!/usr/bin/env python3
"""Says whether NVIDIA has newer headers than those that pyproject.toml names, and what is new there.

packaging/newer_headers.py PIP

It prints a line for each wheel. The exit status is always 0: a new release of NVIDIA's or a missing network
is not the fault of the change that CI checks.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import headers

SECONDS = 120


def newest(pip: str, wheel: str, folder: str) -> Path:
    """The newest wheel of that name, downloaded. Raises OSError with the reason."""
    command = [pip, "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, "--only-binary", ":all:", "--dest", folder, wheel],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer in {SECONDS} s") from None
    files = sorted(Path(folder).glob("*.whl"))
    if done.returncode or not files:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise OSError(f"pip: {said[-1]}")
    return files[0]


def text_of(wheel: str, file: Path) -> str:
    """The text of the headers in it that declare functions. Raises OSError if there are none."""
    wanted = headers.FILES[wheel]
    try:
        with zipfile.ZipFile(file) as archive:
            found = [name for name in archive.namelist() if Path(name).name in wanted]
            text = "".join(archive.read(name).decode(errors="replace") for name in found)
    except zipfile.BadZipFile as error:
        raise OSError(f"{file.name}: {error}") from None
    if not headers.functions(wheel, text):
        raise OSError(f"{file.name}: no functions in {', '.join(wanted)}")
    return text


def line(pip: str, wheel: str, version: str) -> str:
    """The report on a wheel."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            file = newest(pip, wheel, folder)
            found = file.name.split("-")[1]
            if found == version:
                return f"{wheel}: {version}, which the tests use, is the newest"
            names = headers.undecided(wheel, text_of(wheel, file))
        except OSError as error:
            return f"{wheel}: could not look for a newer one than {version}: {error}"
    table = headers.TABLES[wheel].relative_to(headers.REPOSITORY)
    more = f"without a decision in {table}: {', '.join(names)}" if names else "no function is new in it"
    return f"WARNING: {wheel}: there is {found}, the tests use {version}; {more}"


def main(pip: str) -> None:
    for wheel, version in headers.pinned().items():
        print(line(pip, wheel, version), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
