"""Training steps on TensorFlow: alone, by ``fairlead.comm``, by Horovod, by MultiWorkerMirroredStrategy.

All have the same network, samples, SGD with momentum and cores; only what becomes of the gradients is another.
Import it when the rank is on its cores. The parameter server is in :mod:`benchmarks.peers.parameter_server`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.peers import nets
from benchmarks.peers.nets import MOMENTUM, RATE, Training


class Ops:
    """The operations, by TensorFlow."""

    relu = staticmethod(tf.nn.relu)
    matmul = staticmethod(tf.matmul)
    bias = staticmethod(tf.nn.bias_add)

    @staticmethod
    def spatial(x: Any) -> int:
        return len(x.shape) - 2

    @staticmethod
    def channels(x: Any) -> int:
        return int(x.shape[-1])

    @staticmethod
    def conv(x: Any, kernel: Any, stride: int) -> Any:
        dims = len(x.shape) - 2
        conv = tf.nn.conv2d if dims == 2 else tf.nn.conv3d
        strides = stride if dims == 2 else [1, *[stride] * dims, 1]
        return conv(x, kernel, strides=strides, padding="SAME")

    @staticmethod
    def pool(x: Any, size: int, stride: int) -> Any:
        pool = tf.nn.max_pool2d if len(x.shape) == 4 else tf.nn.max_pool3d
        return pool(x, size, stride, "SAME")

    @staticmethod
    def norm(x: Any, scale: Any, offset: Any) -> Any:
        return tf.compat.v1.nn.fused_batch_norm(x, scale, offset, epsilon=1e-5, is_training=True)[0]

    @staticmethod
    def mean(x: Any) -> Any:
        return tf.reduce_mean(x, list(range(1, len(x.shape) - 1)))

    @staticmethod
    def flat(x: Any) -> Any:
        return tf.reshape(x, [int(x.shape[0]), -1])


def initial(shape: tuple[int, ...], kind: str, source: np.random.Generator) -> Any:
    """A tensor to begin with, float32."""
    if kind != "he":
        return np.full(shape, float(kind == "ones"), np.float32)
    scale = np.sqrt(2 / np.prod(shape[:-1]))
    return (scale * source.standard_normal(shape)).astype(np.float32)


def loss_of(logits: Any, labels: Any) -> Any:
    """Cross entropy of classes, the squared error of numbers; the batch's mean."""
    if labels.dtype.is_floating:
        return tf.reduce_mean(tf.square(logits - labels))
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )


def use_threads(count: int) -> None:
    """As many threads an operation; before anything is computed."""
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(2)


def batch_of(task: nets.Task, rank: int) -> tuple[Any, Any]:
    """The same samples in every step; others on each rank."""
    source = np.random.default_rng(100 + rank)
    images = source.standard_normal((task.batch, *task.image)).astype(np.float32)
    if task.classes == 4:
        return images, source.uniform(-1, 1, (task.batch, 4)).astype(np.float32)
    return images, source.integers(0, task.classes, task.batch)


