"""The space of a search, ``space.toml``: parameters, how the script gets them, and what is to be minimized or maximized.

by = "option"                     # --lr 0.01; or "environment", or "file"

[parameters.lr]
low = 1e-5
high = 1e-1
log = true

[parameters.layers]
low = 1
high = 4

[parameters.units]                # a list, as long as `layers`: --units 64,32
low = 16
high = 256
step = 16
length = "layers"

[parameters.optimizer]
choices = ["adam", "sgd"]

[parameters.momentum]             # only with sgd
low = 0.0
high = 0.99
when = { optimizer = "sgd" }

[objectives.loss]
goal = "minimize"
printed = 'loss: (\\S+)'          # or written = "result.json"; else fairlead.tune.report
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from fairlead.base.suggest import suggest
from fairlead.base.toml import Loc, Mistake, Strict, key, load, mistake_at

Scalar = str | int | float | bool
Value = Scalar | list[Scalar]
_MOST = 64  # elements of a list


class Ask(Protocol):
    """What chooses values: a trial of Optuna, or anything with its methods."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int: ...

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...


class Parameter(Strict):
    """One parameter: a range, or choices."""

    type: Literal["float", "int", "choice"] | None = key(
        "Left out: `choice` with choices, `int` where both bounds are integers, else `float`.", None
    )
    low: int | float | None = key("Smallest value.", None)
    high: int | float | None = key("Largest value.", None)
    step: int | float | None = key("Distance of two values.", None, gt=0)
    log: bool = key("Search on a logarithmic scale.", False)
    choices: list[Scalar] | None = key("All values.", None, min_length=1)
    when: dict[str, Scalar | list[Scalar]] = key(
        "Other parameters and the values that they must have.", dict
    )
    length: int | str | None = key(
        "Makes it a list: its length, or the parameter that says it.", None
    )
    name: str | None = key("Option, or variable, that passes it.  [default: --NAME, or NAME]", None)

    @property
    def kind(self) -> str:
        """``float``, ``int`` or ``choice``."""
        if self.type:
            return self.type
        if self.choices is not None:
            return "choice"
        return "int" if isinstance(self.low, int) and isinstance(self.high, int) else "float"

    def ask(self, trial: Ask, name: str) -> Scalar:
        """One value of it."""
        if self.kind == "choice":
            chosen: Scalar = trial.suggest_categorical(name, self.choices or [])
            return chosen
        low, high = self.low or 0, self.high or 0
        if self.kind == "int":
            step = int(self.step or 1)
            return trial.suggest_int(name, int(low), int(high), step=step, log=self.log)
        step_f = None if self.step is None else float(self.step)
        return trial.suggest_float(name, float(low), float(high), step=step_f, log=self.log)

    def values(self) -> list[Scalar] | None:
        """All values; None where they are too many to name."""
        if self.kind == "choice":
            return list(self.choices or [])
        if self.log or (self.kind == "float" and self.step is None):
            return None
        low, step = self.low or 0, self.step or 1
        count = int((float(self.high or 0) - float(low)) / float(step) + 1e-9) + 1
        if self.kind == "int":
            return [int(low) + int(step) * i for i in range(count)]
        return [float(low) + float(step) * i for i in range(count)]


class Objective(Strict):
    """What a trial is judged by."""

    goal: Literal["minimize", "maximize"] = key("Which values are better.", "minimize")
    printed: str | None = key("Regular expression; the group of its last match is the value.", None)
    written: str | None = key("JSON file that the script writes, below the trial's folder.", None)
    key: str | None = key("The value's key in that file; dots lead into tables.", None)


class Space(Strict):
    """A whole file."""

    by: Literal["option", "environment", "file"] = key(
        "How the script gets its parameters.", "option"
    )
    parameters: dict[str, Parameter] = key("Parameters by name.", dict)
    objectives: dict[str, Objective] = key(
        "What to search for, by name.  [default: one `value`, to be minimized]", dict
    )

    @property
    def wanted(self) -> dict[str, Objective]:
        """The objectives, at least one."""
        return self.objectives or {"value": Objective()}

    def ordered(self) -> list[tuple[str, Parameter]]:
        """Parameters, each behind those that it depends on."""
        out: dict[str, Parameter] = {}

        def add(name: str) -> None:
            for other in _needs(self.parameters[name]):
                add(other)
            out.setdefault(name, self.parameters[name])

        for name in self.parameters:
            add(name)
        return list(out.items())

    def ask(self, trial: Ask) -> dict[str, Value]:
        """Chooses the parameters of a trial; those whose ``when`` does not hold have none."""
        chosen: dict[str, Value] = {}
        for name, parameter in self.ordered():
            if not all(_holds(chosen, other, wanted) for other, wanted in parameter.when.items()):
                continue
            if parameter.length is None:
                chosen[name] = parameter.ask(trial, name)
                continue
            length = (
                chosen.get(parameter.length, 0)
                if isinstance(parameter.length, str)
                else parameter.length
            )
            chosen[name] = [parameter.ask(trial, f"{name}[{i}]") for i in range(int(str(length)))]
        return {name: chosen[name] for name in self.parameters if name in chosen}


