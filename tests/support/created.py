"""The records of the containers' creations; they lie outside of a test's own folders."""

from __future__ import annotations

import os
from pathlib import Path

from xpu_runtime.start import created


def of(folder: Path) -> dict[str, created.Created]:
    """The records, by path, of containers that were created with files of the folder."""
    return {
        path: record
        for path, record in created.records()
        if any(str(folder) in value for value in record.as_dict().values())
    }


def forget(folder: Path) -> None:
    """Removes the records of containers that nobody has deleted through the launcher."""
    for path in of(folder):
        os.unlink(path)
