"""``fairlead site detect`` and ``check`` on the machine that the tests run on: right in what they say, and
unmoved by tools and files that hang, crash, flood or are closed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts

import fairlead
from fairlead.base.errors import ExitCode

PYTHON = f"/usr/bin/python3.{sys.version_info.minor}"


def detect(env: dict[str, str] | None = None, *words: str) -> dict[str, Any]:
    done = hosts.fairlead("site", "detect", "--json", *words, env=env, limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return hosts.answer(done)


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return detect()


def said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_every_value_is_what_another_tool_says(here: dict[str, Any]) -> None:
    facts = here["facts"]
    assert facts["node"] == said("uname", "-n")
    assert facts["system"]["kernel"] == said("uname", "-r")
    assert facts["system"]["machine"] == said("uname", "-m")
    assert f"glibc {facts['system']['glibc']}" == said("getconf", "GNU_LIBC_VERSION")
    assert f'"{facts["system"]["name"]}"' == said(
        "sed", "-n", "s/^PRETTY_NAME=//p", "/etc/os-release"
    )
    processor = facts["processor"]
    assert processor["cores"] == int(said("nproc"))
    assert processor["online"] == int(said("getconf", "_NPROCESSORS_ONLN"))
    assert processor["memory_bytes"] == 1024 * int(
        said("awk", "/^MemTotal/{print $2}", "/proc/meminfo")
    )
    assert processor["target"] == said(sys.executable, "-m", "archspec", "cpu")
    lscpu = said("env", "LC_ALL=C", "lscpu")
    sockets = re.search(r"Socket\(s\):\s+(\d+)", lscpu)
    assert sockets and processor["sockets"] == int(sockets[1])
    model = re.search(r"Model name:\s+(.+)", lscpu)
    assert model and processor["model"] == model[1].strip()
    for engine in facts["engines"]:
        if engine["kind"] in ("apptainer", "podman", "docker"):
            assert engine["version"] in said(engine["path"], "--version")
        if engine["kind"] == "apptainer":
            starters = Path(engine["path"]).resolve().parent.parent.rglob("starter-suid")
            assert engine["setuid"] is any(p.stat().st_mode & stat.S_ISUID for p in starters)
    kinds = {e["kind"] for e in facts["engines"]}
    assert ("podman" in kinds) is bool(shutil.which("podman"))
    assert ("charliecloud" in kinds) is bool(shutil.which("ch-run"))
    abilities = {a["name"]: a["value"] for a in facts["abilities"]}
    mapped = subprocess.run(["unshare", "-Ur", "true"], capture_output=True, check=False)
    assert (abilities["user namespaces"] == "yes") is (mapped.returncode == 0)
    systems = said("awk", "{print $NF}", "/proc/filesystems").split()
    assert (abilities["squashfs"] == "yes") is ("squashfs" in systems)
    assert (abilities["overlay"] == "yes") is ("overlay" in systems)
    groups = set(said("findmnt", "-nro", "FSTYPE", "-t", "cgroup,cgroup2").split())
    output = {frozenset({"cgroup"}): "v1", frozenset({"cgroup2"}): "v2"}.get(
        frozenset(groups), "hybrid"
    )
    assert abilities["cgroup"] == (output if groups else "not mounted")
    places = {s["role"]: s for s in facts["storage"]}
    assert (
        places["memory"]["kind"] == said("findmnt", "-nro", "FSTYPE", "-T", "/dev/shm").split()[-1]
    )
    assert places["memory"]["free_bytes"] == pytest.approx(
        int(said("df", "-B1", "--output=avail", "/dev/shm").split()[-1]), rel=0.2
    )
    assert places["temporary"]["kind"] == said(
        "findmnt", "-nro", "FSTYPE", "-T", places["temporary"]["path"]
    )
    cards = [p.name for p in Path("/sys/class/net").iterdir() if (p / "device").exists()]
    assert {f["device"] for f in facts["fabrics"] if f["kind"] == "ethernet"} <= set(cards)


def test_mpis_are_those_whose_libraries_say_so(here: dict[str, Any]) -> None:
    hosts.mpich()
    found = {
        (m["vendor"], m["version"]): m
        for m in detect()["facts"]["mpis"]
        if m["family"] != "mpi-abi"
    }
    ours = found["MPICH", "5.0.2"]
    strings = said("grep", "-c", "-a", "MPICH Version", ours["path"])
    assert int(strings) > 0
    needed = said("readelf", "-d", ours["path"])
    assert f"[{ours['soname']}]" in needed
    for soname, path in ours["closure"].items():
        assert Path(path).is_file() and soname
    assert said(ours["launcher"], "--version").startswith("HYDRA build details")


def test_tools_that_hang_crash_flood_or_leave_children_cost_what_they_would_have_said(
    tmp_path: Path, here: dict[str, Any]
) -> None:
    mark = f"fairlead-test-{os.getpid()}"
    # exec -a: what is left behind could be found by this name.
    sleep = f"exec -a {mark} sleep 300"
    bash = "#!/bin/bash\n"
    for name in ("mpiexec", "podman", "sinfo", "scontrol", "getconf"):
        path = program(tmp_path, name, "")
        path.write_text(bash + sleep + "\n")
    children = program(tmp_path, "enroot", "")
    children.write_text(f"{bash}(exec -a {mark} sleep 300) & (exec -a {mark} sleep 300)\n")
    program(tmp_path, "srun", "kill -SEGV $$")
    program(tmp_path, "fi_info", "while :; do echo 'x:'; done")
    program(tmp_path, "ucx_info", "printf '\\377\\376\\000'; exit 3")
    (tmp_path / "sarus").write_bytes(b"\x7fELF not really")
    (tmp_path / "sarus").chmod(0o755)
    facts = detect({"PATH": f"{tmp_path}:{os.environ['PATH']}"})["facts"]
    unknown = {u["what"]: u["why"] for u in facts["unknown"]}
    assert "no end after" in unknown["version of podman"]
    assert "no end after" in unknown["version of slurm"]
    assert "no end after" in unknown["version of enroot"]
    assert "signal 11" in unknown["PMI plugins of Slurm"]
    assert (
        "more than" in unknown["providers of libfabric"]
        or "no end" in unknown["providers of libfabric"]
    )
    assert "code 3" in unknown["transports of UCX"]
    assert "version of sarus" in unknown
    # What has nothing to do with them is as before.
    assert facts["processor"] == here["facts"]["processor"]
    assert facts["fabrics"] == here["facts"]["fabrics"]
    before = {m["path"] for m in here["facts"]["mpis"]}
    assert before <= {m["path"] for m in facts["mpis"]}
    left = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and mark in _command_line(entry)
    ]
    assert not left


def _command_line(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def test_fifo_device_and_folder_in_place_of_a_file_are_passed_over(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program(tmp_path, "sinfo", "echo slurm 1.2.3")
    for odd in (fifo, Path("/dev/zero"), tmp_path, Path("/dev/tty")):
        env = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURM_CONF": str(odd),
            "CONTAINERS_STORAGE_CONF": str(odd),
            "CONTAINERS_CONF": str(odd),
            "SCRATCH": str(odd),
        }
        facts = detect(env)["facts"]
        assert [s["version"] for s in facts["schedulers"]] == ["1.2.3"]
        assert facts["schedulers"][0]["cluster"] == ""


def test_without_proc_what_can_be_seen_is_reported(here: dict[str, Any]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can hide /proc")
    words = [sys.executable, "-m", "fairlead", "site", "detect", "--json"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh", *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = hosts.answer(done)["facts"]
    assert facts["processor"]["target"] == ""
    assert facts["processor"]["cores"] == here["facts"]["processor"]["cores"]
    assert "processor" in {u["what"] for u in facts["unknown"]}
    abilities = {a["name"]: a["value"] for a in facts["abilities"]}
    assert abilities["cgroup"] == "unknown" and abilities["squashfs"] in ("unknown", "module")
    assert facts["system"]["kernel"] == here["facts"]["system"]["kernel"]
    assert hosts.answer(done)["profile"] == here["profile"]


def test_container_is_known_by_what_its_engine_mounts() -> None:
    if os.geteuid() != 0 or not Path("/.dockerenv").exists():
        pytest.skip("only root can mount, and here is no mark of an engine")
    words = [sys.executable, "-m", "fairlead", "site", "detect", "--json"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", 'mount --bind /etc/hosts /etc/hosts && exec "$@"', "sh", *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert hosts.answer(done)["facts"]["system"]["inside"] == "container: docker"


@pytest.fixture(scope="module")
def code() -> Iterator[Path]:
    """fairlead and what it imports, where any user may read it."""
    if not Path(PYTHON).exists():
        pytest.skip(f"no {PYTHON}, which another user could run")
    shared = Path(tempfile.mkdtemp(prefix="fairlead-detect-"))
    shared.chmod(0o755)
    try:
        hosts.copy_packages(shared / "packages")
        package = Path(fairlead.__file__).parent
        shutil.copytree(package, shared / "fairlead")
        shutil.copytree(package.parents[1] / "sitecfg", shared / "fairlead/_data/sitecfg")
        yield shared
    finally:
        shutil.rmtree(shared)


def test_ordinary_user_sees_the_same_and_is_shown_what_is_closed(
    code: Path, here: dict[str, Any]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with hosts.account("detect") as (_, home):
        closed = code / "slurm.conf"
        closed.write_text("ClusterName=secret\n")
        closed.chmod(0o600)
        closed_folder = code / "closed"
        closed_folder.mkdir(mode=0o700)
        program(closed_folder, "sinfo", "echo slurm 9")
        variables = {
            "PATH": f"{closed_folder}:/usr/bin:/bin",
            "PYTHONPATH": f"{code}:{code}/packages",
            "SLURM_CONF": str(closed),
        }
        words = (PYTHON, "-m", "fairlead", "site", "detect", "--json")
        done = subprocess.run(
            hosts.as_user(home.stat().st_uid, home, variables, *words),
            cwd=home, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    facts = hosts.answer(done)["facts"]
    assert facts["uid"] != 0 and facts["processor"] == here["facts"]["processor"]
    assert facts["schedulers"] == [] and "secret" not in done.stdout
    assert "Traceback" not in done.stderr


def test_draft_is_written_once_and_shown_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "my-machine.toml"
    done = hosts.fairlead("site", "detect", "--write", path)
    assert done.returncode == 0 and done.stdout.strip() == str(path), done.stderr
    shown = hosts.fairlead("site", "show", path, "--sources")
    assert shown.returncode == 0, shown.stderr
    assert "seen by fairlead site detect on" in shown.stdout
    text = path.read_text()
    again = hosts.fairlead("site", "detect", "--write", path)
    assert again.returncode == ExitCode.USAGE and "error[site-draft]" in again.stderr
    assert path.read_text() == text
    checked = hosts.fairlead("site", "check", path, "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    values = hosts.answer(checked)["values"]
    assert len(values) > 5 and {v["state"] for v in values} <= {"ok", "not seen"}
    # The machine is found by it from now on.
    folder = tmp_path / "sites"
    folder.mkdir()
    path.rename(folder / path.name)
    assert detect({"FAIRLEAD_SITES_EXTRA": str(folder)})["profile"] == "my-machine"


@pytest.mark.parametrize("name", ["x.json", "Big.toml", "a b.toml"])
def test_draft_under_a_name_that_no_profile_can_have_is_refused(tmp_path: Path, name: str) -> None:
    done = hosts.fairlead("site", "detect", "--write", tmp_path / name)
    assert done.returncode == ExitCode.USAGE and "a profile is NAME.toml" in done.stderr
    assert not list(tmp_path.iterdir())


def test_check_of_a_profile_that_an_update_left_behind_says_where_things_are_now(
    tmp_path: Path,
) -> None:
    """A real MPI, whose real library an "update" moves to another version's folder."""
    prefix = tmp_path / "opt/mpich/5.0.3"
    shutil.copytree(hosts.mpich(), prefix, symlinks=True)
    real = (prefix / "lib/libmpi.so.12").resolve().relative_to(prefix)
    profile = tmp_path / "moved.toml"
    old = tmp_path / "opt/mpich/5.0.2"
    profile.write_text(
        f"""
[site]
name = "moved"
summary = "A machine before its update."
extends = "laptop"

[sources.docs]
text = "the site's documentation"
status = "documented"

[mpi]
source = "docs"
search = ["{old}/lib"]

[dependencies]
source = "guess"
files = ["{old}/{real}"]
"""
    )
    done = hosts.fairlead("site", "check", profile, env={"FAIRLEAD_MPI": str(prefix)})
    assert done.returncode == ExitCode.FAILED, done.stdout + done.stderr
    assert f"now {prefix}/lib" in done.stdout
    assert "error[site-drift]: `mpi.search` of moved does not match this machine" in done.stderr
    assert f"write {prefix}/lib instead" in done.stderr
    # A guess that was wrong is reported, and is not an error.
    assert "dependencies.files" not in done.stderr
    rows = [line for line in done.stdout.splitlines() if "dependencies.files" in line]
    assert rows and rows[0].startswith("differs") and f"now {prefix}" in rows[0]


