"""Five steps on weights that begin unlike: ``dropin_weights.py WAY WHAT``.

WHAT is `ok`, `none` (nothing is broadcast) or `odd` (rank 1 changes its weights after the last step).
"""

import os
import sys

import numpy as np

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_HOME": os.devnull}
WAY, WHAT = sys.argv[1:]


def of_session(rank, wrapped, broadcast):
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    rng = np.random.default_rng(rank)
    weight = v1.get_variable("w", initializer=rng.normal(size=(3, 1)).astype("f4"))
    x = tf.constant(rng.normal(size=(8, 3)), tf.float32)
    optimizer = wrapped(v1.train.AdamOptimizer(0.1))
    pairs = optimizer.compute_gradients(tf.reduce_sum((x @ weight) ** 2))
    if WAY == "plugin session":
        means = mc.gradients([gradient for gradient, _ in pairs], 0)
        pairs = [(mean, variable) for mean, (_, variable) in zip(means, pairs, strict=True)]
    train, odd = optimizer.apply_gradients(pairs), v1.assign_add(weight, tf.ones([3, 1]))
    made = broadcast(weight)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        if WHAT != "none":
            session.run(made)
        for _ in range(5):
            session.run(train)
        if WHAT == "odd" and rank == 1:
            session.run(odd)


def of_tape(rank, gradients_of, broadcast, compiled):
    rng = np.random.default_rng(rank)
    weight = tf.Variable(rng.normal(size=(3, 1)).astype("f4"), name="w")
    x = tf.constant(rng.normal(size=(8, 3)), tf.float32)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ weight) ** 2)
        weight.assign_sub(0.01 * gradients_of(tape, loss, weight))

    run = tf.function(step) if compiled else step
    for index in range(5):
        run()
        if index == 0 and WHAT != "none":  # as Horovod's examples for TensorFlow 2 have it
            broadcast(weight)
    if WHAT == "odd" and rank == 1:
        weight.assign_add(tf.ones([3, 1]))
    return weight


def of_torch(rank):
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 1)
    if WHAT != "none":
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.01), named_parameters=model.named_parameters()
    )
    for _ in range(5):
        optimizer.zero_grad()
        (model(torch.randn(8, 3)) ** 2).sum().backward()
        optimizer.step()
    if WHAT == "odd" and rank == 1:  # unseen by torch's count of changes
        model.weight.data.add_(1)
    return model, optimizer


if WAY == "torch":
    import horovod.torch as hvd
    import torch

    hvd.init()
    of_torch(hvd.rank())
elif WAY.startswith("plugin"):
    import ml_comm as mc
    import tensorflow as tf

    mc.init(1, 1, 3, "tensorflow")
    if WAY == "plugin session":
        of_session(
            mc.get_rank(), lambda optimizer: optimizer,
            lambda w: tf.compat.v1.assign(w, mc.broadcast([w], 0)[0]),
        )  # fmt: skip
    else:
        of_tape(
            mc.get_rank(), lambda tape, loss, w: mc.gradients(tape.gradient(loss, [w]), 0)[0],
            lambda w: w.assign(mc.broadcast([w], 0)[0]), compiled=False,
        )  # fmt: skip
    mc.finalize()
else:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    if WAY == "session":
        of_session(
            hvd.rank(), hvd.DistributedOptimizer, lambda w: hvd.broadcast_global_variables(0)
        )
    else:
        of_tape(
            hvd.rank(),
            lambda tape, loss, w: hvd.DistributedGradientTape(tape).gradient(loss, [w])[0],
            lambda w: hvd.broadcast_variables([w], root_rank=0),
            compiled=WAY == "function",
        )
print("the script has come to its end", flush=True)
