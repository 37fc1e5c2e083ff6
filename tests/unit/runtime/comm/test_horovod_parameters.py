"""Parameters of Horovod's calls, by place and by name."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from fairlead.comm.dropin.parameters import WITHOUT_MEANING, takes


@takes("value name device_dense op process_set")
def call(value: Any, op: str = "Average", **more: Any) -> tuple[Any, str, dict[str, Any]]:
    return value, op, more


def test_place_and_name_mean_the_same() -> None:
    assert call(1, "a", "/cpu:0", "Sum") == call(op="Sum", name="a", value=1)
    assert call(1, "a", "/cpu:0", "Sum") == (1, "Sum", {"name": "a"})


def test_default_is_that_of_the_function() -> None:
    assert call(1) == (1, "Average", {})


@pytest.mark.parametrize(
    ("args", "named", "words"),
    [
        ((1,), {"proces_set": 2}, "call() got an unexpected keyword argument 'proces_set'"),
        ((), {}, "call() missing a required argument: 'value'"),
        ((1, 2, 3, 4, 5, 6), {}, "call() too many positional arguments"),
        ((1,), {"value": 2}, "call() multiple values for argument 'value'"),
    ],
)
def test_what_horovod_does_not_take_is_refused(args: Any, named: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        call(*args, **named)
    assert str(caught.value) == words


def test_what_has_no_meaning_does_not_reach_the_function() -> None:
    assert "device_dense" in WITHOUT_MEANING
    assert call(1, device_dense="/cpu:0") == (1, "Average", {})


def test_help_shows_horovods_parameters() -> None:
    shown = "(value, name=None, device_dense=None, op='Average', process_set=None)"
    assert str(inspect.signature(call)) == shown
