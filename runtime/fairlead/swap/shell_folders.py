"""Variables of the shell that name a user's folders: ranks do without those whose folder their container does not show.

Apptainer hands the shell's variables on. ``XDG_CACHE_HOME``, by which fairlead's own cache goes to a folder that all nodes
see, or a batch job's ``TMPDIR`` would lead programs in the container to a folder that is not there: they fail, or write
into the container. Without it they take ``~/.cache`` and ``/tmp``. What is not known to be hidden is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from fairlead.engines.model import Engine
from fairlead.swap.model import Bind, Request

# Those of POSIX and of the XDG Base Directory Specification that programs write to.
NAMES = ("TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
WHY = "its folder is not shown in the container"
_SHOWN = ("/tmp", "/var/tmp")
_BINDS = ("APPTAINER_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BIND", "SINGULARITY_BINDPATH")


def folders(environ: Mapping[str, str], working: str) -> dict[str, str]:
    """Those variables of a shell whose folder no container shows by itself: home, working and temporary folders.

    >>> folders({"XDG_CACHE_HOME": "/scratch/me", "XDG_STATE_HOME": "/home/me/.local/state", "HOME": "/home/me"}, "/data")
    {'XDG_CACHE_HOME': '/scratch/me'}
    """
    given = ",".join(environ.get(name, "") for name in _BINDS)
    bound = [part.partition(":")[0] for part in given.split(",")]
    shown = [*_SHOWN, environ.get("HOME", ""), working, *bound]
    named = ((name, environ.get(name, "")) for name in NAMES)
    return {name: value for name, value in named if value and not _is_shown(value, shown)}


def hidden(request: Request, engine: Engine, binds: Iterable[Bind]) -> tuple[str, ...]:
    """Of a request's :func:`folders`, those that neither the engine's configuration nor a plan's binds show."""
    if request.engine_args:
        return ()
    shown = [*engine.shows, *(bind.target for bind in binds if bind.source == bind.target)]
    named = ((n, value) for n, value in request.folders.items() if n not in engine.reads)
    return tuple(name for name, value in named if not _is_shown(value, shown))


def _is_shown(path: str, shown: Iterable[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in shown if folder)
