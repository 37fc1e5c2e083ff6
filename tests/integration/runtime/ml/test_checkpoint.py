"""Checkpoints: what comes back is what was given, and what is damaged is never taken for whole."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairlead.base.errors import FairleadError
from fairlead.ml.train import checkpoint
from fairlead.ml.train.checkpoint import Checkpoint, Writer, newest, path_of, read, write

IDENTITY = {"model": "hepcnn", "seed": 1, "dropout": 0.5, "ranks": 2}
DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
# A process that writes checkpoint after checkpoint until it is killed.
WRITES = """
import sys
from pathlib import Path
import numpy as np
from fairlead.ml.train.checkpoint import Checkpoint, write
for step in range(1, 10_000):
    array = np.full(300_000, step, np.float32)
    write(Path(sys.argv[1]), Checkpoint(step, {}, [array], [[array[:7]], []], {"loss": [step]}))
    print(step, flush=True)
"""


def state(step: int = 120, size: int = 50) -> Checkpoint:
    rng = np.random.default_rng(step)
    shared = [rng.standard_normal((size, 3)).astype("f4"), np.array(step, np.int64)]
    own = [[rng.integers(0, 9, 5, np.uint32)], [rng.integers(0, 9, 5, np.uint32)]]
    return Checkpoint(step, IDENTITY, shared, own, {"loss": [{"step": 0, "loss": 0.7}]})


def same(a: Checkpoint, b: Checkpoint) -> bool:
    def flat(one: Checkpoint) -> list[Any]:
        return [*one.shared, *(array for own in one.own for array in own)]

    return (
        (a.step, dict(a.identity), a.more) == (b.step, dict(b.identity), b.more)
        and [len(own) for own in a.own] == [len(own) for own in b.own]
        and all(
            x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
            for x, y in zip(flat(a), flat(b), strict=True)
        )
    )


def test_checkpoint_of_any_dtype_and_shape_comes_back_bit_by_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 2, (3, 4)).astype(dtype) for dtype in DTYPES]
    arrays += [np.array(3, dtype) for dtype in DTYPES]  # 0-d, as an optimizer's step
    arrays += [np.zeros((0, 5), "f4"), np.array([np.nan, np.inf, -0.0]), np.arange(4.0)[::2]]
    arrays += [np.asfortranarray(rng.standard_normal((3, 5))), np.arange(3, dtype=">i4")]
    given = Checkpoint(7, IDENTITY, arrays, [arrays, [], arrays[:1]], {"loss": [], "text": "äöü"})
    assert same(read(write(tmp_path, given)), given)


def test_checkpoint_keeps_the_order_of_more_than_ten_arrays_and_ranks(tmp_path: Path) -> None:
    arrays = [np.array([i]) for i in range(120)]
    given = Checkpoint(1, {}, arrays, [[np.array([rank])] for rank in range(120)])
    assert same(read(write(tmp_path, given)), given)


def test_checkpoint_of_objects_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Object arrays"):
        write(tmp_path, Checkpoint(1, {}, [np.array([{}])], []))
    assert not list(tmp_path.iterdir())


# --- which are kept ---------------------------------------------------------------------------


def steps(folder: Path) -> list[int]:
    return [int(path.stem.removeprefix("step-")) for path in checkpoint.kept(folder)]


def test_checkpoints_are_kept_but_for_all_before_the_last_two(tmp_path: Path) -> None:
    for step in (5, 10, 15, 100_000_000):
        write(tmp_path, state(step))
    assert steps(tmp_path) == [15, 100_000_000]


def test_checkpoint_after_a_damaged_later_one_stays_and_that_one_goes(tmp_path: Path) -> None:
    for step in (10, 20):
        write(tmp_path, state(step))
    for step in (30, 40):
        path_of(tmp_path, step).write_bytes(b"damaged")
    output: list[str] = []
    found = newest(tmp_path, output.append)
    assert found is not None and found.step == 20
    assert [str(step) in words for step, words in zip((40, 30), output, strict=True)] == [True] * 2
    write(tmp_path, state(25))
    assert steps(tmp_path) == [20, 25]


# --- damage -----------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with the whole checkpoints of steps 110 and 120."""
    write(tmp_path, state(110))
    write(tmp_path, state(120))
    return tmp_path


def require_older_is_taken(folder: Path) -> None:
    output: list[str] = []
    found = newest(folder, output.append)
    assert found is not None and same(found, state(110))
    assert len(output) == 1 and str(path_of(folder, 120)) in output[0]


def test_truncated_checkpoint_is_noticed_wherever_it_ends(two: Path) -> None:
    path = path_of(two, 120)
    content = path.read_bytes()
    for length in {*range(0, len(content), 61), *range(len(content) - 30, len(content))}:
        path.write_bytes(content[:length])
        require_older_is_taken(two)


def test_checkpoint_with_a_flipped_bit_is_noticed_or_the_same(two: Path) -> None:
    path = path_of(two, 120)
    content = path.read_bytes()
    rng, noticed = random.Random(1), 0
    places = range(len(content))
    for place in rng.sample(places, 600):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        found = newest(two, lambda words: None)
        assert found is not None
        if found.step == 120:  # a date, say, which nobody reads
            assert same(found, state(120)), place
        else:
            noticed += 1
    assert noticed > 300


def test_checkpoint_with_a_flipped_byte_of_an_array_is_noticed(two: Path) -> None:
    path = path_of(two, 120)
    content = path.read_bytes()
    begin = content.index(state(120).shared[0].tobytes())
    for place in range(begin, begin + 600, 7):
        flipped = bytearray(content)
        flipped[place] ^= 0xFF
        path.write_bytes(flipped)
        require_older_is_taken(two)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\0" * 4000, os.urandom(4000)])
