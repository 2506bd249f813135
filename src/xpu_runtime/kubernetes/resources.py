"""The demands of a pod's containers on devices, from their `resources.limits`.

The device plugin and the scheduler extender must read a pod alike, or a pod would get another share than the
placed one; so both read it here. A pod is the API's JSON as plain data. Knows no node and no device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from xpu_runtime.errors import XpuError, did_you_mean
from xpu_runtime.placement.demand import Demand, PodDemand
from xpu_runtime.request.assignment import ANNOTATION
from xpu_runtime.request.parse import ANNOTATION_PREFIX
from xpu_runtime.request.pod import amounts_outside_limits
from xpu_runtime.request.request import VARIABLES
from xpu_runtime.request.units import show
from xpu_runtime.value import Value

PREFIX = "yoyoworks.com/xpu"
#: Hundredths of a device, of its memory and of its cores alike.
SHARES = PREFIX + "-shares"
#: Memory in units of `Resources.memory_unit`, and percent of a device's cores.
MEMORY, CORES = PREFIX + "-mem", PREFIX + "-cores"
#: Devices, each for one container alone.
WHOLE = PREFIX
#: Other systems' names for memory and cores, by the words of `kubernetes.aliases` that turn them on: those of
#: ACK's shared GPU scheduling, and of device plugins for MPS.
ALIASES = {
    "aliyun.com/gpu": ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"),
    "nvidia.com/mps": ("nvidia.com/mps-memory", "nvidia.com/mps-core"),
}
_ALIAS_NAMES = frozenset(name for pair in ALIASES.values() for name in pair)
#: Annotations of a pod that say how to place its amounts.
COUNT, POLICY = PREFIX + "-count", PREFIX + "-policy"
POLICIES = ("binpack", "spread")
#: ACK's form of COUNT, a label of the pod, for amounts by the names of an alias. It is not read here: of
#: memory it is known what is meant (Alibaba Cloud, "Use cGPU to achieve GPU sharing based on multiple GPUs"),
#: of cores not.
_COUNT_LABEL, _COUNT_ALIAS = "aliyun.com/gpu-count", "aliyun.com/gpu"
#: All that there are; which of them say amounts, and are refused of a pod, is request/pod.py's.
_ANNOTATIONS = (
    ANNOTATION,
    *(ANNOTATION_PREFIX + name[len("XPU_") :].lower().replace("_", "-") for name in VARIABLES),
)

#: Characters of an author's text that messages show.
_LONGEST_SHOWN = 80
#: More devices than any node has; a count is an author's word and bounds loops.
_MOST_DEVICES = 1024
#: Bytes that no device has. Authors choose amounts too, and shown and added values need bounds.
_TOO_LARGE = 1 << 50
#: Containers of a pod that ask. The search places all of them together, a call within a call for each: an
#: author must not choose how deep that is.
MOST_CONTAINERS = 256
#: Kubernetes' quantities (apimachinery, resource.Quantity): the API server writes 1000 as 1k. Extended
#: resources are whole numbers; 1.5Ki is one.
_QUANTITY = re.compile(
    r"\+?(\d{1,30})(?:\.(\d{0,30}))?(?:([kMGTPE]|[KMGTPE]i|[num])|[eE]([+-]?\d{1,3}))?", re.ASCII
)
_SUFFIXES = {letter: 1000**power for power, letter in enumerate("kMGTPE", 1)}
_SUFFIXES.update({f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)})
_FRACTIONS = {"m": 1000, "u": 1000**2, "n": 1000**3}
#: The largest amount; a quantity has 63 bits in the API.
_LARGEST = (1 << 63) - 1


class DemandError(XpuError):
    """A request of a pod that no node could serve. The text begins with the container's name,
    where it is one's limits."""


