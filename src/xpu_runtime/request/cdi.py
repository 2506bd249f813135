"""Our CDI devices (`docker run --device yoyoworks.com/xpu=4g`), as the variables that they stand for.

vendors/cdi_file.py writes the CDI file. An engine that injects one of its devices adds the device's variable
to the container: XPU_CDI_<NAME>, with the device's name and its part of a request, such as `4g mem=4G`. Each
device has its own variable, because devices would overwrite a common one. An image can set such a variable
too, and gets no more than by XPU_MEM. This module knows neither the file nor the node's devices.
"""

from __future__ import annotations

from xpu_runtime.request.parse import CDI_PREFIX, MAX_DEVICES, Spelling
from xpu_runtime.request.units import parse_memory

#: The CDI kind of our devices.
KIND = "yoyoworks.com/xpu"
#: The device whose size the container's own variables give.
SLICE = "slice"
#: The device that means all of the node's devices.
ALL = "all"
#: The keys of a device's value, each with its variable.
VARIABLES = {
    "mem": "XPU_MEM",
    "cores": "XPU_CORES",
    "count": "XPU_COUNT",
    "device": "XPU_VISIBLE_DEVICES",
}
#: The characters of a device's value, besides letters and digits. An image may have written the value, and
#: messages and events show it. So it has no line break and no list of amounts.
_MARKS = frozenset("-_.:/%")
_LONGEST = 80
#: The most devices of a container that a message names.
_NAMED = 4
#: The variables that can give the size of a `slice`.
_SIZES = {*VARIABLES.values(), "XPU_RESERVATION"}


def variable(name: str, part: dict[str, str]) -> str:
    """The variable of the device `name`, with its value. `part`: its part of the request, by VARIABLES."""
    return f"{_key(name)}={' '.join([name, *(f'{word}={value}' for word, value in part.items())])}"


def _key(name: str) -> str:
    return CDI_PREFIX + "".join(letter if letter.isalnum() else "_" for letter in name.upper())


class _Device:
    """A device of the container, and its part of the request by XPU_* variable."""

    def __init__(self, text: str) -> None:
        """ValueError if `text` is not a device's value."""
        self.name, *words = text.split(" ")
        self.part: dict[str, str] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if not (equals and _is_plain(value)) or key not in VARIABLES or VARIABLES[key] in self.part:
                raise ValueError
            if key == "count" and not (value.isdigit() and 1 <= int(value) <= MAX_DEVICES):
                raise ValueError
            self.part[VARIABLES[key]] = value
        if not _is_plain(self.name) or ("XPU_VISIBLE_DEVICES" in self.part and len(self.part) > 1):
            raise ValueError
        if not self.part and self.name != SLICE:
            raise ValueError

    @property
    def whole_name(self) -> str:
        return f"{KIND}={self.name}"


def _is_plain(text: str) -> bool:
    return 0 < len(text) <= _LONGEST and all(
        (each.isascii() and each.isalnum()) or each in _MARKS for each in text
    )


def _together(devices: list[_Device]) -> str:
    """The devices' names for a message."""
    names = " and ".join(device.whole_name for device in devices[:_NAMED])
    return f"{names} and {len(devices) - _NAMED} more" if len(devices) > _NAMED else names


