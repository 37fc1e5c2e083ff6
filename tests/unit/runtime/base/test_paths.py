"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.base.paths import atomic_write, is_device

WRITES = """
import sys
from pathlib import Path
from fairlead.base.paths import atomic_write
with atomic_write(Path(sys.argv[1]), "w") as stream:
    stream.write("3 \\xd7 2 \\xb5s\\n")
"""


def test_text_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", WRITES, tmp_path / "page"], env=ascii_only, check=True)
    assert (tmp_path / "page").read_text("utf-8") == "3 × 2 µs\n"


def test_file_of_a_killed_writer_is_removed_by_the_next_and_no_other(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\nfrom fairlead.base.paths import atomic_write\n"
        "with atomic_write(pathlib.Path(sys.argv[1])) as stream:\n"
        "    stream.write(b'half'); stream.flush(); print('ready', flush=True); time.sleep(99)"
    )
    target = tmp_path / "file"
    others = [
        tmp_path / ".other.abc.partial",
        tmp_path / ".file.x",
        tmp_path / ".file.link.partial",
    ]
    for other in others[:2]:
        other.write_text("x")
        os.utime(other, (1, 1))
    others[2].symlink_to(others[0])
    with subprocess.Popen(
        [sys.executable, "-c", code, target], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout and writer.stdout.readline() == "ready\n"
        (partial,) = set(tmp_path.glob(".file.*.partial")) - set(others)
        os.utime(partial, (1, 1))
        with atomic_write(target) as stream:  # the other one lives
            stream.write(b"whole")
        assert partial.exists()
        writer.kill()
    with atomic_write(target) as stream:
        stream.write(b"again")
    assert target.read_bytes() == b"again"
    assert sorted(tmp_path.iterdir()) == sorted([target, *others])


def test_open_file_of_the_machine_is_written_to_and_never_replaced() -> None:
    """`-o /dev/stdout`; root could put a file in its place."""
    reader, writer = os.pipe()
    with atomic_write(Path(f"/dev/fd/{writer}"), "w") as stream:
        stream.write("a line\n")
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "a line\n"
    with pytest.raises(FileNotFoundError), atomic_write(Path("/dev/no-such-device")):
        pass


def test_devices_are_known_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev")
    devices = (
        "/dev/null",
        "/dev/fd/1",
        "/proc/self/fd/1",
        "/dev/../dev/null",
        f"{tmp_path}/link/null",
    )
    assert all(is_device(Path(name)) for name in devices)
    files = ("/dev/shm/file", "/dev/shm/new/file", "/development/file", f"{tmp_path}/dev/null")
    assert not any(is_device(Path(name)) for name in files)
