"""A timeline from what was recorded to a trace: limits, clocks, steps and launches, without any rank of an MPI."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import traces
from tests.traces import of

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead.comm.core import Timings
from fairlead.comm.mpi import connect
from fairlead.comm.timeline import Timeline
from fairlead.ml.train.checkpoint import Checkpoint, Writer
from fairlead.ml.train.model import Marks, step_times
from fairlead.session.recorder import Recorder
from fairlead.trace import document, spans

MS = 1_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def alone(file: Path, **environ: str) -> Timeline:
    """The timeline of a process that is rank 0 of 1."""
    settings = {f"FAIRLEAD_COMM_TIMELINE_{name}": value for name, value in environ.items()}
    return Timeline(connect({}), {"FAIRLEAD_COMM_TIMELINE": str(file), **settings})


def test_checkpoints_are_written_in_their_row(file: Path, tmp_path: Path) -> None:
    timeline = alone(file)
    with Writer(tmp_path / "checkpoints") as writer:
        writer.start(Checkpoint(3, {}, [np.zeros(4, np.float32)], [], {}), held_s=0)
    timeline.end()
    (written,) = of(traces.read(file), row="checkpoints", name="write a checkpoint")
    assert written["args"]["step"] == 3


def test_spans_are_in_the_row_of_their_thread_and_nest(file: Path) -> None:
    timeline = alone(file)
    begun = [threading.Event(), threading.Event()]

    def work(mine: threading.Event, other: threading.Event) -> None:
        with spans.span("both at once"):
            mine.set()
            other.wait(10)

    threads = [
        threading.Thread(target=work, args=(begun[i], begun[1 - i]), name="loader")
        for i in range(2)
    ]
    with spans.span("outer", samples=3):
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        after = threading.Thread(target=work, args=(begun[0], begun[1]), name="loader")
        after.start()
        after.join()
    timeline.end()
    events = traces.read(file)
    (outer,) = of(events, row="main")
    assert outer["name"] == "outer" and outer["args"] == {"samples": 3}
    rows = [e["row"] for e in of(events, name="both at once")]
    # Two of one name that live at once have a row each; a third takes the row of one that is over.
    assert len(rows) == 3 and len(set(rows)) == 2 and rows.count("loader") == 2
    with spans.span("later"):
        pass
    assert not of(traces.read(file), name="later")


def test_span_without_a_timeline_is_nothing() -> None:
    assert spans.recorder is None
    assert spans.span("one") is spans.span("two", bytes=3)


def test_full_file_keeps_the_newest_and_counts_what_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"  # as the ranks' own files end
    timeline = alone(file, EVENTS="100")
    for number in range(1000):
        timeline.span("main", f"span {number}", "python", number, number + 1)
    parts = document.parts_of(file)
    assert sum(path.stat().st_size for path in parts.iterdir()) < 20_000
    timeline.end()
    names = [e["name"] for e in traces.read(file)]
    gone = traces.whole(file)["otherData"]["dropped_events"]["rank 0"]
    assert 50 <= len(names) <= 100 and gone == 1000 - len(names)
    assert names == [f"span {n}" for n in range(gone, 1000)]


@pytest.mark.parametrize("events", ["many", "1", "-5"])
def test_limit_that_is_none_is_refused(events: str, file: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        alone(file, EVENTS=events)
    assert caught.value.findings[0].check == "comm-timeline"


def test_limit_that_no_step_fits_in_is_no_endless_turn(file: Path) -> None:
    timeline = alone(file, EVENTS="2")
    for number in range(3):
        timeline.phases(
            number, ("input", "update"), (number * 10, number * 10 + 4, number * 10 + 9)
        )
    timeline.end()
    assert [e["name"] for e in of(traces.read(file), cat="step")] == ["step 1", "step 2"]


@pytest.mark.parametrize("how", ["seen", "measured apart", "never measured"])
def test_parts_of_a_step_are_those_in_the_result(file: Path, how: str) -> None:
    timeline = alone(file)
    marks, at = [], time.monotonic_ns()
    for number in range(4):
        forward = at + 15 * MS if how == "seen" else None
        mark = Marks(
            at, at + 2 * MS, forward, at + 40 * MS, at + 45 * MS, at + 60 * MS, at + 70 * MS
        )
        marks.append(mark)
        timeline.phases(number, mark.parts, mark.borders)
        at += 80 * MS + 123
    if how != "never measured":
        timeline.forward_apart(12 * MS)
    timeline.end()
    events = traces.read(file)
    mine = step_times(marks, 0, events[0]["rank"][8:-1], 0.012)
    if how != "never measured":
        traces.agrees(events, [mine])
    else:  # as of a run that was killed before: no border is made up
        names = {e["name"] for e in of(events, cat="phase")}
        assert "forward and backward" in names and not names & {"forward", "backward"}


def test_step_of_a_program_is_what_lies_between_its_marks(file: Path) -> None:
    timeline = alone(file)
    spent = Timings(wait_s=5.0, move_s=1.0)
    timeline.open_step(spent)
    for _ in range(2):
        timeline.mark("input")
        timeline.mark("forward")
        timeline.averaging(spent)
        time.sleep(0.02)
        spent += Timings(wait_s=0.005, move_s=0.01)
        timeline.averaged(spent)
        timeline.close_step()
    timeline.end()
    events = traces.read(file)
    assert len(of(events, cat="step")) == 2
    for idle in of(events, name="idle"):
        assert idle["dur"] == pytest.approx(5000, abs=2)
    assert all(e["dur"] > 14_000 for e in of(events, name="exposed communication"))


def test_step_that_is_never_closed_ends_with_its_means(file: Path) -> None:
    timeline = alone(file)
    timeline.averaged(Timings(wait_s=0.5, move_s=9.0))  # more than has passed since the start
    time.sleep(0.03)
    timeline.averaged(Timings(wait_s=0.505, move_s=9.01))
    timeline.end()
    steps = of(traces.read(file), cat="step")
    assert [e["name"] for e in steps] == ["step 0", "step 1"]


def test_marks_of_a_whole_validation_are_no_thousands_of_parts(file: Path) -> None:
    timeline = alone(file)
    timeline.open_step(Timings())
    for _ in range(1000):
        timeline.mark("other")
        timeline.mark("input")
    timeline.averaged(Timings())
    timeline.close_step()
    timeline.end()
    assert len(of(traces.read(file), cat="phase")) <= 64


# --- several launches, seen by their host -------------------------------------------------------


def lines(path: Path, *said: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in said))


def rank(number: int, size: int, clock: str = "a", wall_ns: int = 0) -> dict[str, Any]:
    return {"rank": number, "size": size, "host": f"n{number}", "reads": clock, "wall_ns": wall_ns, "begun": 0}  # fmt: skip


def did(name: str, begin: int, end: int, kind: str = "python", **more: Any) -> dict[str, Any]:
    return {
        "thread": "main",
        "name": name,
        "kind": kind,
        "begin": begin * MS,
        "end": end * MS,
        **more,
    }


def test_launches_of_one_verb_follow_each_other_in_the_hosts_time(file: Path) -> None:
    """The host's clock is 1000 ms behind that of the ranks' node, which both days' clocks tell."""
    folder = document.parts_of(file)
    lines(
        folder / "host.jsonl",
        {"host": "login", "reads": "host", "wall_ns": 1000 * MS},
        {"number": 0, "title": "measure"},
        {"number": 0, "begun": 100 * MS},
        {"number": 0, "proved": 300 * MS},
        {"number": 0, "ended": 500 * MS},
        {"thread": "stages", "name": "measure", "kind": "stage", "begin": 90 * MS, "end": 510 * MS},
        {"number": 1, "title": "train"},
        {"number": 1, "begun": 600 * MS},
    )
    step = {"step": 0, "parts": ["input", "update"], "borders": [1400 * MS, 1410 * MS, 1450 * MS]}
    lines(folder / "0.parts/rank-000000.jsonl", rank(0, 1), did("start", 1150, 1200), step)
    for number in range(2):
        begin = 1700 + 10 * number
        lines(
            folder / f"1.parts/rank-{number:06d}.jsonl", rank(number, 3), did("start", begin, 1800)
        )
    merged = document.merge(file)
    assert merged and merged.line() == "run.json: 15 events of 3 of 4 ranks in 2 launches"
    assert not folder.exists()
    events = traces.read(file)
    assert {e["rank"] for e in events} == {
        "rank 0 (n0), measure", "rank 0 (n0), train", "rank 1 (n1), train", "fairlead (login)",
    }  # fmt: skip
    launches = [(e["name"], e["ts"], e["dur"]) for e in of(events, row="launches")]
    zero = 90_000
    assert launches == [
        ("measure", 100_000 - zero, 400_000),
        ("launcher and engine", 100_000 - zero, 50_000),
        ("until every rank is proved", 150_000 - zero, 150_000),
        ("until the first step is over", 300_000 - zero, 150_000),
        ("until the end", 450_000 - zero, 50_000),
        # It was killed: it ends where its ranks' parts do.
        ("train", 600_000 - zero, 200_000),
        ("launcher and engine", 600_000 - zero, 110_000),
        ("until the end", 710_000 - zero, 90_000),
    ]


