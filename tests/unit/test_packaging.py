"""Values that stand in two places, because two languages need them, agree."""

from __future__ import annotations

import re

from support import REPOSITORY
from xpu_runtime.config import cache


def packaged() -> set[str]:
    """The distributions of packaging/requirements.txt."""
    lines = (REPOSITORY / "packaging/requirements.txt").read_text().splitlines()
    return {line.partition("==")[0] for line in lines if not line.startswith("#")}


def test_each_package_that_is_brought_along_has_its_licence_in_the_copyright_file() -> None:
    named = re.findall(r"vendor/([\w.]+?)(?:/\*|\.py)", (REPOSITORY / "packaging/deb/copyright").read_text())
    modules = {"attrs": "attrs", "PyYAML": "yaml", "nvidia-ml-py": "pynvml"}
    assert {modules.get(name, name) for name in packaged()} <= set(named)


def test_the_launcher_takes_the_format_that_is_written_for_it() -> None:
    source = (REPOSITORY / "native/launcher/runtime.c").read_text()
    assert re.findall(r'format\[\] = "(\w+)"', source) == [str(cache.FORMAT)]