def test_check_holds_a_profile_against_a_capture(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    assert hosts.fairlead("site", "capture", "-o", path).returncode == 0
    done = hosts.fairlead("site", "check", "--against", path, "--json")
    assert done.returncode == 0, done.stdout
    output = hosts.answer(done)
    assert output["site"] == detect()["profile"] and "captured" in output["machine"]
    other = hosts.fairlead("site", "check", "laptop", "--against", path)
    assert other.returncode == 0, other.stdout


@pytest.mark.full
def test_why_not_lists_every_clue(tmp_path: Path) -> None:
    program(tmp_path, "srun", "exit 1")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    installed = hosts.fairlead("site", "why-not", "laptop", env=env)
    assert installed.returncode == 0, installed.stderr
    assert re.search(
        r"^-\s+absent_programs: srun\s+`srun` is on PATH, but no scheduler is configured here$",
        installed.stdout,
        re.MULTILINE,
    )
    conf = tmp_path / "slurm.conf"
    done = hosts.fairlead("site", "why-not", "laptop", env={**env, "SLURM_CONF": str(conf)})
    assert done.returncode == 0, done.stderr
    assert "laptop: not this machine" in done.stdout
    assert re.search(
        r"^against\s+absent_programs: srun\s+`srun` is on PATH, and there is \$SLURM_CONF$",
        done.stdout,
        re.MULTILINE,
    )
    output = hosts.answer(hosts.fairlead("site", "why-not", "laptop", "--json"))
    assert output["fits"] is (output["detected"] == "laptop")
    assert hosts.fairlead("site", "why-not", "labtop").returncode == ExitCode.USAGE
