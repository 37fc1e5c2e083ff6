"""A script for the Cray PE ML Plugin, as it was: a TF 1 session, a hook, averaged gradients.

No line of it knows fairlead; the runner before its name lets `ml_comm` be found.

    $ fairlead run -n 2 tensorflow -- python3 -m fairlead.comm.dropin examples/old_plugin_script.py
"""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import ml_comm as mc
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
mc.init_mpi()
rng = np.random.RandomState(mc.get_rank())  # other samples, and another start, on each rank

x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None])
weights = tf.get_variable("weights", initializer=tf.constant(rng.normal(size=3), tf.float32))
step = tf.train.get_or_create_global_step()
loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
optimizer = tf.train.MomentumOptimizer(0.02, 0.9)
gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
means = mc.gradients(gradients, 0)  # over ranks
train = optimizer.apply_gradients(zip(means, variables, strict=True), global_step=step)

hooks = [mc.InitConfigBcastTensors(200 * mc.get_nranks(), 1.0), tf.train.StopAtStepHook(200)]
with tf.train.MonitoredTrainingSession(hooks=hooks, log_step_count_steps=None) as session:
    while not session.should_stop():
        samples = rng.normal(size=(32, 3))
        _, error = session.run([train, loss], {x: samples, y: samples @ [1.0, -2.0, 0.5]})

error = np.array([error])
mc.average(error)
if mc.get_rank() == 0:
    print(f"mean error over {mc.get_nranks()} rank(s): {error[0]:.6f}")
mc.finalize()
