"""A bundled model as what is tuned: one launch of its training for each trial, on data that are made once."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairlead.base.errors import fail
from fairlead.base.suggest import suggest
from fairlead.ml.task import TUNED, Task
from fairlead.ml.train.events import Tail
from fairlead.ml.train.host import configured, worker_command
from fairlead.ml.train.model import TUNED_OPTIONS, TrainOptions, tuned
from fairlead.tune import passing
from fairlead.tune import space as spaces
from fairlead.tune.space import Objective, Space, Value
from fairlead.tune.target import TrialOf, Work

_CHECKPOINTS = "checkpoints"
_PARTS = 10  # of a training, after each of which its mean loss is compared with others'
# Settings that a repetition must share.
_SETTINGS = ("published", "backend", "precision", "epochs", "max_seconds", "seed", "train_samples")


def bundled_space(model: str) -> Path | None:
    """The space that is bundled for a model, if there is one."""
    path = Path(__file__).parent / "spaces" / f"{model}.toml"
    return path if path.is_file() else None


def space_of(task: Task, path: Path) -> Space:
    """The space in a file, for a model.

    Raises:
        FairleadError: exit code 2; it is damaged, or has a parameter that the model does not.
    """
    space = spaces.read(path)
    known = sorted({*TUNED, *TUNED_OPTIONS, *task.structure})
    for name in space.parameters:
        if name not in known:
            raise fail(
                "tune-model-parameter", path=path, name=name, task=task, hint=suggest(name, known)
            )
    if space.objectives:
        return space
    gate = task.gates[0]
    goal = "maximize" if gate.at_least else "minimize"
    wanted = Objective.model_validate(
        {"goal": goal, "written": "train.result.json", "key": f"evaluation.scores.{gate.metric}"}
    )
    return space.model_copy(update={"objectives": {gate.metric: wanted}})


@dataclass
class _Course:
    tail: Tail
    before: int = 0  # parts of earlier generations
    begin: int = 0
    steps: int = 0
    part: int = 0
    losses: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Model:
    """A bundled model.

    Attributes:
        options: of its training; the folder of a trial takes the place of ``run_dir``.
        data: its samples.
        inherits: trials begin with the weights of others.
        generation: members of one, of population-based training; 0 for any other search.
    """

    task: Task
    space: Space
    options: TrainOptions
    data: Path
    env: Mapping[str, str]
    inherits: bool = False
    generation: int = 0
    _courses: dict[Path, _Course] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.task.title

    def work(self, trial: TrialOf, parameters: Mapping[str, Value]) -> Work:
        part, own = self.part(trial.number), replace(self.options, run_dir=trial.folder)
        binds = [str(trial.folder), str(self.data)]
        if self.inherits:
            self.discard(trial.folder)  # of an attempt that was cut short
            source = trial.source / _CHECKPOINTS if trial.source else None
            saved = trial.folder / _CHECKPOINTS
            own = replace(own, checkpoints=saved, every_seconds=math.inf, source=source, part=part)
            binds += [str(trial.source)] if trial.source else []
        config, path = configured(tuned(own, parameters), self.data)
        assert config.events is not None
        self._courses[trial.folder] = _Course(Tail(config.events), part * _PARTS)
        env = {**self.env, **passing.own_variables(trial.folder, trial.seed)}
        return Work(tuple(worker_command(path)), env, tuple(binds))

    def part(self, number: int) -> int:
        """Which part of a whole training a trial is, from 0."""
        return number // self.generation if self.generation else 0

    def discard(self, folder: Path) -> None:
        shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)

    def reports(self, folder: Path) -> list[tuple[int, dict[str, float]]]:
        course = self._courses.get(folder)
        if course is None:
            return []
        reports = []
        for event in course.tail.read():
            if event["event"] == "start":
                course.begin, course.steps = event["begin"], event["steps"]
            elif event["event"] == "step":
                reports += self._step(course, event)
        return reports

    def _step(self, course: _Course, event: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
        course.losses.append(float(event["loss"]))
        done, whole = event["step"] - course.begin, course.steps - course.begin
        if done * _PARTS < (course.part + 1) * whole:
            return []
        course.part += 1
        mean, course.losses = sum(course.losses) / len(course.losses), []
        only = next(iter(self.space.wanted.values()))
        return [(course.before + course.part, {"": -mean if only.goal == "maximize" else mean})]

    def described(self) -> dict[str, object]:
        settings = {name: getattr(self.options, name) for name in _SETTINGS}
        given = {name: value for name, value in settings.items() if value is not None}
        given |= {"parts": self.options.parts} if self.options.parts > 1 else {}
        return {"model": self.task.name, **given}

    def files(self) -> dict[str, str]:
        return {}
