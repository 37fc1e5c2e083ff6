"""A rank that learns something: ``tf_converge.py SOCKET``; ``train`` gives the held-out score, or its course.

Ranks share a global batch, which a single process takes whole. Adam without a first moment: with one of 0.9 the
guardrails of a delay would lower the learning rate to 1/38, and nothing would be learnt in so short a time.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import turns

RANKS = int(os.environ.get("PMI_SIZE", "1"))
if RANKS > 1:
    turns.pin(turns.rank_of())

import cosmo_data
import numpy as np
import tensorflow as tf
from benchmarks.peers import nets
from benchmarks.peers.steps_tensorflow import Ops, initial, loss_of

from fairlead import comm
from fairlead.comm import tensorflow as ours
from fairlead.comm.delayed import Schedule
from fairlead.comm.powersgd import PowerSGD
from fairlead.ml.data import synthetic_hep
from fairlead.ml.data.baseline import auc

BATCH, RATE, HELD_OUT = {"hep": 32, "cosmo": 8}, 1e-3, 500
OUTPUTS = {"hep": 2, "cosmo": 3}


def data_of(model, samples):
    """Training and held-out parts, the same on all ranks and in all modes."""
    if model == "cosmo":
        return cosmo_data.volumes(1, samples), cosmo_data.volumes(2, HELD_OUT)
    parts = []
    for split, count in (("train", samples), ("val", 4 * HELD_OUT)):
        events = synthetic_hep.shard(1, split, 0, count, 32)
        images = np.log1p(100 * events.inputs.transpose(0, 2, 3, 1))
        parts.append((images.astype(np.float32), events.targets.astype(np.int64)))
    return parts


class Learner:
    def __init__(self, model, seed, shape):
        self.model, self.variables = model, []
        source = np.random.default_rng(seed)

        def make(shape, kind):
            self.variables.append(tf.Variable(initial(shape, kind, source)))
            return self.variables[-1]

        nets.build(model, Ops, make, tf.zeros((1, *shape)), OUTPUTS[model])
        self.first = [tf.Variable(tf.zeros(v.shape)) for v in self.variables]
        self.second = [tf.Variable(tf.zeros(v.shape)) for v in self.variables]
        self.power = tf.Variable(1.0)

    def logits(self, x):
        left = iter(self.variables)
        return nets.build(self.model, Ops, lambda shape, kind: next(left), x, OUTPUTS[self.model])

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(self.logits(x), y)
        return tape.gradient(loss, self.variables), loss

    def apply(self, means, rate):
        self.power.assign(self.power * 0.999)
        for v, m, s, g in zip(self.variables, self.first, self.second, means, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=v.handle, m=m.handle, v=s.handle, beta1_power=0.0, beta2_power=self.power,
                lr=rate, beta1=0.0, beta2=0.999, epsilon=1e-7, grad=g,
            )  # fmt: skip


def main(path):
    threads = 1 if RANKS > 1 else len(os.sched_getaffinity(0))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    ranks, kept = comm.init(), {}

    def train(model, mode, seed, samples, epochs, marks=0, compression="none"):
        """``marks``: how often on the way the score is taken, each with the steps until then."""
        if (model, samples) not in kept:
            kept[model, samples] = data_of(model, samples)
        (x, y), (held, truth) = kept[model, samples]
        learner, batch = Learner(model, seed, x.shape[1:]), BATCH[model]
        compute = tf.function(learner.gradients, autograph=False)
        apply = tf.function(learner.apply, autograph=False)
        ours.broadcast([*learner.variables, *learner.first, *learner.second])
        total = epochs * (len(x) // batch)
        late = ours.Delayed(Schedule.fractions(total, warmup=0.1), momentum=0.0)
        orders = np.random.default_rng(seed)
        averaged, step, course, seconds = _averaging(ranks, compression), 0, [], 0.0
        for _ in range(epochs):
            order = orders.permutation(len(x))
            for at in range(0, len(x) - batch + 1, batch):
                own = order[at : at + batch][ranks.rank :: ranks.size]
                rate = RATE * 0.5 * (1 + np.cos(np.pi * step / total))
                begun = time.perf_counter()
                gradients, loss = compute(tf.constant(x[own]), tf.constant(y[own]))
                means = [gradients]
                if mode == "sync":
                    means = [averaged(gradients)]
                elif mode == "delayed":
                    means = late.step(gradients, loss)
                for mean in means:
                    apply(mean, tf.constant(rate * late.scale, tf.float32))
                seconds += time.perf_counter() - begun if step else 0.0  # the first is traced
                step += 1
                if marks and step * marks // total > (step - 1) * marks // total:
                    course.append((step, _score(learner, held, truth)))
        for mean in late.flush():
            apply(mean, tf.constant(rate * late.scale, tf.float32))
        own = [v.numpy().tobytes() for v in learner.variables]
        digest = hashlib.sha256(b"".join(own)).hexdigest()
        end = course[-1][1] if course else _score(learner, held, truth)
        answer = {"score": end, "digest": digest, "diverged": late.diverged_at}
        return {**answer, "course": course, "step_s": seconds / max(1, total - 1)}

    turns.serve(path, {"train": train})
    comm.finalize()


def _averaging(ranks, compression):
    """What makes means of gradients, of a lossy kind or not."""
    if compression != "powersgd":
        return lambda gradients: ours.aggregate(gradients, compression=compression)
    thin = PowerSGD(ranks)
    return lambda gradients: [
        tf.constant(mean) for mean in thin.aggregate([gradient.numpy() for gradient in gradients])
    ]


def _score(learner, held, truth):
    logits = np.concatenate([learner.logits(held[i : i + 250]) for i in range(0, len(held), 250)])
    hep = learner.model == "hep"
    return float(auc(truth, logits[:, 1] - logits[:, 0]) if hep else _skill(truth, logits))


def _skill(truth, predicted):
    """Of the first two parameters: one less the error over that of always saying the mean."""
    error = np.abs(predicted - truth).mean(axis=0) / np.abs(truth - truth.mean(axis=0)).mean(axis=0)
    return 1 - error[:2].mean()


main(sys.argv[1])
