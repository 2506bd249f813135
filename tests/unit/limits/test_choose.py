"""The choice of a backend for a limit, and the refusal without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import inventories
from support.requests import parse
from xpu_runtime import extensions, granting, paths
from xpu_runtime.config.defaults import Config
from xpu_runtime.errors import DeviceError, RequestError
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.refusal import Refused
from xpu_runtime.limits import choose
from xpu_runtime.request.pod_container import PodContainer
from xpu_runtime.vendors.inventory import Device, Inventory, Library, Node

GPU = Device("0", "GPU-0", "Tesla T4", 15 << 30, (Node("/dev/nvidia0", 195, 0),), "nvidia")
MIG = GPU.replace(index="0:0", uuid="MIG-0", parent="GPU-0")
AMD = GPU.replace(vendor="amd", uuid="GPU-00000000000000a1")
LIBRARIES = tuple(
    Library("lib", f"/lib/{stem}.so.1", f"{stem}.so.1", "compute") for stem in ("libcuda", "libnvidia-ml")
)
R615 = inventories.node(inventories.nvidia("615.36.02", *LIBRARIES, limits=True), GPU)
R580 = inventories.node(inventories.nvidia("580.82.07", *LIBRARIES), GPU)
NOTHING_UNHELD = Config(enforcement_allow_unenforced=())
ALL_UNHELD = Config(enforcement_allow_unenforced=("memory", "cores"))
DRIVER_HARD = ("driver", "hard")
SOFTLY = ("library", "soft")
UNHELD = ("none", "unenforced")


@pytest.fixture
def interposers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two interposers where an installed runtime has them."""
    (tmp_path / "interposer/nvidia").mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / "interposer/nvidia" / name).touch()
    monkeypatch.setattr(paths, "NATIVE_DIR", str(tmp_path))


def outcome(
    variables: dict[str, str], found: Inventory = R615, device: Device = GPU, config: Config | None = None
) -> tuple[Holding, str | None]:
    return choose.holding(found, device, parse(variables), config or Config())


def why_not(
    variables: dict[str, str], found: Inventory = R615, device: Device = GPU, config: Config | None = None
) -> str:
    """Why the device cannot serve."""
    _, reason = outcome(variables, found, device, config)
    assert reason is not None
    return reason


def test_memory_is_held_by_the_driver_and_cores_by_the_interposers(interposers: None) -> None:
    both = {"XPU_MEM": "4G", "XPU_CORES": "30"}
    assert outcome(both) == (Holding(*DRIVER_HARD, *SOFTLY), None)
    assert outcome({**both, "XPU_ENFORCE": "driver"}) == (Holding(*DRIVER_HARD, *SOFTLY), None)
    assert outcome({"XPU_CORES": "30"}) == (Holding(None, None, *SOFTLY), None)
    assert outcome({"XPU_MEM": "1G", "XPU_CORES": "30"}, R580, MIG) == (Holding(*SOFTLY, *SOFTLY), None)


def test_capabilities_that_the_interposers_do_not_see_count_against_both_kinds(interposers: None) -> None:
    unseen = {"XPU_CAPABILITIES": "compute,graphics", "XPU_CORES": "30"}
    reason = why_not({**unseen, "XPU_MEM": "4G"}, config=NOTHING_UNHELD)
    assert reason == (
        "XPU_CAPABILITIES asks for graphics, whose work on the device the interposer libraries do not see "
        "(they see compute, utility and video), and enforcement.allow_unenforced does not list cores"
    )
    assert outcome({**unseen, "XPU_MEM": "4G", "XPU_CAPABILITIES": "all"})[0].cores_backend == "library"


def test_no_cap_on_cores_is_hard_but_that_of_a_whole_mig_device(interposers: None) -> None:
    reason = why_not({"XPU_MEM": "4G", "XPU_CORES": "30", "XPU_ENFORCE": "hard"}, config=ALL_UNHELD)
    assert reason == (
        "only a whole MIG device has a cap on cores that no program can get round, "
        "and XPU_ENFORCE=hard is set"
    )


def test_a_slice_without_limits_needs_no_backend() -> None:
    assert outcome({"XPU_COUNT": "1"}, R580, config=NOTHING_UNHELD) == (Holding(), None)
    assert outcome({"XPU_CORES": "100"}, R580, config=NOTHING_UNHELD) == (Holding(), None)


def test_where_no_interposer_is_made_for_the_driver_they_hold_nothing(interposers: None) -> None:
    """A vendor's file may name the backend and have no libraries to interpose: that must not look held."""
    driver = R580.driver("nvidia").replace(interposed=())
    reason = why_not({"XPU_MEM": "4G"}, inventories.node(driver, GPU), config=NOTHING_UNHELD)
    assert "there is no interposer library for the driver of nvidia devices" in reason


