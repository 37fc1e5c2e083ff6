"""Horovod beneath :mod:`fairlead.comm`, by its TensorFlow operations on host memory.

For those who want Horovod's own transport (its fusion, cycle time, timeline: the ``HOROVOD_*`` variables
hold) under fairlead's fronts, and for comparison. Its torch operations are not used: the recipe's Horovod
has none.

Beneath the agreement of :mod:`fairlead.comm.external_backend` all guarantees on order, shape and dtype hold. Not
given: names of ranks that are late (``FAIRLEAD_COMM_STALL_S``, ``FAIRLEAD_COMM_TIMEOUT_S`` are of the native
core); that all ranks get the same bits is MPI_Allreduce's promise.

Source: https://horovod.readthedocs.io/en/stable/api.html.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

from fairlead.comm.backend import Backend
from fairlead.comm.core import Array
from fairlead.comm.external_backend import parts


class Horovod:
    """A :class:`fairlead.comm.external_backend.Carrier`."""

    background = True

    def __init__(self, mpi: Backend):
        """Starts Horovod over the MPI that runs already. Collective.

        Raises:
            ImportError, RuntimeError: there is none that can be used; its words are for people.
        """
        stand_in = getattr(sys.modules.get("horovod"), "__fairlead__", "")
        if stand_in:
            raise RuntimeError(
                "`horovod` is fairlead's stand-in in this program: leave that name out of install()"
            )
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
        # Operations have names of their own in a graph only. The session's threads are its own: within a
        # step of the program's, which waits for this, the program's may all be taken.
        config = tf.compat.v1.ConfigProto(
            device_count={"GPU": 0},
            inter_op_parallelism_threads=2,
            intra_op_parallelism_threads=1,
            use_per_session_threads=True,
        )
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        self.name = f"Horovod {horovod.__version__}"

    def mean(self, buffer: Array, team: int) -> None:
        for number, part in enumerate(parts(buffer)):
            # Its own mean multiplies by the reciprocal, and rounds otherwise than the reference.
            np.divide(self._moved("sum", part, f"{team}.{number}"), self._size, out=part)

    def broadcast(self, buffer: Array, root: int, team: int) -> None:
        for number, part in enumerate(parts(buffer)):
            np.copyto(part, self._moved(f"broadcast.{root}", part, f"{team}.{number}", root))

    def barrier(self) -> None:
        self._moved("barrier", np.zeros(1, np.float32), "0")  # its TensorFlow operations have none

    def _moved(self, what: str, array: Array, which: str, root: int = -1) -> Array:
        """What Horovod makes of ``array``: its sum over ranks, or that of ``root``.

        Horovod tells tensors that are on their way at once from each other by name, and keeps what it has
        agreed on for a name: the same for the same buffer of each step.
        """
        name = f"fairlead.{what}.{array.dtype.name}.{array.size}.{which}"
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
