"""What the TensorFlow front promises, one function a promise: ``python3 fronts_tensorflow.py FOLDER``.

Run on two ranks; each prints a line ``{"case", "rank", "seen"}`` a case. ``test_comm_tensorflow.py`` holds what
has to be seen.
"""

import json
import os
import sys
import time

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "KERAS_HOME": os.devnull}
import numpy as np
import tensorflow as tf

from fairlead import comm
from fairlead.base.errors import FairleadError
from fairlead.comm import tensorflow as front
from fairlead.comm.delayed import Schedule
from fairlead.comm.frameworks.tensorflow_op import find

ME, RANKS = comm.rank(), comm.size()
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def refusal(call):
    """The name of the check that stopped ``call``, and what it says; or all that TensorFlow says."""
    try:
        call()
    except FairleadError as exc:
        return [exc.findings[0].check, exc.findings[0].what]
    except Exception as exc:
        return [type(exc).__name__, str(exc)]
    return None


def data(count=32):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 4)).astype("float32")
    return x, (x[:, :1] * x[:, 1:2] + x.sum(1, keepdims=True)).astype("float32")


def network(seed):
    """Variables of a small network with an embedding, and a bias that the loss does not use."""
    rng = np.random.default_rng(seed)
    shapes = {"words": (6, 4), "hidden": (4, 8), "out": (8, 1), "idle": (3,)}
    return {
        name: tf.Variable(rng.normal(size=shape).astype("float32") * 0.3, name=name)
        for name, shape in shapes.items()
    }


def loss_of(net, x, y):
    words = tf.cast(tf.math.floormod(tf.reduce_sum(tf.cast(x * 8, tf.int32), 1), 6), tf.int32)
    hidden = tf.tanh((x + tf.gather(net["words"], words)) @ net["hidden"])
    return tf.reduce_mean((hidden @ net["out"] - y) ** 2)


def step_of(net, compiled, alone=False):
    def step(x, y):
        tape = tf.GradientTape()
        with tape if alone else front.DistributedGradientTape(tape) as tape:
            loss = loss_of(net, x, y)
        gradients = tape.gradient(loss, net)
        for name, gradient in gradients.items():
            if gradient is not None:
                net[name].assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss if alone else front.average(loss), gradients["idle"] is None

    return tf.function(step) if compiled else step


def train(net, compiled, alone=False, steps=8):
    step, (x, y) = step_of(net, compiled, alone), data(64)
    losses, none = [], True
    for begin in range(0, 8 * steps, 8):
        rows = slice(begin, begin + 8) if alone else slice(begin + ME, begin + 8, RANKS)
        loss, idle = step(tf.constant(x[rows]), tf.constant(y[rows]))
        losses.append(float(loss))
        none = none and idle
    return losses, none


def distance(one, other):
    return max(float(np.abs(one[name].numpy() - other[name].numpy()).max()) for name in one)


def alike(net):
    return comm.check_buffers_match([v.numpy() for v in net.values()]).matches


@case
def one_process_with_the_whole_batch():
    seen = {}
    for name, compiled in (("eager", False), ("compiled", True)):
        net, whole, start = network(ME), network(0), network(0)
        front.broadcast(net)
        mine, none = train(net, compiled)
        theirs, _ = train(whole, compiled, alone=True)
        losses = max(abs(a - b) for a, b in zip(mine, theirs, strict=True))
        seen[name] = [alike(net), distance(net, whole), losses, distance(net, start), bool(none)]
    return seen


@case
def what_carries_them():
    front.aggregate([tf.ones(1)])
    nowhere = {"XDG_CACHE_HOME": "/nowhere", "FAIRLEAD_COMM_LIBRARY": "/nowhere"}
    return [
        str(front.carrier()),
        find({}).path,
        find(nowhere, "/nowhere").path,
        find({"FAIRLEAD_COMM_TENSORFLOW_OP": "/x/op.so"}).why,
        find({"FAIRLEAD_COMM_TENSORFLOW_OP": "none"}).why,
    ]


@case
def structures_dtypes_and_none():
    given = {
        "nested": [tf.fill((2, 3), float(ME)), None, (tf.constant(1.0 + ME, tf.float64),)],
        "half": tf.fill((3,), tf.cast(ME, tf.float16)),
        "brain": tf.fill((3,), tf.cast(ME, tf.bfloat16)),
        "complex": tf.constant([1j * ME, 1.0]),
        "empty": tf.zeros((0, 4)),
        "slices": tf.IndexedSlices(tf.fill((1, 2), 1.0 + ME), [ME], tf.constant([3, 2])),
        "strided": tf.transpose(tf.reshape(tf.range(6, dtype=tf.float32), (2, 3))) * (ME + 1),
    }

    def plain(found):
        flat = list(tf.nest.flatten(found))
        return [None if t is None else [t.dtype.name, str(t.numpy().tolist())] for t in flat]

    eager = front.aggregate(given)
    graph = tf.function(lambda: front.aggregate(given))()
    return [plain(eager), plain(graph)]


