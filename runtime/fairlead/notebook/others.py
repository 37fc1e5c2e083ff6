"""Notebooks of others in a session's kernel: they begin with a client or a cluster of ipyparallel, and get the ranks."""

from __future__ import annotations

import signal
import sys
from typing import Any

import ipyparallel

from fairlead.base.errors import fail
from fairlead.notebook.ranks import Ranks
from fairlead.notebook.settings import CLIENT

_create, _wait = ipyparallel.Client.__init__, ipyparallel.Client.wait_for_engines


def install(ranks: Ranks) -> None:
    """``ipyparallel.Client`` and ``ipyparallel.Cluster`` are the session's from now on, under whatever names.

    Other engines stay within reach by a connection file, and by a profile that has a controller. The classes themselves
    are changed: ipyparallel asks of what it is given whether it is one.
    """
    for original, changes in ((ipyparallel.Client, _Client), (ipyparallel.Cluster, _Cluster)):
        original._fairlead_ranks = ranks
        for name, value in vars(changes).items():
            if not name.startswith("__") or name == "__init__":
                setattr(original, name, value)


class _Client:
    """A client of the session's ranks, unless another controller is named."""

    _fairlead_ranks: Ranks
    _of_session = False

    def __init__(self, connection_info: Any = None, **more: Any):
        if connection_info is None and not more.get("url_file"):
            try:
                if {*more} & {"profile", "profile_dir", "cluster_id"}:
                    _create(self, None, **more)
                    return
            except OSError:  # nobody has started one
                more = {}
            ranks = self._fairlead_ranks
            ranks.ready()
            connection_info = str(ranks.settings.world(ranks.world) / CLIENT)
            self._of_session = True
        _create(self, connection_info, **more)

    def wait_for_engines(self, n: Any = None, **more: Any) -> Any:
        """
        Raises:
            FairleadError: the session has fewer ranks, and no more will come.
        """
        if self._of_session and n is not None and n > len(self._fairlead_ranks):
            raise fail("notebook-engines", wanted=n, ranks=len(self._fairlead_ranks))
        return _wait(self, n, **more)


class _Cluster:
    """The session's ranks, which run before it is started and end with the session."""

    _fairlead_ranks: Ranks
    n: int | None

    async def start_and_connect(self, n: int | None = None, activate: bool = False) -> Any:
        await self.start_cluster(n)
        client = await self.connect_client()
        if activate:
            view = client[:]
            view.block = True
            view.activate()
        return client

    async def start_cluster(self, n: int | None = None) -> Any:
        await self.start_engines(n)
        return self

    async def start_controller(self, **more: Any) -> None:
        """The session has one."""

    async def start_engines(
        self, n: int | None = None, engine_set_id: Any = None, **more: Any
    ) -> str:
        count, wanted = len(self._fairlead_ranks), n or self.n
        text = f"the cluster is this session's {count} rank{'s' if count > 1 else ''}"
        if wanted not in (None, count):
            text += f", not {wanted} new engines; `fairlead notebook -n {wanted}` starts as many"
        sys.stderr.write(f"fairlead: {text}\n")
        return "ranks"

    async def connect_client(self, **more: Any) -> Any:
        return ipyparallel.Client(**more)

    async def signal_engines(self, signum: int, *args: Any, **more: Any) -> None:
        self._fairlead_ranks.signal(signal.Signals(signum), range(len(self._fairlead_ranks)))

    async def signal_engine(self, engine_id: int, signum: int, **more: Any) -> None:
        self._fairlead_ranks.signal(signal.Signals(signum), [engine_id])

    async def restart_engines(self, *args: Any, **more: Any) -> None:
        """
        Raises:
            FairleadError: always.
        """
        raise fail("notebook-engines-restart")

    restart_engine = restart_engines

    async def stop_engines(self, *args: Any, **more: Any) -> None:
        """They go on; `%ranks stop` ends the session."""

    stop_cluster = stop_controller = stop_engine = stop_engines
