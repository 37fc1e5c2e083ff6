"""What a library declares, and what callers are held to."""

from __future__ import annotations

from typing import Literal

import pytest
from tests.support import distribution

from fairlead.base.errors import FairleadError
from fairlead.bridge.library import Block, Library, Tiles, declared, described

LIBRARY = Library("tried", "Functions of this test")


@LIBRARY.function
def solve(a: Block, b: Block | None = None, *, k: int, tol: float = 1e-6, method: Literal["x", "y"] = "x",
          name: str | None = None, exact: bool = False) -> dict:  # fmt: skip
    """Solves it."""
    return {}


def test_the_signature_is_what_callers_are_held_to() -> None:
    function = LIBRARY.get("solve")
    assert function.inputs == {"a": False, "b": True}
    expected = "solve(a, b, *, k: int, tol: float = 1e-06, method: 'x' | 'y' = 'x', name: str | None = None, exact: bool = False)"
    assert function.signature == expected
    made = function.checked("tried", {"k": 3, "tol": 1})
    assert made == {"k": 3, "tol": 1.0, "method": "x", "name": None, "exact": False}
    assert isinstance(made["tol"], float)


def test_annotations_say_which_layouts_a_matrix_may_have() -> None:
    def either(
        a: Block | Tiles, b: Tiles, c: Block | None = None, d: Tiles | None = None, e=None
    ) -> dict:
        return {}

    rows, cyclic = frozenset({"rows"}), frozenset({"block-cyclic"})
    expected = {"a": rows | cyclic, "b": cyclic, "c": rows, "d": cyclic, "e": rows}
    assert declared(either).layouts == expected


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, "needs the parameter k"),
        ({"k": 1.0}, "does not take 1.0"),
        ({"k": True}, "does not take True"),
        ({"k": 1, "method": "z"}, "does not take 'z'"),
        ({"k": 1, "exact": 1}, "does not take 1"),
        ({"k": 1, "tol": None}, "does not take None"),
        ({"k": 1, "tool": 1.0}, "has no parameter tool"),
    ],
)
def test_other_parameters_are_refused(params: dict, words: str) -> None:
    with pytest.raises(FairleadError, match=words):
        LIBRARY.get("solve").checked("tried", params)


def test_a_parameter_without_a_type_is_refused_when_it_is_declared() -> None:
    def wrong(a: Block, *, k) -> dict:
        return {}

    with pytest.raises(TypeError, match="wrong: k"):
        declared(wrong)


def test_a_library_that_cannot_be_loaded_does_not_hide_the_others(tmp_path) -> None:
    made = distribution.install(
        tmp_path, "fairlead.bridge", "broken", "LIBRARY", "import nothing_like_it"
    )
    text = made.fairlead("bridge", "libraries")
    assert "linalg: Linear algebra" in text and "broken" in text and "nothing_like_it" in text
    assert {one["name"] for one in described()} >= {"linalg", "scalapack", "slepc"}
