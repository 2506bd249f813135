"""The NVML functions that the interposer answers. All others reach the driver."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pynvml

import headers
from support.exports import exported, listed

from ..nvml_sandbox import nvml
from ..sandboxes import FOLDER, Sandbox

WHEEL = "nvidia-nvml-dev"
TABLE = headers.TABLES[WHEEL]


def decided() -> dict[str, set[str]]:
    """The table: decision → names."""
    return {name: set(names) for name, names in headers.decided(TABLE).items()}


def test_each_function_is_decided_about_once() -> None:
    table = decided()
    assert set(table) == {"slice", "card", "fields", "vgpu", "other"}
    assert sum(map(len, table.values())) == len(set().union(*table.values()))


def test_no_function_of_the_binding_lacks_a_decision() -> None:
    source = Path(pynvml.__file__).read_text()
    known = set(re.findall(r"_nvmlGetFunctionPointer\(\s*[\"'](nvml\w+)[\"']", source))
    assert len(known) > 300
    assert known - set().union(*decided().values()) == set()


def test_no_function_of_the_newest_header_lacks_a_decision() -> None:
    text = headers.text_of_installed(WHEEL)
    assert len(headers.functions(WHEEL, text)) > 400
    assert headers.undecided(WHEEL, text) == []


def test_no_field_of_the_newest_header_lacks_a_decision() -> None:
    text = headers.text_of_installed(WHEEL)
    (up_to,) = re.findall(r"fields up to number (\d+)", TABLE.read_text())
    (most,) = re.findall(r"#define\s+NVML_FI_MAX\s+(\d+)", text)
    assert int(up_to) == int(most) - 1
    assert decided()["fields"] <= set(re.findall(r"#define\s+(NVML_FI_\w+)", text))


def test_no_function_that_a_driver_exports_lacks_a_decision() -> None:
    private = {"nvmlRetry_NvRmControl"}  # R470's, in no header
    known = set().union(*listed("libnvidia-ml").values())
    assert known - private - set().union(*decided().values()) == set()


def test_the_interposer_defines_exactly_the_functions_of_the_table(interposers: Path) -> None:
    assert exported(interposers / "libnvidia-ml.so.1") == decided()["slice"]


def test_all_others_are_the_drivers_own(sandbox: Callable[..., Sandbox]) -> None:
    others = sorted(listed("libnvidia-ml")["R615"] - decided()["slice"])
    assert len(others) > 300
    script = f"""
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]
library = ctypes.CDLL("libnvidia-ml.so.1")
libc = ctypes.CDLL(None)
def place(name):
    info = Info()
    libc.dladdr(ctypes.cast(getattr(library, name), ctypes.c_void_p), ctypes.byref(info))
    return info.file.decode()
said = [sorted({{place(name) for name in {others}}}), place("nvmlDeviceGetMemoryInfo")]
"""
    driver, interposer = nvml(sandbox(1 << 30, topology="1xT4"), script)
    assert driver == [f"{FOLDER}/libnvidia-ml.real"]
    assert interposer == "/mnt/lib/libnvidia-ml.so.1"
