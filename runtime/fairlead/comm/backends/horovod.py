"""Horovod, by its TensorFlow operations on host memory.

For its own transport (fusion, cycle time, timeline: the ``HOROVOD_*`` variables apply) under fairlead's front ends, and
for comparison. Its torch operations are not used: the recipe's Horovod has none.

The agreement of :mod:`fairlead.comm.external_backend` guarantees order, shape and dtype. Not given: the names of late
ranks (``FAIRLEAD_COMM_STALL_S``, ``FAIRLEAD_COMM_TIMEOUT_S`` belong to the native core); that all ranks get the same
bits is MPI_Allreduce's promise.

Source: https://horovod.readthedocs.io/en/stable/api.html.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairlead.base.comm_backend import Availability, CommBackend, CommFacts

if TYPE_CHECKING:
    from fairlead.comm.backend import Backend
    from fairlead.comm.core import Array, Comm


class Horovod:
    """A :class:`fairlead.comm.external_backend.Carrier`."""

    background = True

    def __init__(self, mpi: Backend):
        """Starts Horovod over the MPI that runs already. Collective.

        Raises:
            ImportError, RuntimeError: no usable Horovod; the message is for the user.
        """
        import horovod
        import horovod.tensorflow as hvd
        import tensorflow as tf

        if not hvd.mpi_built():
            raise RuntimeError(f"Horovod {horovod.__version__} was built without MPI")
        hvd.init()
        if (hvd.rank(), hvd.size()) != (mpi.rank, mpi.size):
            raise RuntimeError(
                f"Horovod calls this rank {hvd.rank()} of {hvd.size()}, MPI {mpi.rank} of {mpi.size}"
            )
        self._hvd: Any = hvd
        self._tf: Any = tf
        self._size = mpi.size
        self._made: dict[str, tuple[Any, Any]] = {}
        self._lock = threading.Lock()
        # Only in a graph can operations be named. The session has its own threads: during a step of the
        # program, which waits for this one, all threads of the program may be busy.
        config = tf.compat.v1.ConfigProto(
            device_count={"GPU": 0},
            inter_op_parallelism_threads=2,
            intra_op_parallelism_threads=1,
            use_per_session_threads=True,
        )
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        self.name = f"Horovod {horovod.__version__}"

    def mean(self, buffer: Array, team: int) -> None:
        # Its own mean multiplies by the reciprocal, and rounds differently from the reference.
        buffer[:] = self._moved("sum", buffer, team)
        buffer /= self._size

    def broadcast(self, buffer: Array, root: int, team: int) -> None:
        buffer[:] = self._moved(f"broadcast.{root}", buffer, team, root)

    def barrier(self) -> None:
        import numpy as np

        self._moved("barrier", np.zeros(1, np.float32), 0)  # its TensorFlow operations have none

    def _moved(self, what: str, array: Array, team: int, root: int = -1) -> Array:
        """The result of Horovod's operation on ``array``: its sum over ranks, or the array of ``root``.

        Horovod distinguishes tensors in flight by name, and caches its agreement on a name: a buffer has the same
        name in each step.
        """
        name = f"fairlead.{what}.{array.dtype.name}.{array.size}.{team}"
        with self._lock:
            if name not in self._made:
                with self._session.graph.as_default(), self._tf.device("CPU:0"):
                    given = self._tf.compat.v1.placeholder(array.dtype, array.shape)
                    if root < 0:
                        made = self._hvd.allreduce(given, op=self._hvd.Sum, name=name)
                    else:
                        made = self._hvd.broadcast(given, root, name=name)
                    self._made[name] = given, made
        given, made = self._made[name]
        moved: Array = self._session.run(made, {given: array})
        return moved

    def close(self) -> None:
        self._session.close()
        self._hvd.shutdown()


def _available(facts: CommFacts) -> Availability:
    if not facts.has_module("/horovod/"):
        return Availability(False, "the image has no Horovod that was built with MPI")
    if not facts.has_module("/horovod/tensorflow/"):
        return Availability(
            False, "the image's was not built for TensorFlow, whose operations are used"
        )
    return Availability()


def _connect(mpi: Backend, environ: Mapping[str, str]) -> Comm:
    from fairlead.comm.external_backend import connected

    return connected("horovod", mpi, lambda: Horovod(mpi), environ)


BACKENDS = (
    CommBackend(
        name="horovod",
        summary="Horovod of the image",
        available=_available,
        connect=_connect,
        provided_by="`fairlead build tensorflow-horovod`, and use it as IMAGE",
        not_chosen="slower than the core; only when asked for",
        position=3,
    ),
)
