"""The version in the kernel module's own file, in the forms that drivers write."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpu_runtime.vendors.nvidia import examine


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024",
            "470.256.02",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build", "580.82.07"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  565.57  Release Build", "565.57"),
        ("NVRM version: something else", None),
    ],
)
def test_the_version_of_the_loaded_module(tmp_path: Path, line: str, version: str | None) -> None:
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(f"{line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")
    assert examine.kernel_version(str(tmp_path)) == version


def test_a_module_that_is_not_loaded_has_no_version(tmp_path: Path) -> None:
    assert examine.kernel_version(str(tmp_path)) is None
