"""What a rank holds: attempts that count and others, memory, and what is freed."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from fairlead.base.errors import FairleadError
from fairlead.bridge.arrow import Form, Piece
from fairlead.bridge.store import Budget, Held, Store
from fairlead.bridge.wire import WireError

FORM = Form(2, "float64")


def piece(*rows: tuple[float, float]) -> Piece:
    values = np.array(rows, np.float64).reshape(-1, 2)
    return Piece(len(rows), dense=values, bytes=values.nbytes)


def made(most: int = 1 << 20) -> Store:
    return Store(Budget(most, "rank 1 on n1"))


def test_partitions_are_joined_in_their_order_and_only_the_attempts_that_count() -> None:
    store = made()
    store.receive("m1", 1, 0, [piece((5, 6))])
    store.receive("m1", 0, 0, [piece((9, 9), (9, 9))])  # a task that was killed at its end
    store.receive("m1", 0, 1, [piece((1, 2)), piece((3, 4))])
    held = store.seal("m1", FORM, [(0, 1, 2), (1, 0, 1)])
    assert held.local.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert store.budget.used == 48
    assert store.free("m1") == 48 and store.budget.used == 0


def test_nothing_for_this_rank_is_an_empty_block() -> None:
    assert made().seal("m1", FORM, []).local.shape == (0, 2)
    assert made().seal("m1", Form(7, "float32", sparse=True), []).local.shape == (0, 7)


@pytest.mark.parametrize("wanted", [(0, 1, 1), (1, 0, 1), (0, 0, 2)])
def test_a_partition_that_is_not_here_as_it_was_sent_is_named(wanted: tuple[int, int, int]) -> None:
    store = made()
    store.receive("m1", 0, 0, [piece((1, 2))])
    with pytest.raises(FairleadError, match=f"partition {wanted[0]} is not on its rank"):
        store.seal("m1", FORM, [wanted])


def test_what_does_not_fit_is_refused_and_leaves_nothing() -> None:
    store = made(40)
    with pytest.raises(FairleadError) as caught:
        store.receive("m1", 0, 0, [piece((1, 2)), piece((3, 4)), piece((5, 6))])
    assert "16 bytes more do not fit on rank 1 on n1" in caught.value.findings[0].what
    assert store.budget.used == 0
    store.receive("m1", 0, 1, [piece((1, 2))])
    with pytest.raises(FairleadError):
        store.put("m2", Held(np.zeros((2, 2))))
    assert store.budget.used == 16


def test_a_stream_that_is_cut_leaves_nothing() -> None:
    def cut():
        yield piece((1, 2))
        raise WireError("bridge-lost", who="a client", reason="it is gone")

    store = made()
    with pytest.raises(WireError):
        store.receive("m1", 0, 0, cut())
    assert store.budget.used == 0
    with pytest.raises(FairleadError):
        store.seal("m1", FORM, [(0, 0, 1)])


def test_what_has_come_is_counted_until_the_matrix_is_sealed() -> None:
    seen = []

    def slow():
        yield piece((1, 2), (3, 4))
        seen.append(store.arriving())
        yield piece((5, 6))

    store = made()
    store.receive("m1", 0, 0, slow())
    store.receive("m2", 3, 1, [piece((1, 2))])
    assert seen == [{"m1": (2, 32)}]
    assert store.arriving() == {"m1": (3, 48), "m2": (1, 16)}
    store.seal("m1", FORM, [(0, 0, 3)])
    assert store.arriving() == {"m2": (1, 16)}


def test_a_repeated_attempt_takes_the_place_of_the_first() -> None:
    store = made()
    store.receive("m1", 0, 0, [piece((1, 2))])
    store.receive("m1", 0, 0, [piece((3, 4))])
    assert store.budget.used == 16
    assert store.seal("m1", FORM, [(0, 0, 1)]).local.tolist() == [[3, 4]]


def test_an_attempt_that_is_still_arriving_when_the_matrix_is_sealed_leaves_nothing() -> None:
    """As Spark's speculation leaves it."""
    store = made()
    store.receive("m1", 0, 7, [piece((1, 2))])

    def slow():
        yield piece((1, 2))
        store.seal("m1", FORM, [(0, 7, 1)])
        yield piece((3, 4))

    with pytest.raises(FairleadError, match="takes no more rows"):
        store.receive("m1", 0, 8, slow())
    with pytest.raises(FairleadError, match="takes no more rows"):
        store.receive("m1", 0, 9, [piece((1, 2))])
    assert store.budget.used == 16 and store.get("m1").local.tolist() == [[1, 2]]


def test_a_matrix_that_is_sealed_while_a_last_piece_is_kept_leaves_nothing() -> None:
    class Late(Budget):
        def take(self, number: int) -> None:
            super().take(number)
            if sealing:
                sealing.pop()
                store.seal("m1", FORM, [(0, 7, 1)])

    sealing: list[bool] = []
    store = Store(Late(1 << 20, "rank 1 on n1"))
    store.receive("m1", 0, 7, [piece((1, 2))])
    sealing.append(True)
    with pytest.raises(FairleadError, match="takes no more rows"):
        store.receive("m1", 0, 8, [piece((5, 6), (7, 8))])
    assert store.budget.used == 16 and store.get("m1").local.tolist() == [[1, 2]]


def test_what_is_freed_gives_back_all_that_was_taken() -> None:
    """The messages of one matrix hold more than its numbers."""
    for pieces in (
        [piece((1, 2))], [piece((1, 2)), piece((3, 4))],
        [Piece(1, dense=np.ones((1, 2)), index=pa.array(["long label"]), bytes=300)],
    ):  # fmt: skip
        store = made()
        for one in pieces:
            one.bytes += 100
        store.receive("m1", 0, 0, pieces)
        held = store.seal("m1", FORM, [(0, 0, sum(one.rows for one in pieces))])
        assert store.budget.used == held.bytes >= 16
        assert store.free("m1") == held.bytes and store.budget.used == 0


def test_sealing_takes_little_more_memory_than_the_matrix() -> None:
    """The pieces go as the block comes; measured as the peak of the process."""
    code = """
import mmap, re
import numpy as np
from fairlead.bridge.arrow import Form, Piece
from fairlead.bridge.store import Budget, Store
form, rows, number = Form(1000, "float64"), 1000, 64
def pieces():
    for _ in range(number):
        values = np.frombuffer(mmap.mmap(-1, rows * 8000)).reshape(rows, 1000)
        values[:] = 1
        yield Piece(rows, dense=values, bytes=values.nbytes)
store = Store(Budget(1 << 40, "rank 0"))
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024
before = peak()
store.receive("m1", 0, 0, pieces())
held = store.seal("m1", form, [(0, 0, rows * number)])
assert held.local.sum() == rows * number * 1000
print((peak() - before) / held.local.nbytes)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.5 < float(done.stdout) < 1.2
