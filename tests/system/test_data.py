"""Files of samples between fairlead and TensorFlow, and ranks that look through them together, in the image."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts

PROGRAMS = hosts.PROGRAMS


def found(folder: Path, program: str, ranks: int = 1) -> Any:
    done = hosts.fairlead(
        "run", "-q", "-n", ranks, "-B", PROGRAMS, "-B", folder, hosts.image("tensorflow"), "--",
        "python3", PROGRAMS / program, folder, limit_s=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    return json.loads(line.removeprefix("FOUND "))


def generated(folder: Path, *words: str) -> None:
    """Written in the image, by the command that the guide shows."""
    done = hosts.fairlead(
        "run", "-q", "-n", "1", "-B", folder, hosts.image("tensorflow"), "--",
        "python3", "-m", "fairlead.ml.data.generate", "--out", folder / words[0], "--set", *words,
        "--train", "20", "--val", "4", "--per-shard", "8", "--size", "16", limit_s=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("data")
    generated(folder, "cosmo", "--format", "tfrecord-gzip")
    generated(folder, "hep", "--format", "tfrecord")
    output = found(folder, "data_tensorflow.py")
    assert isinstance(output, dict)
    return output


@pytest.mark.full
def test_tensorflow_reads_what_was_generated(compared: dict[str, Any]) -> None:
    assert (compared["cosmo"], compared["hep"]) == (20, 20)


def test_records_of_tensorflow_are_read_in_each_compression(compared: dict[str, Any]) -> None:
    assert compared["theirs"] == {"": True, "GZIP": True, "ZLIB": True, "same bytes": True}


def test_messages_are_the_same_in_both_directions(compared: dict[str, Any]) -> None:
    assert compared["messages"] == {"bytes": True, "floats": True, "ints": True}


def test_photographs_are_cut_as_the_published_code_cuts_them(compared: dict[str, Any]) -> None:
    output = compared["photographs"]
    assert (output["decoder"], output["labels"]) == ("tensorflow", [1, 1000])
    assert output["largest difference"] < 0.01


def test_ranks_skip_the_same_damaged_file(tmp_path: Path) -> None:
    generated(tmp_path, "gratings", "--format", "tfrecord")
    path = tmp_path / "gratings" / "gratings_train_00001.tfrecord"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # only its checksum tells
    path.write_bytes(content)
    output = found(tmp_path / "gratings", "data_ranks.py", ranks=2)
    assert [one["damaged"] for one in output] == [[path.name]] * 2
    assert [one["total"] for one in output] == [12, 12]
    assert sum(one["rows"] for one in output) == 12 and {one["steps"] for one in output} == {1}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize(("megabytes", "why"), [(60, "GB are needed"), (4, "No space left")])
def test_disk_too_small_for_the_samples_is_reported_before_it_is_full(
    megabytes: int, why: str, tmp_path: Path
) -> None:
    """The first file of 500 events takes 24 MB."""
    room, events = tmp_path / "room", tmp_path / "events"
    room.mkdir()
    mount = f'mount -t tmpfs -o size={megabytes}m tmpfs "$0" && exec "$@"'
    words = [
        "-m",
        "fairlead.ml.data.generate",
        "--format",
        "tfrecord",
        "--train",
        "4000",
        "--val",
        "10",
    ]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, room, sys.executable, *words, "--out", room, "--events-file", events],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert not done.stderr
    output = [json.loads(line) for line in events.read_text().splitlines()]
    assert output[-1]["event"] == "error" and output[-1]["check"] == "data-no-room"
    assert why in output[-1]["why"] and "XDG_CACHE_HOME" in output[-1]["remedy"]
    assert sum(event["event"] == "shard" for event in output) == (1 if megabytes == 60 else 0)
