"""Applying fixes: who may, what is asked, and what is said when one fails."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.findings import fail, ill

from fairlead.base.errors import FairleadError, Severity
from fairlead.base.process import Ran, follow, run
from fairlead.base.progress import Progress, Silent
from fairlead.doctor.checks import packages, subids
from fairlead.doctor.diagnosis import Check, Diagnosis, OwnFix, RootFix, well
from fairlead.doctor.fix import apply, apply_fixes, examine
from fairlead.doctor.world import World


class Somebody(World):
    """This machine, as ``uid``, with or without a sudo that asks for no password."""

    def __init__(self, uid: int, sudo: bool = False):
        super().__init__()
        self.uid = uid
        self.sudo = sudo

    def run(self, argv: Sequence[str]) -> Ran:
        assert tuple(argv) == ("sudo", "-n", "true")
        return Ran(tuple(argv), 0 if self.sudo else 1)


def switch(folder: Path, fix_raises: bool = False, severity: Severity = Severity.ERROR) -> Check:
    """A check that is well once ``folder`` exists, and whose fix makes it."""

    def make(progress: Progress) -> None:
        if fix_raises:
            raise fail("no folder", why="the disk is full", remedy="remove files")
        folder.mkdir()

    def examine(world: World) -> list[Diagnosis]:
        if folder.exists():
            return [well("it is there")]
        fix = OwnFix("makes it", make)
        return [ill("switch", "absent", why="why", remedy="mkdir", fix=fix, severity=severity)]

    return Check("switch", "a folder", examine)


def test_fix_approved_fix_is_applied_and_looked_at_again(tmp_path: Path) -> None:
    [found] = apply_fixes(Somebody(0), [switch(tmp_path / "x")], lambda fix: True, Silent())
    assert found.finding.severity is Severity.OK


def test_fix_refused_fix_changes_nothing(tmp_path: Path) -> None:
    [found] = apply_fixes(Somebody(0), [switch(tmp_path / "x")], lambda fix: False, Silent())
    assert found.finding.severity is Severity.ERROR
    assert not (tmp_path / "x").exists()


def test_fix_failed_fix_is_reported_and_the_next_goes_on(tmp_path: Path) -> None:
    checks = [switch(tmp_path / "x", fix_raises=True), switch(tmp_path / "y")]
    first, second = apply_fixes(Somebody(0), checks, lambda fix: True, Silent())
    assert first.finding.why == "why\nno folder: the disk is full"
    assert second.finding.severity is Severity.OK


def test_fix_fix_without_room_is_reported(tmp_path: Path) -> None:
    check = switch(tmp_path / "absent" / "x")
    [found] = apply_fixes(Somebody(0), [check], lambda fix: True, Silent())
    assert "not done, makes it: [Errno 2]" in found.finding.why


def test_fix_info_is_never_fixed(tmp_path: Path) -> None:
    check = switch(tmp_path / "x", severity=Severity.INFO)
    list(apply_fixes(Somebody(0), [check], lambda fix: True, Silent()))
    assert not (tmp_path / "x").exists()


def check(name: str, examine: object, limit_s: float = 30) -> Check:
    return Check(name, "for tests", examine, limit_s=limit_s)  # type: ignore[arg-type]


def test_examine_check_that_raises_is_a_finding_and_the_next_goes_on() -> None:
    def broken(world: World) -> list[Diagnosis]:
        return [well(str(1 // 0))]

    def fine(world: World) -> list[Diagnosis]:
        return [well("fine", "it is")]

    first, second = examine(Somebody(0), [check("broken", broken), check("fine", fine)])
    assert first.finding.severity is Severity.WARNING
    assert first.finding.what == "this check failed"
    assert "ZeroDivisionError" in first.finding.why
    assert first.finding.where.startswith(__file__)
    assert "report" in first.finding.remedy
    assert second.finding.check == "fine"


def test_examine_check_that_hangs_is_given_up_and_the_next_goes_on() -> None:
    never = threading.Event()

    def hangs(world: World) -> list[Diagnosis]:
        never.wait()
        return []

    def fine(world: World) -> list[Diagnosis]:
        return [well("fine", "it is")]

    first, second = examine(Somebody(0), [check("hangs", hangs, 0.1), check("fine", fine)])
    never.set()
    assert first.finding.what == "this check did not end"
    assert first.finding.severity is Severity.WARNING
    assert second.finding.check == "fine"


def test_examine_wrong_setting_that_several_checks_meet_is_reported_once() -> None:
    def refuses(world: World) -> list[Diagnosis]:
        raise fail("no such engine", where="FAIRLEAD_APPTAINER", remedy="unset it", check="engine")

    found = list(examine(Somebody(0), [check("one", refuses), check("two", refuses)]))
    assert [(d.finding.check, d.finding.severity) for d in found] == [
        ("one", Severity.ERROR),
        ("two", Severity.INFO),
    ]
    assert found[1].finding.what == "skipped: `engine` failed, see there"


def test_examine_wrong_setting_is_reported_by_the_check_of_its_name() -> None:
    """Whichever check meets it first; at the end, should that check not meet it."""

    def refuses(world: World) -> list[Diagnosis]:
        raise fail("no such engine", where="FAIRLEAD_APPTAINER", remedy="unset it", check="engine")

    checks = [check("cgroups", refuses), check("engine", refuses), check("fuse", refuses)]
    severities = {d.finding.check: d.finding.severity for d in examine(Somebody(0), checks)}
    info, error = Severity.INFO, Severity.ERROR
    assert severities == {"cgroups": info, "engine": error, "fuse": info}

    checks = [check("cgroups", refuses), check("engine", lambda world: [well("fine")])]
    found = [(d.finding.check, d.finding.severity) for d in examine(Somebody(0), checks)]
    assert found == [("cgroups", info), ("engine", Severity.OK), ("engine", error)]


def test_fix_reports_each_check_before_it_is_made(tmp_path: Path) -> None:
    begun: list[str] = []

    def looks(world: World) -> list[Diagnosis]:
        begun.append("looked")
        return [well("one", "it is")]

    list(
        apply_fixes(
            Somebody(0),
            [check("one", looks)],
            lambda fix: True,
            Silent(),
            lambda c: begun.append(c.name),
        )
    )
    assert begun == ["one", "looked"]


def test_apply_root_fix_without_root_or_sudo_gives_the_line_to_type(tmp_path: Path) -> None:
    fix = RootFix("makes it", ("mkdir", str(tmp_path / "x")), "sudo mkdir x")
    with pytest.raises(FairleadError) as caught:
        apply(fix, Somebody(1000), Silent())
    assert caught.value.findings[0].remedy == "ask an administrator for: sudo mkdir x"
    assert not (tmp_path / "x").exists()


def test_apply_root_fix_as_root_runs_it(tmp_path: Path) -> None:
    apply(RootFix("makes it", ("mkdir", str(tmp_path / "x")), ""), Somebody(0), Silent())
    assert (tmp_path / "x").is_dir()


def test_apply_root_fix_by_sudo_runs_it_through_sudo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "bin" / "sudo", 'printf "%s\\n" "$*" > "$LOG"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    apply(RootFix("makes it", ("mkdir", "x"), ""), Somebody(1000, sudo=True), Silent())
    assert (tmp_path / "log").read_text() == "-n mkdir x\n"


def test_apply_failing_command_is_quoted() -> None:
    with pytest.raises(FairleadError) as caught:
        apply(RootFix("fails", ("sh", "-c", "echo no room >&2; exit 3"), ""), Somebody(0), Silent())
    assert caught.value.findings[0].why == "no room"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "root:200000:65536\n"),
        ("", "root:200000:65536\n"),
        ("a:1:2\n", "a:1:2\nroot:200000:65536\n"),
        ("a:1:2", "a:1:2\nroot:200000:65536\n"),
    ],
)
def test_subids_fix_appends_one_whole_line(tmp_path: Path, before: str | None, after: str) -> None:
    class Empty(Somebody):
        def read(self, path: str) -> str | None:
            return ""

    [found] = subids.examine(Empty(0))
    assert isinstance(found.fix, RootFix)
    file = tmp_path / "subuid"
    if before is not None:
        file.write_text(before)
    command = [str(file) if word == "/etc/subuid" else word for word in found.fix.command]
    assert run([word for word in command if word != "/etc/subgid"]).returncode == 0
    assert file.read_text().replace(Somebody(0).user, "root") == after


def test_world_reads_what_the_kernel_says_of_itself() -> None:
    assert World().read("/proc/sys/kernel/ostype") == "Linux\n"
    assert World().read("/proc/self/status")
    assert World().read("/proc/no/such") is None


def test_world_reads_no_more_of_a_file_than_it_may(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as stream:
        stream.truncate(6 << 20)
    text = World().read(str(large))
    assert text is not None and len(text) == 4 << 20


def test_run_absent_program_is_code_127() -> None:
    assert run(["no-such-program-anywhere"]).returncode == 127


def test_run_damaged_program_is_code_126(tmp_path: Path) -> None:
    damaged = tmp_path / "program"
    damaged.write_bytes(b"\x7fELF" + bytes(60))
    damaged.chmod(0o755)
    assert run([damaged]).returncode == 126


def test_follow_shows_both_streams_line_by_line() -> None:
    lines: list[str] = []
    ran = follow(["sh", "-c", "echo one; echo two >&2; exit 4"], lines.append)
    assert (ran.returncode, lines, ran.stdout) == (4, ["one", "two"], "one\ntwo\n")


def test_follow_absent_program_is_code_127() -> None:
    assert follow(["no-such-program-anywhere"], print).returncode == 127


def test_run_of_a_program_that_hangs_ends() -> None:
    assert run(["sleep", "60"], timeout_s=0.1).returncode == 124


def script(path: Path, body: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


APT_GET = """
echo "$@" | sed 's/.*Timeout=600 //' >> "$STATE/calls"
case $* in
*update)
    if [ -e "$STATE/locked" ]; then
        rm "$STATE/locked"
        echo "E: Could not get lock /var/lib/apt/lists/lock." >&2
        exit 100
    fi
    [ -e "$STATE/offline" ] && { echo "E: Could not resolve host" >&2; exit 100; }
    touch "$STATE/lists" ;;
*install*) [ -e "$STATE/lists" ] || { echo "E: Unable to locate package" >&2; exit 100; } ;;
esac
"""


@pytest.mark.parametrize(
    ("state", "code", "calls"),
    [
        (["lists"], 0, ["install"]),
        ([], 0, ["install", "update", "install"]),
        (["locked"], 0, ["install", "update", "update", "install"]),
        (["offline"], 1, ["install", "update"]),
    ],
    ids=["lists-fresh", "lists-empty", "lists-locked", "offline"],
)
def test_apt_install_fetches_lists_only_when_needed(
    tmp_path: Path, state: list[str], code: int, calls: list[str]
) -> None:
    script(tmp_path / "bin" / "apt-get", APT_GET)
    script(tmp_path / "bin" / "dpkg", "")
    script(tmp_path / "bin" / "sleep", "")
    for name in state:
        (tmp_path / name).touch()
    command = packages.apt_fix(["p1", "p2"]).command
    environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "STATE": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    seen = (tmp_path / "calls").read_text().splitlines()
    assert [line.split()[0] for line in seen] == calls
    assert all(line.endswith("p1 p2") for line in seen if line.startswith("install"))
