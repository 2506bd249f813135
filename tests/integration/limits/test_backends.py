"""A backend is one file: one that lives in the tests holds limits through the real hook, in both modes."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import GIB, REPOSITORY
from xpu_runtime.linux import proc

from ..conftest import Bundles, Node


@pytest.fixture(scope="session")
def with_example(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation with two more files in the folder of its backends: the example, and the smallest
    one of the developers' page."""
    prefix = tmp_path_factory.mktemp("installed") / "prefix"
    shutil.copytree(installed, prefix, symlinks=True)
    backends = prefix / "lib/xpu-container-runtime/python/xpu_runtime/limits/backends"
    shutil.copy(REPOSITORY / "tests/support/example_backend.py", backends / "example.py")
    page = (REPOSITORY / "docs/developers/add-a-backend.md").read_text()
    (backends / "minimal.py").write_text(page.partition("```python\n")[2].partition("```\n")[0])
    return prefix


@pytest.fixture(params=["hook", "spec"])
def example_node(node: Node, with_example: Path, request: pytest.FixtureRequest) -> Node:
    """A node of two cards whose driver holds memory limits, beside the example."""
    node.use(with_example)
    node.sim("2xT4")
    node.configure(f"mode: {request.param}")
    return node


def sleeper(node: Node, bundles: Bundles, *env: str) -> str:
    return node.start(bundles(*env, args=["sleep", "1000"]))


def seen_inside(node: Node, container: str) -> list[str]:
    """The limits as the container itself sees them."""
    return node.oci("exec", container, "cat", "/run/example-limits").stdout.split("\n")[:-1]


def written(node: Node, container: str) -> list[str]:
    return [line for line in seen_inside(node, container) if line]


def test_it_holds_both_kinds_of_limits_shows_them_and_lifts_them(
    example_node: Node, bundles: Bundles
) -> None:
    container = sleeper(example_node, bundles, "XPU_MEM=4G", "XPU_CORES=30", "XPU_ENFORCE=example")
    assert written(example_node, container) == ["0 cores 30", f"0 memory {4 * GIB}"]
    (entry,) = example_node.json("ps")
    assert (entry["memory_backend"], entry["memory_strength"]) == ("example", "hard")
    assert (entry["cores_backend"], entry["cores_strength"]) == ("example", "hard")
    assert "memory: example (hard), cores: example (hard)" in example_node.xpu("ps").stdout
    told = inspected(example_node, container)
    place = example_node.run_dir / "slices"
    assert told["example"].startswith(str(place))
    (part,) = told["slices"]
    assert (part["limit_in_force_bytes"], part["cores_in_force"]) == (4 * GIB, 30)
    assert f"example    in {told['example']}" in example_node.xpu("inspect", container).stdout
    # Given back by hand while it runs, it keeps its devices and loses its limits.
    example_node.xpu("release", container, "--force")
    assert written(example_node, container) == []
    assert list(place.iterdir()) == []


def test_the_smallest_one_of_the_developers_page_books_memory(example_node: Node, bundles: Bundles) -> None:
    asked = ("XPU_MEM=1G", "XPU_ENFORCE=minimal")
    told = example_node.xpu("explain", "-e", asked[0], "-e", asked[1]).stdout
    assert "memory: held by minimal (soft)" in told
    sleeper(example_node, bundles, *asked)
    (entry,) = example_node.json("ps")
    assert (entry["memory_backend"], entry["memory_strength"]) == ("minimal", "soft")


def test_both_limits_change_while_the_container_runs(example_node: Node, bundles: Bundles) -> None:
    container = sleeper(example_node, bundles, "XPU_MEM=4G", "XPU_CORES=30", "XPU_ENFORCE=example")
    told = example_node.xpu("set", container, "--mem", "6G", "--cores", "50").stdout
    assert told == f"{container}: 6G and 50% of the cores of GPU 0\n"
    assert written(example_node, container) == ["0 cores 50", f"0 memory {6 * GIB}"]
    example_node.xpu("set", container, "--cores", "10%")
    assert written(example_node, container) == ["0 cores 10", f"0 memory {6 * GIB}"]
    (entry,) = example_node.json("ps")
    assert (entry["memory_bytes"], entry["cores"]) == (6 * GIB, 10)
    (part,) = inspected(example_node, container)["slices"]
    assert (part["limit_in_force_bytes"], part["cores_in_force"]) == (6 * GIB, 10)


def test_each_kind_is_held_by_the_strongest_and_both_change_together(
    example_node: Node, bundles: Bundles
) -> None:
    container = sleeper(example_node, bundles, "XPU_MEM=4G", "XPU_CORES=30")
    assert "memory: driver (hard), cores: example (hard)" in example_node.xpu("ps").stdout
    example_node.xpu("set", container, "--mem", "2G", "--cores", "20")
    assert written(example_node, container) == ["0 cores 20"]
    (part,) = inspected(example_node, container)["slices"]
    assert (part["limit_in_force_bytes"], part["cores_in_force"]) == (2 * GIB, 20)