class Network:
    """Variables, momenta and the two halves of a step."""

    def __init__(self, key: str, task: nets.Task, rank: int):
        self.key, self.task = key, task
        images, labels = batch_of(task, rank)
        self.images, self.labels = tf.constant(images), tf.constant(labels)
        self.variables: list[Any] = []
        source = np.random.default_rng(7)

        def make(shape: tuple[int, ...], kind: str) -> Any:
            self.variables.append(tf.Variable(initial(shape, kind, source)))
            return self.variables[-1]

        nets.build(key, Ops, make, self.images, task.classes)
        weights = sum(int(np.prod(v.shape)) for v in self.variables)
        assert weights == task.weights, (key, weights, task.weights)
        self.momenta = [tf.Variable(tf.zeros(v.shape)) for v in self.variables]

    def loss(self) -> Any:
        left = iter(self.variables)
        logits = nets.build(
            self.key, Ops, lambda shape, kind: next(left), self.images, self.task.classes
        )
        return loss_of(logits, self.labels)

    def gradients(self) -> tuple[list[Any], Any]:
        with tf.GradientTape() as tape:
            loss = self.loss()
        return tape.gradient(loss, self.variables), loss

    def apply(self, gradients: Sequence[Any]) -> None:
        for v, m, g in zip(self.variables, self.momenta, gradients, strict=True):
            tf.raw_ops.ResourceApplyMomentum(
                var=v.handle, accum=m.handle, lr=RATE, grad=g, momentum=MOMENTUM
            )

    def training(
        self, step: Callable[[], float], settle: Callable[[], None] | None = None
    ) -> Training:
        """With that step."""

        def arrays(tensors: Sequence[Any]) -> list[Any]:
            return [t.numpy() for t in tensors]

        training = Training(step, lambda: arrays(self.variables), lambda: arrays(self.momenta))
        return (
            training
            if settle is None
            else Training(step, training.weights, training.momenta, settle)
        )


def _one_function(net: Network, means: Callable[[list[Any]], list[Any]]) -> Training:
    """A step as one ``tf.function``; ``means`` is what becomes of the list of gradients."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step() -> Any:
        gradients, loss = net.gradients()
        net.apply(means(gradients))
        return loss

    return net.training(lambda: float(step()))


def alone(net: Network) -> Training:
    """Without communication."""
    return _one_function(net, lambda gradients: gradients)


def synchronous(net: Network) -> Training:
    """By ``fairlead.comm``, within the graph."""
    from fairlead.comm import tensorflow as ours

    ours.broadcast([*net.variables, *net.momenta])
    return _one_function(net, ours.aggregate)


def delayed(net: Network) -> Training:
    """By ``fairlead.comm``: the mean of a step moves during the next one. The first is synchronous."""
    from fairlead.comm import tensorflow as ours
    from fairlead.comm.delayed import Schedule

    ours.broadcast([*net.variables, *net.momenta])
    late = ours.Delayed(Schedule(10**9, 1), momentum=MOMENTUM, tested=True)
    compute = tf.function(net.gradients, autograph=False)
    apply = tf.function(net.apply, autograph=False)

    def step() -> float:
        gradients, loss = compute()
        for means in late.step(gradients, loss):
            apply(means)
        return float(loss)

    def settle() -> None:
        for means in late.flush():
            apply(means)
        # Else it was synchronous, and not what the row says.
        assert late.diverged_at is None, f"back to synchronous at step {late.diverged_at}"

    return net.training(step, settle)


def horovod(net: Network, *, grouped: bool) -> Training:
    """By Horovod: a tensor at a time as it comes, or all gradients as one group."""
    import horovod.tensorflow as hvd

    hvd.init()
    hvd.broadcast_variables([*net.variables, *net.momenta], root_rank=0)
    if grouped:
        return _one_function(net, lambda g: hvd.grouped_allreduce(g, op=hvd.Average))
    return _one_function(net, lambda g: [hvd.allreduce(one, op=hvd.Average) for one in g])


def mirrored_strategy(workers: Sequence[str], rank: int) -> Any:
    """MultiWorkerMirroredStrategy with its ring over gRPC; ``workers`` are HOST:PORT by rank. Collective.

    It starts the servers: nothing may have been computed before.
    """
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": rank}}
    )
    options = tf.distribute.experimental
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=options.CommunicationOptions(
            implementation=options.CommunicationImplementation.RING
        )
    )


def mirrored(net: Network, strategy: Any) -> Training:
    """The collectives of MultiWorkerMirroredStrategy, on variables that each rank keeps."""

    def body() -> Any:
        gradients, loss = net.gradients()
        context = tf.distribute.get_replica_context()
        net.apply(context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients))
        return loss

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step() -> Any:
        return strategy.run(body)

    return net.training(lambda: float(step()))
