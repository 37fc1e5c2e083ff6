"""Every rank: matrices go from block rows to block-cyclic and back, and to other block rows; ``bridge_layout.py CASES``.

All ranks draw the same examples; a rank that finds a difference ends them all."""

import sys

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from fairlead.bridge import layout
from fairlead.bridge.collectives import Collectives
from fairlead.bridge.layout import BlockCyclic, BlockRows

COMM = Collectives(MPI.COMM_WORLD.Dup())
PATTERN = np.random.default_rng(3).bytes(70 * 25 * 8)  # any bits, so also those of NaN


@st.composite
def partitions(draw, rows):
    """Rows of each rank: any, or all on one."""
    if draw(st.integers(0, 3)) == 0:
        one = draw(st.integers(0, COMM.size - 1))
        return BlockRows(tuple(rows * (rank == one) for rank in range(COMM.size)))
    cuts = sorted(
        draw(st.lists(st.integers(0, rows), min_size=COMM.size - 1, max_size=COMM.size - 1))
    )
    return BlockRows(
        tuple(end - begin for begin, end in zip([0, *cuts], [*cuts, rows], strict=True))
    )


def equal(one, other):
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


@settings(
    max_examples=int(sys.argv[1]),
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
)
@given(
    data=st.data(),
    rows=st.integers(0, 70),
    columns=st.integers(0, 25),
    kind=st.sampled_from(["f4", "f8", "i4", "i8"]),
    strip=st.sampled_from([1, 300, 64 << 20]),
    block=st.integers(1, 8),
)
def comes_back(data, rows, columns, kind, strip, block):
    size = rows * columns
    whole = np.frombuffer(PATTERN, kind, size).reshape(rows, columns)
    layout.STRIP_BYTES = strip
    old, new = data.draw(partitions(rows)), data.draw(partitions(rows))
    local = np.ascontiguousarray(whole[slice(*old.range(COMM.rank))])
    moved = layout.to_rows(local, old, new, COMM)
    assert equal(moved, whole[slice(*new.range(COMM.rank))]), (old, new)
    down = data.draw(st.integers(1, COMM.size))
    dealt = BlockCyclic(rows, columns, block, down, COMM.size // down)
    part = layout.to_cyclic(local, old, dealt, COMM)
    place = dealt.place(COMM.rank)
    if place:
        at = np.ix_(dealt.down.indices(place[0]), dealt.across.indices(place[1]))
        assert equal(part, whole[at]), dealt
    else:
        assert part.size == 0
    back = layout.from_cyclic(part, dealt, new, COMM)
    assert equal(back, whole[slice(*new.range(COMM.rank))]), (dealt, old, new)
    comes_back.seen += rows > 0 and columns > 0


comes_back.seen = 0
comes_back()
assert comes_back.seen > int(sys.argv[1]) // 2
if COMM.rank == 0:
    print(f"{sys.argv[1]} came back")