def test_recorder_names_a_launch_after_its_stage_and_takes_its_parts(file: Path) -> None:
    file = file.with_suffix(".json.gz")
    recorder = Recorder(file)
    recorder.begin()
    with recorder.span("plan"):
        pass
    with recorder.progress(Silent()).stage("train it"):
        launch = recorder.launch()
        launch.begun()
        environ = {"FAIRLEAD_COMM_TIMELINE": launch.native_env["FAIRLEAD_COMM_TIMELINE"]}
        timeline = Timeline(connect({}), environ)
        timeline.began(time.monotonic_ns(), "none")
        timeline.end()
        assert not file.exists()  # it is the host's to put together
        launch.proved()
        launch.ended()
    output = recorder.finish("nobody")
    assert output.check == "comm-timeline" and "events of 1 rank" in output.what
    events = traces.read(file)
    assert [e["name"] for e in of(events, row="stages")] == ["plan", "train it"]
    assert of(events, row="launches")[0]["name"] == "train it"
    assert of(events, row="main", name="init")
    (born,) = of(events, name="start Python and import")
    assert born["ts"] >= 0 and born["dur"] > 10_000  # this process has imported a lot


def test_line_that_is_only_printed_has_rank_0_make_the_file(file: Path) -> None:
    launch = Recorder(file).launch("run")
    (bind,) = launch.binds
    assert bind.source == str(file.parent) and launch.env == {
        "FAIRLEAD_COMM_TIMELINE": f"{bind.target}/run.json"
    }
    assert list(file.parent.iterdir()) == []


