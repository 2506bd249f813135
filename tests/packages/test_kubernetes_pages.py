"""The pages on Kubernetes agree with the code: resources, versions and commands."""

from __future__ import annotations

import json
import re
import subprocess

import yaml

from support import REPOSITORY
from xpu_runtime import version
from xpu_runtime.kubernetes.device_plugin.offer import Card, units
from xpu_runtime.kubernetes.resources import Resources

from .chart import (
    MANIFESTS,
    documents,
    ours,
)


def test_a_node_offers_the_resources_that_the_page_shows() -> None:
    page = (REPOSITORY / "docs/kubernetes.md").read_text()
    (mib,) = re.findall(r"^    gpu-1 .* (\d+)/\1 MiB ", page, re.MULTILINE)
    resources = Resources()
    card = Card("GPU-0", int(mib) << 20, int(mib) << 20)

    offered = {name: str(units(name, card, resources)) for name in sorted(resources.names)}

    assert json.dumps(offered, separators=(",", ":"))[1:] in page


def test_versions_are_ours() -> None:
    chart = yaml.safe_load((MANIFESTS / "chart" / "Chart.yaml").read_text())

    assert {chart["version"], chart["appVersion"]} == {version.VERSION}


def test_the_pages_uninstallation_takes_the_image_from_the_named_registry() -> None:
    page = (REPOSITORY / "docs/kubernetes.md").read_text()
    (line,) = re.findall(r"^ *(sed .*?uninstall\.yaml)", page, re.MULTILINE)

    done = subprocess.run(
        ["sh", "-euc", line.replace("REGISTRY", "registry.example.com:5000/gpus")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ours(documents(done.stdout)) == {
        f"registry.example.com:5000/gpus/xpu-kubernetes:{version.VERSION}"
    }
