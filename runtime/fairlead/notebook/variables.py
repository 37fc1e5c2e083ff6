"""Variables of a process as a file, and back.

One that cannot be pickled costs no other. Those that share an object are pickled together: an optimizer has the very
parameters of its model, and would train nothing with copies of them.
"""

from __future__ import annotations

import enum
import io
import json
import pickle
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.notebook.settings import LET_GO, SAVED, read_json, write_private

NAMES = "save.json"  # in a session's folder: what `%ranks save` was given
_IPYTHON = frozenset(("In", "Out", "exit", "quit", "get_ipython", "open", "ranks"))


# What loses nothing by being copied.
_CONSTANT = (
    type(None), bool, int, float, complex, str, bytes, type, range, slice, types.FunctionType, types.BuiltinFunctionType,
    types.ModuleType, types.CodeType, np.dtype, enum.Enum,
)  # fmt: skip
_NAMESPACE = "namespace"  # stands in a pickle for the variables that it is loaded into
Pickles = list[tuple[tuple[str, ...], bytes]]  # of dictionaries, each with its names


def _pickler() -> Any:
    """cloudpickle's, which knows functions and classes of cells, or the standard one."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.Pickler
    return cloudpickle.Pickler


def pack(names: Mapping[str, Any], wanted: Iterable[str]) -> tuple[Pickles, dict[str, str]]:
    """Variables as pickles, and for those that could not be pickled the reason."""
    taken = dict(names)  # a cell may run meanwhile
    packed: dict[str, bytes] = {}
    lost: dict[str, str] = {}
    holders: dict[int, tuple[object, str]] = {}  # of each object, the first variable that has it
    parts: dict[str, set[str]] = {}
    for name in wanted:
        try:
            packed[name], held = _pickled(names, {name: taken[name]})
        except Exception as exc:
            lost[name] = f"{type(exc).__name__}: {exc}"[:200]
            continue
        parts[name] = {name}
        first = {holders.setdefault(id(item), (item, name))[1] for item in held}
        part = {name}.union(*(parts[other] for other in first))
        parts |= dict.fromkeys(part, part)
    together = {tuple(sorted(part)) for part in parts.values()}
    return [
        (part, packed[part[0]] if len(part) == 1 else _pickled(names, {n: taken[n] for n in part})[0])
        for part in sorted(together)
    ], lost  # fmt: skip


def _pickled(names: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[bytes, list[object]]:
    """A dictionary as a pickle, and the objects in it that others could have, too."""
    own = {
        name: _Module(value.__name__) if isinstance(value, types.ModuleType) else value
        for name, value in values.items()
    }
    home: dict[str, Any] = {}

    class Pickler(_pickler()):  # type: ignore[misc]
        def persistent_id(self, value: object) -> str | None:
            return _NAMESPACE if value is home else None

    stream = io.BytesIO()
    pickler = Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL)
    if hasattr(pickler, "globals_ref"):
        # A function of a cell goes on to use the variables, not copies of them.
        pickler.globals_ref[id(names)] = home
    pickler.dump(own)
    memo = pickler.memo.copy().values()
    return stream.getvalue(), [
        part for _, part in memo if part is not own and not isinstance(part, _CONSTANT)
    ]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, names: dict[str, Any]):
        super().__init__(io.BytesIO(data))
        self._names = names

    def persistent_load(self, pid: object) -> dict[str, Any]:
        return self._names


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
    wanted = [n for n in list(names) if not n.startswith("_") and n not in own]
    _write(folder, who, *pack(names, wanted))


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
    asked = read_json(session / NAMES)
    wanted = [name for name in asked.get("names", ()) if name in names]
    _write(Path(asked.get("folder") or session / SAVED), who, *pack(names, wanted))


def saved(session: Path, since: float) -> str:
    """What was saved of the names that the session is asked to save, and what was not and why, in words.

    Args:
        since: seconds since 1970; what was written before counts for nothing.
    """
    asked = read_json(session / NAMES)
    folder, names = Path(asked.get("folder") or session / SAVED), set(asked.get("names", ()))
    if not names:
        return ""
    kept: set[str] = set()
    lost: list[str] = []
    for path in sorted(folder.glob("*.json")):
        if path.stat().st_mtime >= since:
            report = read_json(path)
            kept |= set(report.get("kept", ()))
            lost += [
                f"{name} of {path.stem}: {why}" for name, why in report.get("lost", {}).items()
            ]
            names -= report.get("lost", {}).keys()
    lost += [f"{name}: nobody has it" for name in sorted(names - kept)]
    text = f"saved to {folder}: {', '.join(sorted(kept)) or 'nothing'}"
    return f"{text}; not saved: {'; '.join(lost)}" if lost else text


def _write(folder: Path, who: str, packed: Pickles, lost: dict[str, str]) -> None:
    kept = sorted(name for names, _ in packed for name in names)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(folder / f"{who}.pickle", pickle.dumps(packed))
    write_private(folder / f"{who}.json", json.dumps({"kept": kept, "lost": lost}))


def restore(path: Path, names: dict[str, Any]) -> str:
    """Loads what :func:`save` wrote into ``names``; the names that could not be loaded, in words."""
    if not path.exists():
        return ""
    lost = []
    for together, data in pickle.loads(path.read_bytes()):
        try:
            values = _Unpickler(data, names).load()
        except Exception as exc:
            lost.append(f"{', '.join(together)} ({type(exc).__name__}: {exc})")
            continue
        for name, value in values.items():
            names[name] = value.load() if isinstance(value, _Module) else value
    return f"not restored: {'; '.join(lost)}" if lost else ""
