"""From variables to a request: the meaning of every XPU_* variable.

Any misspelt, out-of-range or contradictory value is refused. The message has the variable, its value, the
allowed values and the nearest correct spelling. All problems are reported at once. Nothing here knows specs
and annotations (source.py), or the devices of the node.
"""

from __future__ import annotations

from xpu_runtime.errors import RequestError, did_you_mean
from xpu_runtime.request import require
from xpu_runtime.request.request import (
    CAPABILITIES,
    FOR_PROGRAMS,
    NAMES,
    POLICIES,
    PRIORITIES,
    SCHEDS,
    UUIDS,
    VARIABLES,
    Condition,
    Request,
    devices_in_words,
    is_name,
    wrong_number,
)
from xpu_runtime.request.units import Memory, NearMiss, parse_cores, parse_memory
from xpu_runtime.value import Value

#: The prefix of our annotations.
ANNOTATION_PREFIX = "yoyoworks.com/xpu-"

#: The variables of amounts and devices. For a pod's container the scheduler decides them (pod.py).
AMOUNTS = ("XPU_MEM", "XPU_CORES", "XPU_COUNT", "XPU_VISIBLE_DEVICES", "XPU_RESERVATION", "XPU_POLICY")

#: Kubernetes' device plugin sets it if it has allocated resources of ours. The container then asks for its
#: pod's assignment (pod.py).
ALLOCATED = "XPU_KUBERNETES"

#: The beginning of the variables that come with a CDI device of ours (cdi.py).
CDI_PREFIX = "XPU_CDI_"

#: The longest path of XPU_LOG=debug:PATH in bytes, as in native/account/log.c.
_LONGEST_LOG = 511

#: No machine has more devices: a longer list is an attack or a mistake.
MAX_DEVICES = 256
_SHOWN = 60
#: For people who write XPU_CORES=0.
_NO_CAP = "leave it out to have no cap, unless defaults.cores or policy.max_cores is set"
#: The number of problems that one message reports.
MAX_PROBLEMS = 8


def _quote(value: str) -> str:
    text = value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
    return repr(text)


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


class Spelling(Value):
    """A value as written in the container's spec: the name of the annotation or variable, and its text."""

    name: str
    value: str


