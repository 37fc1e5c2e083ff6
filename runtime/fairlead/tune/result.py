"""What a search has found, and ``best.toml``: one trial as a file from which it can be repeated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write
from fairlead.base.serde import to_json
from fairlead.base.toml import Strict, key, read
from fairlead.base.toml_text import text_block, value_text
from fairlead.image.recipes import recipe_files
from fairlead.session.model import Prepared
from fairlead.tune.space import Space
from fairlead.tune.study import Study, Trial
from fairlead.tune.target import Script, Target

SCHEMA, SCHEMA_VERSION = "fairlead/tune-report", 1
BEST, DATA = "best.toml", "report.json"


@dataclass(frozen=True)
class TuneResult:
    """A search so far.

    Attributes:
        objectives: goal by name.
        best: numbers of the best trial, or of the Pareto front.
        importances: of parameters, where enough trials say.
    """

    target: str
    image: str
    ranks: int
    sampler: str
    pruner: str
    seed: int
    wanted: int
    objectives: dict[str, str]
    trials: tuple[Trial, ...]
    best: tuple[int, ...]
    importances: dict[str, float]

    @property
    def counts(self) -> dict[str, int]:
        """Trials by state, those that there are."""
        states = ("complete", "pruned", "failed", "running", "waiting")
        counted = {state: sum(t.state == state for t in self.trials) for state in states}
        return {state: count for state, count in counted.items() if count}


def result_of(study: Study, target: Target, prepared: Prepared) -> TuneResult:
    """The result of a study."""
    search = study.search
    return TuneResult(
        target=target.title,
        image=prepared.image.name,
        ranks=prepared.plan.request.shape.ranks,
        sampler=search.sampler,
        pruner=search.pruner,
        seed=search.seed,
        wanted=study.trials_wanted,
        objectives={name: wanted.goal for name, wanted in study.space.wanted.items()},
        trials=tuple(study.trials()),
        best=tuple(trial.number for trial in study.best()),
        importances=study.importances(),
    )


def write(folder: Path, result: TuneResult) -> Path:
    """Writes ``report.json``; returns its path."""
    path = folder / DATA
    document = {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "fairlead": __version__,
        **to_json(result),
    }
    with atomic_write(path, "w") as stream:
        json.dump(document, stream, indent=2)
    return path


def write_best(path: Path, trial: Trial, target: Target, prepared: Prepared, study: Study) -> None:
    """Writes a trial as a file for ``fairlead train --from``."""
    image, shape = prepared.image, prepared.plan.request.shape
    tables: dict[str, Mapping[str, object]] = {
        "trial": {**_numbers(trial, target), "fairlead": __version__},
        "values": dict(trial.values),
        "target": target.described(),
        "image": {"name": image.name, "path": image.path, "sha256": image.digest}
        | ({"recipe": str(image.record["recipe"])} if image.record.get("recipe") else {}),
        "launch": {"ranks": shape.ranks, "mpi": prepared.plan.request.mpi},
        "parameters": dict(trial.parameters),
    }
    if study.space.by != "option":
        tables["target"] = {**tables["target"], "by": study.space.by}
    named = {n: p.name for n, p in study.space.parameters.items() if p.name}
    if named:
        tables["names"] = named
    if target.env:
        tables["env"] = target.env
    lines = [f"# A trial of fairlead tune; to repeat it: fairlead train --from {path.name}"]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{_key(k)} = {value_text(v)}" for k, v in table.items())]
    for other in ancestors(study.trials(), trial):
        given = {**_numbers(other, target), "parameters": other.parameters}
        lines += ["", "[[before]]", *(f"{k} = {value_text(v)}" for k, v in given.items())]
    texts = {"recipe": recipe_files(image.record), "files": target.files()}
    for name, files in texts.items():
        lines += ["", f"[{name}]", *(f"{_key(k)} = {text_block(v)}" for k, v in files.items())]
    with atomic_write(path, "w") as stream:
        stream.write("\n".join(lines) + "\n")


def _numbers(trial: Trial, target: Target) -> dict[str, int]:
    return {"number": trial.number, "seed": trial.seed, "part": target.part(trial.number)}


def ancestors(trials: Sequence[Trial], trial: Trial) -> list[Trial]:
    """The trials from whose checkpoints a trial has come, the first one first."""
    line: list[Trial] = []
    while trial.source is not None:
        trial = trials[trial.source]
        line.insert(0, trial)
    return line


def _key(name: str) -> str:
    return (
        name
        if name.replace("_", "").replace("-", "").isalnum() and name.isascii()
        else json.dumps(name)
    )


class _TrialTable(Strict):
    number: int = key("Of the trial.")
    seed: int = key("Of the trial.")
    part: int = key("Which part of a whole training it is.", 0)
    fairlead: str = key("The version that wrote it.")


class _Before(Strict):
    number: int = key("Of the trial.")
    seed: int = key("Of the trial.")
    part: int = key("Which part of a whole training it is.", 0)
    parameters: dict[str, Any] = key("By name.")


class _TargetTable(Strict):
    script: str | None = key("The script.", None)
    sha256: str | None = key("Of the script.", None)
    arguments: list[str] = key("Its own arguments.", [])
    by: str = key("How it gets its parameters.", "option")
    model: str | None = key("A bundled model; the other keys are of its training.", None)
    published: bool = key("With the recipe of the publication.", False)
    backend: str = key("Of Keras.", "tensorflow")
    precision: str = key("Of the layers.", "float32")
    epochs: int | None = key("Passes over the samples.", None)
    max_seconds: float = key("Time limit of the training.", math.inf)
    seed: int = key("Of weights, data and order.", 1)
    train_samples: int | None = key("How many are generated.", None)
    parts: int = key("Parts of a whole training, each of so many epochs.", 1)


class _ImageTable(Strict):
    name: str = key("As it was given.")
    path: str = key("Its file.")
    sha256: str = key("Of its file system; empty for a folder.")
    recipe: str | None = key("The name of what it was built from.", None)


class _LaunchTable(Strict):
    ranks: int = key("Of the trial.")
    mpi: str = key("`host` or `container`.")


class Kept(Strict):
    """The content of ``best.toml``."""

    trial: _TrialTable
    values: dict[str, float] = key("What it came to.", dict)
    target: _TargetTable
    image: _ImageTable
    launch: _LaunchTable
    parameters: dict[str, Any] = key("By name.", dict)
    names: dict[str, str] = key("Of parameters that are passed by another name.", dict)
    env: dict[str, str] = key("Further variables of the container.", dict)
    before: list[_Before] = key(
        "The trials from whose checkpoints it has come, the first one first.", []
    )
    recipe: dict[str, str] = key("The files that the image is built from.", dict)
    files: dict[str, str] = key("The script, by its name.", dict)


def read_best(path: Path) -> Kept:
    """A file that :func:`write_best` has written.

    Raises:
        FairleadError: exit code 2; it is none.
    """
    document = read(path, f"fairlead train --from {path}")
    kept, findings = document.validate(Kept)
    if kept is None:
        raise fail("tune-best", path=path, reason="; ".join(f.what for f in findings))
    return kept


def script_of(kept: Kept, path: Path) -> Script:
    """The script of a kept trial, with a space that passes parameters as the search did.

    Args:
        path: where the script is now.
    """
    tables = {name: {"choices": [0], "name": kept.names.get(name)} for name in kept.parameters}
    space = Space.model_validate({"by": kept.target.by, "parameters": tables})
    return Script(path, tuple(kept.target.arguments), space, kept.env)


def seconds_of(trials: Sequence[Trial]) -> float:
    """Of all trials together."""
    return sum(trial.seconds for trial in trials)


def table_rows(result: TuneResult, most: int = 10) -> Iterator[tuple[str, ...]]:
    """The best trials, the first of which comes first: number, values, parameters."""
    signs = [1 if goal == "minimize" else -1 for goal in result.objectives.values()]
    whole = [t for t in result.trials if t.state == "complete"]
    first = next(iter(result.objectives))
    ordered = sorted(
        whole, key=lambda t: (t.number not in result.best, signs[0] * t.values[first], t.number)
    )
    for trial in ordered[:most]:
        shown = (f"{name}={short(value)}" for name, value in trial.parameters.items())
        yield (str(trial.number), *(f"{v:.6g}" for v in trial.values.values()), " ".join(shown))


def short(value: object) -> str:
    """A parameter's value with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(short, value))
    return str(value)
