"""A TensorFlow rank that trains: ``tf_steps.py SOCKET SIZE SIDE``; ``benchmarks/sides.py`` says when.

SIDE is ``fairlead`` (modes ``none``, ``sync``, ``delayed``, ``only``: communication without a step), ``horovod``, ``horovod-best``, ``mwms`` or ``ps``.
All modes have the same network, data, SGD with momentum, and cores; only what becomes of the gradients is
another. SIZE is ``full`` or ``tiny``.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import told

RANK = told.rank_of()
if not (sys.argv[3] == "ps" and RANK == 2):  # the server serves from any core
    told.pin(RANK)

import nets
import numpy as np
import tensorflow as tf
from tf_nets import Ops, initial, loss_of

# So low that nothing is learnt, and a delay does no harm: what is measured is time.
RATE, MOMENTUM = 1e-8, 0.9


def batch_of(task, rank):
    """The same samples in every step; others on each rank."""
    source = np.random.default_rng(100 + rank)
    images = source.standard_normal((task.batch, *task.image)).astype(np.float32)
    if task.classes == 4:
        return images, source.uniform(-1, 1, (task.batch, 4)).astype(np.float32)
    return images, source.integers(0, task.classes, task.batch)


class Network:
    """Variables, momenta and the two halves of a step."""

    def __init__(self, key, task):
        self.key, self.task = key, task
        images, labels = batch_of(task, RANK)
        self.images, self.labels = tf.constant(images), tf.constant(labels)
        self.variables, source = [], np.random.default_rng(7)

        def make(shape, kind):
            self.variables.append(tf.Variable(initial(shape, kind, source)))
            return self.variables[-1]

        nets.build(key, Ops, make, self.images, task.classes)
        weights = sum(int(np.prod(v.shape)) for v in self.variables)
        assert weights == task.weights, (key, weights, task.weights)
        self.momenta = [tf.Variable(tf.zeros(v.shape)) for v in self.variables]

    def loss(self):
        left = iter(self.variables)
        logits = nets.build(
            self.key, Ops, lambda shape, kind: next(left), self.images, self.task.classes
        )
        return loss_of(logits, self.labels)

    def gradients(self):
        with tf.GradientTape() as tape:
            loss = self.loss()
        return tape.gradient(loss, self.variables), loss

    def apply(self, gradients):
        for v, m, g in zip(self.variables, self.momenta, gradients, strict=True):
            tf.raw_ops.ResourceApplyMomentum(
                var=v.handle, accum=m.handle, lr=RATE, grad=g, momentum=MOMENTUM
            )

    def digest(self):
        return hashlib.sha256(b"".join(v.numpy().tobytes() for v in self.variables)).hexdigest()


def one_function(net, means):
    """A step as one ``tf.function``; ``means`` is what becomes of the list of gradients."""

    @tf.function(autograph=False)
    def step():
        gradients, loss = net.gradients()
        net.apply(means(gradients))
        return loss

    return lambda: float(step())


def fairlead_step(net, mode):
    from fairlead.comm import tensorflow as ours

    if mode == "none":
        return one_function(net, lambda gradients: gradients)
    ours.broadcast([*net.variables, *net.momenta])
    if mode == "only":
        from fairlead import comm

        ranks, arrays = comm.init(), [np.ones(v.shape, np.float32) for v in net.variables]
        return lambda: float(ranks.aggregate(arrays, out=arrays)[0].flat[0])
    if mode == "sync":
        return one_function(net, ours.aggregate)
    from fairlead.comm.delayed import Schedule

    late = ours.Delayed(Schedule(10**9, 1), momentum=MOMENTUM, tested=True)
    compute = tf.function(net.gradients, autograph=False)
    apply = tf.function(net.apply, autograph=False)

    def step():
        gradients, loss = compute()
        for means in late.step(gradients, loss):
            apply(means)
        return float(loss)

    def flush():
        for means in late.flush():
            apply(means)
        # Else it was synchronous, and not what the row says.
        assert late.diverged_at is None, f"back to synchronous at step {late.diverged_at}"

    step.flush = flush
    return step


def horovod_step(net, best):
    import horovod.tensorflow as hvd

    hvd.init()
    hvd.broadcast_variables([*net.variables, *net.momenta], root_rank=0)
    if best:
        return one_function(net, lambda g: hvd.grouped_allreduce(g, op=hvd.Average))
    return one_function(net, lambda g: [hvd.allreduce(one, op=hvd.Average) for one in g])


def mwms_step(net, strategy):
    """The collectives of MultiWorkerMirroredStrategy, on variables that each rank keeps."""

    def body():
        gradients, loss = net.gradients()
        context = tf.distribute.get_replica_context()
        net.apply(context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients))
        return loss

    @tf.function(autograph=False)
    def step():
        return strategy.run(body)

    return lambda: float(step())


class Server:
    """TensorFlow 1's parameter server: workers pull the variables, and push their gradients, at any time."""

    def __init__(self):
        v1 = tf.compat.v1
        v1.disable_eager_execution()
        ports = os.environ["BENCH_PORTS"].split(",")
        at = [f"127.0.0.1:{port}" for port in ports]
        self.cluster = tf.train.ClusterSpec({"worker": at[:2], "ps": at[2:]})
        config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
        job, index = ("ps", 0) if RANK == 2 else ("worker", RANK)
        self.server = tf.distribute.Server(
            self.cluster, job_name=job, task_index=index, config=config
        )

    def step(self, key, task):
        if RANK == 2:
            return lambda: 0.0
        v1 = tf.compat.v1
        graph, count = tf.Graph(), 0
        start = {
            "he": v1.variance_scaling_initializer(2.0, seed=7),
            "ones": v1.ones_initializer(),
            "zeros": v1.zeros_initializer(),
        }
        setter = v1.train.replica_device_setter(
            cluster=self.cluster, worker_device=f"/job:worker/task:{RANK}"
        )
        images, labels = batch_of(task, RANK)
        with graph.as_default(), v1.device(setter):

            def make(shape, kind):
                nonlocal count
                count += 1
                return v1.get_variable(f"{key}{count}", shape, initializer=start[kind])

            images, labels = tf.constant(images), tf.constant(labels)
            loss = loss_of(nets.build(key, Ops, make, images, task.classes), labels)
            train = v1.train.MomentumOptimizer(RATE, MOMENTUM).minimize(loss)
            session = v1.Session(self.server.target)
            session.run(v1.global_variables_initializer())
        return lambda: float(session.run([train, loss])[1])