def test_with_an_older_driver_the_interposers_hold_memory(interposers: None) -> None:
    assert outcome({"XPU_MEM": "4G"}, R580) == (Holding("library", "soft"), None)
    assert outcome({"XPU_MEM": "4G", "XPU_ENFORCE": "library", "XPU_CORES": "30"}) == (
        Holding(*SOFTLY, *SOFTLY),
        None,
    )
    assert outcome({"XPU_MEM": "4G", "XPU_CAPABILITIES": "all"}, R580)[1] is None


@pytest.mark.parametrize(
    ("variables", "found", "device", "why"),
    [
        ({"XPU_CAPABILITIES": "compute,graphics"}, "580.82.07", GPU, "graphics, whose memory the interposer"),
        ({"XPU_CAPABILITIES": "compute,display"}, "580.82.07", GPU, "display, whose memory the interposer"),
        ({}, "460.91.03", GPU, "need driver R470 or newer, not 460.91.03"),
        ({"XPU_ENFORCE": "library"}, "580.82.07", AMD, "library cannot hold limits of amd devices"),
    ],
)
def test_where_the_interposers_cannot_hold_memory_the_reason_is_told(
    interposers: None, variables: dict[str, str], found: str, device: Device, why: str
) -> None:
    reason = why_not(
        {"XPU_MEM": "4G", **variables}, inventories.node(inventories.nvidia(found, *LIBRARIES), GPU), device
    )
    assert why in reason


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({"XPU_COUNT": "17"}, 17),
        ({"XPU_VISIBLE_DEVICES": ",".join(f"0:{number}" for number in range(17))}, 17),
        ({"XPU_VISIBLE_DEVICES": "all"}, 18),
    ],
)
def test_the_interposers_hold_limits_on_sixteen_devices_at_most(
    interposers: None, variables: dict[str, str], asked: int
) -> None:
    partitions = [MIG.replace(index=f"0:{number}", uuid=f"MIG-{number}") for number in range(18)]
    found = inventories.node(inventories.nvidia("580.82.07", *LIBRARIES), *partitions)
    told = f"hold limits on 16 devices of a container, not on {asked}"
    assert told in why_not({"XPU_MEM": "1G", **variables}, found, partitions[0])
    assert outcome({"XPU_MEM": "1G", "XPU_COUNT": "16"}, found, partitions[0])[1] is None


def test_without_interposers_an_older_driver_cannot_hold_memory() -> None:
    reason = why_not({"XPU_MEM": "4G"}, R580)
    assert "driver 580.82.07 cannot hold a memory limit (R615 or newer can)" in reason
    assert "libcuda.so.1 is missing: install the runtime again" in reason
    assert "enforcement.allow_unenforced does not list memory" in reason


def test_a_limit_goes_unheld_only_where_the_configuration_lists_it() -> None:
    assert outcome({"XPU_MEM": "4G"}, R580, config=ALL_UNHELD) == (Holding(*UNHELD), None)
    reason = why_not({"XPU_CORES": "30"}, config=Config())
    assert "enforcement.allow_unenforced does not list cores" in reason


@pytest.mark.parametrize("config", [Config(), ALL_UNHELD])
def test_hard_is_refused_unless_every_limit_is(config: Config) -> None:
    assert outcome({"XPU_MEM": "4G", "XPU_ENFORCE": "hard"}, config=config)[1] is None
    for variables, found in [({"XPU_MEM": "4G", "XPU_CORES": "30"}, R615), ({"XPU_MEM": "4G"}, R580)]:
        reason = why_not({**variables, "XPU_ENFORCE": "hard"}, found, config=config)
        assert "XPU_ENFORCE=hard" in reason


def test_a_backend_that_is_not_registered_is_no_choice() -> None:
    allowed = ", ".join(["auto", "hard", *extensions.backends(), "none"])
    with pytest.raises(RequestError, match=f"must be one of {allowed}"):
        parse({"XPU_MEM": "4G", "XPU_ENFORCE": "no-such-backend"})


def test_the_hardware_is_asked_for_by_name_where_a_whole_mig_device_is() -> None:
    assert outcome({"XPU_ENFORCE": "mig"}, device=MIG) == (Holding("mig", "hard", "mig", "hard"), None)
    for variables in ({"XPU_MEM": "1G"}, {"XPU_CORES": "30"}):
        reason = why_not({"XPU_ENFORCE": "mig", **variables}, device=MIG, config=ALL_UNHELD)
        assert "whole MIG device" in reason
    reason = why_not({"XPU_ENFORCE": "mig"}, device=GPU, config=ALL_UNHELD)
    assert reason == "not a MIG device, and XPU_ENFORCE=mig needs one"


