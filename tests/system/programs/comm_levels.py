"""A program that starts MPI at a level, ``comm_levels.py LEVEL LIBRARY``, and uses it while calls are under way.

Rank 0 prints the level that MPI granted, what the core says about it, and what a call from another thread returned.
MPI by ctypes: a call of the program leaves Python's lock to others, as one of mpi4py does.
"""

from __future__ import annotations

import ctypes
import sys
import threading

import numpy as np
from comm_core import (
    FLOAT32,
    FLOAT64,
    SUM,
    aggregate,
    call,
    core,
    failure,
    raw,
    start,
    team,
    tensors,
)

LEVELS = ["single", "funneled", "serialized", "multiple"]
STEPS = 9
LIBRARY = ctypes.CDLL(sys.argv[2], ctypes.RTLD_GLOBAL)


def handle(mpich: int, standard: int, openmpi: str) -> ctypes.c_void_p | ctypes.c_int:
    if hasattr(LIBRARY, "ompi_mpi_comm_world"):
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(LIBRARY, openmpi)))
    return ctypes.c_void_p(standard) if STANDARD else ctypes.c_int(mpich)


STANDARD = "abi" in sys.argv[2]
NUMBERS = [0, 1024, 2048, 4096] if STANDARD else [0, 1, 2, 3]
WORLD = handle(0x44000000, 0x101, "ompi_mpi_comm_world")
INT32 = handle(0x4C000439, 0x250, "ompi_mpi_int32_t")
NO_STATUS = ctypes.c_void_p(0 if STANDARD or "40" in sys.argv[2] else 1)
GRANTED = ctypes.c_int()
LIBRARY.MPI_Init_thread(None, None, NUMBERS[LEVELS.index(sys.argv[1])], ctypes.byref(GRANTED))
LEVEL = LEVELS[NUMBERS.index(GRANTED.value)]


def traffic(rounds: int = 20) -> None:
    """Of the program itself, around the ring."""
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    given, got = np.full(2000, RANK, np.int32), np.empty(2000, np.int32)
    sent, received = (ctypes.c_void_p(each.ctypes.data) for each in (given, got))
    for tag in range(rounds):
        words = (
            sent,
            2000,
            INT32,
            after,
            tag,
            received,
            2000,
            INT32,
            before,
            tag,
            WORLD,
            NO_STATUS,
        )
        assert LIBRARY.MPI_Sendrecv(*words) == 0
        assert (got == before).all()


def rows(size: int, dtype: type = np.float32) -> list:
    form = FLOAT32 if dtype is np.float32 else FLOAT64
    return [(np.full(size, RANK + 1, dtype), None, form)]


def right(*lists: list) -> None:
    total = SIZE * (SIZE + 1) // 2
    for each in lists:
        for values, _, _ in each:
            assert (values == total).all(), values


def step(number: int, one: ctypes.c_void_p, two: ctypes.c_void_p) -> None:
    """Three calls under way at once, which ranks wait for in different orders, or after another call."""
    small, large, late = rows(700), rows(400_000), rows(50_000, np.float64)
    tickets = [(one, start(one, small)), (two, start(two, large)), (one, start(one, late))]
    traffic()
    if number % 3 == 1:
        tickets = tickets[:: 1 if RANK % 2 else -1]
    elif number % 3 == 2 and RANK == 0:
        call("barrier")
    for of, ticket in tickets:
        while RANK % 2 and not raw("done", of, ticket):
            pass
        call("wait", of, ticket)
    if number % 3 == 2 and RANK:
        call("barrier")
    traffic(3)
    blocking = rows(9000)
    aggregate(two if number % 2 else one, blocking)
    right(small, large, late, blocking)


def flood(*teams: ctypes.c_void_p) -> None:
    """More than a team or a thread holds back."""
    kept = []
    for _ in range(100):
        kept.append([(of, rows(10)) for of in teams])
        last = [(of, start(of, each)) for of, each in kept[-1]]
        traffic(1)
    aggregate(teams[0], rows(10))
    for of, ticket in last:
        call("wait", of, ticket)
    right(*(each for lists in kept for _, each in lists))


def elsewhere(of: ctypes.c_void_p) -> tuple[int, str]:
    """As a framework calls whose operations run in threads of its own."""
    said: list[tuple[int, str]] = []
    made = rows(5000)
    words = ("aggregate", of, tensors(*made), ctypes.c_uint64(1), SUM)
    thread = threading.Thread(target=lambda: said.append(failure(*words)))
    thread.start()
    thread.join()
    if not said[0][0]:
        right(made)
    return said[0]


def main() -> None:
    one, two, other = team(1), team(2), team(1)
    for number in range(STEPS):
        step(number, one, two)
    flood(one, two, other)
    said = elsewhere(other)
    traffic()
    left = rows(3000)
    start(one, left)
    call("finalize")
    right(left)
    if not RANK:
        print(LEVEL, KNOWN, *said, sep="|", flush=True)
    LIBRARY.MPI_Finalize()


call("init")
core.fairlead_comm_threads.restype = ctypes.c_char_p
KNOWN = core.fairlead_comm_threads().decode()
RANK, SIZE = core.fairlead_comm_rank(), core.fairlead_comm_size()
main()
