"""What the Keras front promises, one function a promise: ``python3 fronts_keras.py FOLDER``.

Run on two ranks, on either backend; each rank prints a line ``{"case", "rank", "seen"}`` a case.
``test_comm_fronts.py`` holds what has to be seen.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "KERAS_HOME": os.devnull}
import keras
import numpy as np
from keras import layers

from fairlead import comm
from fairlead.base.errors import FairleadError
from fairlead.comm.keras import (
    AverageMetrics,
    Broadcast,
    DistributedOptimizer,
    Warmup,
    broadcast,
    on_rank_0,
    start,
)

ME, RANKS = comm.rank(), comm.size()
TENSORFLOW = keras.backend.backend() == "tensorflow"
FOLDER = Path(sys.argv[1])
if TENSORFLOW:
    import tensorflow as tf

    cpus = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def data(seed=0, count=32):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)).astype("float32")
    return x, (x[:, :1] * x[:, 1:2] + x.sum(1, keepdims=True)).astype("float32")


def network(seed, *more, dtype=None):
    keras.utils.set_random_seed(seed)
    stack = [layers.Dense(8, activation="tanh", dtype=dtype), *more, layers.Dense(1, dtype=dtype)]
    return keras.Sequential([layers.Input((4,)), *stack])


def fit(model, optimizer, callbacks=(), rank=None, epochs=2, **given):
    """Trains on this rank's rows; on all of them, with the whole batch, where ``rank`` is "all"."""
    compiled = {k: given.pop(k) for k in ("run_eagerly", "steps_per_execution") if k in given}
    jit = given.pop("jit_compile", False)
    model.compile(optimizer, loss="mse", jit_compile=jit, **compiled)
    x, y = data()
    rows = slice(None) if rank == "all" else slice(ME, None, RANKS)
    batch = 4 * (RANKS if rank == "all" else 1)
    return model.fit(
        x[rows], y[rows], batch_size=batch, epochs=epochs, shuffle=False, verbose=0,
        callbacks=list(callbacks), **given,
    )  # fmt: skip


def values(variables):
    return [np.array(keras.ops.convert_to_numpy(v.value)) for v in variables]


def alike(model):
    """Whether all ranks hold the same bits, in weights and optimizer."""
    variables = [*model.weights, *model.optimizer.variables]
    return comm.check_buffers_match([v.astype("f8") for v in values(variables)]).matches


def distance(model, other):
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a.astype("f8") - b.astype("f8")).max()) for a, b in pairs)


def refusal(call):
    """The name of the check that stopped ``call``, and where."""
    try:
        call()
    except FairleadError as exc:
        return [exc.findings[0].check, exc.findings[0].where]
    except Exception as exc:
        return [type(exc).__name__, str(exc)]
    return None


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "accumulating": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
    "decaying": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.01, 4, 0.9), clipvalue=0.05
    ),
}


@case
def one_process_with_the_whole_batch():
    seen = {}
    for name, make in OPTIMIZERS.items():
        model, whole, start = network(ME), network(0), network(0)
        fit(model, DistributedOptimizer(make()), [Broadcast()])
        fit(whole, make(), rank="all")
        seen[name] = [alike(model), distance(model, whole), distance(model, start)]
    return seen


@case
def optimizer_unwrapped():
    model = network(0)
    fit(model, keras.optimizers.SGD(0.05))
    return alike(model)


@case
def optimizer_unwrapped_with_broadcast():
    return refusal(lambda: fit(network(ME), keras.optimizers.SGD(0.05), [Broadcast()]))


@case
def no_broadcast():
    wrapped = DistributedOptimizer(keras.optimizers.SGD(0.05))
    return refusal(lambda: fit(network(ME), wrapped))


@case
def eager_steps():
    model, whole = network(ME), network(0)
    fit(model, DistributedOptimizer(keras.optimizers.Adam(0.01)), [Broadcast()], run_eagerly=True)
    fit(whole, keras.optimizers.Adam(0.01), rank="all")
    return [alike(model), distance(model, whole)]


