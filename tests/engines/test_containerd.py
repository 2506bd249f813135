"""containerd's config.toml: ours comes and goes, and the rest stays byte for byte."""

from __future__ import annotations

import re
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_runtime.engines import containerd
from xpu_runtime.engines.textfile import TextFile
from xpu_runtime.engines.tomltext import key_text, parse, statements, value_text
from xpu_runtime.errors import ConfigError

PROGRAM = "/usr/bin/true"
CRI = 'plugins."io.containerd.grpc.v1.cri"'
NAMES = {1: ("cri",), 2: ("io.containerd.grpc.v1.cri",), 3: ("io.containerd.cri.v1.runtime",)}
NAMES[4] = NAMES[3]


def file_of(text: str, path: Path = Path("/etc/containerd/config.toml")) -> TextFile:
    return TextFile(str(path), str(path), text, Path("/").stat())


def configured(text: str, default: bool = False, program: str = PROGRAM) -> str:
    return containerd.configure(file_of(text), program, default).text


def unconfigured(text: str) -> str:
    return containerd.unconfigure(file_of(text)).text


def cri(text: str) -> Any:
    data = tomllib.loads(text)
    return data["plugins"][NAMES[data.get("version", 1)][0]]["containerd"]


DOCUMENTS = {
    "a full version 2 file": f"""\
# made by hand
version = 2
root = "/var/lib/containerd" # here

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins]
  [{CRI}]
    sandbox_image = "pause:3.9"
    [{CRI}.containerd]
      snapshotter = "overlayfs"
      default_runtime_name = "runc"   # the usual one
      [{CRI}.containerd.runtimes]
        [{CRI}.containerd.runtimes.runc]
          runtime_type = "io.containerd.runc.v2"
          [{CRI}.containerd.runtimes.runc.options]
            SystemdCgroup = true

# the end
[metrics]
address = "127.0.0.1:1338"
""",
    "a short file": 'version = 2\ndisabled_plugins = ["io.containerd.snapshotter.v1.zfs"]\n',
    "a file without an end of line": "version = 2",
    "a version 1 file": '[plugins.cri]\n  sandbox_image = "pause"\n',
    "a version 1 file that says so": "version = 1\n\n[plugins.cri.containerd]\n  no_pivot = false\n",
    "a version 3 file": "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  max_x = 1\n",
    "a version 4 file": "version = 4\n",
    "an empty file": "",
    "comments only": "# nothing yet\n\n# really",
    "an empty line": "\n",
    "windows line ends": f'version = 2\r\n\r\n[{CRI}.containerd]\r\n  default_runtime_name = "kata"\r\n',
    "a last header without an end of line": f"version = 2\n[{CRI}.containerd]",
    "empty parents of its own": "version = 2\n[plugins]\n",
    "tables in no order": (
        f"version = 2\n[{CRI}.containerd.runtimes.a]\nb = 1\n[metrics]\nc = 2\n[{CRI}.cni]\nd = 3\n"
    ),
    "text that looks like tables": (
        f'version = 2\nroot = """\n[{CRI}.containerd.runtimes.xpu]\n#xpu# x = 1\n"""\n[metrics]\n'
        "a = [ # one\n  [1], ']', \"#\",\n]\n'b c' = '''\n[x]\n'''\n"
    ),
    "quoted and dotted keys": 'version = 2\n"a.b".c = 1\n[x]\n"y=z" = { a = "}", "b" = [1, 2] }\n',
}


@pytest.mark.parametrize("default", [False, True], ids=["beside", "as default"])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_configure_adds_the_runtime_once_and_unconfigure_brings_the_old_bytes_back(
    name: str, default: bool
) -> None:
    before = DOCUMENTS[name]
    after = configured(before, default)
    assert cri(after)["runtimes"]["xpu"]["options"]["BinaryName"] == PROGRAM
    assert cri(after)["runtimes"]["xpu"]["runtime_type"] == "io.containerd.runc.v2"
    assert cri(after)["runtimes"]["xpu"]["pod_annotations"] == ["yoyoworks.com/*"]
    assert (cri(after).get("default_runtime_name") == "xpu") is default
    assert configured(after, default) == after
    assert unconfigured(after) == before
    assert unconfigured(before) == before


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_line_of_the_old_file_is_still_there_in_its_order(name: str) -> None:
    before, after = DOCUMENTS[name].splitlines(), iter(configured(DOCUMENTS[name]).splitlines())
    assert all(line in after for line in before)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_the_table_is_the_one_of_the_file_s_version(version: int) -> None:
    after = tomllib.loads(configured(f"version = {version}\n"))
    assert list(after["plugins"]) == list(NAMES[version])


