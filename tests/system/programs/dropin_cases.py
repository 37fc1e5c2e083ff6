"""What the drop-in names promise beyond the old scripts, one function a promise.

Run on two ranks by ``python3 -m fairlead.comm.dropin dropin_cases.py``; each rank prints a line
``{"case", "rank", "seen"}`` a case. ``test_dropin.py`` holds what has to be seen.
"""

import json
import os

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_HOME": os.devnull}
import dl_comm.keras as cray_keras
import dl_comm.tensorflow as cdl
import horovod.tensorflow as hvd
import keras
import ml_comm as mc
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
hvd.init()
ME = hvd.rank()
CASES = []


def case(function):
    CASES.append(function)
    return function


def refusal(call):
    """The words that stopped ``call``."""
    try:
        call()
    except Exception as exc:
        return str(exc)
    return None


def same(arrays):
    return mc.check_buffers_match([np.asarray(a) for a in arrays]) == 0


def session_of(hooks):
    return v1.train.MonitoredTrainingSession(
        hooks=hooks, save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None
    )


def graph(optimizer, mean=None, dtype=tf.float32):
    """A weight that is another on each rank, and what trains it."""
    weight = v1.get_variable("w", initializer=tf.constant([1.0 + ME, 2.0], dtype))
    step = v1.train.get_or_create_global_step()
    pairs = optimizer.compute_gradients(tf.reduce_sum(weight * weight) * (ME + 1), [weight])
    if mean:
        pairs = [(mean([g])[0], v) for g, v in pairs]
    return weight, optimizer.apply_gradients(pairs, global_step=step)


@case
def initializer_that_runs_again_within_training():
    with tf.Graph().as_default():
        weight, train = graph(v1.train.MomentumOptimizer(0.1, 0.9), mc.gradients)
        again = v1.global_variables_initializer()
        with session_of([mc.BcastTensors()]) as session:
            for _ in range(3):
                session.run(train)
            session.run(again)
            apart = session.run(weight)
            session.run(train)
            return [bool(same([apart])), same([session.run(weight)])]


@case
def head_that_is_not_rank_0():
    with tf.Graph().as_default():
        weight, _ = graph(v1.train.GradientDescentOptimizer(0.1), mc.gradients)
        with session_of([mc.BcastTensors(root=1)]) as session:
            return session.run(weight).tolist()


@case
def variable_that_differs_after_the_broadcast():
    with tf.Graph().as_default():
        graph(v1.train.GradientDescentOptimizer(0.1), mc.gradients)
        v1.get_variable("odd", initializer=tf.constant(float(ME)))
        hook = mc.BcastTensors()
        hook.begin()
        place = hook._names.index("odd")
        # As if a broadcast had left it out.
        hook._reads[place] = tf.constant(float(ME))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            try:
                hook.after_create_session(session, None)
            except Exception as exc:
                return exc.findings[0].where
    return None


@case
def session_in_half_precision():
    with tf.Graph().as_default():
        optimizer = cdl.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.125))
        weight, train = graph(optimizer, dtype=tf.float16)
        with session_of([mc.BcastTensors()]) as session:
            session.run(train)
            held = session.run(weight)
    # gradient 2 w (rank + 1), whose mean over ranks 0 and 1 is 3 w: w -= 0.125 * 3 w
    return [same([held]), held.dtype.name, held.tolist()]


@case
def session_for_horovod():
    with tf.Graph().as_default():
        _, train = graph(hvd.DistributedOptimizer(v1.train.AdamOptimizer(0.1)))
        metrics = [hvd.allreduce(tf.constant(float(ME + n))) for n in range(4)]
        with session_of([hvd.BroadcastGlobalVariablesHook(0)]) as session:
            for _ in range(3):
                _, means = session.run([train, metrics])
            held = session.run(v1.global_variables())
        return [same(held), [float(m) for m in means]]


@case
def session_with_one_thread():
    """Collectives that wait for each other: with one thread, ranks would stand in different ones."""
    rng = np.random.default_rng(ME)
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 50])
        runs = []
        for number in range(3):
            weight = v1.get_variable(f"w{number}", initializer=tf.zeros([50, 200]))
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.01))
            loss = tf.reduce_mean((x @ weight - 1) ** 2)
            runs += [optimizer.minimize(loss, var_list=[weight]), hvd.allreduce(loss)]
        config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(60):
                session.run(runs, {x: rng.normal(size=(8 + 64 * ME, 50))})
            return same(session.run(v1.global_variables()))


