"""`pip install .`, as developers use it: `xpu`, the launcher, shim and hook in a virtual environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import REPOSITORY

from ..conftest import Bundles, Node

SOURCES = ("README.md", "config", "hooks", "native", "pyproject.toml", "setup.py", "src")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with a clone installed by pip, and with the packages that pip would fetch."""
    folder = tmp_path_factory.mktemp("pip")
    clone, made = folder / "clone", folder / "environment"
    clone.mkdir()
    for name in SOURCES:
        subprocess.run(["cp", "-a", REPOSITORY / name, clone / name], check=True)
    # Compiled already, by the same Makefile: half of the time that this takes.
    (clone / "build" / "pip-parts").mkdir(parents=True)
    parts = [REPOSITORY / "build" / "interposer" / "nvidia", clone / "build" / "pip-parts" / "interposer"]
    subprocess.run(["cp", "-a", *parts], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True, timeout=60)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(made)}))
    for package in (REPOSITORY / "build" / "vendor").iterdir():
        (packages / package.name).symlink_to(package)
    # Only setuptools: the environment must not find the tests' own packages.
    builder = folder / "builder"
    builder.mkdir()
    for pattern in ("setuptools*", "_distutils_hack"):
        for there in Path(sysconfig.get_path("purelib")).glob(pattern):
            (builder / there.name).symlink_to(there)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", made / "bin" / "python", "install", "--quiet"),
            *("--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", clone),
        ],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(builder), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(clone)
    return made


@pytest.fixture
def pip_node(node: Node, environment: Path, installed: Path) -> Iterator[Node]:
    """A node with a simulated card, which `make install` brings up: pip installs no simulator."""
    node.sim("1xT4-R580")
    node.use(environment)
    node.environ.pop("PYTHONPATH", None)  # the tests' own, which names the tree
    yield node
    node.close_containers()
    node.use(installed)


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_a_container_gets_its_slice_from_an_environment(pip_node: Node, bundles: Bundles, mode: str) -> None:
    pip_node.configure(f"mode: {mode}")
    done = pip_node.run(bundles("XPU_MEM=1G", args=["nvidia-smi"]))
    assert (done.returncode, done.stderr) == (0, "")
    assert "1024MiB" in done.stdout.replace(" ", "")
    container = pip_node.start(bundles("XPU_MEM=1G", args=["sleep", "1000"]))
    assert list(Path(pip_node.prefix).glob("lib/python*/site-packages/xpu_runtime/agent/page.html"))
    (slice_,) = pip_node.json("ps")
    assert (slice_["container_id"], slice_["memory_backend"]) == (container, "library")


def test_the_commands_have_their_data_there(pip_node: Node) -> None:
    assert pip_node.xpu("explain", "-e", "XPU_MEM=1G", check=False).stdout.startswith("granted\n")
    assert pip_node.xpu("config", "default").stdout == (REPOSITORY / "config" / "config.yaml").read_text()
    assert "start.bundle" not in pip_node.xpu("doctor", check=False).stdout
    assert "the simulator is not installed" in pip_node.xpu("sim", "up", check=False).stderr
