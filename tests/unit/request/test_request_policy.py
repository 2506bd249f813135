"""The effect of the policy and the defaults on a request, and containers that can lift a limit held by the
driver."""

from __future__ import annotations

import pytest

from xpu_runtime.config.defaults import Config
from xpu_runtime.oci.spec import can_lift_limits
from xpu_runtime.request.source import from_spec

from .specs import Spec, asked, refusal, refused, request, spec


def test_the_policy_can_refuse_variables_of_an_unprivileged_container() -> None:
    config = Config(policy_accept_env_when_unprivileged=False)
    assert "accept_env_when_unprivileged" in refusal("XPU_MEM=4G", config=config)
    assert from_spec(spec("NVIDIA_VISIBLE_DEVICES=all"), config) is None
    assert from_spec(spec("XPU_MEM=4G", privileged=True), config) is not None
    assert from_spec(spec("XPU_MEM=9G", annotations={"yoyoworks.com/xpu-mem": "4G"}), config) is not None


@pytest.mark.parametrize(
    ("variable", "config"),
    [
        ("XPU_MEM=9G", Config(policy_max_memory="8G")),
        ("XPU_CORES=60", Config(policy_max_cores=50)),
        ("XPU_PRIORITY=high", Config(defaults_cores=20, policy_max_priority="normal")),
        ("XPU_COUNT=3", Config(policy_max_count=2)),
        ("XPU_VISIBLE_DEVICES=0,1,2", Config(policy_max_count=2)),
    ],
)
def test_a_maximum_applies_to_unprivileged_containers(variable: str, config: Config) -> None:
    assert "policy.max_" in refusal(variable, config=config)
    assert from_spec(spec(variable, privileged=True), config) is not None


def test_a_container_without_xpu_cores_gets_the_maximum_of_cores() -> None:
    config = Config(policy_max_cores=52)
    capped = request("XPU_MEM=1G", config=config)
    assert (capped.cores, capped.cores_from) == (50, "policy.max_cores")
    assert asked(spec("XPU_MEM=1G", privileged=True), config).cores is None
    assert request("XPU_MEM=1G", "XPU_CORES=30", config=config).cores_from == ""


def test_a_container_without_xpu_cores_gets_the_default_cores() -> None:
    found = request("XPU_MEM=1G", config=Config(defaults_cores=20, policy_max_cores=50))
    assert (found.cores, found.cores_from) == (20, "defaults.cores")
    assert request("XPU_MEM=1G", config=Config(defaults_cores=80, policy_max_cores=50)).cores == 50
    assert request("XPU_VISIBLE_DEVICES=none", config=Config(defaults_cores=20)).cores is None


def test_sched_and_priority_come_from_the_request_or_the_configuration() -> None:
    found = request("XPU_CORES=30", "XPU_SCHED=burst", "XPU_PRIORITY=low")
    assert (found.sched, found.priority) == ("burst", "low")
    config = Config(cores_sched="weight", cores_priority="high")
    found = request("XPU_CORES=30", "XPU_SCHED=burst", config=config)
    assert (found.sched, found.priority) == ("burst", "high")
    annotated = spec("XPU_CORES=30", "XPU_SCHED=burst", annotations={"yoyoworks.com/xpu-sched": "weight"})
    assert asked(annotated).sched == "weight"


def test_a_maximum_priority_bounds_the_configured_one_too() -> None:
    config = Config(cores_priority="high", policy_max_priority="normal")
    assert request("XPU_CORES=30", config=config).priority == "normal"
    assert request("XPU_CORES=30", "XPU_PRIORITY=low", config=config).priority == "low"
    assert asked(spec("XPU_CORES=30", privileged=True), config).priority == "high"


@pytest.mark.parametrize("variable", ["XPU_SCHED=burst", "XPU_PRIORITY=low"])
def test_sched_and_priority_are_refused_without_a_cap(variable: str) -> None:
    told = refusal("XPU_MEM=4G", variable)
    assert told == (
        f"{variable} needs a cap on cores, and the container has none: add XPU_CORES, such as XPU_CORES=30"
    )
    assert "XPU_CORES=100 is no cap: ask for less" in refusal(variable, "XPU_CORES=100")
    assert request("XPU_MEM=4G", variable, config=Config(defaults_cores=20)).cores == 20
    assert request(variable, "XPU_VISIBLE_DEVICES=none").choice == "none"
    name, value = variable.split("=")
    annotation = f"yoyoworks.com/xpu-{name[4:].lower()}"
    told = refused(spec("XPU_MEM=4G", annotations={annotation: value}))
    assert told.startswith(f"{annotation}: {value} needs a cap on cores")


# Containers that can lift a limit of the driver.


def test_cap_sys_admin_over_the_host_lifts_limits() -> None:
    for kind in ("bounding", "effective", "permitted", "ambient"):
        able: Spec = {"process": {"capabilities": {kind: ["CAP_SYS_ADMIN"]}}}
        assert "CAP_SYS_ADMIN" in can_lift_limits(able)
        assert can_lift_limits({**able, "linux": {"namespaces": [{"type": "user"}]}}) == ""
    assert can_lift_limits({"process": {"capabilities": {"bounding": ["CAP_NET_ADMIN"]}}}) == ""
    assert asked(spec("XPU_MEM=4G", privileged=True)).can_lift


@pytest.mark.parametrize(
    ("mount", "can"),
    [
        ({"type": "cgroup", "options": ["nosuid", "ro"]}, False),
        ({"type": "cgroup2", "options": ["nosuid"]}, True),
        ({"type": "cgroup"}, True),
        ({"type": "bind", "source": "/sys/fs/cgroup", "options": ["rbind", "rw"]}, True),
        ({"type": "bind", "source": "/sys/fs/cgroup/x/", "options": ["bind", "ro"]}, False),
        ({"type": "bind", "source": "/sys/fs/cgroup", "options": ["rbind", "ro"]}, True),
        ({"type": "bind", "source": "/", "options": ["rbind", "ro"]}, True),
        ({"type": "bind", "source": "/", "options": ["rbind", "rro"]}, False),
        ({"type": "bind", "source": "/sys", "options": ["bind"]}, False),
        ({"type": "bind", "source": "/system", "options": ["rbind"]}, False),
        ({"type": "sysfs", "source": "sysfs", "options": ["rw"]}, False),
        ("odd", False),
        ({"type": "bind", "source": 1, "options": ["rbind"]}, False),
        ({"type": "bind", "source": "/", "options": {"rbind": 1}}, False),
    ],
)
def test_a_cgroup_file_system_that_can_be_written_lifts_limits(mount: object, can: bool) -> None:
    assert bool(can_lift_limits({"mounts": [mount]})) == can


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"process": None},
        {"process": {"env": None}},
        {"process": {"env": [1, None, "XPU_MEM"]}},
        {"annotations": [1]},
        {"annotations": {"yoyoworks.com/xpu-mem": 4}},
        {"process": {"capabilities": {"bounding": "CAP_SYS_ADMIN"}, "env": []}},
    ],
)
def test_a_spec_of_odd_types_asks_for_nothing(odd: Spec) -> None:
    assert from_spec(odd, Config()) is None
