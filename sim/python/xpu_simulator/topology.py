"""Topologies of simulated devices: reads the YAML files, checks them, and makes the driver's settings.

A name such as `4xT4-R580` is the file sim/topologies/4xT4.yaml with the driver branch R580. A path is a
user's own file. No container's start uses this.
"""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

import jsonschema

from xpu_runtime import paths
from xpu_runtime.config.document import dotted, read_document
from xpu_runtime.errors import ConfigError, did_you_mean
from xpu_runtime.value import Value
from xpu_simulator.models import FIRST_INSTANCE, MIB, MODELS, PROFILES

#: Topologies and their JSON Schema: sim/ of the tree, and of the installation.
_DATA = os.path.join(paths.LIB, "sim")

DEFAULT_DRIVER = "R615"

#: Branch → driver version, CUDA version. Memory limits of a cgroup came with R615.
DRIVERS = {
    "R470": ("470.256.02", "11.4"),
    "R535": ("535.274.02", "12.2"),
    "R550": ("550.163.01", "12.4"),
    "R570": ("570.195.03", "12.8"),
    "R580": ("580.105.08", "13.0"),
    "R590": ("590.48.01", "13.1"),
    "R595": ("595.58.03", "13.2"),
    "R610": ("610.43.02", "13.3"),
    "R615": ("615.36.02", "13.4"),
}
_FIRST_WITH_LIMITS = 615

#: The driver's limits (sim/protocol.h).
_MOST_GPUS = 16
_MOST_SLICES = 7

#: Minor numbers of /dev/nvidia-caps as the driver assigns them (/proc/driver/nvidia-caps/mig-minors): config,
#: monitor, then for each card 15 GPU instances, each with itself and its 8 compute instances.
_FIRST_CAP, _CAPS_OF_INSTANCE, _CAPS_OF_GPU = 3, 9, 135

#: The schema's types, in the words of YAML.
_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
}


class Gpu(Value):
    """One card: the driver's settings for it and its MIG devices, and the functions that fail."""

    settings: dict[str, int | str]
    mig: tuple[dict[str, int | str], ...]
    faults: dict[str, int]

    @property
    def bus_id(self) -> str:
        """The bus id in the kernel's form: 0000:00:1e.0."""
        return f"{self.settings['domain']:04x}:{self.settings['bus']:02x}:{self.settings['slot']:02x}.0"


class Topology(Value):
    """A checked topology; `name` is the user's name for it."""

    name: str
    description: str
    driver: str
    cuda: str
    time_slice_us: int
    context_switch_us: int
    gpus: tuple[Gpu, ...]

    @property
    def branch(self) -> str:
        """The driver's branch, such as R535."""
        return f"R{self.driver.partition('.')[0]}"

    @property
    def memory_limits(self) -> bool:
        """Whether this driver holds memory limits of a cgroup."""
        return int(self.branch[1:]) >= _FIRST_WITH_LIMITS

    def conf(self, **places: str) -> str:
        """The driver's configuration. `places` are its files (sim/driver/config.c)."""
        major, minor = (int(part) for part in self.cuda.split("."))
        top: dict[str, int | str] = {
            **places,
            "driver_version": self.driver,
            "nvml_version": f"{major}.{self.driver}",
            "cuda_version": 1000 * major + 10 * minor,
            "memory_limits": int(self.memory_limits),
            "time_slice": self.time_slice_us * 1000,
            "switch_time": self.context_switch_us * 1000,
        }
        lines = [f"{key}={value}" for key, value in top.items()]
        for index, gpu in enumerate(self.gpus):
            lines += [f"gpu.{index}.{key}={value}" for key, value in gpu.settings.items()]
            lines += [f"gpu.{index}.fault.{name}={error}" for name, error in gpu.faults.items()]
            for number, part in enumerate(gpu.mig):
                lines += [f"gpu.{index}.mig.{number}.{key}={value}" for key, value in part.items()]
        return "\n".join(lines) + "\n"


