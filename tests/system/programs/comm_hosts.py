"""Sums of COUNT float32, ROUNDS times, on two hosts with two ranks each: ``comm_hosts.py COUNT ROUNDS``."""

from __future__ import annotations

import sys

import numpy as np
from comm_core import FLOAT32, SUM, aggregate, call, layout, team

count, rounds = int(sys.argv[1]), int(sys.argv[2])
call("init")
found = layout()
assert (found.size, found.nodes, found.local_size, found.shared_memory) == (4, 2, 2, 1), (
    found.why_not
)
assert found.host == (b"node1" if found.rank < 2 else b"node2")
values = np.arange(count, dtype=np.float32) % 1000
one = team()
for step in range(rounds):
    mine = values * np.float32(found.rank + step)
    aggregate(one, [(mine, None, FLOAT32)], SUM)
    assert (mine == values * (6 + 4 * step)).all()
call("finalize")
print("ok\n", end="")
