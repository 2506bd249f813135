"""containerd's config.toml: configure adds our runtime, unconfigure removes it, and the rest stays byte for
byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from support.containerd_files import CRI, DOCUMENTS, NAMES, PROGRAM, configured, cri, file_of, unconfigured
from xpu_runtime import textfile
from xpu_runtime.engines import _blocks, containerd
from xpu_runtime.errors import ConfigError


@pytest.mark.parametrize("default", [False, True], ids=["beside", "as default"])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_configure_adds_the_runtime_once_and_unconfigure_brings_the_old_bytes_back(
    tmp_path: Path, name: str, default: bool
) -> None:
    def is_default(text: str) -> bool | None:
        (tmp_path / "config.toml").write_text(text)
        return containerd.is_default(textfile.read(str(tmp_path / "config.toml")))

    before = DOCUMENTS[name]
    assert is_default(before) is None
    after = configured(before, default)
    ours = cri(after)["runtimes"]["xpu"]
    assert ours["options"]["BinaryName"] == PROGRAM
    assert ours["runtime_type"] == "io.containerd.runc.v2"
    assert ours["pod_annotations"] == ["yoyoworks.com/*"]
    assert (cri(after).get("default_runtime_name") == "xpu") is is_default(after) is default
    if not default:
        lines = iter(after.splitlines())
        assert all(line in lines for line in before.splitlines())  # in their order
    assert configured(after, default) == after
    # Configured as the default, then without that option, for a program in another folder.
    moved = configured(configured(configured(before), default), program="/opt/x")
    assert (cri(moved).get("default_runtime_name") == "xpu") is default
    assert cri(moved)["runtimes"]["xpu"]["options"]["BinaryName"] == "/opt/x"
    for each in (before, after, moved):
        assert unconfigured(each) == before


def test_a_default_runtime_is_ours_by_its_program_under_any_name_also_in_an_imported_file(
    tmp_path: Path,
) -> None:
    table = '[plugins."io.containerd.cri.v1.runtime".containerd'
    config = tmp_path / "config.toml"
    config.write_text(f'version = 3\nimports = ["conf.d/*.toml"]\n{table}]\ndefault_runtime_name = "gpu"\n')
    assert containerd.is_default(textfile.read(str(config))) is None
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "gpu.toml").write_text(
        f'version = 3\n{table}.runtimes.gpu.options]\nBinaryName = "/opt/xpu/bin/xpu-container-runtime"\n'
    )
    assert containerd.is_default(textfile.read(str(config))) is True
    config.write_text(config.read_text().replace('"gpu"', '"runc"'))
    assert containerd.is_default(textfile.read(str(config))) is False


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_the_table_is_the_one_of_the_file_s_version(version: int) -> None:
    """For containerd, version 0 means no version. dockerd writes it for the containerd that it starts."""
    after = tomli.loads(configured(f"version = {version}\n"))
    assert list(after["plugins"]) == list(NAMES[version or 1])


NVIDIA = f'[{CRI}.containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
RUNC = f"[{CRI}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"


@pytest.mark.parametrize(
    ("tables", "is_systemd"),
    [
        (f'[{CRI}.containerd]\ndefault_runtime_name = "nvidia"\n{NVIDIA}{RUNC}', True),
        (
            f'[{CRI}.containerd]\ndefault_runtime_name = "nvidia"\n{NVIDIA}{RUNC}'
            f"[{CRI}.containerd.runtimes.nvidia.options]\nSystemdCgroup = false\n",
            False,
        ),
        (f"{NVIDIA}{RUNC}", True),
        (RUNC, True),
        (f'[{CRI}.containerd.runtimes.runc]\nruntime_type = "io.containerd.kata.v2"\n', False),
        (f'{RUNC}[{CRI}.containerd.runtimes.xpu]\nruntime_type = "x"\noptions.SystemdCgroup = false\n', True),
        (
            f'[{CRI}.containerd]\ndefault_runtime_name = "kata"\n{RUNC}[{CRI}.containerd.runtimes.kata]\n'
            'runtime_type = "io.containerd.kata.v2"\noptions.SystemdCgroup = false\n',
            False,
        ),
    ],
)
def test_our_runtime_has_the_cgroup_driver_of_the_default_runtime_or_of_runc(
    tables: str, is_systemd: bool
) -> None:
    (edit,) = containerd.configure(file_of(f"version = 2\n{tables}"), PROGRAM, False)
    options = cri(edit.text or "")["runtimes"]["xpu"]["options"]
    assert options.get("SystemdCgroup", False) is is_systemd
    assert not any("SystemdCgroup" in note for note in edit.notes)


def test_configure_names_runc_in_a_file_without_runtimes() -> None:
    assert cri(configured("version = 2\n"))["runtimes"]["runc"] == {"runtime_type": "io.containerd.runc.v2"}


def test_unconfigure_keeps_runc_if_another_runtime_was_added() -> None:
    kata = f'[{CRI}.containerd.runtimes.kata]\nruntime_type = "io.containerd.kata.v2"\n'
    left = cri(unconfigured(configured("version = 2\n") + kata))
    assert sorted(left["runtimes"]) == ["kata", "runc"]


def test_configure_changes_our_path_in_place_and_keeps_the_owners_additions() -> None:
    own = configured("version = 2\n").replace('"yoyoworks.com/*"', '"mine/*", "yoyoworks.com/*"')
    own = own.replace("    BinaryName", "    SystemdCgroup = true # mine\n    BinaryName")
    assert configured(own, program="/opt/x") == own.replace(PROGRAM, "/opt/x")


def test_a_runtime_of_ours_written_as_an_inline_table_is_completed() -> None:
    ours = f'xpu = {{ runtime_type = "old", extra = 1, options = {{ BinaryName = "{PROGRAM}" }} }}'
    xpu = cri(configured(f"version = 2\n[{CRI}.containerd.runtimes]\n{ours}\n"))["runtimes"]["xpu"]
    assert (xpu["extra"], xpu["runtime_type"], xpu["options"]) == (
        1,
        "io.containerd.runc.v2",
        {"BinaryName": PROGRAM},
    )


def test_unconfigure_keeps_later_lines_of_other_programs() -> None:
    after = configured("version = 2", default=True) + "# theirs\n[metrics] # too\nx = 1\n"
    assert unconfigured(after) == "version = 2\n# theirs\n[metrics] # too\nx = 1\n"


def test_unconfigure_works_on_a_file_whose_comments_were_lost() -> None:
    after = configured(DOCUMENTS["a full version 2 file"], default=True)
    bare = "".join(line.partition("#")[0].rstrip() + "\n" for line in after.splitlines())
    left = cri(unconfigured(bare))
    assert "default_runtime_name" not in left
    assert list(left["runtimes"]) == ["runc"]


def test_unconfigure_leaves_another_default_runtime_alone() -> None:
    after = configured("version = 2\n") + f'[{CRI}.containerd]\ndefault_runtime_name = "a"\n'
    assert cri(unconfigured(after))["default_runtime_name"] == "a"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("version = 2\n[plugins\n", ":2:9: not TOML: Expected ']'"),
        ("version = 2\nversion = 2\n", ":2:12: not TOML: Cannot overwrite a value"),
        ("a = [1,\n", ":2:1: not TOML:"),
        ("a = " + "[" * 5000, "nested too deeply"),
        ("a = " + "9" * 5000, "not TOML:"),
        ("version = 5\n", "version is 5: known are 1 to 4"),
        ("version = true\n", "version is True"),
        ("version = [2]\n", "version is [2]"),
        ("version = { a = 1 }\n", "version is {'a': 1}"),
        ("version = 2.0\n", "version is 2.0"),
        ("version = 2\nplugins = 1\n", "plugins is not a table"),
        ("version = 2\nplugins = {}\n", "inline tables or dotted keys"),
        ("version = 2\nplugins = {}\n", f"write the line [{CRI}.containerd] first"),
        (f"version = 2\n[{CRI}]\ncontainerd = {{ snapshotter = 'x' }}\n", "inline tables or dotted keys"),
        (f"[{CRI}.containerd]\n", "add that as its first line"),
        (f"version = 2\n[{CRI}.containerd]\nruntimes = 1\n", "runtimes is not a table"),
        (
            f'version = 2\n[{CRI}.containerd]\ndefault_runtime_name = "nvidia"\n{NVIDIA}options = 1\n',
            "a runtime's options are not a table",
        ),
        (
            f"version = 2\n[{CRI}.containerd]\nruntimes = {{ xpu = {{ a = 'x' }}, kata = {{}} }}\n",
            "inline tables or dotted keys",
        ),
        (
            f'version = 2\n[{CRI}.containerd]\nruntimes.xpu.pod_annotations = [\n"a",\n]\n',
            "inline tables or dotted keys",
        ),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_refused(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(text)
    assert told in str(caught.value)


def test_a_default_runtime_that_would_need_a_second_header_for_a_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="inline tables or dotted keys"):
        configured(f"version = 2\n[{CRI}]\ncontainerd.snapshotter = 'x'\n", default=True)


@pytest.mark.parametrize("name", ["cri", "io.containerd.grpc.v1.cri"])
def test_a_disabled_plugin_is_noted(name: str) -> None:
    (edit,) = containerd.configure(file_of(f'version = 2\ndisabled_plugins = ["{name}"]\n'), PROGRAM, False)
    assert any(f"disabled_plugins has {name}" in note for note in edit.notes)


def test_an_imported_file_that_would_hide_ours_is_refused_before_containerd_2(
    tmp_path: Path, containerd_says: Callable[[str], None]
) -> None:
    containerd_says("1.7.24")
    (tmp_path / "conf.d").mkdir()
    hides = tmp_path / "conf.d/a.toml"
    hides.write_text(f"version = 2\n[{CRI}]\nx = 1\n")
    (tmp_path / "conf.d/b.toml").write_text("version = 2\n[metrics]\n")
    imports = f"{tmp_path}/conf.d/*.toml"
    file = file_of(f'version = 2\nimports = ["{imports}"]\n', tmp_path / "config.toml")
    with pytest.raises(ConfigError) as caught:
        containerd.configure(file, PROGRAM, False)
    assert f"{hides}, which is imported," in caught.value.what
    assert caught.value.todo == f"use --config {hides}; nothing was changed"
    hides.unlink()
    assert containerd.configure(file, PROGRAM, False)[0].notes == ()


# Another program's runtime of our name, and another default.

CRI_3 = 'plugins."io.containerd.cri.v1.runtime"'
THEIR_TABLE = (
    f'version = 3\n[{CRI_3}.containerd.runtimes.xpu]\nruntime_type = "x"\n'
    f'[{CRI_3}.containerd.runtimes.xpu.options]\nBinaryName = "/old"\n# c\n'
)


@pytest.mark.parametrize("default", [False, True], ids=["beside", "as default"])
@pytest.mark.parametrize(
    "before",
    [
        THEIR_TABLE,
        f'version = 3\n[{CRI_3}.containerd]\ndefault_runtime_name = "xpu"\n'
        f'[{CRI_3}.containerd.runtimes.xpu]\nruntime_type = "io.containerd.runsc.v1" # mine\n',
        f'version = 3\n[{CRI_3}.containerd]\ndefault_runtime_name = "runc" # c\n'
        f'[{CRI_3}.containerd.runtimes]\nxpu = {{ runtime_type = "x", extra = 1, at = 1979-05-27 }}\n',
        f'version = 3\n[{CRI_3}.containerd.runtimes.xpu]\nruntime_type = "x"\n  pod_annotations = ["a"]\n'
        f'[{CRI_3}.containerd.runtimes.xpu.options]\nShim = "/s"\n[metrics]\naddress = "x"\n',
        f'version = 3\r\n[{CRI_3}.containerd.runtimes.xpu]\r\npod_annotations = [\r\n  "a",\r\n]\r\n'
        'options = {BinaryName  = "/x"}\r\n\r\n\r\n# about metrics\r\n[metrics]\r\naddress = "x"',
        f'version = 3\n[{CRI_3}.containerd]\nruntimes.kata.a = 1 # kata\nruntimes.xpu.runtime_type = "x"\n',
        f'version = 3\n[{CRI_3}.containerd.runtimes.xpu.options]\nRoot = "/x"\n\n[metrics]\naddress = "x"\n'
        f'[{CRI_3}.containerd.runtimes.xpu] # below\nruntime_type = "x"\n',
    ],
)
def test_unconfigure_restores_another_programs_runtime_of_our_name(before: str, default: bool) -> None:
    assert unconfigured(before) == before
    (edit,) = containerd.configure(file_of(before), PROGRAM, default)
    assert "runtimes.xpu was another program's; unconfigure brings that back" in edit.notes
    after = edit.text or ""
    assert cri(after)["runtimes"]["xpu"] == cri(configured("version = 3\n"))["runtimes"]["xpu"]
    assert configured(after, default) == after
    assert unconfigured(after) == before
    assert unconfigured(configured(after, default, program="/opt/x")) == before
    # The owner has removed our block by hand.
    assert unconfigured(_blocks.BLOCK.sub("", configured(before))) == before


@pytest.mark.parametrize(
    "before",
    [
        f'version = 3\n{CRI_3}.containerd.default_runtime_name = "runc" # mine\n[metrics]\nx = 1\n',
        f'version = 3\n[{CRI_3}]\n  containerd.default_runtime_name = "runc"\n',
        f"version = 3\n[{CRI_3}.containerd]\n  'default_runtime_name'='runc'",
        'plugins.cri.containerd.default_runtime_name = "runc"\nx = 1\n',
    ],
)
def test_a_default_runtime_is_replaced_in_any_spelling_of_its_key(before: str) -> None:
    after = configured(before, default=True)
    assert cri(after)["default_runtime_name"] == "xpu"
    assert unconfigured(after) == before


# Generated files: tables in any order, with comments, blank lines and every kind of value.

words = st.sampled_from(["a", "b-1", "x.y", "runc", "options", "default", "ü", '"', "# [no]"])
scalars = (
    st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab\n\t\"'#[]{}=\\\x7fé€\U0001f600", max_size=8)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=2)
)
tables = st.sampled_from(
    ["metrics", "plugins", CRI, f"{CRI}.cni", f"{CRI}.containerd", f"{CRI}.containerd.runtimes"]
    + [f"{CRI}.containerd.runtimes.runc", f"{CRI}.containerd.runtimes.kata", "proxy.a", '"q.r".s']
)
trivia = st.sampled_from(["", "\n", "# note\n", "   # [plugins] \n", "\n\n", "\t\n"])


def inline(value: Any) -> str:
    """A value in one line of TOML."""
    if isinstance(value, dict):
        items = [f"{tomlkit.key(key).as_string()} = {inline(item)}" for key, item in value.items()]
        return "{ " + ", ".join(items) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    text: str = tomlkit.item(value).as_string()
    return text


@st.composite
def toml_files(draw: st.DrawFn) -> str:
    text = draw(trivia) + "version = 2" + draw(st.sampled_from(["\n", " # two\n", "\n\n"]))
    for name in draw(st.lists(tables, unique=True, max_size=6)):
        indentation = draw(st.sampled_from(["", "  "]))
        text += f"{indentation}[{name}]" + draw(st.sampled_from(["\n", "  # c\n", "\n\n"]))
        for key, value in draw(st.dictionaries(words, values, max_size=3)).items():
            text += f"{indentation}{tomlkit.key('k-' + key).as_string()} = {inline(value)}\n" + draw(trivia)
        if name == f"{CRI}.containerd" and draw(st.booleans()):
            text += draw(st.sampled_from(["", "    "])) + "default_runtime_name = 'kata' # c\n"
    return text.rstrip("\n") if draw(st.booleans()) else text


@pytest.mark.slow
@given(toml_files(), st.booleans())
@settings(max_examples=300)
def test_for_any_file_unconfigure_undoes_configure_and_configure_is_idempotent(
    text: str, default: bool
) -> None:
    after = configured(text, default)
    assert configured(after, default) == after
    assert configured(after, False) == after
    assert unconfigured(after) == text


@pytest.mark.parametrize(
    ("version", "ignores"), [("1.7.24", False), ("v2.1.9", True), ("v2.2.5", True), ("v2.3.0", False)]
)
def test_a_file_of_version_1_is_refused_for_a_containerd_that_ignores_it(
    containerd_says: Callable[[str], None], version: str, ignores: bool
) -> None:
    containerd_says(version)
    before = DOCUMENTS["a version 1 file"]
    if not ignores:
        assert cri(configured(before))["runtimes"]["xpu"]["options"]["BinaryName"] == PROGRAM
        return
    with pytest.raises(ConfigError, match="ignores plugins") as caught:
        configured(before)
    assert caught.value.todo.startswith("write `version = 2` as its first line, name its tables ")


def test_the_installed_containerd_does_not_judge_the_file_of_another_one(
    containerd_says: Callable[[str], None],
) -> None:
    """For example, k3s has its own containerd beside docker's older one."""
    containerd_says("1.7.24")
    assert cri(configured(DOCUMENTS["a version 3 file"]))["runtimes"]["xpu"]
