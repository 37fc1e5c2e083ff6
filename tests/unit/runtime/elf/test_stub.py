"""A stub leads the loader to the library that it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.compiled import compiled

from fairlead.elf import reader
from fairlead.elf.stub import MACHINES, stub

OPEN = """
import ctypes, sys
already = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in sys.argv[2:]]
print(ctypes.CDLL(sys.argv[1]).answer())
"""


def asked(*words: str, library_path: str = "") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", OPEN, *words]
    environ = {"LD_LIBRARY_PATH": library_path}
    return subprocess.run(argv, capture_output=True, text=True, env=environ, check=False)


def test_stub_opened_gives_the_symbols_of_the_library_behind_it(tmp_path: Path) -> None:
    compiled(tmp_path / "there/libanswer.so.1", "int answer(void) { return 42; }")
    path = tmp_path / "libanswer.so"
    path.write_bytes(stub("libanswer.so", "libanswer.so.1", "x64"))
    done = asked(str(path), library_path=str(tmp_path / "there"))
    assert done.stdout == "42\n", done.stderr
    lost = asked(str(path))
    assert "libanswer.so.1: cannot open shared object file" in lost.stderr


def test_stub_finds_a_library_that_is_mapped_already(tmp_path: Path) -> None:
    """As torch maps libcudart.so.12 from its own folder, which no search path has."""
    real = compiled(tmp_path / "hidden/libanswer.so.1", "int answer(void) { return 7; }")
    path = tmp_path / "libanswer.so"
    path.write_bytes(stub("libanswer.so", "libanswer.so.1", "x64"))
    assert asked(str(path), str(real)).stdout == "7\n"


def test_stub_searches_its_own_rpath(tmp_path: Path) -> None:
    """What opens it may have a DT_RPATH, which does not hold for what it needs."""
    real = compiled(tmp_path / "hidden/libanswer.so.1", "int answer(void) { return 9; }")
    path = tmp_path / "libanswer.so"
    path.write_bytes(stub("libanswer.so", "libanswer.so.1", "x64", str(real.parent)))
    assert asked(str(path)).stdout == "9\n"
    assert reader.read(path).rpath == (str(real.parent),)


@pytest.mark.parametrize("machine", MACHINES)
def test_stub_of_any_machine_reads_as_what_it_is(tmp_path: Path, machine: str) -> None:
    path = tmp_path / "libcuda.so"
    path.write_bytes(stub("libcuda.so", "libcuda.so.1", machine))
    elf = reader.read(path)
    assert (elf.machine, elf.soname, elf.needed) == (machine, "libcuda.so", ("libcuda.so.1",))
    checked = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True)
    assert not checked.stderr
