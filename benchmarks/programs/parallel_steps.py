"""A rank of a pipeline, of a GAN, or a worker: ``parallel_steps.py SOCKET WHAT [WORDS]``; ``benchmarks/bars/parallel.py`` asks.

WHAT is ``pipeline``, ``gan``, ``stale SIZE`` or ``ps SIZE``, of which the last has the parameter server as rank 2.
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["OMP_NUM_THREADS"] = "1"

import turns

RANK = turns.rank_of()
WHAT = sys.argv[2]
if not (WHAT == "ps" and RANK == 2):  # the server serves from any core
    turns.pin(RANK)

import hashlib

import numpy as np


def digest_of(arrays):
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


# --- a pipeline of equal stages ------------------------------------------------------------------

WIDTH, SAMPLES, LAYERS = 512, 128, 4


class Dense:
    """Layers with tanh, and the seconds of each pass."""

    def __init__(self, rank):
        random = np.random.default_rng(rank)
        scale = WIDTH**-0.5
        self.weights = [random.normal(0, scale, (WIDTH, WIDTH)).astype("f4") for _ in range(LAYERS)]
        self.samples = random.uniform(-1, 1, (SAMPLES, WIDTH)).astype("f4")
        self.begin()

    def begin(self):
        self.kept, self.passes, self.gradients = {}, [], [0.0] * LAYERS

    def forward(self, at, x):
        begun = time.perf_counter()
        self.kept[at] = xs = [self.samples if x is None else x]
        for w in self.weights:
            xs.append(np.tanh(xs[-1] @ w))
        self.passes.append((False, at, time.perf_counter() - begun))
        return xs[-1]

    def backward(self, at, back):
        begun = time.perf_counter()
        xs = self.kept.pop(at)
        back = xs[-1] / xs[-1].size if back is None else back
        for n in reversed(range(LAYERS)):
            back = back * (1 - xs[n + 1] ** 2)
            self.gradients[n] = self.gradients[n] + xs[n].T @ back
            back = back @ self.weights[n].T
        self.passes.append((True, at, time.perf_counter() - begun))
        return back


def pipeline():
    from fairlead import comm
    from fairlead.comm.pipeline import SCHEDULES, Pipeline

    ranks = comm.init()
    stage, links = Dense(ranks.rank), ranks.point_to_point()

    def steps(schedule, microbatches, repeats):
        """Seconds of each step, and of its passes."""
        own, times = Pipeline(links, stage, SCHEDULES[schedule]), []
        for _ in range(repeats):
            stage.begin()
            ranks.barrier()
            begun = time.perf_counter()
            own.step(microbatches)
            times.append((time.perf_counter() - begun, stage.passes))
        return times

    def digest():
        return digest_of(stage.gradients)

    return {"steps": steps, "digest": digest}


# --- two networks at once --------------------------------------------------------------------------

ELEMENTS = 1 << 20  # of each network's gradients: 4 MB


class Networks:
    """Two networks' gradients, of known means, and something to compute between."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.teams = [ranks.team(2, name) for name in ("discriminator", "generator")]
        self.matrix = np.random.default_rng(ranks.rank).normal(size=(384, 384)).astype("f4")
        self.given = [np.full(ELEMENTS, n + ranks.rank, "f4") for n in (1, 3)]
        self.means = [np.empty(ELEMENTS, "f4") for _ in self.given]

    def compute(self, times):
        for _ in range(times):
            self.matrix @ self.matrix

    def none(self, times):
        self.compute(2 * times)

    def only(self, times):
        for n in (0, 1):
            self.teams[n].aggregate([self.given[n]], [self.means[n]])

    def in_turn(self, times):
        for n in (0, 1):
            self.compute(times)
            self.ranks.aggregate([self.given[n]], [self.means[n]])

    def fused(self, times):
        self.compute(2 * times)
        self.ranks.aggregate(self.given, self.means)

    def at_once(self, times):
        under_way = []
        for n in (0, 1):
            self.compute(times)
            under_way.append(self.teams[n].start([self.given[n]], [self.means[n]]))
        for each in under_way:
            each.wait()

    def right(self):
        expected = [n + (self.ranks.size - 1) / 2 for n in (1, 3)]
        return all((m == e).all() for m, e in zip(self.means, expected, strict=True))


def gan():
    from fairlead import comm

    networks = Networks(comm.init())

    def steps(mode, times, repeats):
        seconds = []
        for _ in range(repeats):
            networks.ranks.barrier()
            begun = time.perf_counter()
            getattr(networks, mode)(times)
            seconds.append(time.perf_counter() - begun)
            assert mode == "none" or networks.right(), mode
        return seconds

    return {"steps": steps}


# --- workers, one of which pauses --------------------------------------------------------------------


RATE = 0.003  # of the mean of both workers' gradients


