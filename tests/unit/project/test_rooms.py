"""The picture of the rooms, and that its arrows lead one way."""

from __future__ import annotations

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
