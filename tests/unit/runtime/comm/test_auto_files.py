"""Files that rank 0 of `--auto` writes and all ranks load."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairlead import comm
from fairlead.base.errors import FairleadError
from fairlead.comm.auto import files

As = Callable[[int], None]


@pytest.fixture
def as_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> As:
    """Continues as another rank of the same run."""
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("FAIRLEAD_RUN_FOLDER", str(tmp_path / "run"))
    counts: dict[int, tuple[Counter[str], Counter[str]]] = {}

    def become(rank: int) -> None:
        saves, loads = counts.setdefault(rank, (Counter(), Counter()))
        monkeypatch.setattr(files, "_saves", saves)
        monkeypatch.setattr(files, "_loads", loads)
        monkeypatch.setattr(comm, "rank", lambda: rank)
        monkeypatch.setattr(comm, "init", lambda: SimpleNamespace(here=True))

    return become


def writing(text: str) -> Callable[[object], object]:
    return lambda path: Path(str(path)).write_text(text)


def waits(path: Path, until: Callable[[], object]) -> None:
    """A load that has not returned before ``until``, and has after it."""
    done = threading.Event()
    thread = threading.Thread(target=lambda: (files.wait_for(path), done.set()))
    thread.start()
    assert not done.wait(0.1)
    until()
    thread.join(20)
    assert done.is_set()


def test_file_appears_whole_under_its_own_name(tmp_path: Path, as_rank: As) -> None:
    as_rank(0)
    path = tmp_path / "best.pt"
    path.write_text("old")
    seen = []

    def write(to: object) -> None:
        seen.append(Path(str(to)).name)
        Path(str(to)).write_text("half")
        assert path.read_text() == "old"
        Path(str(to)).write_text("new")

    files.save(path, write)
    assert path.read_text() == "new" and seen == ["best.pt"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["best.pt", "run"]

    def fails(to: object) -> None:
        Path(str(to)).write_text("half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        files.save(path, fails)
    assert path.read_text() == "new" and len(list(tmp_path.iterdir())) == 2
    link = tmp_path / "link.pt"
    link.symlink_to(path)
    files.save(link, writing("newer"))
    assert link.is_symlink() and path.read_text() == "newer"


def test_only_rank_0_writes_and_others_wait_until_it_has(tmp_path: Path, as_rank: As) -> None:
    path = tmp_path / "best.pt"
    as_rank(0)
    files.save(path, writing("first"))
    as_rank(1)
    for text in ("first", "second"):
        files.save(path, writing(text + " of rank 1"))
    assert path.read_text() == "first"
    as_rank(0)
    files.save(path, writing("second"))
    as_rank(1)
    files.wait_for(path)
    assert path.read_text() == "second" and files._noted(files.place(path)) == (2, 0)


@pytest.mark.parametrize("released_by", ["save", "load", "end"])
def test_load_waits_for_rank_0_and_goes_on(released_by: str, tmp_path: Path, as_rank: As) -> None:
    path = tmp_path / "best.pt"
    as_rank(1)
    files.save(path, writing("never"))
    where = files.place(path)

    def note(saves: int, loads: int, of: str = where) -> None:
        Path(files.note_of(of)).write_text(f"{saves} {loads}")

    notes = {"save": (1, 0), "load": (0, 1), "end": (1, 0, "end")}
    waits(path, lambda: note(*notes[released_by]))


def test_loads_of_rank_0_and_its_end_are_noted(tmp_path: Path, as_rank: As) -> None:
    as_rank(0)
    files.wait_for(tmp_path / "earlier.pt")
    assert files._noted(files.place(tmp_path / "earlier.pt")) == (0, 1)
    files.end()
    assert files._noted("end") == (1, 0)


def test_path_that_this_rank_was_not_to_save_is_loaded_at_once(tmp_path: Path, as_rank: As) -> None:
    as_rank(1)
    begun = time.monotonic()
    files.load(lambda f: None, tmp_path / "pretrained.pt")
    files.load(lambda f: None, f=tmp_path / "pretrained.pt")
    files.load(lambda f: None, object())
    assert time.monotonic() - begun < 60


def test_rank_0_that_never_saves_is_named_after_a_while(
    tmp_path: Path, as_rank: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_COMM_TIMEOUT_S", "0.05")
    as_rank(1)
    path = tmp_path / "best_0.31.pt"
    files.save(path, writing("never"))
    with pytest.raises(FairleadError) as raised:
        files.wait_for(path)
    (finding,) = raised.value.findings
    assert finding.check == "auto-not-saved" and "best_0.31.pt" in finding.what


def test_what_is_no_plain_file_is_written_in_place(tmp_path: Path, as_rank: As) -> None:
    as_rank(0)
    given = []
    (tmp_path / "folder.pt").mkdir()
    for path in (tmp_path / "folder.pt", tmp_path / "saved_model", tmp_path / "none" / "x.pt"):
        files.save(path, given.append)
        assert given.pop() is path
    files.save(tmp_path / "x.keras", given.append, whole=False)
    assert given == [tmp_path / "x.keras"]