def main(path, size, side):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tasks = {"full": nets.TASKS, "tiny": nets.TINY}[size]
    strategy = server = None
    if side == "mwms":
        ports = os.environ["BENCH_PORTS"].split(",")
        os.environ["TF_CONFIG"] = json.dumps(
            {
                "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
                "task": {"type": "worker", "index": RANK},
            }
        )
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=tf.distribute.experimental.CommunicationImplementation.RING
            )
        )
        # It kills the process when the other does not answer for a while, and both are paused here.
        strategy.extended._stop_check_health_thread()
    if side == "ps":
        server = Server()
    made = {}

    def warm(model, mode):
        if server is not None:
            step, net = server.step(model, tasks[model]), None
        else:
            net = Network(model, tasks[model])
            if side == "fairlead":
                step = fairlead_step(net, mode)
            elif side == "mwms":
                step = mwms_step(net, strategy)
            else:
                step = horovod_step(net, side == "horovod-best")
        made[model, mode] = net, step
        return [step() for _ in range(2)]

    def step(model, mode):
        _, own = made[model, mode]
        begun = time.perf_counter()
        loss = own()
        seconds = time.perf_counter() - begun
        assert np.isfinite(loss), f"{model} {mode}: loss {loss}"
        return seconds

    def digest(model, mode):
        net, step = made[model, mode]
        if hasattr(step, "flush"):
            step.flush()
        return "" if net is None else net.digest()

    def drop(model):
        for key in [key for key in made if key[0] == model]:
            del made[key]

    told.serve(path, {"warm": warm, "step": step, "digest": digest, "drop": drop})
    sys.stdout.flush()
    os._exit(0)  # servers and health checks of TensorFlow would not let go


main(*sys.argv[1:4])
