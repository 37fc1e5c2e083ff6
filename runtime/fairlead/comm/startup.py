"""The start of a rank: MPI, the check that all ranks run the same code, and the backend that carries the bytes.

The backend is the requested one, else the native core, else mpi4py.

`fairlead run` knows site and image, and passes its choice in the variable here; without it, ranks choose between the
core and the reference by themselves, and load no declaration for that.

No collective notices a node with an old copy of the training script, or with another release of fairlead or NumPy:
the arrays have the same shapes, and only the numbers are wrong. So ranks first compare facts that are in the
process already, or in files that Python has just read. One module does all of it: each further one is a file that
every rank opens.
"""

# ruff: noqa: PTH100, PTH113, PTH116, PTH120
# Every rank would import pathlib for it.

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fairlead import __version__
from fairlead.base.comm_names import VARIABLE
from fairlead.base.errors import FairleadError, fail
from fairlead.comm.core import Comm
from fairlead.comm.mpi import connect

if TYPE_CHECKING:
    from fairlead.base.comm_backend import CommBackend
    from fairlead.comm.backend import Backend

    Start = Callable[[Backend, Mapping[str, str]], Comm]

SWITCH = "FAIRLEAD_COMM_SAME_CODE"
_LIBRARIES = ("numpy", "mpi4py", "tensorflow", "keras", "torch", "horovod", "jax")
# Every rank has loaded these by now.
_PARTS = ("fairlead.comm", "fairlead.comm.core", "fairlead.comm.mpi", __name__)
_SETTINGS = (VARIABLE, "FAIRLEAD_COMM_COMPRESSION")
# Parts of the paths of installed packages, and of fairlead's own files.
_OTHERS = (
    f"{os.sep}site-packages{os.sep}",
    f"{os.sep}dist-packages{os.sep}",
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
)
_MOST_FILES = 200

Facts = dict[str, str]


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
    assert start is not None  # only what _STARTS has is declared without
    begun = time.monotonic_ns()
    mpi = connect(environ)
    check_same_code(mpi, environ)
    timeline = None
    if environ.get("FAIRLEAD_COMM_TIMELINE"):
        from fairlead.comm.timeline import Timeline

        timeline = Timeline(mpi, environ)  # before the core writes its own part next to it
    ranks = start(mpi, environ)
    ranks.forced = "" if name == "auto" else name
    if timeline is not None:
        timeline.began(begun, ranks.backend)
        ranks.timeline = timeline
    return ranks


def _declared(name: str) -> CommBackend:
    from fairlead.base.comm_backend import REGISTRY, unknown

    declaration = REGISTRY.find(name)
    if declaration is None:
        raise unknown(name, f"{VARIABLE}={name}", f"unset {VARIABLE}, or set it to one of them")
    return declaration


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


# What most ranks use is started without reading declarations: at 10,000 ranks every file counts.
_STARTS: dict[str, Start] = {
    "auto": automatic,
    "native": partial(native, required=True),
    "mpi4py": lambda mpi, environ: Comm(mpi),
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


# --- the same code ---------------------------------------------------------------------------


def check_same_code(backend: Backend, environ: Mapping[str, str]) -> None:
    """Compares :func:`facts` over all ranks. Collective; one small allreduce where they agree.

    Facts that a rank lacks, such as a module that only rank 0 imports, are not compared.
    ``FAIRLEAD_COMM_SAME_CODE=0`` leaves programs out, for ranks that are meant to run different ones.

    Raises:
        FairleadError: a rank runs other code; the message, the same on every rank, names rank, host and file.
    """
    if backend.size == 1:
        return
    mine = facts(environ)
    mark = int.from_bytes(hashlib.sha256(repr(sorted(mine.items())).encode()).digest()[:7], "big")
    both = np.array([mark, -mark])
    backend.largest(both)
    if both[0] == -both[1]:
        return
    error = difference(backend.allgather((os.uname().nodename, mine)))
    if error is not None:
        raise error


def facts(environ: Mapping[str, str]) -> Facts:
    """The facts that must be the same on every rank, by name: versions, settings, and the program's own files."""
    # A development version does not identify the code, and reading all of it again would cost every rank.
    own = (sys.modules[name].__file__ for name in _PARTS)
    bytes_of = sum(os.stat(path).st_size for path in own if path and os.path.isfile(path))
    versions = {n: getattr(sys.modules.get(n), "__version__", None) for n in _LIBRARIES}
    return {
        "fairlead": f"{__version__}, {bytes_of} bytes of comm",
        "Python": sys.version.split(maxsplit=1)[0],
        **{name: str(version) for name, version in versions.items() if version is not None},
        **{name: environ.get(name, "") for name in _SETTINGS},
        **(_program() if environ.get(SWITCH, "1") != "0" else {}),
    }


def _program() -> Facts:
    """Digests of the script and of its modules in or below its folder."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if not script or not script.endswith(".py"):
        return {}
    folder = os.path.dirname(os.path.abspath(script)) + os.sep
    digests: Facts = {}
    for module in tuple(sys.modules.values())[:10_000]:
        path = getattr(module, "__file__", None)
        if len(digests) == _MOST_FILES or not isinstance(path, str) or not path.endswith(".py"):
            continue
        path = os.path.abspath(path)
        if path.startswith(folder) and not any(other in path for other in _OTHERS):
            digests[f"file {path[len(folder) :]}"] = _digest(path)
    return digests


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return f"sha256 {hashlib.sha256(stream.read()).hexdigest()[:16]}"
    except OSError as exc:  # it may have been removed since it was imported
        return f"unreadable: {exc.strerror}"


def difference(ranks: list[tuple[str, Facts]]) -> FairleadError | None:
    """The error that names a rank which differs from most, and how; None if they agree in all common facts.

    >>> print(difference([("a", {"numpy": "2.1"}), ("b", {"numpy": "2.1"}), ("c", {"numpy": "1.26"})]))
    rank 2 (c) has another numpy than rank 0 (a)
    >>> difference([("a", {"torch": "2.13"}), ("a", {})])
    """
    names = [name for name in ranks[0][1] if all(name in own for _, own in ranks)]
    for name in names:
        values = [own[name] for _, own in ranks]
        counts = Counter(values)
        if len(counts) == 1:
            continue
        usual = max(counts, key=counts.__getitem__)  # the lowest rank's where as many have each
        odd = next(rank for rank, value in enumerate(values) if value != usual)
        like = values.index(usual)
        what = f"has another {name}"
        remedy = "start every rank in the same image, or with the same installation"
        if name.startswith("file "):
            what = f"runs another {name.removeprefix('file ')}"
            remedy = (
                "start every rank from the same files;"
                f" {SWITCH}=0 where ranks are meant to run different programs"
            )
        elif name in _SETTINGS:
            what = f"was given another {name}"
            remedy = "give every rank the same environment, as `fairlead run` does"
        return fail(
            "comm-code",
            odd=odd,
            ranks=ranks[odd][0],
            what=what,
            like=like,
            ranks_0=ranks[like][0],
            values=values[odd],
            where=f" ({counts[usual]} of {len(values)} ranks)" if len(values) > 2 else "",
            usual=usual,
            remedy=remedy,
        )
    return None