@case
def horovod_reductions():
    whole = hvd.allreduce(np.array([ME, 3 + ME], np.int64), op=hvd.Sum).tolist()
    third = hvd.allreduce(tf.constant([0.1 + ME]), op=hvd.Sum).numpy().tolist()
    half = hvd.allreduce(tf.constant([1.0 + ME]), compression=hvd.Compression.fp16)
    many = hvd.grouped_allreduce([tf.constant(float(ME)), tf.constant([2.0 * ME])])
    slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([ME]), tf.constant([2, 1]))
    dense = tf.convert_to_tensor(hvd.allreduce(slices))
    return [
        whole,
        third,
        half.numpy().tolist(),
        half.dtype.name,
        [m.numpy().tolist() for m in many],
        dense.numpy().tolist(),
    ]


@case
def horovod_by_place():
    import horovod.tensorflow.keras as of_keras

    value = tf.constant([1.0 + ME])
    plain = hvd.Compression.none
    return [
        hvd.allreduce(value, False, "/cpu:0", "").numpy().tolist(),
        hvd.allreduce(value, None, "", "", plain, hvd.Sum, 0.5).numpy().tolist(),
        np.asarray(of_keras.allreduce(value, "loss", False)).tolist(),
        np.asarray(of_keras.allreduce(value, "loss", True)).tolist(),
        hvd.broadcast_object(ME, 1, None, "name"),
        refusal(lambda: hvd.allreduce(value, proces_set=None)),
    ]


@case
def horovod_among_some_ranks():
    """Two networks of a rank each, which nothing makes equal."""
    alone = [hvd.add_process_set([rank]) for rank in (0, 1)]
    weight = tf.Variable([float(ME)])
    hvd.broadcast_variables([weight], ME, alone[ME])
    tape = tf.GradientTape()
    with tape:
        loss = tf.reduce_sum(weight * weight)
    own = hvd.DistributedGradientTape(tape, process_set=alone[1]).gradient(loss, [weight])
    for each in alone:
        hvd.remove_process_set(each)
    absent = refusal(lambda: hvd.DistributedGradientTape(tape, process_set=alone[1]))
    return [weight.numpy().tolist() == [ME], own[0].numpy().tolist() == [2 * ME], absent]


@case
def horovod_lacks():
    def runner():
        import horovod.runner  # noqa: F401

    def spark():
        import horovod.spark  # noqa: F401

    calls = (runner, spark, lambda: hvd.PartialDistributedOptimizer, lambda: hvd.nonsense,
             lambda: hvd.allreduce(np.ones(1), process_set=1))  # fmt: skip
    return [refusal(call) for call in calls]


def network(seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(3), keras.layers.BatchNormalization(dtype="float64")]
    )
    model.compile(cray_keras.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    return model


@case
def keras_callbacks_of_the_plugin():
    rng = np.random.default_rng(ME)
    x = rng.normal(size=(16, 2))
    model, of_rank_1 = network(ME), network(1)
    restored = [w + 1 for w in of_rank_1.get_weights()]
    model.set_weights([w + 1 for w in model.get_weights()])  # what was restored is not to be wiped
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen or seen.append(model.get_weights())
    )
    callbacks = [
        cray_keras.InitPluginCallback(10, 4),
        cray_keras.BroadcastGlobalVariablesCallback(head_rank=1, validate=True),
        look,
        cray_keras.MetricAverageCallback(),
        cray_keras.LearningRateWarmupCallback(warmup_epochs=1),
        cray_keras.LearningRateScheduleCallback(0.02, 0.5, start_epoch=1),
    ]
    model.fit(
        x,
        np.repeat(x.sum(1, keepdims=True), 3, 1),
        batch_size=4,
        epochs=2,
        verbose=0,
        callbacks=callbacks,
    )
    as_rank_1 = all(np.array_equal(a, b) for a, b in zip(seen[0], restored, strict=True))
    rate = float(model.optimizer.learning_rate)
    return [as_rank_1, same(model.get_weights()), round(rate, 6)]


mc.init(1, 1, 2, "tensorflow")
for function in CASES:
    print(json.dumps({"case": function.__name__, "rank": ME, "seen": function()}), flush=True)
    keras.backend.clear_session()
mc.finalize()
