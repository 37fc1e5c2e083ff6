"""ELF facts of this very system's files, and of damaged ones."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.compiled import CALLS, MAIN, MPICH, OPENMPI, OPENS, PLAIN, archive, compiled

from fairlead.elf import reader
from fairlead.elf.facts import Elf
from fairlead.elf.mpi_symbols import contains_mpi, is_mpi_library


def mapped(pattern: str) -> Path:
    """A file that this process has mapped."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if re.search(pattern, line):
            return Path(line.split()[-1])
    raise AssertionError(f"nothing like {pattern} is mapped")


LIBC = mapped(r"/libc\.so\.6|/libc-[\d.]+\.so")
SMALL = mapped(r"/_?(ctypes|struct|json|socket|select)\S*\.so")


def test_read_libc_has_its_name_machine_and_versions() -> None:
    facts = reader.read(LIBC, "/lib/libc.so.6")
    assert facts.path == "/lib/libc.so.6"
    assert facts.soname == "libc.so.6"
    release = os.confstr("CS_GNU_LIBC_VERSION") or ""
    assert facts.offers["GLIBC"] == release.split()[1]
    assert facts.machine == {"x86_64": "x64", "aarch64": "AArch64"}[os.uname().machine]
    assert not facts.mpi_exports and not facts.mpi_imports


def test_read_python_has_interpreter_needs_and_build_id() -> None:
    program = Path(sys.executable).resolve()
    facts = reader.read(program)
    assert facts.interpreter.startswith("/lib")
    assert "libc.so.6" in facts.needed
    assert reader.version_key(facts.needs["GLIBC"]) >= (2, 2)
    assert facts.soname == ""


def test_read_agrees_with_ldd_about_a_library() -> None:
    facts = reader.read(SMALL)
    listed = subprocess.run(["ldd", SMALL], capture_output=True, text=True, check=True).stdout
    for name in facts.needed:
        assert name in listed


@pytest.mark.parametrize("words", [(), ("-static",), ("-static-pie", "-fPIE")], ids=str)
@pytest.mark.parametrize("strip", [(), ("-s",)], ids=str)
@pytest.mark.parametrize(("code", "family"), [(MPICH, "mpich"), (OPENMPI, "openmpi")])
def test_read_program_with_a_static_mpi_contains_it_however_it_is_linked(
    words: tuple[str, ...], strip: tuple[str, ...], code: str, family: str, tmp_path: Path
) -> None:
    library = str(archive(tmp_path, code))
    facts = reader.read(compiled(tmp_path / "program", MAIN + CALLS, library, *words, *strip))
    assert facts.can_start and facts.holds == family


@pytest.mark.parametrize("strip", [(), ("-s",)], ids=str)
@pytest.mark.parametrize("hide", [("-Wl,--exclude-libs,ALL",), ("-Wl,-Bsymbolic",), ()], ids=str)
@pytest.mark.parametrize("name", ["libsolver.so.1", "ext.cpython-311.so"])
def test_read_library_with_a_static_mpi_contains_it_exported_or_not(
    name: str, hide: tuple[str, ...], strip: tuple[str, ...], tmp_path: Path
) -> None:
    inside = str(archive(tmp_path, MPICH, pic="-fPIC"))
    facts = reader.read(compiled(tmp_path / name, CALLS, inside, *hide, *strip))
    assert facts.holds == "mpich" and contains_mpi(facts) and not is_mpi_library(facts)
    assert not facts.can_start
    assert bool(facts.mpi_exports) is ("--exclude-libs" not in str(hide))


def test_read_program_without_a_static_mpi_contains_none(tmp_path: Path) -> None:
    library = compiled(tmp_path / "libmpi.so.12", MPICH)
    assert not contains_mpi(reader.read(library)) and not reader.read(library).can_start
    calls = reader.read(compiled(tmp_path / "calls", MAIN + CALLS, str(library)))
    assert calls.can_start and not calls.holds and not calls.opens
    tracer = CALLS.replace("MPI_Init", "PMPI_Init") + "int MPI_Init(void) { return call(); }" + MAIN
    assert not reader.read(compiled(tmp_path / "traced", tracer, str(library))).holds
    opens = "int MPI_Init(void) { return 0; }"  # of the MPI that it opens
    assert not contains_mpi(reader.read(compiled(tmp_path / "libtrace.so", opens)))
    assert not reader.read(compiled(tmp_path / "plain", PLAIN, "-static")).holds
    assert reader.read(compiled(tmp_path / "opens", OPENS)).opens
    for option in ("-f", "-F"):  # the loader opens the library behind it
        words = (f"-Wl,{option},libmpi.so.12",)
        assert reader.read(compiled(tmp_path / f"libfilter{option}.so.1", opens, *words)).opens


@pytest.mark.parametrize("content", [b"", b"\x7fEL", b"#!/bin/sh\necho\n", b"\x7fELF", b"MZ" * 99])
def test_read_what_is_no_elf_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(reader.NotElf):
        reader.read(path)


def facts_or_refusal(path: Path, content: bytes) -> None:
    """Anything but a result or NotElf is a defect."""
    path.write_bytes(content)
    with contextlib.suppress(reader.NotElf):
        assert isinstance(reader.read(path), Elf)


WHOLE = SMALL.read_bytes()


@given(length=st.integers(0, len(WHOLE)))
@example(length=64)
@example(length=len(WHOLE) - 1)
def test_read_truncated_anywhere_is_a_result_or_refused(length: int, tmp_path: Path) -> None:
    facts_or_refusal(tmp_path / "cut", WHOLE[:length])


@given(
    places=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 63), st.integers(0, len(WHOLE) - 1)), st.integers(0, 255)
        ),
        min_size=1,
        max_size=12,
    )
)
def test_read_damaged_anywhere_is_a_result_or_refused(
    places: list[tuple[int, int]], tmp_path: Path
) -> None:
    content = bytearray(WHOLE)
    for place, value in places:
        content[place] = value
    facts_or_refusal(tmp_path / "damaged", bytes(content))


@given(tail=st.binary(max_size=400))
def test_read_any_bytes_after_the_magic_are_a_result_or_refused(
    tail: bytes, tmp_path: Path
) -> None:
    facts_or_refusal(tmp_path / "noise", b"\x7fELF" + tail)


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), min_size=1))
def test_newest_is_the_highest_by_number(versions: list[list[int]]) -> None:
    texts = [".".join(map(str, v)) for v in versions]
    assert reader.version_key(reader.newest(texts)) == tuple(max(versions))
