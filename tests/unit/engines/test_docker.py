"""docker's daemon.json: ours comes and goes, and the rest stays as its owner wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_runtime.engines import docker
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import TextFile

PROGRAM = "/bin/true"


def file_of(text: str) -> TextFile:
    return TextFile("daemon.json", "/etc/docker/daemon.json", text, Path("/").stat())


def configured(text: str, default: bool = False, program: str = PROGRAM) -> str:
    return docker.configure(file_of(text), program, default)[0].text or ""


def unconfigured(text: str) -> str:
    return docker.unconfigure(file_of(text))[0].text or ""


DOCUMENTS = {
    "an empty object": "{}",
    "four spaces": '{\n    "debug": true,\n    "features": {"buildkit": true, "cdi": false}\n}\n',
    "two spaces and another runtime": (
        '{\n  "runtimes": {\n    "kata": {\n      "path": "/k"\n    }\n  },\n  "hosts": []\n}\n'
    ),
    "tabs": '{\n\t"log-driver": "local",\n\t"log-opts": {\n\t\t"max-size": "1m"\n\t}\n}',
    "one line": '{"debug": false, "runtimes": {"kata": {"path": "/k", "runtimeArgs": ["-x"]}}}\n',
    "odd spacing and escapes": '\n { "a" :1.0e3 ,"b":[ 1,2 ], "\\u00e9" : "\\u00e9" }\n\n',
    "windows line ends": '{\r\n  "debug": true\r\n}\r\n',
    "no indentation": '{\n"debug": true\n}\n',
}


@pytest.mark.parametrize("default", [False, True], ids=["beside", "as default"])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_configure_adds_the_runtime_once_and_unconfigure_brings_the_old_bytes_back(
    name: str, default: bool
) -> None:
    before = DOCUMENTS[name]
    after = configured(before, default)
    data = json.loads(after)
    assert data["runtimes"]["xpu"] == {"path": PROGRAM}
    assert (data.get("default-runtime") == "xpu") is default
    assert configured(after, default) == after
    assert unconfigured(after) == before
    assert unconfigured(before) == before


def test_the_added_lines_are_indented_like_the_file() -> None:
    assert configured(DOCUMENTS["tabs"], default=True) == (
        '{\n\t"log-driver": "local",\n\t"log-opts": {\n\t\t"max-size": "1m"\n\t},\n'
        f'\t"runtimes": {{\n\t\t"xpu": {{\n\t\t\t"path": "{PROGRAM}"\n\t\t}}\n\t}},\n'
        '\t"default-runtime": "xpu"\n}'
    )
    assert configured(DOCUMENTS["two spaces and another runtime"]) == (
        '{\n  "runtimes": {\n    "kata": {\n      "path": "/k"\n    },\n'
        f'    "xpu": {{\n      "path": "{PROGRAM}"\n    }}\n  }},\n  "hosts": []\n}}\n'
    )


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_file_without_anything_becomes_a_whole_one(text: str) -> None:
    assert configured(text) == json.dumps({"runtimes": {"xpu": {"path": PROGRAM}}}, indent=4) + "\n"
    assert unconfigured(text) == text


def test_another_path_is_changed_in_its_place() -> None:
    own = '{"runtimes": {"xpu": {"runtimeArgs": ["--x"], "path": "/old"}, "a": {"path": "/a"}}}'
    assert configured(own) == own.replace("/old", PROGRAM)
    assert unconfigured(own) == '{"runtimes": {"a": {"path": "/a"}}}'


def test_an_entry_without_a_path_gets_one() -> None:
    assert (
        json.loads(configured('{"runtimes": {"xpu": {"runtimeArgs": []}}}'))["runtimes"]["xpu"]["path"]
        == PROGRAM
    )


def test_a_replaced_default_runtime_is_told_and_another_one_is_left_alone() -> None:
    (edit,) = docker.configure(file_of('{"default-runtime": "kata"}'), PROGRAM, True)
    assert 'default-runtime was "kata"' in edit.notes[0]
    assert json.loads(edit.text or "")["default-runtime"] == "xpu"
    own = '{"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}}'
    assert unconfigured(configured(own)) == own


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{\n  "a": 1,\n  b\n}', "daemon.json:3:3: not JSON:"),
        ('{"a": 1} x', "daemon.json:1:10: not JSON: Extra data"),
        ("[]", "daemon.json:1:1: not a JSON object"),
        ('{"a": 1,\n "a": 2}', 'daemon.json:2:2: the key "a" is given twice'),
        ('{"a": [{"b": 1}, {"b": 1, "b": 2}]}', 'daemon.json:1:27: the key "b" is given twice'),
        ('{"a": NaN}', "not JSON: NaN"),
        ("\ufeff{}", "daemon.json:1:1: not JSON:"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
        ('{"runtimes": []}', "runtimes is not a JSON object"),
        ('{"runtimes": null}', "runtimes is not a JSON object"),
        ('{"runtimes": {"xpu": "/x"}}', "runtimes.xpu is not a JSON object"),
    ],
)
def test_what_is_malformed_is_refused_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(text)
    assert told in str(caught.value)


# Generated files, written in every style that JSON allows.

keys = st.text('ab\\"/{}[]:, é€\U0001f600', max_size=4).map("k".__add__)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | keys,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
)


@st.composite
def json_files(draw: st.DrawFn) -> str:
    data: dict[str, Any] = draw(st.dictionaries(keys, values, min_size=1, max_size=4))
    if draw(st.booleans()):
        data["runtimes"] = draw(st.dictionaries(keys, st.just({"path": "/x"}), min_size=1, max_size=2))
    if draw(st.booleans()):
        data = dict(reversed(data.items()))
    indent = draw(st.sampled_from([None, 0, 1, 2, 4, "\t"]))
    separators = draw(st.sampled_from([None, (",", ":"), (" , ", " : ")]))
    text = json.dumps(data, indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))
    return draw(st.sampled_from(["", "\n", " "])) + text + draw(st.sampled_from(["", "\n", "\n\n"]))


@given(json_files(), st.booleans())
@settings(max_examples=300)
def test_for_any_file_unconfigure_undoes_configure_and_configure_is_idempotent(
    text: str, default: bool
) -> None:
    after = configured(text, default)
    wanted = json.loads(text)
    wanted.setdefault("runtimes", {})["xpu"] = {"path": PROGRAM}
    if default:
        wanted["default-runtime"] = "xpu"
    assert json.loads(after) == wanted
    assert list(json.loads(after)) == list(wanted)
    assert configured(after, default) == after
    assert unconfigured(after) == text
