"""Which backend carries the bytes: the requested one, else the native core, else mpi4py.

`fairlead run` knows site and image, and passes its choice in the variable here; without it, ranks choose between the
core and the reference by themselves, and load no declaration for that.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fairlead.base.comm_names import VARIABLE
from fairlead.base.errors import FairleadError, fail
from fairlead.comm import consistency
from fairlead.comm.core import Comm
from fairlead.comm.mpi import connect

if TYPE_CHECKING:
    from fairlead.base.comm_backend import CommBackend
    from fairlead.comm.backend import Backend

    Start = Callable[[Backend, Mapping[str, str]], Comm]


def connected(environ: Mapping[str, str] = os.environ) -> Comm:
    """This process's communicator. Collective.

    ``FAIRLEAD_COMM_BACKEND`` forces a backend. ``auto``, its default, is the native core wherever it is
    found, and rank 0 says so where it is not. ``nccl`` is for torch's tensors on GPUs; arrays of the host
    then go as by ``auto``.

    Raises:
        FairleadError: there is no such backend; the requested one is not available; or as
            :func:`fairlead.comm.init`.
    """
    name = environ.get(VARIABLE) or "auto"
    start = _STARTS.get(name) or _declared(name).connect
    begun = time.monotonic_ns()
    mpi = connect(environ)
    consistency.check(mpi, environ)
    if not environ.get("FAIRLEAD_COMM_TIMELINE"):
        return _started(name, start, mpi, environ)
    from fairlead.comm.timeline import Timeline

    timeline = Timeline(mpi, environ)  # before the core writes its own part next to it
    ranks = _started(name, start, mpi, environ)
    timeline.began(begun, ranks.backend)
    ranks.timeline = timeline
    return ranks


def _declared(name: str) -> CommBackend:
    from fairlead.base.comm_backend import REGISTRY, unknown

    declaration = REGISTRY.find(name)
    if declaration is None:
        raise unknown(name, f"{VARIABLE}={name}", f"unset {VARIABLE}, or set it to one of them")
    return declaration


def _started(name: str, start: Start, mpi: Backend, environ: Mapping[str, str]) -> Comm:
    ranks = start(mpi, environ)
    ranks.forced = "" if name == "auto" else name
    return ranks


def automatic(mpi: Backend, environ: Mapping[str, str]) -> Comm:
    """The native core where every rank has it, else mpi4py; one rank needs neither. Collective."""
    return Comm(mpi) if mpi.size == 1 else native(mpi, environ)


def native(mpi: Backend, environ: Mapping[str, str], *, required: bool = False) -> Comm:
    """The native core, or mpi4py where a rank has no core and it is not ``required``. Collective."""
    from fairlead.comm.native_core import NativeComm, library_path

    path, why = library_path(environ)
    # If one rank has no core, the others would wait for it in the core's own start.
    present = mpi.allgather(path is not None)
    if path is not None and all(present):
        return NativeComm(mpi, path)
    if path is not None:
        why = f"rank {present.index(False)} has none"
    if required:
        raise fail("comm-core-missing", variable=VARIABLE, rank=mpi.rank, why=why)
    if mpi.rank == 0:
        sys.stderr.write(f"fairlead.comm: mpi4py carries the gradients, the slower way: {why}\n")
    return Comm(mpi)


def required_native(mpi: Backend, environ: Mapping[str, str]) -> Comm:
    """The native core; an error where a rank has none. Collective."""
    return native(mpi, environ, required=True)


def reference(mpi: Backend, environ: Mapping[str, str]) -> Comm:
    """mpi4py."""
    return Comm(mpi)


# What most ranks use is started without reading declarations: at 10,000 ranks every file counts.
_STARTS: dict[str, Start] = {
    "auto": automatic,
    "native": required_native,
    "mpi4py": reference,
}


def unavailable(name: str, mpi: Backend, why: str) -> FairleadError:
    """That the requested backend cannot carry gradients on this rank."""
    return fail(
        "comm-backend-absent-on-rank",
        name=name,
        variable=VARIABLE,
        rank=mpi.rank,
        why=why,
        provided_by=_declared(name).provided_by,
    )
