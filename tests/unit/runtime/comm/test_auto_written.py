"""What ranks of `--auto` write. On two ranks, with torch: tests/system/test_auto.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.comm.auto import files, written

As = Callable[[int], written.Files]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script's folder, with a file of an earlier run."""
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("FAIRLEAD_RUN_FOLDER", str(tmp_path / "run"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "log.txt").write_text("earlier\n")
    os.utime(folder / "log.txt", (1, 1))
    return folder


@pytest.fixture
def as_rank(work: Path) -> Iterator[As]:
    """Has this process write as a rank does."""
    every: list[written.Files] = []

    def become(rank: int) -> written.Files:
        every.append(written.Files(rank, str(work)))
        every[-1].install()
        return every[-1]

    yield become
    for each in every:
        each.end()


def test_rank_other_than_0_writes_and_reads_files_of_its_own(work: Path, as_rank: As) -> None:
    rank = as_rank(1)
    with open("out.txt", "x") as out:
        out.write("mine")
    with Path("log.txt").open("a") as log:
        log.write("mine\n")
    Path("new.tmp").write_bytes(b"1234")
    os.replace("new.tmp", "new.bin")
    os.remove("log.txt.old")  # rank 0's affair
    descriptor = os.open("low.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(descriptor, b"low")
    os.close(descriptor)
    shutil.copy("out.txt", "copy.txt")
    assert Path("out.txt").read_text() == Path("copy.txt").read_text() == "mine"
    assert Path("log.txt").read_text() == "earlier\nmine\n"
    assert os.path.getsize("new.bin") == 4 and not os.path.exists("new.tmp")
    line = [sys.executable, "-c", "import os; print(*sorted(os.listdir()), open('log.txt').read())"]
    others = subprocess.run(line, cwd=work, capture_output=True, text=True, check=True)
    assert others.stdout == "log.txt earlier\n\n"
    # rank 0 has written these; the others are names of this rank's own
    rank._of_rank_0 = {str(work / name) for name in ("out.txt", "copy.txt", "log.txt")}
    rank.end()
    assert sorted(os.listdir(work)) == ["log.txt", "low.txt", "new.bin"]
    assert Path("log.txt").read_text() == "earlier\n" and Path("new.bin").read_bytes() == b"1234"


@pytest.mark.parametrize("of_rank_0", [True, False])
def test_events_next_to_those_of_rank_0_are_left_out(
    of_rank_0: bool, work: Path, as_rank: As
) -> None:
    rank = as_rank(1)
    for name in ("events.out.tfevents.17.host.12.0", "of.12"):
        Path(name).write_text("mine")
    theirs = {str(work / "events.out.tfevents.17.host.11.0"), str(work / "of.11")}
    rank._of_rank_0 = theirs if of_rank_0 else set()
    rank.end()
    assert os.path.exists("events.out.tfevents.17.host.12.0") == (not of_rank_0)
    assert Path("of.12").read_text() == "mine"


def test_failing_rank_leaves_what_is_its_own(work: Path, as_rank: As) -> None:
    rank = as_rank(1)
    for name in ("own.txt", "log.txt"):
        Path(name).write_text("mine")
    rank.end()
    assert Path("own.txt").read_text() == "mine" and Path("log.txt").read_text() == "earlier\n"


def test_folder_with_files_of_its_own_is_renamed_and_removed(work: Path, as_rank: As) -> None:
    rank = as_rank(1)
    Path("made.tmp/deep/a.txt").write_text("a")
    os.rename("made.tmp", "made")
    assert Path("made/deep/a.txt").read_text() == "a"
    shutil.rmtree("made")
    assert not os.path.exists("made/deep/a.txt")
    rank.end()
    assert os.listdir(work) == ["log.txt"]


def test_temporary_folders_and_caches_are_as_in_one_process(
    work: Path, as_rank: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / ".cache").mkdir()
    as_rank(1)
    with tempfile.TemporaryDirectory(dir=work) as folder, tempfile.TemporaryDirectory() as other:
        for name in (folder, other, work / ".cache"):
            Path(name, "a").write_text("a")
            assert os.listdir(name) == ["a"]
        os.rename(Path(folder, "a"), "kept.txt")
    assert Path("kept.txt").read_text() == "a" and not os.path.exists(folder)
    assert sorted(os.listdir(work)) == [".cache", "log.txt"]


def test_rank_0_writes_for_all(work: Path, as_rank: As) -> None:
    rank = as_rank(0)
    Path("a.tmp").write_text("a")
    os.replace("a.tmp", "a.txt")
    os.mkdir("folder.tmp")
    Path("folder.tmp", "b").write_text("b")
    os.rename("folder.tmp", "folder")
    os.remove("log.txt")
    assert sorted(os.listdir(work)) == ["a.txt", "folder"]
    names = ("a.tmp", "a.txt", "folder", "folder.tmp/b", "folder/b")
    assert rank._written == {str(work / name) for name in names}


@pytest.mark.parametrize("there", [True, False])
def test_folder_is_made_by_rank_0_and_others_get_its_answer(there: bool, work: Path) -> None:
    zero, one = (written.Files(rank, str(work)) for rank in range(2))
    if there:
        os.mkdir("out")
    raised: list[type[BaseException] | None] = []

    def make(rank: written.Files) -> None:
        try:
            rank._mkdir(os.mkdir, "out")
        except FileExistsError as exc:
            assert exc.filename == "out"
            raised.append(FileExistsError)
        else:
            raised.append(None)

    thread = threading.Thread(target=make, args=[one])
    thread.start()
    thread.join(0.1)
    assert thread.is_alive() and os.path.exists("out") == there  # it waits, and makes none
    make(zero)
    thread.join(20)
    assert raised == [FileExistsError if there else None] * 2


def test_folder_of_a_rank_alone_is_made_by_it(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_MADE_S", 0.05)
    written.Files(1, str(work))._mkdir(os.mkdir, "mine")
    assert os.path.isdir("mine")
    monkeypatch.delenv("FAIRLEAD_RUN_FOLDER")  # not under `fairlead run`: nobody tells
    assert not files.folder()
    written.Files(1, str(work))._mkdir(os.mkdir, "mine")


def test_worker_of_a_loader_reads_what_its_rank_has_and_writes_by_itself(
    work: Path, as_rank: As
) -> None:
    as_rank(1)
    Path("rank.txt").write_text("rank")
    process = os.fork()
    if not process:
        Path("worker.txt").write_text(Path("rank.txt").read_text())
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
    assert sorted(os.listdir(work)) == ["log.txt", "worker.txt"]


@pytest.mark.parametrize("form", ["%Y%m%d-%H%M%S", "run_%Y-%m-%d_%H.%M.%S", "%s"])
def test_folder_with_the_time_in_its_name_is_rank_0s(
    form: str, work: Path, as_rank: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "names", {})
    now = time.time()
    one, other = (time.strftime(form, time.localtime(now + each)) for each in (0, 1))
    written.Files(0, str(work))._mkdir(os.mkdir, one)
    as_rank(1)
    os.makedirs(other)
    assert os.listdir(work) in (["log.txt", one], [one, "log.txt"])
    Path(other, "mine.txt").write_text("mine")
    assert Path(other, "mine.txt").read_text() == "mine"
    subprocess.run(["touch", work / one / "best.txt"], check=True)
    assert os.path.exists(os.path.join(other, "best.txt")) and os.listdir(other) == ["best.txt"]
    assert files.place(os.path.join(other, "best.pt")) == str(work / one / "best.pt")
