"""Files of podman and cri-o as people have them: our file beside them leaves each as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.drop_in_trees import Tree, snapshot, trees
from xpu_runtime import engines, textfile
from xpu_runtime.engines import engine
from xpu_runtime.errors import ConfigError

PROGRAM = "/usr/bin/xpu-container-runtime"
TREES = [
    pytest.param(name, tree, id=f"{name}: {tree.title}")
    for name, file in (("podman", "containers.conf.txt"), ("crio", "crio.conf.txt"))
    for tree in trees(file)
]


@pytest.mark.parametrize("default", [False, True], ids=["beside", "as default"])
@pytest.mark.parametrize(("name", "tree"), TREES)
def test_all_other_files_stay_and_the_default_that_counts_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, tree: Tree, default: bool
) -> None:
    known = engine(name)
    read = vars(known.FILE)  # type: ignore[attr-defined]
    for when in ("before", "after"):
        monkeypatch.setitem(read, when, tuple(f"{tmp_path}{path}" for path in read[when]))
    tree.write(tmp_path)
    path = f"{tmp_path}{known.DEFAULT_PATH}"
    files, decides = snapshot(tmp_path), f"{tmp_path}/{tree.decides}"
    if default and ("/zz-" in decides or "/root/" in decides):
        with pytest.raises(ConfigError, match=f"{decides} is read after {path}, and has another"):
            known.configure(textfile.read(path), PROGRAM, default)
        return
    (edit,) = known.configure(textfile.read(path), PROGRAM, default)
    textfile.write(edit.file, edit.text)
    assert [note.split()[0] for note in edit.notes] == ([decides] if default and tree.decides else [])
    made = snapshot(tmp_path)
    assert set(made) - set(files) == {known.DEFAULT_PATH[1:]}
    assert {at: made[at] for at in files} == files
    ours = textfile.read(path)
    assert known.runtime_path(ours) == PROGRAM and path in known.sources(ours)
    (edit,) = engines.unconfigure(known, ours)
    textfile.write(edit.file, edit.text)
    assert snapshot(tmp_path) == files