# Containers that could lift a limit of the driver.


def test_a_limit_that_the_container_could_lift_is_soft_and_not_hard(interposers: None) -> None:
    lifter = parse({"XPU_MEM": "4G"}).replace(can_lift="the container has CAP_SYS_ADMIN")
    assert choose.holding(R615, GPU, lifter, Config()) == (Holding("driver", "soft"), None)
    held, reason = choose.holding(R615, GPU, lifter.replace(enforce="hard"), ALL_UNHELD)
    assert held == Holding()
    assert reason == (
        "the container has CAP_SYS_ADMIN, and could lift a limit that the driver holds, "
        "and XPU_ENFORCE=hard is set"
    )


def test_all_that_keeps_a_device_from_serving_is_told() -> None:
    reason = why_not({"XPU_MEM": "4G", "XPU_CORES": "30"}, R580, config=NOTHING_UNHELD)
    assert "does not list memory" in reason
    assert reason.endswith("does not list cores")
    # If the cap comes from the configuration, the reason says so.
    asked = parse({"XPU_MEM": "4G", "XPU_CORES": "30"}).replace(cores_from="defaults.cores")
    _, of_defaults = choose.holding(R580, GPU, asked, NOTHING_UNHELD)
    assert (of_defaults or "").endswith("does not list cores (the cap comes from defaults.cores)")


def test_an_image_cannot_lift_its_limit_by_asking_for_none() -> None:
    assert outcome({"XPU_MEM": "4G", "XPU_ENFORCE": "none"})[1] is not None
    assert outcome({"XPU_MEM": "4G", "XPU_ENFORCE": "none"}, config=ALL_UNHELD) == (Holding(*UNHELD), None)


def test_a_whole_mig_device_is_held_by_the_hardware_and_a_part_of_it_by_nothing() -> None:
    assert outcome({"XPU_COUNT": "1"}, device=MIG)[0] == Holding("mig", "hard", "mig", "hard")
    reason = why_not({"XPU_MEM": "1G"}, device=MIG)
    assert "MIG" in reason


def test_a_pods_container_may_name_no_weaker_backend_than_auto_takes(interposers: None) -> None:
    container = PodContainer("uid", "default", "web", "main")

    def of_pod(enforce: str, found: Inventory, **policy: bool) -> tuple[Holding, str | None]:
        asked = parse({"XPU_MEM": "1G", "XPU_CORES": "30", "XPU_ENFORCE": enforce}).replace(of_pod=container)
        return choose.holding(found, GPU, asked, ALL_UNHELD.replace(**policy))

    assert of_pod("library", R615)[1] == (
        "XPU_ENFORCE=library would leave memory soft, which driver holds hard, and "
        "policy.pods_may_weaken_limits is false"
    )
    told = of_pod("none", R580)[1] or ""
    assert "leave memory unenforced, which library holds soft" in told
    assert "leave cores unenforced, which library holds soft" in told
    for enforce, found in [("auto", R615), ("driver", R615), ("library", R580)]:
        assert of_pod(enforce, found)[1] is None
    soft = Holding(*SOFTLY, *SOFTLY)
    assert of_pod("library", R615, policy_pods_may_weaken_limits=True) == (soft, None)
    # Others are as they were.
    assert outcome({"XPU_MEM": "1G", "XPU_CORES": "30", "XPU_ENFORCE": "library"}) == (soft, None)


def test_a_container_without_a_cgroup_v2_folder_is_refused_if_no_other_backend_holds_its_limit(
    interposers: None,
) -> None:
    """The lack is known only once the container exists: the slice is then booked, with the driver as
    holder."""
    asked = parse({"XPU_MEM": "4G", "XPU_CAPABILITIES": "compute,graphics"})
    slice_ = Slice(GPU.index, GPU.uuid, 4 << 30, True, None, Holding(*DRIVER_HARD))
    booked = Grant(1, "c1", "/b", 1, 1, "", "pending", "hook", 0.0, (slice_,))
    with pytest.raises(Refused) as caught:
        granting._without_cgroup(R615, booked, asked, NOTHING_UNHELD)
    told = caught.value.refusal.line()
    assert "the low-level runtime made no cgroup v2 folder for this container" in told
    assert "graphics, whose memory the interposer libraries do not see" in told
    with pytest.raises(DeviceError, match=f"device {GPU.uuid} is no longer there"):
        granting._without_cgroup(R615.replace(devices=()), booked, asked, NOTHING_UNHELD)