@case
def order_in_a_graph():
    """Collectives that nothing but their order joins; another would mix them up or stop the ranks."""
    double = tf.Variable(0.0)

    @tf.function
    def inner(k):
        return front.aggregate(tf.fill((5,), 10.0 * k + ME))

    @tf.function
    def many(n):
        first = [front.aggregate(tf.fill((i + 1,), float(i + ME))) for i in range(8)]
        total = tf.zeros(())
        for k in tf.range(n):
            total += tf.reduce_sum(inner(tf.cast(k, tf.float32)))
            if k % 2 == 0:
                double.assign_add(front.aggregate(tf.cast(k + ME, tf.float32)))
            else:
                total += tf.reduce_sum(front.aggregate(tf.ones((2, 2)) * float(ME)))
        last = front.average({"a": ME, "b": tf.constant(2.0 * ME)})
        return first, total, last

    first, total, last = many(tf.constant(5))
    return [[t.numpy().tolist() for t in first], float(total), float(double),
            {k: [v.dtype.name, float(v)] for k, v in last.items()}]  # fmt: skip


@case
def team_of_its_own():
    team = comm.init().team()
    both = tf.function(
        lambda: (front.aggregate(tf.ones(3) * ME, team), front.aggregate([1.0 * ME]))
    )
    mine, ours = both()
    return [mine.numpy().tolist(), float(ours[0])]


@case
def compressed():
    value = tf.constant([1.0 + 2.0**-11 + 2.0**-12 * 1.5])
    run = tf.function(lambda: front.aggregate(value, compression="fp16"))
    return [float(run()[0]), float(front.aggregate(value, compression="fp16")[0])]


@case
def delayed_equals_its_recurrence():
    """w(t+1) = w(t) - rate * g(t-1), and nothing is lost."""
    net, rate = network(ME), 0.02
    front.broadcast(net)
    copy = {name: tf.Variable(v) for name, v in net.items()}
    schedule = Schedule(8, 2)
    delayed = front.Delayed(schedule, momentum=0.0, tested=True, names=list(net.values()))
    x, y = data(64)

    @tf.function
    def gradients_of(a, b):
        with tf.GradientTape() as tape:
            loss = loss_of(net, a, b)
        return tape.gradient(loss, net), loss

    def apply(means):
        for name, mean in means.items():
            if mean is not None:
                net[name].assign_sub(rate * mean)

    counts = []
    for begin in range(0, 64, 8):
        rows = slice(begin + ME, begin + 8, RANKS)
        gradients, loss = gradients_of(x[rows], y[rows])
        ready = delayed.step(gradients, loss)
        counts.append(len(ready))
        for means in ready:
            apply(means)
    for means in delayed.flush():
        counts.append(1)
        apply(means)
    late = []
    for t, begin in enumerate(range(0, 64, 8)):
        with tf.GradientTape() as tape:
            loss = loss_of(copy, x[begin : begin + 8], y[begin : begin + 8])
        gradients = tape.gradient(loss, copy)
        ready, late = (late, [gradients]) if schedule.delayed(t) else ([*late, gradients], [])
        for one in ready:
            for name in ("words", "hidden", "out"):
                copy[name].assign_sub(rate * tf.convert_to_tensor(one[name]))
    for name in ("words", "hidden", "out"):
        copy[name].assign_sub(rate * tf.convert_to_tensor(late[0][name]))
    return [counts, alike(net), distance(net, copy)]


@case
def other_shape_on_one_rank():
    names = [tf.Variable(tf.zeros(2), name=name) for name in ("kernel", "bias")]

    def call():
        return front.aggregate([tf.ones(3), tf.ones(4 + ME)], names=names)

    return [refusal(call), refusal(tf.function(call)), refusal(call)]


@case
def none_on_one_rank():
    def call():
        return front.aggregate([tf.ones(3), None if ME else tf.ones(2)])

    return [refusal(call), refusal(tf.function(call))]


@case
def refused():
    net, text = network(0), tf.Variable("a", name="text")
    compiled = tf.function(lambda: front.aggregate(tf.ones(2)), jit_compile=True)
    return {
        "tape": refusal(lambda: train(net, True)),
        "integers": refusal(
            lambda: front.aggregate([tf.ones(1), tf.constant([1])], names=["a", "n"])
        ),
        "text": refusal(lambda: front.broadcast([text])),
        "traced": refusal(tf.function(lambda: front.broadcast(net))),
        "root": refusal(lambda: front.broadcast(net, root=RANKS)),
        "compiled": refusal(compiled),
        "session": refusal(in_a_session),
    }


def in_a_session():
    with tf.Graph().as_default():
        front.aggregate(tf.ones(2))


@case
def state():
    net = network(ME)
    before = refusal(lambda: front.check_state(net))
    front.broadcast(net, root=1)
    front.check_state(net)
    if ME == 1:
        net["out"].assign_add(tf.ones((8, 1)))
    return [before, refusal(lambda: front.check_state(net, "after a change"))]


@case
def fewer_steps_on_one_rank():
    """The last case: afterwards the ranks are out of step."""
    net = network(ME)
    front.broadcast(net)
    return refusal(lambda: train(net, True, steps=4 - ME))


for name, function in CASES.items():
    begun = time.perf_counter()
    line = {"case": name, "rank": ME, "seen": function(), "seconds": time.perf_counter() - begun}
    # one write, so that the ranks' lines do not run into each other
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
