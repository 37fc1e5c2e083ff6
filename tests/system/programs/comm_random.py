"""Random lists of tensors over several teams, blocking and started, against NumPy. Arguments: seed, rounds.

Every rank draws the same plan and can make every rank's tensors, so each knows what must come out.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from comm_core import (
    BFLOAT16,
    BYTES,
    FLOAT16,
    FLOAT32,
    INT32,
    INT64,
    MEAN,
    NAMES,
    TYPES,
    Match,
    aggregate,
    call,
    core,
    expected,
    layout,
    same_bits,
    start,
    team,
    tensors,
    unaligned,
    widened,
)  # fmt: skip

seed, rounds = int(sys.argv[1]), int(sys.argv[2])
plan = np.random.default_rng(seed)
call("init")
me, size = core.fairlead_comm_rank(), core.fairlead_comm_size()
one_node = layout().nodes == 1
teams = [team(int(threads)) for threads in (1, 2, 1)]
waiting: list[list] = [[] for _ in teams]
WIRE = (0, FLOAT16, BFLOAT16)


class Pool:
    """Memory that the ranks of a node share, for the tensors of a step."""

    def __init__(self, size: int):
        at = ctypes.c_void_p()
        call("alloc", ctypes.c_uint64(size), ctypes.byref(at))
        self.address, self.size, self.used = at.value or 0, size, 0
        self.bytes = np.frombuffer((ctypes.c_char * size).from_address(self.address), np.uint8)

    def place(self, array: np.ndarray, offset: int) -> np.ndarray | None:
        """A copy of ``array`` there, at any address; None where there is no more room."""
        start_at = self.used + offset
        if start_at + array.nbytes > self.size:
            return None
        self.used = start_at + array.nbytes
        made = self.bytes[start_at : self.used].view(array.dtype)
        made[:] = array
        return made


pools = [Pool(8 << 20) for _ in teams]


def values(of_seed: int, rank: int, count: int, dtype: int) -> np.ndarray:
    rng = np.random.default_rng((of_seed, rank))
    if dtype in (INT32, INT64):
        info = np.iinfo(TYPES[dtype])
        return rng.integers(info.min, info.max, count, TYPES[dtype], endpoint=True)
    if dtype == BYTES:
        return rng.integers(0, 255, count, np.uint8, endpoint=True)
    normal = rng.normal(size=count).astype(np.float64 if dtype == 1 else np.float32)
    if dtype == BFLOAT16:
        return (np.ascontiguousarray(normal).view(np.uint32) >> 16).astype(np.uint16)
    return normal.astype(TYPES[dtype])


def check(drawn: list, operation: int, wire: int, which: str) -> None:
    for i, (of_seed, count, dtype, given, out) in enumerate(drawn):
        parts = [values(of_seed, rank, count, dtype) for rank in range(size)]
        result = given if out is None else out
        if out is not None:
            assert given.tobytes() == parts[me].tobytes(), f"{which}, tensor {i}: its input changed"
        if dtype in (INT32, INT64):
            with np.errstate(over="ignore"):
                assert (result == np.sum(parts, axis=0, dtype=TYPES[dtype])).all(), f"{which}, {i}"
            continue
        want = expected(parts, dtype, operation)
        if one_node and not (wire and dtype == FLOAT32):
            ok = same_bits(result, want, dtype)
        else:
            # Each rank's part and each partial sum is rounded to a half once: 2^-11 and 2^-8 of the largest.
            unit = {FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}.get(
                wire if dtype == FLOAT32 else dtype, 2.0**-23
            )
            scale = 1 / size if operation & 1 else 1
            most = (
                np.sum([np.abs(widened(p, dtype).astype(np.float64)) for p in parts], axis=0)
                * scale
            )
            error = np.abs(widened(result, dtype).astype(np.float64) - widened(want, dtype))
            ok = bool((error <= unit * (size + 2) * most + 1e-7).all())
        assert ok, (
            f"{which}, tensor {i} of {count} {NAMES[dtype]}, operation {operation}, wire {wire}"
        )


def finish(which: int) -> None:
    ticket, drawn, operation, wire, name = waiting[which].pop(0)
    call("wait", teams[which], ticket)
    assert core.fairlead_comm_done(teams[which], ticket) == 1
    check(drawn, operation, wire, name)


for step in range(rounds):
    which, background = int(plan.integers(len(teams))), bool(plan.integers(2))
    operation = int(plan.integers(2))
    wire = WIRE[int(plan.integers(3))] if plan.integers(3) == 0 else 0
    drawn, rows = [], []
    # Of some steps, every tensor of every rank is in shared memory; of others, that of some ranks.
    kind, odd_rank = int(plan.integers(4)), int(plan.integers(size))
    pool = pools[which] if kind < 2 and not (kind == 1 and odd_rank == me) else None
    if pool is not None and not waiting[which]:
        pool.used = 0
    for _ in range(int(plan.integers(0, 9))):
        dtype = int(plan.choice((0, 0, 1, 2, 3) if operation == MEAN else (0, 0, 1, 2, 3, 4, 5)))
        # Most are small, some larger than all chunks in flight.
        count = int(
            plan.choice((0, 1, 7, 63, 64, 65, 1000, 20_000, 300_000), p=(0.1,) * 8 + (0.2,))
        )
        count = int(plan.integers(0, count + 1))
        of_seed, offset, place = (
            int(plan.integers(1 << 30)),
            int(plan.integers(16)),
            bool(plan.integers(2)),
        )
        own, room = values(of_seed, me, count, dtype), np.zeros(count, TYPES[dtype])
        other = int(plan.integers(16))
        given = (pool.place(own, offset) if pool else None) if count else None
        given = unaligned(own, offset) if given is None else given
        out = None
        if not place:
            out = (pool.place(room, other) if pool else None) if count else None
            out = unaligned(room, other) if out is None else out
        drawn.append((of_seed, count, dtype, given, out))
        rows.append((given, out, dtype))
    name = f"seed {seed}, step {step}, team {which}"
    if background:
        ticket = start(teams[which], rows, operation | wire << 8)
        waiting[which].append((ticket, drawn, operation, wire, name))
    else:
        aggregate(teams[which], rows, operation | wire << 8)
        check(drawn, operation, wire, name)
    # Each rank waits when it likes: the order in which tickets are waited for is nobody's business.
    mine = np.random.default_rng((seed, step, me))
    for team_number in mine.permutation(len(teams)):
        while waiting[team_number] and mine.integers(3) == 0:
            finish(int(team_number))
    if plan.integers(6) == 0:
        root, dtype = int(plan.integers(size)), int(plan.integers(7))
        count, of_seed = int(plan.integers(0, 100_000)), int(plan.integers(1 << 30))
        given = unaligned(values(of_seed, me, count, dtype), int(plan.integers(16)))
        rows = [(given, None, dtype)]
        call("broadcast", tensors(*rows), ctypes.c_uint64(1), root)
        assert given.tobytes() == values(of_seed, root, count, dtype).tobytes(), (
            f"{name}: broadcast"
        )
        found = Match()
        call("match", tensors(*rows), ctypes.c_uint64(1), ctypes.byref(found))
        assert found.matches == 1 and found.rank == found.tensor == -1
for which in range(len(teams)):
    while waiting[which]:
        finish(which)
for pool in pools:
    call("free", ctypes.c_void_p(pool.address))
assert core.fairlead_comm_free(ctypes.c_void_p(pools[0].address)) != 0
call("finalize")
print("ok\n", end="")