def names() -> list[str]:
    """Our topologies. Each also exists with a driver branch: NAME-R580."""
    folder = os.path.join(_DATA, "topologies")
    try:
        found = os.listdir(folder)
    except FileNotFoundError:
        found = []
    return sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml"))


def read(topology: str) -> Topology:
    """The topology of that name, or in that file.

    ConfigError, with the nearest name, key or value, if it does not exist or is invalid.
    """
    name, branch = topology, ""
    if "/" in topology or topology.endswith((".yaml", ".yml")):
        path = topology
        name = os.path.basename(topology).rpartition(".")[0] or topology
    else:
        known = names()
        if topology not in known:
            name, _, branch = topology.rpartition("-")
        if name not in known or (branch and branch not in DRIVERS):
            raise _unknown_name(topology, known)
        path = os.path.join(_DATA, "topologies", f"{name}.yaml")
    data = _checked(path)
    driver, cuda = DRIVERS[branch or data.get("driver", DEFAULT_DRIVER)]
    return Topology(
        topology,
        data.get("description", ""),
        driver,
        cuda,
        data.get("time_slice_us", 1024),
        data.get("context_switch_us", 20),
        tuple(_gpus(data["gpus"], name, path)),
    )


def _unknown_name(topology: str, known: list[str]) -> ConfigError:
    name, _, branch = topology.rpartition("-")
    if name in known:
        return ConfigError(f"{name} has no driver branch {branch}", f"there are {', '.join(DRIVERS)}")
    choices = [*known, *(f"{name}-{branch}" for name in known for branch in DRIVERS)]
    there = f"there are {', '.join(known)}, each also as NAME-R580"
    return ConfigError(f"there is no topology {topology}", did_you_mean(topology, choices, there))


def _checked(path: str) -> dict[str, Any]:
    """The file's data, checked by the schema."""
    with open(os.path.join(_DATA, "topology.schema.json"), "rb") as file:
        schema = json.load(file)
    document = read_document(path)
    if document.problems:
        raise ConfigError(document.problems[0].at(path))
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document.data)
    for error in sorted(errors, key=lambda error: list(map(str, error.absolute_path))):
        where = tuple(error.absolute_path)
        line, column = document.places.get(where, (0, 0))
        place = f"{path}:{line}:{column}" if line else path
        raise ConfigError(f"{place}: {_explained(error, where)}")
    data: dict[str, Any] = document.data
    return data


def _explained(error: Any, where: tuple[str | int, ...]) -> str:
    """A schema error for people: the key, the fault, and the allowed values."""
    name = dotted(where) or "the topology"
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        wrong = next(key for key in error.instance if key not in known)
        return f"unknown key {dotted((*where, wrong))}: {_meant(wrong, known)}"
    if error.validator == "enum":
        return f"{name} is {error.instance!r}: {_meant(str(error.instance), error.validator_value)}"
    if error.validator == "type":
        example = os.path.join(_DATA, "topologies", "1xT4.yaml")
        return f"{name} must be {_TYPES[error.validator_value]}; see {example}"
    return f"{name}: {error.message}"


def _meant(wrong: str, known: list[str]) -> str:
    return did_you_mean(wrong, known, f"allowed are {', '.join(known)}")


def _gpus(entries: list[dict[str, Any]], name: str, path: str) -> list[Gpu]:
    gpus: list[Gpu] = []
    for number, entry in enumerate(entries):
        where = f"{path}: gpus[{number}]"
        if "uuid" in entry and entry.get("count", 1) > 1:
            raise ConfigError(
                f"{where}.uuid is for one card and count says {entry['count']}", "list each card"
            )
        for _ in range(entry.get("count", 1)):
            gpus.append(_gpu(entry, len(gpus), name, where))
    if len(gpus) > _MOST_GPUS:
        raise ConfigError(f"{path}: there are {len(gpus)} cards", f"a node has at most {_MOST_GPUS}")
    uuids = [gpu.settings["uuid"] for gpu in gpus]
    if len(set(uuids)) != len(uuids):
        raise ConfigError(f"{path}: two cards have the same uuid", "leave uuid out, or give each its own")
    return gpus


