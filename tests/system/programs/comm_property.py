"""Random trainings: all ranks end with the same bits, those of one process with the whole batch.

    mpiexec -n RANKS python3 comm_property.py EXAMPLES SEED

Hypothesis draws the same cases on every rank, and whether one holds is agreed upon, so that all ranks
go on, fail and shrink alike. A case trains weights w on a diagonal quadratic: rank r has the gradient
h_r (w - t_r), with a = lr h <= 1/4.

How far a run may be from the exact recurrence, which is computed in float64: an error e of one step becomes
(1 - a) e in the next, or e_t - a e_(t-1) where gradients are a step late. Both have impulse responses
between 0 and 1 for a <= 1/4, so that N steps with errors up to d each are off by at most N d. With u the unit
roundoff of gradients (float16 2^-11, bfloat16 2^-8, float32 2^-24, float64 2^-53), s that of the sums and of
the weights (float32 or float64), n ranks, c what compression rounds by, and G = h (|w| + |t|):

    d = lr (3 u + (n + 2) s + 2 c) G + 3 s (|w| + lr G)

doubled for terms of second order, and with it what small float16 lose: 2^-25 for each rounding.
"""

import itertools
import sys
from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from fairlead import comm
from fairlead.comm.core import BFLOAT16, narrowed, widened
from fairlead.comm.delayed import Delayed, Schedule
from fairlead.comm.powersgd import PowerSGD

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
TYPES = {"bfloat16": BFLOAT16, **{n: np.dtype(n) for n in ("float16", "float32", "float64")}}
RANKS = comm.init()
TEAMS = (RANKS.team(), RANKS.team(2))
ME, N = RANKS.rank, RANKS.size
SEEN = {"skipped": 0}
CLOSEST = dict.fromkeys(UNIT, 0.0)


@dataclass(frozen=True)
class Case:
    seed: int
    precision: str
    mode: str
    shapes: tuple[tuple[int, ...], ...]
    steps: int
    accumulate: int
    scaled: bool

    @property
    def master(self) -> type:
        return np.float64 if self.precision == "float64" else np.float32


MODES = (
    "synchronous", "fp16", "bf16", "teams", "started", "powersgd",
    "warm-up", "cool-down", "delayed", "delayed throughout",
)  # fmt: skip
SHAPES = st.lists(
    st.one_of(
        st.tuples(),
        st.tuples(st.integers(0, 3000)),
        st.tuples(st.integers(1, 60), st.integers(1, 60)),
        st.just((70_001,)),
    ),
    min_size=1,
    max_size=5,
).map(tuple)


def cases(precision: str, mode: str) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        seed=st.integers(0, 2**20),
        precision=st.just(precision),
        mode=st.just(mode),
        shapes=SHAPES,
        steps=st.integers(1, 12),
        accumulate=st.integers(1, 3),
        scaled=st.booleans(),
    )


class Problem:
    """What each rank is trained on; every rank can compute every rank's."""

    def __init__(self, case: Case):
        rng = np.random.default_rng(case.seed)
        self.case, self.rate = case, 0.25
        self.start = [rng.normal(size=shape).astype(case.master) for shape in case.shapes]
        parts = (N, case.accumulate)
        self.h = [rng.uniform(0, 1, (*parts, *shape)).astype(case.master) for shape in case.shapes]
        self.t = [rng.normal(size=(*parts, *shape)).astype(case.master) for shape in case.shapes]
        # Now and then a scaled gradient is too large for float16: all ranks then skip that step.
        self.spike = int(rng.integers(0, case.steps + 1)), int(rng.integers(0, N))

    def mine(self, weights: list[np.ndarray], step: int, scale: float) -> list[np.ndarray]:
        """This rank's gradient, summed over its micro-batches, in the precision of the case."""
        every = []
        for w, h, t in zip(weights, self.h, self.t, strict=True):
            total = np.zeros(w.shape, w.dtype)
            for part in range(self.case.accumulate):
                total += h[ME, part] * (w - t[ME, part])
            total = np.asarray(total * w.dtype.type(scale / self.case.accumulate), w.dtype)
            if scale > 1 and self.spike == (step, ME):
                total += w.dtype.type(1e30)
            every.append(np.asarray(narrowed(total, TYPES[self.case.precision])))
        return every

    def exact(self, weights: list[np.ndarray]) -> list[np.ndarray]:
        """The gradient of the whole batch in one process, in float64."""
        return [
            np.mean(h.astype("f8") * (w - t.astype("f8")), axis=(0, 1))
            for w, h, t in zip(weights, self.h, self.t, strict=True)
        ]

    def bound(self) -> float:
        case = self.case
        s, u = UNIT[np.dtype(case.master).name], UNIT[case.precision]
        c = {"fp16": UNIT["float16"], "bf16": UNIT["bfloat16"]}.get(case.mode, 0.0)
        c = c if case.precision == "float32" else 0.0
        size = max((float(np.abs(a).max(initial=0)) for a in (*self.start, *self.t)), default=0.0)
        w, g = 3 * size, 4 * size
        each = self.rate * (3 * u + (N + 2 + case.accumulate) * s + 2 * c) * g + 3 * s * (w + g)
        small = 3 * 2.0**-25 if "float16" in (case.precision,) or case.mode == "fp16" else 0.0
        return 2 * case.steps * (each + self.rate * small)


