"""What goes wrong between ranks, one situation a run: ``comm_wrong.py SITUATION``.

A rank says ``RANK STATUS SECONDS WORDS`` for each call that failed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
from comm_core import (
    FLOAT32,
    FLOAT64,
    GO_ON,
    MEAN,
    SUM,
    Stats,
    Tensor,
    aggregate,
    call,
    core,
    failure,
    raw,
    start,
    team,
    tensors,
)  # fmt: skip

if LEVEL := os.environ.get("LEVEL"):  # the program starts MPI, and asks for no more
    levels = {"funneled": 1, "serialized": 2}
    ctypes.CDLL("libmpi.so.12").MPI_Init_thread(
        None, None, levels[LEVEL], ctypes.byref(ctypes.c_int())
    )
RANK = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
ROW = (np.ones(5), None, FLOAT64)
ONE = ctypes.c_uint64(1)


def say(line: str) -> None:
    """Into the file of all ranks, if there is one: launchers drop what a rank prints last."""
    with open(os.environ.get("SAID") or "/dev/stdout", "ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def report(name: str, *arguments: object) -> None:
    """Makes a call that fails, and says of what."""
    begun = time.monotonic()
    status, words = failure(name, *arguments)
    say(f"{RANK} {status} {time.monotonic() - begun:.1f} {words}")


def tell_aggregate(
    of: object, *rows: tuple, operation: int = SUM, shape: int = 0, name: bool = False
) -> None:
    made = tensors(*rows, names=name)
    if shape:
        made[0].shape = shape
    report("aggregate", of, made, ctypes.c_uint64(len(rows)), operation)


def disagree() -> None:
    """Every way in which lists of tensors differ; each in a team of its own, for it is then of no use."""
    odd = RANK == 1
    small, large = (
        (np.ones(5, np.float32), None, FLOAT32),
        (np.ones(900_000, np.float32), None, FLOAT32),
    )
    teams = [team(threads) for threads in (1, 1, 1, 1, 1, 1, 2, 2, 1, 2)]
    tell_aggregate(teams[0], *[ROW] * (3 if odd else 2))  # number
    tell_aggregate(teams[1], *([ROW, small] if odd else [small, ROW]), name=True)  # order
    tell_aggregate(teams[2], ROW, shape=7 if odd else 8)  # shape
    tell_aggregate(teams[3], small if odd else (np.ones(5, np.int32), None, 4))  # dtype
    tell_aggregate(teams[4], ROW, operation=SUM if odd else MEAN)
    tell_aggregate(teams[5], small, operation=2 << 8 if odd else 0)  # wire
    tell_aggregate(teams[6], small if odd else large)  # one rank has a part for the second thread
    call("aggregate", teams[7], tensors(large), ONE, SUM)
    ticket = start(teams[7], [large if odd else small])  # in the background
    report("wait", teams[7], ticket)
    report("aggregate", teams[7], tensors(ROW), ONE, SUM)  # and from then on
    tell_aggregate(teams[8], *([] if odd else [ROW]))
    aggregate(teams[9], [ROW])  # others go on
    for _ in range(40):  # and so do they that differed, if they have one thread
        start(teams[0], [ROW])
    aggregate(teams[0], [ROW])
    if RANK == 0:
        say("goes on")
    report("broadcast", tensors(ROW), ONE, RANK % 2)
    call("finalize") if core.fairlead_comm_size() == 1 else raw("finalize")


def threads() -> None:
    """Teams of different sizes, whose sum is what one of the ranks would expect."""
    made = ctypes.c_void_p()
    report("team", RANK + 1, ctypes.byref(made))


def settings() -> None:
    raise AssertionError("init should have failed")


def skip() -> None:
    """Rank 1 skips a step, and all then measure the mean of something."""
    mine, value = team(), ctypes.c_double(1)
    for _ in range(3):
        aggregate(mine, [ROW])
    if RANK != 1:
        report("aggregate", mine, tensors(ROW), ONE, SUM)
    else:
        report("average", ctypes.byref(value), ONE)


def skip_started() -> None:
    mine = team(2)
    if RANK != 1:
        report("wait", mine, start(mine, [ROW]))
    else:
        report("barrier")


def early_end() -> None:
    """Rank 1 finalizes a step before the others, which call from two threads: nothing is told by order."""
    mine = team()
    aggregate(mine, [ROW])
    if RANK == 1:
        report("finalize")
    else:
        report("aggregate", mine, tensors(ROW), ONE, SUM)
        raw("finalize")


def circle() -> None:
    """Rank 0 waits for rank 1, rank 1 for rank 2, rank 2 for rank 0, each in a team of its own."""
    teams = [team() for _ in range(3)]
    tickets = [start(teams[other], [ROW]) for other in {(RANK + 2) % 3}]
    report("aggregate", teams[RANK], tensors(ROW), ONE, SUM)
    assert tickets


def killed() -> None:
    """Rank $GONE is killed; a child of its lives on, as a data loader's worker may."""
    mine = team(2)
    aggregate(mine, [ROW])
    if int(os.environ.get("GONE", "1")) == RANK:
        if os.fork() == 0:
            os.closerange(0, 3)
            time.sleep(2)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    report("aggregate", mine, tensors(ROW), ONE, SUM)
    raw("finalize")


