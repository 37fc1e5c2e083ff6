"""Data staged by real runs: in the container, on two hosts, and gone after every kind of end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.shared import own
from tests.system import hosts, slurm
from tests.system.hosts import answer, fairlead
from tests.system.netns import Host, launcher, two_hosts

from fairlead.transfer import job
from fairlead.transfer.job import Wish
from fairlead.transfer.model import PREFIX, InItem, OutItem
from fairlead.transfer.place import Place

# What is left in memory and in /tmp is compared, and the documentation's commands stage too.
pytestmark = pytest.mark.alone

PLACES = (Path("/dev/shm"), Path("/tmp"))
# Each rank writes what it has read, and then does as it is told.
WORK = """
import os, sys, time, zlib
from mpi4py import MPI
rank, stage = MPI.COMM_WORLD.rank, os.environ["FAIRLEAD_STAGE"]
os.makedirs(f"{stage}/out/deep", exist_ok=True)
with open(f"{stage}/data/large", "rb") as source, open(f"{stage}/out/deep/{rank}", "w") as out:
    out.write(str(zlib.crc32(source.read())))
MPI.COMM_WORLD.Barrier()
"""


def staged_folders() -> set[Path]:
    return {path for place in PLACES for path in own(str(place), f"{PREFIX}*")}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """A folder to stage; afterwards nothing of a run is left in memory or in /tmp."""
    before = staged_folders()
    top = tmp_path / "source"
    top.mkdir()
    (top / "large").write_bytes(os.urandom(10 << 20))
    (top / "link").symlink_to("large")
    yield top
    assert staged_folders() - before == set()


def words(source: Path, out: Path, *more: str) -> tuple[str, ...]:
    return ("--stage-in", f"{source}:data", "--stage-out", f"out:{out}", *more)


def right(source: Path, out: Path, ranks: int = 2) -> bool:
    """Whether every rank's result is there and is that of the source."""
    import zlib

    want = str(zlib.crc32((source / "large").read_bytes()))
    return [(out / "deep" / str(n)).read_text() for n in range(ranks)] == [want] * ranks


