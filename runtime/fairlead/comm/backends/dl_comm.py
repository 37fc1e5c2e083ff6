"""A site's own Cray PE DL plugin (``dl_comm``).

It is used through the calls that its documentation and public user code show: ``init_mpi``, ``init``,
``config_team``, ``average`` (the mean of a NumPy array, in place), ``barrier``, ``get_rank``, ``get_nranks``,
``finalize``. It was verified against them only: the plugin itself was not available. At the start, a mean whose result
is known checks ``average``.

float32 goes by the plugin; float64 goes by mpi4py, since nothing says that ``average`` takes it, and so do broadcasts,
since ``broadcast`` is documented for a framework's variables. The agreement of :mod:`fairlead.comm.external_backend`
guarantees order, shape and dtype. Not given: the names of late ranks; equal bits on all ranks, which nothing promises
(``check_buffers_match`` shows it); aggregations in the background: the plugin has no handles for them, and its
pipelined mode applies the first gradient twice, so an aggregation is complete when ``start`` returns, and a delay hides
nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

from fairlead.base.comm_backend import Availability, CommBackend, CommFacts, Setting
from fairlead.base.comm_names import PLUGIN

if TYPE_CHECKING:
    from fairlead.comm.backend import Backend
    from fairlead.comm.core import Array, Comm

# The plugin allocates its buffers once, before the gradients are known.
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
            ImportError, RuntimeError: no usable plugin; the message is for the user.
        """
        import numpy as np

        plugin = _loaded(folder)
        plugin.init_mpi()
        layout = (plugin.get_rank(), plugin.get_nranks())
        if layout != (mpi.rank, mpi.size):
            raise RuntimeError(
                f"dl_comm calls this rank {layout[0]} of {layout[1]}, MPI {mpi.rank} of {mpi.size}"
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
        from fairlead.comm.external_backend import parts

        if buffer.real.dtype.name != "float32":
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
    if "dl_comm" in sys.modules:
        return sys.modules["dl_comm"]
    spec = PathFinder.find_spec("dl_comm", [folder] if folder else None)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no module dl_comm in {folder or 'the path of this Python'}")
    if folder and folder not in sys.path:
        sys.path.append(folder)  # its own parts are in the same folder
    module = sys.modules["dl_comm"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["dl_comm"]
        raise
    return module


def _available(facts: CommFacts) -> Availability:
    if facts.plugin:
        return Availability()
    if facts.plugin_named and facts.unseen:
        return Availability(
            None, "that machine's capture does not show whether the site's module is there"
        )
    if facts.plugin_named:
        return Availability(False, "the folder that is named for it is not on this machine")
    return Availability(False, f"the profile {facts.site} names no folder of it ([comm] plugin)")


def _connect(mpi: Backend, environ: Mapping[str, str]) -> Comm:
    from fairlead.comm.external_backend import connected

    return connected("dl_comm", mpi, lambda: DlComm(mpi, environ.get(PLUGIN, "")), environ)


BACKENDS = (
    CommBackend(
        name="dl_comm",
        summary="the site's own Cray plugin",
        available=_available,
        connect=_connect,
        provided_by=f'set [comm] plugin = ["FOLDER"] in the site\'s profile, or {PLUGIN}=FOLDER',
        not_chosen="only when asked for, by the site or by you",
        variables=lambda facts: {PLUGIN: facts.plugin},
        folders=lambda facts: (facts.plugin,) if facts.plugin else (),
        settings=(Setting(PLUGIN, "", "folder of the site's own module dl_comm"),),
        position=4,
    ),
)
