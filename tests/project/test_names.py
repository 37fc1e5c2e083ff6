"""Names of variables say what they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import rooms

# A result of a search is a match, a path or an answer, and has that for a name.
_SAYS_NOTHING = frozenset({"found", "told", "said", "seen", "one"})


def _names(path: Path) -> Iterator[tuple[int, str]]:
    """Variables and parameters of a module; fields of classes, which files and answers show, are left out."""
    tree = ast.parse(path.read_text())
    fields = {
        target
        for item in ast.walk(tree)
        if isinstance(item, ast.ClassDef)
        for line in item.body
        if isinstance(line, ast.AnnAssign)
        for target in ast.walk(line.target)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


@pytest.mark.parametrize("folder", ["runtime", "containers"])
def test_variables_have_the_name_of_the_thing(folder: str) -> None:
    assert not [
        f"{path.relative_to(rooms.ROOT)}:{line}: {name}"
        for path in sorted((rooms.ROOT / folder).rglob("*.py"))
        for line, name in _names(path)
        if name in _SAYS_NOTHING
    ]
