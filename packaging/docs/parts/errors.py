"""docs/reference/errors.md: codes of refusals, and every line that the product can end with.

The lines are read from the calls in the sources that make an error of its text and its advice. Values in them
are `...`. A text that is put together elsewhere has no line of its own.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from xpu_runtime.ledger.vocabulary import CODES

from .markdown import escaped, items, table
from .source import SOURCES

_ROOT, _REQUEST = "XpuError", "RequestError"
#: In request/ these find errors in a request too; their texts end in a RequestError.
_OF_REQUESTS = {"ValueError", "NearMiss", "wrong"}
_VALUE = "..."
#: Sections of pages whose entries quote our messages.
_QUOTING = (
    "A container is refused",
    "A container does not start",
    "The engine says",
    "In the container",
    "xpu says",
    "The package says",
    "`FailedScheduling`, by the extender",
)
#: The beginning of an entry that quotes other programs.
_OF_OTHERS = re.compile(r"(?:(?:docker|containerd|crun|runc)(?:, |: ))+")


class Line(NamedTuple):
    what: str
    todo: str


def codes() -> str:
    """Each code with its exit status, its meaning, and what to do."""
    return items(
        (f"**`{code}`** (exit status {of.exit_status})", f"{of.text} *Do:* {of.todo}")
        for code, of in CODES.items()
    )


def refusals() -> str:
    """The first part of a refusal, before the reason of each device, by its code."""
    found = {(code, text) for module in _modules().values() for code, text in module.refusals()}
    rows = [(f"`{code}`", _quoted(text)) for code in CODES for other, text in sorted(found) if other == code]
    return table(("code", "line"), rows)


def lines() -> str:
    """Every line, by the kind of error."""
    modules = _modules()
    classes = {each.name: each for module in modules.values() for each in module.classes}
    ours = {each for each in classes if _is_ours(each, classes)}
    found: dict[str, set[Line]] = defaultdict(set)
    for path, module in modules.items():
        for name, line in module.lines(ours | (_OF_REQUESTS if path.startswith("request/") else set())):
            if len(re.findall(r"\w{2,}", line.what)) > 1:  # a line without words is put together elsewhere
                found[_REQUEST if name in _OF_REQUESTS else _kind(name, classes)].add(line)
    return "\n\n".join(_section(classes[kind], found[kind]) for kind in sorted(found, key=_order))


def _order(kind: str) -> tuple[bool, str]:
    return kind == _ROOT, kind


@cache
def _modules() -> dict[str, _Module]:
    return {str(path.relative_to(SOURCES)): _Module(path) for path in sorted(SOURCES.rglob("*.py"))}


def unknown_quotations(page: str) -> list[str]:
    """Messages that the page quotes and no source has."""
    repository = SOURCES.parents[1]
    others = [
        path
        for part in ("packaging/scripts/*.sh", "native/**/*.c", "hooks/*.py")
        for path in repository.glob(part)
    ]
    # In C a text may be several literals, one below the other.
    read = (re.sub(r'"\n\s*"', "", path.read_text(encoding="utf-8")) for path in others)
    texts = "\n".join([*_all_texts(), *read])
    quoted: list[str] = []
    for section in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]:
        if section.startswith(_QUOTING):
            entries = re.split(r"^- ", section, flags=re.MULTILINE)
            ours = "".join(each for each in entries if not _OF_OTHERS.match(each))
            found = re.findall(r"\*\*`([^`]+)`\*\*", ours)
            if not found:
                raise ValueError(
                    f"no line is quoted in the form in which they are looked for: {section[:60]}"
                )
            quoted += found
    pieces = [(each, piece.strip()) for each in quoted for piece in each.split(_VALUE)]
    return [quotation for quotation, piece in pieces if piece not in texts]


def _all_texts() -> Iterator[str]:
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(each.value) if isinstance(each, ast.Constant) else "\0" for each in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _is_ours(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    return name == _ROOT or any(_is_ours(base, classes) for base in _bases(name, classes))


def _kind(name: str, classes: dict[str, ast.ClassDef]) -> str:
    """The error's base class directly below XpuError."""
    base = next((each for each in _bases(name, classes) if _is_ours(each, classes)), _ROOT)
    return name if base == _ROOT else _kind(base, classes)


def _bases(name: str, classes: dict[str, ast.ClassDef]) -> list[str]:
    there = classes[name].bases if name in classes else []
    return [each.id for each in there if isinstance(each, ast.Name)]


def _section(kind: ast.ClassDef, found: set[Line]) -> str:
    title = "Others" if kind.name == _ROOT else kind.name.removesuffix("Error")
    pairs = [(f"**{_quoted(each.what)}**", escaped(each.todo)) for each in sorted(found)]
    return f"### {title}\n\n{_sentence(kind)}\n\n{items(pairs)}"