def _gpu(entry: dict[str, Any], index: int, name: str, where: str) -> Gpu:
    settings: dict[str, int | str] = {
        **MODELS[entry["model"]],
        "uuid": entry.get("uuid") or f"GPU-{_made_uuid(name, index)}",
        "serial": f"13256{index:08d}",
        "minor": index,
        "domain": 0,
        "bus": 0,
        "slot": 0x10 + index,
        "healthy": int(entry.get("healthy", True)),
        "context_memory": entry.get("context_mib", 0) * MIB,
        "multicast": int(entry.get("multicast", False)),
        "locality_domains": entry.get("locality_domains", 1),
        "pageable": int(entry.get("pageable", False)),
        "host_pids": int(entry.get("host_pids", False)),
    }
    if "memory_mib" in entry:
        settings["memory"] = entry["memory_mib"] * MIB
    if "reserved_mib" in entry:
        settings["reserved"] = entry["reserved_mib"] * MIB
    if int(settings.get("reserved", 0)) >= int(settings["memory"]):
        raise ConfigError(f"{where}: the driver would keep all of the memory", "set reserved_mib, and lower")
    parts: list[dict[str, int | str]] = []
    if "mig" in entry:
        settings["mig_enabled"] = 1
        parts = _mig(entry, index, name, where)
    faults = {function: _nvml_error(error) for function, error in entry.get("fail", {}).items()}
    return Gpu(settings, tuple(parts), faults)


def _mig(entry: dict[str, Any], index: int, name: str, where: str) -> list[dict[str, int | str]]:
    profiles = PROFILES.get(entry["model"])
    if profiles is None:
        raise ConfigError(
            f"{where}.mig: the MIG profiles of {entry['model']} are not simulated", "leave mig out"
        )
    if "memory_mib" in entry:
        raise ConfigError(f"{where}.memory_mib: a card in MIG mode has the model's memory", "leave it out")
    taken: set[int] = set()
    parts: list[dict[str, int | str]] = []
    for number, word in enumerate(entry["mig"]):
        if word not in profiles:
            raise ConfigError(f"{where}.mig[{number}] is {word!r}: {_meant(word, list(profiles))}")
        profile = profiles[word]
        instance = FIRST_INSTANCE[profile.slices]
        while instance in taken:
            instance += 1
        taken.add(instance)
        minor = _FIRST_CAP + index * _CAPS_OF_GPU + instance * _CAPS_OF_INSTANCE
        parts.append(
            {
                "uuid": f"MIG-{_made_uuid(name, index, number)}",
                "profile": word,
                "memory": profile.memory_mib * MIB,
                "gi": instance,
                "ci": 0,
                "gi_minor": minor,
                "ci_minor": minor + 1,
                "gi_slices": profile.slices,
                "ci_slices": profile.slices,
                "sm_count": profile.sm_count,
                "copy_engines": profile.copy_engines,
                "decoders": profile.decoders,
                "encoders": 0,
                "jpegs": profile.jpegs,
                "ofas": profile.ofas,
            }
        )
    used = [profiles[word] for word in entry["mig"]]
    if sum(part.slices for part in used) > _MOST_SLICES or sum(part.memory_slices for part in used) > 8:
        raise ConfigError(
            f"{where}.mig: {', '.join(entry['mig'])} do not fit on one card",
            "a card has 7 compute slices and 8 memory slices",
        )
    return parts


def _made_uuid(*parts: object) -> uuid.UUID:
    """The UUID of a card of a topology, the same at each start and under every driver."""
    return uuid.uuid5(uuid.NAMESPACE_OID, "xpu simulated device " + "/".join(map(str, parts)))


def _nvml_error(name: str) -> int:
    import pynvml

    return int(getattr(pynvml, name))
