"""The request of a pod's container. It comes from the assignment, and not from the author's amounts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from xpu_runtime.config.defaults import Config
from xpu_runtime.oci.spec import kind_in_pod
from xpu_runtime.request import pod
from xpu_runtime.request.assignment import ANNOTATION, Assignment, AssignmentError, Share, sign
from xpu_runtime.request.pod_container import PodContainer
from xpu_runtime.request.request import Request
from xpu_runtime.request.source import asks, from_spec
from xpu_runtime.request.units import Memory

from . import specs
from .specs import GIB, Spec

KEY = bytes(range(32))
WHO = PodContainer("uid-1", "default", "web", "main")
ASSIGNED = Assignment(
    "uid-1", "node-1", time.time(), {"main": (Share("GPU-0", 4 * GIB, 30), Share("GPU-3", 4 * GIB, 30))}
)
CONTAINERD = {
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-uid": "uid-1",
    "io.kubernetes.cri.sandbox-namespace": "default",
    "io.kubernetes.cri.sandbox-name": "web",
    "io.kubernetes.cri.container-name": "main",
}
CRI_O = {
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.pod.uid": "uid-1",
    "io.kubernetes.pod.namespace": "default",
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.container.name": "main",
}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The configuration of a cluster's node, which requires assignments."""
    (tmp_path / "keys").write_text(f"k1 {KEY.hex()}\n")
    return Config(
        kubernetes_require_assignment=True,
        kubernetes_node_name="node-1",
        kubernetes_keys=str(tmp_path / "keys"),
    )


def spec(*variables: str, engine: dict[str, str] = CONTAINERD, **annotations: str) -> Spec:
    """A spec. The annotations are given by their short names: `mem` is `yoyoworks.com/xpu-mem`."""
    ours = {f"yoyoworks.com/xpu-{name.replace('_', '-')}": value for name, value in annotations.items()}
    return specs.spec(*variables, annotations={**engine, **ours})


def assigned(assignment: Assignment = ASSIGNED) -> str:
    return sign(assignment, "k1", KEY)


def refusal(asked: Spec, config: Config) -> str:
    assert asks(asked)
    return specs.refused(asked, config)


@pytest.mark.parametrize("engine", [CONTAINERD, CRI_O])
def test_a_container_gets_what_its_pod_was_assigned(config: Config, engine: dict[str, str]) -> None:
    found = from_spec(spec("XPU_KUBERNETES=allocated", engine=engine, assignment=assigned()), config)
    assert found == Request(
        choice="list",
        selectors=("GPU-0", "GPU-3"),
        choice_from="the assignment of container main of pod default/web",
        count=2,
        memory=(Memory(4 * GIB), Memory(4 * GIB)),
        cores=30,
        sched="fixed",
        priority="normal",
        decided=True,
        of_pod=WHO.replace(assignment=ASSIGNED, key_id="k1"),
    )


def test_a_whole_device_is_one_without_an_amount(config: Config) -> None:
    whole = ASSIGNED.replace(containers={"main": (Share("GPU-0", None, None),)})
    found = specs.asked(spec(assignment=assigned(whole)), config.replace(defaults_cores=50))
    assert (found.selectors, found.memory, found.cores) == (("GPU-0",), (), None)


def test_an_assignment_is_honoured_where_none_is_required(config: Config) -> None:
    lenient = config.replace(kubernetes_require_assignment=False)
    found = from_spec(spec(assignment=assigned()), lenient)
    assert found is not None and found.of_pod == WHO.replace(assignment=ASSIGNED, key_id="k1")
    assert "forged" in refusal(spec(assignment=assigned()[:-1] + "x"), lenient)
    # A container that the assignment does not name asks like any other. A container of a pod without one
    # does, too.
    other = {**CONTAINERD, "io.kubernetes.cri.container-name": "other"}
    for plain in (spec("XPU_MEM=1G", engine=other, assignment=assigned()), spec("XPU_MEM=1G")):
        request = specs.asked(plain, lenient)
        assert (request.memory, request.of_pod) == ((Memory(GIB),), None)


def test_an_allocation_by_kubelet_asks_by_the_ledger(config: Config) -> None:
    for each in (config, config.replace(kubernetes_require_assignment=False)):
        found = specs.asked(spec("XPU_KUBERNETES=allocated"), each)
        assert (found.of_pod, found.selectors) == (WHO, ())
        whole = pod.complete(found, ASSIGNED.of("main"))
        assert whole.choice_from == "the allocation of container main of pod default/web"
        whole = whole.replace(choice_from="the assignment of container main of pod default/web")
        by_assignment = specs.asked(spec(assignment=assigned()), config)
        assert whole.replace(of_pod=None) == by_assignment.replace(of_pod=None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"uid": "uid-2"},
            "is that of another pod (its UID is uid-2, this one's uid-1): it cannot be copied",
        ),
        ({"node": "node-2"}, "is for the node node-2, and this node's name is node-1: delete the pod"),
    ],
)
def test_a_copied_assignment_is_refused(config: Config, change: dict[str, str], told: str) -> None:
    assert told in refusal(spec(assignment=assigned(ASSIGNED.replace(**change))), config)


