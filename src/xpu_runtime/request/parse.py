"""From variables to a request: the meaning of every XPU_* variable and of its NVIDIA_* alias.

Anything misspelt, out of range or contradictory is refused with the variable, the value, what is
allowed and the nearest correct spelling; all problems are told at once.
"""

from __future__ import annotations

from xpu_runtime.errors import RequestError, nearest
from xpu_runtime.request import require
from xpu_runtime.request.request import BACKENDS, CAPABILITIES, POLICIES, Condition, Request
from xpu_runtime.request.units import Memory, parse_memory
from xpu_runtime.value import Value

VARIABLES = (
    "XPU_MEM",
    "XPU_CORES",
    "XPU_COUNT",
    "XPU_VISIBLE_DEVICES",
    "XPU_POLICY",
    "XPU_CAPABILITIES",
    "XPU_REQUIRE",
    "XPU_ENFORCE",
)

#: Read by the wrapper libraries in the container; they ask the runtime for nothing, and are checked where
#: something else does.
FOR_PROGRAMS = ("XPU_LOG",)

#: The longest path of XPU_LOG=debug:PATH in bytes, that of native/libxpu/log.c.
_LONGEST_LOG = 511

#: A list longer than any machine has devices is an attack or a mistake.
MAX_DEVICES = 256
_SHOWN = 60
#: Problems in one message.
TOLD = 8


def _quote(value: str) -> str:
    text = value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
    return repr(text)


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


class Written(Value):
    """A variable as it stands in the container's spec: an annotation, or the reference's name for it."""

    name: str
    value: str