@pytest.mark.parametrize("place", ["memory", "node-local", ""])
def test_run_reads_what_was_staged_and_its_results_come_back(
    place: str, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "results"
    to = ("--stage-to", place) if place else ()
    done = fairlead(
        "run", "-n", "2", "--json", *words(source, out, *to), hosts.image(), "--",
        "python3", "-c", WORK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = answer(done)["stage"]
    assert said["place"]["path"] == ("/dev/shm" if place == "memory" else "/tmp")
    assert said["mount"] == "/opt/fairlead/stage" and said["nodes"] == 1 and said["kept"] == []
    (came,), (went,) = said["in"], said["out"]
    assert came["bytes"] == came["data"] == 10 << 20 and came["files"] == 1
    assert came["bytes_per_s"] == pytest.approx(came["data"] / came["copy_s"])
    assert re.fullmatch("[0-9a-f]{64}", came["digest"]) and went["target"] == str(out)
    assert re.search(r"staging in: 10\.5 MB in 1 file, .*/s, verified in", done.stderr)
    assert right(source, out)


@pytest.mark.parametrize("engine", ["podman", "charliecloud"])
def test_other_engines_see_the_same_folder(engine: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    words_ = ("run", "-n", "2", "--engine", engine, *words(source, out))
    line = fairlead(*words_, "--dry-run", hosts.image(), "--", "python3", "-c", WORK)
    assert line.returncode == 0, line.stderr
    done = subprocess.run(line.stdout, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert right(source, out)
    out.rename(tmp_path / "of the line")
    done = fairlead(*words_, hosts.image(), "--", "python3", "-c", WORK)
    assert done.returncode == 0, done.stderr
    assert right(source, out)


def test_explain_shows_what_is_staged_and_where(source: Path, tmp_path: Path) -> None:
    done = fairlead("explain", *words(source, tmp_path / "results"), hosts.image())
    assert done.returncode == 0, done.stderr
    for said in (
        "$FAIRLEAD_STAGE=/opt/fairlead/stage",
        f"{source} -> /opt/fairlead/stage/data",
        f"/opt/fairlead/stage/out -> {tmp_path}/results",
        "the node-local storage of site laptop",
    ):
        assert said in done.stdout


def test_dry_run_is_a_line_that_stages_runs_and_clears(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    quoted = tmp_path / "it's $HOME; \n `x`"
    quoted.write_text("quoted")
    line = fairlead(
        "run", "-n", "2", "--dry-run", *words(source, out, "--stage-in", f"{quoted}"), hosts.image(), "--", "python3", "-c", WORK
    )  # fmt: skip
    assert line.returncode == 0, line.stderr
    done = subprocess.run(line.stdout, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert right(source, out)
    failing = fairlead(
        "run", "-n", "1", "--dry-run", "--stage-in", source, hosts.image(), "--", "sh", "-c", "exit 7"
    )  # fmt: skip
    done = subprocess.run(failing.stdout, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr


def test_command_that_fails_has_its_results_out_and_its_own_exit_code(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "results"
    done = fairlead(
        "run", "-n", "2", *words(source, out), hosts.image(), "--",
        "python3", "-c", WORK + "MPI.Finalize(); sys.exit(3)",
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert right(source, out)


def test_rank_that_is_killed_leaves_nothing_staged(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    kill = "import signal\nif rank: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)"
    done = fairlead(
        "run", "-n", "2", *words(source, out), hosts.image(), "--", "python3", "-c", WORK + kill
    )  # fmt: skip
    assert done.returncode == 137, done.stderr
    assert right(source, out)


@pytest.mark.full
def test_watchdog_ends_a_run_and_its_results_come_back(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    done = fairlead(
        "run", "-n", "2", "--json", "--watchdog", "1", *words(source, out), hosts.image(), "--",
        "python3", "-c", HANG,
    )  # fmt: skip
    assert done.returncode == 124, done.stdout + done.stderr
    assert (out / "log").read_text() == "begun"


# Rank 1 never starts MPI, for which rank 0 waits.
HANG = """
import os, time
os.makedirs(os.environ["FAIRLEAD_STAGE"] + "/out", exist_ok=True)
with open(os.environ["FAIRLEAD_STAGE"] + "/out/log", "w") as log:
    log.write("begun")
if os.environ["PMI_RANK"] == "1":
    time.sleep(99)
from mpi4py import MPI
"""


def running(source: Path, out: Path, tmp_path: Path, code: str) -> subprocess.Popen[str]:
    """A run whose ranks are at work: they have written, and now sleep."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "fairlead", "run", "-n", "2", *words(source, out)),
            *(str(hosts.image()), "--", "python3", "-c", code),
        ],
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "stderr").open("w"),
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    for line in process.stdout:
        if "at work" in line:
            return process
    raise AssertionError((tmp_path / "stderr").read_text())


SLEEP = WORK + 'print("at work", flush=True)\ntime.sleep(100)'


@pytest.mark.parametrize("stepwise", [False, True])
def test_run_whose_output_has_no_reader_leaves_nothing(
    stepwise: bool, source: Path, tmp_path: Path
) -> None:
    before = staged_folders()
    by = ("--launcher", str(hosts.mpich() / "bin/mpiexec.hydra")) if stepwise else ()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "fairlead", "run", *by, *words(source, tmp_path / "results")),
            *(str(hosts.image()), "--", "python3", "-c", WORK),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    while not staged_folders() - before:
        assert process.poll() is None
        time.sleep(0.01)
    process.stderr.close()
    process.wait(60)  # `source` looks for what is left


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_fairlead_brings_results_out_and_clears(
    number: signal.Signals, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "results"
    process = running(source, out, tmp_path, SLEEP)
    assert staged_folders()
    process.send_signal(number)
    assert process.wait(60) == 130
    assert right(source, out)


@pytest.mark.parametrize("stepwise", [False, True])
def test_signal_while_data_is_staged_in_leaves_nothing(
    stepwise: bool, source: Path, tmp_path: Path
) -> None:
    with (source / "huge").open("wb") as stream:
        for _ in range(400):
            stream.write(os.urandom(1 << 20))
    before, mark = staged_folders(), tmp_path / "launched"
    by = ("--launcher", str(hosts.mpich() / "bin/mpiexec.hydra")) if stepwise else ()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "fairlead", "run", *by, "--bind", str(tmp_path)),
            *("--stage-in", str(source), str(hosts.image()), "--", "touch", str(mark)),
        ],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not any((path / "new/copy").exists() for path in staged_folders() - before):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "FAIL" in said and not mark.exists()


def test_what_fairlead_leaves_when_it_is_killed_goes_with_the_next_run_but_for_results(
    source: Path, tmp_path: Path
) -> None:
    before, out = staged_folders(), tmp_path / "lost"
    process = running(source, out, tmp_path, SLEEP)
    process.kill()
    process.wait()
    (left,) = staged_folders() - before
    done = fairlead("run", "--stage-in", source, hosts.image(), "--", "true")
    assert done.returncode == 0, done.stderr
    assert staged_folders() - before == {left} and not list(left.glob("data/source*"))
    (line,) = re.findall(r"\S+ -P -m fairlead.transfer out .*", done.stderr)
    subprocess.run(line, shell=True, check=True)
    assert sorted(path.name for path in out.rglob("*") if path.is_file())
    assert staged_folders() - before == set()


def test_results_that_cannot_come_back_are_kept_named_and_fetched(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "place/results"
    out.parent.mkdir()
    spoil = f"import pathlib\nif not rank: pathlib.Path('{out.parent}').rmdir(); pathlib.Path('{out.parent}').write_text('')"
    done = fairlead(
        "run", "-n", "2", "--json", "--bind", tmp_path, *words(source, out), hosts.image(), "--",
        "python3", "-c", WORK + spoil,
    )  # fmt: skip
    assert done.returncode == 123, done.stdout + done.stderr
    said = answer(done)["stage"]
    (kept,), (finding,) = said["kept"], said["findings"]
    assert kept["name"] == "out" and finding["check"] == "stage-out"
    out.parent.unlink()
    fetched = subprocess.run(finding["remedy"].partition(": ")[2], shell=True, check=False)
    assert fetched.returncode == 0
    assert right(source, out)


def test_nothing_is_launched_when_something_cannot_be_staged(source: Path, tmp_path: Path) -> None:
    (source / "out").symlink_to("/etc/passwd")
    mark = tmp_path / "launched"
    done = fairlead(
        "run", "--json", "--bind", tmp_path, "--stage-in", source, hosts.image(), "--", "touch", mark
    )  # fmt: skip
    assert done.returncode == 121
    assert [f["check"] for f in answer(done)["findings"]] == ["stage-link"]
    assert not mark.exists()


@pytest.mark.parametrize(
    ("given", "code", "check"),
    [
        (("--stage-in", "/no/such"), 2, "stage-source"),
        (("--stage-in", "{source}", "--stage-to", "burst-buffer"), 2, "stage-place"),
        (("--stage-in", "{source}", "--stage-to", "tape"), 2, "stage-place"),
        (("--stage-out", "x:{source}"), 2, "stage-target"),
        (("--stage-out", "x:/proc/1/x/y"), 2, "stage-target"),
        (("--stage-in", "{source}:../x"), 2, "usage"),
        (("--stage-in", "{source}:x", "--stage-in", "{source}:x/y"), 2, "usage"),
        (("--stage-keep", "--stage-in", "{source}"), 2, "usage"),
        (("--stage-to", "memory"), 2, "usage"),
    ],
)
def test_wrong_words_are_one_message_with_a_remedy(
    given: tuple[str, ...], code: int, check: str, source: Path
) -> None:
    options = [word.format(source=source) for word in given]
    done = fairlead("run", "--json", *options, hosts.image(), "--", "true")
    assert done.returncode == code, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == check and finding["remedy"]


def test_missing_result_is_an_error_of_a_run_that_ended_well(source: Path, tmp_path: Path) -> None:
    done = fairlead(
        "run", "--json", "--stage-out", f"res:{tmp_path}/res", hosts.image(), "--", "true"
    )  # fmt: skip
    assert done.returncode == 123
    (finding,) = answer(done)["stage"]["findings"]
    assert "left no res" in finding["what"]


# --- two hosts -------------------------------------------------------------------------------------

on_two_hosts = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces")


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as pair:
        yield pair


@on_two_hosts
@pytest.mark.parametrize("place", ["memory", "shared"])
def test_each_node_copies_for_itself_unless_they_share_the_storage(
    place: str, network: tuple[Host, Host], source: Path, tmp_path: Path
) -> None:
    """`/dev/shm` is each host's own; a folder of the disk is seen by both."""
    one, two = network
    before = one.memory() | two.memory()
    shared = tmp_path / "burst"
    shared.mkdir()
    out = tmp_path / "results"
    to = "memory" if place == "memory" else str(shared)
    done = one.fairlead(
        "run", "-n", "2", "--json", "--launcher", launcher(one, hosts.mpich() / "bin/mpiexec.hydra"),
        *words(source, out, "--stage-to", to), hosts.image(), "--", "python3", "-c", WORK,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = answer(done)["stage"]
    if place == "memory":
        assert sorted(item["node"] for item in said["in"]) == ["node1", "node2"]
        assert "on each of 2 nodes" in done.stderr
        assert sorted(path.name for path in out.iterdir()) == ["node1", "node2"]
        assert (out / "node1/deep/0").read_text() == (out / "node2/deep/1").read_text()
    else:
        assert len(said["in"]) == said["nodes"] == 1
        assert right(source, out)
    assert one.memory() | two.memory() == before
    assert list(shared.iterdir()) == []


@on_two_hosts
def test_dry_run_for_two_hosts_stages_on_both(
    network: tuple[Host, Host], source: Path, tmp_path: Path
) -> None:
    one, _ = network
    out = tmp_path / "results"
    line = one.fairlead(
        "run", "-n", "2", "--dry-run", "--launcher", launcher(one, hosts.mpich() / "bin/mpiexec.hydra"),
        *words(source, out, "--stage-to", "memory"), hosts.image(), "--", "python3", "-c", WORK,
    )  # fmt: skip
    assert line.returncode == 0, line.stderr
    done = subprocess.run(
        one.words("sh", "-c", line.stdout), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["node1", "node2"]
    assert not {n for host in network for n in host.memory() if n.startswith(PREFIX)}


@on_two_hosts
def test_node_that_cannot_stage_ends_the_run_and_the_other_is_cleared(
    network: tuple[Host, Host], source: Path, tmp_path: Path
) -> None:
    one, two = network
    place = tmp_path / "place"
    place.mkdir()
    subprocess.run(
        two.words("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place), check=True
    )  # fmt: skip
    try:
        done = one.fairlead(
            "run", "-n", "2", "--json", "--launcher",
            launcher(one, hosts.mpich() / "bin/mpiexec.hydra"),
            *words(source, tmp_path / "results", "--stage-to", str(place)), hosts.image(), "--", "true",
        )  # fmt: skip
    finally:
        subprocess.run(two.words("umount", place), check=True)
    assert done.returncode == 121, done.stdout + done.stderr
    assert [f["check"] for f in answer(done)["findings"]] == ["stage-room"]
    assert list(place.iterdir()) == []


@on_two_hosts
def test_node_whose_results_cannot_go_back_keeps_them(
    network: tuple[Host, Host], source: Path, tmp_path: Path
) -> None:
    """The launch of a step is the caller's: here it is `nsenter`, one process a host."""
    both = network
    wish = Wish(
        (InItem(str(source), "data"),),
        (OutItem("data", str(tmp_path / "back")),),
        Place("memory", "/dev/shm", "this test"),
    )

    def each_node(words_: list[str]) -> int:
        return max(subprocess.run(host.words(*words_), check=False).returncode for host in both)

    with job.staged(wish, each_node=each_node, shared=tmp_path / "reports") as stage:
        assert stage.nodes == 2
        (tmp_path / "back").mkdir()
        (tmp_path / "back/node2").write_text("somebody's")
        held = both[1].memory()
    assert [f.check for f in stage.findings] == ["stage-out"]  # a warning: beside it, not over it
    assert (tmp_path / "back/node2").read_text() == "somebody's"
    assert (tmp_path / "back/node1/large").read_bytes() == (source / "large").read_bytes()
    assert Path(stage.findings[0].where, "large").read_bytes() == (source / "large").read_bytes()
    assert {name for name in held if name.startswith(PREFIX)}
    assert not {name for host in both for name in host.memory() if name.startswith(PREFIX)}


# --- a real Slurm ----------------------------------------------------------------------------------


@on_two_hosts
def test_job_of_a_real_slurm_stages_on_each_of_its_nodes(source: Path, tmp_path: Path) -> None:
    """Each node has a memory of its own; the shell that asks for the job is on none of them."""
    out = tmp_path / "results"
    with slurm.slurm() as cluster:
        done = cluster.fairlead(
            "run", "-N", "2", "-n", "4", "--json", *words(source, out, "--stage-to", "memory"),
            hosts.image(), "--", "python3", "-c", WORK,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        said = answer(done)
        assert said["launcher"]["kind"] == "srun"
        nodes = sorted(item["node"] for item in said["stage"]["in"])
        assert len(set(nodes)) == said["stage"]["nodes"] == 2
        assert sorted(path.name for path in out.iterdir()) == nodes
        assert sorted(path.name for path in out.glob("*/deep/*")) == ["0", "1", "2", "3"]
        out.rename(tmp_path / "of the run")
        line = cluster.said(
            sys.executable, "-m", "fairlead", "run", "-N", "2", "-n", "4", "--dry-run",
            *words(source, out, "--stage-to", "memory"), hosts.image(), "--", "python3", "-c", WORK,
        )  # fmt: skip
        assert "salloc" in line and "--ntasks-per-node=1" not in line
        pasted = cluster.run("bash", "-c", line)
        assert pasted.returncode == 0, pasted.stderr
        assert sorted(path.name for path in out.glob("*/deep/*")) == ["0", "1", "2", "3"]
        # A step sees what is left in the memory of each node.
        assert PREFIX not in cluster.said("srun", f"--nodes={len(slurm.NODES)}", "ls", "/dev/shm")


# --- a job -----------------------------------------------------------------------------------------


def test_runs_of_one_job_share_what_was_staged_and_datawarp_is_used(
    source: Path, tmp_path: Path
) -> None:
    """A site with DataWarp, and the variables of a job of it: what is real is the copy."""
    space = tmp_path / "dw"
    space.mkdir()
    site = tmp_path / "xc.toml"
    site.write_text(
        '[site]\nname = "xc"\nsummary = "A site with DataWarp."\n'
        '[launcher]\nkinds = ["mpiexec"]\nsource = "guess"\n'
        '[storage]\nburst_buffer = "datawarp"\nsource = "guess"\n'
        '[fabric]\nkind = "none"\naccepts = ["self", "cma", "posix", "sysv", "shm", "tcp"]\nsource = "guess"\n'
    )
    job_ = {"SLURM_JOB_ID": "77", "DW_JOB_STRIPED": f"{space}/"}

    def run(*more: str, env: dict[str, str] = job_) -> subprocess.CompletedProcess[str]:
        return fairlead(
            "run", "--json", "--site", site, "--stage-to", "burst-buffer", "--stage-in", source, *more,
            hosts.image(), "--", "true", env=env,
        )  # fmt: skip

    def first(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
        assert done.returncode == 0, done.stdout + done.stderr
        (item,) = answer(done)["stage"]["in"]
        assert item["target"].startswith(f"{space}/{PREFIX}")
        return dict(item)

    assert first(run("--stage-keep"))["reused"] is False
    assert len(list(space.iterdir())) == 1
    assert first(run())["reused"] is True
    assert list(space.iterdir()) == []
    done = run(env={"SLURM_JOB_ID": "77"})
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "stage-place" and "#DW jobdw" in finding["remedy"]
