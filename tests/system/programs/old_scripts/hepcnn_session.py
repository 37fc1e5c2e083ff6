"""A convolutional network trained in a TF 1 session, as scripts for the ML plugin were written."""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import ml_comm as mc
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)  # of all ranks together
parser.add_argument("--sync-fraction", type=float, default=1.0)
parser.add_argument("--checkpoints", default="")
parser.add_argument("--rerun-initializer", action="store_true")
args = parser.parse_args()

mc.init_mpi()
rank, ranks = mc.get_rank(), mc.get_nranks()
tf.set_random_seed(1000 + rank)  # each rank draws other weights: the hook has to mend that
rng = np.random.RandomState(rank)


def batch_norm(x, name):
    with tf.variable_scope(name):
        n = x.shape[-1]
        scale = tf.get_variable("scale", [n], initializer=tf.ones_initializer())
        offset = tf.get_variable("offset", [n], initializer=tf.zeros_initializer())
        # Statistics of this rank's batches. They start from noise, which a broadcast has to make equal.
        mean = tf.get_variable("mean", [n], trainable=False)
        got, moment, _ = tf.nn.fused_batch_norm(x, scale, offset)[:3]
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, mean.assign(mean * 0.9 + moment * 0.1))
        return got


def network(images):
    net = images
    for i, filters in enumerate((4, 8)):
        kernel = tf.get_variable(f"conv{i}", [3, 3, net.shape[-1], filters])
        net = tf.nn.conv2d(net, kernel, strides=[1, 1, 1, 1], padding="SAME")
        net = tf.nn.relu(batch_norm(net, f"bn{i}"))
        net = tf.nn.max_pool2d(net, 2, 2, "SAME")
    net = tf.reduce_mean(net, axis=[1, 2])
    weights = tf.get_variable("dense", [net.shape[-1], 2])
    return tf.matmul(net, weights)


images = tf.placeholder(tf.float32, [8, 16, 16, 1])
labels = tf.placeholder(tf.int32, [8])
step = tf.train.get_or_create_global_step()
logits = network(images)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
optimizer = tf.train.AdamOptimizer(0.01)
grads_and_vars = optimizer.compute_gradients(loss)
averaged = mc.gradients([g for g, _ in grads_and_vars], 0)
assert [a.shape for a in averaged] == [v.shape for _, v in grads_and_vars]
with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    train = optimizer.apply_gradients(
        [(a, v) for a, (_, v) in zip(averaged, grads_and_vars)], global_step=step
    )
init = tf.global_variables_initializer()


class Final(tf.train.SessionRunHook):
    """What is trained, and the optimizer's state, as they are at the end."""

    def end(self, session):
        held = [v for v in tf.global_variables() if "/mean" not in v.op.name]
        self.values = session.run(held)


final = Final()
hooks = [
    final,
    mc.InitConfigBcastTensors(args.steps, args.sync_fraction, 0, 0, perf_freq=4),
    mc.AverageTrainMetrics(loss, {"twice": 2 * loss}, 3, 8, 0.01, 1),
    tf.train.StopAtStepHook(num_steps=args.steps // ranks),
]
losses = []
with tf.train.MonitoredTrainingSession(
    # The others have no checkpoint, as in the original: they get what rank 0 restored.
    checkpoint_dir=args.checkpoints if rank == 0 and args.checkpoints else None,
    save_checkpoint_secs=None,
    save_checkpoint_steps=3 if args.checkpoints else None,
    save_summaries_steps=None,
    save_summaries_secs=None,
    log_step_count_steps=None,
    hooks=hooks,
) as session:
    begun = int(session.run(step))
    if args.rerun_initializer:
        session.run(init)
    while not session.should_stop():
        y = rng.randint(0, 2, 8)
        x = rng.normal(size=(8, 16, 16, 1)) + y[:, None, None, None]
        _, value = session.run([train, loss], {images: x, labels: y})
        losses.append(value)

mean = np.array([np.mean(losses)], np.float64)
mc.average(mean)
different = mc.check_buffers_match(final.values, 1)
print(
    f"rank {rank}: begun at {begun}, {len(losses)} steps, different: {different}, loss {mean[0]:.4f}"
)
mc.finalize()