def late_of(case: Case) -> Delayed | None:
    schedule = {
        "warm-up": lambda: Schedule.fractions(case.steps, warmup=0.5),
        "cool-down": lambda: Schedule.fractions(case.steps, cooldown=0.5),
        "delayed": lambda: Schedule(case.steps, 1),
        "delayed throughout": lambda: Schedule(case.steps + 5, -5),
    }.get(case.mode)
    return (
        Delayed(RANKS, schedule(), momentum=0, tested=True, say=lambda _: None)
        if schedule
        else None
    )


def means_of(
    case: Case, gradients: list[np.ndarray], step: int, powersgd: PowerSGD
) -> list[np.ndarray]:
    if case.mode in ("fp16", "bf16"):
        return RANKS.aggregate(gradients, compression=case.mode)
    if case.mode == "powersgd":
        return powersgd.aggregate(gradients)
    if case.mode == "started":
        return RANKS.start(gradients).wait()
    if case.mode == "teams":
        # Two in flight at once; the core takes them in another order on each rank.
        halves = [(TEAMS[0], gradients[::2]), (TEAMS[1], gradients[1::2])]
        order = (0, 1)
        if RANKS.backend.startswith("native") and (ME + step) % 2:
            order = (1, 0)
        started = {which: halves[which][0].start(halves[which][1]) for which in order}
        done = {which: iter(pending.wait()) for which, pending in started.items()}
        return [next(done[i % 2]) for i in range(len(gradients))]
    return RANKS.aggregate(gradients)


def trained(problem: Problem) -> tuple[list[np.ndarray], list[list[bool]], float]:
    """The weights, which updates were applied in each step, and what PowerSGD has left out."""
    case = problem.case
    weights = [w.copy() for w in problem.start]
    scaled = case.scaled and case.precision == "float16" and case.mode not in ("powersgd",)
    late, powersgd, scale = late_of(case), PowerSGD(RANKS, rank=2), 2.0**8 if scaled else 1.0
    applied: list[list[bool]] = []

    def update(means: list[np.ndarray]) -> bool:
        wide = [widened(np.asarray(m)) for m in means]
        finite = all(np.isfinite(m).all() for m in wide)
        if finite:
            for w, m in zip(weights, wide, strict=True):
                w -= w.dtype.type(problem.rate / scale) * m
        return finite

    for step in range(case.steps):
        with np.errstate(over="ignore"):
            gradients = problem.mine(weights, step, scale)
        if late is not None:
            applied.append([update(list(means)) for means in late.step(gradients)])
        else:
            applied.append([update(means_of(case, gradients, step, powersgd))])
    if late is not None:
        applied.append([update(list(means)) for means in late.flush()])
    left = 0.0
    if case.mode == "powersgd":
        for kept in powersgd._kept.values():
            (mean,) = RANKS.aggregate([kept.error])
            left = max(left, float(np.abs(mean).max(initial=0)))
    return weights, applied, left


def exact(problem: Problem, applied: list[list[bool]]) -> list[np.ndarray]:
    """The recurrence of one process in float64, with the updates that were applied, in their steps."""
    weights = [w.astype("f8") for w in problem.start]
    queue: list[list[np.ndarray]] = []
    for step, updates in enumerate(applied):
        if step < problem.case.steps:
            queue.append(problem.exact(weights))
        for finite in updates:
            gradient = queue.pop(0)
            if finite:
                weights = [w - problem.rate * g for w, g in zip(weights, gradient, strict=True)]
    assert not queue, "a gradient was never applied"
    return weights


def check(case: Case) -> None:
    problem = Problem(case)
    weights, applied, left = trained(problem)
    same = RANKS.check_buffers_match([*weights, np.array([len(u) for u in applied])]).matches
    off, bound = 0.0, problem.bound()
    if case.mode != "powersgd":  # what that leaves out has a test of its own
        pairs = zip(weights, exact(problem, applied), strict=True)
        off = max((float(np.abs(w - e).max(initial=0)) for w, e in pairs), default=0.0)
    good = same and off <= bound and np.isfinite(left)
    note(f"rank {ME}: same bits {same}, off by {off:.3g}, bound {bound:.3g}, applied {applied}")
    SEEN["skipped"] += sum(not finite for updates in applied for finite in updates)
    if bound:  # none where there is no weight
        CLOSEST[case.precision] = max(CLOSEST[case.precision], off / bound)
    assert RANKS.average(float(good)) == 1.0


for number, (precision, mode) in enumerate(itertools.product(UNIT, MODES)):
    settled = settings(
        max_examples=int(sys.argv[1]), database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    seed(int(sys.argv[2]) + number)(settled(given(cases(precision, mode))(check)))()
assert SEEN["skipped"], "no step was skipped"
# A bound that nothing comes near says nothing.
assert min(CLOSEST.values()) > 0.003, CLOSEST
print("ok", flush=True)
comm.finalize()