@case
def model_without_an_input_layer():
    """Its weights are made while the first step is traced."""

    def late(seed):
        keras.utils.set_random_seed(seed)
        return keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(1)])

    model, whole = late(ME), late(0)
    fit(model, DistributedOptimizer(keras.optimizers.Adam(0.01)), [Broadcast()])
    fit(whole, keras.optimizers.Adam(0.01), rank="all")
    return [alike(model), distance(model, whole)]


@case
def several_steps_an_execution():
    model, whole = network(ME), network(0)
    several = {"steps_per_execution": 2} if TENSORFLOW else {}
    fit(model, DistributedOptimizer(keras.optimizers.SGD(0.05)), [Broadcast()], **several)
    fit(whole, keras.optimizers.SGD(0.05), rank="all")
    return [alike(model), distance(model, whole)]


@case
def trained_twice_from_a_dataset():
    """A model by subclass, whose second fit goes on with one rank's weights and is validated."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = network(ME)

        def call(self, inputs):
            return self.inner(inputs)

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            x, y = data()
            rows = slice(ME + index * 4 * RANKS, (index + 1) * 4 * RANKS, RANKS)
            return x[rows], y[rows]

    model, whole = Own(), network(0)
    wrapped = DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(wrapped, loss="mse", jit_compile=False)
    callbacks, given = [Broadcast(), AverageMetrics()], {"verbose": 0, "shuffle": False}
    model.fit(Batches(), callbacks=callbacks, **given)
    model.evaluate(Batches(), verbose=0, callbacks=callbacks[:1])
    if ME == 1:
        model.inner.set_weights([w + 1 for w in model.inner.get_weights()])
    model.fit(Batches(), callbacks=callbacks, validation_data=Batches(), **given)
    fit(whole, keras.optimizers.Adam(0.01), rank="all")
    return [alike(model), distance(model, whole)]


@case
def unused_weight_and_embedding():
    def make(seed):
        keras.utils.set_random_seed(seed)
        words = layers.Input((3,), dtype="int32")
        idle = layers.Dense(2)
        idle.build((None, 4))  # its gradient is None
        flat = layers.Flatten()(layers.Embedding(10, 4)(words))
        model = keras.Model(words, layers.Dense(1)(flat))
        model.idle = idle
        return model

    def train(model, optimizer, rows, batch, callbacks=()):
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 10, (32, 3)), rng.normal(size=(32, 1))
        model.compile(optimizer, loss="mse", jit_compile=False)
        with warnings.catch_warnings(action="ignore"):
            model.fit(x[rows], y[rows], batch, verbose=0, shuffle=False, callbacks=callbacks)

    model, whole = make(ME), make(0)
    wrapped = DistributedOptimizer(keras.optimizers.SGD(0.1))
    train(model, wrapped, slice(ME, None, RANKS), 4, [Broadcast()])
    train(whole, keras.optimizers.SGD(0.1), slice(None), 4 * RANKS)
    return [len(model.weights), alike(model), distance(model, whole)]


@case
def batch_normalization():
    model = network(ME, layers.BatchNormalization())
    own = []

    class Before(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            own[:] = values(model.layers[1].non_trainable_weights)

    fit(model, DistributedOptimizer(keras.optimizers.Adam(0.01)), [Before(), Broadcast()])
    means = comm.aggregate(own)
    got = values(model.layers[1].non_trainable_weights)
    differed = not comm.check_buffers_match(own).matches
    return [
        differed,
        alike(model),
        max(float(np.abs(a - b).max()) for a, b in zip(means, got, strict=True)),
    ]


@case
def state_restored_on_one_rank():
    """Restored by a callback behind Broadcast, and only on the rank that is broadcast from."""
    stored, model = network(7), network(ME)
    fit(stored, keras.optimizers.Adam(0.01))
    momentum = values(stored.optimizer.variables)

    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            if ME == 1:
                model.set_weights(stored.get_weights())
                model.optimizer.build(model.trainable_variables)
                model.optimizer.set_weights(momentum)

    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if not seen:
                seen.append(comm.check_buffers_match(model.get_weights()).matches)
                seen.append(int(model.optimizer.iterations))

    wrapped = DistributedOptimizer(keras.optimizers.Adam(0.01))
    fit(model, wrapped, [Broadcast(root=1), Look(), Restore()])
    return [*seen, alike(model)]


@case
def callbacks_behind_average_metrics():
    """Validation data differ, so that each rank alone would stop at another epoch."""
    model = network(ME)
    x, y = data(seed=10 + ME)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.02)
    lower = keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, min_delta=0.05)
    keep = keras.callbacks.ModelCheckpoint(FOLDER / "best.weights.h5", save_weights_only=True)
    callbacks = [Broadcast(), AverageMetrics(), lower, stop, *on_rank_0(keep)]
    history = fit(
        model, DistributedOptimizer(keras.optimizers.Adam(0.05)), callbacks, epochs=12,
        validation_data=(x, y + ME),
    )  # fmt: skip
    losses = np.array(history.history["val_loss"])
    own = model.evaluate(x, y + ME, verbose=0)
    return [len(losses), comm.check_buffers_match([losses]).matches, alike(model),
            float(np.std(comm.aggregate([np.eye(RANKS)[ME] * own])[0])) > 0]  # fmt: skip


@case
def plateau_before_average_metrics():
    model = network(ME)

    class Lower(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if ME == 1:  # as ReduceLROnPlateau does where a rank sees its own loss
                model.optimizer.learning_rate = 0.001

    wrapped = DistributedOptimizer(keras.optimizers.Adam(0.01))
    return refusal(lambda: fit(model, wrapped, [Lower(), Broadcast()]))


@case
def weights_changed_on_one_rank():
    model = network(ME)

    class Change(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if ME == 1:
                model.layers[1].bias.assign([1.0])

    wrapped = DistributedOptimizer(keras.optimizers.SGD(0.01))
    found = refusal(lambda: fit(model, wrapped, [Change(), Broadcast()]))
    return [found, model.layers[1].bias.path]


@case
def other_metrics_on_one_rank():
    model, (x, y) = network(ME), data()
    validation = {"validation_data": (x, y)} if ME == 0 else {}
    wrapped = DistributedOptimizer(keras.optimizers.SGD(0.01))
    return refusal(lambda: fit(model, wrapped, [Broadcast(), AverageMetrics()], **validation))


@case
def warm_up():
    model, rates = network(ME), []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rates.append(round(float(model.optimizer.learning_rate), 6))

    wrapped = DistributedOptimizer(keras.optimizers.SGD(0.5))
    fit(model, wrapped, [Broadcast(), Warmup(0.01, epochs=1), Look()])
    follows = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.9))
    fixed = DistributedOptimizer(follows)
    return [rates, refusal(lambda: fit(network(ME), fixed, [Broadcast(), Warmup(0.01)]))]


@case
def loss_scale():
    """One rank's loss is infinite in one step: every rank skips it and halves its scale."""
    seen = {}
    for kind in ("by compile", "inside", "outside"):
        keras.config.set_dtype_policy("mixed_float16" if kind == "by compile" else "float32")
        model, optimizer = network(ME), keras.optimizers.Adam(0.01, global_clipnorm=1.0)
        keras.config.set_dtype_policy("float32")
        scaled = keras.optimizers.LossScaleOptimizer
        if kind == "inside":
            optimizer = scaled(DistributedOptimizer(optimizer), initial_scale=8.0)
        elif kind == "outside":
            optimizer = DistributedOptimizer(scaled(optimizer, initial_scale=8.0))
        else:
            optimizer = DistributedOptimizer(optimizer)
        x, y = data()
        x, y = x[ME::RANKS], y[ME::RANKS].copy()
        y[5] = np.inf if ME == 1 else y[5]
        model.compile(optimizer, loss="mse", jit_compile=False)
        model.fit(x, y, 4, verbose=0, shuffle=False, callbacks=[Broadcast()])
        finite = all(np.isfinite(w).all() for w in model.get_weights())
        scaler = model.optimizer
        steps, scale = int(scaler.inner_optimizer.iterations), float(scaler.dynamic_scale)
        seen[kind] = [alike(model), finite, steps, scale / float(scaler.initial_scale)]
    return seen


