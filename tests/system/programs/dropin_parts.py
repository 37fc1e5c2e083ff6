"""What Horovod has besides collectives, on two ranks: states, normalization over ranks, partial tapes, errors in graphs.

    python3 -m fairlead.comm.dropin dropin_parts.py tensorflow|torch

Prints ``fine RANK`` at its end.
"""

import importlib
import os
import sys

import numpy as np


def kept_and_made_equal(state, arrays, change):
    """Of a state with an `epoch`, whose values `arrays()` are, and which `change()` changes."""
    state.sync()
    equal = [a.copy() for a in arrays()]
    for mine, of_0 in zip(equal, hvd.broadcast_object(equal, 0), strict=True):
        assert np.array_equal(mine, of_0)
    assert state.epoch == 10
    change()
    state.epoch = 11
    assert not np.array_equal(arrays()[0], equal[0]), "this would prove nothing"
    state.restore()
    assert all(map(np.array_equal, arrays(), equal)) and state.epoch == 10
    change()
    changed = [a.copy() for a in arrays()]
    state.epoch = 12
    state.commit()
    change()
    state.restore()
    assert all(map(np.array_equal, arrays(), changed)) and state.epoch == 12


class Halved:
    """A compression of the script's own: what travels is half of a gradient."""

    calls = 0

    @classmethod
    def compress(cls, tensor):
        cls.calls += 1
        return tensor / 2, "context"

    @classmethod
    def decompress(cls, tensor, context):
        assert context == "context"
        return tensor * 2 + 1  # the 1 shows that it was called


def torch_parts():
    import torch

    torch.manual_seed(RANK)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def change():
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    change()  # for an optimizer's state
    data = list(range(9))
    sampler = hvd.elastic.ElasticSampler(data, shuffle=True)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=10 + RANK)
    kept_and_made_equal(state, lambda: [p.detach().numpy() for p in model.parameters()], change)
    sampler.record_batch(0, 2)
    state.commit()
    state.sync()
    left = hvd.allgather_object(list(sampler))
    assert [len(each) for each in left] == [3, 3] and len({*left[0], *left[1]}) == 5, left

    # Each rank's rows, of which rank 1 has more, against all of them in one batch.
    torch.manual_seed(3)
    rows, weight = torch.randn(5, 4, 6), torch.randn(5, 4, 6)
    whole, mine = torch.nn.BatchNorm1d(4), hvd.SyncBatchNorm(4)
    part = slice(0, 2) if RANK == 0 else slice(2, 5)
    all_in, own_in = rows.clone().requires_grad_(), rows[part].clone().requires_grad_()
    for _ in range(2):
        expected, got = whole(all_in), mine(own_in)
        (expected * weight).sum().backward()
        (got * weight[part]).sum().backward()
    assert torch.allclose(got, expected[part], atol=1e-5)
    assert torch.allclose(own_in.grad, all_in.grad[part], atol=1e-5)
    assert torch.allclose(hvd.allreduce(mine.weight.grad, op=hvd.Sum), whole.weight.grad, atol=1e-4)
    for name, value in whole.state_dict().items():
        assert torch.allclose(mine.state_dict()[name].double(), value.double(), atol=1e-5), name
    whole.eval(), mine.eval()
    assert torch.allclose(mine(own_in), whole(all_in)[part], atol=1e-5)

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, [("weight", weight)], compression=Halved)
    (weight * (1.0 + RANK)).sum().backward()
    optimizer.step()
    assert Halved.calls and weight.item() == -2.5, (Halved.calls, weight)


def tensorflow_parts():
    import tensorflow as tf

    keras = tf.keras
    keras.utils.set_random_seed(RANK)
    model = keras.Sequential([keras.layers.Dense(2)])
    model.build((None, 3))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    state = hvd_keras.elastic.KerasState(model, optimizer, epoch=10 + RANK)

    def change():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.ones((1, 3))))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    kept_and_made_equal(state, model.get_weights, change)
    variable = tf.Variable([float(RANK)])
    plain = hvd.elastic.TensorFlowState([variable], epoch=10)
    kept_and_made_equal(plain, lambda: [variable.numpy()], lambda: variable.assign_add([1.0]))

    rows = np.random.default_rng(3).normal(size=(4, 5, 6)).astype(np.float32)
    whole, mine = keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
    part = slice(2 * RANK, 2 * RANK + 2)
    expected, got = whole(rows, training=True), tf.function(mine)(rows[part], training=True)
    assert np.allclose(got, expected[part], atol=1e-5)
    assert np.allclose(mine.moving_variance, whole.moving_variance, atol=1e-5)

    shared, own = tf.Variable([1.0]), tf.Variable([2.0 + RANK])
    tape = hvd.DistributedGradientTape(tf.GradientTape(persistent=True))
    tape.register_local_source(own)
    with tape:
        loss = shared * (1.0 + RANK) + own * (3.0 + RANK)
    assert [g.numpy()[0] for g in tape.gradient(loss, [shared, own])] == [1.5, (3.0 + RANK) / 2]
    local, others = tape.get_local_and_global_gradients(loss, [shared, own])
    assert (local[0][0] is own, others[0][0] is shared) == (True, True)

    own_compression(tf, shared)

    @tf.function
    def other_shapes():
        return hvd.allreduce(tf.ones(2 + RANK), name="other")

    try:
        other_shapes()
    except tf.errors.FailedPreconditionError as exc:
        assert "rank 1" in exc.message, exc.message
    else:
        raise AssertionError("other shapes passed")
    assert hvd.allreduce(tf.constant(1.0 + RANK), op=hvd.Sum).numpy() == 3.0


def own_compression(tf, shared):
    tape = hvd.DistributedGradientTape(tf.GradientTape(), compression=Halved)
    table = tf.Variable(np.ones((3, 1), np.float32))
    with tape:
        loss = shared * (1.0 + RANK) + tf.reduce_sum(tf.gather(table, [RANK]))
    dense, sparse = tape.gradient(loss, [shared, table])
    assert (Halved.calls, dense.numpy()[0]) == (1, 2.5)
    # What is sparse travels as it is.
    assert tf.convert_to_tensor(sparse).numpy().ravel().tolist() == [0.5, 0.5, 0.0]
    if os.environ.get("TF_USE_LEGACY_KERAS"):
        own_kind = hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), compression=Halved)
        own_kind.apply_gradients([(tf.constant([1.0 + RANK]), shared)])
        assert (Halved.calls, shared.numpy()[0]) == (2, -1.5)


kind = sys.argv[1]
hvd = importlib.import_module(f"horovod.{kind}")
if kind == "tensorflow":
    hvd_keras = importlib.import_module("horovod.tensorflow.keras")
hvd.init()
RANK = hvd.rank()
assert hvd.size() == 2
{"torch": torch_parts, "tensorflow": tensorflow_parts}[kind]()
print("fine", RANK)
