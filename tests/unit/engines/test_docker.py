"""docker's daemon.json: configure adds our runtime, unconfigure removes it, and the rest stays as its owner
wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_runtime import engines
from xpu_runtime.engines import docker
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import Edit, TextFile

PROGRAM = "/usr/bin/xpu-container-runtime"


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
    "nothing": "",
    "blank lines": " \n\n",
    "an empty object with a line end": "{}\n",
    "an empty object with a blank": "{ }",
    "no runtimes": '{"debug": true, "runtimes": {}}',
    "no runtimes, on two lines": '{\n    "runtimes": {\n    },\n    "debug": true\n}\n',
    "no runtimes and nothing else": '{\n  "runtimes": { }\n}\n',
    "another default": (
        '{\n  "default-runtime" : "nvidia",\n  "runtimes": {\n    "nvidia": {\n      "path": "/n"\n    }\n  }'
        "\n}\n"
    ),
    "another default on one line": '{"runtimes":{"nvidia":{"path":"/n"}},"default-runtime":"nvidia"}',
    "docker's own as the default": '{\n\t"default-runtime": "runc"\n}\n',
    "a default that only a flag names": '{"default-runtime": "nvidia"}',
    "a shim as the default": '{"default-runtime": "io.containerd.runsc.v1"}',
    "no default": '{"default-runtime": ""}',
    "another program of our name": (
        '{\n  "runtimes": {\n    "a": {"path": "/a"},\n    "xpu": {\n      "runtimeArgs": ["--x"],\n'
        '      "path" : "/old"\n    }\n  }\n}\n'
    ),
    "a shim of our name": '{"runtimes": {"xpu": {"runtimeType": "io.containerd.runsc.v1", "options": {}}}}',
}


@pytest.mark.parametrize("default", [False, True], ids=["beside", "as default"])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_configure_adds_the_runtime_once_and_unconfigure_brings_the_old_bytes_back(
    name: str, default: bool
) -> None:
    before = DOCUMENTS[name]
    if "our name" not in name:
        assert unconfigured(before) == before
    after = configured(before, default)
    data = json.loads(after)
    assert data["runtimes"]["xpu"]["path"] == PROGRAM
    assert (data.get("default-runtime") == "xpu") is default
    assert configured(after, default) == after
    assert unconfigured(after) == before
    # Configured as the default, then without that option: the default stays.
    assert unconfigured(configured(configured(before), default)) == before
    # The runtime is now installed in another folder.
    assert unconfigured(configured(after, default, "/opt/bin/xpu-container-runtime")) == before


def test_the_added_lines_have_the_indentation_of_the_file() -> None:
    assert configured(DOCUMENTS["tabs"], default=True) == (
        '{\n\t"log-driver": "local",\n\t"log-opts": {\n\t\t"max-size": "1m"\n\t},\n'
        f'\t"runtimes": {{\n\t\t"xpu": {{\n\t\t\t"path": "{PROGRAM}"\n\t\t}}\n\t}},\n'
        '\t"default-runtime": "xpu"\n}'
    )
    assert configured(DOCUMENTS["two spaces and another runtime"]) == (
        '{\n  "runtimes": {\n    "kata": {\n      "path": "/k"\n    },\n'
        f'    "xpu": {{\n      "path": "{PROGRAM}"\n    }}\n  }},\n  "hosts": []\n}}\n'
    )


def test_configure_makes_a_missing_file_and_unconfigure_removes_it() -> None:
    none = TextFile("daemon.json", "/etc/docker/daemon.json", "", None)
    (edit,) = docker.configure(none, PROGRAM, False)
    assert edit.text == json.dumps({"runtimes": {"xpu": {"path": PROGRAM}}}, indent=4) + "\n"
    assert engines.unconfigure(engines.engine("docker"), file_of(edit.text)) == (
        Edit(file_of(edit.text), None),
    )


def test_configure_changes_our_path_in_place() -> None:
    own = '{"runtimes": {"xpu": {"runtimeArgs": ["--x"], "path": "/old/xpu-container-runtime"}, "a": {}}}'
    assert configured(own) == own.replace("/old/xpu-container-runtime", PROGRAM)
    assert unconfigured(own) == '{"runtimes": {"a": {}}}'


@pytest.mark.parametrize("default", [False, True], ids=["beside", "as default"])
def test_unconfigure_restores_another_programs_default_of_our_name(default: bool) -> None:
    before = '{"default-runtime": "xpu", "runtimes": {"xpu": {"path": "/o"}}}'
    after = configured(before, default)
    assert json.loads(after)["runtimes"]["xpu"]["path"] == PROGRAM
    assert unconfigured(after) == before


def test_our_entry_does_not_get_the_settings_of_another_program() -> None:
    after = json.loads(configured(DOCUMENTS["another program of our name"]))
    assert after["runtimes"]["xpu"].keys() == {"path", "replaced"}


def test_an_entry_without_a_path_gets_one() -> None:
    assert (
        json.loads(configured('{"runtimes": {"xpu": {"runtimeArgs": []}}}'))["runtimes"]["xpu"]["path"]
        == PROGRAM
    )


def test_a_note_names_a_replaced_default_runtime_and_another_default_stays() -> None:
    (edit,) = docker.configure(file_of('{"default-runtime": "kata"}'), PROGRAM, True)
    assert edit.notes == ('default-runtime was "kata"; unconfigure brings that back',)
    assert json.loads(edit.text or "")["default-runtime"] == "xpu"
    own = '{"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}}'
    assert unconfigured(configured(own)) == own


def test_a_default_that_its_owner_has_changed_since_stays() -> None:
    after = configured(DOCUMENTS["another default"], default=True).replace(
        '"default-runtime" : "xpu"', '"default-runtime": "mine"'
    )
    assert json.loads(unconfigured(after))["default-runtime"] == "mine"


@pytest.mark.parametrize("mine", ["crun", "nvidia", None])
def test_unconfigure_restores_the_default_that_the_last_configure_named(mine: str | None) -> None:
    own = json.loads(DOCUMENTS["another default"])
    since = json.loads(configured(json.dumps(own), default=True))
    for text in (own, since):
        text["runtimes"]["crun"] = {"path": "/crun"}
        text["default-runtime"] = mine
        if mine is None:
            del text["default-runtime"]
    (edit,) = docker.configure(file_of(json.dumps(since)), PROGRAM, True)
    assert edit.notes == ((f'default-runtime was "{mine}"; unconfigure brings that back',) if mine else ())
    assert json.loads(unconfigured(edit.text or "")) == own


def test_unconfigure_restores_a_later_default_without_an_entry() -> None:
    since = json.loads(configured(DOCUMENTS["another default"], default=True))
    since["default-runtime"] = "io.containerd.runsc.v1"
    again = json.loads(configured(json.dumps(since), default=True))
    assert json.loads(unconfigured(json.dumps(again)))["default-runtime"] == "io.containerd.runsc.v1"


def test_a_replaced_default_without_its_runtime_is_named_and_not_restored() -> None:
    """dockerd does not start with a default that it does not know."""
    after = json.loads(configured(DOCUMENTS["another default"], default=True))
    del after["runtimes"]["nvidia"]
    (edit,) = docker.unconfigure(file_of(json.dumps(after)))
    assert edit.text == "{}"
    assert edit.notes[0].startswith(
        'default-runtime was "nvidia", which is no longer among the file\'s runtimes'
    )


def test_unconfigure_keeps_later_additions_of_others() -> None:
    after = json.loads(configured("", default=True))
    after["debug"] = True
    assert json.loads(unconfigured(json.dumps(after))) == {"debug": True}
    after = json.loads(configured('{"runtimes": {}}'))
    after["runtimes"]["kata"] = {"path": "/k"}
    assert json.loads(unconfigured(json.dumps(after))) == {"runtimes": {"kata": {"path": "/k"}}}


@pytest.mark.parametrize(
    "kept",
    [
        [],
        {"file": "x"},
        {"file": 1, "runtimes": 2},
        {"runtimes": '{"a": 1}'},
        {"file": "{} }"},
        {"file": "{}"},
        {"default-runtime": 3},
    ],
    ids=str,
)
def test_unconfigure_writes_valid_json_for_any_content_of_replaced(kept: Any) -> None:
    text = json.dumps(
        {"a": 1, "default-runtime": "xpu", "runtimes": {"xpu": {"path": PROGRAM, "replaced": kept}}}
    )
    assert json.loads(unconfigured(text))["a"] == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{\n  "a": 1,\n  b\n}', "daemon.json:3:3: not JSON:"),
        ('{"a": 1} x', "daemon.json:1:10: not JSON: Extra data"),
        ("[]", "daemon.json:1:1: not a JSON object"),
        ('{"a": 1,\n "a": 2}', 'daemon.json:2:2: the key "a" is given twice'),
        ('{"a": [{"b": 1}, {"b": 1, "b": 2}]}', 'daemon.json:1:27: the key "b" is given twice'),
        ('{"a": NaN}', "not JSON: NaN"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
        ('{"runtimes": []}', "runtimes is not a JSON object"),
        ('{"runtimes": null}', "runtimes is not a JSON object"),
        ('{"runtimes": {"xpu": "/x"}}', "runtimes.xpu is not a JSON object"),
    ],
)
def test_a_malformed_file_is_refused_with_line_and_column(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(text)
    assert told in str(caught.value)


@pytest.mark.parametrize("written", ['"n\u00e9"', '"nvid\\u0069a"', '"\\/x"'])
def test_unconfigure_restores_the_spelling_of_the_default(written: str) -> None:
    text = f'{{"default-runtime": {written}, "runtimes": {{"nvidia": {{"path": "/n"}}}}}}\n'
    assert unconfigured(configured(text, True)) == text


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


@pytest.mark.slow
@given(json_files(), st.booleans())
@settings(max_examples=300)
def test_for_any_file_unconfigure_undoes_configure_and_configure_is_idempotent(
    text: str, default: bool
) -> None:
    after = configured(text, default)
    wanted = json.loads(text)
    wanted.setdefault("runtimes", {})["xpu"] = {"path": PROGRAM}
    if not json.loads(text):
        wanted["runtimes"]["xpu"]["replaced"] = {"file": text}
    if default:
        wanted["default-runtime"] = "xpu"
    assert json.loads(after) == wanted
    assert list(json.loads(after)) == list(wanted)
    assert configured(after, default) == after
    assert unconfigured(after) == text
