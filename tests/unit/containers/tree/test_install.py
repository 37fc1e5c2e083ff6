"""What runs inside a tree to install its wheels, as a program of its own: which are unpacked next to the others."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead_build.tree.debian import INSIDE


@pytest.fixture
def largest() -> Callable[[list[Path]], str]:
    # As a module it would begin to install.
    text = (INSIDE / "install.py").read_text().rpartition("\nmain()")[0]
    script: dict[str, Any] = {"__file__": str(INSIDE / "install.py")}
    exec(compile(text, "install.py", "exec"), script)
    found: Callable[[list[Path]], str] = script["largest"]
    return found


def _wheel(folder: Path, name: str, size: int, *files: str) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.writestr(file, b"x" * size)
    return path


def test_largest_wheel_is_unpacked_apart(largest: Any, tmp_path: Path) -> None:
    small, large = (
        _wheel(tmp_path, "one", 1, "one/a.py"),
        _wheel(tmp_path, "Large.er_x", 999, "big/a.py"),
    )
    assert largest([large, small]) == "large-er-x"
    assert largest([large]) == "large-er-x"


def test_wheels_that_share_a_file_are_unpacked_in_their_order(largest: Any, tmp_path: Path) -> None:
    small, large = (
        _wheel(tmp_path, "one", 1, "shared/a.py"),
        _wheel(tmp_path, "two", 9, "shared/a.py"),
    )
    assert largest([small, large]) == ""
