"""Every kind of Horovod's collectives against NumPy, on any number of ranks. What is wrong raises."""

import random
import sys

import numpy as np

from fairlead.comm.dropin import hvd, requests, rules, sets
from fairlead.comm.dropin.moves import rows_of

hvd.init()
ME, SIZE = hvd.rank(), hvd.size()
DTYPES = ("i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8")


def of(rank, rows=5, dtype="f4", seed=0):
    values = np.random.default_rng([rank, rows, seed]).integers(0, 9, (rows, 3))
    return values.astype(dtype)


def check(found, expected, what):
    assert found.dtype == expected.dtype, (what, found.dtype, expected.dtype)
    assert np.array_equal(found, expected), (what, ME, found, expected)


def collectives(members, ranks, dtype):
    """(name, request, expected) of each kind, for this rank."""
    me, size = ranks.index(ME), len(ranks)
    every = [of(r, dtype=dtype) for r in ranks]
    wide = np.stack(every).astype("f8")
    for op, whole in (
        (hvd.Sum, wide.sum(0)), (hvd.Min, wide.min(0)), (hvd.Max, wide.max(0)),
        (hvd.Average, wide.sum(0) // size if dtype[0] in "iu" else None),
    ):  # fmt: skip
        how = rules.Reduction(op)
        if whole is not None:
            yield f"{op}", (requests.ALLREDUCE, of(ME, dtype=dtype), {"how": how}), whole
        if whole is not None and op in (hvd.Sum, hvd.Average):
            ends = np.cumsum([0, *rows_of(5, size)])
            part = whole[ends[me] : ends[me + 1]]
            yield f"part {op}", (requests.REDUCESCATTER, of(ME, dtype=dtype), {"how": how}), part
    uneven = [of(r, r, dtype) for r in ranks]
    yield "gather", (requests.ALLGATHER, of(ME, ME, dtype), {}), np.concatenate(uneven)
    root = size - 1
    yield "root", (requests.BROADCAST, of(ME, dtype=dtype), {"how": root}), every[root]
    # to the k-th rank go k rows
    mine = of(ME, size, dtype, seed=1) if size > 1 else of(ME, 1, dtype, seed=1)
    splits = [1] * size
    theirs = np.stack([of(r, max(size, 1), dtype, seed=1)[me] for r in ranks])
    yield "all", (requests.ALLTOALL, mine, {"splits": tuple(splits)}), theirs


def everything(members, ranks, label):
    asked = [
        (f"{label} {dtype} {name}", request, expected.astype(dtype))
        for dtype in DTYPES
        for name, request, expected in collectives(members, ranks, dtype)
    ]
    mine = random.Random(ME)
    mine.shuffle(asked)
    handles = [
        (members.ask(kind, [array], name=name, **more), name, expected)
        for name, (kind, array, more), expected in asked
    ]
    mine.shuffle(handles)
    for handle, name, expected in handles:
        check(sets.engine().wait(handle).arrays[0], expected, name)


everything(hvd.global_process_set, list(range(SIZE)), "of all")
even, odd = list(range(0, SIZE, 2)), list(range(1, SIZE, 2))
if odd:
    made = [hvd.add_process_set(even), hvd.add_process_set(odd)]
    own = made[ME % 2]
    assert own.included() and not made[1 - ME % 2].included()
    assert (own.size(), own.rank()) == (len(own.ranks), ME // 2)
    everything(own, own.ranks, "some")
    found = hvd.allgather_object({"rank": ME, "long": "x" * 3000}, process_set=own)
    assert [each["rank"] for each in found] == own.ranks
    assert hvd.broadcast_object(ME, root_rank=own.ranks[-1], process_set=own) == own.ranks[-1]
    try:
        hvd.allreduce(np.ones(1), process_set=made[1 - ME % 2])
    except ValueError as exc:
        assert f"rank {ME} is not in the process set" in str(exc)
    else:
        raise AssertionError("a set of other ranks was used")
    for each in made:
        assert hvd.remove_process_set(each)
    assert list(hvd.get_process_set_ids_and_ranks()) == [0]

# what is sent is longer than a turn's first message
many = hvd.grouped_allreduce([np.full(3, float(n)) for n in range(200)], op=hvd.Sum)
assert all(np.array_equal(m, np.full(3, n * SIZE)) for n, m in enumerate(many))

for steps in range(ME):  # as many steps as the rank's number
    mean = hvd.allreduce(np.ones(2))
    check(mean, np.full(2, (SIZE - 1 - steps) / SIZE), "joined")
assert hvd.join() == SIZE - 1
check(hvd.allreduce(np.ones(2)), np.ones(2), "after the join")
if hvd.num_rank_is_power_2(SIZE):
    unit = np.zeros(SIZE)
    unit[ME] = 1 + ME
    check(hvd.allreduce(unit, op=hvd.Adasum), 1.0 + np.arange(SIZE), "adasum")
collected, received = hvd.alltoall(of(ME, sum(range(SIZE))), list(range(SIZE)))
assert received.tolist() == [ME] * SIZE and len(collected) == ME * SIZE
hvd.barrier()
sys.stdout.write(f"rank {ME}: right\n")
