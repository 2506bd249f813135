"""Rootless engines are not served; the error says so, with the remedy."""

from __future__ import annotations

import json
import os

import pytest

from ..conftest import Bundles, Node, state_of

#: As rootless engines call a runtime: as root of a user namespace, or with no root at all.
ROOTLESS = {
    "root of a user namespace": ["unshare", "--user", "--map-root-user"],
    "a user": ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"],
}
SAID = (
    "rootless engines are not served: devices, limits and the ledger are of the host's root: start it with "
    "an engine that runs as root (sudo podman; docker without rootless mode)\n"
)


@pytest.fixture(params=ROOTLESS)
def rootless(request: pytest.FixtureRequest, node: Node) -> Node:
    node.sim("1xT4")
    node.folder.chmod(0o755)
    node.state_root.chmod(0o777)
    node.view = ROOTLESS[request.param]
    return node


def test_a_request_is_refused_before_anything_is_done(rootless: Node, bundles: Bundles) -> None:
    bundle = bundles("XPU_MEM=1G,1G")  # not plain: the shim's, and not the launcher's alone
    bundle.chmod(0o755)
    before = (bundle / "config.json").read_bytes()
    done = rootless.run(bundle)
    assert done.returncode == 1
    assert done.stderr.endswith(f"xpu: {SAID}")
    assert (bundle / "config.json").read_bytes() == before


def test_the_hook_refuses_too(rootless: Node, bundles: Bundles) -> None:
    bundle = bundles("XPU_MEM=1G")
    bundle.chmod(0o755)
    done = rootless.call_hook("createRuntime", state=state_of(bundle, pid=os.getpid()))
    assert (done.returncode, done.stderr.endswith(f"xpu: {SAID}")) == (1, True), done.stderr


def test_doctor_says_so_to_a_user_and_not_to_root(rootless: Node) -> None:
    said = SAID.removesuffix("\n")

    def findings() -> list[str]:
        told = json.loads(rootless.xpu("doctor", "--json", check=False).stdout)["findings"]
        return [each["state"] for each in told if f"{each['text']}: {each['todo']}" == said]

    assert findings() == ["warning"]
    rootless.view = []
    assert findings() == []
