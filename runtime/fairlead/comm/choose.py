"""Which backend carries the bytes: the one that is asked for, else the native core, else mpi4py.

`fairlead run` knows site and image, and says what it has chosen by the variable here; started without it,
ranks choose between core and reference by themselves.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from fairlead.base.comm_names import BACKENDS, PLUGIN, UNORDERED, VARIABLE, is_ordered, unknown
from fairlead.base.errors import fail
from fairlead.comm import consistency
from fairlead.comm.backend import Backend, connect
from fairlead.comm.core import Comm


def connected(environ: Mapping[str, str] = os.environ) -> Comm:
    """This process's communicator. Collective.

    ``FAIRLEAD_COMM_BACKEND`` forces a backend. ``auto``, its default, is the native core wherever it is
    found, and rank 0 says so where it is not. ``nccl`` is for torch's tensors on GPUs; arrays of the host
    then go as by ``auto``.

    Raises:
        FairleadError: there is no such backend; the one that is forced cannot be had; or as
            :func:`fairlead.comm.init`.
    """
    wanted = environ.get(VARIABLE) or "auto"
    if wanted not in BACKENDS:
        raise unknown(wanted, f"{VARIABLE}={wanted}", f"unset {VARIABLE}, or set it to one of them")
    begun = time.monotonic_ns()
    backend = connect(environ)
    consistency.check(backend, environ)
    if wanted == "nccl":
        _require_torch(backend)
    if not environ.get("FAIRLEAD_COMM_TIMELINE"):
        return _made(wanted, backend, environ)
    from fairlead.comm.timeline import Timeline

    timeline = Timeline(backend, environ)  # before the core writes beside it
    ranks = _made(wanted, backend, environ)
    timeline.began(begun, ranks.backend)
    ranks.timeline = timeline
    return ranks


def _made(wanted: str, backend: Backend, environ: Mapping[str, str]) -> Comm:
    made = _over(wanted, backend, environ)
    made.forced = "" if wanted == "auto" else wanted
    return made


def _over(wanted: str, backend: Backend, environ: Mapping[str, str]) -> Comm:
    alone = backend.name.startswith("none")
    if wanted == "mpi4py" or (alone and wanted != "native"):
        return Comm(backend)
    if wanted == "horovod":
        from fairlead.comm.backends.horovod import Horovod

        return _by_carrier(wanted, backend, lambda: Horovod(backend), environ)
    if wanted == "dl_comm":
        from fairlead.comm.backends.dl_comm import DlComm

        folder = environ.get(PLUGIN, "")
        return _by_carrier(wanted, backend, lambda: DlComm(backend, folder), environ)
    if backend.size == 1 and wanted != "native":
        return Comm(backend)
    return _native(wanted, backend, environ)


def _by_carrier(
    wanted: str, backend: Backend, start: Callable[[], Any], environ: Mapping[str, str]
) -> Comm:
    """Others may wait in the library's start for a rank that has none; its exception ends them all."""
    from fairlead.comm.external_backend import Carried, CarriedComm

    try:
        if is_ordered(environ):
            raise RuntimeError(UNORDERED)
        carrier = start()
    except (ImportError, RuntimeError, OSError, AttributeError) as exc:
        raise fail(
            f"gradients cannot go by {wanted}",
            where=f"{VARIABLE}={wanted}, rank {backend.rank}",
            why=str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__,
            remedy=f"{_BRINGS[wanted]}; or unset {VARIABLE}, and the native core carries them",
            check="comm-backend-absent",
        ) from exc
    return CarriedComm(Carried(backend, carrier))


_BRINGS = {
    "horovod": "an image with Horovod for TensorFlow, as of the recipe tensorflow-horovod",
    "dl_comm": f"{PLUGIN} names the folder of the site's own module",
    "nccl": "an image with torch for GPUs",
}


def _require_torch(backend: Backend) -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise fail(
            "gradients cannot go by nccl",
            where=f"{VARIABLE}=nccl, rank {backend.rank}",
            why="NCCL is used through torch, and this Python has none",
            remedy=f"{_BRINGS['nccl']}; or unset {VARIABLE}",
            check="comm-backend-absent",
        )


def _native(wanted: str, backend: Backend, environ: Mapping[str, str]) -> Comm:
    from fairlead.comm.backends.native import NativeComm, library_path

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