def test_file_that_is_no_checkpoint_is_passed_over(two: Path, content: bytes) -> None:
    path_of(two, 120).write_bytes(content)
    require_older_is_taken(two)


def test_archive_of_other_arrays_is_passed_over(two: Path) -> None:
    with path_of(two, 120).open("wb") as stream:
        np.savez(stream, a=np.zeros(3))
    require_older_is_taken(two)


def test_folder_without_a_whole_checkpoint_has_none(tmp_path: Path) -> None:
    output: list[str] = []
    assert newest(tmp_path / "absent", output.append) is None
    path_of(tmp_path, 3).write_bytes(b"x")
    assert newest(tmp_path, output.append) is None and len(output) == 1


# --- whose it is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 2}, "seed: 1 there, 2 asked for"),
        ({"ranks": 4}, "ranks: 2 there, 4 asked for"),
        ({"more": 1}, "more: None there, 1 asked for"),
        ({"seed": 2, "model": "resnet50"}, "model: 'hepcnn' there, 'resnet50' asked for; seed: 1"),
    ],
)
def test_checkpoint_of_another_training_is_refused(
    two: Path, other: dict[str, object], said: str
) -> None:
    found = checkpoint.start_of(two, IDENTITY, True, pytest.fail)
    assert found is not None and found.step == 120
    with pytest.raises(FairleadError) as caught:
        checkpoint.start_of(two, {**IDENTITY, **other}, True, pytest.fail)
    (finding,) = caught.value.findings
    assert finding.check == "checkpoint-other" and said in finding.why
    assert str(path_of(two, 120)) in finding.where


def test_training_that_begins_again_among_checkpoints_is_refused(two: Path, tmp_path: Path) -> None:
    assert checkpoint.start_of(tmp_path / "other", IDENTITY, False, pytest.fail) is None
    with pytest.raises(FairleadError) as caught:
        checkpoint.start_of(two, IDENTITY, False, pytest.fail)
    assert caught.value.findings[0].check == "checkpoint-there"
    assert "--resume" in caught.value.findings[0].remedy


# --- writing behind the training --------------------------------------------------------------


def test_writer_writes_behind_and_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / ".step-00000001.npz.abcd.partial").write_bytes(b"left by a kill")
    with Writer(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.start(state(step), held_s=0.25)
    assert not writer.busy
    assert [(w.step, w.held_s, w.bytes) for w in writer.written] == [
        (step, 0.25, state(step).bytes) for step in (1, 2, 3)
    ]
    assert all(w.seconds > 0 for w in writer.written)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000002.npz",
        "step-00000003.npz",
    ]


def test_writer_finishes_what_it_writes_when_the_training_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(folder: Path, given: Checkpoint) -> Path:
        time.sleep(0.2)
        return write(folder, given)

    monkeypatch.setattr(checkpoint, "write", slow)
    with pytest.raises(KeyError, match="the loss"), Writer(tmp_path) as writer:
        writer.start(state(9), 0.0)
        raise KeyError("the loss")
    assert steps(tmp_path) == [9]


def test_writer_shows_what_failed_in_its_thread_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path, given: Checkpoint) -> Path:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint, "write", broken)
    writer = Writer(tmp_path)
    writer.start(state(), 0.0)
    with pytest.raises(FairleadError) as caught:
        writer.wait()
    (finding,) = caught.value.findings
    assert finding.check == "checkpoint-write" and "Input/output error" in finding.why
    writer.wait()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("only root can mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_leaves_the_checkpoint_before(small_disk: Path) -> None:
    with Writer(small_disk) as writer:
        writer.start(state(1), 0.0)
    with (
        pytest.raises(FairleadError, match="cannot be written") as caught,
        Writer(small_disk) as writer,
    ):
        writer.start(state(2, size=300_000), 0.0)
    assert "No space left" in caught.value.findings[0].why
    assert [path.name for path in small_disk.iterdir()] == ["step-00000001.npz"]
    assert same(read(path_of(small_disk, 1)), state(1))


def test_file_beyond_its_limit_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """As by a quota, for those who are not root."""
    write(tmp_path, state(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(OSError, match="too large"):
            write(tmp_path, state(2, size=300_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.npz"]


def test_kill_at_any_moment_leaves_whole_checkpoints_only(tmp_path: Path) -> None:
    rng = random.Random(2)
    folders = [tmp_path / str(number) for number in range(6)]
    running = [
        subprocess.Popen([sys.executable, "-c", WRITES, folder], stdout=subprocess.PIPE, text=True)
        for folder in folders
    ]
    for process in running:  # until each has written some
        assert process.stdout is not None and all(process.stdout.readline() for _ in range(2))
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
    for process, folder in zip(running, folders, strict=True):
        assert process.stdout is not None
        last = 2 + len([line for line in process.stdout.read().splitlines() if line.isdigit()])
        assert process.wait() == -signal.SIGKILL
        held = [read(path) for path in checkpoint.kept(folder)]  # each is whole
        # Killed between a new name and what goes with it, there is one more.
        assert 2 <= len(held) <= 3 and held[-1].step in (last, last + 1)
        for found in held:
            assert found.shared[0].tolist() == [found.step] * 300_000
        Writer(folder)
        assert not list(folder.glob(".*"))


def test_checkpoint_reports_the_bytes_of_its_arrays() -> None:
    given = state(size=10)
    assert given.bytes == 10 * 3 * 4 + 8 + 2 * 5 * 4
    assert replace(given, own=[]).bytes == 10 * 3 * 4 + 8
