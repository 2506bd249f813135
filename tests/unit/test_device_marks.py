"""Marking devices as drained or reserved while no driver answers: only by a whole UUID."""

from __future__ import annotations

import pytest

from xpu_runtime.cli import device_marks
from xpu_runtime.errors import DeviceError
from xpu_runtime.observe import driver_questions


@pytest.mark.parametrize(
    ("uuid", "is_whole"),
    [
        ("GPU-00112233-4455-6677-8899-aabbccddeeff", True),
        ("MIG-00112233-4455-6677-8899-aabbccddeeff", True),
        # AMD's, as vendors/amd.py makes them.
        ("GPU-0123456789abcdef", True),
        ("GPU-0123456789abcdef-1", True),
        ("GPU-pci-0000-03-00-0", True),
        ("GPU-pci-0000-03-00-0-7", True),
        # No driver's: no device would be drained.
        ("00112233-4455-6677-8899-aabbccddeeff", False),
        ("GPU-00112233-4455-6677-8899-aabbccddeef", False),
        ("GPU-0011", False),
        ("GPU-pci-0000-03-00", False),
        ("0", False),
    ],
)
@pytest.mark.parametrize("error", [driver_questions.DriverHangsError, DeviceError])
@pytest.mark.usefixtures("run_dir")
def test_without_an_answer_of_the_driver_a_whole_uuid_is_taken(
    monkeypatch: pytest.MonkeyPatch, uuid: str, is_whole: bool, error: type[DeviceError]
) -> None:
    def fails(config: object) -> None:
        raise error("the driver does not tell", "see")

    monkeypatch.setattr(driver_questions, "inventory", fails)
    written: list[str] = []
    if not is_whole:
        with pytest.raises(DeviceError, match="give a device's whole UUID"):
            device_marks.mark((uuid,), written.append, "drained", "", str)
        assert written == []
        return
    device_marks.mark((uuid,), written.append, "drained", "", str)
    assert written == [uuid]
