"""The declarations of a C header as the compiler sees them: functions, values, and the fields of structs.

Tests compare our declarations of CUDA and NVML with NVIDIA's own headers. Our headers' text is read only for
the names, and this reader knows only the C in them; the compiler gives the meanings.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Header(NamedTuple):
    """A header, and the macros that a file defines before it includes it."""

    path: Path
    defines: tuple[str, ...] = ()
    #: The prefixes of its functions, types and values, in any case.
    prefix: str = ""

    def includes(self) -> str:
        """The first lines of a C file that uses it."""
        return "".join(f"#define {name}\n" for name in self.defines) + f'#include "{self.path}"\n'

    def text(self) -> str:
        """The header with all its includes, without macros and comments."""
        return _compile(f"#include <stddef.h>\n{self.includes()}", "-E", "-P")

    def functions(self) -> set[str]:
        """The names of all functions that it declares."""
        bare = _without_bodies(self.text())
        return set(
            re.findall(rf"\b({self.prefix}[A-Z]\w*)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*(?=;|__|=)", bare)
        )

    def values(self) -> set[str]:
        """The names of all enumerators, and of the macros that stand for a value."""
        prefix = self.prefix.upper()
        enumerators = re.findall(rf"[{{,]\s*({prefix}\w+)\s*(?=[=,}}])", self.text())
        sources = self.path.parent.glob("*.h")
        macros = re.findall(rf"(?m)^#define ({prefix}\w+) \S", "".join(path.read_text() for path in sources))
        return {name for name in {*enumerators, *macros} if not name.endswith("_API")}

    def types(self) -> dict[str, list[str]]:
        """The names of all types → the paths of a struct's or union's fields."""
        text, found = self.text(), {}
        for match in re.finditer(r"\btypedef\s+(?:struct|union)\s*\w*\s*\{", text):
            body, rest = _braces(text, match.end() - 1)
            found[re.findall(r"\w+", rest[:100])[0]] = list(_fields(body))
        for match in re.finditer(
            r"\btypedef\s[^{};]*?\b(\w+)\s*;|\btypedef\s+enum\s*\w*\s*\{[^}]*\}\s*(\w+)", text
        ):
            found.setdefault(match[1] or match[2], [])
        return {name: fields for name, fields in found.items() if name.lower().startswith(self.prefix)}


def meaning(header: Header, values: set[str], types: dict[str, list[str]], folder: Path) -> dict[str, str]:
    """The meaning of names with a header: values as numbers; types and fields by place, size and kind.

    Raises ValueError with the compiler's messages if a name is unknown.
    """
    says = [f'    printf("{name}=%lld\\n", (long long)({name}));' for name in sorted(values)]
    for name, fields in sorted(types.items()):
        says.append(f'    printf("{name}=%zu bytes\\n", sizeof({name}));')
        if not fields:
            says.append(f'    printf("{name} is=%s\\n", KIND(*({name} *)place));')
        for field in fields:
            path = f"{name}.{field}"
            says.append(
                f'    printf("{path}=%zu bytes at %zu, %s\\n", sizeof((({name} *)place)->{field}), '
                f"__builtin_offsetof({name}, {field}), KIND((({name} *)place)->{field}));"
            )
    kinds = [f"{kind}: {text}" for kind, text in _KINDS.items()]
    source = (
        f"{header.includes()}#include <stdio.h>\n"
        f'#define KIND(value) _Generic((value), {", ".join(kinds)}, default: "no number")\n'
        "static char place[1 << 16] __attribute__((aligned(16)));\n"
        "int main(void) {\n" + "\n".join(says) + "\n    (void)place;\n}\n"
    )
    program = folder / "meaning"
    _compile(source, "-w", "-o", str(program))
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return dict(line.split("=", 1) for line in printed.splitlines())


def compare_functions(first: Header, second: Header) -> None:
    """Raises ValueError with the compiler's messages if the two declare a function in different ways."""
    _compile(first.includes() + second.includes(), "-fsyntax-only", "-w")


#: An enumeration is compatible with the integer type that holds it, and `char` is neither of the other two.
_KINDS = {
    kind: f'"{kind}"'
    for base in ("char", "short", "int", "long", "long long")
    for kind in (f"signed {base}", f"unsigned {base}")
} | {"char": '"char"', "float": '"float"', "double": '"double"'}


def _compile(source: str, *options: str) -> str:
    command = ["cc", "-std=gnu11", *options, "-x", "c", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    if done.returncode:
        raise ValueError("\n".join(line for line in done.stderr.splitlines() if " error: " in line))
    return done.stdout


def _braces(text: str, start: int) -> tuple[str, str]:
    """The text in the braces that open at `start`, and the position after them."""
    depth = 0
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if not depth:
            return text[start + 1 : position], text[position + 1 :]
    raise ValueError(f"braces without an end: {text[start : start + 60]}")


def _without_bodies(text: str) -> str:
    """The text without the content of its braces."""
    while (less := re.sub(r"\{[^{}]*\}", " ", text)) != text:
        text = less
    return text


def _fields(body: str) -> Iterator[str]:
    """The paths of the fields in a struct's braces; bit fields are left out, because they have no address."""
    while body.strip():
        head = re.match(r"\s*(?:struct|union)\s*\w*\s*(?=\{)", body)
        if head:
            inner, body = _braces(body, head.end())
            declared, _, body = body.partition(";")
            name = re.search(r"\w+", declared)
            first = "[0]" if "[" in declared else ""
            for path in _fields(inner):
                yield f"{name[0]}{first}.{path}" if name else path
        else:
            declared, _, body = body.partition(";")
            declared = re.sub(
                r"\(\s*\*\s*(\w+)\s*\)\s*\([^()]*\)", r"\1", declared
            )  # a pointer to a function
            names = re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(:[^,]*)?(?:,|$)", declared)
            yield from (name for name, bits in names if not bits)
