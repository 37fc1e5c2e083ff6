"""What a backend makes of the same calls, one function a promise; one line of JSON each, from every rank.

Digests of results are compared over backends: two ranks' sums have one order only.
"""

import hashlib
import json
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"
# One of each: what waits for Horovod within a step must not hold the thread that Horovod's operation needs.
os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np

from fairlead import comm
from fairlead.base.errors import FairleadError
from fairlead.comm.delayed import Delayed, Schedule

RANKS = comm.init()
ME, SIZE = RANKS.rank, RANKS.size


def mine(seed=0):
    rng = np.random.default_rng((ME, seed))
    return [
        rng.normal(size=(5, 7)).astype(np.float32), rng.normal(size=()),
        (rng.normal(size=3) + 1j * rng.normal(size=3)).astype(np.complex64), np.zeros((0, 4)),
        rng.normal(size=(70_000, 3)).astype(np.float32), rng.normal(size=4) - 1j,
    ]  # fmt: skip


def bits(arrays):
    state = hashlib.sha256()
    for array in arrays:
        state.update(
            repr((array.dtype.str, array.shape)).encode() + np.ascontiguousarray(array).tobytes()
        )
    return state.hexdigest()


def aggregate():
    given = mine()
    kept = bits(given)
    means = comm.aggregate(given)
    untouched = bits(given) == kept
    into = comm.aggregate(given, out=given)
    same = all(a is b for a, b in zip(into, given, strict=True)) and bits(into) == bits(means)
    return [bits(means), untouched, same, comm.check_buffers_match(means).matches]


def compressed():
    return [bits(comm.aggregate(mine(), compression=how)) for how in ("fp16", "bf16")]


def broadcast():
    given = [*mine(), np.array([ME == 0, True]), np.arange(4) + ME, np.array(["ab", "cd"][ME])]
    return [bits(comm.broadcast(given, root=root)) for root in range(SIZE)]


def numbers():
    comm.barrier()
    wrong = comm.check_buffers_match([np.ones(3), np.full(2, float(ME))])
    return [comm.average(ME + 0.25), comm.gather(f"r{ME}", 1), wrong.first, list(wrong.ranks)]


def started():
    """Blocking calls come between, and the second is waited for first."""
    one, two = RANKS.start(mine(1)), RANKS.start(mine(2))
    between = comm.aggregate(mine(3))
    return [bits(two.wait()), bits(between), bits(one.wait()), one.wait() is one.wait(), two.done()]


def teams_in_any_order():
    one, two = RANKS.team(), RANKS.team(threads=2)
    found = []
    for step in range(10):
        order = [(one, np.full(90_001, ME, np.float32)), (two, np.full(3, ME + 1.0))]
        if (ME + step) % 2:
            order.reverse()
        pending = [(array.size, team.start([array])) for team, array in order]
        found.append(sorted((size, float(p.wait()[0].mean())) for size, p in pending))
    return [found[0], all(step == found[0] for step in found)]


def delayed():
    steps, mu, rate = 40, 0.5, 0.125
    target = np.arange(64, dtype=np.float64).reshape(SIZE, -1)[ME] / 64
    late = Delayed(RANKS, Schedule(steps, 10), momentum=mu, tested=True, say=lambda text: None)
    w, v = np.ones_like(target), np.zeros_like(target)
    for _ in range(steps):
        for (mean,) in late.step([w - target]):
            v = mu * v + mean
            w = w - rate * v
    for (mean,) in late.flush():
        v = mu * v + mean
        w = w - rate * v
    return [bits([w]), comm.check_buffers_match([w]).matches]


def differ():
    """Each is named, and the ranks can go on."""
    found = []
    for wrong in (
        lambda: comm.aggregate([np.ones(2), np.ones(4 if ME else 5)]),
        lambda: comm.aggregate([np.ones(2, "f4" if ME else "f8")]),
        lambda: comm.barrier() if ME else comm.average(1.0),
        lambda: comm.aggregate([np.arange(3)]),
    ):
        try:
            wrong()
            found.append("nothing")
        except FairleadError as exc:
            found.append([exc.findings[0].check, exc.findings[0].what])
    return [*found, float(comm.aggregate([np.full(9, ME, np.float32)])[0][0])]


def differ_behind():
    found = []
    for size in (2 + ME, 5):
        try:
            found.append(RANKS.start([np.full(size, ME, np.float32)]).wait()[0].tolist())
        except FairleadError as exc:
            found.append([exc.findings[0].check, exc.findings[0].where])
    return found


def keras_front():
    """From other weights, on other data: only broadcast and average make them equal."""
    import keras

    from fairlead.comm.keras import AverageMetrics, Broadcast, DistributedOptimizer

    keras.utils.set_random_seed(ME)
    model = keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    )
    rng = np.random.default_rng(ME)
    x, y = rng.normal(size=(64, 8)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
    model.compile(DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    history = model.fit(
        x, y, batch_size=16, epochs=3, verbose=0, shuffle=False, callbacks=[Broadcast(), AverageMetrics()]
    )  # fmt: skip
    weights = model.get_weights()
    return [comm.check_buffers_match(weights).matches, bits(weights), history.history["loss"][-1]]


CASES = (
    aggregate, compressed, broadcast, numbers, started, teams_in_any_order, delayed, differ, differ_behind,
    keras_front,
)  # fmt: skip
for case in CASES:
    if case.__name__ in sys.argv[1:] or len(sys.argv) == 1:
        found = {"case": case.__name__, "rank": ME, "seen": case()}
        sys.stdout.write(f"{json.dumps(found)}\n")
        sys.stdout.flush()
sys.stdout.write(f"{json.dumps({'case': 'backend', 'rank': ME, 'seen': RANKS.backend})}\n")
sys.stdout.flush()
comm.finalize()
