"""What a jail shows and whose ids it has; tests/system/test_jail.py attacks it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fairlead.base.errors import fail
from fairlead.base.progress import Silent
from fairlead_build.base import jail
from fairlead_build.base.jail import IDS, host_view, supervised, view_of
from fairlead_build.base.progress_protocol import Phases, refuse


def test_view_keeps_links_as_links_and_leaves_out_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "bin").symlink_to("usr/bin")
    view = view_of(tmp_path, ("usr", "bin", "lib64"), "/x")
    assert view == {"/x/usr": tmp_path / "usr", "/x/bin": "usr/bin"}


def test_view_of_the_host_has_programs_and_nothing_of_its_users() -> None:
    tops = {Path(place).parts[1] for place in host_view()}
    assert "usr" in tops and not tops & {"home", "root", "tmp", "var", "run", "srv", "mnt", "opt"}
    assert not {"/etc/shadow", "/etc/ssh", "/etc/ssl"} & set(host_view())


@pytest.mark.parametrize(
    ("rows", "maps"),
    [
        ("{name}:100000:65536\n", "0 {id} 1\n1 100000 65535\n"),
        ("other:5:65536\n{uid}:200000:65535\n", "0 {id} 1\n1 200000 65535\n"),
        ("{name}:100000:65534\n", "0 {id} 1\n"),  # too few for Debian's nobody
        ("", "0 {id} 1\n"),
    ],
)
def test_ids_of_a_user_are_its_own_and_a_range_that_is_large_enough(
    monkeypatch: pytest.MonkeyPatch, rows: str, maps: str
) -> None:
    uid = 4711
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "getegid", lambda: uid)
    monkeypatch.setattr(jail, "tool_path", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("pwd.getpwuid", lambda _: type("Row", (), {"pw_name": "ann"}))
    read = Path.read_text
    text = rows.format(name="ann", uid=uid)
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda self, *a, **k: text if self.name in ("subuid", "subgid") else read(self, *a, **k),
    )
    assert jail._own_ids() == dict.fromkeys(("uid", "gid"), maps.format(id=uid))


def test_refusal_of_a_supervisor_becomes_the_error_of_the_build(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        refuse(fail("sandbox-proc", why="mount proc: no\nmore"))
    phases = Phases(Silent(), tmp_path)
    for line in capfd.readouterr().err.splitlines():
        phases.feed(line)
    finding = phases.failed(["x"], 1, "build", "again").findings[0]
    assert (finding.check, finding.why.endswith("mount proc: no\nmore")) == ("sandbox-proc", True)


def test_supervisor_is_root_and_process_1_of_its_own_and_dies_with_the_block(
    tmp_path: Path,
) -> None:
    (tmp_path / "asked.py").write_text(
        "import os, sys, time\n"
        "print(os.getuid(), os.getpid(), open('/proc/self/uid_map').read().split()[3:6], flush=True)\n"
        "time.sleep(float(sys.argv[1]))\n"
    )

    sys.path.insert(0, str(tmp_path))
    try:
        with supervised("asked", "3600") as process:
            assert process.stdout is not None
            said = process.stdout.readline().decode()
        assert said.startswith("0 1 ") and process.returncode is not None
        if os.getuid() == 0:
            assert str(IDS) in said and "'0'" not in said.split("[")[1]
    finally:
        sys.path.remove(str(tmp_path))
