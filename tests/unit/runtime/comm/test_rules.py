"""The drop-in's collectives of arrays against NumPy, on ranks that are threads. Real ones: tests/system/test_dropin.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairlead.comm
from fairlead.base.errors import FairleadError
from fairlead.comm import wait_report
from fairlead.comm.core import Array, Comm
from fairlead.comm.dropin import rules
from fairlead.comm.dropin.rules import AVERAGE, SUM, Operation, Reduction
from fairlead.comm.frameworks.watched import Watched
from fairlead.comm.mpi import Alone

SIZE = 3
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


class Threads(Alone):
    """One of :data:`SIZE` ranks of one process."""

    def __init__(self, rank: int, table: list[Any], meet: threading.Barrier):
        self.rank, self.size, self._table, self._meet = rank, SIZE, table, meet

    def allgather(self, value: Any) -> list[Any]:
        self._table[self.rank] = value
        self._meet.wait()
        every = list(self._table)
        self._meet.wait()
        return every

    def _reduced(self, buffer: Array, reduce: Callable[[Array], Array]) -> None:
        buffer[...] = reduce(np.stack(self.allgather(buffer.copy())))

    def sum(self, buffer: Array) -> None:
        self._reduced(buffer, lambda rows: rows.sum(0, dtype=rows.dtype))

    def mean(self, buffer: Array) -> None:
        self._reduced(buffer, lambda rows: rows.mean(0))

    def largest(self, buffer: Array) -> None:
        self._reduced(buffer, lambda rows: rows.max(0))

    def broadcast(self, buffer: Array, root: int) -> None:
        buffer[...] = self.allgather(buffer.copy())[root]


def on_each(function: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``function`` returns on each rank."""
    table, meet, here = [None] * SIZE, threading.Barrier(SIZE, timeout=20), threading.local()
    monkeypatch.setattr(fairlead.comm, "init", lambda: here.ranks)

    def run(rank: int) -> Any:
        here.ranks = Comm(Threads(rank, table, meet))
        return function(rank)

    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(run, range(SIZE)))


@pytest.fixture(scope="module")
def patch() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def reduced(reduction: Reduction, each: list[Array], patch: pytest.MonkeyPatch) -> list[Array]:
    operation = reduction.operation(lambda: fairlead.comm.init())
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
    low, high = (
        (limits.min // SIZE, limits.max // SIZE) if limits.bits == 64 else (limits.min, limits.max)
    )
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
    operation = Reduction(op, compression).operation(lambda: fairlead.comm.init())

    def call(rank: int) -> str:
        with pytest.raises(FairleadError) as caught:
            operation.move([np.ones(2, other if rank == 1 else mine)], [2])
        return caught.value.findings[0].why

    assert set(on_each(call, patch)) == {f"rank 0 has {mine} (2,), rank 1 has {other} (2,)"}


def test_ranks_with_another_reduction_are_refused(patch: pytest.MonkeyPatch) -> None:
    def call(rank: int) -> str:
        reduction = Reduction(AVERAGE if rank == 2 else SUM)
        with pytest.raises(FairleadError) as caught:
            reduction.operation(lambda: fairlead.comm.init()).move([np.ones(2, np.int64)], [2])
        return caught.value.findings[0].what

    (said,) = set(on_each(call, patch))
    assert said.startswith("rank 2") and "op='Average'" in said and "op='Sum'" in said


@pytest.mark.parametrize(("shape", "dtype"), [((2, 3), "f8"), ((2, 2), "f4")])
def test_gathered_rows_of_another_kind_are_refused(
    shape: tuple[int, int], dtype: str, patch: pytest.MonkeyPatch
) -> None:
    def call(rank: int) -> None:
        array = np.ones(shape, dtype) if rank == 1 else np.ones((5, 2))
        with pytest.raises(FairleadError) as caught:
            rules.allgather().move([array], [len(array)])
        assert caught.value.findings[0].where == "rank 1, array 0"

    on_each(call, patch)


def test_rows_of_all_ranks_are_gathered_bit_for_bit(patch: pytest.MonkeyPatch) -> None:
    rows = [np.random.default_rng(r).normal(size=(r, 2)).astype("f4") for r in range(SIZE)]
    for got in on_each(lambda rank: rules.allgather().move([rows[rank]], [rank])[0], patch):
        assert got.dtype == np.float32 and np.array_equal(got, np.concatenate(rows))
    for got in on_each(lambda rank: rules.allgather().move([np.array(rank)], [1])[0], patch):
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
    ("operation", "into", "out", "ratio"),
    [
        (rules.allgather(), forward, [sum(forward)] * SIZE, SIZE),
        (rules.broadcast(1), [2] * SIZE, [2] * SIZE, SIZE),
        (Reduction(SUM).operation(lambda: fairlead.comm.init()), [2] * SIZE, [2] * SIZE, 1),
        (Reduction(AVERAGE).operation(lambda: fairlead.comm.init()), [2] * SIZE, [2] * SIZE, 1),
    ],
    ids=["allgather", "broadcast", "sum", "mean"],
)
def test_gradient_is_horovods_and_so_is_the_gradient_of_that(
    operation: Operation, into: list[int], out: list[int], ratio: int, patch: pytest.MonkeyPatch
) -> None:
    """The transposed collective; of allgather and broadcast it is divided by the ranks, as the mean is Horovod's rule."""
    back = operation.gradient()
    once = matrix(back, out, patch)
    np.testing.assert_allclose(once * ratio, matrix(operation, into, patch).T)
    np.testing.assert_allclose(matrix(back.gradient(), into, patch), once.T)
