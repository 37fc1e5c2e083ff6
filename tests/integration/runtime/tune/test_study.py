"""Studies: which trials run, who runs them, and what is kept, with Optuna's own journal."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead.tune.evolution import Evolution
from fairlead.tune.space import Objective, Parameter, Space
from fairlead.tune.study import PRUNERS, SAMPLERS, Claim, Search, Study
from fairlead.tune.workers import Worker

SPACE = Space(
    parameters={
        "x": Parameter(low=-2.0, high=2.0),
        "kind": Parameter(choices=["a", "b"]),
        "y": Parameter(low=1, high=9, when={"kind": "b"}),
        "widths": Parameter(low=1, high=4, length=2),
    }
)
BOTH = Space(
    parameters={"x": Parameter(low=0.0, high=1.0)},
    objectives={"one": Objective(), "two": Objective(goal="maximize")},
)


def _study(
    folder: Path, search: Search, space: Space = SPACE, worker: Worker | None = None
) -> Study:
    return Study(folder, space, search, worker or Worker(folder / "workers"))


def _run(study: Study, most: int = 1000) -> list[dict[str, object]]:
    """Runs trials, one after the other; their parameters."""
    seen = []
    while len(seen) < most and (claim := study.claim()):
        x = float(str(claim.parameters["x"]))
        study.tell(claim.number, [x * x] if len(study.objectives) == 1 else [x * x, x])
        seen.append(claim.parameters)
    return seen


@pytest.mark.parametrize("sampler", [s for s in SAMPLERS if s != "grid"])
def test_search_that_is_interrupted_and_goes_on_is_the_same_search(
    tmp_path: Path, sampler: str
) -> None:
    search = Search(sampler, trials=8, seed=3, evolution=Evolution(population=3))
    whole = _run(_study(tmp_path / "whole", search))
    assert len(whole) == 8
    parts = []
    for _ in range(2):
        parts += _run(_study(tmp_path / "parts", search), most=4)
    assert parts == whole
    search = Search(sampler, trials=1, seed=4, evolution=Evolution(population=3))
    other = _run(_study(tmp_path / "other", search))
    assert other[0] != whole[0]
    assert len({json.dumps(each) for each in whole}) > (4 if sampler != "pbt" else 2)


def test_grid_ends_by_itself_and_has_each_point_once(tmp_path: Path) -> None:
    space = Space(
        parameters={"x": Parameter(low=0.0, high=1.0, step=0.25), "n": Parameter(choices=[1, 2])}
    )
    seen = _run(_study(tmp_path, Search("grid"), space))
    assert len({json.dumps(each) for each in seen}) == len(seen) == 10


def test_trial_of_a_dead_tuner_runs_again_with_its_parameters(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from tests.integration.runtime.tune.test_study import SPACE, Search, _study
study = _study(Path(sys.argv[1]), Search("random", trials=3, seed=1))
print(study.claim().parameters["x"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    first = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        first.append(float(done.stdout))
    assert first[0] == first[1]
    study = _study(tmp_path, Search("random", trials=3, seed=1))
    claims = [study.claim() for _ in range(3)]
    assert [(c.number, c.attempt) for c in claims] == [(0, 3), (1, 1), (2, 1)]
    assert claims[0].parameters["x"] == first[0]
    assert study.claim() is None


def test_trial_that_ends_each_tuner_is_given_up(tmp_path: Path) -> None:
    search = Search("random", trials=1)
    for _ in range(3):
        worker = Worker(tmp_path / "workers")
        assert _study(tmp_path, search, worker=worker).claim() is not None
        worker.end()  # as of a process that is gone
    study = _study(tmp_path, search)
    assert study.claim() is None
    (trial,) = study.trials()
    assert trial.state == "failed" and "3 times" in trial.why


def test_tuners_of_one_study_share_its_trials(tmp_path: Path) -> None:
    search = Search("tpe", trials=9)
    one, two = _study(tmp_path, search), _study(tmp_path, search)
    claims = [study.claim() for study in (one, two, one, two, one, two, one, two, one, two)]
    assert [c.number for c in claims if c] == list(range(9))
    assert claims[-1] is None
    assert one._worker.others() == [two._worker.name]


def test_claims_exclude_each_other_also_without_flock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.tune.study.has_flock", lambda path: False)
    program = """
import sys
from pathlib import Path
from fairlead.tune import study
from tests.integration.runtime.tune.test_study import Search, _study
study.has_flock = lambda path: False
mine = _study(Path(sys.argv[1]), Search("random", trials=12, seed=1))
while claim := mine.claim():
    print(claim.number)
    mine.tell(claim.number, [1.0])
