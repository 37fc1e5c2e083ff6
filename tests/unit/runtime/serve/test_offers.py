"""Files of offers: what clients may choose, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.serve.offers import Offer, Parameter, read

ROOT = Path(__file__).parents[4]
OFFER = Offer(
    command=["run", "-n", "{ranks}", "image", "--", "solve", "--name={name}", "{name}{name}"],
    parameters={
        "ranks": Parameter(low=1, high=8, default=2),
        "rate": Parameter(low=0.0, high=1),
        "name": Parameter(pattern="[a-z{}-]+", default="a"),
        "kind": Parameter(choices=[1, "1", 2.5], default="1"),
    },
)


def mistakes(text: str, tmp_path: Path) -> list[str]:
    path = tmp_path / "offers.toml"
    path.write_text(text)
    with pytest.raises(FairleadError) as caught:
        read(path)
    assert caught.value.code is ExitCode.USAGE
    assert all("offers.toml" in f.where for f in caught.value.findings)
    return [f.what for f in caught.value.findings]


def test_the_example_can_be_read() -> None:
    offers = read(ROOT / "examples/serve/offers.toml")
    assert set(offers.run) == {"hepcnn", "ring"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no runs are declared"),
        ("[run]", "no runs are declared"),
        ("[run.a]\ncommand = ['shell', 'x']", "clients cannot start `fairlead shell`"),
        ("[run.a]\ncommand = ['run', '--record=x', 'i']", "the command has --record or --json"),
        ("[run.a]\ncommand = ['run', '{x}']", "the command names a parameter that is not declared: {x}"),
        ("[run.a]\ncommand = ['run']\n[run.a.parameters.x]\nlow=1\nhigh=2", "the command does not use `x`"),
        ("[run.a]\ncommand = ['run', '{x}']\n[run.a.parameters.x]\nlow=3\nhigh=2", "the bounds of `x` are reversed"),
        ("[run.a]\ncommand = ['run', '{x}']\n[run.a.parameters.x]\nlow=3", "the values of `x` are not declared"),
        ("[run.a]\ncommand = ['run', '{x}']\n[run.a.parameters.x]", "the values of `x` are not declared"),
        (
            "[run.a]\ncommand = ['run', '{x}']\n[run.a.parameters.x]\nlow=1\nhigh=2\nchoices=[1]",
            "the values of `x` are not declared",
        ),
        (
            "[run.a]\ncommand = ['run', '{x}']\n[run.a.parameters.x]\npattern='('",
            "the pattern of `x` is not a regular expression",
        ),
        (
            "[run.a]\ncommand = ['run', '{x}']\n[run.a.parameters.x]\nlow=1\nhigh=2\ndefault=3",
            "the default of `x` is not one of its values",
        ),
        ("[run.'a b']\ncommand = ['run']", "invalid name of a run: a b"),
    ],
)  # fmt: skip
def test_mistake_in_a_file_is_named(text: str, what: str, tmp_path: Path) -> None:
    assert what in mistakes(text, tmp_path)


def test_words_of_the_command_that_belong_to_the_program_may_be_any(tmp_path: Path) -> None:
    path = tmp_path / "offers.toml"
    path.write_text("[run.a]\ncommand = ['run', 'image', '--', 'program', '--record', 'x']")
    assert read(path).run["a"].words({}) == ["run", "image", "--", "program", "--record", "x"]


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"rate": 0.5, "ranks": 9}, "invalid value of `ranks`: 9"),
        ({"rate": 0.5, "ranks": 2.0}, "invalid value of `ranks`: 2.0"),
        ({"rate": 0.5, "ranks": True}, "invalid value of `ranks`: True"),
        ({"rate": 0.5, "ranks": "2"}, "invalid value of `ranks`: '2'"),
        ({"rate": float("nan")}, "invalid value of `rate`: nan"),
        ({"rate": 0.5, "name": "--force"}, "invalid value of `name`: '--force'"),
        ({"rate": 0.5, "name": "a\n"}, "invalid value of `name`: 'a\\n'"),
        ({"rate": 0.5, "name": "a" * 2000}, f"invalid value of `name`: '{'a' * 63}"),
        ({"rate": 0.5, "kind": 1.0}, "invalid value of `kind`: 1.0"),
        ({}, "`rate` is missing"),
        ({"rate": 0.5, "rnks": 2}, "run has no parameter `rnks`"),
    ],
)
def test_value_that_was_not_offered_is_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(FairleadError) as caught:
        OFFER.values("run", values)
    assert [f.what for f in caught.value.findings] == [what]


def test_values_fill_their_places_once() -> None:
    values = OFFER.values("run", {"rate": 1, "name": "{ranks}"})
    assert values == {"ranks": 2, "rate": 1, "name": "{ranks}", "kind": "1"}
    # A value that looks like a place is none.
    assert OFFER.words(values)[2:] == ["2", "image", "--", "solve", "--name={ranks}", "{ranks}{ranks}"]  # fmt: skip


@given(st.dictionaries(st.sampled_from(["ranks", "rate", "name", "kind"]), st.one_of(
    st.integers(), st.floats(), st.text(), st.booleans(), st.none(),
)))  # fmt: skip
def test_number_of_words_never_changes_and_none_becomes_an_option(values: dict[str, Any]) -> None:
    try:
        words = OFFER.words(OFFER.values("run", values))
    except FairleadError as exc:
        assert exc.code is ExitCode.USAGE
        return
    assert len(words) == len(OFFER.command) and words[0] == "run"
    assert [w.startswith("-") for w in words] == [w.startswith("-") for w in OFFER.command]
