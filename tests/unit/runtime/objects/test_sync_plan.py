"""What a sync decides, by what both sides have and had."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.objects.sync import Plan, Prefer, Rules, plan

SHAS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("123"), max_size=6)
RULES = [
    Rules(both, delete, prefer)
    for both, delete, prefer in itertools.product((False, True), (False, True), Prefer)
]


def done(source: dict[str, str], destination: dict[str, str], what: Plan):
    """Both sides after the plan."""
    ours, theirs = dict(source), dict(destination)
    for name in what.there:
        theirs[name] = source[name]
    for name in what.back:
        ours[name] = destination[name]
    for name in what.gone_there:
        del theirs[name]
    for name in what.gone_here:
        del ours[name]
    return ours, theirs


@pytest.mark.parametrize(
    ("source", "destination", "last", "rules", "expected"),
    [
        ("1", None, None, Rules(), "there"),
        ("2", "1", "1", Rules(), "there"),
        ("1", "2", "1", Rules(), "conflicts"),
        ("1", "2", "1", Rules(both=True), "back"),
        ("1", "2", None, Rules(), "conflicts"),
        ("2", "3", "1", Rules(both=True, delete=True), "conflicts"),
        ("2", "3", "1", Rules(prefer=Prefer.SOURCE), "there"),
        ("2", "3", "1", Rules(prefer=Prefer.DESTINATION), "same"),
        ("2", "3", "1", Rules(both=True, prefer=Prefer.DESTINATION), "back"),
        (None, "1", "1", Rules(), "same"),
        (None, "1", "1", Rules(delete=True), "gone_there"),
        (None, "1", "1", Rules(both=True), "back"),
        (None, "2", "1", Rules(both=True, delete=True), "conflicts"),
        (None, "2", "1", Rules(delete=True), "same"),
        (None, "2", "1", Rules(both=True, prefer=Prefer.SOURCE), "back"),
        (None, "2", "1", Rules(both=True, delete=True, prefer=Prefer.SOURCE), "gone_there"),
        ("2", None, "1", Rules(both=True, prefer=Prefer.DESTINATION), "there"),
        ("2", None, "1", Rules(both=True, delete=True, prefer=Prefer.DESTINATION), "gone_here"),
        (None, "1", None, Rules(delete=True), "same"),
        ("1", None, "1", Rules(), "there"),
        ("1", None, "1", Rules(both=True, delete=True), "gone_here"),
        ("2", None, "1", Rules(both=True, delete=True), "conflicts"),
        ("2", None, "1", Rules(), "there"),
        ("1", "1", "2", Rules(), "same"),
    ],
)
def test_each_row_of_the_table(source, destination, last, rules, expected) -> None:
    one, other, before = ({"f": sha} if sha else {} for sha in (source, destination, last))
    assert getattr(plan(one, other, before, rules), expected) == ("f",)


@given(SHAS, SHAS, SHAS, st.sampled_from(RULES))
def test_no_change_of_either_side_is_lost_and_a_second_sync_has_nothing_to_do(
    source, destination, last, rules
) -> None:
    what = plan(source, destination, last, rules)
    if what.conflicts:
        assert rules.prefer is Prefer.NONE
        return
    ours, theirs = done(source, destination, what)
    if rules.prefer is Prefer.NONE:
        for name in source.keys() | destination.keys():
            changed_there = destination.get(name) not in (last.get(name), None)
            if changed_there and destination[name] != source.get(name):
                assert destination[name] in (theirs.get(name), ours.get(name))
            if name in source and source[name] != last.get(name):
                assert source[name] in (ours.get(name), theirs.get(name))
    if not rules.delete:
        assert not what.gone_here and not what.gone_there
    if rules.both:
        assert ours == theirs
    now = {name: sha for name, sha in ours.items() if theirs.get(name) == sha}
    again = plan(ours, theirs, now, rules)
    assert not again.there and not again.back
