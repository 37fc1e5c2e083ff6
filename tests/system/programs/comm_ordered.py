"""Sums whose order is fixed, bit by bit against NumPy. Arguments: ranks a node; rounds.

Numbers of all sizes: another order of adding gives other bits, as the program makes sure of.
"""

from __future__ import annotations

import sys

import numpy as np

from fairlead import comm

per_node, rounds = int(sys.argv[1]), int(sys.argv[2])
ranks = comm.init()


def values(of_round: int, rank: int, count: int, dtype: type) -> np.ndarray:
    rng = np.random.default_rng((of_round, rank))
    return (rng.normal(size=count) * 10.0 ** rng.integers(-6, 6, count)).astype(dtype)


def added(parts: list[np.ndarray]) -> np.ndarray:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


differs = 0
for number in range(rounds):
    for dtype in (np.float32, np.float64):
        # More than a result that goes past the caches, an odd number, fewer than nodes.
        for count in (1_500_001, 70_001, 2):
            parts = [values(number, rank, count, dtype) for rank in range(ranks.size)]
            nodes = [added(parts[i : i + per_node]) for i in range(0, ranks.size, per_node)]
            total = added(nodes)
            # The core multiplies where the reference divides.
            native = ranks.backend.startswith("native")
            want = total * dtype(1 / ranks.size) if native else total / dtype(ranks.size)
            given = np.frombuffer(b"x" + parts[ranks.rank].tobytes(), np.uint8)[1:].view(dtype)
            (found,) = ranks.aggregate([given])
            assert found.tobytes() == want.tobytes(), (dtype, count, number)
            differs += added(nodes[::-1]).tobytes() != total.tobytes()
assert ranks.size <= 2 * per_node or differs
print("ok", differs) if ranks.rank == 0 else None
