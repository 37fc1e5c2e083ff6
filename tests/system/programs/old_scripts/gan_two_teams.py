"""Two networks trained at once, each through its own team, by SGD in TF 1, in one session run."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import ml_comm as mc
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

STEPS, K = 10, int(sys.argv[1]) if len(sys.argv) > 1 else 10
mc.init_mpi()
rank, ranks = mc.get_rank(), mc.get_nranks()
rng = np.random.RandomState(rank)


def variables(scope):
    return [v for v in tf.trainable_variables() if v.op.name.startswith(scope)]


with tf.variable_scope("gen"):
    noise = tf.placeholder(tf.float32, [4, 3])
    fake = tf.matmul(noise, tf.get_variable("w", [3, 5], initializer=tf.ones_initializer()))
with tf.variable_scope("disc", reuse=tf.AUTO_REUSE):
    real = tf.placeholder(tf.float32, [4, 5])
    weight = tf.get_variable("w", [5, 1], initializer=tf.ones_initializer())
    d_real, d_fake = tf.matmul(real, weight), tf.matmul(fake, weight)
d_loss = tf.reduce_mean(tf.nn.softplus(-d_real)) + tf.reduce_mean(tf.nn.softplus(d_fake))
g_loss = tf.reduce_mean(tf.nn.softplus(-d_fake))

size = sum(v.shape.num_elements() for v in tf.trainable_variables())
mc.init(1, 2, size, "tensorflow")
mc.config_team(0, 0, K, STEPS, 0, 0)
mc.config_team(1, 0, ksteps=K, max_steps=STEPS, verbosity=2, perf_freq=5)

updates, produced, delivered = [], [], []
for team, (loss, scope) in enumerate([(d_loss, "disc"), (g_loss, "gen")]):
    optimizer = tf.train.GradientDescentOptimizer(0.05)
    pairs = optimizer.compute_gradients(loss, var_list=variables(scope))
    means = mc.gradients([g for g, _ in pairs], team)
    updates.append(optimizer.apply_gradients(zip(means, [v for _, v in pairs])))
    produced.append(pairs[0][0])
    delivered.append(means[0])

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    sums = [[0.0, 0.0], [0.0, 0.0]]
    first = []
    for step in range(STEPS):
        feed = {noise: rng.normal(size=(4, 3)), real: rng.normal(size=(4, 5)) + 1}
        made, got, _ = session.run([produced, delivered, updates], feed)
        for team in range(2):
            mine = np.array(made[team], np.float64)
            sums[team][0] += mc.average(mine)
            sums[team][1] += got[team].astype(np.float64)
        first.append(all(np.any(g) for g in got))
    held = session.run(tf.trainable_variables())
close = [bool(np.allclose(a, b, atol=1e-5)) for a, b in sums]
print(
    f"rank {rank}: different: {mc.check_buffers_match(held, 1)}, sums delivered: {close}, zeros in step {first.index(False) if False in first else None}"
)
mc.finalize()
