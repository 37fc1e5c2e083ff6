"""Space files: what they choose, and what is wrong with them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.tune import passing
from fairlead.tune.grid import points
from fairlead.tune.space import Space, read

SPACE = """
[parameters.momentum] # stands before what it depends on
low = 0.0
high = 0.9
step = 0.3
when = { optimizer = ["sgd"] }
[parameters.optimizer]
choices = ["adam", "sgd"]
[parameters.layers]
low = 1
high = 2
[parameters.units]
low = 8
high = 16
step = 8
length = "layers"
"""


class Chooser:
    """Chooses at random."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def suggest_float(self, name: str, low: float, high: float, **how: Any) -> float:
        return self.random.uniform(low, high)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, **how: Any) -> int:
        return self.random.randrange(low, high + 1, step)

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        return self.random.choice(choices)


def _read(tmp_path: Path, text: str) -> Space:
    path = tmp_path / "space.toml"
    path.write_text(text)
    return read(path)


def test_conditional_parameters_are_there_only_where_their_condition_holds(tmp_path: Path) -> None:
    space = _read(tmp_path, SPACE)
    seen = [space.ask(Chooser(seed)) for seed in range(40)]
    assert {("momentum" in chosen, chosen["optimizer"]) for chosen in seen} == {
        (False, "adam"),
        (True, "sgd"),
    }
    assert all(len(chosen["units"]) == chosen["layers"] for chosen in seen)
    assert {len(chosen["units"]) for chosen in seen} == {1, 2}
    assert list(seen[0]) == [name for name in space.parameters if name in seen[0]]


def test_grid_has_each_way_through_the_choices_once(tmp_path: Path) -> None:
    found = points(_read(tmp_path, SPACE))
    # adam, or sgd with 4 momenta; 1 layer of 2 widths, or 2 layers of 2 each
    assert len(found) == (1 + 4) * (2 + 4)
    assert len({tuple(sorted(point.items())) for point in found}) == len(found)
    momenta = {round(point["momentum"], 9) for point in found if "momentum" in point}
    assert momenta == {0.0, 0.3, 0.6, 0.9}


def test_grid_of_a_continuous_parameter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FairleadError, match="a grid cannot have `x`"):
        points(_read(tmp_path, "[parameters.x]\nlow = 0.0\nhigh = 1.0\n"))


WRONG = {
    "[parameters]\n": "the space has no parameter",
    "": "the space has no parameter",
    "[parameters.x]\nlow = 2\nhigh = 1\n": "the bounds of `x` are reversed",
    "[parameters.x]\nlow = 0\nhigh = 1\nlog = true\n": "cannot begin at 0 on a logarithmic scale",
    "[parameters.x]\nlow = 1\nhigh = 9\nlog = true\nstep = 2\n": "has a step on a logarithmic scale",
    "[parameters.x]\nlow = 1\n": "`x` has no high",
    "[parameters.x]\nchoices = [1]\nlow = 1\n": "`x` has choices and low",
    "[parameters.x]\nchoises = [1]\n": "unknown key `choises` in [parameters.x]",
    "[parameters.x]\nchoices = []\n": "`parameters.x.choices` cannot be []",
    "[parameters.x]\nlow = 0\nhigh = 1\nwhen = { y = 1 }\n": "there is no parameter `y`",
    "[parameters.x]\nlow = 0\nhigh = 1\nlength = 'x'\n": "`x` depends on itself",
    "[parameters.x]\nchoices = ['a']\n[parameters.y]\nchoices = [1]\nwhen = { x = 'b' }\n": "`x` is never 'b'",
    "[parameters.x]\nlow = 0.5\nhigh = 1.5\n[parameters.y]\nchoices = [1]\nlength = 'x'\n": "cannot be the length",
    "[parameters.x]\nchoices = [1]\n[objectives.loss]\nprinted = 'loss'\n": "'loss' has no group",
    "[parameters.x]\nchoices = [1]\n[objectives.loss]\nprinted = '(loss'\n": "is not a regular expression",
    "[parameters.x]\nchoices = [1]\n[objectives.loss]\ngoal = 'minimise'\n": "`objectives.loss.goal` cannot be 'minimise'",
    "[parameters.x]\nchoices = [1]\n[objectives.loss]\nkey = 'a'\n": "has a key and no file",
    "[parameters.x]\nchoices = [1]\n[objectives.a]\nprinted = '(a)'\nwritten = 'b'\n": "both printed and written",
    "parameters = 3\n": "the space has no parameter",
    "[parameters.x]\nlow = 'a'\nhigh = [1]\nwhen = 3\n": "`parameters.x.low",
    "parameters.x = 1\n[parameters.y]\nlow = 0\nhigh = 1\nwhen = { x = 1 }\nlength = 'x'\n": "`parameters.x` cannot be 1",
}


@pytest.mark.parametrize("text", WRONG)
def test_mistake_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(FairleadError) as caught:
        _read(tmp_path, text)
    assert caught.value.code is ExitCode.USAGE
    assert any(WRONG[text] in finding.what for finding in caught.value.findings), caught.value
    assert all("space.toml" in finding.where for finding in caught.value.findings)


def test_typo_in_a_condition_is_answered_with_the_name_that_is_near(tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        _read(tmp_path, SPACE.replace("when = { optimizer", "when = { optimiser"))
    assert "Did you mean `optimizer`?" in caught.value.findings[0].why


def test_parameters_reach_a_script_as_words_or_variables() -> None:
    tables: dict[str, Any] = {"rate": {"choices": [1]}, "units": {"choices": [1], "name": "-u"}}
    chosen = {"rate": -0.5, "units": [64, 32]}
    space = Space.model_validate({"parameters": tables})
    assert passing.words(space, chosen) == ["--rate=-0.5", "-u", "64,32"]
    assert passing.variables(space, chosen) == {}
    tables["units"]["name"] = "UNITS_OF_LAYERS"
    space = Space.model_validate({"by": "environment", "parameters": tables})
    assert passing.words(space, chosen) == []
    assert passing.variables(space, {**chosen, "rate": True}) == {
        "RATE": "true",
        "UNITS_OF_LAYERS": "64,32",
    }


def test_words_of_a_script_have_only_the_known_braces_filled_in(tmp_path: Path) -> None:
    filled = passing.filled(("--out={folder}/x", "{trial}", "{seed}{other}"), tmp_path, 3, 7)
    assert filled == [f"--out={tmp_path}/x", "3", "7{other}"]


_NAMES = st.sampled_from(["x", "y", "z"])
_VALUES = st.recursive(
    st.one_of(
        st.booleans(), st.integers(-5, 5), st.floats(-2, 2), st.text("xyz(", max_size=3), st.just(float("nan")),
        st.just(float("inf")),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
_KEYS = ["type", "low", "high", "step", "log", "choices", "when", "length", "name", "odd"]
_TABLES = st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=4) | _VALUES
_OBJECTIVES = st.dictionaries(st.sampled_from(["goal", "printed", "written", "key"]), _VALUES)


@given(
    st.dictionaries(_NAMES, _TABLES, max_size=3) | _VALUES,
    st.dictionaries(_NAMES, _OBJECTIVES | _VALUES, max_size=2) | _VALUES,
)
def test_file_of_any_values_is_read_or_refused(
    tmp_path: Path, parameters: object, objectives: object
) -> None:
    text = tomlkit.dumps({"parameters": parameters, "objectives": objectives})
    try:
        space = _read(tmp_path, text)
    except FairleadError:
        return
    assert space.parameters
    chosen = space.ask(Chooser(1))
    assert set(chosen) <= set(space.parameters)