@case
def half_precision_throughout():
    seen = {}
    for dtype in ("float16", "bfloat16"):
        model = network(ME, dtype=dtype)
        start = network(0, dtype=dtype)
        fit(model, DistributedOptimizer(keras.optimizers.SGD(0.05)), [Broadcast()])
        seen[dtype] = [alike(model), distance(model, start)]
    return seen


@case
def saved_and_loaded():
    model = network(ME)
    fit(model, DistributedOptimizer(keras.optimizers.Adam(0.01)), [Broadcast()])
    path = FOLDER / f"model{ME}.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    plain = type(loaded.optimizer) is type(keras.optimizers.Adam())
    pairs = zip(values(model.optimizer.variables), values(loaded.optimizer.variables), strict=True)
    state = all(np.array_equal(a, b) for a, b in pairs)
    x, y = data()
    refused = refusal(lambda: loaded.fit(x, y, verbose=0, callbacks=[Broadcast()]))
    DistributedOptimizer(loaded.optimizer)
    loaded.fit(x[ME::RANKS], y[ME::RANKS], verbose=0, callbacks=[Broadcast()])
    return [plain, state, refused and refused[0], alike(loaded)]


@case
def compiled_step():
    """Broadcast turns compilation off; without it, the step is refused."""
    model = network(ME)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapped = DistributedOptimizer(keras.optimizers.SGD(0.05))
        fit(model, wrapped, [Broadcast()], jit_compile=True)
    warned = any("jit_compile" in str(w.message) for w in caught)
    if not TENSORFLOW:  # torch.compile needs a C++ compiler, which the image does not have
        return [warned, alike(model), None]
    other, optimizer = network(0), DistributedOptimizer(keras.optimizers.SGD(0.05))
    broadcast(other, optimizer)
    return [warned, alike(model), refusal(lambda: fit(other, optimizer, jit_compile=True))]


