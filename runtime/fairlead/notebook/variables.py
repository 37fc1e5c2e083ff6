"""Variables of a process as a file, and back: each by itself, so that one that cannot be pickled costs no other."""

from __future__ import annotations

import json
import pickle
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fairlead.notebook.settings import LET_GO, SAVED, read_json, write_private

NAMES = "save.json"  # in a session's folder: what `%ranks save` was given
_IPYTHON = frozenset(("In", "Out", "exit", "quit", "get_ipython", "open", "ranks"))


def _pickler() -> Callable[[Any], bytes]:
    """cloudpickle's, which knows functions and classes of cells, or the standard one."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps
    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    return dumps


def pack(
    names: Mapping[str, Any], wanted: Iterable[str]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Pickles by name, and for those that could not be pickled the reason."""
    dumps = _pickler()
    packed, lost = {}, {}
    for name in wanted:
        value = names[name]
        try:
            if isinstance(value, types.ModuleType):
                packed[name] = pickle.dumps(_Module(value.__name__))
            else:
                packed[name] = dumps(value)
        except Exception as exc:
            lost[name] = f"{type(exc).__name__}: {exc}"[:200]
    return packed, lost


class _Module:
    """A module, which is imported again."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self) -> types.ModuleType:
        import importlib

        return importlib.import_module(self.name)


def save(folder: Path, who: str, names: Mapping[str, Any], hidden: Iterable[str] = ()) -> None:
    """Writes all variables of the user as ``WHO.pickle``, then ``WHO.json``, which says which."""
    own = {*hidden, *_IPYTHON}
    taken = dict(names)
    wanted = [n for n in taken if not n.startswith("_") and n not in own]
    _write(folder, who, *pack(taken, wanted))


def prepare() -> None:
    """Imports what saving needs: a job that is cancelled may have lost the mount of its image."""
    _pickler()


def are_left(session: Path, ended: Path) -> bool:
    """Whether a SIGTERM finds any that the session is asked to save.

    Args:
        ended: the folder in which the session says that it ends a process itself, with nothing left to save.
    """
    return bool(read_json(session / NAMES).get("names")) and not (ended / LET_GO).exists()


def save_named(session: Path, who: str, names: Mapping[str, Any]) -> None:
    """Writes the variables that the session is asked to save, those of them that are there."""
    taken, asked = dict(names), read_json(session / NAMES)
    wanted = [name for name in asked.get("names", ()) if name in taken]
    _write(Path(asked.get("folder") or session / SAVED), who, *pack(taken, wanted))


def _write(folder: Path, who: str, packed: dict[str, bytes], lost: dict[str, str]) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(folder / f"{who}.pickle", pickle.dumps(packed))
    write_private(folder / f"{who}.json", json.dumps({"kept": sorted(packed), "lost": lost}))


def restore(path: Path, names: dict[str, Any]) -> str:
    """Loads what :func:`save` wrote into ``names``; the names that could not be loaded, in words."""
    if not path.exists():
        return ""
    lost = []
    for name, data in pickle.loads(path.read_bytes()).items():
        try:
            value = pickle.loads(data)
            names[name] = value.load() if isinstance(value, _Module) else value
        except Exception as exc:
            lost.append(f"{name} ({type(exc).__name__}: {exc})")
    return f"not restored: {', '.join(lost)}" if lost else ""
