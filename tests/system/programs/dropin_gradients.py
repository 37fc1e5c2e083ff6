"""Gradients that go back through the drop-in's collectives, against Horovod's rules written out in NumPy.

On every rank: ``dropin_gradients.py torch`` or ``dropin_gradients.py tensorflow``. What is wrong raises.
"""

import os
import sys

import numpy as np

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_HOME": os.devnull}
KIND = sys.argv[1]
if KIND == "torch":
    import horovod.torch as hvd
    import torch
else:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    v1 = tf.compat.v1

hvd.init()
ME, SIZE = hvd.rank(), hvd.size()
ROWS = [2 + rank for rank in range(SIZE)]  # another number on each rank


def values(rank, rows=3):
    return np.random.default_rng(rank).normal(size=(rows, 2)).astype(np.float32)


def weights(rank, rows):
    """What each rank's loss weighs the result with."""
    return np.random.default_rng(100 + rank).normal(size=(rows, 2)).astype(np.float32)


def every(function, *more):
    return np.stack([function(rank, *more) for rank in range(SIZE)])


def offset(rank):
    return sum(ROWS[:rank])


# Name: the call, this rank's rows, the result's rows, the gradient of sum(weights * result) for this rank.
CASES = {
    "mean": (lambda x: hvd.allreduce(x), 3, 3, lambda: every(weights, 3).mean(0)),
    "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), 3, 3, lambda: every(weights, 3).sum(0)),
    "scaled": (
        lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        3, 3, lambda: 1.5 * every(weights, 3).sum(0),
    ),
    "grouped": (lambda x: hvd.grouped_allreduce([x, 2 * x])[1], 3, 3, lambda: 2 * every(weights, 3).mean(0)),
    "gathered": (
        lambda x: hvd.allgather(x),
        ROWS[ME], sum(ROWS), lambda: every(weights, sum(ROWS)).mean(0)[offset(ME) : offset(ME + 1)],
    ),
    "from 1": (
        lambda x: hvd.broadcast(x, root_rank=1),
        3, 3, lambda: every(weights, 3).mean(0) * (ME == 1),
    ),
    "of two": (  # one after the other, as a contrastive loss has them
        lambda x: hvd.allgather(hvd.allreduce(x) * 2)[:3],
        3, 3, lambda: 2 * np.mean([every(weights, 3).mean(0) * (r == 0) for r in range(SIZE)], 0),
    ),
}  # fmt: skip


def torch_gradients(call, rows, out):
    x = torch.tensor(values(ME, rows), requires_grad=True)
    y = call(x)
    assert len(y) == out, y.shape
    (y * torch.from_numpy(weights(ME, out))).sum().backward()
    yield "backward", x.grad.numpy()
    # through a gradient of a gradient: of (g * g).sum(), with g what was checked just now
    x = torch.tensor(values(ME, rows), requires_grad=True)
    c = torch.tensor(weights(ME, out), requires_grad=True)
    (g,) = torch.autograd.grad((call(x) * c).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad((g * torch.from_numpy(values(ME, rows))).sum(), c)
    again.append(h.numpy())


def tensorflow_gradients(call, rows, out):
    given, factors = tf.constant(values(ME, rows)), tf.constant(weights(ME, out))

    def loss_of(x, c):
        y = call(x)
        return tf.reduce_sum(y * c)

    def one(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = loss_of(x, factors)
        return tape.gradient(loss, x)

    yield "eager", one(given).numpy()
    yield "function", tf.function(one)(given).numpy()
    unknown = tf.function(one, input_signature=[tf.TensorSpec([None, 2], tf.float32)])
    yield "function of any shape", unknown(given).numpy()
    with tf.Graph().as_default():
        x, c = tf.constant(values(ME, rows)), tf.constant(weights(ME, out))
        (gradient,) = v1.gradients(loss_of(x, c), [x])
        with v1.Session() as session:
            yield "session", session.run(gradient)

    def two(x, c):
        with tf.GradientTape() as outer:
            outer.watch(c)
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = loss_of(x, c)
            g = tape.gradient(loss, x)
            whole = tf.reduce_sum(g * values(ME, rows))
        return outer.gradient(whole, c)

    for way in (two, tf.function(two)):
        again.append(way(given, factors).numpy())


for name, (call, rows, out, expected) in CASES.items():
    again = []
    for way, got in (torch_gradients if KIND == "torch" else tensorflow_gradients)(call, rows, out):
        np.testing.assert_allclose(got, expected(), rtol=2e-5, atol=1e-6, err_msg=f"{name}, {way}")
    # The gradient is linear in the weights c of all ranks: by the derivative of this rank's g with respect to each.
    for h in again:
        if name in ("mean", "sum", "scaled", "grouped"):
            factor = {"mean": 1 / SIZE, "sum": 1, "scaled": 1.5, "grouped": 2 / SIZE}[name]
            want = factor * every(values, rows).sum(0)
        elif name == "gathered":
            want = np.concatenate([values(rank, ROWS[rank]) for rank in range(SIZE)]) / SIZE
        elif name == "from 1":
            want = values(1, rows) / SIZE
        else:
            continue
        np.testing.assert_allclose(h, want, rtol=2e-5, atol=1e-6, err_msg=f"{name}, twice")

if KIND == "torch":
    assert not hvd.allreduce(torch.ones(2)).requires_grad
    half = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    hvd.allgather(half).sum().backward()
    assert half.grad.dtype == torch.bfloat16 and half.grad.tolist() == [1, 1]
    scalar = torch.tensor(2.0, requires_grad=True)
    hvd.allgather(scalar).sum().backward()
    assert scalar.grad.shape == () and scalar.grad.item() == 1
    kept = torch.nn.Parameter(torch.full((2,), float(ME)))
    assert (
        hvd.broadcast_(kept, 1).tolist() == [1, 1]
        and hvd.allreduce_(kept, op=hvd.Sum).tolist() == [SIZE] * 2
    )
else:
    scalar = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        joined = hvd.allgather(scalar)
    assert joined.shape == (SIZE,) and tape.gradient(joined, scalar).numpy() == 1
print(f"rank {ME}: right", flush=True)
hvd.shutdown()