@case
def another_backend():
    ours, keras.backend.backend = keras.backend.backend, lambda: "jax"
    try:
        return refusal(lambda: DistributedOptimizer(keras.optimizers.SGD()))
    finally:
        keras.backend.backend = ours


@case
def strategy_of_tensorflow():
    if not TENSORFLOW:
        return None
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = network(ME)
        wrapped = DistributedOptimizer(keras.optimizers.SGD(0.05))
        return refusal(lambda: broadcast(model, wrapped))


@case
def loop_of_ones_own():
    model, optimizer = network(ME), DistributedOptimizer(keras.optimizers.Adam(0.01))
    broadcast(model, optimizer)
    x, y = data()
    if TENSORFLOW:
        import tensorflow as tf

        @tf.function
        def step(a, b):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(a) - b) ** 2)
            optimizer.apply(
                tape.gradient(loss, model.trainable_variables), model.trainable_variables
            )

    else:
        import torch

        def step(a, b):
            model.zero_grad()
            torch.mean((model(a) - b) ** 2).backward()
            with torch.no_grad():
                gradients = [v.value.grad for v in model.trainable_variables]
                optimizer.apply(gradients, model.trainable_variables)

    for i in range(0, 16, 4):
        rows = slice(i * RANKS + ME, (i + 4) * RANKS, RANKS)
        step(keras.ops.convert_to_tensor(x[rows]), keras.ops.convert_to_tensor(y[rows]))
    whole = network(0)
    fit(whole, keras.optimizers.Adam(0.01), rank="all", epochs=1)
    return distance(model, whole)


class Watched:
    """A team that tells when its aggregations begin, and which of others' are under way then."""

    def __init__(self, others):
        self.team, self.pending, self.beside = comm.init().team(), None, []
        self.size, self.timeline, self.others = self.team.size, self.team.timeline, others

    def start(self, arrays, out=None, **more):
        others = [w.pending for w in self.others if w is not self and w.pending is not None]
        self.pending = self.team.start(arrays, out, **more)
        self.beside.append(any(not p.done() for p in others) and not self.pending.done())
        return self.pending


