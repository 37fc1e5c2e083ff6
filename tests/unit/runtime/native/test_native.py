"""Where the compiled parts come from: an installed wheel's own, else this machine's compiler."""

from __future__ import annotations

import platform
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from fairlead import native
from fairlead.base import exposure
from fairlead.base.errors import ExitCode, FairleadError
from fairlead.comm.native_core import library_path
from fairlead.comm.native_core import load as load_core
from fairlead.image.scan import scan_tree
from fairlead.native.libraries import LIBRARIES

NO_COMPILER = {"PATH": "", "CC": "", "CXX": ""}
BY_NAME = {library.name: library for library in LIBRARIES}
ENSURE = {name: partial(native.ensure, library) for name, library in BY_NAME.items()}
AVAILABLE = {name: partial(native.available, library) for name, library in BY_NAME.items()}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel's libraries for this processor; their bytes are not those of a library."""
    folder = tmp_path / "site/fairlead/native/lib"
    (folder / platform.machine()).mkdir(parents=True)
    for name in ENSURE:
        (folder / platform.machine() / name).write_bytes(f"compiled {name}".encode())
    monkeypatch.setattr(native, "_SHIPPED", folder)
    return folder


@pytest.mark.parametrize("name", sorted(ENSURE))
def test_shipped_library_is_copied_into_the_cache_without_a_compiler(
    name: str, installed: Path, tmp_path: Path
) -> None:
    assert AVAILABLE[name](tmp_path, NO_COMPILER)
    made = ENSURE[name](tmp_path, NO_COMPILER)
    assert made.parent == tmp_path / "native" and platform.machine() in made.name
    assert made.read_bytes() == f"compiled {name}".encode()
    assert {p.name for p in made.parent.iterdir()} == {made.name, f"{made.stem}.sha256"}


@pytest.mark.parametrize("name", sorted(ENSURE))
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "without its digest"])
def test_library_that_is_not_as_it_was_made_is_made_again(
    name: str, damage: str, installed: Path, tmp_path: Path
) -> None:
    made = ENSURE[name](tmp_path, NO_COMPILER)
    whole, stamp = made.read_bytes(), made.stat().st_ino
    assert ENSURE[name](tmp_path, NO_COMPILER).stat().st_ino == stamp  # a whole one is kept
    if damage == "flipped":
        made.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    elif damage == "cut":
        made.write_bytes(whole[:-1])
    else:
        (made if damage == "gone" else made.with_suffix(".sha256")).unlink()
    assert ENSURE[name](tmp_path, NO_COMPILER).read_bytes() == whole
    assert ENSURE[name](tmp_path, NO_COMPILER) == made


@pytest.mark.parametrize("name", sorted(ENSURE))
@pytest.mark.parametrize(
    ("part", "mode"),
    [
        ("cache/native", 0o777),
        ("cache", 0o757),
        ("cache", 0o775),
        (".", 0o777),
        ("behind", 0o777),
    ],
)
def test_cache_that_others_can_write_to_is_refused(
    name: str,
    part: str,
    mode: int,
    installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exposure, "private_group", lambda gid: False)
    cache = tmp_path / "cache"
    if part == "behind":
        (tmp_path / "behind/real").mkdir(parents=True)
        cache.symlink_to("behind/real")
    ENSURE[name](cache, NO_COMPILER)
    (tmp_path / part).chmod(mode)
    try:
        with pytest.raises(FairleadError) as caught:
            ENSURE[name](cache, NO_COMPILER)
    finally:
        (tmp_path / part).chmod(0o755)
    (finding,) = caught.value.findings
    assert caught.value.code is ExitCode.PREFLIGHT_REFUSED and finding.check == "cache-exposed"
    assert finding.where == str((tmp_path / part).resolve()) and "chmod go-w" in finding.remedy


def test_cache_that_others_cannot_replace_is_used(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode, private in ((0o755, False), (0o700, False), (0o775, True)):
        monkeypatch.setattr(exposure, "private_group", lambda gid, own=private: own)
        (tmp_path / "cache").mkdir(exist_ok=True)
        (tmp_path / "cache").chmod(mode)
        tmp_path.chmod(0o1777)  # sticky, as /tmp
        assert native.ensure(native.WITNESS, tmp_path / "cache", NO_COMPILER).is_file()


@pytest.mark.parametrize("name", sorted(ENSURE))
def test_library_of_another_version_gets_another_name(
    name: str, installed: Path, tmp_path: Path
) -> None:
    before = ENSURE[name](tmp_path, NO_COMPILER)
    (installed / platform.machine() / name).write_bytes(b"compiled anew")
    after = ENSURE[name](tmp_path, NO_COMPILER)
    assert after != before and after.read_bytes() == b"compiled anew"


@pytest.mark.parametrize("name", sorted(ENSURE))
def test_checkout_without_a_compiler_is_refused_with_what_to_install(
    name: str, tmp_path: Path
) -> None:
    assert native.shipped(BY_NAME[name]) is None, "a checkout brings no compiled library"
    assert not AVAILABLE[name](tmp_path, NO_COMPILER)
    with pytest.raises(FairleadError) as caught:
        ENSURE[name](tmp_path, NO_COMPILER)
    assert "install a C" in caught.value.findings[0].remedy and int(caught.value.code) == 123


def test_other_processor_compiles_where_the_wheel_has_nothing_for_it(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "ppc64le")
    assert native.shipped(native.CORE) is None
    assert not native.available(native.CORE, tmp_path, NO_COMPILER)


def test_cache_that_cannot_be_written_is_reported_as_such(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "native").write_text("a file where the folder should be")
    with pytest.raises(FairleadError) as caught:
        native.ensure(native.WITNESS, tmp_path, NO_COMPILER)
    assert caught.value.findings[0].check == "witness"


def test_rank_without_fairlead_run_takes_the_installed_core(installed: Path) -> None:
    load_core.cache_clear()
    path, why = library_path({"PATH": ""})
    assert (path, why) == (str(installed / platform.machine() / native.CORE.name), "")


def test_witness_in_an_image_is_not_taken_for_a_program_with_an_mpi(tmp_path: Path) -> None:
    """An image that holds our wheel holds the witness, which defines MPI_Init and PMPI_Init."""
    folder = tmp_path / "site-packages/fairlead/native/lib"
    folder.mkdir(parents=True)
    shutil.copy(native.ensure(native.WITNESS, tmp_path / "cache"), folder / "witness.so")
    assert not scan_tree(tmp_path / "site-packages").consumers


def test_clang_is_not_offered_for_the_core_whose_kernels_it_would_compile_for_one_processor(
    tmp_path: Path,
) -> None:
    for name in ("clang", "clang++"):
        (tmp_path / name).symlink_to("/bin/true")
    only = {"PATH": str(tmp_path)}
    assert native.compiler(only) == ("clang",) and native.cxx_compiler(only) == ()
    assert native.cxx_compiler({**only, "CXX": "clang++ -O3"}) == ("clang++", "-O3")


def test_core_and_witness_take_the_same_libraries_for_an_mpi() -> None:
    named = [
        set(re.findall(r'"(_[a-z0-9_]+)"', re.search(r"[{]\"_cxx\".*?[}]", text)[0]))  # type: ignore[index]
        for text in (
            (native.core_folder() / "src/mpi.cpp").read_text(),
            (native.SOURCES / "witness.c").read_text(),
        )
    ]
    assert named[0] == named[1] and "_gtl_" in named[0]