def test_a_forged_assignment_is_refused_beside_any_variable(config: Config, tmp_path: Path) -> None:
    forged = sign(ASSIGNED, "k1", bytes(32))
    for asked in (spec(assignment=forged), spec("XPU_VISIBLE_DEVICES=none", assignment=forged)):
        assert "forged or damaged" in refusal(asked, config)
    assert "the key 'k2', which this node does not have" in refusal(
        spec(assignment=sign(ASSIGNED, "k2", KEY)), config
    )
    assert "has not the form v1.KEYID.PAYLOAD.MAC" in refusal(spec(assignment="all"), config)
    gone = config.replace(kubernetes_keys=str(tmp_path / "missing"))
    assert f"{tmp_path}/missing, cannot be read" in refusal(spec(assignment=assigned()), gone)


@pytest.mark.parametrize(
    ("variable", "annotation"),
    [
        ("XPU_MEM=4G", {"mem": "4G"}),
        ("XPU_CORES=30", {"cores": "30"}),
        ("XPU_VISIBLE_DEVICES=all", {"visible_devices": "all"}),
        ("XPU_RESERVATION=a", {"reservation": "a"}),
        ("XPU_COUNT=8", {}),
        ("XPU_POLICY=spread", {}),
    ],
)
def test_an_amount_by_the_author_is_refused(
    config: Config, variable: str, annotation: dict[str, str]
) -> None:
    told = (
        f"{variable} is not for a container of a pod: give amounts in resources.limits, such as "
        "yoyoworks.com/xpu-mem: 4"
    )
    assert told in refusal(spec(variable, assignment=assigned()), config)
    assert told in refusal(spec(variable, "XPU_KUBERNETES=allocated"), config)
    assert told in refusal(spec(variable), config)
    for name, value in annotation.items():
        text = f"yoyoworks.com/xpu-{name.replace('_', '-')}: {value} is not for a container of a pod"
        asked = spec(assignment=assigned())
        asked["annotations"][text.partition(":")[0]] = value
        assert text in refusal(asked, config)


def test_annotations_for_the_scheduler_do_not_change_the_containers_request(config: Config) -> None:
    found = from_spec(spec(assignment=assigned(), count="2", policy="spread"), config)
    assert found is not None and (found.count, found.policy) == (2, None)
    assert from_spec(spec(count="2", policy="spread"), config) is None


def test_the_author_chooses_how_a_slice_is_held(config: Config) -> None:
    asked = spec(
        "XPU_SCHED=burst",
        "XPU_CAPABILITIES=compute",
        "XPU_REQUIRE=cuda>=12.0",
        "XPU_ENFORCE=library",
        "XPU_LOG=debug",
        assignment=assigned(),
        priority="high",
    )
    found = specs.asked(asked, config)
    assert (found.sched, found.priority, found.capabilities) == ("burst", "high", ("compute",))
    assert (found.enforce, found.log, len(found.requirements)) == ("library", True, 1)
    told = refusal(spec("XPU_SCHED=burts", "XPU_CPU=3", assignment=assigned()), config)
    assert "did you mean burst?" in told and "XPU_CPU='3': unknown variable" in told
    most = config.replace(policy_max_priority="normal")
    told = refusal(spec("XPU_PRIORITY=high", assignment=assigned()), most)
    assert "XPU_PRIORITY=high exceeds policy.max_priority=normal" in told
    assert "bypasses" in refusal(spec("LD_PRELOAD=/x/libcuda.real.so", assignment=assigned()), config)


def test_maxima_and_defaults_of_the_node_do_not_apply_to_assigned_shares(config: Config) -> None:
    node = config.replace(
        policy_max_memory="1G",
        policy_max_cores=5,
        policy_max_count=1,
        defaults_memory="1G",
        defaults_cores=10,
    )
    found = from_spec(spec(assignment=assigned()), node)
    assert found is not None and found.decided
    assert (found.memory[0], found.cores, found.count) == (Memory(4 * GIB), 30, 2)


def test_the_images_devices_are_ignored_and_its_driver_variables_count(config: Config) -> None:
    image = (
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_GPU_MEMORY_LIMIT=100",
        "NVIDIA_DRIVER_CAPABILITIES=compute",
        "NVIDIA_REQUIRE_CUDA=cuda>=12.0",
        "CUDA_VERSION=12.0",
    )
    found = specs.asked(spec(*image, assignment=assigned()), config)
    assert (found.selectors, found.memory[0]) == (("GPU-0", "GPU-3"), Memory(4 * GIB))
    assert (found.capabilities, len(found.requirements), found.vendor) == (("compute",), 1, "")


