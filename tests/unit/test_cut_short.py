"""Documents that were cut short (a full disk, a crash, another program), read as shim and hook read them.

The reader is a bare `python3 -IS`, in which the C scanner behaves otherwise than where `json` is loaded.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support import REPOSITORY, STAND_INS

SOURCE = REPOSITORY / "src"

_BARE = f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n"

#: Every kind of value and of token, so that each prefix ends elsewhere in the scanner.
_DOCUMENT = {
    "text": 'quote " backslash \\ escape \u20ac',
    "numbers": [0, -1, 2.5, 1e300],
    "words": [True, False, None],
    "nested": {"a": {"b": [[], {}]}},
}

_EVERY_PREFIX = """
from xpu_runtime import jsonlite
text = sys.stdin.read()
for end in range(len(text)):
    for read in (jsonlite.loads, jsonlite.loads_first):
        try:
            read(text[:end])
        except ValueError as error:
            assert str(error)
        else:
            raise SystemExit(f"read {text[:end]!r}")
jsonlite.loads(text)
"""


def bare(code: str, *words: object, text: str = "") -> str:
    """A bare interpreter's output for `code`; fails the test if it ends with an error."""
    done = subprocess.run(
        ["/usr/bin/python3", "-IS", "-c", _BARE + code, *map(str, words)],
        input=text,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_every_prefix_of_a_document_is_a_value_error() -> None:
    bare(_EVERY_PREFIX, text=json.dumps(_DOCUMENT))


def test_the_error_says_where_the_document_ends() -> None:
    code = (
        "from xpu_runtime import jsonlite\ntry: jsonlite.loads(sys.argv[1])\nexcept ValueError as e: print(e)"
    )
    assert "char 8" in bare(code, '{"a": 12')
    assert "nested too deeply" in bare(code, "[" * 100_000)


_EVERY_STATE = """
from xpu_runtime.errors import SpecError
from xpu_runtime.oci import state
data = sys.stdin.buffer.read()
for end in range(len(data)):
    try:
        state.parse(data[:end])
    except SpecError as error:
        assert "the container state on standard input cannot be read" in str(error)
    else:
        raise SystemExit(f"read {data[:end]!r}")
assert state.parse(data).pid == 7
"""


def test_every_prefix_of_a_state_is_refused_in_plain_words() -> None:
    state = {
        "ociVersion": "1.0.2",
        "id": "x",
        "status": "created",
        "pid": 7,
        "bundle": "/b",
        "annotations": {},
    }
    bare(_EVERY_STATE, text=json.dumps(state))


_EVERY_SPEC = """
from xpu_runtime.errors import SpecError
from xpu_runtime.oci import spec
from xpu_runtime.request import source
path, data = sys.argv[1], sys.stdin.buffer.read()
for end in range(len(data)):
    with open(path, "wb") as file:
        file.write(data[:end])
    try:
        spec.read(path)
    except SpecError as error:
        assert "cannot read" in str(error)
    else:
        raise SystemExit(f"read {data[:end]!r}")
    assert not source.asks_for_nothing(path), data[:end]
"""


def test_no_prefix_of_a_spec_is_read_or_taken_for_one_that_asks_for_nothing(tmp_path: Path) -> None:
    spec = {
        "ociVersion": "1.0.2",
        "annotations": {"a": "b"},
        "process": {"args": ["a"], "env": ["PATH=/bin"]},
    }
    bare(_EVERY_SPEC, tmp_path / "config.json", text=json.dumps(spec))


_EVERY_CACHE = """
import os
from xpu_runtime import paths
from xpu_runtime.config.low_level_runtime import low_level_runtime
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.vendors import discovery, inventory, registry

os.environ["XPU_RUN_DIR"] = sys.argv[1]
os.environ["XPU_CONFIG"] = sys.argv[1] + "/config.yaml"
node = inventory.Node("/dev/a", 1, 2)
card = inventory.Device("0", "GPU-0", "Tesla T4", 1 << 30, (node,), "one", None, None, (("a", "b"),))
library = inventory.Library("lib", "/a", "b", "compute", ("c", "d"))
driver = inventory.Driver("one", "1", "a driver", (("e", "f"),), (("", node),), (library,), ("driver",))
found = inventory.Inventory("/", False, (card,), (driver,), (("/nowhere", None),))
asked = []
registry.discover = lambda root, simulated: asked.append(root) or found
path = paths.in_run_dir("inventory.json")
discovery.refresh("/", False)
with open(path, "rb") as file:
    whole = file.read()
for end in range(len(whole)):
    with open(path, "wb") as file:
        file.write(whole[:end])
    asked.clear()
    assert discovery.load(DEFAULTS) == found
    assert asked == ["/"], whole[:end]
    with open(path, "rb") as file:
        assert file.read() == whole

config = DEFAULTS.replace(low_level_runtimes=(sys.argv[2],))
low_level_runtime(config)
path = paths.in_run_dir("runtimes.json")
with open(path, "rb") as file:
    whole = file.read()
import xpu_runtime.config.probe as probe
said = probe.version_text(sys.argv[2])
probe.version_text = lambda path: said
for end in range(len(whole)):
    with open(path, "wb") as file:
        file.write(whole[:end])
    assert low_level_runtime(config).path == sys.argv[2]
    with open(path, "rb") as file:
        assert file.read() == whole, whole[:end]
"""


def test_an_inventory_and_a_list_of_runtimes_that_were_cut_short_are_made_anew(tmp_path: Path) -> None:
    bare(_EVERY_CACHE, tmp_path, STAND_INS / "runc")
