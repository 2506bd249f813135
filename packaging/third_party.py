"""Unpacks wheels, for all versions of Python and all machines: third_party.py WHEELS FOLDER.

A machine that builds or installs a package may have no network, so the wheels are fetched beforehand, by hash
(`make deps`). Only modules, their data and the licences are taken: compiled parts are for a single version of
Python, and we do not use the wheels' programs.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile

_NOT_TAKEN = (".so", ".pyi", "/py.typed")
#: The wheel's records that name its author and its licence.
_KEPT_RECORDS = ("METADATA", "LICENSE", "LICENSE.txt", "LICENSE.mit", "NOTICE", "COPYING")


def main(wheels: str, folder: str) -> None:
    aside = f"{folder}.new"
    shutil.rmtree(aside, ignore_errors=True)
    os.makedirs(aside)
    for name in sorted(os.listdir(wheels)):
        if name.endswith(".whl"):
            with zipfile.ZipFile(os.path.join(wheels, name)) as wheel:
                for path in filter(_is_taken, wheel.namelist()):
                    _make_module(wheel.extract(path, aside))
    # A killed run must leave no half-filled folder: a later build would take it for complete.
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(aside, folder)


def _make_module(path: str) -> None:
    """Removes a program's first line: the files are imported, and lintian and rpmlint check interpreters."""
    with open(path, "rb+") as file:
        content = file.read()
        if content.startswith(b"#!"):
            file.seek(0)
            file.write(content[content.index(b"\n") :])
            file.truncate()


def _is_taken(path: str) -> bool:
    top, _, rest = path.partition("/")
    if top.endswith(".data") or path.endswith("/"):
        return False
    if top.endswith(".dist-info"):
        return os.path.basename(rest) in _KEPT_RECORDS
    # Tests and samples are left out, and modules that only serve a compiled part.
    return (
        not path.endswith(_NOT_TAKEN)
        and not {"tests", "benchmarks"} & set(rest.split("/"))
        and top not in ("_yaml", "example.py")
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
