"""The file of offers: which runs clients may start, and with which parameters.

[run.hepcnn]
title = "HEP-CNN on synthetic events"
command = ["train", "hepcnn", "-n", "4", "--epochs", "{epochs}", "--train-events", "{events}"]
results = ["*.html"]

[run.hepcnn.parameters.epochs]
low = 1
high = 20
default = 2

[run.hepcnn.parameters.events]
choices = [2000, 20000]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairlead.base.errors import ExitCode, FairleadError, Finding, error
from fairlead.base.suggest import suggest
from fairlead.base.toml import Loc, Mistake, Strict, key, load, mistake_at

Value = str | int | float | bool
VERBS = ("run", "train", "validate")  # of which clients may choose parameters
RECORDED = ("run", "train")  # those with --record
_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}")
_NAME = re.compile(r"[A-Za-z][\w-]{0,63}")
_MOST_TEXT = 1024


class Parameter(Strict):
    """What a client may choose: a number in a range, one of several values, or a text of a form."""

    meaning: str = key("One line for clients.", "")
    low: int | float | None = key("Smallest value.", None)
    high: int | float | None = key("Largest value.", None)
    choices: list[str | int | float] | None = key("All values.", None, min_length=1)
    pattern: str | None = key("Regular expression that the whole text matches.", None)
    default: str | int | float | None = key("Value where the client gives none.", None)

    @property
    def kind(self) -> str:
        """``choice``, ``text``, ``int`` or ``float``."""
        if self.choices is not None:
            return "choice"
        if self.pattern is not None:
            return "text"
        return "int" if isinstance(self.low, int) and isinstance(self.high, int) else "float"

    @property
    def allowed(self) -> str:
        """The values, in words."""
        if self.choices is not None:
            return "one of " + ", ".join(map(str, self.choices))
        if self.pattern is not None:
            return f"a text like {self.pattern}"
        return (
            f"{'an integer' if self.kind == 'int' else 'a number'} from {self.low} to {self.high}"
        )

    def takes(self, value: object) -> bool:
        """Whether a client may give that value."""
        if isinstance(value, bool):
            return False
        if self.choices is not None:
            return any(type(value) is type(choice) and value == choice for choice in self.choices)
        if self.pattern is not None:
            # A text that begins like an option would be one.
            return (
                isinstance(value, str) and len(value) <= _MOST_TEXT and not value.startswith("-")
                and re.fullmatch(self.pattern, value) is not None
            )  # fmt: skip
        kinds = (int,) if self.kind == "int" else (int, float)
        return isinstance(value, kinds) and (self.low or 0) <= value <= (self.high or 0)


class Offer(Strict):
    """A run that clients may start."""

    title: str = key("One line for clients.", "")
    command: list[str] = key(
        f"Words behind `fairlead`, of {', '.join(VERBS)}; {{NAME}} stands for a parameter.",
        min_length=1,
    )
    results: list[str] = key(
        "Files that clients may fetch: names or patterns below the run's folder.", []
    )
    hours: float = key("Time limit; a run is ended then.", 24.0, gt=0, le=24 * 31)
    parameters: dict[str, Parameter] = key("What clients choose, by name.", dict)

    def values(self, name: str, given: Mapping[str, object]) -> dict[str, Value]:
        """The parameters of a run, with defaults for those that were not given.

        Raises:
            FairleadError: exit code 2; one finding for each mistake.
        """
        findings = list(self._mistakes(name, given))
        if findings:
            raise FairleadError(findings, ExitCode.USAGE)
        defaults = {k: p.default for k, p in self.parameters.items()}
        return {k: v for k, v in {**defaults, **given}.items() if isinstance(v, Value)}

    def _mistakes(self, run: str, given: Mapping[str, object]) -> Iterator[Finding]:
        for name in given.keys() - self.parameters.keys():
            hint = suggest(name, self.parameters)
            yield error("serve-parameter-unknown", name=name[:64], run=run, hint=hint)
        for name, parameter in self.parameters.items():
            if name in given and not parameter.takes(given[name]):
                value = repr(given[name])[:64]
                yield error("serve-parameter-value", name=name, value=value, run=run, allowed=parameter.allowed)  # fmt: skip
            elif name not in given and parameter.default is None:
                yield error("serve-parameter-absent", name=name, run=run, allowed=parameter.allowed)

    def words(self, values: Mapping[str, Value]) -> list[str]:
        """The command's words, with these values."""
        return [_FIELD.sub(lambda match: str(values[match[1]]), word) for word in self.command]


class Offers(Strict):
    """A file of offers."""

    run: dict[str, Offer] = key("The runs, by name.", dict)


def read(path: Path) -> Offers:
    """The offers in a file.

    Raises:
        FairleadError: exit code 2; one finding for each mistake.
    """
    return load(path, Offers, f"fairlead serve check {path}", _contradictions)


def _contradictions(data: dict[str, Any]) -> Iterator[Mistake]:
    """Mistakes that no single key shows. Anything in ``data`` may be of any type."""
    tables = data.get("run")
    if not isinstance(tables, dict) or not tables:
        yield mistake_at(("run",), "serve-offers-empty")
        return
    for name, table in tables.items():
        if not _NAME.fullmatch(name):
            yield mistake_at(("run", name), "serve-offer-name", name=name)
        if isinstance(table, dict):
            yield from _of_offer(("run", name), table)


def _of_offer(at: Loc, table: dict[str, Any]) -> Iterator[Mistake]:
    words = table.get("command")
    parameters = table.get("parameters", {})
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return
    if words and words[0] not in VERBS:
        yield mistake_at(
            (*at, "command"), "serve-offer-verb", verb=words[0], verbs=", ".join(VERBS)
        )
    options = words[: words.index("--")] if "--" in words else words
    if any(word.split("=")[0] in ("--record", "--json") for word in options):
        yield mistake_at((*at, "command"), "serve-offer-record")
    if not isinstance(parameters, dict):
        return
    used = {name for word in words for name in _FIELD.findall(word)}
    for name in sorted(used - parameters.keys()):
        yield mistake_at((*at, "command"), "serve-offer-field", name=name)
    for name, parameter in parameters.items():
        if name not in used:
            yield mistake_at((*at, "parameters", name), "serve-offer-unused", name=name)
        if isinstance(parameter, dict):
            yield from _of_parameter((*at, "parameters", name), name, parameter)


def _of_parameter(at: Loc, name: str, table: dict[str, Any]) -> Iterator[Mistake]:
    kinds: list[str] = [kind for kind in ("choices", "pattern") if kind in table]
    kinds += ["low and high"] if "low" in table or "high" in table else []
    low, high = table.get("low"), table.get("high")
    if len(kinds) != 1:
        has = " and ".join(kinds) or "no values"
        yield mistake_at(at, "serve-offer-kind", name=name, has=has)
    elif kinds == ["low and high"]:
        if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in (low, high)):
            yield mistake_at(at, "serve-offer-kind", name=name, has="one bound")
        elif low > high:  # type: ignore[operator]
            yield mistake_at(at, "serve-offer-reversed", name=name, low=low, high=high)
    if isinstance(table.get("pattern"), str):
        try:
            re.compile(table["pattern"])
        except re.error as exc:
            yield mistake_at((*at, "pattern"), "serve-offer-pattern", name=name, reason=exc)
            return
    if "default" in table:
        try:
            parameter = Parameter.model_validate(table)
        except ValueError:
            return  # reported by itself
        if not parameter.takes(table["default"]):
            yield mistake_at((*at, "default"), "serve-offer-default", name=name, allowed=parameter.allowed)  # fmt: skip
