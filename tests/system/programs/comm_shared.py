"""Tensors in memory that the ranks of a node share: prints what happens, on rank 0. Argument: what to try."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import time

import numpy as np
from comm_core import FLOAT32, FLOAT64, INT64, MEAN, SUM, call, core, failure, team, tensors

call("init")
me, size = core.fairlead_comm_rank(), core.fairlead_comm_size()
PAGE = mmap.PAGESIZE


def alloc(count: int) -> np.ndarray:
    at = ctypes.c_void_p()
    call("alloc", ctypes.c_uint64(4 * count), ctypes.byref(at))
    return np.frombuffer((ctypes.c_float * count).from_address(at.value or 0), np.float32)


def aggregate(of: ctypes.c_void_p, *rows: tuple, operation: int = SUM) -> tuple[int, str]:
    return failure(
        "aggregate", of, tensors(*rows, names=True), ctypes.c_uint64(len(rows)), operation
    )


def odd() -> None:
    """The last rank passes NaN: in place, into other memory, and with integers' bits next to it."""
    own = team()
    array, out = alloc(50_000), alloc(50_000)
    for target in (None, out):
        array[:] = 1
        array[41_234] = np.nan if me == size - 1 else 1
        status, words = aggregate(
            own,
            (array[:7], None, FLOAT32),
            (array[7:], None if target is None else target[7:], FLOAT32),
        )
        print(f"{me} {status} {words}\n", end="")
    array[:] = np.finfo(np.float32).max  # finite, but not their sum
    status, words = aggregate(own, (array, None, FLOAT32))
    print(f"{me} {status} {words}\n", end="")
    array[:] = 0
    assert aggregate(own, (array, None, FLOAT32)) == (
        0,
        "",
    )  # finalize returns the error of the last call


def given() -> None:
    """Pages that the program has mapped keep their contents and their address, and so do those around them."""
    own, count = team(), 3 * PAGE
    memory = mmap.mmap(-1, 12 * count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    before, array, after = np.frombuffer(memory, np.float32).reshape(3, count)
    before[:] = after[:] = 7
    array[:] = np.arange(count) + me
    at = ctypes.c_void_p(array.ctypes.data)
    call("alloc", ctypes.c_uint64(4 * count), ctypes.byref(at))
    assert at.value == array.ctypes.data and (array == np.arange(count) + me).all()
    for _ in range(3):
        array[:] = np.arange(count) + me
        assert aggregate(own, (array, None, FLOAT32), operation=MEAN) == (0, "")
        assert (array == np.arange(count) + (size - 1) / 2).all()
    assert (before == 7).all() and (after == 7).all()
    call("free", at)
    array[:] = me
    assert aggregate(own, (array, None, FLOAT32)) == (0, "")
    assert (array == size * (size - 1) / 2).all()
    print("ok\n", end="")


def wrong() -> None:
    at = ctypes.c_void_p()
    print(failure("alloc", ctypes.c_uint64(0), ctypes.byref(at)))
    print(failure("alloc", ctypes.c_uint64(5), ctypes.byref(ctypes.c_void_p(PAGE))))
    print(failure("alloc", ctypes.c_uint64(PAGE), ctypes.byref(ctypes.c_void_p(5))))
    print(failure("free", ctypes.c_void_p(PAGE)))
    print(failure("alloc", ctypes.c_uint64(PAGE * (1 + me)), ctypes.byref(at)))
    sys.stdout.flush()


def killed() -> None:
    """One rank dies between calls, without a word."""
    own, array = team(), alloc(1 << 20)
    for step in range(1000):
        if me == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        status, words = aggregate(own, (array, None, FLOAT32))
        if status:
            print(f"{status} {words}\n", end="", flush=True)
            os._exit(3)


def without() -> None:
    """Where memory cannot be shared the sums are right all the same."""
    own, array = team(), alloc(1 << 18)
    array[:] = me + 1
    assert aggregate(own, (array, None, FLOAT32)) == (0, "")
    assert (array == size * (size + 1) / 2).all()
    print("ok\n", end="")


def far() -> None:
    """Several nodes: pieces cross the network from where they are."""
    own, generator = team(), np.random.default_rng(5)
    for dtype, number in ((np.float32, FLOAT32), (np.float64, FLOAT64), (np.int64, INT64)):
        for count in (70_001, 1_300_000):
            parts = generator.integers(-9, 9, (size, 2, count)).astype(dtype)
            width = np.dtype(dtype).itemsize // 4
            given, out = (alloc(2 * count * width).view(dtype).reshape(2, count) for _ in range(2))
            mean = number != INT64
            want = parts.sum(0) / (size if mean else 1)
            given[:] = parts[me]
            rows = [(given[0], out[0], number), (given[1], out[1], number)]
            assert aggregate(own, *rows, operation=MEAN if mean else SUM) == (0, "")
            assert (given == parts[me]).all()
            assert np.allclose(out, want, rtol=1e-6, atol=1e-6)
            rows = [(given[0], None, number), (given[1], None, number)]
            assert aggregate(own, *rows, operation=MEAN if mean else SUM) == (0, "")
            assert (
                np.allclose(given, want, rtol=1e-6, atol=1e-6) and given.tobytes() == out.tobytes()
            )
    array = alloc(1 << 20)
    array[:] = 1
    array[777_777] = np.inf if me == size - 1 else 1
    status, words = aggregate(own, (array, None, FLOAT32))
    print(f"{me} {status} {words}\n", end="")
    assert aggregate(own, (array[:9], None, FLOAT32)) == (0, "")


def mapped() -> None:
    """What is shared is freed: neither mappings nor pages are left."""

    def count() -> int:
        with open("/proc/self/maps") as maps:
            return sum(" rw-s " in line for line in maps)

    before = count()
    for _ in range(50):
        array = alloc(1 << 18)
        call("free", ctypes.c_void_p(array.ctypes.data))
    call("barrier")
    assert count() == before, (count(), before)
    print("ok\n", end="")


began = time.monotonic()
{name: value for name, value in globals().items() if callable(value)}[sys.argv[1]]()
if sys.argv[1] != "wrong":
    call("finalize")
