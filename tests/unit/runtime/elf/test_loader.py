"""Search paths of programs, as this machine's own loader understands them."""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path

import pytest
from tests.support.compiled import compiled

from fairlead.elf import reader
from fairlead.elf.facts import expanded
from fairlead.elf.loader import Loader

ENTRIES = (
    "$ORIGIN/../lib",
    "${ORIGIN}",
    "/opt/$LIB/x",
    "/opt/${LIB}/${PLATFORM}/$LIB",
    "/opt/$PLATFORM",
    "$ORIGINAL/x",
    "/a/$LIBRARY:/b",
    "/plain//folder/.",
)


def searched(program: Path, entry: str) -> set[str]:
    """The folders that the loader looks into for what ``program`` lacks."""
    done = subprocess.run([program], env={"LD_DEBUG": "libs"}, capture_output=True, text=True)
    assert done.returncode == 127
    shown = re.findall(r"search path=(\S+)\s+\((?:RPATH|RUNPATH) from file", done.stderr)
    folders = {posixpath.normpath(p) for line in shown for p in line.split(":")}
    # Below each it looks for variants of the processor (glibc-hwcaps, tls).
    return {f for f in folders if not any(f.startswith(f"{above}/") for above in folders)}


@pytest.mark.parametrize("tags", ["--disable-new-dtags", "--enable-new-dtags"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_tokens_of_search_paths_are_what_the_loader_makes_of_them(
    entry: str, tags: str, tmp_path: Path
) -> None:
    library = compiled(tmp_path / "gone/libgone.so.1", "int gone(void) { return 0; }")
    code = "int gone(void); int main(void) { return gone(); }"
    program = compiled(tmp_path / "bin/x", code, str(library), f"-Wl,{tags},-rpath,{entry}")
    library.unlink()
    facts = reader.read(program, str(program))
    folders = {f for e in entry.split(":") for f in expanded([e], str(program.parent))}
    assert folders == {*facts.rpath_folders, *facts.runpath_folders}
    real = searched(program, entry)
    assert real and real <= folders


def test_library_below_lib_of_this_machine_is_found(tmp_path: Path) -> None:
    triplet = subprocess.run(["gcc", "-dumpmachine"], capture_output=True, text=True).stdout.strip()
    home = tmp_path / "app" / "lib" / triplet
    library = compiled(home / "libnear.so.1", "int near(void) { return 0; }")
    code = "int near(void); int main(void) { return near(); }"
    tokens = f"-Wl,--enable-new-dtags,-rpath,{tmp_path}/app/$LIB"
    program = compiled(tmp_path / "app/bin/x", code, str(library), tokens)
    assert subprocess.run([program]).returncode == 0
    assert Loader().find("libnear.so.1", reader.read(program, str(program))) == library
