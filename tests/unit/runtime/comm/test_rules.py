"""The drop-in's collectives of arrays against NumPy, on ranks that are threads. Real ones: tests/system/test_dropin.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import thread_ranks
from tests.support.thread_ranks import here

import fairlead.comm
from fairlead.base.errors import FairleadError
from fairlead.comm import wait_report
from fairlead.comm.core import Array
from fairlead.comm.dropin import rules
from fairlead.comm.dropin.moves import rows_of
from fairlead.comm.dropin.rules import AVERAGE, SUM, Operation, Reduction
from fairlead.comm.frameworks.watched import Watched

SIZE = 3
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def on_each(function: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``function`` returns on each rank."""
    return thread_ranks.on_each(SIZE, function, monkeypatch)


@pytest.fixture(scope="module")
def patch() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def reduced(reduction: Reduction, each: list[Array], patch: pytest.MonkeyPatch) -> list[Array]:
    operation = reduction.operation(here)
    found = on_each(lambda rank: operation.move([each[rank]], [1])[0], patch)
    assert all(np.array_equal(found[0], other) for other in found)
    assert found[0].dtype == each[0].dtype and found[0].shape == each[0].shape
    return [found[0]]


@given(data=st.data(), dtype=st.sampled_from(INTEGERS))
def test_sums_of_integers_are_exact_and_wrap_at_the_end_of_their_type(
    data: st.DataObject, dtype: str, patch: pytest.MonkeyPatch
) -> None:
    limits = np.iinfo(dtype)
    rows = [
        data.draw(st.lists(st.integers(limits.min, limits.max), min_size=2, max_size=2))
        for _ in range(SIZE)
    ]
    (got,) = reduced(Reduction(SUM), [np.array(row, dtype) for row in rows], patch)
    whole = [sum(column) for column in zip(*rows, strict=True)]
    assert got.tolist() == [(n - limits.min) % 2**limits.bits + limits.min for n in whole]


