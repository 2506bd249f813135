"""A container stays with the runtime that created it, by every route of a start, and its slice comes back.

The launcher's own part: tests/integration/launcher/test_created.py.
"""

from __future__ import annotations

import os
import signal

import pytest

from support import created, script
from support.sharing_time import Serve

from ..conftest import Bundles, Node
from .workers import workers_are_there

#: runc with its own state folder, whatever --root it gets: another runtime does not know its containers.
RUNTIME = """[ "$1" != --root ] || shift 2
exec /usr/sbin/runc --root {0}.state "$@"
"""


@pytest.mark.parametrize("has_agent", [False, True], ids=["no agent", "agent"])
@pytest.mark.parametrize("mode", ["hook", "spec"])
@pytest.mark.parametrize("request_", ["XPU_MEM=4G", "XPU_MEM=25%", "NOTHING="])
def test_it_is_reached_when_new_ones_get_another_runtime(
    node: Node,
    bundles: Bundles,
    start_agent: Serve,
    request_: str,
    mode: str,
    has_agent: bool,
) -> None:
    first = script(node.folder / "first", RUNTIME.format(node.folder / "first"))
    node.sim("1xT4")
    node.configure(f"mode: {mode}\nlow_level_runtimes: [{first}, runc]\n")
    node.xpu("devices")  # compiles the configuration as well
    if has_agent:
        start_agent()
        workers_are_there(node)
    bundle = bundles(request_, args=["sleep", "1000"])
    container = node.start(bundle)
    assert len(node.grants()) == ("XPU" in request_)
    ((_, record),) = created.of(node.folder).items()
    assert (record.runtime, record.root) == (str(first), str(node.state_root))
    assert (record.config, record.run_dir) == (str(node.config), str(node.run_dir))

    node.configure(f"mode: {mode}\nlow_level_runtimes: [runc]\n")
    elsewhere = {**os.environ, "XPU_CONFIG": "/nowhere", "XPU_RUN_DIR": str(node.folder / "other")}
    for words in (["exec", container, "true"], ["kill", container, "KILL"], ["delete", "--force", container]):
        done = node.oci(*words, env=elsewhere)
        assert done.returncode == 0, (words, done.stderr)
    assert node.json("ps") == []
    assert created.of(node.folder) == {}


def test_an_engine_that_ignores_its_children_has_its_container(node: Node, bundles: Bundles) -> None:
    """Which the kernel then does for the shim's as well: the runtimes that it asks."""
    first = script(node.folder / "first", RUNTIME.format(node.folder / "first"))
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=25%")
    for runtime in (first, "runc"):
        node.configure(f"mode: spec\nlow_level_runtimes: [{runtime}]\n")
        done = node.oci(
            "run",
            "--bundle",
            bundle,
            bundle.name,
            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        )
        assert (done.returncode, done.stderr) == (0, "")