class _Reader:
    """Reads variables one by one and gathers what is wrong with them."""

    def __init__(self, variables: dict[str, str], step: int, written: dict[str, Written]) -> None:
        self.variables = variables
        self.step = step
        self.problems: list[str] = []
        self._written = written

    def name(self, name: str) -> str:
        """The name under which whoever asks has written this variable."""
        return self._written[name].name if name in self._written else name

    def is_megabytes(self, name: str) -> bool:
        """Whether this amount was written as the reference's plain number of MiB."""
        return self.name(name).startswith("NVIDIA_")

    def wrong(self, name: str, allowed: str, hint: str = "") -> None:
        there = self._written.get(name) or Written(name, self.variables[name])
        shown = there.name if len(there.name) <= _SHOWN else there.name[:_SHOWN] + "..."
        # An annotation is a line of YAML where it was written.
        text = f"{shown}{': ' if '/' in shown else '='}{_quote(there.value)}: {allowed}"
        self.problem(f"{text}; did you mean {hint}?" if hint else text)

    def problem(self, text: str) -> None:
        """Adds a problem, once; of very many only as many as a person reads."""
        if len(self.problems) < TOLD and text not in self.problems:
            self.problems.append(text)

    def value(self, name: str) -> str | None:
        """The variable's trimmed value; None where it is not set, a problem where it is empty."""
        if name not in self.variables:
            return None
        text = self.variables[name].strip()
        if not text:
            self.wrong(name, "is empty; give it a value or leave it out")
            return None
        return text

    def items(self, name: str) -> list[str]:
        text = self.value(name)
        parts = [part.strip() for part in text.split(",")] if text else []
        if any(not part for part in parts):
            self.wrong(name, "has an empty item in its list")
            return []
        if len(parts) > MAX_DEVICES:
            self.wrong(name, f"names more than {MAX_DEVICES} items")
            return []
        return parts

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str | None:
        text = self.value(name)
        if text is None or text in allowed:
            return text
        self.wrong(name, "must be one of " + ", ".join(allowed), nearest(text, allowed) or "")
        return None

    def memory(self, name: str = "XPU_MEM") -> tuple[Memory, ...]:
        found = []
        texts = self.items(name)
        allowed = "a number of MiB, as 4096" if self.is_megabytes(name) else "4G, 4096M or 50%"
        for text in texts:
            try:
                found.append(parse_memory(text))
            except ValueError as error:
                hint = f"{text}M or {text}G" if "no unit" in str(error) else ""
                self.wrong(name, f"{_quote(text)} {error}; write {allowed}", hint)
        return tuple(found) if len(found) == len(texts) else ()

    def cores(self) -> int | None:
        text = self.value("XPU_CORES")
        if text is None:
            return None
        number = _whole(text.removesuffix("%").strip())
        allowed = f"must be a percentage from {self.step} to 100 in steps of {self.step}"
        if number is None:
            self.wrong("XPU_CORES", allowed)
        elif not 1 <= number <= 100 or number % self.step:
            close = min(max((number + self.step // 2) // self.step * self.step, self.step), 100)
            self.wrong("XPU_CORES", allowed, str(close))
        else:
            return number
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
        if len(words) == 1 and words[0] in ("auto", "all", "none"):
            return words[0], ()
        for word in words:
            if word in ("auto", "all", "none"):
                self.wrong(name, f"{word!r} stands alone or not at all")
            elif not is_selector(word):
                self.wrong(
                    name,
                    f"{_quote(word)} is no device; allowed are auto, all, none, or a list of indexes (0), "
                    "UUIDs (GPU-...), GPU:MIG indexes (0:1) and MIG UUIDs (MIG-...)",
                    nearest(word, ("auto", "all", "none")) or "",
                )
        if len(set(words)) != len(words):
            self.wrong(name, "names a device twice")
        return ("list", tuple(words)) if words else ("auto", ())

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
                    f"{_quote(word)} is none of {', '.join(CAPABILITIES)}, all",
                    nearest(word, CAPABILITIES) or "",
                )
        return tuple(name for name in CAPABILITIES if name in words)

    def log(self) -> bool:
        """Whether XPU_LOG asks for the wrapper libraries' log."""
        text = self.value("XPU_LOG")
        if text is None:
            return False
        word, colon, path = text.partition(":")
        if text not in ("debug", "off") and not (word == "debug" and path.startswith("/")):
            allowed = ("debug", "off")
            hint = nearest(word, allowed) or ""
            if hint == "debug" and colon:
                hint = f"debug:{path}" if path.startswith("/") else ""
            self.wrong("XPU_LOG", "must be debug, debug:/the/path/of/a/file or off", hint)
        elif len(path.encode("utf-8", "surrogateescape")) > _LONGEST_LOG:
            self.wrong("XPU_LOG", f"names a file by more than {_LONGEST_LOG} bytes")
        return word == "debug"

    def requirement(self, name: str) -> tuple[tuple[Condition, ...], ...]:
        try:
            return require.parse(self.variables[name])
        except ValueError as error:
            self.wrong(name, str(error))
            return ()


def is_selector(word: str) -> bool:
    """Whether `word` can name a device: an index, GPU:MIG indexes, or a UUID."""
    if word.startswith(("GPU-", "MIG-", "XPU-")):
        return len(word) > 4 and all(part.isalnum() for part in word[4:].replace("/", "-").split("-"))
    parts = word.split(":")
    return len(parts) <= 2 and all(_whole(part) is not None for part in parts)


def parse(variables: dict[str, str], *, step: int = 5) -> Request:
    """The request in `variables` (XPU_* names). RequestError tells all problems."""
    found, problems = read(variables, step=step)
    refuse(problems)
    return found


def refuse(problems: list[str]) -> None:
    """RequestError with all of the problems, if there are any."""
    if problems:
        raise RequestError("; ".join(problems[:TOLD]))


def read(
    variables: dict[str, str],
    *,
    step: int,
    requirements: dict[str, str] | None = None,
    written: dict[str, Written] | None = None,
) -> tuple[Request, list[str]]:
    """The request in `variables` (XPU_* names), as far as it can be read, and all that is wrong with it.

    `requirements` holds further expressions of the form of XPU_REQUIRE by the name of the variable that they
    came from; `written` says of variables that were written under another name which one that was.
    """
    reader = _Reader(variables, step, written or {})
    for name in variables:
        if name not in VARIABLES and name not in FOR_PROGRAMS and len(reader.problems) < TOLD:
            known = (*VARIABLES, *FOR_PROGRAMS)
            hint = nearest(name, known)
            reader.wrong(name, "is no variable of this runtime; known are " + ", ".join(known), hint or "")
    memory, count = reader.memory(), reader.count()
    choice, selectors = reader.devices()
    found = Request(
        choice=choice,
        selectors=selectors,
        choice_from=reader.name("XPU_VISIBLE_DEVICES"),
        memory=memory,
        cores=reader.cores(),
        policy=reader.one_of("XPU_POLICY", POLICIES),
        capabilities=reader.capabilities(),
        enforce=reader.one_of("XPU_ENFORCE", ("auto", "hard", *BACKENDS)) or "auto",
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
    """How many devices the request adds up to, with its contradictions told."""
    many = len(found.memory) if len(found.memory) > 1 else None
    if found.choice == "none":
        # It wins over what an image has set: docker cannot unset a variable.
        return 0
    devices = reader.name("XPU_VISIBLE_DEVICES")
    if found.choice == "list":
        if count is not None and count != len(found.selectors):
            reader.wrong("XPU_COUNT", f"contradicts {devices}, which names {len(found.selectors)}")
        count = len(found.selectors)
    if found.choice == "all" and count is not None:
        reader.wrong("XPU_COUNT", f"contradicts {devices}=all; leave one of them out")
    if many is not None and count is not None and many != count:
        reader.wrong("XPU_MEM", f"has {many} values for {count} device{'s' if count != 1 else ''}")
    return count or many or 1
