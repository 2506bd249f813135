"""The files and names in the developers' pages and the packages' docstrings exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support import REPOSITORY

SOURCE = REPOSITORY / "src" / "xpu_runtime"
PAGES = [REPOSITORY / "ARCHITECTURE.md", *sorted((REPOSITORY / "docs/developers").glob("*.md"))]
PACKAGES = sorted(SOURCE.rglob("*/__init__.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_file_that_a_page_names_is_there(page: Path) -> None:
    roots = (REPOSITORY, SOURCE, REPOSITORY / "sim/python", REPOSITORY / "native/interposer/nvidia/cuda")
    named = re.findall(r"`([\w./*-]+/[\w*.-]+\.(?:py|c|h|txt|json|md|sh))`", page.read_text())
    gone = [
        name
        for name in named
        if "NAME" not in name and not name.startswith("/") and not any(any(root.glob(name)) for root in roots)
    ]
    assert gone == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.parent.name)
def test_each_module_that_a_packages_docstring_names_is_there(package: Path) -> None:
    text = ast.get_docstring(ast.parse(package.read_text())) or ""
    roots = (package.parent, SOURCE)
    named = re.findall(r"(?<![\w/])[\w*/]+\.py\b", text)
    assert [name for name in named if not any(any(root.glob(name)) for root in roots)] == []