def killed_within() -> None:
    """Rank 1 is killed while a large call is under way, and others are queued."""
    mine = team()
    large = (np.ones(4_000_000, np.float32), None, FLOAT32)
    tickets = [start(mine, [large]) for _ in range(20)]
    if RANK == 1:
        call("wait", mine, tickets[1])
        os.kill(os.getpid(), signal.SIGKILL)
    report("wait", mine, tickets[-1])
    raw("finalize")


def left() -> None:
    """Rank 1 ends without finalize, as by sys.exit."""
    if RANK == 1:
        os._exit(0)
    report("barrier")
    raw("finalize")


def finalizes_mpi() -> None:
    """Rank 1 calls MPI_Finalize, as mpi4py does at sys.exit(0), where it waits for the others."""
    call("barrier")
    if RANK != 1:
        report("barrier")
        raw("finalize")
    ctypes.CDLL(None).MPI_Finalize()


def unreachable() -> None:
    """The network goes down after the first call."""
    call("barrier")
    if RANK == 0:
        say("ready")
    time.sleep(1)
    report("barrier")
    os._exit(0)


def slow() -> None:
    """Rank 1 is late."""
    if RANK == 1:
        time.sleep(2.5)
    report("barrier")
    report("finalize")


def slow_root() -> None:
    """Rank 1 is stopped while the others wait for the chunks of its broadcast."""
    row = (np.ones(16 << 20), None, FLOAT64)
    call("barrier")
    if RANK == 1:
        me = os.getpid()
        if not os.fork():
            time.sleep(0.1)
            os.kill(me, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(me, signal.SIGCONT)
            os._exit(0)
    report("broadcast", tensors(row), ONE, 1)
    report("finalize")


def old_ticket() -> None:
    """A failed call is waited for long after, when its place has been used again."""
    mine = team()
    odd = (np.ones(3 if RANK else 4), None, FLOAT64)
    ticket = start(mine, [odd])
    for _ in range(100):
        made = ctypes.c_uint64()
        status, _ = failure("start", mine, tensors(ROW), ONE, SUM, ctypes.byref(made))
        while status:  # the place of the failed one says so once
            status, _ = failure("start", mine, tensors(ROW), ONE, SUM, ctypes.byref(made))
    report("wait", mine, ticket)
    report("wait", mine, made)
    report("finalize")


def leaves_early() -> None:
    """Rank 1 has done its part of all calls and is in MPI_Finalize while the others are still in them."""
    rows = tensors((np.ones(4 << 20), None, FLOAT64))
    for _ in range(3):
        report("broadcast", rows, ONE, 0)
    if RANK == 2:
        time.sleep(2)
    ctypes.CDLL(None).MPI_Finalize()


def late() -> None:
    """Rank 1 is later than FAIRLEAD_COMM_TIMEOUT_S."""
    if RANK == 1:
        time.sleep(2)
        os._exit(0)
    report("barrier")
    os._exit(0)


def interrupted() -> None:
    """What is asked while a rank waits says no, at the fifth time."""
    if RANK == 1:
        time.sleep(2.5)
        os._exit(0)
    asked: list[float] = []
    go_on = GO_ON(lambda: (asked.append(time.monotonic()), len(asked) < 5)[1])
    call("while_waiting", go_on)
    report("barrier")
    ticket = start(MINE, [ROW])
    asked.clear()
    report("wait", MINE, ticket)
    os._exit(0)


def interrupted_elsewhere() -> None:
    """Another thread asks for itself, and stops asking, as an operation of TensorFlow does."""
    if RANK == 1:
        time.sleep(4)
        os._exit(0)
    stop, on = GO_ON(lambda: 0), GO_ON(lambda: 1)
    call("while_waiting", stop)
    meanwhile(lambda: (call("while_waiting", on), call("while_waiting", None))).join()
    report("barrier")
    os._exit(0)


def meanwhile(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ends_meanwhile() -> None:
    """Rank 0 finalizes while another of its threads waits for rank 1, which is late."""
    value = ctypes.c_double(1)
    if RANK == 1:
        time.sleep(1)
        report("average", ctypes.byref(value), ONE)
    else:
        thread = meanwhile(lambda: report("average", ctypes.byref(value), ONE))
        time.sleep(0.3)
    report("finalize")
    if RANK == 0:
        thread.join()


def ends_within_a_team() -> None:
    """The same with the thread in a call of a team: of one that does not end in time, and of one that does."""
    teams = [team(1), team(1)]
    for of, late_s in zip(teams, (7, 1), strict=True):
        if RANK == 1:
            time.sleep(late_s)
            tell_aggregate(of, ROW)
        else:
            thread = meanwhile(lambda of=of: tell_aggregate(of, ROW))
            time.sleep(0.3)
            report("finalize")
            thread.join()
    if RANK == 1:
        report("finalize")


def turns() -> None:
    """Another thread waits, so that this one waits for its turn; a fork has nobody to wait for."""
    if RANK == 1:
        time.sleep(3)
        os._exit(0)
    meanwhile(lambda: raw("barrier"))
    time.sleep(0.3)
    child = os.fork()
    if child == 0:
        report("init")
        os._exit(0)
    os.waitpid(child, 0)
    stop = GO_ON(lambda: 0)
    call("while_waiting", stop)
    report("barrier")
    os._exit(0)


def alone() -> None:
    """Bad calls of a single rank."""
    lone = team()
    null, bad = ctypes.c_void_p(), ctypes.c_void_p(0x1234)
    good, count, value = tensors(ROW), ONE, ctypes.c_double()
    ticket = ctypes.c_uint64()
    report("aggregate", lone, None, count, SUM)
    report("aggregate", bad, good, count, SUM)
    report("aggregate", lone, good, count, 4)
    report("aggregate", lone, good, count, -1)
    report("aggregate", lone, good, count, 1 << 8)
    report("aggregate", lone, tensors((np.ones(2, np.int32), None, 4)), count, MEAN)
    report("aggregate", lone, tensors((np.ones(2, np.uint8), None, 6)), count, SUM)
    room = np.ones(9)
    report("aggregate", lone, tensors((room[:8], room[1:], FLOAT64)), count, SUM)
    for changes in ({"in_": None}, {"out": None}, {"dtype": 7}, {"dtype": -1}, {"count": 1 << 62}):
        made = (Tensor * 1)(Tensor(room.ctypes.data, room.ctypes.data, 9, FLOAT64, 0, b"weights"))
        for field, wrong in changes.items():
            setattr(made[0], field, wrong)
        report("aggregate", lone, made, count, SUM)
    report("start", lone, good, count, SUM, None)
    report("start", null, good, count, SUM, ctypes.byref(ticket))
    report("wait", null, count)
    report("wait", lone, ctypes.c_uint64(99))
    report("stats", bad, None)
    report("stats", bad, ctypes.byref(Stats()))
    report("stats", lone, None)
    report("layout", None)
    report("match", good, count, None)
    report("average", None, count)
    report("broadcast", good, count, 1)
    report("broadcast", good, count, -1)
    report("gather", None, count, None)
    for number in (0, 17, -3):
        report("team", number, ctypes.byref(null))
    report("team", 1, None)
    report("team_name", lone, None)
    report("team_name", null, b"x")
    assert raw("done", null, ticket) == 1  # done: wait says of what it failed
    aggregate(lone, [ROW])  # none of them has done harm
    aggregate(lone, [])
    child = os.fork()
    if child == 0:
        report("barrier")
        report("finalize")
        report("wait", lone, ticket)
        os._exit(0)
    os.waitpid(child, 0)
    call("average", ctypes.byref(value), count)
    call("finalize")
    report("finalize")
    report("barrier")
    report("init")
    report("wait", lone, ticket)


if sys.argv[1] == "alone":
    report("barrier")
    call("finalize")  # before init it does nothing
    assert (core.fairlead_comm_rank(), core.fairlead_comm_local_size()) == (-1, -1)
if sys.argv[1] == "settings":
    if RANK == 1:
        os.environ["FAIRLEAD_COMM_CHUNK_KB"] = "64"
        ctypes.CDLL(None).setenv(b"FAIRLEAD_COMM_CHUNK_KB", b"64", 1)
    report("init")
    os._exit(0)
if "MPI4PY_RC_THREAD_LEVEL" in os.environ:  # else the core starts MPI, for many threads
    from mpi4py import MPI

    assert MPI.Query_thread() == MPI.THREAD_SERIALIZED
call("init")
if sys.argv[1] == "interrupted":
    MINE = team()
call("barrier")
globals()[sys.argv[1]]()