@given(data=st.data(), dtype=st.sampled_from(INTEGERS))
def test_means_of_integers_are_cut_towards_zero_and_do_not_wrap(
    data: st.DataObject, dtype: str, patch: pytest.MonkeyPatch
) -> None:
    limits = np.iinfo(dtype)
    # a whole sum of 64 bits must fit; -(-m // n) rounds towards zero
    most = SIZE if limits.bits == 64 else 1
    low, high = -(-limits.min // most), limits.max // most
    rows = [data.draw(st.integers(low, high)) for _ in range(SIZE)]
    (got,) = reduced(Reduction(AVERAGE), [np.array(row, dtype) for row in rows], patch)
    whole = sum(rows)
    assert int(got) == (abs(whole) // SIZE) * (1 if whole >= 0 else -1)


def test_large_integer_comes_back_whole(patch: pytest.MonkeyPatch) -> None:
    each = [np.array([2**60 + 1 if rank == 0 else 0]) for rank in range(SIZE)]
    assert reduced(Reduction(SUM), each, patch)[0].tolist() == [2**60 + 1]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op", [AVERAGE, SUM])
def test_floats_are_scaled_before_and_after(op: str, dtype: str, patch: pytest.MonkeyPatch) -> None:
    # each rank's largest value, whose plain sum is infinite
    largest = np.finfo(dtype).max
    each = [np.array([largest, 4.0 * rank], dtype) for rank in range(SIZE)]
    got = reduced(Reduction(op, before=0.25, after=0.5), each, patch)[0]
    factor = 0.125 * (1 if op == SUM else 1 / SIZE)
    exact = [float(largest) * (SIZE * factor), 12 * factor]
    np.testing.assert_allclose(got.astype("f8"), exact, rtol=4 * float(np.finfo(dtype).eps))


def test_factors_of_integers_are_cut_as_horovod_cuts_them(patch: pytest.MonkeyPatch) -> None:
    each = [np.array([3, -3]) for _ in range(SIZE)]
    assert reduced(Reduction(SUM, before=0.5), each, patch)[0].tolist() == [3, -3]
    assert reduced(Reduction(SUM, after=0.5), each, patch)[0].tolist() == [4, -4]


@pytest.mark.parametrize("odd_at", [0, 2, None])
def test_watched_weights_are_compared_at_the_second_step_and_once_at_the_end(
    odd_at: int | None, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 1 has other weights at first, or after its last step."""

    def call(rank: int) -> list[str]:
        weights, said = np.zeros(2), []
        if odd_at == 0 and rank == 1:
            weights += 1
        ranks = fairlead.comm.init()
        watched = Watched(lambda: ranks, "hvd.broadcast", lambda: (["w"], [weights]))
        try:
            for _ in range(3):
                watched.step()
            if odd_at == 2 and rank == 1:
                weights += 1
            ranks.conclude()
            ranks.conclude()
        except FairleadError as exc:
            (finding,) = exc.findings
            said += [finding.what, finding.where, finding.remedy]
        return said

    patch.setattr(wait_report, "report", lambda rows, backend: None)
    (found,) = {tuple(said) for said in on_each(call, patch)}
    once = capsys.readouterr().err
    if odd_at is None:
        assert found == () and once == "fairlead: weights are bit-identical on 3 ranks (1 array)\n"
        return
    when = "before the second step" if odd_at == 0 else "at the end of the training"
    assert found[:2] == (f"the ranks hold different state {when}", "w, rank 1") and once == ""
    assert ("hvd.broadcast" in found[2]) == (odd_at == 0)


@pytest.mark.parametrize("compression", ["none", "fp16"])
@pytest.mark.parametrize("other", ["float64", "int64", "int16", "float16"])
@pytest.mark.parametrize("mine", ["int32", "float32"])
@pytest.mark.parametrize("op", [AVERAGE, SUM])
def test_ranks_with_other_dtypes_are_refused(
    op: str, mine: str, other: str, compression: str, patch: pytest.MonkeyPatch
) -> None:
    operation = Reduction(op, compression).operation(here)

    def call(rank: int) -> str:
        with pytest.raises(FairleadError) as caught:
            operation.move([np.ones(2, other if rank == 1 else mine)], [2])
        return caught.value.findings[0].why

    assert set(on_each(call, patch)) == {f"rank 0 has {mine} (2,), rank 1 has {other} (2,)"}


def test_ranks_with_another_reduction_are_refused(patch: pytest.MonkeyPatch) -> None:
    def call(rank: int) -> str:
        reduction = Reduction(AVERAGE if rank == 2 else SUM)
        with pytest.raises(FairleadError) as caught:
            reduction.operation(here).move([np.ones(2, np.int64)], [2])
        return caught.value.findings[0].what

    (said,) = set(on_each(call, patch))
    assert said.startswith("rank 2") and "(Average)" in said and "(Sum)" in said


@pytest.mark.parametrize(("shape", "dtype"), [((2, 3), "f8"), ((2, 2), "f4")])
def test_gathered_rows_of_another_kind_are_refused(
    shape: tuple[int, int], dtype: str, patch: pytest.MonkeyPatch
) -> None:
    def call(rank: int) -> None:
        array = np.ones(shape, dtype) if rank == 1 else np.ones((5, 2))
        with pytest.raises(FairleadError) as caught:
            rules.allgather(here).move([array], [len(array)])
        assert caught.value.findings[0].where == "rank 1, array 0"

    on_each(call, patch)


def test_rows_of_all_ranks_are_gathered_bit_for_bit(patch: pytest.MonkeyPatch) -> None:
    rows = [np.random.default_rng(r).normal(size=(r, 2)).astype("f4") for r in range(SIZE)]
    for got in on_each(lambda rank: rules.allgather(here).move([rows[rank]], [rank])[0], patch):
        assert got.dtype == np.float32 and np.array_equal(got, np.concatenate(rows))
    for got in on_each(lambda rank: rules.allgather(here).move([np.array(rank)], [1])[0], patch):
        assert got.tolist() == [0, 1, 2]


def matrix(operation: Operation, rows: list[int], patch: pytest.MonkeyPatch) -> Array:
    """The linear map that a collective is, from the elements of all ranks' arrays to those of all results."""
    columns = []
    for rank, count in enumerate(rows):
        for element in range(count):

            def call(me: int, rank: int = rank, element: int = element) -> Array:
                array = np.zeros(rows[me])
                array[element if me == rank else slice(0)] = 1
                return operation.move([array], [forward[me]])[0]

            columns.append(np.concatenate(on_each(call, patch)))
    return np.stack(columns, axis=1)


forward = [1, 3, 2]


@pytest.mark.parametrize(
    ("operation", "into", "out", "ratio", "again"),
    [
        (rules.allgather(here), forward, [sum(forward)] * SIZE, SIZE, 1),
        (rules.broadcast(here, 1), [2] * SIZE, [2] * SIZE, SIZE, 1),
        (rules.reducescatter(here, Reduction(AVERAGE)), [4] * SIZE, [2, 1, 1], 1 / SIZE, SIZE),
        (rules.reducescatter(here, Reduction(SUM, after=2)), [4] * SIZE, [2, 1, 1], 1 / SIZE, SIZE),
        (Reduction(SUM).operation(here), [2] * SIZE, [2] * SIZE, 1, 1),
        (Reduction(AVERAGE).operation(here), [2] * SIZE, [2] * SIZE, 1, 1),
    ],
    ids=["allgather", "broadcast", "scattered mean", "scattered sum", "sum", "mean"],
)
def test_gradient_is_horovods_and_so_is_the_gradient_of_that(
    operation: Operation,
    into: list[int],
    out: list[int],
    ratio: float,
    again: int,
    patch: pytest.MonkeyPatch,
) -> None:
    """The transposed collective; of allgather and broadcast it is divided by the ranks, as the mean is Horovod's rule.

    Of a reducescatter it is multiplied by them, and goes back as an allgather does.
    """
    back = operation.gradient()
    once = matrix(back, out, patch)
    np.testing.assert_allclose(once * ratio, matrix(operation, into, patch).T)
    np.testing.assert_allclose(matrix(back.gradient(), into, patch) * again, once.T)


@pytest.mark.parametrize("spare", [0, 2])
def test_gradients_of_an_alltoall_go_back_where_rows_came_from(
    spare: int, patch: pytest.MonkeyPatch
) -> None:
    """Each rank sends as many rows to each as its number plus that of the other; spare ones to none."""

    def call(rank: int) -> tuple[Array, Array, Array, tuple[int, ...]]:
        splits = [rank + other for other in range(SIZE)]
        rows = sum(splits) + spare
        moved = rules.Alltoall(here, splits)
        array = 100.0 * rank + np.arange(rows)
        (got,) = moved.operation.move([array], [rows])
        (back,) = moved.operation.gradient().move([got], [rows])
        (there,) = moved.operation.gradient().gradient().move([array], [rows])
        array[rows - spare :] = 0
        assert np.array_equal(back, array) and np.array_equal(there, got)
        return got, back, there, moved.received

    for rank, (got, *_, received) in enumerate(on_each(call, patch)):
        assert received == tuple(rank + other for other in range(SIZE))
        assert [int(n) // 100 for n in got] == [o for o in range(SIZE) for _ in range(rank + o)]


@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("length", [0, 2, 7])
def test_scattered_rows_are_those_of_the_reduced_array(
    length: int, dtype: str, patch: pytest.MonkeyPatch
) -> None:
    each = [np.arange(2 * length).reshape(length, 2).astype(dtype) * (r - 1) for r in range(SIZE)]
    for op in (SUM, AVERAGE):
        how = Reduction(op, before=2, after=3)
        operation = rules.reducescatter(here, how)
        parts = on_each(lambda r, o=operation: o.move([each[r]], [length])[0], patch)
        whole = on_each(lambda r, h=how: h.operation(here).move([each[r]], [length])[0], patch)[0]
        assert [len(part) for part in parts] == rows_of(length, SIZE)
        assert np.array_equal(np.concatenate(parts), whole) and parts[0].dtype == whole.dtype


@pytest.mark.parametrize(("op", "expected"), [("Min", -4), ("Max", 2), ("Product", 16)])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32"])
def test_other_reductions(op: str, expected: int, dtype: str, patch: pytest.MonkeyPatch) -> None:
    each = [np.array([value], dtype) for value in (2, -4, -2)]
    (got,) = reduced(Reduction(op), each, patch)
    assert got.tolist() == [expected]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_adasum_adds_what_is_orthogonal_and_averages_what_is_parallel(
    dtype: str, patch: pytest.MonkeyPatch
) -> None:
    rows = np.array([[1, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3]], dtype)
    operation = Reduction("Adasum").operation(here)
    found = thread_ranks.on_each(4, lambda r: operation.move([rows[r]], [3])[0], patch)
    assert all(got.tolist() == [1, 2, 3] and got.dtype == dtype for got in found)
    nothing = thread_ranks.on_each(2, lambda r: operation.move([rows[0] * 0], [3])[0], patch)
    assert nothing[0].tolist() == [0, 0, 0]


def test_splits_may_be_an_array_that_comes_with_the_rows(patch: pytest.MonkeyPatch) -> None:
    """As in a graph, where they are known only when it runs."""

    def call(rank: int) -> None:
        operation = rules.alltoall_of(here, lambda array, splits: tuple(splits.tolist()))
        splits = np.array([rank, 1, 0], np.int32)
        array = np.arange(rank + 3.0)
        got, received = operation.move([array, splits], [len(array), SIZE])
        expected = {0: [0, 1, 2], 1: [1, 1, 1], 2: [0, 0, 0]}[rank]
        assert received.tolist() == expected and received.dtype == np.int32
        assert len(got) == sum(expected)
        back, none = operation.gradient().move([got, received], [len(array), SIZE])
        array[rank + 1 :] = 0
        assert np.array_equal(back, array) and not none.any()
        again, _ = operation.gradient().gradient().move([array, splits], [len(array), SIZE])
        assert np.array_equal(again, got)

    on_each(call, patch)
