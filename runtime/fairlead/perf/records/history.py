"""Validations that were kept: where they are, and how one is found again.

Each is one file, ``~/.local/state/fairlead/validations/ID.json`` ($XDG_STATE_HOME): what was measured cannot be
fetched again, so it is not a cache. An id begins with its time, so ids in order are runs in order.
"""

from __future__ import annotations

import datetime
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.paths import locked, state_dir
from fairlead.base.suggest import suggest
from fairlead.perf.records import documents
from fairlead.perf.records.validation import SCHEMA, SCHEMA_VERSION, Validation

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_REMEDY = "fairlead report --list"


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where validations are kept."""
    return state_dir(environ) / "validations"


def new_id(site: str, now: datetime.datetime) -> str:
    """E.g. ``20260102T030405-laptop``."""
    return f"{now:%Y%m%dT%H%M%S}-{re.sub(r'[^A-Za-z0-9._-]', '-', site) or 'here'}"


def keep(validation: Validation, environ: Mapping[str, str] = os.environ) -> Path:
    """Keeps it under its id; nothing is written over.

    Raises:
        FairleadError: exit code 1; its id is not a valid file name, is taken by another, or the folder cannot be
            written.
    """
    place = folder(environ)
    path = place / f"{validation.id}.json"
    try:
        if not _ID.fullmatch(validation.id):
            raise FileExistsError(0, "its id is not a valid file name")
        with locked(place / ".lock"):
            if path.exists():
                raise FileExistsError(0, "a validation with this id exists already")
            documents.write(path, validation, SCHEMA, SCHEMA_VERSION)
    except OSError as exc:
        raise fail("validation-keep", path=path, reason=exc.strerror or str(exc)) from None
    return path


def files(environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """Of all that are kept, by id, the oldest first."""
    return dict(sorted((path.stem, path) for path in folder(environ).glob("*.json")))


def find(name: str, environ: Mapping[str, str] = os.environ) -> Validation:
    """The validation that ``name`` means.

    Args:
        name: an id, the beginning of one, ``last``, ``last~N`` for the N-th before it, the path of a file, or
            of a folder with a ``validation.json``.
    Raises:
        FairleadError: exit code 2; there is none, several begin so, or its file is none.
    """
    path = Path(name)
    if path.suffix == ".json" or os.sep in name:
        return read(path / "validation.json" if path.is_dir() else path)
    known = files(environ)
    return read(known[_resolve(name, tuple(known))])


def _resolve(name: str, known: tuple[str, ...]) -> str:
    if match := re.fullmatch(r"last(?:~(\d{1,6}))?", name):
        back = int(match[1] or 0)
        if back < len(known):
            return known[-1 - back]
        raise fail(
            "validation-unknown-report-list" if known else "validation-unknown-validate",
            name=name,
            why=f"{len(known)} {'is' if len(known) == 1 else 'are'} kept",
        )
    begun = [candidate for candidate in known if name and candidate.startswith(name)]
    if name in known or len(begun) == 1:
        return name if name in known else begun[0]
    why = f"several begin so: {', '.join(begun[:5])}" if begun else suggest(name, known[-8:])
    raise fail("validation-unknown-report-list", name=name, why=why)


def read(path: Path) -> Validation:
    """The validation in a file.

    Raises:
        FairleadError: exit code 2; it is none, with every mistake in it.
    """
    validation = documents.read(path, Validation, SCHEMA, SCHEMA_VERSION, "a validation", _REMEDY)
    wrong = next(_contradictions(validation), None)
    if wrong:
        raise fail("validation-contradicts-itself", check=documents.CHECK, path=path, wrong=wrong)
    return validation


def _contradictions(validation: Validation) -> Iterator[str]:
    keys = [m.key for m in validation.measurements]
    if [v.key for v in validation.verdicts] != keys:
        yield "its verdicts are not those of its measurements, one each and in their order"
    if len(set(keys)) < len(keys):
        yield "two measurements are of the same thing"
    for m in validation.measurements:
        if m.ranks < 1 or m.nodes < 1 or not all(0 < value < math.inf for value in m.samples):
            yield f"{m.key}: samples, ranks and nodes are above 0"
    steps = {len(s.input_s) for s in validation.steps}
    if len(steps) > 1 or 0 in steps:
        yield "its ranks have made other numbers of steps"
    if any(part < 0 for s in validation.steps for values in s.parts.values() for part in values):
        yield "a part of a step is shorter than nothing"