def test_recorder_of_ranks_that_recorded_nothing_leaves_nothing(file: Path) -> None:
    file.write_text("of an earlier run")
    recorder = Recorder(file)
    recorder.begin()
    recorder.launch("run").begun()
    output = recorder.finish("nobody called it")
    assert (output.what, output.why) == ("no timeline was recorded", "nobody called it")
    assert list(file.parent.iterdir()) == []


def test_recorder_without_a_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FairleadError) as caught:
        Recorder(tmp_path / "file/run.json").begin()
    assert caught.value.findings[0].check == "comm-timeline"


def test_parts_of_a_killed_verb_are_put_together_by_hand(file: Path) -> None:
    lines(
        document.parts_of(file) / "host.jsonl",
        {"host": "login", "reads": "a", "wall_ns": 0},
        {"number": 0, "title": "run"},
        {"number": 0, "begun": 100 * MS},
    )
    cut = json.dumps(did("cut off", 500, 600))[:-9]
    place = document.parts_of(file) / "0.parts/rank-000000.jsonl"
    lines(place, rank(0, 1), did("start", 200, 300))
    with place.open("a") as stream:
        stream.write(cut)
    again = [sys.executable, "-m", "fairlead.trace.document", str(file)]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "run.json: 4 events of 1 rank\n"), done.stderr
    assert of(traces.read(file), row="launches")[0]["dur"] == 200_000


@pytest.mark.parametrize("damage", [b"FLTRACE1" + b"\xff" * 300, b"FLTRACE1" + bytes(400)])
def test_damaged_part_is_named_and_the_rest_is_merged_without_it(file: Path, damage: bytes) -> None:
    lines(document.parts_of(file) / "rank-000000.jsonl", rank(0, 2), did("start", 200, 300))
    part = document.parts_of(file) / "rank-000001.ring"
    part.write_bytes(damage)
    with pytest.raises(FairleadError) as caught:
        document.merge(file)
    (finding,) = caught.value.findings
    assert finding.where == str(part) and f"rm {part}" in finding.remedy
    part.unlink()
    merged = document.merge(file)
    assert merged is not None and merged.ranks == 1
