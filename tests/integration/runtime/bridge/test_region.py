"""Rows that a sender on the same node passes through a ring of shared memory, over real sockets and a real memfd."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.base.errors import FairleadError
from fairlead.bridge import region, wire
from fairlead.bridge.arrow import Form
from fairlead.bridge.endpoint import Door
from fairlead.bridge.store import Budget, Store
from fairlead.bridge.streams import Sending
from fairlead.bridge.wire import END, PLACED, Endpoint, Listener, Secret, WireError, dial
from fairlead.bridge.worker import Worker

SECRET = Secret(secrets.token_hex(32))
FORM = Form(1000, "float64")


class Rank:
    """The receiving half of a rank."""

    _receive = Worker._receive

    def __init__(self) -> None:
        self.store = Store(Budget(1 << 30, "rank 0 on here"))
        self.listener = Listener("127.0.0.1", SECRET, f"fairlead-test-{secrets.token_hex(4)}")
        self.endpoint = Endpoint(0, "here", self.listener.address, self.listener.local, wire.here())
        Door(self.listener, {"send": self._receive}, print).start()

    def sending(self, matrix: str = "m", form: Form = FORM, *, far: bool = False) -> Sending:
        endpoint = replace(self.endpoint, boot="elsewhere") if far else self.endpoint
        return Sending(matrix, form, (endpoint,), SECRET, limit_s=20)

    def asks(self, matrix: str = "m") -> tuple[wire.Connection, np.ndarray]:
        """A sender of partition 0 that goes its own way, and the ring."""
        role = {
            "role": "send",
            "matrix": matrix,
            "form": asdict(FORM),
            "partition": 0,
            "attempt": 0,
        }
        connection = dial(self.endpoint, SECRET, shares=True, limit_s=20, **role)
        ring = connection.shared()
        assert ring is not None
        return connection, ring


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.listener.close()
    made.store.free("m")


def rings() -> int:
    """How many this process has mapped or holds."""
    found = Path("/proc/self/maps").read_text().count("fairlead-ring")
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += "fairlead-ring" in str(entry.readlink())
    return found


def chunks(rows: np.ndarray, step: int = 700) -> list[tuple[np.ndarray, None]]:
    return [(rows[low : low + step], None) for low in range(0, len(rows), step)]


def some(rows: int, form: Form = FORM) -> np.ndarray:
    made = np.random.default_rng(rows).integers(-(2**31), 2**31 - 1, (rows, form.cols))
    return made.astype(form.dtype)


def test_one_partition_is_not_copied_and_cannot_be_changed(rank: Rank) -> None:
    rows = some(5000)
    sent = rank.sending().send(0, 1, 7, chunks(rows))
    assert (sent.rows, sent.bytes) == (5000, rows.nbytes)
    assert rank.store.arriving() == {"m": (5000, rows.nbytes)}
    held = rank.store.seal("m", FORM, [(0, 7, 5000)])
    assert np.array_equal(held.local, rows)
    assert not held.local.flags.owndata
    wait_until(lambda: not rings())
    with pytest.raises(ValueError, match="read-only"):
        held.local[0] = 1
    assert rank.store.budget.used == rows.nbytes


def test_memory_of_a_matrix_is_reused_after_its_last_view(rank: Rank, monkeypatch) -> None:
    monkeypatch.setattr(region, "_KEPT", kept := [])
    views = []
    for name, count in (("m", 2000), ("second", 3000), ("third", 1500), ("small", 20)):
        sent = rank.sending(name).send(0, 1, 0, chunks(some(count)))
        held = rank.store.seal(name, FORM, [(0, 0, sent.rows)])
        assert np.array_equal(held.local, some(count))
        views.append((held.local[3:5], count))
        rank.store.free(name)
        del held
        if (
            name == "second"
        ):  # the third gets the memory of this one, and no more of it than it needs
            at = views.pop()[0].ctypes.data
            assert [len(block) for block in kept] == [24_000_000]
        if name == "third":
            assert views[-1][0].ctypes.data == at and not kept
    for view, count in views:
        assert np.array_equal(view, some(count)[3:5])
    del view
    views.clear()
    assert sorted(map(len, kept)) == [12_000_000, 16_000_000]


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    cols=st.integers(1, 40),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64"]),
    far=st.lists(st.booleans(), min_size=5, max_size=5),
    step=st.integers(1, 200),
)
def test_partitions_come_as_they_were_whatever_their_way(counts, cols, dtype, far, step) -> None:
    rank, form = Rank(), Form(cols, dtype)
    try:
        parts = [some(count, form) for count in counts]
        for number in reversed(range(len(parts))):
            sending = rank.sending(form=form, far=far[number])
            sending.send(number, len(parts), 0, chunks(parts[number], step))
        wanted = [(number, 0, len(part)) for number, part in enumerate(parts)]
        held = rank.store.seal("m", form, wanted)
        assert np.array_equal(held.local, np.concatenate(parts)) and held.local.dtype == dtype
        assert rank.store.budget.used == held.local.nbytes
        rank.store.free("m")
        del held
        wait_until(lambda: not rings())
    finally:
        rank.listener.close()


def test_a_sender_that_is_killed_leaves_nothing(rank: Rank) -> None:
    code = """