class _Reader:
    """Reads variables one by one and collects the problems."""

    def __init__(self, variables: dict[str, str], step: int, spellings: dict[str, Spelling]) -> None:
        self.variables = variables
        self.step = step
        self.problems: list[str] = []
        self._spellings = spellings

    def name(self, name: str) -> str:
        """The name under which the request has this variable."""
        return self._spellings[name].name if name in self._spellings else name

    def is_megabytes(self, name: str) -> bool:
        """Whether this amount is NVIDIA's variable, a plain number of MiB."""
        return self.name(name).startswith("NVIDIA_")

    def wrong(self, name: str, allowed: str, hint: str = "") -> None:
        there = self._spellings.get(name) or Spelling(name, self.variables[name])
        shown = there.name if len(there.name) <= _SHOWN else there.name[:_SHOWN] + "..."
        # Annotations are quoted in their YAML form.
        text = f"{shown}{': ' if '/' in shown else '='}{_quote(there.value)}: {allowed}"
        self.problem(f"{text}; {hint}" if hint else text)

    def problem(self, text: str) -> None:
        """Adds a problem, once, up to MAX_PROBLEMS."""
        if len(self.problems) < MAX_PROBLEMS and text not in self.problems:
            self.problems.append(text)

    def value(self, name: str) -> str | None:
        """The variable's trimmed value; None if it is not set, or empty. An empty one is a problem."""
        if name not in self.variables:
            return None
        text = self.variables[name].strip()
        if not text:
            self.wrong(name, "is empty; give it a value or leave it out")
            return None
        return text

    def items(self, name: str) -> list[str]:
        text = self.value(name)
        items = [item.strip() for item in text.split(",")] if text else []
        if any(not item for item in items):
            self.wrong(name, "has an empty item in its list")
            return []
        if len(items) > MAX_DEVICES:
            self.wrong(name, f"has more than {MAX_DEVICES} items")
            return []
        return items

    def one_of(self, name: str, allowed: tuple[str, ...], otherwise: str = "") -> str | None:
        """The variable's value, one of `allowed`; `otherwise` is the hint if none of them is near."""
        text = self.value(name)
        if text is None or text in allowed:
            return text
        self.wrong(name, "must be one of " + ", ".join(allowed), did_you_mean(text, allowed, otherwise))
        return None

    def memory(self, name: str = "XPU_MEM") -> tuple[Memory, ...]:
        found = []
        texts = self.items(name)
        allowed = "a number of MiB, as 4096" if self.is_megabytes(name) else "4G, 4096M or 50%"
        for text in texts:
            try:
                found.append(parse_memory(text))
            except ValueError as error:
                hint = _with_unit(text, texts) if "no unit" in str(error) else ""
                self.wrong(name, f"{_quote(text)} {error}; write {allowed}", hint)
        return tuple(found) if len(found) == len(texts) else ()

    def cores(self) -> int | None:
        text = self.value("XPU_CORES")
        if text is None:
            return None
        try:
            return parse_cores(text, self.step)
        except NearMiss as error:
            is_zero = not text.strip(" 0%")
            hint = _NO_CAP if is_zero else f"did you mean {error.nearest}?"
            self.wrong("XPU_CORES", str(error), hint)
        except ValueError as error:
            self.wrong("XPU_CORES", str(error), "one value holds for all devices" if "," in text else "")
        return None

    def count(self) -> int | None:
        text = self.value("XPU_COUNT")
        if text is None:
            return None
        number = _whole(text)
        if number is None or not 1 <= number <= MAX_DEVICES:
            self.wrong("XPU_COUNT", f"must be a whole number from 1 to {MAX_DEVICES}")
            return None
        return number

    def devices(self) -> tuple[str, tuple[str, ...]]:
        name = "XPU_VISIBLE_DEVICES"
        words = self.items(name)
        if self.name(name).startswith("NVIDIA_"):
            # NVIDIA's device plugin names a GPU once for each share that a pod has of it (time slicing).
            words = list(dict.fromkeys(words))
        if len(words) == 1 and words[0] in ("auto", "all", "none"):
            return words[0], ()
        for word in words:
            if word in ("auto", "all", "none"):
                self.wrong(
                    name, f"{word!r} cannot be combined with anything else; give it alone or leave it out"
                )
            elif not is_selector(word):
                self.wrong(
                    name,
                    f"{_quote(word)} is not a device; allowed are auto, all, none, or a list of indexes (0), "
                    "UUIDs (GPU-...), GPU:MIG indexes (0:1) and MIG UUIDs (MIG-...)",
                    did_you_mean(word, ("auto", "all", "none")),
                )
        if len(set(words)) != len(words):
            self.wrong(name, "names a device twice")
        return ("list", tuple(words)) if words else ("auto", ())

    def reservation(self) -> str | None:
        text = self.value("XPU_RESERVATION")
        if text is None or is_name(text):
            return text
        self.wrong("XPU_RESERVATION", f"is not the name of a reservation: {NAMES}")
        return None

    def capabilities(self) -> tuple[str, ...]:
        words = self.items("XPU_CAPABILITIES")
        if not words:
            return Request.capabilities
        if "all" in words:
            return CAPABILITIES
        for word in words:
            if word not in CAPABILITIES:
                self.wrong(
                    "XPU_CAPABILITIES",
                    f"{_quote(word)} is not a capability; allowed are {', '.join(CAPABILITIES)}, all",
                    did_you_mean(word, CAPABILITIES),
                )
        return tuple(name for name in CAPABILITIES if name in words)

    def enforce(self) -> str:
        """auto, hard, none, or the name of a backend that is registered."""
        if "XPU_ENFORCE" not in self.variables:
            return "auto"
        otherwise = "auto takes the strongest there is, hard or soft"
        return self.one_of("XPU_ENFORCE", enforcements(), otherwise) or "auto"

    def log(self) -> bool:
        """Whether XPU_LOG asks for the interposers' log."""
        text = self.value("XPU_LOG")
        if text is None:
            return False
        word, colon, path = text.partition(":")
        if text not in ("debug", "off") and not (word == "debug" and path.startswith("/")):
            hint = did_you_mean(word, ("debug", "off"))
            if "debug" in hint and colon:
                hint = f"did you mean debug:{path}?" if path.startswith("/") else ""
            self.wrong("XPU_LOG", "must be debug, debug:/PATH/OF/A/FILE or off", hint)
        elif len(path.encode("utf-8", "surrogateescape")) > _LONGEST_LOG:
            self.wrong("XPU_LOG", f"the path is longer than {_LONGEST_LOG} bytes")
        return word == "debug"

    def requirement(self, name: str) -> tuple[tuple[Condition, ...], ...]:
        try:
            return require.parse(self.variables[name])
        except ValueError as error:
            self.wrong(name, str(error))
            return ()


def enforcements() -> tuple[str, ...]:
    """What XPU_ENFORCE can be."""
    from xpu_runtime import extensions  # few ask for it

    return ("auto", "hard", *extensions.backends(), "none")


