"""TensorFlow's parameter servers over gRPC: workers pull the variables and push their gradients, at any time.

Between-graph replication, as TensorFlow 1 has it: the variables lie on the servers, each on the one that holds the
fewest bytes so far; every worker has a graph of its own, computes gradients of what it has pulled, and the server applies
them as they come. Workers do not wait for each other. Source: M. Li et al., "Scaling Distributed Machine Learning
with the Parameter Server", OSDI 14; J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 12.

``python3 -m benchmarks.peers.parameter_server INDEX OF`` is one server of the launch that writes OF: it prints its port, reads the
cluster as JSON, serves, and ends with its standard input; so none outlives the rank that started it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.peers import nets
from benchmarks.peers.nets import MOMENTUM, RATE, Training
from benchmarks.peers.placement import free_port

_POLL_S = 0.05


def least_loaded(sizes: Sequence[int], servers: int) -> list[int]:
    """A server for each tensor, in order: the one with the fewest bytes so far.

    TensorFlow's own order, one after the other, would give one of two servers all kernels and the other all biases.

    >>> least_loaded([100, 1, 100, 1, 50], 2)
    [0, 1, 1, 0, 0]
    """
    load, places = [0] * servers, []
    for size in sizes:
        at = load.index(min(load))
        load[at] += size
        places.append(at)
    return places


def server(cluster: Mapping[str, Sequence[str]], job: str, index: int, threads: int) -> Any:
    """A server of TensorFlow's, running; ``cluster`` has HOST:PORT by job."""
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=2
    )
    # A worker talks to the servers only; else it would wait for all workers.
    if job == "worker":
        config.device_filters.extend(["/job:ps", f"/job:worker/task:{index}"])
    spec = tf.train.ClusterSpec({name: list(at) for name, at in cluster.items()})
    return tf.distribute.Server(spec, job_name=job, task_index=index, config=config)


class Worker:
    """One worker's side."""

    def __init__(self, cluster: Mapping[str, Sequence[str]], rank: int, threads: int):
        self._cluster, self._rank = cluster, rank
        self._target = server(cluster, "worker", rank, threads).target

    def training(
        self,
        key: str,
        task: nets.Task,
        batch: tuple[Any, Any],
        start: Sequence[Any],
        rate: float = RATE,
    ) -> Training:
        """A network on the servers.

        Args:
            batch: samples and labels of this worker.
            start: the weights to begin with; worker 0's count.
            rate: of each worker's gradients.
        """
        import tensorflow as tf

        from benchmarks.peers.steps_tensorflow import Ops, loss_of

        v1 = tf.compat.v1
        places = iter(least_loaded([4 * int(np.prod(a.shape)) for a in start], self._servers))
        graph = tf.Graph()
        variables: list[Any] = []
        config = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{self._rank}"])
        with graph.as_default(), v1.device(f"/job:worker/task:{self._rank}"):

            def make(shape: tuple[int, ...], kind: str) -> Any:
                with v1.device(f"/job:ps/task:{next(places)}"):
                    name = f"{key}{len(variables)}"
                    zeros = v1.zeros_initializer()
                    variables.append(v1.get_variable(name, shape, initializer=zeros))
                return variables[-1]

            with v1.device("/job:ps/task:0"):
                count, ready = (
                    v1.get_variable(
                        f"{key}-{name}", (), tf.int64, initializer=v1.zeros_initializer()
                    )
                    for name in ("updates", "ready")
                )
            images, labels = (tf.constant(each) for each in batch)
            loss = loss_of(nets.build(key, Ops, make, images, task.classes), labels)
            optimizer = v1.train.MomentumOptimizer(rate, MOMENTUM, use_locking=True)
            with v1.control_dependencies([optimizer.minimize(loss)]):
                train = v1.assign_add(count, 1, use_locking=True)
            momenta = [optimizer.get_slot(v, "momentum") for v in variables]
            given = [v1.placeholder(tf.float32, v.shape) for v in variables]
            fill = [v1.assign(v, p) for v, p in zip(variables, given, strict=True)]
            clear = [*(v1.assign(m, tf.zeros_like(m)) for m in momenta), v1.assign(count, 0)]
            session = v1.Session(self._target, config=config)
            values = dict(zip(given, start, strict=True))
            if self._rank == 0:
                session.run(v1.global_variables_initializer())
                session.run(fill, values)
                session.run(v1.assign(ready, 1))
            else:
                _wait(session, ready)
        return Training(
            lambda: float(session.run([train, loss])[1]),
            lambda: list(session.run(variables)),
            lambda: list(session.run(momenta)),
            updates=lambda: int(session.run(count)),
            reset=lambda: session.run([*fill, *clear], values),
        )

    @property
    def _servers(self) -> int:
        return len(self._cluster["ps"])


def _wait(session: Any, ready: Any) -> None:
    """Until worker 0 has filled the variables."""
    import tensorflow as tf

    while True:
        try:
            if session.run(ready) == 1:
                return
        except tf.errors.FailedPreconditionError:
            pass  # not even made
        time.sleep(_POLL_S)


def main(words: Sequence[str]) -> None:
    index = int(words[0])
    import tensorflow  # noqa: F401  # takes seconds, in which another program could take the port

    sys.stdout.write(f"{free_port()}\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if line:
        held = server(json.loads(line), "ps", index, threads=1)
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        sys.stdin.read()
        del held
    os._exit(0)  # TensorFlow's server cannot be stopped


if __name__ == "__main__":
    main(sys.argv[1:])
