"""Launching: the line, and what is made of ranks that end in any way.

The launcher here is a small script that starts N copies, so that ranks can be any program; real
launchers are in tests/system.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.living import alive
from tests.support.recorded import planned

from fairlead.base.errors import ExitCode, FairleadError, Finding
from fairlead.engines.apptainer import ENGINE as APPTAINER
from fairlead.engines.model import Call
from fairlead.launch import launch, run_folder
from fairlead.launch.launch import CommandLine, LaunchResult
from fairlead.launch.nodes import Lost
from fairlead.swap.model import Bind

LAUNCHER = """#!/bin/sh
# -n N PROGRAM...: starts N copies; its own code is an arithmetic mixture, as hydra's is
n=$2; shift 2; pids=; all=0
for rank in $(seq 0 $((n-1))); do PMI_RANK=$rank "$@" & pids="$pids $!"; done
for pid in $pids; do wait $pid; code=$?; all=$((all | code)); done
exit $all
"""
ENGINE = """#!/bin/sh
# ... exec ... IMAGE PROGRAM...: no container at all
while [ "$1" != /images/x.sif ]; do shift; done; shift; exec "$@"
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., LaunchResult]:
    """Launches a shell script as each of so many ranks, by a plan's own command line."""
    for name, text in (("mpiexec", LAUNCHER), ("engine", ENGINE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    plan = planned()
    plan = replace(
        plan,
        launcher=replace(plan.launcher, path=str(tmp_path / "mpiexec")),
        engine=replace(plan.engine, path=str(tmp_path / "engine")),
        binds=(),
        env={},
    )

    def go(script: str, ranks: int = 2, *, record: bool = True, **options: object) -> LaunchResult:
        folder = run_folder.new_run_folder(tmp_path)
        noted = folder if record else None
        line = launch.command_line(plan, ("sh", "-c", script), ranks, record=noted)
        return launch.launch(line, folder, **options)  # type: ignore[arg-type]

    return go


def codes(result: LaunchResult) -> dict[str, int]:
    return {r.rank: r.code for r in result.ranks}


def test_launch_all_well_is_zero(run) -> None:
    result = run("exit 0", 3)
    assert (result.code, result.launcher_code, result.started) == (0, 0, 3)
    assert codes(result) == {"0": 0, "1": 0, "2": 0}
    assert launch.explain_exit(result) is None


@pytest.mark.parametrize(("first", "code"), [(0, 3), (1, 5)])
def test_launch_code_is_the_first_failed_ranks_not_the_launchers(
    run, first: int, code: int
) -> None:
    result = run(f"[ $PMI_RANK = {first} ] || sleep 0.4; exit $((3 + 2 * PMI_RANK))")
    assert result.launcher_code == 7
    assert result.code == code
    assert codes(result) == {"0": 3, "1": 5}
    finding = launch.explain_exit(result)
    assert finding and finding.what == f"rank {first} failed first: exit code {code}"
    assert f"rank {1 - first}: exit code" in finding.why


def test_launch_rank_killed_is_128_and_its_signal(run) -> None:
    result = run("[ $PMI_RANK = 1 ] && kill -9 $$; exit 0")
    assert result.code == 137 and codes(result) == {"0": 0, "1": 137}
    finding = launch.explain_exit(result)
    assert finding and "killed by SIGKILL" in finding.what and "oom" in finding.remedy


def test_launch_rank_killed_and_the_others_waiting_are_ended(run) -> None:
    with pytest.raises(FairleadError) as caught:
        run(
            "[ $PMI_RANK = 1 ] && kill -11 $$; trap '' TERM; sleep 600",
            limits=launch.Limits(after_death_s=0.5),
        )
    assert caught.value.code is ExitCode.WATCHDOG
    [finding] = caught.value.findings
    assert finding.check == "rank-died" and "rank 1, killed by SIGSEGV" in finding.where


@pytest.mark.parametrize("within", [True, False])
def test_launch_rank_failed_and_the_others_waiting_are_ended_only_within_mpi(
    run, tmp_path: Path, within: bool
) -> None:
    def note() -> None:
        # As the witness does: of MPI_Init with text, of MPI_Finalize without.
        for folder in (tmp_path / "runs").iterdir():
            (folder / "started.1").write_text("node 1\n" if within else "")

    script = f"[ $PMI_RANK = 1 ] && exit 3; sleep {600 if within else 1}"
    if not within:
        assert (
            run(script, limits=launch.Limits(after_death_s=0.2), watch=lambda signals: note()).code
            == 3
        )
        return
    with pytest.raises(FairleadError) as caught:
        run(script, limits=launch.Limits(after_death_s=0.5), watch=lambda signals: note())
    assert caught.value.code is ExitCode.WATCHDOG
    [finding] = caught.value.findings
    assert finding.check == "rank-died" and finding.where == "rank 1, exit code 3"


def test_launch_whose_launcher_goes_on_after_its_ranks_is_ended(run, tmp_path: Path) -> None:
    launcher = tmp_path / "mpiexec"
    launcher.write_text(launcher.read_text().replace("exit $all", "sleep 600"))
    findings: list[Finding] = []
    limits = launch.Limits(after_all_s=0.5)
    with (tmp_path / "out").open("wb") as out:
        streams = launch.Streams(out, subprocess.STDOUT)
        result = run("exit 0", limits=limits, on_finding=findings.append, streams=streams)
        failed = run("exit $((3 * PMI_RANK))", limits=limits, streams=streams)
    assert result.code == 0 and result.launcher_code != 0 and failed.code == 3
    [finding] = findings
    assert (
        "mpiexec" in finding.where and "the last of 2 ranks had ended 0.5 s before" in finding.why
    )


def test_launcher_whose_output_nobody_reads_is_waited_for(run, tmp_path: Path) -> None:
    """As with a pager: the ranks have ended, and the launcher still has their output."""
    launcher = tmp_path / "mpiexec"
    launcher.write_text(
        launcher.read_text().replace("exit $all", "head -c 200000 /dev/zero; exit $all")
    )
    readable, writable = os.pipe()
    got: list[int] = []

    def read() -> None:
        time.sleep(2)
        while part := os.read(readable, 65536):
            got.append(len(part))

    thread = threading.Thread(target=read)
    thread.start()
    streams = launch.Streams(writable, subprocess.DEVNULL)
    result = run("exit 0", limits=launch.Limits(after_all_s=0.5), streams=streams)
    os.close(writable)
    thread.join()
    os.close(readable)
    assert result.launcher_code == 0 and sum(got) == 200_000


def blamed(run, tmp_path: Path, script: str, notes: dict[str, str]) -> LaunchResult:
    """A launch, while which ranks write down notes."""

    def note() -> None:
        (folder,) = (tmp_path / "runs").iterdir()
        for name, text in notes.items():
            (folder / name).write_text(text)

    return run(script, 3, watch=lambda signals: note())


@pytest.mark.parametrize(
    ("notes", "what", "where"),
    [
        # Rank 0 ends first, for rank 2, which only then is killed.
        ({"blames.0": "2", "started.2": "n7 41\n"}, "rank 2 made others fail: it ended: killed by SIGKILL", "rank 2 on n7"),
        ({"blames.0": "1", "blames.1": "2"}, "rank 2 made others fail: it ended: killed by SIGKILL", "rank 2"),
        ({"blames.0": "1", "left.1": "n7 41\n"}, "rank 1 made others fail: it ended: exit code 1", "rank 1 on n7"),
        ({"blames.0": "1", "blames.1": "0"}, "rank 0 failed first: exit code 1", "rank 0"),
        ({"blames.0": "0"}, "rank 0 failed first: exit code 1", "rank 0"),
        ({}, "rank 0 failed first: exit code 1", "rank 0"),
    ],
)  # fmt: skip
def test_closing_error_names_the_rank_that_others_failed_for(
    run, tmp_path: Path, notes, what: str, where: str
) -> None:
    script = "sleep 0.$((5 + PMI_RANK)); [ $PMI_RANK = 2 ] && kill -9 $$; exit 1"
    result = blamed(run, tmp_path, script, notes)
    finding = launch.explain_exit(result)
    assert finding and finding.check == "rank-failed" and result.code == 1
    assert (finding.what, finding.where) == (what, where)


def test_rank_that_the_kernel_refuses_memory_is_explained(run) -> None:
    finding = launch.explain_exit(run("kill -BUS $$", 1))
    assert finding and "killed by SIGBUS" in finding.what and "/dev/shm" in finding.remedy


def test_launch_on_a_host_that_is_lost_names_it_before_its_victims(run) -> None:
    result = replace(run("exit 3"), lost=(Lost("n7", "No route to host"), Lost("n8", "killed")))
    finding = launch.explain_exit(result)
    assert finding and (finding.check, finding.where) == ("node-lost", "n7")
    assert finding.why == "No route to host; n8: killed" and result.code == 3


def test_named_host_without_a_way_is_found_after_a_launch_that_failed(tmp_path: Path) -> None:
    folder = run_folder.new_run_folder(tmp_path)
    line = CommandLine(("sh", "-c", "exit 9"), {}, hosts=("no-such-host.invalid",))
    result = launch.launch(line, folder)
    assert [lost.host for lost in result.lost] == ["no-such-host.invalid"]
    assert "its name has no address" in result.lost[0].why


def test_launch_that_hangs_is_ended_by_the_watchdog(run, tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        run(
            f"trap '' TERM; echo $$ >{tmp_path}/pid.$PMI_RANK; sleep 600",
            limits=launch.Limits(wall_s=1),
        )
    assert caught.value.code is ExitCode.WATCHDOG
    assert caught.value.findings[0].check == "watchdog"
    for path in tmp_path.glob("pid.*"):
        assert not alive(int(path.read_text()))


def test_launch_ended_by_its_launcher_is_no_failed_launch(run) -> None:
    """As MPI_Abort does: the launcher kills its ranks before they can tell how they ended."""
    result = run("kill -9 $PPID; kill -9 $$", 1)
    assert result.ranks == () and result.started == 1
    assert result.code == 137
    finding = launch.explain_exit(result)
    assert finding and finding.check == "aborted" and "running: 1 rank" in finding.where


@pytest.mark.parametrize("launcher", ["exit 0", '"$@" || exit 0'])
def test_launcher_that_ends_well_without_its_ranks_is_not_believed(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """It starts none of them, or has not noticed that one was killed with its node."""
    monkeypatch.setattr(launch, "_NOTES_S", 0.3)
    (tmp_path / "mpiexec").write_text(f"#!/bin/sh\nshift 2; export PMI_RANK=0; {launcher}\n")
    result = run("kill -9 $PPID; kill -9 $$", 1)
    assert (result.code, result.launcher_code, result.unheard) == (1, 0, 1)
    finding = launch.explain_exit(result)
    assert finding and finding.what == "1 rank left no exit code, and the launcher ended with 0"


def test_launch_that_records_no_exit_codes_waits_for_none(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the probe's: what its ranks found is their record."""
    monkeypatch.setattr(launch, "_unheard", lambda line, folder: pytest.fail("waits for records"))
    assert run("exit 0", record=False).code == 0


def test_exit_code_that_is_seen_late_counts(run, tmp_path: Path) -> None:
    (tmp_path / "mpiexec").write_text(
        '#!/bin/sh\nshift 2; export PMI_RANK=0; (sleep 1; "$@") >/dev/null 2>&1 & exit 0\n'
    )
    result = run("exit 0", 1)
    assert (result.code, result.unheard) == (0, 0)


def test_launch_aborted_by_a_victim_names_the_rank_that_it_waited_for(run, tmp_path: Path) -> None:
    """MPI_Abort ends all ranks before any exit code is written."""
    notes = {"blames.0": "1", "left.1": "n7 41\n"}
    result = blamed(run, tmp_path, "sleep 0.3; kill -9 $PPID; kill -9 $$", notes)
    finding = launch.explain_exit(result)
    assert finding and finding.check == "aborted" and finding.where == "rank 1 on n7"
    assert finding.what == "rank 1 made others fail: it is in MPI_Finalize"


def test_launch_of_a_launcher_that_starts_nothing_is_reported(tmp_path: Path) -> None:
    folder = run_folder.new_run_folder(tmp_path)
    result = launch.launch(CommandLine(("sh", "-c", "exit 9"), {}), folder)
    assert (result.code, result.started) == (9, 0)
    finding = launch.explain_exit(result)
    assert finding and finding.check == "launch" and "exit code 9" in finding.what


def test_launch_of_no_launcher_is_reported(tmp_path: Path) -> None:
    folder = run_folder.new_run_folder(tmp_path)
    with pytest.raises(FairleadError) as caught:
        launch.launch(CommandLine(("/gone/mpiexec", "-n", "1"), {}), folder)
    assert caught.value.code is ExitCode.LAUNCH_FAILED
    assert caught.value.findings[0].where == "/gone/mpiexec"


def test_launch_interrupted_leaves_nothing(run, tmp_path: Path) -> None:
    def interrupt() -> None:
        while sum(bool(p.read_text().strip()) for p in tmp_path.glob("pid.*")) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(
                f"trap '' INT TERM; echo $$ >{tmp_path}/pid.$PMI_RANK; sleep 600",
                limits=launch.Limits(wall_s=60),
            )
    finally:
        signal.signal(signal.SIGINT, before)
    for path in tmp_path.glob("pid.*"):
        assert not alive(int(path.read_text()))


def test_launch_output_goes_where_it_is_sent(run, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        streams = launch.Streams(out, subprocess.STDOUT)
        run("echo to out $PMI_RANK; echo to err >&2", streams=streams)
    lines = sorted((tmp_path / "out").read_text().splitlines())
    assert lines == ["to err", "to err", "to out 0", "to out 1"]


def test_exits_ignores_what_is_no_code(tmp_path: Path) -> None:
    for name, text in (("exit.0", "3\n"), ("exit.1", ""), ("exit.2", "x"), ("other", "4")):
        (tmp_path / name).write_text(text)
    assert [(r.rank, r.code) for r in run_folder.exits(tmp_path)] == [("0", 3)]


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "exit code 0"), (3, "exit code 3"), (137, "killed by SIGKILL"), (250, "exit code 250")],
)
def test_signal_name(code: int, said: str) -> None:
    assert run_folder.signal_name(code) == said


def test_command_line_is_pure_and_pastes_as_it_runs() -> None:
    plan = planned(engine_args=("--nv",), binds=(Bind("/a b", "/c", True),))
    line = launch.command_line(
        plan, ("python3", "-c", "print('x y')"), 4, env={"A": "1,2 $B"}, workdir="/w"
    )
    assert line.argv[:4] == (plan.launcher.path, "-n", "4", plan.engine.path)
    assert line.argv[-4:] == (plan.image, "python3", "-c", "print('x y')")
    words = list(line.argv)
    assert "/a b:/c:ro" in words and words.index("--nv") < words.index(plan.image)
    assert words[words.index("--pwd") + 1] == "/w"
    assert line.environ["APPTAINERENV_A"] == "1,2 $B"
    names = {f"APPTAINERENV_{name}" for name in (*plan.env, "A")}
    assert set(line.environ) == {*names, "APPTAINER_NO_EVAL"}  # for the $
    pasted = shlex.split(line.shell())
    assert tuple(pasted[-len(line.argv) :]) == line.argv
    assert "APPTAINERENV_A=1,2 $B" in pasted


def test_command_line_environment_adds_and_takes_away() -> None:
    line = CommandLine(("x",), {"A": "1"}, ("PYTHONPATH",))
    assert line.environment({"B": "2", "PYTHONPATH": "/p", "A": "0"}) == {"A": "1", "B": "2"}
    done = subprocess.run(
        ["sh", "-c", replace(line, argv=("env",)).shell()],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": "/p"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PYTHONPATH" not in done.stdout and "A=1" in done.stdout


def test_words_leave_the_users_options_last() -> None:
    engine = planned().engine
    call = Call("/i.sif", ("true",), (("/s", "/t", False),), extra=("--writable-tmpfs",))
    argv = APPTAINER.words(engine, call).argv
    assert argv[0] == engine.path
    assert argv[argv.index("exec") :] == (
        "exec",
        "--bind",
        "/s:/t",
        "--writable-tmpfs",
        "/i.sif",
        "true",
    )


def test_words_with_a_bind_of_an_odd_folder_keep_it_one() -> None:
    call = Call("x.sif", ("true",), (("/data/a,b:c", "/in", True),))
    argv = APPTAINER.words(planned().engine, call).argv
    assert argv[argv.index("--bind") + 1] == "/data/a\\,b\\:c:/in:ro"


def test_new_run_folder_where_none_can_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(FairleadError) as caught:
        run_folder.new_run_folder(tmp_path)
    assert caught.value.code is ExitCode.LAUNCH_FAILED
    assert "XDG_CACHE_HOME" in caught.value.findings[0].remedy


def test_new_run_folder_is_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(mode=0o755)  # as it was made before
    before = os.umask(0)
    try:
        folder = run_folder.new_run_folder(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o700
    own = 0o711 if os.geteuid() == 0 else 0o700  # a rank of root's may be another user
    assert folder.stat().st_mode & 0o777 == own
    assert (folder / run_folder.OTHERS).is_dir() == (os.geteuid() == 0)


def test_reports_of_a_rank_that_is_another_user_are_taken_over_with_care(tmp_path: Path) -> None:
    others, secret = tmp_path / run_folder.OTHERS, tmp_path / "secret"
    others.mkdir()
    secret.write_text("secret")
    (tmp_path / "alive.1").write_text("n0 1")
    for name in (
        "alive.0",
        "alive.1",
        "started.0",
        "proof.9.0",
        "exit.0",
        "node.sh",
        "left.0.partial",
    ):
        (others / name).write_text("n0 9")
    (others / "said.0").symlink_to(secret)
    os.mkfifo(others / "seen.9.0")
    os.utime(others / "started.0", ns=(5, 5))
    run_folder.adopt(tmp_path)
    found = {p.name: p.read_text() for p in tmp_path.iterdir() if p.is_file() and p != secret}
    assert found == {"alive.0": "n0 9", "alive.1": "n0 1", "started.0": "n0 9", "proof.9.0": "n0 9"}
    assert (tmp_path / "started.0").stat().st_mtime_ns == 5, "of several the first counts"
    (others / "started.0").write_text("")
    run_folder.adopt(tmp_path)
    assert not (tmp_path / "started.0").read_text()


def test_new_run_folder_clears_old_ones_only(tmp_path: Path) -> None:
    for number in range(30):
        folder = tmp_path / f"runs/20200101-0000{number:02}-x"
        folder.mkdir(parents=True)
        os.utime(folder, (1, 1))
    kept = run_folder.new_run_folder(tmp_path)
    left = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert kept.name in left and len(left) == 20


def test_new_run_folder_leaves_a_killed_runs_note_to_the_next_launch(tmp_path: Path) -> None:
    """The note says which shared memory is that run's; the launch that reads it is the one that clears folders."""
    day_s = 24 * 3600.0
    for name, age_s in (
        ("a-killed", day_s),
        ("b-ended", day_s),
        ("c-killed-and-forgotten", 99 * day_s),
    ):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        if "killed" in name:
            (folder / "shm.json").write_text("{}")
        os.utime(folder, (time.time() - age_s,) * 2)
    for number in range(20):
        (tmp_path / f"runs/z{number}").mkdir()
    run_folder.new_run_folder(tmp_path)
    left = {path.name for path in (tmp_path / "runs").iterdir()}
    assert {"a-killed", "b-ended", "c-killed-and-forgotten"} & left == {"a-killed"}


def test_run_folder_of_a_run_that_goes_on_is_not_taken_for_an_old_one(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_SIGN_OF_LIFE_S", 0.0)
    aged = 'for d in "$RUNS"/*; do touch -d @1 "$d"; done; sleep 0.5'
    result = run(f"RUNS={shlex.quote(str(tmp_path / 'runs'))}; {aged}", ranks=1)
    assert result.code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.stat().st_mtime > 1e9


def test_launch_that_ranks_aborted_names_the_first(run, tmp_path: Path) -> None:
    notes = {"aborted.3": "n8 51 7\n", "started.3": "n8 51\n"}
    result = blamed(run, tmp_path, "sleep 0.3; kill -9 $PPID; kill -9 $$", notes)
    finding = launch.explain_exit(result)
    assert finding and finding.check == "aborted" and finding.where.startswith("rank 3 on n8; ")
    assert finding.what == "rank 3 aborted the job: it called MPI_Abort with code 7"
    assert "rank 3" in finding.remedy


def test_launcher_that_lacks_files_is_named_though_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = CommandLine(("mpiexec",), {}, ranks=40, open_files=200)
    (tmp_path / "exit.0").touch()
    monkeypatch.setattr(launch, "open_files", lambda: (64, 100))
    lack = launch.lack_of_files(line, tmp_path)
    assert lack and "as many files as its ranks take: 200, and the limit is 100" in lack.what
    assert "1 rank had started" in lack.why
    assert launch.lack_of_files(replace(line, ranks=1), tmp_path) is None
    monkeypatch.setattr(launch, "open_files", lambda: (64, 4096))
    assert launch.lack_of_files(line, tmp_path) is None
