"""Ranks that have left: a launch is ended only where every other rank is seen to wait for good."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import ExitCode, FairleadError, Finding
from fairlead.launch import leaving
from fairlead.launch.leaving import Leaving, Unseen, Waiter

# Folders of runs as MPICH, Open MPI and Intel MPI leave them while rank 1 is in MPI_Finalize: files and texts.
LEFT = {
    "exit.0": "",
    "exit.1": "",
    "started.0": "n0 41\n",
    "started.1": "",
    "left.1": "n1 42\n",
    "proved": "",
}
ENDED = LEFT | {"exit.1": "0\n", "left.1": "n1 42\n"}
OUTSIDE = {
    "exit.0": "",
    "exit.1": "0\n",
    "started.0": "n0 41\n",
    "started.1": "n1 42\n",
    "proved": "",
}
THREE = LEFT | {"exit.2": "", "started.2": "n1 43\n"}
NO_MPI = {"exit.0": "", "exit.1": "0\n"}


class Rank:
    """A rank as it is looked at: in which call it is, and from when on it moves."""

    elsewhere = False

    def __init__(self, function: str = "MPI_Barrier", moves_at: float = float("inf")):
        self.function, self.moves_at = function, moves_at
        self.clock = [0.0]
        self.closed = False

    def moved(self) -> bool:
        return self.clock[0] >= self.moves_at

    def close(self) -> None:
        self.closed = True


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def codes(folder: Path) -> dict[str, int]:
    found = {path.name.partition(".")[2]: path.read_text() for path in folder.glob("exit.*")}
    return {rank: int(text) for rank, text in found.items() if text}


def watched(
    folder: Path, ranks: Mapping[str, Rank | str | None], seconds: int = 40
) -> tuple[FairleadError | None, float, list[Finding]]:
    """Looks five times a second; the error that ends the launch, when, and what was reported.

    Args:
        ranks: None is at work; a text is why it is unseen.
    """
    clock, findings = [0.0], []

    def look(rank: str, note: str) -> Waiter | None:
        found = ranks[rank]
        assert note == (folder / f"started.{rank}").read_text()
        if isinstance(found, str):
            raise Unseen(found)
        if found:
            found.clock, found.closed = clock, False
        return found

    watch = Leaving(folder, findings.append, lambda: clock[0], look)
    try:
        while clock[0] < seconds:
            watch.look(codes(folder))
            clock[0] += 0.2
    except FairleadError as exc:
        return exc, clock[0], findings
    finally:
        watch.close()
        assert all(r.closed for r in ranks.values() if isinstance(r, Rank) and r.clock is clock)
    return None, clock[0], findings


@pytest.mark.parametrize(
    ("files", "how"),
    [
        (LEFT, "is in MPI_Finalize"),
        (ENDED, "ended with exit code 0"),
        (OUTSIDE, "ended with exit code 0 and without MPI_Finalize"),
    ],
)
def test_rank_that_left_is_named_and_the_job_ends_within_30_s(tmp_path: Path, files, how) -> None:
    failure, seconds, findings = watched(write(tmp_path, files), {"0": Rank()})
    assert failure and failure.code is ExitCode.WATCHDOG and seconds < 30 and not findings
    [finding] = failure.findings
    assert finding.check == "rank-left" and "rank 1 has left" in finding.what
    assert finding.where == f"rank 1 on n1, which {how}"
    assert "rank 0 in MPI_Barrier" in finding.why


@pytest.mark.parametrize(
    "ranks",
    [
        {"0": None, "2": Rank()},  # it computes, while another waits for it
        {"0": Rank(moves_at=0), "2": Rank()},  # its calls return: they exchange something
        {"0": None, "2": None},
    ],
)
def test_rank_that_left_while_any_other_works_ends_nothing(tmp_path: Path, ranks) -> None:
    failure, _, findings = watched(write(tmp_path, THREE), ranks, 600)
    assert not failure
    # What looks like work may be a loop of MPI_Test.
    [finding] = findings
    assert finding.severity == "warning" and finding.check == "rank-left"
    assert finding.where == "rank 1 on n1, which is in MPI_Finalize"


@pytest.mark.parametrize("rank", [None, "ptrace: Operation not permitted", Rank(moves_at=0)])
def test_rank_that_left_is_named_after_30_s_whatever_the_others_do(tmp_path: Path, rank) -> None:
    folder = write(tmp_path, LEFT)
    assert not watched(folder, {"0": rank}, 29)[2]
    _, _, [finding] = watched(folder, {"0": rank}, 31)
    assert "rank 1 has left" in finding.what and finding.where.startswith("rank 1 on n1")
    if isinstance(rank, str):
        assert rank in finding.why


def test_rank_that_left_and_one_out_of_sight_is_reported_once_and_ends_nothing(
    tmp_path: Path,
) -> None:
    ranks = {"0": Rank(), "2": "it runs on n9, out of sight from here"}
    failure, _, findings = watched(write(tmp_path, THREE), ranks, 600)
    assert not failure and len(findings) == 1
    assert (
        findings[0].check == "rank-left"
        and "rank 2 cannot be looked at: it runs on n9" in findings[0].why
    )


def test_programs_without_mpi_may_end_one_by_one(tmp_path: Path) -> None:
    assert watched(write(tmp_path, NO_MPI), {"0": Rank()}, 600)[0] is None


def test_rank_that_leaves_meanwhile_begins_the_watch_again(tmp_path: Path) -> None:
    folder, clock = write(tmp_path, THREE), [0.0]
    watch = Leaving(folder, clock=lambda: clock[0], look=lambda rank, note: Rank())
    for _ in range(90):
        watch.look({})
        clock[0] += 0.2
    write(folder, {"started.2": "", "left.2": "n1 43\n"})
    for _ in range(90):
        watch.look({})
        clock[0] += 0.2
    with pytest.raises(FairleadError) as caught:
        for _ in range(30):
            watch.look({})
            clock[0] += 0.2
    assert "1 more have left" in caught.value.findings[0].where


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 50)), min_size=1, max_size=5))
def test_launch_is_never_ended_while_a_rank_is_at_work(tmp_path_factory, ranks) -> None:
    """Whatever the ranks do: at the end, each was in one call for as long as it was watched."""
    files = {"exit.9": "", "left.9": "n1 1\n", "started.9": ""}
    for i in range(len(ranks)):
        files |= {f"exit.{i}": "", f"started.{i}": "n0 2\n"}
    folder = write(tmp_path_factory.mktemp("run"), files)
    each = {str(i): Rank(moves_at=at) if waits else None for i, (waits, at) in enumerate(ranks)}
    failure, seconds, _ = watched(folder, each)
    if failure:
        assert all(waits and not seconds - leaving._WATCH_S < at <= seconds for waits, at in ranks)


def test_host_of_a_rank_is_the_witnesss(tmp_path: Path) -> None:
    folder = write(tmp_path, LEFT)
    assert [leaving.host_of(folder, rank) for rank in "012"] == ["n0", "n1", ""]


class Far(Rank):
    """A rank of another node, whose agent answers after a while."""

    elsewhere = True

    def __init__(self, answers_at: float = 0.0, unseen_at: float = float("inf"), **more: float):
        super().__init__("", **more)
        self.answers_at, self.unseen_at = answers_at, unseen_at

    def moved(self) -> bool:
        if self.clock[0] >= self.unseen_at:
            raise Unseen("its agent does not answer")
        self.function = "MPI_Barrier" if self.clock[0] >= self.answers_at else ""
        return super().moved()


def test_rank_of_another_node_is_watched_from_its_first_answer_on(tmp_path: Path) -> None:
    folder = write(tmp_path, THREE)
    error, at, findings = watched(folder, {"0": Rank(), "2": Far(answers_at=13)})
    assert error and not findings and 28 <= at < 30
    assert "rank 0 in MPI_Barrier, rank 2 in MPI_Barrier" in error.findings[0].why


def test_rank_of_another_node_that_moves_ends_nothing(tmp_path: Path) -> None:
    error, _, findings = watched(write(tmp_path, THREE), {"0": Rank(), "2": Far(moves_at=24)})
    assert error is None and [finding.severity for finding in findings] == ["warning"]


def test_rank_of_a_node_that_does_not_answer_is_doubted(tmp_path: Path) -> None:
    folder = write(tmp_path, THREE)
    error, _, findings = watched(folder, {"0": Rank(), "2": Far(unseen_at=15)}, seconds=90)
    assert error is None
    assert [(f.check, "rank 2 cannot be looked at" in f.why) for f in findings] == [
        ("rank-left", True)
    ]


class Agents:
    """Answers of a node's agent, by when they came; what it is asked."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, int], tuple[float, dict[str, object]]] = {}
        self.asked: list[dict[str, object]] = []

    def ask(self, host: str, **question: object) -> int | None:
        self.asked.append({"host": host, **question})
        return len(self.asked) if host == "n7" else None


