"""Bundled models as what is tuned: their spaces, and how a trial trains them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.runtime.tune.test_space import Chooser

from fairlead.base.errors import FairleadError
from fairlead.base.serde import from_json
from fairlead.ml import registry
from fairlead.ml.task import Course, varied
from fairlead.ml.train.model import TrainOptions, WorkerConfig
from fairlead.tune.models import Model, bundled_space, space_of
from fairlead.tune.target import TrialOf

BUNDLED = [name for name in registry.names() if bundled_space(name)]


def _model(folder: Path, name: str = "hepcnn") -> Model:
    task = registry.find(name)
    path = bundled_space(name)
    assert path
    options = TrainOptions(run_dir=folder, model=name, ranks=1, max_seconds=math.inf)
    return Model(task, space_of(task, path), options, folder, {})


def test_models_of_the_vision_have_a_space_with_their_topology() -> None:
    assert {"hepcnn", "cosmoflow"} <= set(BUNDLED)
    for name in BUNDLED:
        task = registry.find(name)
        assert set(task.structure) & set(space_of(task, bundled_space(name)).parameters)


@pytest.mark.parametrize("name", BUNDLED)
def test_trial_trains_with_exactly_the_parameters_that_were_chosen(
    tmp_path: Path, name: str
) -> None:
    model = _model(tmp_path, name)
    for seed in range(20):
        chosen = model.space.ask(Chooser(seed))
        work = model.work(TrialOf(seed, 1, tmp_path), chosen)
        config = from_json(WorkerConfig, json.loads(Path(work.command[-1]).read_text()))
        used = {**config.parameters, "batch": config.batch, "dropout": config.dropout}
        assert used == chosen
        assert (config.seed, config.max_seconds, config.model) == (1, math.inf, name)
        recipe = varied(model.task.quick, config.parameters)
        course = Course(16, 50, 10, 1)
        assert max(recipe.rate(course, step) for step in range(50)) == pytest.approx(chosen["rate"])
        assert set(recipe.structure) == set(model.task.structure) & set(chosen)


def test_parameter_that_a_model_does_not_have_is_answered_with_one_that_it_has(
    tmp_path: Path,
) -> None:
    path = tmp_path / "space.toml"
    path.write_text("[parameters.filter]\nlow = 1\nhigh = 2\n")
    with pytest.raises(FairleadError, match="hepcnn has no parameter `filter`") as caught:
        space_of(registry.find("hepcnn"), path)
    assert caught.value.findings[0].why == "Did you mean `filters`?"


def test_loss_of_a_training_is_reported_ten_times_with_the_sign_of_its_goal(tmp_path: Path) -> None:
    model = _model(tmp_path)
    model.work(TrialOf(0, 1, tmp_path), {"rate": 0.1})
    assert model.reports(tmp_path) == []
    lines = [{"event": "setup"}, {"event": "start", "steps": 40, "begin": 0}]
    lines += [{"event": "step", "step": s, "loss": 1.0 if s % 2 else 3.0} for s in range(1, 41)]
    events = tmp_path / "train.events.jsonl"
    events.write_text("".join(json.dumps(line) + "\n" for line in lines[:22]))
    first = model.reports(tmp_path)
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    reports = first + model.reports(tmp_path)
    assert reports == [(part, {"": -2.0}) for part in range(1, 11)]
    assert len(first) == 5


def test_trial_that_goes_on_from_another_gets_its_checkpoints_and_its_part_of_the_course(
    tmp_path: Path,
) -> None:
    plain = _model(tmp_path)
    model = replace(plain, options=replace(plain.options, parts=3), inherits=True, generation=4)
    own, source = tmp_path / "9", tmp_path / "5"
    (own / "checkpoints").mkdir(parents=True)
    (own / "checkpoints/step-00000001.npz").touch()  # of an attempt that was cut short
    work = model.work(TrialOf(9, 1, own, source), {"rate": 0.1, "units": 2})
    config = from_json(WorkerConfig, json.loads(Path(work.command[-1]).read_text()))
    assert (config.source, config.checkpoints) == (source / "checkpoints", own / "checkpoints")
    assert (config.part, config.parts) == (2, 3)
    assert str(source) in work.binds and not config.checkpoints.exists()
    (tmp_path / "9/train.events.jsonl").write_text(
        '{"event": "start", "steps": 30, "begin": 20}\n'
        + "".join(f'{{"event": "step", "step": {s}, "loss": 1.0}}\n' for s in range(21, 31))
    )
    assert [step for step, _ in model.reports(own)] == list(range(21, 31))
    alone = plain.work(TrialOf(9, 1, own, None), {"rate": 0.1})
    config = from_json(WorkerConfig, json.loads(Path(alone.command[-1]).read_text()))
    assert (config.source, config.checkpoints, config.parts) == (None, None, 1)