def test_a_missing_file_begins_with_the_version_of_the_installed_containerd() -> None:
    missing = TextFile("/nowhere/config.toml", "/nowhere/config.toml", "", None)
    after = containerd.configure(missing, PROGRAM, False).text
    said = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True).stdout
    expected = 2 if " 1." in said or " v1." in said else 3
    assert tomllib.loads(after)["version"] == expected


def test_the_runtime_is_made_like_runc_so_that_cgroups_are_driven_alike() -> None:
    after = cri(configured(DOCUMENTS["a full version 2 file"]))
    assert after["runtimes"]["xpu"]["options"] == {"SystemdCgroup": True, "BinaryName": PROGRAM}


def test_containerd_s_own_runc_is_named_where_no_runtime_was() -> None:
    assert cri(configured("version = 2\n"))["runtimes"]["runc"] == {"runtime_type": "io.containerd.runc.v2"}


def test_runc_stays_where_another_runtime_came_to_stand_beside_it() -> None:
    kata = f'[{CRI}.containerd.runtimes.kata]\nruntime_type = "io.containerd.kata.v2"\n'
    left = cri(unconfigured(configured("version = 2\n") + kata))
    assert sorted(left["runtimes"]) == ["kata", "runc"]


def test_another_path_is_changed_in_its_place_and_the_owner_s_additions_stay() -> None:
    own = configured("version = 2\n").replace('"yoyoworks.com/*"', '"mine/*", "yoyoworks.com/*"')
    own = own.replace("    BinaryName", "    SystemdCgroup = true # mine\n    BinaryName")
    assert configured(own, program="/opt/x") == own.replace(PROGRAM, "/opt/x")


def test_a_runtime_written_as_an_inline_table_is_completed() -> None:
    text = f'version = 2\n[{CRI}.containerd.runtimes]\nxpu = {{ runtime_type = "old", extra = 1 }}\n'
    xpu = cri(configured(text))["runtimes"]["xpu"]
    assert (xpu["extra"], xpu["runtime_type"], xpu["options"]) == (
        1,
        "io.containerd.runc.v2",
        {"BinaryName": PROGRAM},
    )


def test_what_others_wrote_after_us_stays_when_we_go() -> None:
    after = configured("version = 2", default=True) + "# theirs\n[metrics] # too\nx = 1\n"
    assert unconfigured(after) == "version = 2\n# theirs\n[metrics] # too\nx = 1\n"


def test_unconfigure_works_on_a_file_whose_comments_were_lost() -> None:
    after = configured(DOCUMENTS["a full version 2 file"], default=True)
    bare = "".join(line.partition("#")[0].rstrip() + "\n" for line in after.splitlines())
    left = cri(unconfigured(bare))
    assert "default_runtime_name" not in left
    assert list(left["runtimes"]) == ["runc"]


def test_unconfigure_leaves_another_default_runtime_alone() -> None:
    after = configured("version = 2\n").replace(
        "# by", f'#\n[{CRI}.containerd]\ndefault_runtime_name = "a" # by', 1
    )
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
        ("version = 2\nplugins = 1\n", "plugins is not a table"),
        ("version = 2\nplugins = {}\n", "inline tables or dotted keys"),
        (f"version = 2\n[{CRI}]\ncontainerd = {{ snapshotter = 'x' }}\n", "inline tables or dotted keys"),
        (f"[{CRI}.containerd]\n", "add that as its first line"),
        (f"version = 2\n[{CRI}.containerd]\nruntimes = 1\n", "runtimes is not a table"),
        (
            f"version = 2\n[{CRI}.containerd.runtimes.runc]\n"
            "runtime_type = 'io.containerd.runc.v2'\nx = 1979-05-27\n",
            "copied",
        ),
    ],
)
def test_what_cannot_be_changed_safely_is_refused_and_stays(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(text)
    assert told in str(caught.value)


def test_a_default_runtime_that_would_need_a_second_header_for_a_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="inline tables or dotted keys"):
        configured(f"version = 2\n[{CRI}]\ncontainerd.snapshotter = 'x'\n", default=True)


@pytest.mark.parametrize("name", ["cri", "io.containerd.grpc.v1.cri"])
def test_a_disabled_plugin_is_noted(name: str) -> None:
    edit = containerd.configure(file_of(f'version = 2\ndisabled_plugins = ["{name}"]\n'), PROGRAM, False)
    assert any(f"disabled_plugins has {name}" in note for note in edit.notes)


