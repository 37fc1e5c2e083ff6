"""Variables of a process as a file, and back.

One that cannot be pickled costs no other. Those that share an object share it when they come back: an optimizer has the
very parameters of its model, and would train nothing with copies of them.
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

from fairlead.notebook.settings import LET_GO, NAMES, read_json, saved_to, write_private

REPORTS = "save-reports"  # in a session's folder, a file a process: the disk of the variables themselves may be full
_IPYTHON = frozenset(("In", "Out", "exit", "quit", "get_ipython", "open", "ranks"))


# What loses nothing by being copied.
_CONSTANT = (
    type(None), bool, int, float, complex, str, bytes, type, range, slice, types.FunctionType, types.BuiltinFunctionType,
    types.ModuleType, types.CodeType, np.dtype, enum.Enum,
)  # fmt: skip
_NAMESPACE = "namespace"  # stands in a pickle for the variables that it is loaded into
_Place = tuple[str, int]  # of an object: the variable in whose pickle it is, and its number there
Pickles = list[tuple[tuple[str, ...], bytes]]  # of dictionaries, each with its names


def _pickler() -> Any:
    """cloudpickle's, which knows functions and classes of cells, or the standard one."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.Pickler
    return cloudpickle.Pickler


def pack(names: Mapping[str, Any], wanted: Iterable[str]) -> tuple[Pickles, dict[str, str]]:
    """Variables as pickles, and for those that could not be pickled the reason.

    An object is in the pickle of the first variable that has it; in others is its place there.
    """
    taken = dict(names)  # a cell may run meanwhile
    packed: Pickles = []
    lost: dict[str, str] = {}
    places: dict[
        int, tuple[object, _Place]
    ] = {}  # by id, with the object: an id is another's once it is gone
    for name in wanted:
        try:
            data, held = _pickled(names, name, taken[name], places)
        except Exception as exc:
            lost[name] = f"{type(exc).__name__}: {exc}"[:200]
            continue
        packed.append(((name,), data))
        places |= {id(item): (item, (name, index)) for index, item in held}
    return packed, lost


def _pickled(
    names: Mapping[str, Any], name: str, value: object, places: Mapping[int, tuple[object, _Place]]
) -> tuple[bytes, list[tuple[int, object]]]:
    """A variable as a pickle, and the objects in it that others could have, too, each with its number there."""
    own = {name: _Module(value.__name__) if isinstance(value, types.ModuleType) else value}
    home: dict[str, Any] = {}

    class Pickler(_pickler()):  # type: ignore[misc]
        def persistent_id(self, value: object) -> str | _Place | None:
            if value is home:
                return _NAMESPACE
            held = places.get(id(value))
            return held[1] if held else None

    stream = io.BytesIO()
    pickler = Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL)
    if hasattr(pickler, "globals_ref"):
        # A function of a cell goes on to use the variables, not copies of them.
        pickler.globals_ref[id(names)] = home
    pickler.dump(own)
    memo = pickler.memo.copy().values()
    return stream.getvalue(), [
        (index, part) for index, part in memo if part is not own and not isinstance(part, _CONSTANT)
    ]


class _Unpickler(pickle.Unpickler):
    """Loads a pickle of :func:`pack`.

    Args:
        memos: the objects of the pickles that were loaded before, by variable.
    """

    def __init__(
        self, data: bytes, names: dict[str, Any], memos: Mapping[str, Mapping[int, object]]
    ):
        super().__init__(io.BytesIO(data))
        self._names, self._memos = names, memos

    def persistent_load(self, pid: Any) -> Any:
        if pid == _NAMESPACE:
            return self._names
        name, index = pid
        if name not in self._memos:
            raise pickle.UnpicklingError(f"it shares an object with {name}, which is not restored")
        return self._memos[name][index]


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


def report_of(session: Path, who: str) -> Path:
    """The file in which a process says what :func:`save_named` has done."""
    return session / REPORTS / f"{who}.json"


def save_named(session: Path, who: str, names: Mapping[str, Any]) -> None:
    """Writes the variables that the session is asked to save, those of them that are there, and a report.

    Raises:
        OSError: the report cannot be written.
    """
    asked = read_json(session / NAMES)
    wanted = [name for name in asked.get("names", ()) if name in names]
    report: dict[str, Any]
    try:
        report = _write(saved_to(session), who, *pack(names, wanted))
    except OSError as exc:
        report = {"failed": exc.strerror or str(exc)} if wanted else {}
    path = report_of(session, who)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_private(path, json.dumps(report))


def saved(session: Path, since: float) -> tuple[str, dict[str, str]]:
    """What was saved of the names that the session is asked to save, and what was not and why, in words; and by process
    why nothing could be written.

    Args:
        since: seconds since 1970; what was written before counts for nothing.
    """
    names = set(read_json(session / NAMES).get("names", ()))
    if not names:
        return "", {}
    kept: set[str] = set()
    lost: list[str] = []
    failed: dict[str, str] = {}
    for path in sorted((session / REPORTS).glob("*.json")):
        if path.stat().st_mtime >= since:
            report = read_json(path)
            kept |= set(report.get("kept", ()))
            lost += [
                f"{name} of {path.stem}: {why}" for name, why in report.get("lost", {}).items()
            ]
            names -= report.get("lost", {}).keys()
            if why := report.get("failed"):
                failed[path.stem] = why
    if not failed:
        lost += [f"{name}: nobody has it" for name in sorted(names - kept)]
    text = f"saved to {saved_to(session)}: {', '.join(sorted(kept)) or 'nothing'}"
    return f"{text}; not saved: {'; '.join(lost)}" if lost else text, failed


def _write(folder: Path, who: str, packed: Pickles, lost: dict[str, str]) -> dict[str, Any]:
    """Writes variables, then what they are, which it returns."""
    report = {"kept": sorted(name for names, _ in packed for name in names), "lost": lost}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(folder / f"{who}.pickle", pickle.dumps(packed))
    write_private(folder / f"{who}.json", json.dumps(report))
    return report


def restore(path: Path, names: dict[str, Any]) -> str:
    """Loads what :func:`save` wrote into ``names``; the names that could not be loaded, in words."""
    if not path.exists():
        return ""
    lost = []
    memos: dict[str, Mapping[int, object]] = {}
    for together, data in pickle.loads(path.read_bytes()):
        unpickler = _Unpickler(data, names, memos)
        try:
            values = unpickler.load()
        except Exception as exc:
            lost.append(f"{', '.join(together)} ({type(exc).__name__}: {exc})")
            continue
        memos |= dict.fromkeys(together, unpickler.memo.copy())
        for name, value in values.items():
            names[name] = value.load() if isinstance(value, _Module) else value
    return f"not restored: {'; '.join(lost)}" if lost else ""
