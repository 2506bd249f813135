"""Unpacks wheels, for all versions of Python and all machines: third_party.py WHEELS FOLDER.

A machine that builds or installs a package may have no network, so the wheels are fetched beforehand, by
hash (`make deps`). What is compiled in one is for one version of Python alone, and what a wheel installs as
a program is not for us: only modules, their data and the licences are taken.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile

_NOT_TAKEN = (".so", ".pyi", "/py.typed")
#: Of the wheel's own records, what says whose it is and on which terms.
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
    # Who is killed leaves no half of it, which a later build would take for all.
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(aside, folder)


def _make_module(path: str) -> None:
    """Takes the first line of a program away: these are imported, and lintian and rpmlint look for its
    interpreter."""
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
    # Neither test suites and samples, nor a module that only serves a compiled half.
    return (
        not path.endswith(_NOT_TAKEN)
        and not {"tests", "benchmarks"} & set(rest.split("/"))
        and top not in ("_yaml", "example.py")
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