def task_of(size):
    """HEP-CNN, of images between the two sizes that ``python -m benchmarks.peers`` has."""
    from benchmarks.peers import nets

    whole = nets.SIZES["full"]["hep"]
    return nets.Task(whole.name, (size, size, 3), whole.batch, whole.classes, whole.weights)


def pause_of(pauses, step, seconds):
    """``turns``: each worker pauses in every eighth step, for four times as long; ``always``: rank 1, in every step."""
    if RANK == 1 and pauses == "always":
        time.sleep(seconds)
    if pauses == "turns" and step % 8 == 3 + 4 * RANK:
        time.sleep(4 * seconds)


def stale(size):
    from benchmarks.peers import nets
    from benchmarks.peers import steps_tensorflow as steps

    from fairlead import comm
    from fairlead.comm.stale import StaleSGD

    steps.use_threads(1)
    import tensorflow as tf

    net = steps.Network("hep", task_of(int(size)), RANK)
    ranks = comm.init()
    links, start = ranks.point_to_point(), [v.numpy() for v in net.variables]
    compute = tf.function(net.gradients, autograph=False)
    loss_of = tf.function(net.loss, autograph=False)

    def assign(weights):
        for variable, weight in zip(net.variables, weights, strict=True):
            variable.assign(weight)

    def train(mode, pauses, seconds, gradients):
        """Until the workers have made so many gradients: how long, how many in all, the loss, how stale."""
        assign(start)
        begun = None
        if mode == "allreduce":
            velocity, made, weights = [np.zeros_like(w) for w in start], 0, start
            ranks.barrier()
            begun = time.perf_counter()
            while made < gradients:
                pause_of(pauses, made // ranks.size, seconds)
                means = ranks.aggregate([g.numpy() for g in compute()[0]])
                velocity = [nets.MOMENTUM * v + m for v, m in zip(velocity, means, strict=True)]
                weights = [w - RATE * v for w, v in zip(weights, velocity, strict=True)]
                assign(weights)
                made += ranks.size
            taken, histogram = time.perf_counter() - begun, {}
        else:
            bound = None if mode == "none" else int(mode)
            sgd = StaleSGD(links, start, RATE, nets.MOMENTUM, bound)
            ranks.barrier()
            begun = time.perf_counter()
            while sgd.total < gradients:
                pause_of(pauses, sgd.steps, seconds)
                sgd.step([g.numpy() for g in compute()[0]])
                assign(sgd.weights)
            taken = time.perf_counter() - begun
            weights, made, histogram = sgd.finish(), sgd.total, dict(sgd.staleness)
            assign(weights)
        assert ranks.check_buffers_match(weights).matches
        loss = ranks.average(float(loss_of()))
        return {"seconds": taken, "made": made, "loss": loss, "staleness": histogram}

    def step_s():
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            [g.numpy() for g in compute()[0]]
            times.append(time.perf_counter() - begun)
        return sorted(times)[2]

    return {"train": train, "step_s": step_s}


def ps(size):
    from benchmarks.peers import parameter_server
    from benchmarks.peers import steps_tensorflow as steps
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    steps.use_threads(1)
    at = [f"127.0.0.1:{port}" for port in os.environ["BENCH_PORTS"].split(",")]
    cluster = {"worker": at[:2], "ps": at[2:]}
    if RANK == 2:
        held = parameter_server.server(cluster, "ps", 0, 1)
        return {"train": lambda **words: bool(held) and {}, "ready": lambda: 0}
    workers, task = world.Create_group(world.group.Incl([0, 1])), task_of(int(size))
    net, worker = steps.Network("hep", task, RANK), parameter_server.Worker(cluster, RANK, 1)
    start = [v.numpy() for v in net.variables]
    training = worker.training("hep", task, steps.batch_of(task, RANK), start, RATE / 2)

    def train(pauses, seconds, gradients):
        if RANK == 0:
            training.reset()
        workers.Barrier()
        begun, step = time.perf_counter(), 0
        while training.updates() < gradients:
            pause_of(pauses, step, seconds)
            training.step()
            step += 1
        taken = time.perf_counter() - begun
        workers.Barrier()
        made, weights = training.updates(), training.weights()
        for variable, weight in zip(net.variables, weights, strict=True):
            variable.assign(weight)
        loss = workers.allreduce(float(net.loss())) / 2
        workers.Barrier()
        return {"seconds": taken, "made": made, "loss": loss}

    return {"train": train, "ready": lambda: float(training.step())}


def main():
    made = {"pipeline": pipeline, "gan": gan, "stale": stale, "ps": ps}[WHAT](*sys.argv[3:])
    turns.serve(sys.argv[1], made)
    sys.stdout.flush()
    os._exit(0)  # servers of TensorFlow would not let go


main()
