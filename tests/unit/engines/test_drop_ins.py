"""Our files for podman and cri-o, among the other files that these engines read."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from xpu_runtime import engines, textfile
from xpu_runtime.cli.kubernetes import device_plugin
from xpu_runtime.engines import Engine, _blocks, crio, engine, podman
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import Edit

PROGRAM = "/usr/bin/xpu-container-runtime"
#: An entry of another program, and its key.
ANOTHER = {
    "podman": ('[engine.runtimes]\nxpu = ["/opt/other"]\n', "engine.runtimes.xpu"),
    "crio": (
        '[crio.runtime.runtimes.xpu]\nruntime_path = "/opt/other"\n',
        "crio.runtime.runtimes.xpu",
    ),
}
DEFAULT = {
    "podman": '[engine]\nruntime = "crun"\n',
    "crio": '[crio.runtime]\ndefault_runtime = "crun"\n',
}


@pytest.fixture(autouse=True)
def _podman_4(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, (4, 3))


def says(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int] | None) -> None:
    monkeypatch.setattr(engines, "installed_version", lambda _: version)


@pytest.fixture(params=["podman", "crio"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def etc(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the engine's main file and its drop-in folder."""
    known = engine(name)
    main = Path(known.DEFAULT_PATH).parent
    (tmp_path / main.name).mkdir()
    files = vars(known.FILE)  # type: ignore[attr-defined]
    monkeypatch.setitem(files, "before", (str(tmp_path / "vendor.conf"),))
    monkeypatch.setitem(files, "after", ())
    return tmp_path


def ours(etc: Path, name: str) -> Path:
    return etc / Path(engine(name).DEFAULT_PATH).parent.name / "99-xpu.conf"


def configure(etc: Path, name: str, *, default: bool = False) -> tuple[str, ...]:
    """Writes as the command does; returns the notes."""
    return _write(engine(name).configure(textfile.read(str(ours(etc, name))), PROGRAM, default))


def unconfigure(etc: Path, name: str) -> None:
    known: Engine = engine(name)
    _write(engines.unconfigure(known, textfile.read(str(ours(etc, name)))))


def _write(edits: tuple[Edit, ...]) -> tuple[str, ...]:
    for edit in edits:
        if edit.text != edit.file.text:
            textfile.write(edit.file, edit.text)
    return tuple(note for edit in edits for note in edit.notes)


