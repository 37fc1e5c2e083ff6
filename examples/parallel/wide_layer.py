"""Two layers too large for one rank: the first weight split by columns, the second by rows.

Words: hidden units; parts, of which each rank has its share; MB of memory that a rank may use for them. The same parts on
one rank give the same bits.

$ fairlead run -n 2 mpi-base -- python3 examples/parallel/wide_layer.py 65536 2 300
"""

import resource
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np

from fairlead import comm

hidden, parts, limit_mb = map(int, sys.argv[1:])
ranks, size, weights = comm.init(), 256, {}
used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0])
resource.setrlimit(resource.RLIMIT_DATA, 2 * ((used << 10) + (limit_mb << 20),))
x, targets = np.random.default_rng(0).normal(size=(2, 16, size))
for part in range(ranks.rank, parts, ranks.size):
    source, shape = np.random.default_rng(part), (size, hidden // parts)
    weights[part] = [source.normal(0, 0.03, each) for each in (shape, shape[::-1])]
for _ in range(5):
    output = np.zeros((parts, *targets.shape))  # of each part: other ranks add zeros to it
    for part, (first, second) in weights.items():
        output[part] = np.maximum(x @ first, 0) @ second
    back = (sum(ranks.sum([output])[0]) - targets) / targets.size  # parts in one order
    for first, second in weights.values():
        inner = x @ first
        step = x.T @ ((back @ second.T) * (inner > 0))
        second -= 1e3 / hidden * (np.maximum(inner, 0).T @ back)
        first -= 1e3 / hidden * step
digests = ranks.gather(b"".join(sha256(w).digest() for own in weights.values() for w in own))
if digests:
    bits = sha256(b"".join(digests)).hexdigest()
    print(f"error {np.abs(back).mean():.17g}, weights sha256 {bits}")