class Resources(Value):
    """Which resources there are in this cluster, and the unit of memory (both by the configuration)."""

    #: Bytes of one unit of memory, by any of its names.
    memory_unit: int = 1 << 30
    #: Keys of ALIASES.
    aliases: tuple[str, ...] = ()

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The names of memory and cores that go together: ours, then those of the aliases."""
        return ((MEMORY, CORES), *(ALIASES[alias] for alias in self.aliases))

    @property
    def names(self) -> tuple[str, ...]:
        """All resources: those that a node offers, and for which the scheduler must send us pods."""
        return (SHARES, WHOLE, *(name for pair in self.pairs for name in pair))

    def kind(self, name: str) -> str:
        """Which of WHOLE, SHARES, MEMORY and CORES a resource is, by any of its names; ValueError if it is
        none of `names`."""
        if name in (WHOLE, SHARES):
            return name
        for memory, cores in self.pairs:
            if name in (memory, cores):
                return MEMORY if name == memory else CORES
        raise ValueError(f"{name} is not a known resource")

    def of_pod(self, pod: Mapping[str, Any]) -> PodDemand:
        """The demand of `pod` (a Pod of the API, version v1); DemandError."""
        spec = pod.get("spec") or {}
        found: dict[str, list[tuple[str, Demand]]] = {"containers": [], "init": [], "sidecars": []}
        annotations = (pod.get("metadata") or {}).get("annotations") or {}
        for kind, container in _containers(spec):
            limits = (container.get("resources") or {}).get("limits") or {}
            demand = self.of_limits(str(container.get("name")), limits, annotations.get(COUNT))
            if demand is not None:
                found[kind].append((str(container.get("name")), demand))
        number = sum(map(len, found.values()))
        if number > MOST_CONTAINERS:
            what = f"{number} of the pod's containers ask for devices, and at most {MOST_CONTAINERS} may"
            raise DemandError(what, "make several pods of it")
        asked = PodDemand(tuple(found["containers"]), tuple(found["init"]), tuple(found["sidecars"]))
        # A pod that asks for nothing may have any annotation.
        return asked if asked.is_empty else asked.replace(policy=_policy(annotations.get(POLICY)))

    def new_pod(self, pod: Mapping[str, Any]) -> PodDemand:
        """The demand of a pod without a place; DemandError also if every node would refuse its start, for a
        0, an unknown annotation, or an amount besides its limits, and for a label of ACK that would be
        ignored. A pod that has a place counts regardless of such faults."""
        spec = pod.get("spec") or {}
        for _, container in _containers(spec):
            self._check_zeros(container)
        demand = self.of_pod(pod)
        if demand.is_empty:
            self._check_aliases(spec)
            return demand
        metadata = pod.get("metadata") or {}
        annotations = metadata.get("annotations") or {}
        if COUNT not in annotations:
            self._check_count_label(spec, metadata.get("labels") or {})
        for key in annotations:
            if key.startswith(ANNOTATION_PREFIX) and key not in _ANNOTATIONS:
                known = ", ".join(_ANNOTATIONS)
                hint = did_you_mean(key, _ANNOTATIONS, f"known are {known}")
                raise DemandError(f"the pod's annotation {key[:80]} is unknown", hint)
        for _, container in _containers(spec):
            variables = {
                str(each.get("name")): str(each.get("value", "(valueFrom)"))
                for each in container.get("env") or ()
            }
            if problems := amounts_outside_limits(variables, annotations):
                raise DemandError(problems[0])
        return demand

    def _check_aliases(self, spec: Mapping[str, Any]) -> None:
        """kube-scheduler sends only pods that ask by one of its managedResources. An alias that is not known
        here may already be on nodes, which would refuse a pod without an assignment."""
        for _, container in _containers(spec):
            for name in (container.get("resources") or {}).get("limits") or {}:
                if name in _ALIAS_NAMES and name not in self.names:
                    what = _of(str(container.get("name")), f"{name}, which the extender does not know")
                    todo = "turn it on (kubernetes.aliases of the ConfigMap); restart deployment/xpu-extender"
                    raise DemandError(what, f"{todo}, or leave it out of kube-scheduler's managedResources")

    def _check_count_label(self, spec: Mapping[str, Any], labels: Mapping[str, Any]) -> None:
        """Without a word all would be of one device, for a program that expects several."""
        label, names = labels.get(_COUNT_LABEL, "1"), ALIASES[_COUNT_ALIAS]
        asked = [(each.get("resources") or {}).get("limits") or {} for _, each in _containers(spec)]
        if label != "1" and any(name in limits for limits in asked for name in names):
            what = f"the pod's label {_COUNT_LABEL}={_short(label)} is not read here"
            raise DemandError(what, f'give the number of devices by the annotation {COUNT}, such as "2"')

    def _check_zeros(self, container: Mapping[str, Any]) -> None:
        """Older kubelets take a 0 for a resource without allocated devices, and fail the start; newer ones
        take it for no request. The author's intention is not known."""
        limits = (container.get("resources") or {}).get("limits") or {}
        for name in self.names:
            if name in limits and whole_number(limits[name]) == 0:
                what = _of(str(container.get("name")), f"0 of {name}")
                without = " (without it there is no cap on its time)" if self.kind(name) == CORES else ""
                raise DemandError(what, f"leave it out{without}, or give at least 1")

    def of_limits(self, container: str, limits: Mapping[str, Any], count: str | None = None) -> Demand | None:
        """The demand of `container` by `limits` and the pod's annotation COUNT; None: nothing.
        DemandError."""
        names = [name for name in self.names if name in limits]
        if not names:
            return None
        amounts = {name: _amount(container, name, limits[name]) for name in names}
        asked = {name: amount for name, amount in amounts.items() if amount}
        if not asked:
            return None
        return self._demand(container, asked, _count(container, count))

    def as_limits(self, demand: Demand, limits: Mapping[str, Any]) -> str:
        """The limits that ask for `demand`, and the annotation where it takes one, for people; by the names
        that `limits` uses. Memory is rounded down to whole units."""
        if demand.is_whole:
            return f"{WHOLE}: {demand.count}"
        memory, cores = next((pair for pair in self.pairs if pair[0] in limits), self.pairs[0])
        if demand.memory_bytes is None:
            words = [f"{SHARES}: {(demand.memory_percent or 0) * demand.count}"]
        else:
            words = [f"{memory}: {demand.memory_bytes // self.memory_unit * demand.count}"]
            words += [f"{cores}: {demand.cores * demand.count}"] if demand.cores else []
        words += [f'annotation {COUNT}: "{demand.count}"'] if demand.count > 1 else []
        return ", ".join(words)

    def _demand(self, container: str, asked: dict[str, int], count: int | None) -> Demand:
        if WHOLE in asked or SHARES in asked:
            if len(asked) > 1:
                raise DemandError(_of(container, " and ".join(asked)), "ask for one of them")
            return (
                _whole(container, asked[WHOLE], count) if WHOLE in asked else _shares(container, asked, count)
            )
        memory, cores = next(pair for pair in self.pairs if pair[0] in asked or pair[1] in asked)
        if any(name not in (memory, cores) for name in asked):
            raise DemandError(_of(container, " and ".join(asked)), f"use {memory} with {cores}")
        if memory not in asked:
            raise DemandError(_of(container, f"{cores} without {memory}"), f"say how much memory: {memory}")
        each = _each(container, memory, asked[memory], count)
        if each * self.memory_unit >= _TOO_LARGE:
            what = f"{asked[memory]} of {memory} ({gib(show(self.memory_unit))} each)"
            raise DemandError(_of(container, what), "no device has a tenth of that")
        percent = _each(container, cores, asked[cores], count) if cores in asked else None
        _at_most_one_device(container, cores, percent or 0, count)
        return Demand(count or 1, each * self.memory_unit, percent)


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each container of a pod's spec, with the field of PodDemand that it belongs to. Ephemeral containers
    can have no resources."""
    for container in spec.get("initContainers") or ():
        yield ("sidecars" if container.get("restartPolicy") == "Always" else "init"), container
    for container in spec.get("containers") or ():
        yield "containers", container


def _whole(container: str, devices: int, count: int | None) -> Demand:
    if count is not None and count != devices:
        what = f"{devices} of {WHOLE}, which are whole devices, and the pod's annotation {COUNT} says {count}"
        raise DemandError(_of(container, what), "leave the annotation out")
    if devices > _MOST_DEVICES:
        raise DemandError(_of(container, f"{devices} of {WHOLE}"), "no node has so many devices")
    return Demand(devices, None, None)


def _shares(container: str, asked: dict[str, int], count: int | None) -> Demand:
    each = _each(container, SHARES, asked[SHARES], count)
    _at_most_one_device(container, SHARES, each, count)
    return Demand(count or 1, None, each, each)


def _each(container: str, name: str, amount: int, count: int | None) -> int:
    """The demand on each of `count` devices."""
    if count and amount % count:
        what = f"{amount} of {name}, which cannot be spread evenly over {count} devices (annotation {COUNT})"
        nearest = max(amount // count, 1) * count
        raise DemandError(_of(container, what), f"ask for {nearest} or {nearest + count}")
    return amount // (count or 1)


def _at_most_one_device(container: str, name: str, percent: int, count: int | None) -> None:
    if percent > 100:
        devices = -(-percent * (count or 1) // 100)
        what = f"{percent} of {name} on each device, and a device has 100"
        todo = f'ask for less, or spread it over more devices with the annotation {COUNT}: "{devices}"'
        raise DemandError(_of(container, what), todo)


def _count(container: str, text: str | None) -> int | None:
    """The pod's annotation COUNT; None if it is not set."""
    if text is None:
        return None
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and 0 < len(text) < 5):
        raise DemandError(
            f"the pod's annotation {COUNT}={_short(text)} is not a number of devices", 'such as "2"'
        )
    if not 1 <= int(text) <= _MOST_DEVICES:
        raise DemandError(
            f"the pod's annotation {COUNT}={_short(text)}", f"give a number from 1 to {_MOST_DEVICES}"
        )
    return int(text)


