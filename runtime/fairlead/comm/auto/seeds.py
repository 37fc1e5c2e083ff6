"""Random numbers that a script has not seeded: the same on all ranks, so that what it shuffles, splits or makes is.

What a script seeds itself stays as it says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def of_random(random: Any) -> None:
    """The standard library's generator."""
    random.seed(0)


def of_numpy(random: Any) -> None:
    """``numpy.random``: its global generator, and those made without a seed, which all take it from ``randbits``."""
    own, process, calls = random.bit_generator.randbits, os.getpid(), 0

    def randbits(bits: int) -> int:
        import hashlib

        nonlocal calls
        if os.getpid() != process:  # a loader's worker: it augments samples, each in its own way
            result: int = own(bits)
            return result
        calls += 1
        digest = hashlib.shake_256(b"fairlead %d" % calls).digest((bits + 7) // 8)
        return int.from_bytes(digest, "little") & ((1 << bits) - 1)

    random.bit_generator.randbits = randbits
    random.seed(0)


@contextmanager
def kept() -> Iterator[None]:
    """Around what seeds Python's and NumPy's generators, too, which the script may have seeded already."""
    python, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    states = python and python.getstate(), numpy and numpy.get_state()
    yield
    if python:
        python.setstate(states[0])
    if numpy:
        numpy.set_state(states[1])