def gan(rank):
    """Two networks, trained at once; the second's gradients follow while the first's are under way."""
    mine = rank != "all"
    begin = (lambda o, g, v: start(o, g, v)) if mine else None
    seed = ME if mine else 0
    keras.utils.set_random_seed(seed)
    generator = keras.Sequential([layers.Input((3,)), layers.Dense(8, "tanh"), layers.Dense(4)])
    discriminator = keras.Sequential([layers.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(1)])
    optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05, momentum=0.5)]
    teams = []
    teams += [Watched(teams), Watched(teams)] if mine else []
    if mine:
        pairs = zip(optimizers, teams, strict=True)
        optimizers = [DistributedOptimizer(optimizer, team=team) for optimizer, team in pairs]
        broadcast(generator, optimizers[0])
        broadcast(discriminator, optimizers[1])
    g, d = generator.trainable_variables, discriminator.trainable_variables
    softplus = keras.ops.softplus

    def losses(noise, real):
        made = discriminator(generator(noise))
        ours = keras.ops.mean(softplus(-made))
        return ours, keras.ops.mean(softplus(-discriminator(real)) + softplus(made))

    def update(d_gradients, g_gradients):
        if begin is None:
            optimizers[1].apply(d_gradients(), d)
            optimizers[0].apply(g_gradients(), g)
            return
        one = begin(optimizers[1], d_gradients(), d)
        two = begin(optimizers[0], g_gradients(), g)
        two.apply()
        one.apply()

    if TENSORFLOW:

        @tf.function
        def step(noise, real):
            with tf.GradientTape(persistent=True) as tape:
                ours, theirs = losses(noise, real)
            # Both are of the weights before this step.
            first, second = tape.gradient(theirs, d), tape.gradient(ours, g)
            update(lambda: first, lambda: second)

    else:
        import torch

        def step(noise, real):
            ours, theirs = losses(noise, real)
            first = torch.autograd.grad(theirs, [v.value for v in d], retain_graph=True)
            second = torch.autograd.grad(ours, [v.value for v in g])
            with torch.no_grad():
                update(lambda: list(first), lambda: list(second))

    rng = np.random.default_rng(5)
    for number in range(6):
        noise, real = (rng.normal(size=(8, n)).astype("float32") for n in (3, 4))
        rows = slice(ME, None, RANKS) if mine else slice(None)
        if mine and ME == 1 and number == 3:
            time.sleep(0.5)  # meanwhile rank 0 has both under way
        step(*(keras.ops.convert_to_tensor(a[rows]) for a in (noise, real)))
    return generator, discriminator, teams


@case
def two_networks_with_a_team_each():
    *networks, (one, two) = gan(ME)
    *wholes, _ = gan("all")
    same = comm.check_buffers_match([w for n in networks for w in n.get_weights()]).matches
    far = max(distance(a, b) for a, b in zip(networks, wholes, strict=True))
    moved = distance(networks[0], keras.models.clone_model(networks[0])) > 0
    calls = [team.team.timings.calls for team in (one, two)]
    return [same, far, moved, calls, one.beside[3] if ME == 0 else True]


@case
def fewer_steps_on_one_rank():
    def run():
        model, (x, y) = network(ME), data()
        model.compile(
            DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse", jit_compile=False
        )
        rows = 16 - 4 * ME
        model.fit(x[:rows], y[:rows], 4, verbose=0, callbacks=[Broadcast()])

    try:
        run()
    except FairleadError as exc:
        return [exc.findings[0].check, exc.findings[0].why]


@case
def fewer_steps_that_nobody_knew_of():
    """The last case: afterwards the ranks are out of step."""

    def batches():
        x, y = data()
        for row in range(0, 16 - 4 * ME, 4):
            yield x[row : row + 4], y[row : row + 4]

    model = network(ME)
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse", jit_compile=False)
    return refusal(lambda: model.fit(batches(), verbose=0, callbacks=[Broadcast()]))


for name, function in CASES.items():
    begun = time.perf_counter()
    line = {"case": name, "rank": ME, "seen": function(), "seconds": time.perf_counter() - begun}
    # one write, so that the ranks' lines do not run into each other
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