import sys, time, numpy as np
from fairlead.bridge.arrow import Form
from fairlead.bridge.streams import Sending
from fairlead.bridge.wire import Endpoint, Secret

def rows():
    yield np.ones((2000, 1000)), None
    print("sent", flush=True)
    time.sleep(60)

endpoint = Endpoint(0, "here", ("127.0.0.1", 1), sys.argv[1], sys.argv[2])
Sending("m", Form(1000, "float64"), (endpoint,), Secret(sys.argv[3])).send(0, 1, 0, rows())
"""
    argv = [sys.executable, "-c", code, rank.endpoint.local, rank.endpoint.boot, SECRET.token]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"sent\n"
        wait_until(lambda: rank.store.budget.used == 16_000_000)
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: rank.store.budget.used == 0 and not rings())
    with pytest.raises(FairleadError, match="partition 0 is not on its rank"):
        rank.store.seal("m", FORM, [(0, 0, 2000)])


def wait_until(true) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_sender_that_only_announces_rows_is_given_up(rank: Rank) -> None:
    connection = rank.asks()[0]
    connection.send(PLACED, (8000).to_bytes(8, "big"))
    wait_until(lambda: rank.store.budget.used == 8000)
    connection.close()
    wait_until(lambda: rank.store.budget.used == 0 and not rings())


@pytest.mark.parametrize("placed", [0, region.RING_BYTES + 1, 2**63])
def test_what_no_ring_can_hold_is_refused(rank: Rank, placed: int) -> None:
    connection = rank.asks()[0]
    connection.send(PLACED, placed.to_bytes(8, "big"))
    with pytest.raises(WireError) as caught:
        connection.await_credit(region.RING_BYTES + 1)
    assert "does not speak the protocol" in caught.value.fields["what"]
    connection.close()
    wait_until(lambda: rank.store.budget.used == 0 and not rings())


def test_half_a_row_is_refused(rank: Rank) -> None:
    connection = rank.asks()[0]
    connection.send(PLACED, (8001).to_bytes(8, "big"))
    connection.say(END, rows=1, bytes=8001)
    with pytest.raises(WireError) as caught:
        while connection.receive()[0] != END:
            pass
    assert "does not speak the protocol" in caught.value.fields["what"]
    connection.close()
    wait_until(lambda: rank.store.budget.used == 0)


def test_a_sender_waits_until_the_ring_is_empty_enough(rank: Rank, monkeypatch) -> None:
    slow = threading.Event()
    take = rank.store.budget.take

    def held_up(number: int) -> None:
        slow.wait(20)
        take(number)

    monkeypatch.setattr(rank.store.budget, "take", held_up)
    rows, done = some(3000), []
    sender = threading.Thread(
        target=lambda: done.append(rank.sending().send(0, 1, 0, chunks(rows))), daemon=True
    )
    sender.start()
    time.sleep(0.3)
    assert not done and rank.store.budget.used == 0
    slow.set()
    sender.join(20)
    assert done and np.array_equal(rank.store.seal("m", FORM, [(0, 0, 3000)]).local, rows)


def test_what_was_written_and_not_announced_is_no_row(rank: Rank) -> None:
    connection, ring = rank.asks()
    ring[:] = 1
    connection.send(PLACED, (8000).to_bytes(8, "big"))
    connection.say(END, rows=1, bytes=8000)
    wait_until(lambda: connection.receive()[0] == END)
    assert rank.store.seal("m", FORM, [(0, 0, 1)]).local.shape == (1, 1000)
    connection.close()


def test_what_a_sender_does_afterwards_changes_nothing(rank: Rank) -> None:
    connection, ring = rank.asks()
    connection.place(ring, np.ones((1, 1000)))
    connection.say(END, rows=1, bytes=8000)
    wait_until(lambda: connection.receive()[0] == END)
    ring[:] = 0
    assert (rank.store.seal("m", FORM, [(0, 0, 1)]).local == 1).all()
    connection.close()


def test_a_sender_cannot_cut_the_ring() -> None:
    made = region.of(FORM)
    assert made is not None
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(made.fd, 0)
    with pytest.raises(OSError, match="not permitted"):
        fcntl.fcntl(made.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_without_descriptors_rows_come_as_a_stream(rank: Rank, monkeypatch) -> None:
    def none(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none)
    before = rings()
    rank.sending().send(0, 1, 0, chunks(some(3000)))
    held = rank.store.seal("m", FORM, [(0, 0, 3000)])
    assert np.array_equal(held.local, some(3000)) and rings() == before


def test_a_sender_that_cannot_map_the_ring_says_why(rank: Rank, monkeypatch) -> None:
    monkeypatch.setattr(wire.Connection, "share", _too_long)
    with pytest.raises(WireError) as caught:
        rank.sending().send(0, 1, 0, chunks(some(3000)))
    assert caught.value.check == "bridge-shared"
    wait_until(lambda: rank.store.budget.used == 0 and not rings())


def _too_long(connection: wire.Connection, fd: int | None, size: int) -> None:
    assert fd is not None
    connection.say(ring=size + 1)
    socket.send_fds(connection._sock, [b"\0"], [fd])
