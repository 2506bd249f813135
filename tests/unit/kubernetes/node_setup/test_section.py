"""The section `kubernetes` in a node's config.yaml: ours is in force, and the owner's file comes back."""

from __future__ import annotations

import pytest
import yaml

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.node_setup import section

OURS = {"require_assignment": True, "node_name": "n1", "aliases": []}
THEIRS = """# The owner's.
mode: hook

# Why this is so.
kubernetes:
  # Not yet.
  require_assignment: false

# Of placement.
placement: {policy: spread}
"""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# Only a comment.\n",
        "mode: hook\n",
        "mode: hook",
        THEIRS,
        "kubernetes: {require_assignment: false}\nmode: spec\n",
        "mode: spec\nkubernetes:\n  require_assignment: false\n",
        "kubernetes:\nmode: spec\n",
    ],
)
def test_our_section_is_in_force_and_the_earlier_one_comes_back(text: str) -> None:
    before = yaml.safe_load(text) or {}

    now = section.written(text, OURS, "config.yaml")

    assert yaml.safe_load(now) == {**before, "kubernetes": OURS}
    assert section.written(now, OURS, "config.yaml") == now
    assert (
        yaml.safe_load(section.written(now, {**OURS, "node_name": "n2"}, "config.yaml"))["kubernetes"][
            "node_name"
        ]
        == "n2"
    )
    after = section.without(now, "config.yaml")
    assert (yaml.safe_load(after) or {}) == before
    assert sorted(after.split()) == sorted(text.split())
    if "kubernetes" not in text:
        assert after.rstrip("\n") == text.rstrip("\n")


def test_a_file_of_another_form_is_refused_and_not_changed() -> None:
    for text in ("{mode: hook}\n", "- mode\n", "mode: [\n", section.BEGIN, section.END + section.BEGIN):
        with pytest.raises(ConfigError, match=r"config\.yaml"):
            section.written(text, OURS, "config.yaml")
