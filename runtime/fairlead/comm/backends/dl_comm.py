"""A site's own Cray PE DL plugin (``dl_comm``) beneath :mod:`fairlead.comm`.

The calls used are those that its documentation and public user code show: ``init_mpi``, ``init``,
``config_team``, ``average`` (the mean of a NumPy array, in place), ``barrier``, ``get_rank``, ``get_nranks``,
``finalize``. It was verified against them only: no such plugin could be had. At the start a mean is taken
whose result is known.

float32 goes by the plugin; float64 by mpi4py, since nothing says that ``average`` takes it; broadcasts too,
since ``broadcast`` is documented for a framework's variables. Beneath the agreement of
:mod:`fairlead.comm.external_backend` all guarantees on order, shape and dtype hold. Not given: names of ranks that
are late; equal bits on all ranks, which nothing promises (``check_buffers_match`` shows it); aggregations in
the background: the plugin has no handles for them, and its pipelined mode applies the first gradient twice,
so what is started is done on return, and a delay hides nothing.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

import numpy as np

from fairlead.comm.backend import Backend
from fairlead.comm.core import Array
from fairlead.comm.external_backend import parts

# The plugin allocates its buffers once, before anybody knows the gradients.
_ELEMENTS = 1 << 24
_FOR_EVER = 1_000_000_000  # steps


class DlComm:
    """A :class:`fairlead.comm.external_backend.Carrier`."""

    background = False

    def __init__(self, mpi: Backend, folder: str):
        """Starts the plugin. Collective.

        Args:
            folder: where the module ``dl_comm`` is; "" for Python's own path.
        Raises:
            ImportError, RuntimeError: there is none that can be used; its words are for people.
        """
        plugin = _loaded(folder)
        plugin.init_mpi()
        seen = (plugin.get_rank(), plugin.get_nranks())
        if seen != (mpi.rank, mpi.size):
            raise RuntimeError(
                f"dl_comm calls this rank {seen[0]} of {seen[1]}, MPI {mpi.rank} of {mpi.size}"
            )
        plugin.init(1, 1, _ELEMENTS, "tensorflow")
        plugin.config_team(0, 0, _FOR_EVER, _FOR_EVER, 0, _FOR_EVER)
        self._plugin, self._mpi = plugin, mpi
        self.name = f"dl_comm {getattr(plugin, '__version__', '')} ({plugin.__file__})"
        ranks = np.array([mpi.rank], np.float32)
        plugin.average(ranks)
        if ranks[0] != (mpi.size - 1) / 2:
            raise RuntimeError(
                f"the mean of 0 to {mpi.size - 1} is {ranks[0]:g} by dl_comm's average"
            )

    def mean(self, buffer: Array, team: int) -> None:
        if buffer.real.dtype != np.float32:
            self._mpi.mean(buffer)
            return
        for part in parts(buffer, _ELEMENTS):
            self._plugin.average(part)

    def broadcast(self, buffer: Array, root: int, team: int) -> None:
        self._mpi.broadcast(buffer, root)

    def barrier(self) -> None:
        self._plugin.barrier()

    def close(self) -> None:
        self._plugin.finalize()


def _loaded(folder: str) -> Any:
    """The true module: fairlead itself has one of that name for old scripts."""
    known = sys.modules.get("dl_comm")
    if getattr(known, "__fairlead__", ""):
        raise RuntimeError(
            "`dl_comm` is fairlead's stand-in in this program: leave that name out of install()"
        )
    if known is not None:
        return known
    spec = PathFinder.find_spec("dl_comm", [folder] if folder else None)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no module dl_comm in {folder or 'the path of this Python'}")
    if folder and folder not in sys.path:
        sys.path.append(folder)  # what it is made of lies beside it
    module = sys.modules["dl_comm"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["dl_comm"]
        raise
    return module
