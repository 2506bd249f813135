"""The forms of a configuration file, and the messages about its mistakes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_runtime.config.compile import read_config
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.errors import ConfigError

_QUOTA = "name: a, match: {annotation: team, value: a}"


def complaints(folder: Path, text: str | bytes) -> list[str]:
    file = folder / "c.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [problem.at("c.yaml") for problem in read_config(str(file))[2]]


@pytest.mark.parametrize(
    "text", ["", "\n", "# only a comment\n", "---\n", "driver:\n", "{}", "\ufeffmode: auto\n"]
)
def test_a_file_that_sets_nothing_means_the_defaults(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert read_config(str(file))[0::2] == (DEFAULTS, [])


def test_what_the_file_sets_is_taken_and_the_rest_is_default(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "low_level_runtimes: [/opt/bin/runc]\ndriver: {root: /run/driver}\noversubscribe: {memory: 2}\n"
        "policy:\n  max_memory: 50%\n  max_cores: 50.0\n  devices: [0, 1:0, GPU-1]\n"
    )
    config, lines, problems = read_config(str(file))
    assert problems == []
    assert config == DEFAULTS.replace(
        low_level_runtimes=("/opt/bin/runc",),
        driver_root="/run/driver",
        oversubscribe_memory=2.0,
        policy_max_memory="50%",
        policy_max_cores=50,
        policy_devices=("0", "1:0", "GPU-1"),
    )
    assert lines["policy_devices"] == 7


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("placment: {policy: spread}", "c.yaml:1:1: unknown key placment: did you mean placement?"),
        ("policy:\n  max_mem: 8G", "c.yaml:2:3: unknown key policy.max_mem: did you mean max_memory?"),
        ("zzz: 1", "c.yaml:1:1: unknown key zzz: the keys here are low_level_runtimes, mode, driver,"),
        ("<<: {mode: hook}", "c.yaml:1:1: unknown key <<:"),
        ("mode: hok", 'c.yaml:1:1: mode: "hok" is not allowed: use auto, hook or spec'),
        ("cores: {step: 7}", "c.yaml:1:9: cores.step: 7 is not allowed: use a percentage that divides 100"),
        ("cores: {step: 010}", 'cores.step: "010" is not allowed'),
        ("cores: {sched: fair}", 'cores.sched: "fair" is not allowed: use fixed, burst or weight'),
        ("cores: {priority: null}", "cores.priority: null is not allowed: use low, normal or high"),
        ("policy: {max_priority: 1}", "policy.max_priority: 1 is not allowed: use low, normal or high, or"),
        ("cores: {step: true}", "cores.step: true is not allowed"),
        ("driver: {root: lib}", 'driver.root: "lib" is not allowed: use auto or an absolute path'),
        ("driver: 5", "driver: 5 is not allowed: give its keys below it"),
        (
            "policy: {max_memory: 8}",
            "policy.max_memory: 8 is not allowed: give a size with its unit, such as 8G",
        ),
        ('policy: {max_memory: "8G\\n"}', "policy.max_memory:"),
        ("policy: {max_memory: 101%}", "policy.max_memory:"),
        ("policy: {max_memory: 0G}", "policy.max_memory:"),
        ("policy: {max_cores: 101}", "policy.max_cores: 101 is not allowed: give a percentage from 1 to 100"),
        ("policy: {max_count: 0}", "policy.max_count: 0 is not allowed"),
        ("policy: {devices: [0, 0]}", "policy.devices: [0, 0] is not allowed"),
        ("policy: {devices: some}", 'policy.devices: "some" is not allowed: use all, or a list'),
        ("policy: {quotas: {}}", "policy.quotas: {} is not allowed: give a list of at most 64 quotas"),
        ("policy: {quotas: [1]}", "policy.quotas[0]: 1 is not allowed: give name, match, and one or more"),
        (f"policy: {{quotas: [{{{_QUOTA}}}]}}", "is not allowed: give name, match, and one or more"),
        (f"policy: {{quotas: [{{{_QUOTA}, max_slice: 1, max_cores: 5}}]}}", "did you mean max_slices?"),
        (f"policy: {{quotas: [{{{_QUOTA}, max_slices: 0}}]}}", "policy.quotas[0].max_slices: 0 is not"),
        (f"policy: {{quotas: [{{{_QUOTA}, max_memory: 50%}}]}}", 'max_memory: "50%" is not allowed: give a'),
        ("policy: {quotas: [{name: a b, match: {user_namespace: true}, max_slices: 1}]}", "quotas[0].name:"),
        ("policy: {quotas: [{name: a, match: {label: x}, max_slices: 1}]}", "use {annotation: KEY, value:"),
        ("policy: {quotas: [{name: a, match: {user_namespace: false}, max_slices: 1}]}", "[0].match:"),
        ('policy: {quotas: [{name: a, match: {annotation: a, value: "\\e"}, max_slices: 1}]}', "[0].match:"),
        (
            f"policy: {{quotas: [{{{_QUOTA}, max_slices: 1}}, {{{_QUOTA}, max_slices: 2}}]}}",
            "policy.quotas: two have the name a: give each its own",
        ),
        ("cdi: {sizes: {}}", "cdi.sizes: {} is not allowed: give a list of at most 64 sizes"),
        ("cdi: {sizes: [{name: 4g}]}", "is not allowed: give name, and one or more of mem, cores and count"),
        ("cdi: {sizes: [{name: all, mem: 4G}]}", 'cdi.sizes[0].name: "all" is not allowed'),
        ("cdi: {sizes: [{name: slice, mem: 4G}]}", "cdi.sizes[0].name:"),
        ("cdi: {sizes: [{name: '0', mem: 4G}]}", "cdi.sizes[0].name:"),
        ("cdi: {sizes: [{name: gpu-a, mem: 4G}]}", "cdi.sizes[0].name:"),
        ("cdi: {sizes: [{name: a_b, mem: 4G}]}", "cdi.sizes[0].name:"),
        ("cdi: {sizes: [{name: 4g, mem: 4}]}", "cdi.sizes[0].mem: 4 is not allowed: give a size"),
        ("cdi: {sizes: [{name: a, cores: 33}]}", "cdi.sizes[0].cores: 33 is not allowed: give a multiple"),
        ("cdi: {sizes: [{name: a, mem: 1G}, {name: a, cores: 5}]}", "cdi.sizes: two have the name a"),
        ("oversubscribe: {memory: 0.9}", "oversubscribe.memory: 0.9 is not allowed: give a factor from 1.0"),
        ("oversubscribe: {memory: .nan}", "oversubscribe.memory:"),
        ("oversubscribe: {memory: .inf}", "oversubscribe.memory:"),
        ("enforcement: {allow_unenforced: [core]}", 'enforcement.allow_unenforced[0]: "core" is not allowed'),
        (
            "kubernetes: {require_assignment: true}",
            "c.yaml:1:14: kubernetes.require_assignment: true is not allowed without kubernetes.node_name",
        ),
        ("kubernetes: {node_name: Node_1}", 'kubernetes.node_name: "Node_1" is not allowed: give the name'),
        ("kubernetes: {keys: keys}", 'kubernetes.keys: "keys" is not allowed: give the absolute path'),
        ("kubernetes: {placement: pod}", 'kubernetes.placement: "pod" is not allowed: use node or extender'),
        (
            "kubernetes: {memory_unit: 1.5GiB}",
            'kubernetes.memory_unit: "1.5GiB" is not allowed: give a',
        ),
        ("kubernetes: {memory_unit: 0MiB}", "kubernetes.memory_unit:"),
        ("kubernetes: {aliases: [nvidia.com/gpu]}", 'kubernetes.aliases[0]: "nvidia.com/gpu" is not allowed'),
        ("low_level_runtimes: []", "low_level_runtimes: [] is not allowed: give a list of names"),
        ("low_level_runtimes: [bin/runc]", 'low_level_runtimes[0]: "bin/runc" is not allowed: give a name'),
        ('low_level_runtimes: ["/bin/runc\\nruntime=/x"]', "low_level_runtimes[0]:"),
        ('low_level_runtimes: ["/bin/runc\\n"]', "low_level_runtimes[0]:"),
        ("- 1", "c.yaml:1:1: [1] is not allowed: the file holds `key: value` lines"),
        ("mode: hook\n\nmode: spec", "c.yaml:3:1: mode is given twice (first on line 1)"),
        ("driver: {root: /, root: /}", "c.yaml:1:19: driver.root is given twice (first on line 1)"),
        ("mode: [a\nx: 1", "c.yaml:2:2: not YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("mode: auto\n---\nmode: auto", "c.yaml:2:1: not YAML: expected a single document"),
        ("\tmode: auto", "c.yaml:1:1: not YAML: while scanning for the next token, found character '\\t'"),
        ("x: &a [1]\ny: *a", "c.yaml:2:4: YAML aliases (*name) are not used here"),
        ("mode: !!python/object/apply:os.getpid []", "c.yaml:1:7: the YAML tag"),
        ("mode: !mine hook", "c.yaml:1:7: the YAML tag !mine is not used here"),
        ("? [a]\n: 1", "c.yaml:1:3: a key must be a word"),
        ("mode: auto\nx: \x01", "c.yaml:2:4: character 1 is not allowed"),
        (b"mode: auto\nx: \xff", "c.yaml:2:4: not UTF-8 text"),
        ("a: " + "[" * 3000 + "]" * 3000, "c.yaml:1:53: nested too deeply"),
        ("a: " + "[" * 60_000, "c.yaml:1:53: nested too deeply"),
        ("cores: {step: " + "9" * 9000 + "}", "cores.step:"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_is_allowed(
    tmp_path: Path, text: str | bytes, told: str
) -> None:
    found = complaints(tmp_path, text)
    assert len(found) == 1
    assert told in found[0]
    assert len(found[0]) < 400


def test_quotas_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        f"policy:\n  quotas:\n  - {{{_QUOTA}, max_slices: 2.0, max_memory: 8G}}\n"
        "  - {name: b, match: {user_namespace: 100000.0}, max_cores: 100}\n"
    )
    config, _, problems = read_config(str(file))
    assert problems == []
    first, second = config.policy_quotas
    assert repr(first["max_slices"]) == "2" and first["max_memory"] == "8G"
    assert repr(second["match"]["user_namespace"]) == "100000"


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = complaints(tmp_path, "mode: x\nbogus: 1\npolicy:\n  max_count: none\n  devcies: all\n")
    assert [line.split(": ")[0] for line in found] == ["c.yaml:1:1", "c.yaml:2:1", "c.yaml:4:3", "c.yaml:5:3"]


def test_a_bomb_of_aliases_is_refused_before_it_is_unfolded(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    found = complaints(tmp_path, "\n".join([*lines, "low_level_runtimes: *a29"]))
    assert all("aliases" in line for line in found)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"more than 65536 bytes\): shorten it"):
        complaints(tmp_path, "# " + "x" * 70_000)


@pytest.mark.parametrize("kind", ["fifo", "folder", "nothing", "device"])
def test_a_file_that_is_not_regular_is_refused_without_waiting_for_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "c.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(str(path))


@given(st.binary(max_size=200) | st.text("abmode: [],{}&*!|>\n-?\"'#%@\t0.9", max_size=80).map(str.encode))
@settings(max_examples=300)
def test_no_bytes_at_all_make_the_reader_fail_in_another_way(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    for line in complaints(tmp_path_factory.getbasetemp(), raw):
        assert line.startswith("c.yaml:") and "\n" not in line