def test_unconfigure_removes_the_file_under_any_podman_version(
    etc: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert configure(etc, name, default=True) == ()
    says(monkeypatch, (5, 4))
    unconfigure(etc, name)
    assert not ours(etc, name).exists()


def test_unconfigure_keeps_the_owners_additions(etc: Path, name: str) -> None:
    configure(etc, name)
    file = ours(etc, name)
    file.write_text(file.read_text() + "[network]\nx = 1 # mine\n")
    unconfigure(etc, name)
    assert file.read_text() == "[network]\nx = 1 # mine\n"


def test_configure_replaces_our_path_and_keeps_the_default(etc: Path, name: str) -> None:
    configure(etc, name, default=True)
    file = textfile.read(str(ours(etc, name)))
    _write(engine(name).configure(file, "/usr/local/bin/xpu-container-runtime", False))
    text = ours(etc, name).read_text()
    assert engine(name).runtime_path(textfile.read(str(ours(etc, name)))) != PROGRAM
    assert text.count("xpu-container-runtime") == 1 and 'runtime = "xpu"' in text


def test_notes_name_another_program_of_our_name_and_a_replaced_default(etc: Path, name: str) -> None:
    main = etc / engine(name).FILE.main  # type: ignore[attr-defined]
    text, key = ANOTHER[name]
    main.write_text(DEFAULT[name] + text)
    notes = configure(etc, name, default=True)
    assert notes[0] == f"{main} has another {key}; ours stands over it until unconfigure"
    assert notes[1].startswith(f"{main} has another {DEFAULT[name][1:].split(']')[0]}.")
    assert main.read_text() == DEFAULT[name] + text


@pytest.mark.parametrize("what", ["entry", "default"])
def test_a_file_that_is_read_later_is_refused_with_its_name(etc: Path, name: str, what: str) -> None:
    later = ours(etc, name).with_name("zz.conf")
    later.write_text(ANOTHER[name][0] if what == "entry" else DEFAULT[name])
    with pytest.raises(ConfigError, match=rf"{later} is read after .*nothing was changed"):
        configure(etc, name, default=True)
    later.unlink()
    configure(etc, name)
    file = textfile.read(str(ours(etc, name)))
    known: ModuleType = podman if name == "podman" else crio
    assert known.FILE.unseen(file) is None
    later.write_text(file.text)
    assert known.FILE.unseen(file) is None
    later.write_text(ANOTHER[name][0])
    assert str(known.FILE.unseen(file)).startswith(f"{later} is read after {file.path}")


def test_an_entry_written_by_hand_is_refused_and_stays(etc: Path, name: str) -> None:
    file = ours(etc, name)
    file.write_text(ANOTHER[name][0])
    with pytest.raises(ConfigError, match="written by hand; nothing was changed"):
        configure(etc, name)
    with pytest.raises(ConfigError, match="by another hand than"):
        unconfigure(etc, name)
    assert file.read_text() == ANOTHER[name][0]


def test_a_file_whose_tables_of_that_name_are_a_list_is_refused_and_stays(etc: Path, name: str) -> None:
    """Our tables would be read as the last entry's."""
    file = ours(etc, name)
    theirs = f"[[{'engine' if name == 'podman' else 'crio'}]]\n"
    file.write_text(theirs)
    with pytest.raises(ConfigError, match="has tables of its own with the names of ours"):
        configure(etc, name)
    assert file.read_text() == theirs


#: As cri-o's own packages install it: their programs are not in PATH.
PACKAGED = """
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = ["io.containers.trace-syscall"]
[crio.runtime.runtimes.runc]
runtime_root = "/run/runc"
"""
OF_CRUN = {
    "runtime_root": "/run/crun",
    "monitor_path": "/usr/libexec/crio/conmon",
    "allowed_annotations": ["io.containers.trace-syscall"],
}


@pytest.mark.parametrize("name", ["crio"])
@pytest.mark.parametrize(
    ("later", "taken"),
    [
        ("", OF_CRUN),
        ('[crio.runtime]\ndefault_runtime = "runc"\n', {"runtime_root": "/run/runc"}),
        ('[crio.runtime]\ndefault_runtime = "xpu"\n', OF_CRUN),
        (
            '[crio.runtime]\ndefault_runtime = "xpu"\n[crio.runtime.runtimes.xpu]\nmonitor_path = "/old"\n',
            OF_CRUN,
        ),
        # No monitor of a container in a virtual machine or of conmon-rs.
        (
            '[crio.runtime]\ndefault_runtime = "vm"\n[crio.runtime.runtimes.vm]\nruntime_type = "vm"\n',
            OF_CRUN,
        ),
        # A later table stands for the whole of an earlier one. The program is ours in any case.
        (
            "[crio.runtime.runtimes.crun]\ninherit_default_runtime = true\nno_sync_log = true\n",
            {"no_sync_log": True},
        ),
    ],
)
def test_cri_o_runs_ours_as_it_runs_its_default_runtime(
    etc: Path, name: str, later: str, taken: dict[str, object]
) -> None:
    ours(etc, name).with_name("10-crio.conf").write_text(PACKAGED)
    ours(etc, name).with_name("20.conf").write_text(later)
    configure(etc, name)
    entries = _blocks.parse("", ours(etc, name).read_text())["crio"]["runtime"]["runtimes"]
    assert entries == {"xpu": {"runtime_path": PROGRAM, "runtime_type": "oci", **taken}}
    before = ours(etc, name).stat().st_mtime_ns
    configure(etc, name)
    assert ours(etc, name).stat().st_mtime_ns == before
    unconfigure(etc, name)
    assert not ours(etc, name).exists()


@pytest.mark.parametrize("name", ["crio"])
@pytest.mark.parametrize(
    ("where", "is_later"),
    [("99-xpu.conf~", True), ("99-xpu.conf.d/README", True), ("50/zz", False), ("99-xpu/zz", False)],
)
def test_cri_o_reads_each_file_of_its_folder_whatever_its_name(
    etc: Path, name: str, where: str, is_later: bool
) -> None:
    configure(etc, name)
    another = ours(etc, name).parent / where
    another.parent.mkdir(exist_ok=True)
    another.write_text(ANOTHER[name][0])
    file = textfile.read(str(ours(etc, name)))
    assert str(another) in crio.sources(file)
    hidden = crio.FILE.unseen(file)
    assert (hidden is not None and hidden.what.startswith(f"{another} is read after")) is is_later


def test_a_configured_main_file_has_a_drop_in_folder_of_its_own(etc: Path, name: str) -> None:
    folder = etc / Path(engine(name).DEFAULT_PATH).parent.name
    main = etc / engine(name).FILE.main  # type: ignore[attr-defined]
    main.write_text("# mine\n")
    main.with_name("policy.json").write_text("{}")
    _write(engine(name).configure(textfile.read(str(main)), PROGRAM, False))
    assert engine(name).sources(textfile.read(str(main))) == [str(main)]
    (folder / "20.conf").write_text(ANOTHER[name][0])
    with pytest.raises(ConfigError, match=f"{folder}/20.conf is read after {main}"):
        engine(name).configure(textfile.read(str(main)), PROGRAM, False)
    _write(engines.unconfigure(engine(name), textfile.read(str(main))))
    assert main.read_text() == "# mine\n"


@pytest.mark.parametrize("name", ["podman"])
@pytest.mark.parametrize(
    ("version", "by_owner", "written"),
    [
        ((5, 4), '["runc"]', ["xpu", {"append": True}]),
        ((4, 3), '["runc"]', ["runc", "xpu"]),
        ((4, 3), None, [*podman._BY_DEFAULT, "xpu"]),
        (None, None, [*podman._BY_DEFAULT, "xpu"]),
    ],
)
def test_podman_still_reads_the_errors_of_other_runtimes(
    etc: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, int] | None,
    by_owner: str | None,
    written: list[object],
) -> None:
    says(monkeypatch, version)
    if by_owner is not None:
        (etc / "containers.conf").write_text(f"[engine]\nruntime_supports_json = {by_owner}\n")
    configure(etc, name)
    table = _blocks.parse("", ours(etc, name).read_text())["engine"]
    assert table == {"runtimes": {"xpu": [PROGRAM]}, "runtime_supports_json": written}
    before = ours(etc, name).stat().st_mtime_ns
    configure(etc, name)
    assert ours(etc, name).stat().st_mtime_ns == before