def expanded(
    variables: dict[str, str], spellings: dict[str, Spelling], has_default: bool
) -> tuple[dict[str, str], list[str]]:
    """The variables, with XPU_* variables in the place of CDI devices; and all problems.

    `has_default`: the configuration has a default amount of memory. Devices add up: two cards are two, and
    two sizes are two slices. The container's other variables must not contradict them.
    """
    found = {name: value for name, value in variables.items() if not name.startswith(CDI_PREFIX)}
    devices, problems = _given(variables)
    if problems:
        return found, problems
    names = _together(devices)
    sizes = [device for device in devices if "XPU_VISIBLE_DEVICES" not in device.part]
    if len(devices) > 1 and (0 < len(sizes) < len(devices) or any(not device.part for device in devices)):
        # Is 4g beside card 0 a slice of it, or one more?
        return found, [f"{names} do not add up: give either whole devices, or sizes, or slice alone"]
    try:
        part = _sum(sizes) if sizes else {"XPU_VISIBLE_DEVICES": ",".join(_cards(devices))}
    except ValueError as error:
        return found, [str(error)]
    if "XPU_VISIBLE_DEVICES" not in part and _is_none(found.get("XPU_VISIBLE_DEVICES", "")):
        return found, [_contradiction("XPU_VISIBLE_DEVICES", found, spellings, names)]
    if not part and not has_default and not _SIZES.intersection(found):
        todo = f"add XPU_MEM, such as XPU_MEM=4G, or name another device of `xpu cdi list`, such as {KIND}=0"
        return found, [f"nothing says how much {names} is: {todo}"]
    for name, value in part.items():
        if name not in found:
            spellings[name] = Spelling(names, value)
            found[name] = value
        elif not _is_same(name, found[name], value):
            problems.append(_contradiction(name, found, spellings, f"{names} ({name}={value[:60]})"))
    return found, problems


def _is_none(text: str) -> bool:
    """Whether XPU_VISIBLE_DEVICES asks for no device."""
    return [each.strip() for each in text.split(",") if each.strip()] == ["none"]


def _contradiction(name: str, found: dict[str, str], spellings: dict[str, Spelling], given: str) -> str:
    """The problem that the container asks by `name` for something else than the devices `given`."""
    there = spellings.get(name) or Spelling(name, found[name])
    asked = f"{there.name}{': ' if '/' in there.name else '='}{found[name][:60]}"
    return f"{asked} contradicts {given}: leave one of them out"


def _given(variables: dict[str, str]) -> tuple[list[_Device], list[str]]:
    devices, problems = [], []
    for name, value in variables.items():
        if name.startswith(CDI_PREFIX):
            try:
                devices.append(_Device(value))
                if _key(devices[-1].name) != name:
                    raise ValueError
            except ValueError:
                problems.append(
                    f"{name[:60]}={value[:60]!r} is of no CDI device: such variables come with devices of "
                    "`xpu cdi list` alone"
                )
    return devices, problems


def _cards(devices: list[_Device]) -> list[str]:
    """The cards of whole devices. ValueError with the problem."""
    cards = [device.part["XPU_VISIBLE_DEVICES"] for device in devices]
    if "all" in cards and len(cards) > 1:
        raise ValueError(f"{_together(devices)} do not add up: leave one out")
    return cards


def _sum(sizes: list[_Device]) -> dict[str, str]:
    """One request for several sizes. ValueError with the problem."""
    if len(sizes) == 1:
        return sizes[0].part
    names = _together(sizes)
    cores = {device.part.get("XPU_CORES") for device in sizes}
    memory = [device.part.get("XPU_MEM") for device in sizes]
    if len(cores) > 1 or None in memory:
        what = "cores" if len(cores) > 1 else "memory"
        raise ValueError(
            f"{names} do not add up: one container has the same {what} of each device; leave one out"
        )
    each: list[str] = []
    for device in sizes:
        each += [device.part["XPU_MEM"]] * int(device.part.get("XPU_COUNT", "1"))
    found = {"XPU_MEM": ",".join(each), "XPU_COUNT": str(len(each))}
    return found if cores == {None} else {**found, "XPU_CORES": sizes[0].part["XPU_CORES"]}


def _is_same(name: str, one: str, other: str) -> bool:
    if name != "XPU_MEM":
        return [each.strip().removesuffix("%") for each in one.split(",")] == other.split(",")
    try:
        return [parse_memory(each) for each in one.split(",")] == [
            parse_memory(each) for each in other.split(",")
        ]
    except ValueError:
        return False
