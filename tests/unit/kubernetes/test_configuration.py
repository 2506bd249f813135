"""The ConfigMap, which nodes and extender read alike: both refuse the same, in the same words."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from xpu_runtime.cli.kubernetes.extender import extender
from xpu_runtime.cli.kubernetes.install_node import install_node
from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes import configuration
from xpu_runtime.kubernetes.resources import Resources


@pytest.fixture
def config_map(tmp_path: Path) -> Path:
    """The file as the kubelet mounts a ConfigMap's key: by two links."""
    folder = tmp_path / "configuration"
    (folder / "..2026").mkdir(parents=True)
    (folder / "..data").symlink_to("..2026")
    (folder / "config.yaml").symlink_to("..data/config.yaml")
    return folder / "config.yaml"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "kubernetes: {memory_unit: 1G}",
            ':1:14: kubernetes.memory_unit: "1G" is not allowed: give a whole number of MiB or GiB, such as '
            "1GiB or 256MiB",
        ),
        ("kubernetes: {aliases: [aliyun]}", ':1:24: kubernetes.aliases[0]: "aliyun" is not allowed: use '),
        (
            "kubernetes:\n  memory_units: 1GiB",
            ":2:3: unknown key kubernetes.memory_units: did you mean memory_unit?",
        ),
        (
            "kubernetes: {colour: red}",
            ":1:14: unknown key kubernetes.colour: the keys here are require_assignment, placement, ",
        ),
        ("kubernets: {memory_unit: 1GiB}", ":1:1: unknown key kubernets: "),
        (
            "kubernetes: {}\ncores: {step: 5}",
            ":2:1: cores is each node's own: write it there, into /etc/xpu/config.yaml",
        ),
        (
            "kubernetes: {node_name: n1}",
            ":1:14: kubernetes.node_name is each node's own: leave it out, it is written there",
        ),
        (
            "kubernetes: {}\nplacement: {policy: sprad}",
            ':2:13: placement.policy: "sprad" is not allowed: use ',
        ),
        ("kubernetes: {}\nplacement: {polcy: spread}", ": unknown key placement.polcy: did you mean policy?"),
        (
            "kubernetes: {placement: node}\nplacement: {policy: spread}",
            ": placement.policy is the extender's, and kubernetes.placement is not extender: write it into ",
        ),
        ("kubernetes: {placement: node, placement: extender}", " kubernetes.placement is given twice"),
        ("{}", " has no section kubernetes: write it as the chart does"),
        ("", " has no section kubernetes: "),
        ("[]", ":1:1: [] is not allowed: give `kubernetes:` and its keys below it"),
        ("kubernetes: [", ": not YAML: "),
    ],
)
@pytest.mark.parametrize("command", [extender, install_node])
def test_nodes_and_extender_refuse_an_error_and_name_the_config_map_and_its_key(
    config_map: Path, command: object, text: str, told: str
) -> None:
    config_map.resolve().parent.joinpath("config.yaml").write_text(text)

    result = CliRunner().invoke(command, ["--configuration", str(config_map)])  # type: ignore[arg-type]

    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith("ConfigMap xpu, key config.yaml")
    assert told in str(result.exception)


def test_a_file_that_is_no_config_map_s_is_named_itself(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("kubernetes: {memory_unit: 1G}")

    with pytest.raises(ConfigError) as refused:
        configuration.read(str(path))

    assert str(refused.value).startswith(f"{path}:1:14: kubernetes.memory_unit")


def test_missing_values_have_the_nodes_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("kubernetes: {require_assignment: true}")

    assert configuration.read(str(path)).resources == Resources(1 << 30, ())