def test_all_caps_on_a_device_are_100_percent_at_most(example_node: Node, bundles: Bundles) -> None:
    cards = "XPU_VISIBLE_DEVICES=0"
    first = sleeper(example_node, bundles, "XPU_MEM=4G", "XPU_CORES=30", cards)
    second = sleeper(example_node, bundles, "XPU_MEM=4G", "XPU_CORES=60", cards)
    done = example_node.xpu("set", first, "--mem", "1G", "--cores", "45", check=False)
    assert done.returncode == 3
    assert "10% cores free and 30% already its own, 45% requested" in done.stderr
    assert done.stderr.rstrip().endswith("the nearest request that fits now: --cores 40")
    # Both are unchanged.
    assert booked(example_node) == [(4 * GIB, 30), (4 * GIB, 60)]
    assert written(example_node, first) == ["0 cores 30"]
    example_node.xpu("set", first, "--cores", "40")
    done = example_node.xpu("set", second, "--cores", "65", check=False)
    assert done.returncode == 3
    assert booked(example_node) == [(4 * GIB, 40), (4 * GIB, 60)]


def test_only_names_that_are_registered_can_be_asked_for(example_node: Node, installed: Path) -> None:
    done = example_node.xpu("explain", "-e", "XPU_MEM=4G", "-e", "XPU_ENFORCE=exmaple", check=False)
    assert done.returncode == 2
    assert "example" in allowed(done.stdout)
    assert "; did you mean example?" in done.stdout
    told = example_node.xpu("explain", "-v", "-e", "XPU_MEM=4G", "-e", "XPU_ENFORCE=example").stdout
    assert "memory: held by example (hard)" in told
    assert "note: it is an example" in told
    assert f"mount {example_node.run_dir}/slices/GRANT/limits at /run/example-limits" in told
    example_node.use(installed)
    done = example_node.xpu("explain", "-e", "XPU_MEM=4G", "-e", "XPU_ENFORCE=example", check=False)
    assert done.returncode == 2
    assert {"auto", "hard", "driver", "none"} <= allowed(done.stdout)
    assert "example" not in allowed(done.stdout)


def allowed(told: str) -> set[str]:
    """The allowed values of XPU_ENFORCE in a refusal."""
    return set(told.partition("must be one of ")[2].partition(";")[0].strip().split(", "))


def inspected(node: Node, container: str) -> Any:
    (grant,) = node.json("inspect", container)["grants"]
    return grant


def booked(node: Node) -> list[tuple[int, int]]:
    return [(entry["memory_bytes"], entry["cores"]) for entry in node.json("ps")]


@pytest.fixture
def faulty(example_node: Node, with_example: Path, tmp_path: Path) -> Callable[[str, str], None]:
    """Gives the node an example backend in which a line of code stands at the beginning of a function."""

    def fail(function: str, line: str) -> None:
        prefix = tmp_path / "prefix"
        shutil.copytree(with_example, prefix, symlinks=True)
        backend = prefix / "lib/xpu-container-runtime/python/xpu_runtime/limits/backends/example.py"
        head = next(each for each in backend.read_text().splitlines() if f"def {function}(" in each)
        backend.write_text(backend.read_text().replace(head, f"{head}\n        {line}"))
        example_node.use(prefix)

    return fail


@pytest.mark.parametrize("function", ["contribution", "impose"])
def test_no_container_starts_without_its_limit_whatever_ends_the_backend(
    example_node: Node, bundles: Bundles, faulty: Callable[[str, str], None], function: str
) -> None:
    faulty(function, "raise SystemExit(0)")
    bundle = bundles("XPU_MEM=4G", "XPU_ENFORCE=example")
    done = example_node.oci("create", "--bundle", bundle, bundle.name)
    assert done.returncode != 0
    assert "SystemExit" in done.stderr
    example_node.xpu("gc")
    assert example_node.grants() == []


def test_a_dead_containers_limit_that_cannot_be_lifted_stops_no_other_one(
    example_node: Node, bundles: Bundles, faulty: Callable[[str, str], None]
) -> None:
    faulty("must_lift", "from xpu_runtime.errors import ApplyError; raise ApplyError('stuck')")
    most = ("XPU_MEM=10G", "XPU_VISIBLE_DEVICES=0", "XPU_ENFORCE=example")
    sleeper(example_node, bundles, *most)
    (dead,) = example_node.grants()
    os.kill(dead.pid, signal.SIGKILL)
    while proc.is_alive(dead.pid, dead.start_time):
        time.sleep(0.01)  # the test's own time limit ends this
    other = sleeper(example_node, bundles, *most)
    assert [grant.container_id for grant in example_node.grants()] == [other]
