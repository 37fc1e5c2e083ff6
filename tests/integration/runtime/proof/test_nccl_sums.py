"""Known sums over NCCL: the ranks' program as it is, over a stand-in for NCCL and for the GPU's driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from tests.support.compiled import compiled

from fairlead.base import nccl_sums

STANDIN = Path(__file__).parents[3] / "support/nccl_standin.c"


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("standin")
    compiled(folder / "libnccl.so.2", STANDIN.read_text())
    compiled(folder / "libcuda.so.1", STANDIN.read_text())
    return folder


def proved(
    standin: Path, folder: Path, ranks: int = 2, words: tuple[str, ...] = (), **environ: str
) -> list[subprocess.CompletedProcess[str]]:
    """The ends of all ranks."""
    common = {
        **os.environ, "LD_LIBRARY_PATH": str(standin), "TEST_FOLDER": str(folder),
        "WORLD_SIZE": str(ranks), **environ,
    }  # fmt: skip
    argv = [
        sys.executable, "-m", "fairlead.prove", "--nccl-sums", "--library", "libnccl.so.2", "--meet",
        str(folder / "meet"), "--most", str(1 << 20), "--repeat", "3", *words,
    ]  # fmt: skip
    started = [
        subprocess.Popen(
            argv,
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    return [
        subprocess.CompletedProcess(argv, process.wait(60), *process.communicate())
        for process in started
    ]


def test_right_sums_are_one_line_of_rank_0(standin: Path, tmp_path: Path) -> None:
    first, second = proved(standin, tmp_path)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout.startswith(
        "fairlead: NCCL 2.27.5 on 2 ranks, 1 node: 12 all-reduces of 8 KiB to 512 KiB, 0 wrong values; "
    )
    assert second.stdout == ""
    assert not list(tmp_path.glob("meet*"))


def test_wrong_value_is_counted_and_ends_with_122(standin: Path, tmp_path: Path) -> None:
    first, second = proved(standin, tmp_path, TEST_WRONG="5")
    assert (first.returncode, second.returncode) == (122, 122)
    assert "2 wrong values" in first.stdout
    for rank in (0, 1):
        assert f"rank {rank} on " in first.stdout
    assert "1 of 24576 values are wrong at 32 KiB" in first.stdout


def test_rate_below_the_expected_ends_with_125(standin: Path, tmp_path: Path) -> None:
    first, _ = proved(standin, tmp_path, words=("--at-least", "1e9", "--json"))
    assert first.returncode == 125
    document = json.loads(first.stdout)
    assert document["holds"] and 0 < document["gb_s"] < 1e9
    assert [row["bytes"] for row in document["ranks"][1]["rows"]] == [
        1 << 13,
        1 << 15,
        1 << 17,
        1 << 19,
    ]


def test_one_rank_alone_proves_the_sums_of_one(standin: Path, tmp_path: Path) -> None:
    [only] = proved(standin, tmp_path, ranks=1)
    assert only.returncode == 0 and "on 1 rank, " in only.stdout


@pytest.mark.parametrize(
    ("words", "environ", "why"),
    [
        (("--library", "libnot-there.so.2"), {}, "libnot-there.so.2"),
        ((), {"TEST_GPUS": "0"}, "no GPU"),
        ((), {"TEST_FOLDER": "/nowhere/at/all"}, "internal error"),
    ],
)
def test_what_is_missing_is_said(standin: Path, tmp_path: Path, words, environ, why: str) -> None:
    [only] = proved(standin, tmp_path, 1, words, **environ)
    assert only.returncode == 122 and why in only.stderr and "Traceback" not in only.stderr


def test_file_of_another_run_is_not_taken(standin: Path, tmp_path: Path) -> None:
    (tmp_path / "meet").write_bytes(b"old")
    [only] = proved(standin, tmp_path, ranks=1)
    assert only.returncode == 122 and "left from another run" in only.stderr


def test_unknown_word_is_usage(standin: Path, tmp_path: Path) -> None:
    [only] = proved(standin, tmp_path, 1, ("--loud",))
    assert only.returncode == 2 and "--nccl-sums" in only.stderr


def test_sums_are_those_of_the_patterns_and_wrong_ones_are_counted() -> None:
    numbers = 1000
    total = array("I", bytes(4 * numbers))
    for rank in range(5):
        for i, value in enumerate(array("I", nccl_sums.pattern(rank, numbers))):
            total[i] += value
    assert total.tobytes() == nccl_sums.sums(5, numbers)
    shifted = nccl_sums.sums(5, numbers)[4:] + bytes(4)
    assert nccl_sums.wrong(shifted, nccl_sums.sums(5, numbers)) == numbers
    # More ranks than 32 bits hold the sums of: both wrap alike.
    assert len(nccl_sums.sums(100_000, 10)) == 40


def test_libraries_of_python_packages_come_first(tmp_path: Path) -> None:
    wheel = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    assert nccl_sums.libraries(path=[str(tmp_path)]) == [str(wheel), "libnccl.so.2", "librccl.so.1"]
    assert nccl_sums.libraries("/own.so", [str(tmp_path)]) == ["/own.so"]


def test_last_error_of_nccl_is_said_in_place_of_the_name_of_its_code(
    standin: Path, tmp_path: Path
) -> None:
    for done in proved(standin, tmp_path, TEST_SHARED="1"):
        assert done.returncode == 122
        assert "ncclCommInitRank: Duplicate GPU detected : rank 0 and rank 1" in done.stderr