def read(path: Path) -> Space:
    """The space in a file.

    Raises:
        FairleadError: exit code 2; one finding for each mistake.
    """
    return load(path, Space, f"fairlead tune … --space {path}", _contradictions)


def _needs(parameter: Parameter) -> list[str]:
    length = [parameter.length] if isinstance(parameter.length, str) else []
    return [*parameter.when, *length]


def _holds(chosen: Mapping[str, Value], name: str, wanted: Scalar | list[Scalar]) -> bool:
    return name in chosen and chosen[name] in (wanted if isinstance(wanted, list) else [wanted])


def _contradictions(data: dict[str, Any]) -> Iterator[Mistake]:
    """Mistakes that no single key shows. Anything in ``data`` may be of any type."""
    tables = data.get("parameters")
    if not isinstance(tables, dict) or not tables:
        yield mistake_at(("parameters",), "tune-space-empty")
        return
    for name, table in tables.items():
        if isinstance(table, dict):
            at = ("parameters", name)
            yield from _of_range(at, table)
            yield from _of_references(at, name, table, tables)
    objectives = data.get("objectives")
    for name, table in objectives.items() if isinstance(objectives, dict) else ():
        if isinstance(table, dict):
            yield from _of_objective(("objectives", name), table)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_range(at: Loc, table: dict[str, Any]) -> Iterator[Mistake]:
    name = at[-1]
    low: Any = table.get("low")
    high: Any = table.get("high")
    if "choices" in table:
        if extra := sorted({"low", "high", "step", "log"} & table.keys()):
            yield mistake_at(at, "tune-choices-range", name=name, extra=", ".join(extra))
        return
    if lacking := [word for word in ("low", "high") if word not in table]:
        yield mistake_at(at, "tune-no-range", name=name, lacking=" and ".join(lacking))
    elif not (_number(low) and _number(high)):
        return  # which the model reports
    elif low > high:
        yield mistake_at((*at, "low"), "tune-bounds-reversed", name=name, low=low, high=high)
    elif table.get("log") is True and low <= 0:
        yield mistake_at((*at, "low"), "tune-log-low", name=name, low=low)
    if table.get("log") is True and "step" in table:
        yield mistake_at((*at, "step"), "tune-log-step", name=name)


def _of_references(
    at: Loc, name: str, table: dict[str, Any], tables: dict[str, Any]
) -> Iterator[Mistake]:
    when = table.get("when")
    others: list[tuple[tuple[str, ...], str]] = (
        [(("when", other), other) for other in when] if isinstance(when, dict) else []
    )
    if isinstance(length := table.get("length"), str):
        others.append((("length",), length))
    for loc, other in others:
        if other not in tables:
            yield mistake_at(
                (*at, *loc),
                "tune-unknown-parameter",
                other=other,
                name=name,
                hint=suggest(other, tables),
            )
        elif name in _reached(other, tables):
            yield mistake_at((*at, *loc), "tune-circle", other=other, name=name)
        elif not isinstance(tables[other], dict):
            continue  # which the model reports
        elif loc[0] == "when":
            yield from _of_condition((*at, *loc), name, other, table["when"][other], tables[other])
        elif not isinstance(tables[other].get("high"), int) or tables[other]["high"] > _MOST:
            yield mistake_at((*at, *loc), "tune-length", other=other, name=name, most=_MOST)


def _of_condition(
    at: Loc, name: str, other: str, wanted: object, table: dict[str, Any]
) -> Iterator[Mistake]:
    choices = table.get("choices")
    for value in wanted if isinstance(wanted, list) else [wanted]:
        if isinstance(choices, list) and value not in choices:
            hint = suggest(str(value), map(str, choices))
            yield mistake_at(
                at, "tune-unknown-choice", value=value, other=other, name=name, hint=hint
            )


def _reached(name: str, tables: dict[str, Any]) -> set[str]:
    """A parameter and all that it depends on."""
    reached, pending = set(), [name]
    while pending:
        at = pending.pop()
        table = tables.get(at)
        if at in reached or not isinstance(table, dict):
            continue
        reached.add(at)
        when, length = table.get("when"), table.get("length")
        pending += [
            *(when if isinstance(when, dict) else ()),
            *([length] if isinstance(length, str) else ()),
        ]
    return reached


def _of_objective(at: Loc, table: dict[str, Any]) -> Iterator[Mistake]:
    printed = table.get("printed")
    if isinstance(printed, str):
        try:
            if re.compile(printed).groups < 1:
                yield mistake_at((*at, "printed"), "tune-pattern-group", pattern=printed)
        except re.error as exc:
            yield mistake_at((*at, "printed"), "tune-pattern", pattern=printed, reason=exc)
        if "written" in table:
            yield mistake_at(at, "tune-objective-both", name=at[-1])
    if "key" in table and "written" not in table:
        yield mistake_at((*at, "key"), "tune-objective-key", name=at[-1])
