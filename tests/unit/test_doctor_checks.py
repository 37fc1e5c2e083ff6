"""Doctor's checks, on recorded machines (``tests/recorded/doctor``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead.doctor.diagnosis import Diagnosis, OwnFix, RootFix
from fairlead.doctor.fix import examine
from fairlead.doctor.process import Ran
from fairlead.doctor.registry import CHECKS
from fairlead.findings import Severity
from fairlead.hostmpi import HostMpi
from fairlead.serial import from_json

RECORDED = Path(__file__).parents[1] / "recorded" / "doctor"
# What each recording must find; every check that is not named must find all well.
EXPECTED = {
    "root-ready": {"capabilities": "info"},
    "root-whole": {},
    "root-bare": {
        "packages": "error",
        "subids": "error",
        "capabilities": "info",
        "engine": "error",
        "host-mpi": "error",
    },
    "root-no-room": {"shared-memory": "warning", "space": "warning", "capabilities": "info"},
    "root-no-namespaces": {"user-namespaces": "error"},
    "user-ready": {},
    "user-fuse-closed": {"fuse": "error", "engine": "error"},
    "user-openmpi-only": {"engine": "error", "host-mpi": "warning"},
    "user-foreign-mpiexec": {"host-mpi": "info"},
}


class Recorded:
    """A machine that answers from a file, and refuses what was not asked when it was recorded."""

    def __init__(self, name: str, **changed: Any):
        data = json.loads((RECORDED / f"{name}.json").read_text())
        self.uid: int = data["uid"]
        self.user: str = data["user"]
        self.environ: dict[str, str] = data["environ"]
        self.answers: dict[str, Any] = data["answers"] | changed

    def read(self, path: str) -> str | None:
        return self.answers[f"read {path}"]

    def access(self, path: str, mode: int) -> bool:
        return self.answers[f"access {path} {mode}"]

    def which(self, program: str) -> str | None:
        return self.answers[f"which {program}"]

    def free_bytes(self, folder: str) -> int:
        return self.answers[f"free_bytes {folder}"]

    def run(self, argv: Sequence[str]) -> Ran:
        return from_json(Ran, self.answers[f"run {' '.join(argv)}"])

    def engine(self) -> str | None:
        return self.answers["engine"]

    def probe_engine(self) -> Ran:
        return from_json(Ran, self.answers["probe_engine"])

    def host_mpis(self) -> tuple[HostMpi, ...]:
        return tuple(from_json(HostMpi, item) for item in self.answers["host_mpis"])


def find(world: Recorded, check: str) -> Diagnosis:
    """The one diagnosis of a check that is not well."""
    checks = [c for c in CHECKS if c.name == check]
    [found] = [d for d in examine(world, checks) if d.finding.severity is not Severity.OK]
    return found


def test_recordings_all_have_an_expectation() -> None:
    assert {path.stem for path in RECORDED.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("check", [c.name for c in CHECKS])
def test_check_recordings_show_it_well_and_ill(check: str) -> None:
    assert any(check in findings for findings in EXPECTED.values())
    assert any(check not in findings for findings in EXPECTED.values())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_recorded_machine_examined_finds_what_is_wrong_with_it(name: str) -> None:
    found = list(examine(Recorded(name), CHECKS))
    not_well = {d.finding.check: d.finding.severity for d in found if d.finding.severity != "ok"}
    assert not_well == EXPECTED[name]
    assert {d.finding.check for d in found} == {c.name for c in CHECKS}
    for diagnosis in found:
        if diagnosis.finding.severity in ("error", "warning"):
            assert diagnosis.finding.where
            assert diagnosis.finding.why
            assert diagnosis.finding.remedy


def test_packages_missing_remedy_installs_exactly_them() -> None:
    found = find(Recorded("root-bare"), "packages")
    line = "sudo apt-get install -y --no-install-recommends"
    assert found.finding.remedy == f"{line} mmdebstrap squashfs-tools-ng squashfuse uidmap"
    assert isinstance(found.fix, RootFix)
    assert found.fix.command[2:] == ("mmdebstrap", "squashfs-tools-ng", "squashfuse", "uidmap")


def test_packages_missing_without_apt_have_no_fix() -> None:
    found = find(Recorded("root-bare", **{"which apt-get": None}), "packages")
    assert found.fix is None
    assert "no apt-get" in found.finding.remedy


def test_subids_taken_by_others_are_not_given_again() -> None:
    taken = "alice:100000:65536\nbob:200000:70000\n"
    found = find(Recorded("root-bare", **{"read /etc/subuid": taken}), "subids")
    assert found.finding.remedy == "echo root:270000:65536 | sudo tee -a /etc/subuid /etc/subgid"


def test_subids_of_too_small_a_range_do_not_count() -> None:
    small = "root:200000:1000\n"
    found = find(Recorded("root-ready", **{"read /etc/subuid": small}), "subids")
    assert found.finding.where == "/etc/subuid"


@pytest.mark.parametrize("text", ["root", "root:x:65536", "root:1:2:3", "::", "\0"])
def test_subids_malformed_line_is_passed_over(text: str) -> None:
    found = find(Recorded("root-ready", **{"read /etc/subgid": text}), "subids")
    assert found.finding.where == "/etc/subgid"


def test_namespaces_forbidden_by_a_switch_names_it() -> None:
    found = find(Recorded("root-no-namespaces"), "user-namespaces")
    assert found.finding.where == "/proc/sys/user/max_user_namespaces"
    assert found.finding.remedy.startswith("sudo sysctl -w user.max_user_namespaces=")


def test_fuse_device_absent_is_told_from_closed() -> None:
    closed = find(Recorded("user-fuse-closed"), "fuse")
    absent = find(Recorded("user-fuse-closed", **{"access /dev/fuse 0": False}), "fuse")
    assert isinstance(closed.fix, RootFix)
    assert closed.finding.remedy == "sudo chmod 666 /dev/fuse"
    assert absent.fix is None
    assert "modprobe" in absent.finding.remedy


def test_engine_absent_for_root_comes_from_apt_where_it_has_one() -> None:
    policy = {
        "argv": [],
        "returncode": 0,
        "stdout": "apptainer:\n  Installed: (none)\n  Candidate: 1.4.5-2\n",
        "stderr": "",
    }
    by_apt = find(Recorded("root-bare", **{"run apt-cache policy apptainer": policy}), "engine")
    own = find(Recorded("root-bare"), "engine")
    assert isinstance(by_apt.fix, RootFix)
    assert by_apt.fix.command[-1] == "apptainer"
    assert isinstance(own.fix, OwnFix)


def test_engine_private_that_does_not_start_is_made_again() -> None:
    ready = Recorded("user-ready")
    program = ready.answers["engine"]
    broken = {"argv": [program], "returncode": 127, "stdout": "", "stderr": "No such file"}
    found = find(Recorded("user-ready", **{f"run {program} --version": broken}), "engine")
    assert isinstance(found.fix, OwnFix)
    assert found.finding.why == "No such file"


def test_engine_foreign_that_does_not_start_is_left_to_its_owner() -> None:
    broken = {"argv": [], "returncode": 1, "stdout": "", "stderr": "bad"}
    changed = {"engine": "/usr/bin/apptainer", "run /usr/bin/apptainer --version": broken}
    found = find(Recorded("user-ready", **changed), "engine")
    assert found.fix is None


def test_host_mpi_of_open_mpi_only_is_named() -> None:
    found = find(Recorded("user-openmpi-only"), "host-mpi")
    assert "Open MPI" in found.finding.why
    assert isinstance(found.fix, OwnFix)


def test_diagnosis_as_json_shows_what_the_fix_would_do() -> None:
    shown = find(Recorded("user-fuse-closed"), "fuse").to_json()
    assert shown["fix"] == {
        "does": "makes /dev/fuse usable by everybody",
        "needs_root": True,
        "command": "sudo chmod 666 /dev/fuse",
    }
