"""The package as it is shipped."""

from __future__ import annotations

import tomllib
from pathlib import Path

import tenxgraph_temporal

ROOT = Path(__file__).parents[2]
NOT_SHIPPED = {"tests", "bench", "docs", "build"}


def test_every_package_is_named() -> None:
    named = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {"tenxgraph_temporal"}
    for file in ROOT.rglob("__init__.py"):
        parts = file.parent.relative_to(ROOT).parts
        if parts and parts[0] not in NOT_SHIPPED and not any(part.startswith(".") for part in parts):
            found.add(".".join(("tenxgraph_temporal", *parts)))
    assert found == named


def test_the_public_names_are_sorted_and_there() -> None:
    names = tenxgraph_temporal.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    for name in names:
        exported = getattr(tenxgraph_temporal, name)
        assert isinstance(exported, str) or exported.__doc__, f"{name} has no docstring"