def _policy(text: str | None) -> str | None:
    if text is None or text in POLICIES:
        return text
    hint = did_you_mean(str(text), POLICIES, " or ".join(POLICIES))
    raise DemandError(f"the pod's annotation {POLICY}={_short(text)} is unknown", hint)


def _short(value: Any) -> str:
    """An author's word for a message that appears once for each node: whole, or its beginning."""
    shown = repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."


def _amount(container: str, name: str, value: Any) -> int:
    """A quantity of an extended resource as a number."""
    number = whole_number(value)
    if number is None:
        raise DemandError(_of(container, f"{_short(value)} of {name}"), "give a whole number")
    return number


def whole_number(value: Any) -> int | None:
    """A quantity of the API (`4`, `"1k"`, `"2e3"`) as a number; None where it is none, or not a whole one
    from 0 to 2^63 - 1."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None or isinstance(value, bool):
        return None
    whole, fraction, suffix, exponent = match.groups()
    power = int(exponent or 0) - len(fraction or "")
    number = int(whole + (fraction or "")) * _SUFFIXES.get(suffix or "", 1)
    divisor = _FRACTIONS.get(suffix or "", 1)
    if power >= 0:
        number *= 10**power
    else:
        divisor *= 10**-power
    return None if number % divisor or number // divisor > _LARGEST else number // divisor


def gib(text: str) -> str:
    """`3G`, as units.py has it, in the way of Kubernetes' users: `3 GiB`."""
    return f"{text[:-1]} bytes" if text[-1] == "B" else f"{text[:-1]} {text[-1]}iB"


def _of(container: str, what: str) -> str:
    return f"container {container} asks for {what}"
