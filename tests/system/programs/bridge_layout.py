"""Every rank: matrices go from block rows to block-cyclic and back, and to other block rows; ``bridge_layout.py SEED CASES``.

Prints how many came back bit for bit; a rank that finds a difference fails."""

import sys

import numpy as np
from mpi4py import MPI

from fairlead.bridge import layout
from fairlead.bridge.collectives import Collectives
from fairlead.bridge.layout import BlockCyclic, BlockRows

COMM = Collectives(MPI.COMM_WORLD.Dup())
TYPES = [np.float32, np.float64, np.int32, np.int64]


def counts(random, rows):
    """Rows of each rank; often some ranks have none, or one has all."""
    if random.random() < 0.2:
        one = random.integers(COMM.size)
        return BlockRows(tuple(rows * int(rank == one) for rank in range(COMM.size)))
    cuts = np.sort(random.integers(0, rows + 1, COMM.size - 1))
    return BlockRows(tuple(int(n) for n in np.diff([0, *cuts, rows])))


def equal(one, other):
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


def case(random):
    rows, columns = int(random.integers(0, 70)), int(random.integers(0, 25))
    # Any bits, so also those of NaN: nothing may compute with them.
    kind = np.dtype(random.choice(TYPES))
    whole = np.frombuffer(random.bytes(rows * columns * kind.itemsize), kind).reshape(rows, columns)
    layout.STRIP_BYTES = int(random.choice([1, 300, 64 << 20]))
    old, new = counts(random, rows), counts(random, rows)
    local = np.ascontiguousarray(whole[slice(*old.range(COMM.rank))])
    moved = layout.to_rows(local, old, new, COMM)
    assert equal(moved, whole[slice(*new.range(COMM.rank))]), (old, new)
    down = int(random.integers(1, COMM.size + 1))
    dealt = BlockCyclic(rows, columns, int(random.integers(1, 9)), down, COMM.size // down)
    part = layout.to_cyclic(local, old, dealt, COMM)
    place = dealt.place(COMM.rank)
    if place:
        at = np.ix_(dealt.down.indices(place[0]), dealt.across.indices(place[1]))
        assert equal(part, whole[at]), dealt
    else:
        assert part.size == 0
    back = layout.from_cyclic(part, dealt, new, COMM)
    assert equal(back, whole[slice(*new.range(COMM.rank))]), (dealt, old, new)


stream = np.random.default_rng(int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    case(stream)
if COMM.rank == 0:
    print(f"{sys.argv[2]} came back")
