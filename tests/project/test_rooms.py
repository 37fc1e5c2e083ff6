"""The picture of the rooms, and that its arrows lead one way."""

from __future__ import annotations

import re

import pytest
from tools import rooms


def test_picture_in_architecture_is_that_of_the_imports() -> None:
    page = rooms.PAGE.read_text()
    assert rooms.written(page) == page, "python -m tools.rooms"


@pytest.mark.parametrize("package", rooms.PACKAGES)
def test_rooms_have_no_cycle(package: str) -> None:
    assert rooms.reduced(rooms.rooms(package, rooms.PACKAGES[package]))


def test_cycle_is_named() -> None:
    with pytest.raises(ValueError, match="a -> b -> a"):
        rooms.reduced({"a": {"b"}, "b": {"a"}})


_FILE = re.compile(r"``((?!config|swap_test)[a-z_/]+\.py)``")  # those two are files of an export
_MODULE = re.compile(r":(?:mod|class|func|data|meth):`~?(fairlead(?:_build)?(?:\.\w+)+)`")
_NEAR = ("runtime", "containers", "runtime/fairlead", "containers/fairlead_build", ".")


@pytest.mark.parametrize("folder", ["runtime", "containers", "tools"])
def test_docstrings_name_files_and_modules_that_exist(folder: str) -> None:
    dead: list[str] = []
    for path in sorted((rooms.ROOT / folder).rglob("*.py")):
        text = path.read_text()
        near = [path.parent, *(rooms.ROOT / name for name in _NEAR)]
        dead += [
            f"{path.name}: {name}"
            for name in _FILE.findall(text)
            if not any((place / name).is_file() for place in near)
        ]
        dead += [f"{path.name}: {name}" for name in _MODULE.findall(text) if not _exists(name)]
    assert not dead


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, or a name in the text of one."""
    parts = name.split(".")
    for top in ("runtime", "containers"):
        for end in range(len(parts), 0, -1):
            place = rooms.ROOT.joinpath(top, *parts[:end])
            file = place.with_suffix(".py") if end > 1 else place / "__init__.py"
            file = file if file.is_file() else place / "__init__.py"
            if file.is_file():
                rest = parts[end:]
                return not rest or re.search(rf"\b{rest[0]}\b", file.read_text()) is not None
    return False
