"""The ranks' output: labelled or in files, complete, with the exit codes and descriptors of a plain launch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recorded import planned

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.launch import launch, ranks_output, run_folder
from fairlead.swap.model import Request

RANK = {"PMI_RANK": "3", "PATH": "/usr/bin:/bin"}
Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script as the command of rank 3."""

    def go(
        script: str, request: Request, output: str = "", **more: object
    ) -> subprocess.CompletedProcess[bytes]:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        words = launch.recorded(("sh", "-c", script), str(folder), output, "hydra", request)
        return subprocess.run(
            words, env=RANK, capture_output=True, check=False, timeout=60, **{"input": b"", **more}  # type: ignore[call-overload]
        )  # fmt: skip

    return go


LABELLED = Request(label=True)


def test_label_is_before_each_line_of_both_streams(run: Run) -> None:
    done = run("echo one; echo two; echo bad >&2; printf 'no end'", LABELLED)
    assert done.stdout == b"[3] one\n[3] two\n[3] no end"
    assert done.stderr == b"[3] bad\n"


def test_label_loses_nothing_of_what_is_no_text(run: Run) -> None:
    data = bytes(range(256)) * 300  # more than a pipe holds; with NUL, and bytes that are not UTF-8
    done = run("cat", LABELLED, input=data)
    assert done.stdout == b"[3] " + data.replace(b"\n", b"\n[3] ")


def test_label_keeps_stdin_and_descriptors_of_the_launcher(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "wire").open("w+b") as wire:
        number = wire.fileno()
        done = run(
            f"read x; echo $x; echo rank >/proc/self/fd/{number}",
            LABELLED,
            input=b"in\n",
            pass_fds=[number],
        )
        wire.seek(0)
        assert wire.read() == b"rank\n"
    assert done.stdout == b"[3] in\n"


@pytest.mark.parametrize("way", ["as it is", "labelled", "a file"])
@pytest.mark.parametrize(("end", "code"), [("exit 0", 0), ("exit 5", 5), ("kill -9 $$", 137)])
def test_exit_code_is_recorded_whatever_becomes_of_the_output(
    run: Run, tmp_path: Path, way: str, end: str, code: int
) -> None:
    output = str(tmp_path) if way == "a file" else ""
    done = run(f"echo x; {end}", Request(label=way == "labelled", output_dir=output), output)
    assert done.returncode == (-9 if code == 137 else code)
    assert [(r.rank, r.code) for r in run_folder.exits(tmp_path / "run")] == [("3", code)]
    assert len(list((tmp_path / "run").iterdir())) == 1  # no pipe stays


def test_label_without_pipes_is_an_error_and_starts_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/pipe.3.1").touch()
    done = run(f"touch {tmp_path}/started", LABELLED)
    assert done.returncode == -9 and b"--label needs sed" in done.stderr
    assert not (tmp_path / "started").exists()


def test_output_dir_has_both_streams_of_a_rank_and_the_terminal_nothing(
    run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "my logs"
    ranks_output.prepare(folder)
    done = run("echo out; echo bad >&2", Request(output_dir=str(folder)), str(folder))
    assert (done.stdout, done.stderr) == (b"", b"")
    assert ranks_output.log_of(str(folder), "3").read_text() == "out\nbad\n"
    with pytest.raises(FairleadError) as caught:
        ranks_output.prepare(folder)
    assert caught.value.code is ExitCode.USAGE
    assert caught.value.findings[0].check == "output-dir-used"


def test_output_dir_that_a_node_does_not_see_is_an_error(run: Run, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    done = run(f"touch {tmp_path}/started", Request(output_dir=gone), gone)
    assert done.returncode == -9 and f"does not see {gone}".encode() in done.stderr
    assert not (tmp_path / "started").exists()


def test_output_dir_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FairleadError) as caught:
        ranks_output.prepare(tmp_path / "file/logs")
    assert "--output-dir" in caught.value.findings[0].remedy


def test_command_line_without_a_record_has_no_shell_for_the_output() -> None:
    plan = planned()
    asked = replace(plan, request=replace(plan.request, label=True, output_dir="/logs"))
    assert launch.command_line(asked, ("x",), 2) == launch.command_line(plan, ("x",), 2)
