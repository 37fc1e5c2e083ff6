"""Which collectives of Horovod are carried out, by what ranks ask for in any order. Ranks are threads here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.thread_ranks import Rank, here, on_each

from fairlead.base.errors import FairleadError, fail
from fairlead.comm.dropin import engine as engines
from fairlead.comm.dropin.failures import HorovodInternalError, UsageError, usage
from fairlead.comm.dropin.requests import (
    ALLGATHER,
    ALLREDUCE,
    BARRIER,
    BROADCAST,
    END,
    JOIN,
    Request,
    Response,
    Table,
)
from fairlead.comm.dropin.rules import MAX, SUM, Reduction

SIZE = 3
ALL_SUM: dict[str, Any] = {"how": Reduction(SUM), "zeros": True}


@pytest.fixture(scope="module")
def patch() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def summed(name: str, dtype: str = "<f4", rows: int = 2) -> Request:
    return Request(ALLREDUCE, name, ((dtype, (rows,)),), **ALL_SUM)


def table(*each: list[Request]) -> tuple[Table, list[Response]]:
    made = Table([f"n{rank}" for rank in range(len(each))])
    for rank, asked in enumerate(each):
        made.add(rank, asked)
    return made, made.take()


# --- what is due -----------------------------------------------------------------------------


@given(
    orders=st.lists(st.permutations(range(5)), min_size=SIZE, max_size=SIZE),
    cuts=st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=SIZE, max_size=SIZE),
)
def test_each_name_is_due_once_all_have_asked_whatever_the_order(
    orders: list[list[int]], cuts: list[list[int]]
) -> None:
    """Requests arrive in turns of any length; a name is due in the first turn in which the last rank has asked."""
    made = Table([f"n{rank}" for rank in range(SIZE)])
    asked: list[set[str]] = [set() for _ in range(SIZE)]
    done: list[str] = []
    bounds = [[0, *sorted(cut), 5] for cut in cuts]
    for turn in range(max(map(len, bounds)) - 1):
        for rank, (order, bound) in enumerate(zip(orders, bounds, strict=True)):
            part = order[slice(*bound[turn : turn + 2])] if turn + 1 < len(bound) else []
            made.add(rank, [summed(str(number)) for number in part])
            asked[rank] |= {str(number) for number in part}
        due = made.take()
        assert all(response.error is None for response in due)
        done += [response.name for response in due]
        assert set(done) == set.intersection(*asked)
    assert sorted(done) == ["0", "1", "2", "3", "4"]
    assert made.take() == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (summed("a", "<f8"), "rank 0 has float32 (2,), rank 1 has float64 (2,)"),
        (summed("a", rows=3), "rank 0 has float32 (2,), rank 1 has float32 (3,)"),
        (Request(BROADCAST, "a", (("<f4", (2,)),), 1), "broadcast(1) `a`"),
        (
            Request(ALLREDUCE, "a", (("<f4", (2,)),), Reduction(MAX)),
            "allreduce(Max) `a`",
        ),
    ],
)
def test_requests_that_do_not_fit_are_an_error_that_names_the_rank(
    other: Request, said: str
) -> None:
    _, (response, after) = table([summed("a"), summed("b")], [summed("b"), other])
    assert response.error is not None and after.error is None and after.name == "b"
    (finding,) = response.error.findings
    assert said in f"{finding.what} {finding.why}"
    assert "rank 1" in f"{finding.what} {finding.where}"


def test_lengths_of_gathered_tensors_may_differ_and_nothing_else() -> None:
    rows = [Request(ALLGATHER, "a", (("<f4", (n, 2)),)) for n in (1, 5)]
    assert table(rows[:1], rows[1:])[1][0].error is None
    wide = Request(ALLGATHER, "a", (("<f4", (1, 3)),))
    assert table(rows[:1], [wide])[1][0].error is not None


def test_ranks_that_have_joined_take_part_with_zeros_where_that_is_right() -> None:
    joined = Request(JOIN, JOIN)
    made, due = table([summed("a"), Request(BARRIER, "b")], [joined], [summed("a")])
    assert [(r.name, r.each[1]) for r in due] == [("a", None)] and due[0].error is None
    made.add(2, [Request(BARRIER, "b")])
    (refused,) = made.take()
    assert refused.error is not None
    assert refused.error.findings[0].what == "rank 1 has joined, while others call barrier `b`"
    made.add(2, [joined])
    assert made.take() == []
    made.add(0, [joined])
    (last,) = made.take()
    assert (last.name, last.last, last.error) == (JOIN, 0, None)
    assert made.joined == {}


@pytest.mark.parametrize("request_", [summed("a"), Request(JOIN, JOIN)])
def test_rank_that_has_ended_is_named_to_those_that_wait(request_: Request) -> None:
    _, (response,) = table([request_], [Request(END, END)], [])
    assert response.error is not None
    what = response.error.findings[0].what
    assert what.startswith("rank 1 (n1) has ended; other ranks wait for it in")


# --- carried out -----------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(orders=st.lists(st.permutations(range(6)), min_size=SIZE, max_size=SIZE), data=st.data())
def test_ranks_ask_and_wait_in_any_order(
    orders: list[list[int]], data: st.DataObject, patch: pytest.MonkeyPatch
) -> None:
    waits = [data.draw(st.permutations(range(6))) for _ in range(SIZE)]

    def call(rank: int) -> list[list[float]]:
        asked = {
            n: here().ask(ALLREDUCE, [np.array([1.0 * n, rank])], name=f"t{n}", **ALL_SUM)
            for n in orders[rank]
        }
        found = {n: here().engine.wait(asked[n]).arrays[0].tolist() for n in waits[rank]}
        return [found[n] for n in range(6)]

    expected = [[3.0 * n, 3.0] for n in range(6)]
    assert on_each(SIZE, call, patch) == [expected] * SIZE


def test_poll_is_false_first_and_true_in_the_end(patch: pytest.MonkeyPatch) -> None:
    def call(rank: int) -> tuple[bool, list[float]]:
        handle = here().ask(ALLREDUCE, [np.ones(1)], **ALL_SUM)
        first = here().engine.poll(handle)
        limit = time.monotonic() + 20
        while not here().engine.poll(handle):
            assert time.monotonic() < limit
            time.sleep(0.001)
        return first, here().engine.wait(handle).arrays[0].tolist()

    assert on_each(SIZE, call, patch) == [(False, [3.0])] * SIZE


def test_two_of_one_name_are_refused_on_their_rank_alone(patch: pytest.MonkeyPatch) -> None:
    def call(rank: int) -> list[float]:
        handle = here().ask(ALLREDUCE, [np.ones(1)], name="a", **ALL_SUM)
        if rank == 1:
            with pytest.raises(UsageError, match="`a` is asked for twice"):
                here().ask(ALLREDUCE, [np.ones(1)], name="a", **ALL_SUM)
        return here().engine.wait(handle).arrays[0].tolist()

    assert on_each(SIZE, call, patch) == [[3.0]] * SIZE


def test_ranks_stay_in_step_after_an_error(patch: pytest.MonkeyPatch) -> None:
    def call(rank: int) -> list[float]:
        with pytest.raises(HorovodInternalError) as caught:
            here().run(ALLREDUCE, [np.ones(1 + (rank == 2))], **ALL_SUM)
        assert isinstance(caught.value, FairleadError) and isinstance(caught.value, RuntimeError)
        assert caught.value.findings[0].where == "rank 2, array 0"
        return here().run(ALLREDUCE, [np.ones(1)], **ALL_SUM).arrays[0].tolist()

    assert on_each(SIZE, call, patch) == [[3.0]] * SIZE


def test_joined_ranks_count_and_numbers_agree_afterwards(patch: pytest.MonkeyPatch) -> None:
    """The ranks have as many steps as their number; what has no name fits together after the join."""

    def call(rank: int) -> tuple[int, list[float], float]:
        means = [here().run(ALLREDUCE, [np.ones(1)], **ALL_SUM) for _ in range(rank)]
        last = here().run(JOIN, name=JOIN).last
        after = here().run(ALLREDUCE, [np.ones(1)], **ALL_SUM)
        return last, [float(m.arrays[0][0]) for m in means], float(after.arrays[0][0])

    assert on_each(SIZE, call, patch) == [(2, [2.0, 1.0][:rank], 3.0) for rank in range(SIZE)]


def test_all_wait_for_other_names_is_an_error_that_lists_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engines, "STUCK_S", 0.2)

    def call(rank: int) -> str:
        with pytest.raises(HorovodInternalError) as caught:
            here().run(BARRIER, name=f"of {rank}")
        return caught.value.findings[0].what

    (said,) = set(on_each(SIZE, call, patch))
    assert "rank 2 (n2): barrier `of 2`" in said


def test_rank_that_is_late_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    """It computes for longer than it takes to find that all wait for something else."""
    patch.setattr(engines, "STUCK_S", 0.1)

    def call(rank: int) -> None:
        here().ask(BARRIER, name=f"other {rank}")
        if rank == 1:
            time.sleep(0.6)
        here().run(BARRIER, name="one")

    on_each(SIZE, call, patch)


def test_rank_that_ends_is_named_and_the_end_is_common(patch: pytest.MonkeyPatch) -> None:
    def call(rank: int) -> str:
        said = ""
        if rank != 1:
            with pytest.raises(HorovodInternalError) as caught:
                here().run(ALLREDUCE, [np.ones(1)], name="loss", **ALL_SUM)
            said = caught.value.findings[0].what
        here().engine.close()
        return said

    what = "rank 1 (n1) has ended; other ranks wait for it in allreduce(Sum) `loss`"
    assert on_each(SIZE, call, patch) == [what, "", what]


def test_process_sets_do_not_wait_for_each_other(patch: pytest.MonkeyPatch) -> None:
    """Ranks 0 and 2 go on while rank 1, alone in its set, has not come."""
    over = threading.Event()

    def call(rank: int) -> list[float]:
        one = here()
        made = [_set(one, (0, 2)), _set(one, (1,))]
        channel = next(each for each in made if each is not None)
        if rank == 1:
            assert over.wait(20)
        done = one.engine.run(channel, ALLREDUCE, [np.array([1.0 + rank])], **ALL_SUM)
        if rank == 0:
            over.set()
        one.run(BARRIER)
        return done.arrays[0].tolist()

    assert on_each(SIZE, call, patch) == [[4.0], [2.0], [4.0]]


def _set(one: Rank, members: tuple[int, ...]) -> Any:
    one.run(BARRIER, name="add", how=members)
    group = one.engine.all.group.split(members)
    return None if group is None else one.engine.channel(group)


def test_rank_that_waits_in_one_set_answers_in_another(patch: pytest.MonkeyPatch) -> None:
    """Each of two ranks waits first in the set in which the other one waits last."""

    def call(rank: int) -> list[float]:
        one = here()
        channels = [one.engine.all, _set(one, (0, 1))]
        asked = [one.engine.ask(c, ALLREDUCE, [np.ones(1)], **ALL_SUM) for c in channels]
        order: Callable[[Any], Any] = list if rank else reversed
        return [float(one.engine.wait(handle).arrays[0][0]) for handle in order(asked)]

    assert on_each(2, call, patch) == [[2.0, 2.0]] * 2


# --- exceptions ------------------------------------------------------------------------------


def test_exceptions_are_those_that_scripts_catch_and_raise() -> None:
    assert str(HorovodInternalError("lost")) == "lost"
    made = usage(fail("comm-dropin-splits-even", length=3, size=2))
    assert isinstance(made, ValueError) and made.findings[0].check == "comm-dropin-call"


def test_timeline_has_what_a_rank_asks_for_and_carries_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def each(rank: int) -> None:
        engine = here().engine
        if rank == 0:
            engine.start_timeline(tmp_path / "first", marks_turns=False)
            engine.start_timeline(tmp_path / "seen", marks_turns=True)
        here().run(ALLGATHER, [np.zeros(2)], name="rows")
        text = (tmp_path / "seen").read_text() if rank == 0 else ""
        assert rank or "NEGOTIATE_ALLGATHER" in text, "it is written as it happens"
        here().run(BARRIER)
        engine.stop_timeline()
        here().run(BARRIER)

    on_each(2, each, monkeypatch)
    events = json.loads((tmp_path / "seen").read_text())
    rows = {e["args"]["name"]: e["pid"] for e in events if e["ph"] == "M"}
    assert [*rows] == ["engine", "allgather.rows", "barrier.noname.1"]
    steps = [(e["ph"], e.get("name")) for e in events if e["pid"] == rows["allgather.rows"]]
    assert steps[1:] == [
        ("B", "NEGOTIATE_ALLGATHER"), ("E", None), ("B", "ALLGATHER"), ("E", None),
    ]  # fmt: skip
    assert sum(e.get("name") == "CYCLE_START" for e in events) >= 2
    times = [e["ts"] for e in events if "ts" in e]
    assert times == sorted(times)
    assert len(json.loads((tmp_path / "first").read_text())) == 1
