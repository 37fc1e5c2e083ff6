"""What ranks do that do not all do the same: ``parallel.py CASE [WORDS]``. Each checks itself, and says ``RANK: WORDS``."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from fairlead import comm
from fairlead.base.errors import FairleadError
from fairlead.comm.pipeline import SCHEDULES, Pipeline
from fairlead.comm.stale import StaleSGD

WIDTH, LAYERS, MICROBATCHES, SAMPLES = 24, 4, 6, 8
DTYPES = ("f4", "f8", "i8", "c8", "?", "u1", "f2")


def say(words: str) -> None:
    sys.stdout.write(f"{comm.rank()}: {words}\n")
    sys.stdout.flush()


class Dense:
    """Layers with tanh."""

    def __init__(self, numbers: range, samples: np.ndarray):
        self.weights = [
            np.random.default_rng(n).normal(0, 0.2, (WIDTH, WIDTH)).astype("f4") for n in numbers
        ]
        self.samples, self.kept, self.most = samples, {}, 0
        self.gradients = [np.zeros_like(w) for w in self.weights]

    def forward(self, at: int, x: np.ndarray | None) -> np.ndarray:
        self.kept[at] = xs = [self.samples[at] if x is None else x]
        self.most = max(self.most, len(self.kept))
        for w in self.weights:
            xs.append(np.tanh(xs[-1] @ w))
        return xs[-1]

    def backward(self, at: int, back: np.ndarray | None) -> np.ndarray:
        xs = self.kept.pop(at)
        back = xs[-1] - 0.5 if back is None else back
        for n in reversed(range(len(self.weights))):
            back = back * (1 - xs[n + 1] ** 2)
            self.gradients[n] = self.gradients[n] + xs[n].T @ back
            back = back @ self.weights[n].T
        return back


def samples_of(replica: int, step: int) -> np.ndarray:
    shape = (MICROBATCHES, SAMPLES, WIDTH)
    return np.random.default_rng((replica, step)).uniform(-1, 1, shape).astype("f4")


def traffic() -> None:
    """Messages of any size, dtype and tag to any rank, in an order that all know and each goes through in its own way."""
    links = comm.init().point_to_point()
    random = np.random.default_rng(4)
    plan = []
    for number in range(200):
        source, to = random.integers(0, links.size, 2)
        shape = tuple(random.integers(0, 5, random.integers(0, 4)))
        if number % 40 == 0:
            shape = (300_000 + number,)  # larger than MPI sends at once
        plan.append((int(source), int(to), int(random.integers(0, 3)), shape, DTYPES[number % 7]))

    def array(number: int) -> np.ndarray:
        *_, shape, dtype = plan[number]
        return np.random.default_rng(number).integers(0, 2, shape).astype(dtype)

    mine = [n for n, (source, *_) in enumerate(plan) if source == links.rank]
    sent = [links.isend(array(n), plan[n][1], plan[n][2]) for n in mine]
    theirs = [n for n, (_, to, *_) in enumerate(plan) if to == links.rank]
    theirs.sort(key=lambda n: (plan[n][2], -plan[n][0], n))  # other tags and ranks first
    for n in theirs:
        out = array(n) if n % 3 else None
        if out is not None:
            out[...] = 0
        got = links.recv(plan[n][0], plan[n][2], out)
        want = array(n)
        assert got is out or out is None
        assert got.dtype == want.dtype and got.shape == want.shape, (n, plan[n], got)
        assert got.tobytes() == want.tobytes(), n
    for each in sent:
        each.wait()
    links.flush()
    say(f"{len(mine)} sent, {len(theirs)} received")


def apart() -> None:
    """Messages of two communicators do not mix, and parts have their own ranks."""
    ranks = comm.init()
    one, two = ranks.point_to_point(), ranks.point_to_point()
    other = (ranks.rank + 1) % ranks.size
    one.isend(np.array(1), other)
    two.isend(np.array(2), other)
    before = (ranks.rank - 1) % ranks.size
    assert (int(two.recv(before)), int(one.recv(before))) == (2, 1)
    part = ranks.split(ranks.rank % 2)
    members = [r for r in range(ranks.size) if r % 2 == ranks.rank % 2]
    assert (part.rank, part.size) == (members.index(ranks.rank), len(members))
    (mean,) = part.aggregate([np.array([float(ranks.rank)])])
    assert mean[0] == np.mean(members)
    assert part.gather(ranks.rank, root=0) == (members if part.rank == 0 else None)
    (total,) = ranks.sum([np.array([1.0])])
    say(f"part of {part.size}, all {total[0]:g}")


def stale(bound: str) -> None:
    """Random pauses on each rank: the bound holds, all ranks end with the same bits, and 0 is synchronous."""
    ranks, steps = comm.init(), 40
    links = ranks.point_to_point()
    truth = np.linspace(-1, 1, 8)
    pauses = np.random.default_rng(ranks.rank).exponential(0.002, steps)

    def gradients(weights: list[np.ndarray], rank: int, step: int) -> list[np.ndarray]:
        x = np.random.default_rng((rank, step)).normal(size=(32, 8))
        wrong = x @ (weights[0] - truth) + weights[1]
        return [x.T @ wrong / 32, np.array(wrong.mean())]

    start = [np.zeros(8), np.array(1.0)]
    sgd = StaleSGD(
        links, start, rate=0.1, momentum=0.3, bound=None if bound == "none" else int(bound)
    )
    own = steps - (
        ranks.rank if bound == "none" else 0
    )  # without a bound they need not make as many
    while sgd.steps < own:
        time.sleep(pauses[sgd.steps])
        sgd.step(gradients(sgd.weights, ranks.rank, sgd.steps))
    weights = sgd.finish()
    assert sgd.total == sum(ranks.gather(own) or [sgd.total])
    assert ranks.check_buffers_match(weights).matches
    assert np.abs(weights[0] - truth).max() < 0.2
    most = max(sgd.staleness)
    assert bound == "none" or most <= int(bound), sgd.staleness
    alone, velocity = start, [np.zeros(8), np.array(0.0)]
    for step in range(steps):
        every = [gradients(alone, rank, step) for rank in range(ranks.size)]
        means = [sum(g[1:], g[0]) / ranks.size for g in zip(*every, strict=True)]
        velocity = [0.3 * v + g for v, g in zip(velocity, means, strict=True)]
        alone = [w - 0.1 * v for w, v in zip(alone, velocity, strict=True)]
    same = all(a.tobytes() == b.tobytes() for a, b in zip(weights, alone, strict=True))
    say(f"the bits of one process: {same}")


def hybrid(schedule: str) -> None:
    """Two replicas of a pipeline: stages exchange within a replica, replicas average within a stage."""
    ranks, steps = comm.init(), 3
    stages = ranks.size // 2
    replica, at = divmod(ranks.rank, stages)
    links = ranks.split(replica, "replica").point_to_point()
    across = ranks.split(at, "stage")
    numbers = range(LAYERS * at // stages, LAYERS * (at + 1) // stages)
    own, alone = Dense(numbers, np.empty(0)), Dense(range(LAYERS), np.empty(0))
    pipeline = Pipeline(links, own, SCHEDULES[schedule])
    for step in range(steps):
        own.samples, own.gradients = samples_of(replica, step), [0.0 for _ in own.weights]
        pipeline.step(MICROBATCHES)
        means = across.aggregate(own.gradients)
        own.weights = [w - 0.05 * g for w, g in zip(own.weights, means, strict=True)]
        every = []
        for each in (0, 1):  # all of it in this process
            alone.samples, alone.gradients = samples_of(each, step), [0.0 for _ in alone.weights]
            for microbatch in range(MICROBATCHES):
                alone.forward(microbatch, None)
                alone.backward(microbatch, None)
            every.append(alone.gradients)
        means = [(a + b) / 2 for a, b in zip(*every, strict=True)]
        alone.weights = [w - 0.05 * g for w, g in zip(alone.weights, means, strict=True)]
    for n, w in zip(numbers, own.weights, strict=True):
        assert w.tobytes() == alone.weights[n].tobytes(), n
    assert own.most == (MICROBATCHES if schedule == "gpipe" else min(stages - at, MICROBATCHES))
    say("the bits of one process")


def wide() -> None:
    """A layer by columns and one by rows, against the two without a split; halves of a sum are added in another order."""
    ranks, hidden = comm.init(), 48
    x, targets = np.random.default_rng(0).normal(size=(2, 16, WIDTH))
    whole = [np.random.default_rng(1).normal(0, 0.2, s) for s in ((WIDTH, hidden), (hidden, WIDTH))]
    own = slice(hidden * ranks.rank // ranks.size, hidden * (ranks.rank + 1) // ranks.size)
    first, second = whole[0][:, own].copy(), whole[1][own].copy()
    for _ in range(20):
        inner = np.tanh(x @ first)
        (output,) = ranks.sum([inner @ second])
        back = output - targets
        step = x.T @ ((back @ second.T) * (1 - inner**2))
        second -= 0.002 * inner.T @ back
        first -= 0.002 * step
        inner = np.tanh(x @ whole[0])
        back = inner @ whole[1] - targets
        step = x.T @ ((back @ whole[1].T) * (1 - inner**2))
        whole[1] -= 0.002 * inner.T @ back
        whole[0] -= 0.002 * step
    for a, b in ((first, whole[0][:, own]), (second, whole[1][own])):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)
    say("within 1e-13 of one process")


def teams() -> None:
    """Two teams under way at once: rank 1 starts only when it knows that rank 0 has started both."""
    ranks = comm.init()
    generator, discriminator = ranks.team(2, "generator"), ranks.team(2, "discriminator")
    links = ranks.point_to_point()
    big = np.ones(300_000, "f4")
    for _ in range(3):
        if ranks.rank == 0:
            calls = [discriminator.start([big]), generator.start([big])]
            links.send(np.array(1), 1)
        else:
            links.recv(0)
            calls = [generator.start([big]), discriminator.start([big])]
        assert all((call.wait()[0] == 1).all() for call in calls)
    say("both")


class Faulty(Dense):
    """The middle stage does what its word says at its second microbatch."""

    def __init__(self, fault: str, numbers: range):
        super().__init__(numbers, samples_of(0, 0))
        self.fault = fault

    def forward(self, at: int, x: np.ndarray | None) -> np.ndarray:
        y = super().forward(at, x)
        if at == 1 and comm.rank() == 1:
            if self.fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "slow":
                time.sleep(8)
            if self.fault == "raises":
                raise RuntimeError("no such layer")
        return y


def fault(which: str) -> None:
    """Three stages, of which the second has a fault; the others say what they see."""
    ranks = comm.init()
    links = ranks.point_to_point()
    pipeline = Pipeline(links, Faulty(which, range(ranks.rank, ranks.rank + 1)))
    begun = time.monotonic()
    try:
        pipeline.step(MICROBATCHES)
    except FairleadError as exc:
        finding = exc.findings[0]
        say(f"{finding.check} after {time.monotonic() - begun:.0f} s: {finding.what}")
        time.sleep(1)  # the other says so, too
        os._exit(3)


def mismatch(which: str) -> None:
    """Rank 0 sends what rank 1 does not expect; both say what comes of it."""
    ranks = comm.init()
    links = ranks.point_to_point()
    given = np.ones((300, 1000), "f4")
    try:
        if ranks.rank == 0:
            links.send(given, 1, tag=3, limit_s=2)
            say("sent")
        elif which == "shape":
            links.recv(0, 3, out=np.zeros((1000, 300), "f4"))
        elif which == "dtype":
            links.recv(0, 3, out=np.zeros((300, 1000), "f8"))
        else:
            links.recv(0, tag=4, limit_s=1)
    except FairleadError as exc:
        say(f"{exc.findings[0].check}: {exc.findings[0].what}")
    ranks.barrier()
    if which != "tag":
        if ranks.rank == 0:
            links.send(np.array(5), 1, tag=3)
        else:  # what did not fit is gone
            assert int(links.recv(0, 3)) == 5
        say("went on")
        return
    os._exit(0)  # the message is still there: MPI would wait for its receiver


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    comm.finalize()
