"""Sums and roundings of every kind of number on two ranks: checked, and their digest printed.

The digests of two instruction sets are the same only if every bit is.
"""

from __future__ import annotations

import hashlib

import numpy as np
from comm_core import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    MEAN,
    SUM,
    TYPES,
    aggregate,
    call,
    core,
    expected,
    layout,
    narrowed,
    same_bits,
    team,
    widened,
)  # fmt: skip

call("init")
me, size = core.fairlead_comm_rank(), core.fairlead_comm_size()
kernels = layout().kernels.decode()
one = team()
digest = hashlib.sha256()


def reduced(parts: list[np.ndarray], dtype: int, operation: int) -> np.ndarray:
    result = parts[me].copy()
    aggregate(one, [(result, None, dtype)], operation)
    return result


def odd(dtype: int, rng: np.random.Generator, count: int) -> np.ndarray:
    """Any bits at all, then denormal numbers, infinities, zeros, ties between two halves."""
    whole = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(TYPES[dtype]).itemsize]
    bits = rng.integers(0, np.iinfo(whole).max, count, whole, endpoint=True)
    if dtype != FLOAT64:
        small = rng.normal(size=count // 2).astype(np.float32) * np.float32(2.0**-133)
        ties = (rng.integers(0, 1 << 32, count // 4, np.uint32) & 0xFFFF8000).view(np.float32)
        for values in (small, ties):
            bits[: values.size] = narrowed(values, dtype).view(whole)
            bits = np.roll(bits, values.size)
    special = narrowed(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 6e-8, 65520, 3.4e38], np.float32),
                       dtype if dtype != FLOAT64 else FLOAT32)  # fmt: skip
    if dtype == FLOAT64:
        special = special.astype(np.float64)
    bits[rng.integers(0, count, 200)] = np.resize(special, 200).view(whole)
    return bits.view(TYPES[dtype])


np.seterr(all="ignore")
for dtype in (FLOAT32, FLOAT64, FLOAT16, BFLOAT16):
    for operation in (SUM, MEAN):
        for count in (1500, 70_001):  # with the arrival, and by chunks
            rng = np.random.default_rng((dtype, count))
            parts = [odd(dtype, rng, count) for _ in range(size)]
            result = reduced(parts, dtype, operation)
            want = expected(parts, dtype, operation)
            assert same_bits(result, want, dtype), (dtype, operation, count)
            digest.update(result.tobytes())

# Every half there is, unchanged by adding nothing: -0 keeps the sign of zero.
for dtype in (FLOAT16, BFLOAT16):
    all_bits = np.arange(1 << 16, dtype=np.uint16).view(TYPES[dtype])
    nothing = np.full(1 << 16, 0x8000, np.uint16).view(TYPES[dtype])
    result = reduced([all_bits if rank == 0 else nothing for rank in range(size)], dtype, SUM)
    assert same_bits(result, all_bits, dtype)
    digest.update(result.tobytes())

# float32 that travels as halves: the other's part and the result are rounded to nearest even.
for wire in (FLOAT16, BFLOAT16):
    rng = np.random.default_rng(wire)
    values = odd(FLOAT32, rng, 200_000)
    values[: 1 << 16] = widened(np.arange(1 << 16, dtype=np.uint16).view(TYPES[wire]), wire)
    values[1 << 16 : 1 << 17] = np.nextafter(values[: 1 << 16], np.float32(np.inf))
    nothing = np.full(values.size, -0.0, np.float32)
    result = reduced(
        [values if rank == 0 else nothing for rank in range(size)], FLOAT32, SUM | wire << 8
    )
    assert same_bits(result, widened(narrowed(values, wire), wire), FLOAT32), wire
    digest.update(result.tobytes())
    # A sum of ordinary numbers, in the same room: within the rounding of the parts and of the result.
    parts = [
        np.random.default_rng((wire, rank)).normal(size=100_000).astype(np.float32)
        for rank in range(size)
    ]
    result = reduced(parts, FLOAT32, MEAN | wire << 8)
    exact = np.mean(parts, axis=0, dtype=np.float64)
    unit = 2.0**-11 if wire == FLOAT16 else 2.0**-8
    most = np.mean(np.abs(parts), axis=0, dtype=np.float64)
    assert (np.abs(result - exact) <= 2 * unit * most + 2.0**-24).all()
    assert (result != exact.astype(np.float32)).any(), (
        "nothing was rounded: is the wire narrower at all?"
    )
    digest.update(result.tobytes())

# Halves are summed in float32: 2048 + 1 + 1 is 2050, and 2048 in float16 all the way.
for dtype, big in ((FLOAT16, 2048.0), (BFLOAT16, 256.0)):
    parts = [
        narrowed(np.full(5000, big if rank == 0 else 1.0, np.float32), dtype)
        for rank in range(size)
    ]
    got = widened(reduced(parts, dtype, SUM), dtype)
    assert (got == widened(narrowed(np.float32([big + size - 1]), dtype), dtype)).all()
call("finalize")
if me == 0:
    print(f"ok {kernels} {digest.hexdigest()}\n", end="")
