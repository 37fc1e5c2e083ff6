"""Checks once, when MPI has just started, that all ranks run the same code.

No collective notices a node with an old copy of the training script, or with another release of fairlead or NumPy:
the arrays have the same shapes, and only the numbers are wrong. The facts that are compared are in this process
already, or in files that Python has just read.
"""

# ruff: noqa: PTH100, PTH113, PTH116, PTH120
# Every rank would import pathlib for it.

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from fairlead import __version__
from fairlead.base.comm_names import VARIABLE
from fairlead.base.errors import FairleadError, fail

if TYPE_CHECKING:
    from fairlead.comm.backend import Backend

SWITCH = "FAIRLEAD_COMM_SAME_CODE"
_LIBRARIES = ("numpy", "mpi4py", "tensorflow", "keras", "torch", "horovod", "jax")
_PARTS = ("", ".choose", ".consistency", ".core", ".mpi")  # every rank has loaded these by now
_SETTINGS = (VARIABLE, "FAIRLEAD_COMM_COMPRESSION")
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_MOST_FILES = 200

Facts = dict[str, str]


def check(backend: Backend, environ: Mapping[str, str] = os.environ) -> None:
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


def facts(environ: Mapping[str, str] = os.environ) -> Facts:
    """The facts that must be the same on every rank, by name: versions, settings, and the program's own files."""
    # A development version does not identify the code, and reading all of it again would cost every rank.
    own = (sys.modules[f"fairlead.comm{name}"].__file__ for name in _PARTS)
    bytes_of = sum(os.stat(path).st_size for path in own if path and os.path.isfile(path))
    named_facts = {
        "fairlead": f"{__version__}, {bytes_of} bytes of comm",
        "Python": sys.version.split(maxsplit=1)[0],
    }
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            named_facts[name] = str(version)
    named_facts.update({name: environ.get(name, "") for name in _SETTINGS})
    if environ.get(SWITCH, "1") != "0":
        named_facts.update(_program())
    return named_facts


def _program() -> Facts:
    """Digests of the script and of its modules in or below its folder."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if not script or not script.endswith(".py"):
        return {}
    folder = os.path.dirname(os.path.abspath(script)) + os.sep
    digests: Facts = {}
    for module in tuple(sys.modules.values())[:10_000]:
        path = _source(module, folder)
        if path and len(digests) < _MOST_FILES:
            digests[f"file {path[len(folder) :]}"] = _digest(path)
    return digests


def _source(module: ModuleType, folder: str) -> str | None:
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not path.endswith(".py"):
        return None
    path = os.path.abspath(path)
    own = path.startswith(folder) and not any(folder_name in path for folder_name in _INSTALLED)
    return path if own and not path.startswith(_OURS) else None


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


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
        kind, _, rest = name.partition(" ")
        what = f"has another {name}"
        if kind == "file":
            what = f"runs another {rest}"
        elif name in _SETTINGS:
            what = f"was given another {name}"
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
            remedy=_remedy(kind, name),
        )
    return None


def _remedy(kind: str, name: str) -> str:
    if kind == "file":
        return (
            "start every rank from the same files;"
            f" {SWITCH}=0 where ranks are meant to run different programs"
        )
    if name in _SETTINGS:
        return "give every rank the same environment, as `fairlead run` does"
    return "start every rank in the same image, or with the same installation"
