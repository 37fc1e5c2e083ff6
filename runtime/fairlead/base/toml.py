"""Reads and validates TOML files: reports every mistake at once, with file, line and allowed values.

:func:`load` reads recipes, locks and site profiles. pydantic finds the mistakes; this
module adds their lines and the valid values.
"""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, fail
from fairlead.base.suggest import suggest


class Strict(BaseModel):
    """Base class of models of files: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


M = TypeVar("M", bound=BaseModel)
Loc = tuple[int | str, ...]


@dataclass(frozen=True)
class Mistake:
    """A mistake that no single key shows, e.g. two tables that contradict each other."""

    loc: Loc
    what: str
    why: str
    check: str = "contradiction"


def mistake_at(loc: Loc, message: str, /, **fields: object) -> Mistake:
    """A mistake with the texts of a catalogue message; its location gives the place and the remedy."""
    words = error(message, **fields)
    return Mistake(loc, words.what, words.why, words.check)


# Gets the raw data, which may be wrong in any way: it runs in addition to the model's checks, so
# that both kinds of mistake are reported at once.
Cross = Callable[[dict[str, Any]], Iterable[Mistake]]


def no_cross_checks(data: dict[str, Any]) -> Iterable[Mistake]:
    return ()


def load(path: Path, model: type[M], remedy: str, cross: Cross = no_cross_checks) -> M:
    """Reads ``path`` as a ``model``.

    Args:
        path: the TOML file.
        model: the model to validate it against.
        remedy: the command to type once the file is fixed, e.g. ``fairlead recipe check hep``.
        cross: checks that span keys and tables; given the raw data.
    Raises:
        FairleadError: exit code 2; one finding for each mistake.
    """
    return _validated(read(path, remedy), model, cross)


def parse(text: str, path: Path, model: type[M], remedy: str, cross: Cross = no_cross_checks) -> M:
    """As :func:`load`, of text that is already in memory; ``path`` is for the messages."""
    return _validated(scan(text, path, remedy), model, cross)


def _validated(document: Document, model: type[M], cross: Cross) -> M:
    value, findings = document.validate(model)
    findings += [document.finding(mistake) for mistake in cross(document.data)]
    if value is None or findings:
        raise FairleadError(findings, ExitCode.USAGE)
    return value


@dataclass(frozen=True)
class Document:
    """A TOML file as it was read: anything in ``data`` may be of any type.

    Attributes:
        lines: the line on which each table and key stands, from 1.
        remedy: the command to type once the file is fixed.
    """

    path: Path
    data: dict[str, Any]
    lines: dict[Loc, int]
    remedy: str

    def validate(self, model: type[M]) -> tuple[M | None, list[Finding]]:
        """The file as a ``model``, or every mistake that keeps it from being one, by line."""
        try:
            return model.model_validate(self.data), []
        except ValidationError as exc:
            problems = sorted(exc.errors(), key=lambda e: _line_of(e["loc"], self.lines) or 0)
            return None, [
                _finding(dict(e), model, self.path, self.lines, self.remedy) for e in problems
            ]

    def finding(self, mistake: Mistake) -> Finding:
        """``mistake`` with its line."""
        where, edit = _place(mistake.loc, self.path, self.lines)
        return error(
            "document-mistake",
            check=mistake.check,
            mistake_what=mistake.what,
            where=where,
            why=mistake.why,
            edit=edit,
            remedy=self.remedy,
        )


def read(path: Path, remedy: str) -> Document:
    """The TOML file at ``path``, not yet validated against a model.

    Raises:
        FairleadError: exit code 2; it cannot be read, or is no TOML.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError as exc:
        raise fail(
            "toml-encoding", path=path, start=exc.start, reason=exc.reason, remedy=remedy
        ) from None
    except OSError as exc:
        raise fail(
            "toml-unreadable", path=path, reason=exc.strerror or str(exc), remedy=remedy
        ) from None
    return scan(text, path, remedy)


