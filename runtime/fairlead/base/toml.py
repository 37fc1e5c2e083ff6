"""Reads and validates TOML files: reports every mistake at once, with file, line and allowed values.

:func:`load` reads recipes, locks and site profiles. pydantic finds the mistakes; this
module adds their lines, which neither tomllib nor tomlkit keeps, and the valid values.
"""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, fail, os_error_as
from fairlead.base.suggest import suggest


class Strict(BaseModel):
    """Base class of models of files: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def key(meaning: str, default: Any = ..., **rules: Any) -> Any:
    """A key of such a model. ``dict`` is the default of an empty table; ``rules`` are those of pydantic's Field."""
    given = {"default_factory": dict} if default is dict else {"default": default}
    return Field(description=meaning, **given, **rules)


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


def load(path: Path, model: type[M], remedy: str, cross: Cross = lambda data: ()) -> M:
    """Reads ``path`` as a ``model``.

    Args:
        path: the TOML file.
        model: the model to validate it against.
        remedy: the command to type once the file is fixed, e.g. ``fairlead recipe check hep``.
        cross: checks that span keys and tables; given the raw data.
    Raises:
        FairleadError: exit code 2; one finding for each mistake.
    """
    document = read(path, remedy)
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
            problems = sorted(exc.errors(), key=lambda e: self._line(e["loc"]) or 0)
            return None, [self.finding(_mistake(dict(e), model)) for e in problems]

    def finding(self, mistake: Mistake) -> Finding:
        """``mistake`` with its line."""
        line = self._line(mistake.loc)
        where = f"{self.path}:{line}" if line else self.path
        edit = f"edit line {line}" if line else f"edit {self.path.name}"
        return error(
            "document-mistake",
            check=mistake.check,
            mistake=mistake,
            where=where,
            edit=edit,
            remedy=self.remedy,
        )

    def _line(self, loc: Loc) -> int | None:
        """The line of the deepest part of ``loc`` that stands on a line of its own."""
        ends = (loc[:end] for end in range(len(loc), 0, -1))
        return next((self.lines[end] for end in ends if end in self.lines), None)


def read(path: Path, remedy: str) -> Document:
    """The TOML file at ``path``, not yet validated against a model.

    Raises:
        FairleadError: exit code 2; it cannot be read, or is not TOML.
    """
    with os_error_as("toml-unreadable", path=path, remedy=remedy):
        content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")  # some editors begin a file with a mark
        return Document(path, tomllib.loads(text), _line_index(text), remedy)
    except UnicodeDecodeError as exc:
        raise fail("toml-encoding", path=path, error=exc, remedy=remedy) from None
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(exc))
        where = f"{path}:{at[1]}" if at else path
        raise fail("toml-syntax", path=path, where=where, reason=exc, remedy=remedy) from None


def _mistake(problem: dict[str, Any], model: type[BaseModel]) -> Mistake:
    """One of pydantic's errors."""
    loc: Loc = tuple(problem["loc"])
    path = [str(part) for part in loc]
    key, table = ".".join(path) or "the file", ".".join(path[:-1])
    within = f" in [{table}]" if table else ""
    kind = problem["type"]
    if kind == "extra_forbidden":
        known = _fields_at(model, loc[:-1])
        why = suggest(path[-1], known)
        if "Did you mean" in why:
            why = f"{f'[{table}]' if table else 'the file'} knows {', '.join(sorted(known))}. {why}"
        return Mistake(loc, f"unknown key `{loc[-1]}`{within}", why, "unknown-key")
    if kind == "missing":
        return Mistake(loc, f"`{loc[-1]}` is missing{within}", "it has no default", "missing-key")
    if kind in ("literal_error", "enum"):
        expected = re.findall(r"'([^']*)'", str(problem.get("ctx", {}).get("expected", "")))
        hint = suggest(str(problem["input"]), expected)
        why = f"allowed: {', '.join(expected)}" + (f". {hint}" if hint.startswith("Did") else "")
        return Mistake(loc, f"`{key}` cannot be {problem['input']!r}", why, "bad-value")
    shown = repr(problem["input"])
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    why = problem["msg"].removeprefix("Value error, ")
    return Mistake(loc, f"`{key}` cannot be {shown}", why, "bad-value")


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
    models = _models_in(current)
    return sorted({f.alias or name for m in models for name, f in m.model_fields.items()})


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
    counts: Counter[Loc] = Counter()
    table: Loc = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = tuple(part.strip("\"'") for part in _PART.findall(header[2]))
            if header[1]:
                counts[table] += 1
                table = (*table, counts[table] - 1)
            index.setdefault(table, number)
        elif key := _KEY.match(line):
            parts = tuple(part.strip("\"'") for part in _PART.findall(key[1]))
            for end in range(1, len(parts) + 1):
                index.setdefault((*table, *parts[:end]), number)
    return index
