"""What a validation makes of a training: rates, shares, steps, and what a projection is fitted to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.findings import fail

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.progress import Silent
from fairlead.base.serde import to_json
from fairlead.ml.train.model import RankWeights, Speed, StepTimes, TrainOptions, WorkerResult
from fairlead.ml.train.runner import RunOutcome
from fairlead.perf import stats
from fairlead.perf.measure import steps
from fairlead.perf.measure.step import Context, Observations, Options
from fairlead.perf.measure.steps import training
from fairlead.perf.projection import small_runs as runs
from fairlead.perf.records.validation import Way, What

STEPS = 28
WARMUP = 3


def trained(ranks: int, batch: int) -> WorkerResult:
    """Rank r computes 0.2 s + r ms a step; the others wait for the last."""
    times = tuple(
        StepTimes(
            rank,
            "node",
            (0.01,) * STEPS,
            (0.08,) * STEPS,
            (0.12 + 0.001 * rank,) * STEPS,
            (0.02,) * STEPS,
            (0.03,) * STEPS,
            (0.001 * (ranks - 1 - rank),) * STEPS,
        )
        for rank in range(ranks)
    )
    return WorkerResult(
        "hepcnn", "tensorflow", "float32", ranks, batch, 1, 1000, 500, 1, "MPICH", {},
        Speed(STEPS - WARMUP, 1.0, 0.26, 0.26, 0.23, 0.02, 0.0, 0.01, 0.08, 0.03), (),
        tuple(RankWeights(r, "node", "a", "b", "c") for r in range(ranks)), 7.0, 1.0, steps=times,
    )  # fmt: skip


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("models", [(), ("hepcnn",), ("hepcnn", "cosmoflow")])
@pytest.mark.parametrize("ranks", [(1,), (1, 2), (1, 2, 4, 8, 16, 32, 64, 128)])
def test_repeats_are_enough_for_a_comparison_to_decide(
    ranks: tuple[int, ...], models: tuple[str, ...], ways: int, quick: bool
) -> None:
    options = steps.planned(Options(Path(), ranks, models, quick=quick), ways)
    lines = ways * sum(step.lines(options) for step in steps.STEPS)
    assert stats.smallest_p(options.repeats, options.repeats) * lines <= stats.ALPHA
    assert options.repeats <= 10  # they take time


def play(ranks: int, command: Sequence[str], binds: Sequence[Path]) -> RunOutcome:
    """A launch whose ranks leave what :func:`trained` says."""
    if "fairlead.ml.train.worker" in command:
        config = json.loads(Path(command[-1]).read_text())
        Path(config["result"]).write_text(json.dumps(to_json(trained(ranks, config["batch"]))))
    return RunOutcome(0, "")


def seen_of(options: Options, ranks: int) -> Observations:
    context = Context(options, {Way.CONTAINER: play}, "hydra", Silent())
    asked = TrainOptions(
        run_dir=options.out, data_dir=options.out, batch=16, warmup=WARMUP, measure_steps=25
    )
    training.train(asked, ranks, context, Way.CONTAINER, play)
    return context.observations


def test_training_becomes_a_rate_a_step_and_shares_of_it(tmp_path: Path) -> None:
    seen = seen_of(Options(tmp_path, (1, 2), ("hepcnn",), cores=2), 2)
    (made,) = seen.measurements
    assert made.what is What.TRAIN and len(made.samples) == STEPS - WARMUP and not made.crowded
    assert made.samples[0] == pytest.approx(32 / 0.261)
    shares = seen.shares[made.key]
    assert shares.input == pytest.approx(0.01 / 0.261) and 0.07 < shares.communication < 0.09
    assert seen.steps_of == made.key and [s.rank for s in seen.steps] == [0, 1]
    assert seen.steps[0].forward_s[0] == 0.08 and seen.steps[0].backward_s[0] == pytest.approx(0.12)


def test_training_on_more_ranks_than_cores_is_marked(tmp_path: Path) -> None:
    seen = seen_of(Options(tmp_path, (4,), ("hepcnn",), cores=2), 4)
    assert seen.measurements[0].crowded


def test_strong_scaling_shares_out_the_samples_of_a_step(tmp_path: Path) -> None:
    seen = seen_of(Options(tmp_path, (4,), ("hepcnn",), cores=4, strong=True), 4)
    assert seen.measurements[0].samples[0] == pytest.approx(4 * 4 / 0.263)


def test_small_run_is_what_a_projection_reads(tmp_path: Path) -> None:
    seen = seen_of(Options(tmp_path, (2,), ("hepcnn",), cores=2), 2)
    (run,) = seen.runs["hepcnn"]
    assert run.mistakes == [] and run.bytes == 4000 and run.local_batch == 16
    assert run.compute_s[1][0] == pytest.approx(0.231) and run.wait_s[0] == pytest.approx(0.0005)
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(runs.small_runs_json([run])))
    assert runs.read(path) == (run,)


def test_step_that_fails_is_reported_and_ends_nothing_but_a_proof_that_does_not_hold_does() -> None:
    def failing(code: ExitCode) -> None:
        raise fail("it broke", where="here", why="so", remedy="mend it", check="x", code=code)

    context = Context(Options(Path(), (1,), ()), {}, "hydra", Silent())
    context.attempt("a step", lambda: failing(ExitCode.FAILED))
    (finding,) = context.observations.findings
    assert finding.what == "it broke" and finding.where == "a step: here"
    with pytest.raises(FairleadError):
        context.attempt("a step", lambda: failing(ExitCode.PROOF_FAILED))


def test_steps_are_those_of_the_folder_in_their_order() -> None:
    lines = [
        line for step in steps.STEPS for line in step.describe(Options(Path(), (1, 4), ("hepcnn",)))
    ]
    assert [line.split()[0].strip(",") for line in lines] == [
        "start-up", "memory", "ping-pong", "search", "HEP-CNN",
    ]  # fmt: skip
