"""Models that rank 0 alone writes, and that each rank may load afterwards.

Rank 0 gives a file its name once it is whole, and notes in the run's folder how often it has saved to a path and loaded
from it. Another rank counts how often it was to save there. Its load waits until rank 0 has saved as often, or has come to
the same load or to its end: a barrier would hang where a rank decides by its own loss to save.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from fairlead import comm
from fairlead.base import comm_waits
from fairlead.base.errors import fail
from fairlead.comm.auto.shared import before

_LIMIT_S = 300.0  # without FAIRLEAD_COMM_TIMEOUT_S, as for messages between ranks
_LOADS = 64  # paths of which loads are noted though nothing was saved there: a dataset may load each sample
_WHOLE = (".h5", ".hdf5", ".keras", ".pt", ".pth", ".ckpt", ".bin", ".pkl", ".safetensors", ".tar")
_END = "end"
# Folders that this rank names by its own clock, and what rank 0 calls them.
names: dict[str, str] = {}
_saves: Counter[str] = Counter()
_loads: Counter[str] = Counter()


def save(path: Any, write: Callable[[Any], object], whole: bool = True) -> None:
    """``write(path)`` on rank 0.

    Args:
        whole: it writes one file, which gets its name when it is finished.
    """
    where = place(path)
    _saves[where] += 1
    if comm.rank() == 0:
        if whole:
            _write_whole(path, where, write)
        else:
            write(path)
        _note(where)


def load(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function whose first argument may be a path."""
    path = (
        args[0]
        if args
        else next((kwargs[name] for name in ("f", "filepath", "filename") if name in kwargs), None)
    )
    if isinstance(path, (str, os.PathLike)):
        wait_for(path)
    return original(*args, **kwargs)


def safetensors(module: Any) -> None:
    """``safetensors.torch`` writes and reads by itself."""

    def saved(
        original: Callable[..., Any], tensors: Any, filename: Any, *more: Any, **given: Any
    ) -> None:
        save(filename, lambda path: original(tensors, path, *more, **given))

    before(module, "save_file", saved)
    before(module, "load_file", load)


def wait_for(path: Any) -> None:
    """Returns when rank 0 has saved to ``path`` as often as this rank was to.

    Raises:
        FairleadError: it has not in time.
    """
    where = place(path)
    if not comm.init().here:
        return
    _loads[where] += 1
    if comm.rank() == 0:
        if _saves[where] or len(_loads) < _LOADS:
            _note(where)
        return
    limit_s = float(os.environ.get("FAIRLEAD_COMM_TIMEOUT_S") or 0) or _LIMIT_S
    until = time.monotonic() + limit_s
    while folder() and _saves[where] > _noted(where)[0]:
        if _noted(where)[1] >= _loads[where] or ended():
            return
        if time.monotonic() > until:
            raise fail("auto-not-saved", path=where, rank=comm.rank(), seconds=f"{limit_s:.0f}")
        time.sleep(0.01)


def was_to_save(path: Any) -> bool:
    """Whether this rank was to save there."""
    return bool(_saves) and isinstance(path, (str, os.PathLike)) and place(path) in _saves


def end() -> None:
    """Rank 0 saves nothing more."""
    if comm.rank() == 0:
        _saves[_END] = 1
        _note(_END)


def ended() -> bool:
    """Whether rank 0 has come to :func:`end`."""
    return bool(_noted(_END)[0])


def _write_whole(path: Any, where: str, write: Callable[[Any], object]) -> None:
    folder, name = os.path.split(where)
    if not name.endswith(_WHOLE) or (os.path.exists(where) and not os.path.isfile(where)):  # noqa: PTH110, PTH113
        write(path)
        return
    try:
        # The file keeps its name, which torch writes into it.
        made_in = tempfile.mkdtemp(prefix=f".{name}.", dir=folder)
    except OSError:  # where there is no folder, or a file that alone can be written
        write(path)
        return
    try:
        write(os.path.join(made_in, name))  # noqa: PTH118
        # Keras may write parts next to it.
        for made in sorted(os.listdir(made_in), key=lambda each: each == name):  # noqa: PTH208
            os.replace(os.path.join(made_in, made), os.path.join(folder, made))  # noqa: PTH105, PTH118
    finally:
        shutil.rmtree(made_in, ignore_errors=True)


def place(path: Any) -> str:
    """Where rank 0 has what a path names."""
    there: str = os.path.realpath(os.fsdecode(path))
    for mine, of_rank_0 in names.items():
        if there == mine or there.startswith(mine + os.sep):
            return of_rank_0 + there[len(mine) :]
    return there


def used(folder: str) -> bool:
    """Whether this rank was to save there."""
    return any(each.startswith(folder + os.sep) for each in _saves)


def folder(environ: Mapping[str, str] = os.environ) -> str:
    """The run's folder, which all nodes see; empty without ``fairlead run``."""
    return environ.get(comm_waits.RUN_FOLDER, "")


def note_of(where: str, kind: str = "saved") -> str:
    """The file in which rank 0 notes what it has done with a path."""
    digest = hashlib.sha256(os.fsencode(where)).hexdigest()
    return os.path.join(folder(), f"{kind}.{digest[:32]}")  # noqa: PTH118


def write_note(file: str, text: str) -> None:
    """At once, for those that read it meanwhile."""
    if not folder():
        return
    with suppress(OSError):
        with open(f"{file}.new", "w", encoding="ascii") as out:
            out.write(text)
        os.replace(f"{file}.new", file)  # noqa: PTH105


def read_note(file: str) -> str:
    """What rank 0 has noted so far."""
    try:
        with open(file, encoding="ascii") as noted:
            return noted.read()
    except OSError:
        return ""


def _note(where: str) -> None:
    write_note(note_of(where), f"{_saves[where]} {_loads[where]}")


def _noted(where: str) -> tuple[int, int]:
    """How often rank 0 has saved to a path, and loaded from it."""
    saves, loads = map(int, (read_note(note_of(where)) or "0 0").split())
    return saves, loads
