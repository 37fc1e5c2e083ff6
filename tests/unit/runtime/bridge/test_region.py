"""Rows that a sender on the same node writes into a rank's memory, over real sockets and a real memfd."""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import secrets
import signal
import subprocess
import sys
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
from fairlead.bridge import wire
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

    def asks(self, matrix: str = "m") -> tuple[wire.Connection, int]:
        """A sender of partition 0 that goes its own way, and its descriptor."""
        role = {
            "role": "send",
            "matrix": matrix,
            "form": asdict(FORM),
            "partition": 0,
            "attempt": 0,
        }
        connection = dial(self.endpoint, SECRET, shares=True, limit_s=20, **role)
        fd = connection.shared()
        assert fd is not None
        return connection, fd


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.listener.close()
    made.store.free("m")


def regions() -> int:
    """How many this process holds."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += "fairlead-rows" in str(entry.readlink())
    return found


def chunks(rows: np.ndarray, step: int = 700) -> list[tuple[np.ndarray, None]]:
    return [(rows[low : low + step], None) for low in range(0, len(rows), step)]


def some(rows: int, form: Form = FORM) -> np.ndarray:
    made = np.random.default_rng(rows).integers(-(2**31), 2**31 - 1, (rows, form.cols))
    return made.astype(form.dtype)


def test_one_partition_is_mapped_and_cannot_be_changed(rank: Rank) -> None:
    rows = some(5000)
    sent = rank.sending().send(0, 1, 7, chunks(rows))
    assert (sent.rows, sent.bytes) == (5000, rows.nbytes)
    assert rank.store.arriving() == {"m": (5000, rows.nbytes)}
    held = rank.store.seal("m", FORM, [(0, 7, 5000)])
    assert (
        np.array_equal(held.local, rows) and "fairlead-rows" in Path("/proc/self/maps").read_text()
    )
    with pytest.raises(ValueError, match="read-only"):
        held.local[0] = 1
    assert rank.store.budget.used == rows.nbytes
    rank.store.free("m")
    del held
    assert "fairlead-rows" not in Path("/proc/self/maps").read_text() and not regions()


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
        assert not regions()
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
    wait_until(lambda: rank.store.budget.used == 0 and not regions())
    with pytest.raises(FairleadError, match="partition 0 is not on its rank"):
        rank.store.seal("m", FORM, [(0, 0, 2000)])


def wait_until(true) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_sender_that_only_announces_rows_is_given_up(rank: Rank) -> None:
    connection, fd = rank.asks()
    connection.await_credit()
    connection.send(PLACED, (8000).to_bytes(8, "big"))
    wait_until(lambda: rank.store.budget.used == 8000)
    connection.close()
    os.close(fd)
    wait_until(lambda: rank.store.budget.used == 0 and not regions())


def test_half_a_row_is_refused(rank: Rank) -> None:
    connection, fd = rank.asks()
    connection.await_credit()
    connection.send(PLACED, (8001).to_bytes(8, "big"))
    with pytest.raises(WireError) as caught:
        connection.credit = 0
        connection.await_credit()
        connection.await_credit()
    assert "does not speak the protocol" in caught.value.fields["what"]
    connection.close()
    os.close(fd)
    wait_until(lambda: rank.store.budget.used == 0 and not regions())


def test_what_was_written_and_not_announced_is_cut_off(rank: Rank) -> None:
    connection, fd = rank.asks()
    connection.await_credit()
    os.pwrite(fd, bytes(24_000_000), 0)
    connection.send(PLACED, (8000).to_bytes(8, "big"))
    connection.say(END, rows=1, bytes=8000)
    wait_until(lambda: connection.receive()[0] == END)
    assert rank.store.seal("m", FORM, [(0, 0, 1)]).local.shape == (1, 1000)
    connection.close()
    os.close(fd)


def test_what_a_sender_does_afterwards_changes_nothing(rank: Rank) -> None:
    for mapped in (False, True):
        name = "m" if mapped else "first"
        connection, fd = rank.asks(name)
        connection.await_credit()
        connection.place(fd, np.ones((1, 1000)))
        view = mmap.mmap(fd, 8000) if mapped else None
        connection.say(END, rows=1, bytes=8000)
        wait_until(lambda c=connection: c.receive()[0] == END)
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(fd, 0)
        held = rank.store.seal(name, FORM, [(0, 0, 1)])
        if view:
            view[:8] = bytes(8)
            view.close()
        else:
            with pytest.raises(OSError, match="not permitted"):
                os.pwrite(fd, bytes(8), 0)
            assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
        assert (held.local == 1).all()
        rank.store.free(name)
        del held
        connection.close()
        os.close(fd)


def test_without_descriptors_rows_come_as_a_stream(rank: Rank, monkeypatch) -> None:
    def none(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none)
    before = regions()
    rank.sending().send(0, 1, 0, chunks(some(3000)))
    held = rank.store.seal("m", FORM, [(0, 0, 3000)])
    assert np.array_equal(held.local, some(3000)) and regions() == before


def test_a_sender_whose_files_are_limited_is_told_why(rank: Rank) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(WireError) as caught:
            rank.sending().send(0, 1, 0, chunks(some(3000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.check in ("bridge-shared", "bridge-reported")
    wait_until(lambda: rank.store.budget.used == 0 and not regions())
