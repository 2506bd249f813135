"""Tests that cost minutes are left out while the files that they protect are the same as when they passed.

They need clean distributions, a machine in qemu, a Kubernetes of their own or an emulator, or they measure C
for minutes. `make test-all` (pytest --all) runs them always, and records in tests/passed.json the digests of
the files below with which they passed; that file is committed. `make test` runs the tests whose files differ,
and prints for the others the date since which nothing has changed. A digest is of content, not of a machine,
so every clone comes to the same answer.

python3 -m support.tiers FOLDER: the exit status is 0 if the folder's tests would run.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import REPOSITORY, pages

PASSED = REPOSITORY / "tests" / "passed.json"
_PACKAGES = ("Makefile", "setup.py", "pyproject.toml", "config", "hooks", "packaging")
_ENGINES = ("src/xpu_runtime/engines", "src/xpu_runtime/oci", "src/xpu_runtime/start", "native/launcher")
_NATIVE = ("Makefile", "native", "sim", "src/xpu_runtime/limits", "src/xpu_runtime/linux")


def _pages(tests: str) -> list[str]:
    """The pages that these tests follow, or have a block of."""
    found = [*pages.followed_by(tests), *pages.with_blocks_of(tests)]
    return [str(page.relative_to(REPOSITORY)) for page in found]


#: What each folder, or file, protects and no other test does, besides its own tests and tests/support.
PROTECTS = {
    "tests/account": _NATIVE,
    "tests/bench": (*_NATIVE, "bench", "packaging", "src/xpu_runtime/vendors", "src/xpu_runtime/delivery"),
    "tests/distributions": (
        *_PACKAGES,
        *_ENGINES,
        "src/xpu_runtime/kubernetes/node_setup",
        *_pages("tests/distributions"),
    ),
    "tests/interposer": _NATIVE,
    "tests/machine": (
        *_PACKAGES,
        *_ENGINES,
        *("src/xpu_runtime/linux", "src/xpu_runtime/kubernetes/node_setup"),
        *("src/xpu_runtime/agent", "src/xpu_runtime/cli/agent.py"),
        *_pages("tests/machine"),
    ),
    "tests/kubernetes": (
        *("packaging/kubernetes", "src/xpu_runtime/kubernetes"),
        *("src/xpu_runtime/ledger", "src/xpu_runtime/placement", "src/xpu_runtime/allocating.py"),
        "src/xpu_runtime/request",
        *(f"src/xpu_runtime/engines/{each}" for each in ("__init__.py", "_blocks.py", "containerd")),
        *_pages("tests/kubernetes"),
    ),
    "tests/packages": (
        *_PACKAGES,
        *("native", "src/xpu_runtime/kubernetes", "src/xpu_runtime/cli/kubernetes"),
        *("docs", "README.md", "SECURITY.md", "CHANGELOG.md", "LICENSE"),
    ),
}


def digest(tests: str) -> str:
    """The digest of the names and bytes of everything that these tests protect and use, and of themselves."""
    found = hashlib.sha256()
    for path in sorted(_files(tests)):
        link = os.readlink(path) if path.is_symlink() else ""
        mode = 0 if link else path.stat().st_mode & 0o100  # git keeps only this bit
        found.update(f"{path.relative_to(REPOSITORY)}\0{mode}\0{link}\0".encode())
        found.update(hashlib.sha256(b"" if link else path.read_bytes()).digest())
    return found.hexdigest()


def _files(tests: str) -> Iterator[Path]:
    for name in {tests, "conftest.py", "tests/support", *PROTECTS[tests]}:
        path = REPOSITORY / name
        if path.is_file():
            yield path
        for folder, folders, files in os.walk(path):
            folders[:] = [each for each in folders if each != "__pycache__"]
            links = [each for each in folders if os.path.islink(os.path.join(folder, each))]
            yield from (Path(folder, each) for each in (*files, *links))


def as_passed() -> dict[str, str]:
    """The tests whose files are the same as when they passed, with that day."""
    known = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    return {tests: day for tests, (content, day) in known.items() if content == digest(tests)}


#: Options that leave out tests.
_SOME = (
    "collectonly",
    "setuponly",
    "setupplan",
    "stepwise",
    "keyword",
    "markexpr",
    "maxfail",
    "deselect",
    "ignore",
    "ignore_glob",
    "lf",
)
_LEFT_OUT = pytest.StashKey[dict[str, str]]()
#: Taken when the run begins: files that change meanwhile have not passed.
_DIGESTS = pytest.StashKey[dict[str, str]]()


def _tests_of(nodeid: str) -> str | None:
    return next((tests for tests in PROTECTS if nodeid.startswith(f"{tests}/")), None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also tests whose files are as when they passed")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.stash[_LEFT_OUT] = config.workerinput["left_out"]
        return
    # A folder or file that is named is always run.
    whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    everything = config.getoption("all")
    config.stash[_LEFT_OUT] = as_passed() if whole and not everything else {}
    some = any(config.getoption(each, None) for each in _SOME)
    config.stash[_DIGESTS] = {tests: digest(tests) for tests in PROTECTS if whole and everything and not some}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["left_out"] = node.config.stash[_LEFT_OUT]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if left_out := [item for item in items if _tests_of(item.nodeid) in config.stash[_LEFT_OUT]]:
        items[:] = [item for item in items if _tests_of(item.nodeid) not in config.stash[_LEFT_OUT]]
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    for tests, day in config.stash[_LEFT_OUT].items():
        terminalreporter.write_line(
            f"{tests} was left out: what it protects is as it was when it passed on {day} (make test-all)"
        )
    if config.stash[_DIGESTS] and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        failed = {
            _tests_of(report.nodeid)
            for outcome in ("failed", "error")
            for report in terminalreporter.stats.get(outcome, [])
        }
        ran = {_tests_of(report.nodeid) for report in terminalreporter.stats.get("passed", [])}
        passed = ran - failed
        _write_down({tests: content for tests, content in config.stash[_DIGESTS].items() if tests in passed})


def _write_down(passed: dict[str, str]) -> None:
    known = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    today = time.strftime("%Y-%m-%d", time.gmtime())
    known |= {tests: [content, today] for tests, content in passed.items()}
    PASSED.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(sys.argv[1] in as_passed())
