"""Simulated device time: kernels take it, and contexts share it.

Nothing here measures the machine's speed: simulated durations are exact, and real ones have only a lower
bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from support.simulation import NOT_READY, SUCCESS, Process, Start, Up, Working


def until(condition: Callable[[], bool]) -> None:
    """Waits for the condition, and fails if it does not come."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end


def test_a_kernel_takes_its_time_and_a_launch_does_not_wait_for_it(one: Process) -> None:
    assert one.timed("busy_20ms", 5) == [SUCCESS, 100.0]
    assert one.timed("busy_500us", 7) == [SUCCESS, 3.5]
    assert one.launch("busy_3600s") == SUCCESS, "an hour is accepted at once"
    assert one.query() == NOT_READY


def test_synchronize_waits_for_all_launches(one: Process) -> None:
    begun = time.monotonic()
    one.launch("busy_500us", 100)
    assert one.synchronize() == SUCCESS
    assert time.monotonic() - begun >= 0.05
    assert one.query() == SUCCESS


def test_a_pending_event_has_no_time(one: Process) -> None:
    before = one.event()
    one.launch("busy_3600s")
    assert one.elapsed(before, one.event()) == [NOT_READY, 0.0]


def test_names_without_a_time_take_a_few_microseconds(one: Process) -> None:
    for name in ("vectorAdd", "busy_", "busy_5", "busy_5m", "busy_5ms2"):
        result, milliseconds = one.timed(name, 10)
        assert result == SUCCESS
        assert 0.01 <= milliseconds <= 0.1


def test_a_full_queue_makes_the_launcher_wait_and_loses_nothing(one: Process) -> None:
    begun = time.monotonic()
    assert one.launch("busy_100us", 3000) == SUCCESS
    assert one.synchronize() == SUCCESS
    assert time.monotonic() - begun >= 0.3


def test_two_processes_do_not_run_at_the_same_time_on_one_device(one: Process, two: Process) -> None:
    begun = time.monotonic()
    for worker in (one, two):
        worker.launch("busy_10ms", 20)
    for worker in (one, two):
        worker.send("synchronize")
    assert [one.result(), two.result()] == [SUCCESS, SUCCESS]
    assert time.monotonic() - begun >= 0.4


def test_a_long_kernel_does_not_keep_others_from_the_device(one: Process, two: Process) -> None:
    one.launch("busy_3600s")
    before = two.event()
    two.launch("busy_10ms")
    after = two.event()
    assert two.synchronize() == SUCCESS
    assert one.query() == NOT_READY
    _, milliseconds = two.elapsed(before, after)
    assert milliseconds >= 19, "ten slices of 1,024 us, and the other's nine or ten between them"


def test_mig_devices_run_beside_each_other(up: Up, process: Start) -> None:
    root = up("2xA100-MIG").root
    first, second = process(root).mig()[:2]
    one = process(root, {"CUDA_VISIBLE_DEVICES": first})
    two = process(root, {"CUDA_VISIBLE_DEVICES": second})
    one.start(), two.start()
    one.launch("busy_3600s")
    assert two.timed("busy_10ms") == [SUCCESS, 10.0]


def test_utilisation_is_a_late_sample(working: Working, process: Start) -> None:
    root, one = working("1xT4")
    observer = process(root)
    observer.nvml("nvmlDeviceGetUtilizationRates")  # this starts NVML
    one.launch("busy_3600s")
    assert observer.nvml("nvmlDeviceGetUtilizationRates")["gpu"] < 100, (
        "no whole sample of it can be seen yet"
    )
    samples: list[dict[str, int]] = []
    until(lambda: sampled(observer, samples))
    stamp = samples[0]["timeStamp"]
    later: list[dict[str, int]] = []
    until(lambda: not sampled(observer, later, stamp) or later[0]["timeStamp"] > stamp)
    until(lambda: sampled(observer, later, stamp))
    apart = (later[0]["timeStamp"] - stamp) / 1e6 * 6
    assert abs(apart - round(apart)) < 0.001 and apart > 0.5, "each sixth of a second"


def test_a_processs_figure_is_over_all_samples_since_the_last_question(
    working: Working, process: Start
) -> None:
    root, one = working("1xT4")
    observer = process(root)
    first: list[dict[str, int]] = []
    one.launch("busy_100ms")
    until(lambda: sampled(observer, first))
    assert one.synchronize() == SUCCESS
    one.launch("busy_1s")
    last: list[dict[str, int]] = []
    until(lambda: sampled(observer, last) and last[0]["timeStamp"] - first[0]["timeStamp"] > 1_000_000)
    # Of one second in the 16 that are kept.
    assert 5 <= last[0]["smUtil"] <= 9
    (since,) = observer.nvml("nvmlDeviceGetProcessUtilization", 0, last[0]["timeStamp"] - 400_000)
    assert since["smUtil"] > 80


def sampled(observer: Process, samples: list[dict[str, int]], since: int = 0) -> bool:
    """Whether there is a sample after `since` (us); `samples` then has it."""
    found = observer.nvml("nvmlDeviceGetProcessUtilization", 0, since)
    if isinstance(found, list):
        samples[:] = found
    return isinstance(found, list)


def test_accounting_adds_up_a_processs_use(working: Working, process: Start) -> None:
    root, one = working("1xT4")
    observer = process(root)
    for _ in range(2):
        assert one.launch("busy_100ms", 3) == one.synchronize() == SUCCESS
    stats = observer.nvml("nvmlDeviceGetAccountingStats", 0, one.pid())
    assert 0 < stats["gpuUtilization"] <= 100
    assert stats["isRunning"] == 1 and stats["startTime"] > 0


def test_utilisation_follows_the_working_processes(up: Up, process: Start) -> None:
    root = up("2xT4").root
    one, two, observer = process(root), process(root), process(root)
    for worker in (one, two):
        worker.start()
        worker.launch("busy_3600s")

    def rates() -> dict[str, int]:
        found: dict[str, int] = observer.nvml("nvmlDeviceGetUtilizationRates")
        return found

    def shares() -> dict[int, int]:
        samples = observer.nvml("nvmlDeviceGetProcessUtilization", 0, 0)
        return {sample["pid"]: sample["smUtil"] for sample in samples if isinstance(sample, dict)}

    until(lambda: rates()["gpu"] == 100)
    until(lambda: shares().keys() == {one.pid(), two.pid()})
    until(lambda: all(45 <= share <= 55 for share in shares().values()))
    assert observer.nvml("nvmlDeviceGetUtilizationRates", 1) == {"gpu": 0, "memory": 0}
    assert observer.nvml("nvmlDeviceGetPowerUsage") == 70000
    two.kill()
    until(lambda: shares() == {one.pid(): 100})
    one.kill()
    until(lambda: rates()["gpu"] == 0)


def test_a_wait_for_a_context_ends_with_it(one: Process, two: Process) -> None:
    one.launch("busy_3600s")
    two.launch("busy_10ms", 50)
    two.send("synchronize")
    one.kill()
    assert two.result() == SUCCESS


def test_an_event_that_is_recorded_again_has_no_time_until_the_new_record_is_done(one: Process) -> None:
    event = one.event()
    assert one.event_synchronize(event) == SUCCESS
    assert one.elapsed(event, event) == [SUCCESS, 0]
    assert one.event_record(event) == one.launch("busy_3600s") == one.event_record(event) == SUCCESS
    assert one.elapsed(event, event)[0] == NOT_READY