"""
    words = [sys.executable, "-c", program, str(tmp_path)]
    _study(tmp_path, Search("random", trials=12, seed=1))
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    numbers = [int(word) for one in both for word in one.communicate()[0].split()]
    assert sorted(numbers) == list(range(12))
    assert not list(tmp_path.glob("claims.lock-by-name*")), "no lock is left"


def test_other_search_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    _study(tmp_path, Search(trials=2, seed=1))
    _study(tmp_path, Search(trials=9, seed=1))  # more trials are the same search
    with pytest.raises(FairleadError, match="the folder has another search") as caught:
        _study(tmp_path, Search("random", trials=2, seed=2))
    assert caught.value.findings[0].why == "these differ: sampler, seed"
    changed = SPACE.model_copy(update={"by": "file"})
    with pytest.raises(FairleadError, match="another search"):
        _study(tmp_path, Search(trials=2, seed=1), changed)


def test_failed_trials_keep_their_reasons_and_are_never_best(tmp_path: Path) -> None:
    study = _study(tmp_path, Search("random", trials=3))
    first, second, third = (study.claim() for _ in range(3))
    study.tell(first.number, None, "rank 0 failed")
    study.tell(second.number, [4.0], seconds=1.5, proof="2 ranks")
    study.tell(third.number, None, "worse than others", pruned=True)
    trials = study.trials()
    assert [t.state for t in trials] == ["failed", "complete", "pruned"]
    assert [t.why for t in trials] == ["rank 0 failed", "", "worse than others"]
    assert trials[1].proof == "2 ranks" and trials[1].seconds == 1.5
    assert [t.number for t in study.best()] == [1]
    assert trials[1].parameters == second.parameters


def test_best_of_several_objectives_is_their_front(tmp_path: Path) -> None:
    study = _study(tmp_path, Search("nsga2", trials=4), BOTH)
    for values in ((1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (1.0, 0.0)):
        claim = study.claim()
        study.tell(claim.number, values)
    assert [t.number for t in study.best()] == [0, 1]
    with pytest.raises(FairleadError, match="several objectives cannot be ended early"):
        _study(tmp_path / "pruned", Search(trials=1, pruner="asha"), BOTH)


@pytest.mark.parametrize("pruner", PRUNERS)
def test_pruner_ends_what_is_worse_and_leaves_what_is_better(tmp_path: Path, pruner: str) -> None:
    study = _study(tmp_path, Search("random", trials=16, pruner=pruner))
    ended = []
    for i in range(16):
        claim = study.claim()
        level = 100.0 if i % 2 else 1.0
        pruned = any(study.report(claim.number, step, level / step) for step in range(1, 10))
        study.tell(claim.number, None if pruned else [level], pruned=pruned)
        ended.append(pruned)
    assert (sum(ended[1::2]) > 0) is (pruner != "none"), "of the bad ones"
    assert not any(ended[:1]) and sum(ended[::2]) <= sum(ended[1::2])


def test_report_of_a_step_counts_once_and_nan_ends_nothing(tmp_path: Path) -> None:
    study = _study(tmp_path, Search("random", trials=1, pruner="median"))
    claim = study.claim()
    assert not study.report(claim.number, 1, 2.0)
    assert not study.report(claim.number, 1, 9.0)
    assert not study.report(claim.number, 2, math.nan)
    assert study.trials()[0].reports[0] == (1, 2.0)


def test_journal_with_half_a_line_goes_on(tmp_path: Path) -> None:
    search = Search("random", trials=6)
    first = _run(_study(tmp_path, search), most=3)
    with (tmp_path / "journal.log").open("ab") as stream:
        stream.write(b'{"op_code":4,"work')  # where a disk was full
    assert len(first) + len(_run(_study(tmp_path, search))) == 6


def test_damaged_journal_is_named(tmp_path: Path) -> None:
    _run(_study(tmp_path, Search("random", trials=2)))
    journal = tmp_path / "journal.log"
    journal.write_bytes(b"no journal\n" + journal.read_bytes())
    with pytest.raises(FairleadError, match="the storage of the search fails") as caught:
        _study(tmp_path, Search("random", trials=2))
    assert caught.value.findings[0].where == str(journal)


def test_storage_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/no/such/folder/x.db"
    with pytest.raises(FairleadError, match="the storage of the search fails"):
        _study(tmp_path, Search("random", trials=1, storage=url))
    here = Search("random", trials=2, storage=f"sqlite:///{tmp_path}/x.db")
    assert len(_run(_study(tmp_path, here))) == 2
    assert not (tmp_path / "journal.log").exists()


def test_full_storage_is_named_and_no_trial_is_lost(tmp_path: Path) -> None:
    study = _study(tmp_path, Search("random", trials=3))
    _run(study, most=1)
    size, limits = (
        (tmp_path / "journal.log").stat().st_size,
        resource.getrlimit(resource.RLIMIT_FSIZE),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, limits[1]))
    try:
        with pytest.raises(FairleadError, match="the storage of the search fails") as caught:
            study.claim()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "File too large" in caught.value.findings[0].why
    assert (tmp_path / "journal.log").stat().st_size == size + 30, "half a line"
    assert len(_run(_study(tmp_path, Search("random", trials=3)))) == 2


def test_importance_is_that_of_the_parameter_that_matters(tmp_path: Path) -> None:
    space = Space(
        parameters={"x": Parameter(low=-2.0, high=2.0), "z": Parameter(low=0.0, high=1.0)}
    )
    study = _study(tmp_path, Search("random", trials=20), space)
    assert study.importances() == {}
    _run(study)
    found = study.importances()
    assert found["x"] > found["z"]


def test_worker_lives_as_long_as_its_process(tmp_path: Path) -> None:
    one = Worker(tmp_path)
    program = "import sys, pathlib, fairlead.tune.workers as w; w.Worker(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    (other,) = {path.stem for path in tmp_path.glob("*.json")} - {one.name}
    assert one.lives(one.name) and not one.lives(other) and not one.lives("absent")
    assert one.others() == []
    # On another machine only touches count.
    file = tmp_path / f"{other}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "boot": "another"}))
    assert one.lives(other)
    os.utime(file, (0, 0))
    assert not one.lives(other)


def test_generation_waits_for_the_one_before_and_its_worst_goes_on_from_its_best(
    tmp_path: Path,
) -> None:
    study = _study(tmp_path, Search("pbt", trials=8, seed=1, evolution=Evolution(population=4)))
    first = [study.claim() for _ in range(4)]
    assert study.claim() is None and study.waits
    for claim, value in zip(first, (4.0, 1.0, 3.0, 2.0), strict=True):
        study.tell(claim.number, [value])
    second = [study.claim() for _ in range(4)]
    assert [c.source for c in second] == [1, 1, 2, 3]
    assert [c.parameters for c in second[1:]] == [c.parameters for c in first[1:]]
    assert second[0].parameters["x"] != first[1].parameters["x"]
    best = abs(first[1].parameters["x"])
    near = [pytest.approx(min(best * factor, 2.0)) for factor in (0.8, 1.25)]
    assert abs(second[0].parameters["x"]) in near
    assert study.claim() is None and not study.waits


def _ended(study: Study, claims: list[Claim], values: tuple[float, ...]) -> set[int]:
    """What is not needed once these trials have ended."""
    for claim, value in zip(claims, values, strict=True):
        study.tell(claim.number, [value])
    gone: set[int] = set()
    study.discard(gone.add)
    return gone


def test_checkpoints_are_kept_while_a_later_trial_may_go_on_from_them(tmp_path: Path) -> None:
    search = Search("pbt", trials=12, seed=1, evolution=Evolution(population=4))
    study = _study(tmp_path, search)
    assert _ended(study, [study.claim() for _ in range(4)], (4.0, 1.0, 3.0, 2.0)) == set()
    assert _ended(study, [study.claim() for _ in range(2)], (1.0, 1.0)) == set()
    rest = [study.claim() for _ in range(2)]
    assert _ended(study, rest[:1], (1.0,)) == {0, 1, 2}, "trial 7 goes on from 3"
    assert _ended(study, rest[1:], (1.0,)) == {0, 1, 2, 3}


def test_child_of_a_genetic_search_goes_on_from_its_parent_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    for inherit in (False, True):
        how = Evolution(population=3, inherit=inherit)
        study = _study(tmp_path / str(inherit), Search("genetic", trials=6, seed=1, evolution=how))
        first = [study.claim() for _ in range(3)]
        assert [claim.source for claim in first] == [None] * 3
        _ended(study, first, (1.0, 2.0, 3.0))
        child = study.claim()
        assert (child.source in (0, 1, 2)) == inherit
        assert study.trials()[3].source == child.source