def scan(text: str, path: Path, remedy: str) -> Document:
    """As :func:`read`, of text that is already in memory."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(exc))
        where = f"{path}:{at[1]}" if at else str(path)
        raise fail(
            "toml-syntax", path_name=path.name, where=where, reason=exc, remedy=remedy
        ) from None
    return Document(path, data, _line_index(text), remedy)


def _place(loc: Loc, path: Path, lines: dict[Loc, int]) -> tuple[str, str]:
    """Where ``loc`` is, and what to do there: ``recipe.toml:7`` and ``edit line 7``."""
    line = _line_of(loc, lines)
    return (f"{path}:{line}", f"edit line {line}") if line else (str(path), f"edit {path.name}")


def _finding(
    problem: dict[str, Any], model: type[BaseModel], path: Path, lines: dict[Loc, int], remedy: str
) -> Finding:
    loc: Loc = tuple(problem["loc"])
    key = ".".join(str(part) for part in loc) or "the file"
    kind = problem["type"]
    if kind == "extra_forbidden":
        known = _fields_at(model, loc[:-1])
        table = ".".join(str(part) for part in loc[:-1])
        what = f"unknown key `{loc[-1]}`" + (f" in [{table}]" if table else "")
        why = suggest(str(loc[-1]), known)
        if "Did you mean" in why:
            why = f"{'[' + table + ']' if table else 'the file'} knows {', '.join(sorted(known))}. {why}"
        check = "unknown-key"
    elif kind == "missing":
        table = ".".join(str(part) for part in loc[:-1])
        what, why = (
            f"`{loc[-1]}` is missing" + (f" in [{table}]" if table else ""),
            "it has no default",
        )
        check = "missing-key"
    elif kind in ("literal_error", "enum"):
        expected = re.findall(r"'([^']*)'", str(problem.get("ctx", {}).get("expected", "")))
        what = f"`{key}` cannot be {problem['input']!r}"
        why = f"allowed: {', '.join(expected)}"
        hint = suggest(str(problem["input"]), expected)
        if hint.startswith("Did"):
            why += f". {hint}"
        check = "bad-value"
    else:
        shown = repr(problem["input"])
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        what = f"`{key}` cannot be {shown}"
        why = problem["msg"].removeprefix("Value error, ")
        check = "bad-value"
    where, edit = _place(loc, path, lines)
    return error(
        "document-value", check=check, what=what, where=where, why=why, edit=edit, remedy=remedy
    )


def _fields_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """The keys that the table at ``loc`` may have."""
    current: Any = model
    for part in loc:
        candidates = list(_models_in(current))
        if isinstance(part, int) or not candidates:
            continue
        field = next((c.model_fields[part] for c in candidates if part in c.model_fields), None)
        if field is not None:
            current = field.annotation
    names: set[str] = set()
    for candidate in _models_in(current):
        for name, info in candidate.model_fields.items():
            names.add(info.alias or name)
    return sorted(names)


def _models_in(annotation: Any) -> typing.Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) is not None or isinstance(annotation, types.UnionType):
        for argument in typing.get_args(annotation):
            yield from _models_in(argument)


_TABLE = re.compile(r"^\s*\[(\[?)\s*([^\]]+?)\s*\]?\]\s*(?:#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def _line_index(text: str) -> dict[Loc, int]:
    """Line numbers (from 1) of tables and keys, by their path. Good enough to point with."""
    index: dict[Loc, int] = {}
    counts: dict[Loc, int] = {}
    table: Loc = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = tuple(part.strip("\"'") for part in _PART.findall(header[2]))
            if header[1]:
                position = counts.get(table, 0)
                counts[table] = position + 1
                table = (*table, position)
            index.setdefault(table, number)
        elif key := _KEY.match(line):
            parts = tuple(part.strip("\"'") for part in _PART.findall(key[1]))
            for end in range(1, len(parts) + 1):
                index.setdefault((*table, *parts[:end]), number)
    return index


def _line_of(loc: Loc, lines: dict[Loc, int]) -> int | None:
    """The line of the deepest part of ``loc`` that stands on a line of its own."""
    for end in range(len(loc), 0, -1):
        if loc[:end] in lines:
            return lines[loc[:end]]
    return None
