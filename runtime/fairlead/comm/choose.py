"""Which backend carries the bytes: the native core, or mpi4py as the reference."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from fairlead.comm.backend import Backend, connect
from fairlead.comm.core import Comm
from fairlead.findings import fail

BACKENDS = ("auto", "native", "mpi4py")
VARIABLE = "FAIRLEAD_COMM_BACKEND"


def connected(environ: Mapping[str, str] = os.environ) -> Comm:
    """This process's communicator. Collective.

    ``FAIRLEAD_COMM_BACKEND`` forces a backend; ``auto``, its default, is the native core wherever it is
    found, and rank 0 says so where it is not.

    Raises:
        FairleadError: there is no such backend; the one that is forced cannot be had; or as
            :func:`fairlead.comm.init`.
    """
    wanted = environ.get(VARIABLE) or "auto"
    if wanted not in BACKENDS:
        raise fail(
            f"there is no backend `{wanted}`",
            where=f"{VARIABLE}={wanted}",
            why=f"known: {', '.join(BACKENDS)}",
            remedy=f"unset {VARIABLE}, or set it to one of them",
            check="comm-backend",
        )
    begun = time.monotonic_ns()
    backend = connect(environ)
    if not environ.get("FAIRLEAD_COMM_TIMELINE"):
        return _over(backend, wanted, environ)
    from fairlead.comm.timeline import Timeline

    timeline = Timeline(backend, environ)  # before the core writes beside it
    ranks = _over(backend, wanted, environ)
    timeline.began(begun, ranks.backend)
    ranks.timeline = timeline
    return ranks


def _over(backend: Backend, wanted: str, environ: Mapping[str, str]) -> Comm:
    if wanted == "mpi4py" or (backend.size == 1 and wanted == "auto"):
        return Comm(backend)
    from fairlead.comm.native import NativeComm, library_path

    path, why = library_path(environ)
    # One rank without the core, and the others would wait for it in the core's own start.
    found = backend.allgather(path is not None)
    if path is not None and all(found):
        return NativeComm(backend, path)
    if path is not None:
        why = f"rank {found.index(False)} has none"
    if wanted == "native":
        raise fail(
            "there is no collective core",
            where=f"{VARIABLE}=native, rank {backend.rank}",
            why=why,
            remedy=f"start the program with `fairlead run`, or set {VARIABLE}=mpi4py",
            check="comm-core",
        )
    if backend.rank == 0:
        sys.stderr.write(f"fairlead.comm: mpi4py carries the gradients, the slower way: {why}\n")
    return Comm(backend)
