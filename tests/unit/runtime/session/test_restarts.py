"""On which nodes a launch begins again, and whether it does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.recorded import image, planned

from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity, fail
from fairlead.image.open import Image
from fairlead.launch import node_history
from fairlead.launch.launch import CommandLine, LaunchResult
from fairlead.launch.run_folder import RankExit
from fairlead.launchers.model import Shape
from fairlead.schedulers.model import Allocation
from fairlead.session import restarts
from fairlead.session.gradients import CommChoice
from fairlead.session.model import Launched, LaunchOptions, Prepared
from fairlead.session.restarts import Attempts, Placement, Restarts, launch_again

HOSTS = ("n1.site", "n2.site", "n3.site", "n4.site")
COMM = CommChoice(None, "", False, {}, (), ())  # type: ignore[arg-type]
JOB = Allocation("slurm", "7", 4, HOSTS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fairlead").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(restarts, "unreachable", lambda hosts, unresolved: {})
    monkeypatch.setattr(restarts, "_PAUSE_S", 0.0)
    return tmp_path / "fairlead"


def prepared(shape: Shape = Shape(2, 2)) -> Prepared:  # noqa: B008
    plan = planned()
    plan = replace(plan, request=replace(plan.request, shape=shape))
    found = Image("x", "/x.sif", "sif", 1, "", False, image(), {})
    return Prepared(found, plan, (), "", COMM)


def failure(host: str, check: str = "rank-failed") -> Finding:
    return Finding(Severity.ERROR, f"{host} failed", check=check, host=host)


def placement(policy: Restarts, **more: Any) -> Placement:
    return Placement(prepared(), JOB, policy, more.get("left_out", {}))


def test_first_launch_is_left_to_the_launcher_unless_nodes_are_spare() -> None:
    assert placement(Restarts(2)).hosts == ()
    assert placement(Restarts(2, spares=2)).hosts == HOSTS[:2]
    with pytest.raises(FairleadError, match="this job has 4 nodes"):
        placement(Restarts(2, spares=3))


def test_node_that_is_lost_is_never_used_again() -> None:
    place = placement(Restarts(9, spares=2))
    place.replace(failure("n1", "node-lost"))
    assert place.hosts == HOSTS[1:3] and place.unused == HOSTS[:1]
    shape = place.prepared.plan.request.shape
    assert (shape.hosts, shape.nodes, shape.ranks) == (HOSTS[1:3], 2, 2)
    place.replace(failure("n3", "node-lost"))
    assert place.hosts == (HOSTS[1], HOSTS[3])
    with pytest.raises(FairleadError, match="1 nodes are left, and the ranks need 2") as caught:
        place.replace(failure("n4", "node-lost"))
    assert caught.value.code is ExitCode.LAUNCH_FAILED


def test_node_whose_rank_failed_is_avoided_as_long_as_others_are_left() -> None:
    place = placement(Restarts(9))
    place.replace(failure("n1"))
    assert place.hosts == ()
    place = placement(Restarts(9, exclude_failed=True))
    for host, hosts in (
        ("n1", ("n2", "n3")), ("n2", ("n3", "n4")), ("n3", ("n1", "n4")), ("n4", ("n1", "n2")),
    ):  # fmt: skip
        place.replace(failure(host))
        assert tuple(map(node_history.short, place.hosts)) == hosts
    place.replace(failure("elsewhere"))
    assert tuple(map(node_history.short, place.hosts)) == ("n1", "n2")


def test_nodes_that_failed_earlier_in_this_job_are_avoided(cache: Path) -> None:
    node_history.note(cache, failure("n1"), "7")
    node_history.note(cache, failure("n2"), "8")
    assert placement(Restarts(2, exclude_failed=True)).hosts == (HOSTS[1], HOSTS[2])
    assert placement(Restarts(2)).hosts == ()


def test_slow_nodes_are_left_out_from_the_start() -> None:
    assert placement(Restarts(), left_out={HOSTS[0]: "slow"}).hosts == HOSTS[1:3]


@given(st.lists(st.tuples(st.sampled_from("1234"), st.booleans()), max_size=8), st.booleans())
def test_chosen_nodes_are_of_the_job_and_never_lost(
    failures: list[tuple[str, bool]], exclude: bool
) -> None:
    place, lost = placement(Restarts(9, exclude, spares=1)), set()
    for number, is_lost in failures:
        lost |= {f"n{number}.site"} if is_lost else set()
        try:
            place.replace(failure(f"n{number}", "node-lost" if is_lost else "rank-died"))
        except FairleadError:
            assert len(lost) > 2
            return
        assert len(set(place.hosts)) == 2 and set(place.hosts) <= {*HOSTS} - lost
        assert list(place.hosts) == sorted(place.hosts)


def launched(code: int, terminated: bool = False) -> Launched:
    ranks = (RankExit("0", code, 1),)
    return Launched(
        CommandLine((), {}), LaunchResult(code, code, 1, ranks, terminated=terminated), None
    )


@pytest.mark.parametrize(
    ("outcomes", "tries"),
    [
        ([137, 1, 0], 3),
        ([137, 137, 137, 137, 137], 4),
        ([2], 1),
        ([127], 1),
        ([ExitCode.WATCHDOG, ExitCode.LAUNCH_FAILED, 0], 3),
        ([ExitCode.PROOF_FAILED], 1),
        ([ExitCode.PREFLIGHT_REFUSED], 1),
        (["terminated"], 1),
    ],
)
def test_launch_is_tried_again_where_that_may_help(
    outcomes: list[Any], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    given = itertools.chain(outcomes, itertools.repeat(0))

    def launch_proved(plan: Prepared, command: Any, ranks: int, options: LaunchOptions) -> Launched:
        counts.append(options.env["FAIRLEAD_RESTART"])
        outcome = next(given)
        if isinstance(outcome, ExitCode):
            raise fail("rank-stopped", rank="rank 1", host="n1", code=outcome)
        return launched(143, terminated=True) if outcome == "terminated" else launched(outcome)

    monkeypatch.setattr(restarts, "launch_proved", launch_proved)
    shown: list[Finding] = []
    attempts = Attempts(prepared(), Restarts(3), shown.append, environ={})
    try:
        launch_again(("true",), 2, LaunchOptions(), attempts)
    except FairleadError as exc:
        assert exc.code is outcomes[-1]
    assert counts == [str(n) for n in range(tries)]
    assert [found.check for found in shown] == ["restart"] * (tries - 1)


def test_requeue_needs_a_job() -> None:
    with pytest.raises(FairleadError, match="no job to requeue") as caught:
        Attempts(prepared(), Restarts(requeue_s=60), print, environ={})
    assert caught.value.code is ExitCode.USAGE