def test_xpu_sched_without_a_cap_is_refused_as_a_variable_and_ignored_as_an_annotation(
    config: Config,
) -> None:
    uncapped = assigned(ASSIGNED.replace(containers={"main": (Share("GPU-0", GIB, None),)}))
    told = refusal(spec("XPU_SCHED=burst", assignment=uncapped), config)
    assert "XPU_SCHED=burst needs a cap on cores, and container main of pod default/web was" in told
    # An annotation holds for each container of the pod; others may have a cap.
    assert from_spec(spec(assignment=uncapped, sched="burst"), config) is not None


def test_a_container_that_asks_for_nothing_is_left_alone(config: Config) -> None:
    other = {**CONTAINERD, "io.kubernetes.cri.container-name": "proxy"}
    for plain in (
        spec(),
        spec(engine=other, assignment=assigned()),
        spec("XPU_LOG=debug", engine=other, assignment=assigned(), sched="burst"),
        spec("NVIDIA_VISIBLE_DEVICES=none", engine=other, assignment=assigned()),
        spec("NVIDIA_VISIBLE_DEVICES=void"),
        spec("NVIDIA_DRIVER_CAPABILITIES=all"),
        # CUDA images set these to ask for all devices.
        spec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GPU_MEMORY_LIMIT=100"),
        spec("NVIDIA_VISIBLE_DEVICES=GPU-1234", engine=other, assignment=assigned()),
        spec("CUDA_VERSION=9.0", engine=other, assignment=assigned()),
    ):
        assert from_spec(plain, config) is None
    sandbox = {**CONTAINERD, "io.kubernetes.cri.container-type": "sandbox"}
    assert from_spec(spec("XPU_MEM=4G", engine=sandbox, assignment="forged"), config) is None


@pytest.mark.parametrize("variable", ["XPU_KUBERNETES=allocated", "XPU_SCHED=burst"])
def test_a_container_that_asks_without_an_assigned_share_is_refused(config: Config, variable: str) -> None:
    other = {**CONTAINERD, "io.kubernetes.cri.container-name": "proxy"}
    told = refusal(spec(variable, engine=other, assignment=assigned()), config)
    assert (
        "asks for devices, and container proxy of pod default/web was assigned none: give amounts in" in told
    )
    assert told.endswith("such as yoyoworks.com/xpu-mem: 4 and yoyoworks.com/xpu-cores: 30")
    # Without an assignment the request goes to the ledger. It is never for all devices.
    found = from_spec(spec(variable, engine=other), config)
    assert found is not None and found.of_pod is not None and found.selectors == ()


def test_a_container_whose_engine_does_not_name_the_pod_is_refused(config: Config) -> None:
    old = {name: value for name, value in CONTAINERD.items() if "uid" not in name}
    assert "the pod of this container is not known" in refusal(spec("XPU_MEM=4G", engine=old), config)
    assert "the pod of this container is not known" in refusal(
        spec(engine=old, assignment=assigned()), config
    )
    assert from_spec(spec(engine=old), config) is None


def test_the_variable_of_the_device_plugin_means_nothing_outside_a_pod(config: Config) -> None:
    told = refusal(spec("XPU_KUBERNETES=allocated", engine={}), config)
    assert told == (
        "XPU_KUBERNETES='allocated': is for containers of pods, and this container is in no pod: leave it out"
    )
    assert "unknown annotation yoyoworks.com/xpu-assignment" in refusal(
        spec(engine={}, assignment=assigned()), config
    )
    plain = from_spec(spec("XPU_MEM=4G", engine={}), config)
    assert plain is not None and not plain.decided


def test_the_device_plugins_variable_counts_where_policy_refuses_variables(config: Config) -> None:
    strict = config.replace(policy_accept_env_when_unprivileged=False)
    assert from_spec(spec("XPU_KUBERNETES=allocated", assignment=assigned()), strict) is not None
    told = refusal(spec("XPU_SCHED=burst", assignment=assigned()), strict)
    assert "XPU_SCHED is set in an unprivileged container" in told


def test_only_the_engine_identifies_a_container() -> None:
    assert pod.who(CONTAINERD) == pod.who(CRI_O) == WHO
    assert pod.who({**CRI_O, "io.kubernetes.cri.container-type": "container"}) is None


@pytest.mark.parametrize("engine, others", [(CRI_O, CONTAINERD), (CONTAINERD, CRI_O)])
def test_annotations_of_another_engine_do_not_change_a_containers_identity(
    config: Config, engine: dict[str, str], others: dict[str, str]
) -> None:
    # cri-o copies all of a pod's annotations into the spec. An attacker has the victim's assignment, and
    # claims the victim's identity in containerd's annotations.
    thief = {name: value.replace("uid-1", "uid-2") for name, value in engine.items()}
    both = {**others, **thief}
    told = refusal(spec("XPU_KUBERNETES=allocated", engine=both, assignment=assigned()), config)
    assert "the pod of this container is not known" in told
    # The pause container needs no request. An author cannot make a container look like one.
    sandbox = {**CRI_O, "io.kubernetes.cri.container-type": "sandbox"}
    assert kind_in_pod(sandbox) == "container"
    assert AssignmentError.code == "wrong-assignment" and ANNOTATION.startswith("yoyoworks.com/xpu-")
