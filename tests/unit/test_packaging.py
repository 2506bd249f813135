"""Values that stand in two places, because two languages need them, agree."""

from __future__ import annotations

import re

from support import REPOSITORY
from xpu_runtime import paths
from xpu_runtime.config import cache
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.config.low_level_runtime import RUNTIME_FOLDERS


def packaged() -> set[str]:
    """The distributions of packaging/requirements.txt."""
    lines = (REPOSITORY / "packaging/requirements.txt").read_text().splitlines()
    return {line.partition("==")[0] for line in lines if not line.startswith("#")}


def test_each_package_that_is_brought_along_has_its_licence_in_the_copyright_file() -> None:
    named = re.findall(r"vendor/([\w.]+?)(?:/\*|\.py)", (REPOSITORY / "packaging/deb/copyright").read_text())
    modules = {"attrs": "attrs", "PyYAML": "yaml", "nvidia-ml-py": "pynvml"}
    assert {modules.get(name, name) for name in packaged()} <= set(named)


LAUNCHER = (REPOSITORY / "native/launcher/runtime.c").read_text()


def test_the_launcher_takes_the_format_that_is_written_for_it() -> None:
    assert re.findall(r'format\[\] = "(\w+)"', LAUNCHER) == [str(cache.FORMAT)]


def test_the_launcher_looks_for_the_same_runtimes_in_the_same_folders_as_python() -> None:
    (folders,) = re.findall(r"folders\[\] = \{([^}]*)\}", LAUNCHER)
    assert re.findall(r'"([^"]*)"', folders) == [*RUNTIME_FOLDERS]
    assert re.findall(r'find_named\("(\w+)", path\)', LAUNCHER) == [*DEFAULTS.low_level_runtimes]


def test_the_launcher_has_the_same_default_paths_as_python() -> None:
    assert re.findall(r'default_config\[\] = "([^"]*)"', LAUNCHER) == [paths.DEFAULT_CONFIG]
    assert re.findall(r'default_run_dir\[\] = "([^"]*)"', LAUNCHER) == [paths.DEFAULT_RUN_DIR]