def test_rank_is_looked_at_by_the_agent_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    agents, clock = Agents(), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    ranks = leaving.Ranks("a-run", agents)  # type: ignore[arg-type]
    waiter = ranks.waiter("3", "n7 41\n")
    assert waiter and waiter.elsewhere and not waiter.moved()
    agents.answers["n7", 1] = (101.0, {"function": "MPI_Recv", "moved": False})
    assert not waiter.moved()
    assert str(waiter.function) == "MPI_Recv"
    clock[0] = 105.0  # no news from a node is no news of standing still
    assert waiter.moved()
    agents.answers["n7", 1] = (105.0, {"function": "MPI_Recv", "moved": True})
    assert waiter.moved()
    agents.answers["n7", 1] = (105.0, {"unseen": "Operation not permitted"})
    with pytest.raises(Unseen, match="on n7: Operation not permitted"):
        waiter.moved()
    waiter.close()
    assert agents.asked[-1] == {"host": "n7", "ask": "stop", "watch": 1}
    silent = ranks.waiter("4", "n7 42\n")
    clock[0] = 120.0
    with pytest.raises(Unseen, match="does not answer"):
        silent.moved()  # type: ignore[union-attr]


def test_rank_of_a_host_without_an_agent_is_looked_for_here() -> None:
    with pytest.raises(Unseen, match="it runs on n8, out of sight from here"):
        leaving.Ranks("a-run", Agents()).waiter("3", "n8 41\n")  # type: ignore[arg-type]


def test_agent_answers_for_ranks_that_it_cannot_find() -> None:
    watches = leaving.Watches(list)
    said = watches.begin({"number": 5, "rank": "3", "note": "n7 41\n"})
    assert said["number"] == 5 and "out of sight" in str(said["unseen"])
    assert list(watches.now()) == []
    watches.stop(5)