def test_crios_default_runtime_is_known_by_its_program_from_all_files(tmp_path: Path) -> None:
    folder = tmp_path / "crio.conf.d"
    folder.mkdir()

    def is_default(name: str, text: str) -> bool | None:
        (folder / name).write_text(text)
        return crio.is_default(textfile.read(str(folder / "99-xpu.conf")))

    table = "[crio.runtime.runtimes"
    assert is_default("10-crun.conf", f'{table}.crun]\nruntime_path = "/usr/bin/crun"\n') is None
    assert is_default("20-xpu.conf", f'{table}.gpu]\nruntime_path = "{PROGRAM}"\n') is False
    assert is_default("30-default.conf", '[crio.runtime]\ndefault_runtime = "gpu"\n') is True
    assert is_default("40-default.conf", '[crio.runtime]\ndefault_runtime = "crun"\n') is False
    assert is_default("50-odd.conf", "[[crio.runtime.runtimes]]\n") is False


@pytest.mark.parametrize(
    ("containerd_default", "crio_default", "known"),
    [
        (None, None, None),
        (None, "xpu", True),
        (None, "crun", False),
        ("xpu", None, True),
        ("xpu", "crun", None),
    ],
)
def test_the_device_plugin_knows_the_default_runtime_of_either_engine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    containerd_default: str | None,
    crio_default: str | None,
    known: bool | None,
) -> None:
    containerds, crios = tmp_path / "config.toml", tmp_path / "crio.conf.d" / "99-xpu.conf"
    crios.parent.mkdir()
    monkeypatch.setattr(crio, "DEFAULT_PATH", str(crios))
    if containerd_default:
        table = '[plugins."io.containerd.grpc.v1.cri".containerd'
        containerds.write_text(
            f'version = 2\n{table}]\ndefault_runtime_name = "{containerd_default}"\n'
            f'{table}.runtimes.xpu.options]\nBinaryName = "{PROGRAM}"\n'
        )
    if crio_default:
        crios.write_text(
            f'[crio.runtime]\ndefault_runtime = "{crio_default}"\n'
            f'[crio.runtime.runtimes.xpu]\nruntime_path = "{PROGRAM}"\n'
        )
    assert device_plugin.is_default_runtime(str(containerds)) is known
