"""config.yaml as plain data, each value with its line and column, in a safe subset of YAML.

YAML 1.1 reads `1:30` as 90 and `010` as 8, takes the last of two equal keys, and lets a kilobyte of aliases
expand to a gigabyte. Here only decimal numbers are numbers, a key may appear only once, and aliases and tags
are refused. All problems are reported. Knows no key of the configuration.
"""

from __future__ import annotations

import errno
import math
import os
from typing import Any, Union

import yaml

from xpu_runtime.errors import ConfigError
from xpu_runtime.linux.files import read_fd
from xpu_runtime.value import Value

#: Bytes; the default file, comments included, is a tenth of it.
LARGEST = 64 * 1024

#: The deepest nesting; the schema has three levels.
_DEEPEST = 50

#: The path to a key from the top, with list indexes: ("policy", "devices", 0).
Path = tuple[Union[str, int], ...]

_TAG = "tag:yaml.org,2002:"
#: Tags that YAML infers for plain words, and that are just text here.
_TEXT_TAGS = {_TAG + name for name in ("str", "timestamp", "merge", "value")}


class Problem(Value):
    """One thing that is wrong with the file; line and column count from 1, and are 0 where there is none."""

    what: str
    line: int = 0
    column: int = 0

    def at(self, path: str) -> str:
        """The problem as one line, with its place as compilers write it: path:line:column."""
        place = f"{path}:{self.line}:{self.column}" if self.line else path
        return " ".join(f"{place}: {self.what}".split())


class Document(Value):
    """The content of the file: plain data, the line and column of each key and value, the problems."""

    data: Any
    places: dict[Path, tuple[int, int]]
    problems: tuple[Problem, ...]
    state: os.stat_result


def read_document(path: str) -> Document:
    """Reads and parses `path`; ConfigError if it cannot be read at all (missing, a folder, too large)."""
    try:
        # O_NONBLOCK: opening a fifo would otherwise wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            state = os.fstat(fd)
            raw = read_fd(fd, LARGEST, path)
        finally:
            os.close(fd)
    except OSError as error:
        todo = "shorten it" if error.errno == errno.EFBIG else "name a YAML file"
        raise ConfigError(f"{path} cannot be read ({error.strerror})", todo) from None
    reader = _Reader()
    data = reader.parse(raw)
    return Document(data, reader.places, tuple(reader.problems), state)


class _Reader:
    """Turns the YAML nodes of one file into data, and collects places and problems."""

    def __init__(self) -> None:
        self.places: dict[Path, tuple[int, int]] = {}
        self.problems: list[Problem] = []

    def parse(self, raw: bytes) -> Any:
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            before = raw[: error.start]
            self._problem("not UTF-8 text", before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
            return None
        try:
            depth = 0
            for event in yaml.parse(text, Loader=yaml.SafeLoader):
                depth += isinstance(event, yaml.CollectionStartEvent)
                depth -= isinstance(event, yaml.CollectionEndEvent)
                if depth > _DEEPEST:
                    # PyYAML takes a minute for 50,000 brackets, and every container's start would wait for
                    # it.
                    self._at("nested too deeply", event.start_mark)
                    return None
                if isinstance(event, yaml.AliasEvent):
                    self._at("YAML aliases (*name) are not used here: write the value out", event.start_mark)
            if self.problems:
                return None
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            return None if node is None else self._value(node, ())
        except yaml.MarkedYAMLError as error:
            self._at(f"not YAML: {_told(error)}", error.problem_mark or error.context_mark)
        except yaml.reader.ReaderError as error:
            before_it = text[: error.position]
            column = error.position - before_it.rfind("\n")
            self._problem(f"character {error.character!a} is not allowed", before_it.count("\n") + 1, column)
        return None

    def _value(self, node: Any, path: Path) -> Any:
        self.places.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        self._at(f"the YAML tag {node.tag} is not used here", node.start_mark)
        return None

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._at("a key must be a word", key_node.start_mark)
                continue
            key = key_node.value
            inner = (*path, key)
            if key in result:
                first = self.places[inner][0]
                self._at(f"{dotted(inner)} is given twice (first on line {first})", key_node.start_mark)
                continue
            self.places[inner] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            result[key] = self._value(value_node, inner)
        return result

    def _scalar(self, node: Any) -> Any:
        text: str = node.value
        if node.tag == _TAG + "null":
            return None
        if node.tag == _TAG + "bool":
            return yaml.SafeLoader.bool_values.get(text.lower(), text)
        if node.tag == _TAG + "int":
            digits = text.lstrip("+-")
            decimal = digits.isascii() and digits.isdigit() and len(digits) < 16
            return int(text) if decimal and (digits == "0" or digits[0] != "0") else text
        if node.tag == _TAG + "float":
            try:
                number = float(text.replace("_", "x"))
            except ValueError:
                return text
            return number if math.isfinite(number) else text
        if node.tag not in _TEXT_TAGS:
            self._at(f"the YAML tag {node.tag} is not used here", node.start_mark)
        return text

    def _at(self, what: str, mark: Any) -> None:
        self._problem(what, mark.line + 1 if mark else 1, mark.column + 1 if mark else 1)

    def _problem(self, what: str, line: int, column: int) -> None:
        self.problems.append(Problem(what, line, column))


def dotted(path: Path) -> str:
    """A key as people write it: policy.devices[0]."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _told(error: yaml.MarkedYAMLError) -> str:
    return ", ".join(part for part in (error.context, error.problem) if part)