def test_an_imported_file_that_would_hide_ours_is_noted(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/a.toml").write_text(f"version = 2\n[{CRI}]\nx = 1\n")
    (tmp_path / "conf.d/b.toml").write_text("version = 2\n[metrics]\n")
    (tmp_path / "conf.d/c.toml").write_text("not toml")
    file = file_of('version = 2\nimports = ["conf.d/*.toml"]\n', tmp_path / "config.toml")
    notes = containerd.configure(file, PROGRAM, False).notes
    assert [str(tmp_path / "conf.d/a.toml") in note for note in notes] == [True]


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


@st.composite
def toml_files(draw: st.DrawFn) -> str:
    text = draw(trivia) + "version = 2" + draw(st.sampled_from(["\n", " # two\n", "\n\n"]))
    for name in draw(st.lists(tables, unique=True, max_size=6)):
        indentation = draw(st.sampled_from(["", "  "]))
        text += f"{indentation}[{name}]" + draw(st.sampled_from(["\n", "  # c\n", "\n\n"]))
        for key, value in draw(st.dictionaries(words, values, max_size=3)).items():
            text += f"{indentation}{key_text(('k-' + key,))} = {value_text(value)}\n" + draw(trivia)
        if name == f"{CRI}.containerd" and draw(st.booleans()):
            text += draw(st.sampled_from(["", "    "])) + "default_runtime_name = 'kata' # c\n"
    return text.rstrip("\n") if draw(st.booleans()) else text


@given(toml_files(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_for_any_file_unconfigure_undoes_configure_and_configure_is_idempotent(
    text: str, default: bool
) -> None:
    after = configured(text, default)
    assert configured(after, default) == after
    assert configured(after, False) == after
    assert unconfigured(after) == text


@given(toml_files())
@settings(max_examples=100, deadline=None)
def test_for_any_file_the_statements_cover_all_data(text: str) -> None:
    data = parse("f", text)
    for statement in statements(text):
        if not statement.is_header:
            value = data
            for part in statement.path:
                value = value[part]
            written = text[statement.value_start : statement.value_end]
            assert tomllib.loads(f"v = {written}") == {"v": value}


# The real containerd.


def dump(path: Path) -> Any:
    done = subprocess.run(
        ["containerd", "--config", path, "config", "dump"], capture_output=True, text=True, check=True
    )
    return tomllib.loads(done.stdout)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]


needs_containerd_1 = pytest.mark.skipif(
    not re.search(r" v?1\.\d+\.", subprocess.getoutput("containerd --version")),
    reason="needs a containerd 1.x; the tables have other names in 2",
)


@needs_containerd_1
@pytest.mark.parametrize(
    "name", ["a full version 2 file", "a short file", "a version 1 file", "an empty file"]
)
def test_containerd_itself_sees_the_runtime(tmp_path: Path, xpu: Any, name: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(DOCUMENTS[name])
    done = xpu(
        "runtime",
        "configure",
        "containerd",
        "--config",
        config,
        "--runtime-path",
        PROGRAM,
        "--set-as-default",
    )
    assert (done.returncode, done.stderr) == (0, "")
    seen = dump(config)
    assert seen["default_runtime_name"] == "xpu"
    assert seen["runtimes"]["xpu"]["options"]["BinaryName"] == PROGRAM
    assert seen["runtimes"]["xpu"]["pod_annotations"] == ["yoyoworks.com/*"]
    assert xpu("runtime", "unconfigure", "containerd", "--config", config).returncode == 0
    assert config.read_text() == DOCUMENTS[name]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Any]:
    """Starts a containerd of its own with a configuration file; ends it with the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(config: Path) -> str:
        socket = str(tmp_path / "c.sock")
        arguments = ["--root", f"{tmp_path}/root", "--state", f"{tmp_path}/state", "--address", socket]
        with (tmp_path / "log").open("wb") as log:
            processes.append(
                subprocess.Popen(["containerd", "--config", str(config), *arguments], stdout=log, stderr=log)
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and processes[-1].poll() is None:
            done = subprocess.run(
                ["ctr", "--address", socket, "plugins", "ls"], capture_output=True, text=True
            )
            if done.returncode == 0:
                return done.stdout
            time.sleep(0.1)
        raise AssertionError((tmp_path / "log").read_text()[-2000:])

    yield start
    for process in processes:
        process.terminate()
        process.wait(30)


@needs_containerd_1
def test_the_cri_plugin_of_a_containerd_that_knew_no_runtime_by_name_still_loads(
    tmp_path: Path, running: Any
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(configured(f'version = 2\n[{CRI}.cni]\nconf_dir = "{tmp_path}"\n'))
    plugins = [line.split() for line in running(config).splitlines()]
    assert ["io.containerd.grpc.v1", "cri", "ok"] in [
        [line[0], line[1], line[-1]] for line in plugins if line
    ]
