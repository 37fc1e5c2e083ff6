"""A training loop in plain TensorFlow, on many ranks; docs/tutorials/training.md explains each call.

Run it from the top of the checkout, on as many ranks as you like:

    $ fairlead run -n 2 tensorflow -- python3 examples/tensorflow_loop.py
"""

import tensorflow as tf

from fairlead.comm import tensorflow as comm

tf.random.set_seed(comm.rank())  # each rank draws other weights, until they are broadcast
x = tf.random.stateless_normal((4096, 8), seed=(1, 2))
y = tf.sin(x[:, :1] + x[:, 1:2])
x, y = x[comm.rank() :: comm.size()], y[comm.rank() :: comm.size()]

kernels = [tf.Variable(tf.random.normal(shape, stddev=0.3)) for shape in ((8, 64), (64, 1))]
biases = [tf.Variable(tf.zeros(width)) for width in (64, 1)]
variables = [*kernels, *biases]
comm.broadcast(variables)


@tf.function
def step(x, y):
    with comm.DistributedGradientTape() as tape:
        hidden = tf.tanh(x @ kernels[0] + biases[0])
        loss = tf.reduce_mean((hidden @ kernels[1] + biases[1] - y) ** 2)
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        variable.assign_sub(0.1 * gradient)
    return comm.average(loss)


for _ in range(400):
    loss = step(x, y)
if comm.rank() == 0:
    print(f"{comm.carrier()}\nloss {float(loss):.3f}")
