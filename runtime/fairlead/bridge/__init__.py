"""Spark, Dask, pandas ⇔ MPI: tables are sent to the ranks of a proved job, which compute on them as matrices.

::

    from fairlead.bridge import connect

    with connect() as mpi:                        # what `fairlead bridge serve -n 4 analytics` has started
        a = mpi.send(frame)
        u, s, v = mpi.linalg.svd(a, k=20)         # handles
        print(s.to_numpy())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.bridge.client.matrix import Matrix
    from fairlead.bridge.client.session import Session, connect
    from fairlead.bridge.errors import BridgeError

__all__ = ["BridgeError", "Matrix", "Session", "connect"]

_WHERE = {"connect": "client.session", "Session": "client.session", "Matrix": "client.matrix",
          "BridgeError": "errors"}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loads the client when it is used: ranks import modules of this package, too."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