def _with_unit(text: str, items: list[str]) -> str:
    """The likely meaning of an amount without a unit; `1,5G` may be a decimal with a comma."""
    if len(items) == 2 and text == items[0]:
        try:
            parse_memory(decimal := ".".join(items))
        except ValueError:
            pass
        else:
            return f"did you mean {decimal}?"
    return f"did you mean {text}M or {text}G?"


def is_selector(word: str) -> bool:
    """Whether `word` can name a device: an index, GPU:MIG indexes, or a UUID."""
    if word.startswith(UUIDS):
        return len(word) > 4 and all(part.isalnum() for part in word[4:].replace("/", "-").split("-"))
    parts = word.split(":")
    return len(parts) <= 2 and all(_whole(part) is not None for part in parts)


def is_annotation(key: str) -> bool:
    return key.startswith(ANNOTATION_PREFIX)


def variable_of(key: str) -> str:
    """The variable that an annotation of ours stands for."""
    return "XPU_" + key[len(ANNOTATION_PREFIX) :].upper().replace("-", "_")


def annotation_of(name: str) -> str:
    """The annotation of ours that stands for a variable."""
    return ANNOTATION_PREFIX + name[4:].lower().replace("_", "-")


def by_annotations(request: Request) -> dict[str, str]:
    """What a refusal writes in the place of `XPU_MEM=` and the like, for a request by annotations."""
    return {name: f"{annotation_of(name)}=" for name in request.annotated}


def refuse(problems: list[str]) -> None:
    """Raises RequestError with all problems, if there are any."""
    if problems:
        raise RequestError("; ".join(problems[:MAX_PROBLEMS]))


def read(
    variables: dict[str, str],
    *,
    step: int,
    requirements: dict[str, str] | None = None,
    spellings: dict[str, Spelling] | None = None,
) -> tuple[Request, list[str]]:
    """The readable part of the request in `variables` (XPU_* names), and all problems with it.

    `requirements` holds further expressions in the form of XPU_REQUIRE, by the name of the original variable.
    `spellings` has the original name and text of variables that were written under another name.
    """
    reader = _Reader(variables, step, spellings or {})
    for name in variables:
        if name == ALLOCATED:
            reader.wrong(name, "is for containers of pods, and this container is in no pod: leave it out")
        elif name.startswith(CDI_PREFIX):
            reader.wrong(
                name, "is a CDI device: this pod gets devices by resources.limits alone; leave it out"
            )
        elif name not in VARIABLES and name not in FOR_PROGRAMS and len(reader.problems) < MAX_PROBLEMS:
            known = (*VARIABLES, *FOR_PROGRAMS)
            allowed = "unknown variable; known are " + ", ".join(known)
            reader.wrong(name, allowed, did_you_mean(name, known))
    memory, count = reader.memory(), reader.count()
    choice, selectors = reader.devices()
    found = Request(
        choice=choice,
        selectors=selectors,
        choice_from=reader.name("XPU_VISIBLE_DEVICES"),
        memory=memory,
        cores=reader.cores(),
        sched=reader.one_of("XPU_SCHED", SCHEDS),
        priority=reader.one_of("XPU_PRIORITY", PRIORITIES),
        policy=reader.one_of("XPU_POLICY", POLICIES),
        reservation=reader.reservation(),
        capabilities=reader.capabilities(),
        enforce=reader.enforce(),
        requirements=(reader.requirement("XPU_REQUIRE"),) if reader.value("XPU_REQUIRE") else (),
        log=reader.log(),
    )
    found = found.replace(count=_count(reader, found, count))
    for name, text in (requirements or {}).items():
        try:
            found = found.replace(requirements=(*found.requirements, require.parse(text)))
        except ValueError as error:
            reader.problem(f"{name}={_quote(text)}: {error}")
    return found, reader.problems


def _count(reader: _Reader, found: Request, count: int | None) -> int:
    """The number of requested devices; contradictions are problems."""
    many = len(found.memory) if len(found.memory) > 1 else None
    if found.choice == "none":
        # It overrides what an image has set: docker cannot unset a variable.
        return 0
    devices = reader.name("XPU_VISIBLE_DEVICES")
    if found.choice == "list":
        named = len(found.selectors)
        if count is not None and count != named:
            reader.wrong(
                "XPU_COUNT",
                f"contradicts {devices}, which names {devices_in_words(named)}: leave XPU_COUNT out",
            )
        count = named
    if found.choice == "all" and count is not None:
        reader.wrong("XPU_COUNT", f"contradicts {devices}=all; leave one of them out")
    if many is not None and count is not None and many != count:
        reader.wrong("XPU_MEM", f"has {wrong_number(many, count)}")
    return count or many or 1
