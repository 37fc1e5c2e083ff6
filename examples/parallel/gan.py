"""A GAN with a team for each network: their gradients are averaged at once. With -n 1, the same bits.

Rank 0 starts with the discriminator's, the others with the generator's: teams need no common order.

$ fairlead run -n 2 mpi-base -- python3 examples/parallel/gan.py
"""

import numpy as np

from fairlead import comm

SHARDS, SAMPLES, MEAN, SPREAD = 2, 256, 3.0, 0.5
ranks = comm.init()
teams = [ranks.team(threads=2, name=name) for name in ("generator", "discriminator")]
nets = [np.array([0.0, 1.0]), np.zeros(3)]  # x = a + b z; probability of w + v x + u x^2


def gradients(step, shard):
    """Of both networks, at the same weights."""
    z, real = np.random.default_rng((step, shard)).normal(size=(2, SAMPLES))
    fake = nets[0][0] + nets[0][1] * z
    of_discriminator = nets[1] * 0.1  # what keeps it from running away
    for x, label in ((MEAN + SPREAD * real, 1.0), (fake, 0.0)):
        inputs = np.array([np.ones(SAMPLES), x, x**2])
        wrong = 1 / (1 + np.exp(-nets[1] @ inputs)) - label
        of_discriminator = of_discriminator + inputs @ wrong / SAMPLES
    back = (wrong - 1) * (nets[1][1] + 2 * nets[1][2] * fake)  # the generator wants label 1
    return np.array([back.mean(), (back * z).mean()]), of_discriminator


order = (1, 0) if ranks.rank == 0 and ranks.backend.startswith("native") else (0, 1)
for step in range(2000):
    own = [gradients(step, shard) for shard in range(ranks.rank, SHARDS, ranks.size)]
    means = [sum(each[1:], each[0]) / len(each) for each in zip(*own, strict=True)]
    under_way = {at: teams[at].start([means[at]]) for at in order}
    nets = [nets[at] - 0.02 * under_way[at].wait()[0] for at in (0, 1)]
same = ranks.check_buffers_match(nets)
if ranks.rank == 0:
    print(f"mean {nets[0][0]:.2f} of {MEAN}, spread {abs(nets[0][1]):.2f} of {SPREAD}")
    print(f"the same bits on all ranks: {same.matches}, sha256 {same.digests[0]}")