def _sentence(kind: ast.ClassDef) -> str:
    """The first sentence of its docstring."""
    return " ".join(re.split(r"(?<=\.)\s|:\s", ast.get_docstring(kind) or "")[0].split())


def _quoted(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


class _Module:
    """A source file, with the texts that its names stand for."""

    def __init__(self, path: Path) -> None:
        self._tree = ast.parse(path.read_text(encoding="utf-8"))
        self.classes = [each for each in ast.walk(self._tree) if isinstance(each, ast.ClassDef)]

    def lines(self, names: set[str]) -> Iterator[tuple[str, Line]]:
        """The lines of the calls of `names`, by the name."""
        for call, scopes in _nodes(self._tree, ast.Call, []):
            name = _called(call, scopes)
            if name not in names or not call.args:
                continue
            whats, *todos = [self._texts(each, scopes) for each in call.args[:3]]
            if name == "wrong":  # the variable comes first
                whats, *todos = [[f"{one}='...': {other}" for one in whats for other in todos[0]], *todos[1:]]
            todo = "; or ".join(dict.fromkeys(each for each in (todos or [[]])[0] if re.search(r"\w", each)))
            for what in whats:
                yield name, Line(" ".join(what.split()), " ".join(todo.split()))

    def refusals(self) -> Iterator[tuple[str, str]]:
        """The refusals' texts, by the code."""
        pairs = [(each.args, scopes) for each, scopes in _nodes(self._tree, ast.Call, [])]
        pairs += [(each.elts, scopes) for each, scopes in _nodes(self._tree, ast.Tuple, [])]
        for elements, scopes in pairs:
            if len(elements) > 1 and isinstance(elements[0], ast.Constant) and elements[0].value in CODES:
                for text in self._texts(elements[1], scopes):
                    if re.search(r"\w", text) and text not in CODES:
                        yield elements[0].value, text.replace("{}", _VALUE)

    def _texts(self, node: ast.expr, scopes: list[ast.AST]) -> list[str]:
        """The values that the expression can have; `...` stands for what is not known here."""
        if isinstance(node, ast.Constant):
            return [str(node.value)]
        if isinstance(node, ast.IfExp):
            return [*self._texts(node.body, scopes), *self._texts(node.orelse, scopes)]
        if isinstance(node, ast.BoolOp):
            return [text for each in node.values for text in self._texts(each, scopes)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._texts(node.left, scopes), self._texts(node.right, scopes)
            return [one + other for one in left for other in right]
        if isinstance(node, ast.JoinedStr):
            return ["".join(self._piece(each, scopes) for each in node.values)]
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            for scope in scopes:
                if assigned := list(_assigned(scope, name)):
                    return [text for each in assigned for text in self._texts(each, scopes[1:])]
        return [_VALUE]

    def _piece(self, piece: ast.expr, scopes: list[ast.AST]) -> str:
        """The text of an f-string's piece; constants of this module are known."""
        if isinstance(piece, ast.Constant):
            return str(piece.value)
        assert isinstance(piece, ast.FormattedValue)
        name = piece.value.id if isinstance(piece.value, ast.Name) else ""
        texts = self._texts(piece.value, scopes[-1:]) if name.isupper() else []
        return texts[0] if len(texts) == 1 else _VALUE


_Node = TypeVar("_Node", bound=ast.AST)


def _nodes(node: ast.AST, kind: type[_Node], scopes: list[ast.AST]) -> Iterator[tuple[_Node, list[ast.AST]]]:
    """All nodes of a kind, each with the functions, classes and module around it, the innermost first."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
        scopes = [node, *scopes]
    if isinstance(node, kind):
        yield node, scopes
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child, kind, scopes)


def _called(call: ast.Call, scopes: list[ast.AST]) -> str:
    """The name of the called function; for `super().__init__` the class."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    if isinstance(call.func, ast.Attribute) and call.func.attr == "wrong":
        return "wrong"
    if ast.unparse(call.func) == "super().__init__":
        return next((each.name for each in scopes if isinstance(each, ast.ClassDef)), "")
    return ""


def _assigned(scope: ast.AST, name: str) -> Iterator[ast.expr]:
    """The values that are assigned to the name in this function, class or module, not in those inside it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Assign) and any(
            isinstance(to, ast.Name) and to.id == name for to in node.targets
        ):
            yield node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            for to, value in zip(node.targets[0].elts, getattr(node.value, "elts", []), strict=False):
                if isinstance(to, ast.Name) and to.id == name:
                    yield value
        else:
            yield from _assigned(node, name)
