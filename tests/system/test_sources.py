"""Sources built for real: over the image's own MPI and Python, the same bytes on any machine."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from tests.system import hosts
from tests.system.test_build import running

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead_build.build import BuildResult, build
from fairlead_build.cache.store import Cache

RECIPE = Path(__file__).parents[1] / "recipes" / "from-source"
TEST_CACHE = Cache(hosts.KEPT / "fairlead")

pytestmark = pytest.mark.full  # each builds an image; that the core is in every image is seen in CI


@pytest.fixture(scope="module")
def from_source() -> BuildResult:
    """The image of tests/recipes/from-source: a C program, and a wheel of an sdist."""
    return build(RECIPE, cache=TEST_CACHE)


def inside(image: Path, *command: str) -> str:
    argv = [hosts.apptainer(), "exec", "--userns", "--cleanenv", image, *command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def results(cache: Cache) -> dict[str, bytes]:
    """What came of each source, logs apart."""
    found = [p for p in (cache.root / "sources").glob("*/*") if p.name != "build.log"]
    return {f"{p.parent.name}/{p.name}": p.read_bytes() for p in found}


def test_source_program_runs_over_the_images_own_mpi(from_source: BuildResult) -> None:
    said = inside(from_source.outputs[0], "/opt/hello/bin/hello")
    # Patched, and compiled in a folder that is the same everywhere.
    assert said == "hello from rank 0 of 1, built in hello.c\n"


def test_source_sdist_becomes_a_wheel_with_its_compiled_part(from_source: BuildResult) -> None:
    code = "import markupsafe._speedups as s; print(s.__file__)"
    said = inside(from_source.outputs[0], "python3", "-c", code)
    assert said.startswith("/opt/python/lib/python3.11/site-packages/markupsafe/_speedups.cpython")


def test_source_of_fairlead_itself_is_laid_in(from_source: BuildResult) -> None:
    library = "/usr/local/lib/fairlead/libfairlead_comm.so"
    said = inside(
        from_source.outputs[0], "python3", "-c", f"import ctypes; ctypes.CDLL({library!r})"
    )
    assert said == ""
    # Without TensorFlow there is no operation for it, and nothing that says that it failed.
    assert (
        inside(from_source.outputs[0], "ls", "/usr/local/lib/fairlead") == "libfairlead_comm.so\n"
    )
    raw = subprocess.run(
        [hosts.apptainer(), "exec", "--userns", from_source.outputs[0], "cat", library],
        capture_output=True,
        check=True,
    ).stdout
    elf = ELFFile(io.BytesIO(raw))
    dynamic = elf.get_section_by_name(".dynamic")
    # Any C library, and any MPI: it names none, and no version of a symbol.
    assert [t.needed for t in dynamic.iter_tags("DT_NEEDED")] == []
    assert elf.get_section_by_name(".gnu.version_r") is None
    assert b"/usr/src/fairlead" not in raw


def test_source_build_leaves_neither_compiler_nor_source(from_source: BuildResult) -> None:
    script = """
for tool in gcc cc make patch; do command -v $tool; done
find / -xdev \\( -name '.fairlead-*' -o -path /usr/src/fairlead -o -name 'setuptools*' \\) 2>/dev/null
"""
    assert inside(from_source.outputs[0], "sh", "-c", script + "true") == ""


def copied(cache: Cache, *folders: str, source: Cache = TEST_CACHE) -> None:
    for name in folders:
        shutil.copytree(
            source.root / name, cache.root / name, copy_function=hosts.same_file, symlinks=True
        )


@pytest.mark.full
def test_source_built_twice_with_other_cores_gives_the_same_bytes(
    from_source: BuildResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = results(TEST_CACHE)
    again = Cache(tmp_path / "cache")
    copied(again, "blobs", "debian", "tools")
    cores = os.sched_getaffinity(0)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    old = os.umask(0o077)
    try:
        os.sched_setaffinity(0, {min(cores)})
        built = build(RECIPE, cache=again)
    finally:
        os.umask(old)
        os.sched_setaffinity(0, cores)
    assert {name: before[name] for name in results(again)} == results(again)
    assert built.entry is not None and from_source.entry is not None
    assert built.entry.squashfs_sha256 == from_source.entry.squashfs_sha256


class Titles(Silent):
    """Remembers which stages there were."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def stage(self, title, total=None, unit=""):  # type: ignore[no-untyped-def]
        self.seen.append(title)
        return super().stage(title, total, unit)


def mine(folder: Path, old: str, new: str) -> Path:
    """A copy of the recipe with one text replaced."""
    target = folder / "from-source"
    shutil.copytree(RECIPE, target)
    recipe = target / "recipe.toml"
    assert old in recipe.read_text()
    recipe.write_text(recipe.read_text().replace(old, new))
    return target


def test_source_patch_that_does_not_apply_is_named(
    from_source: BuildResult, tmp_path: Path
) -> None:
    recipe = mine(tmp_path, "greeting.patch", "other.patch")
    patch = (RECIPE / "greeting.patch").read_text().replace("hi", "ho")
    (recipe / "other.patch").write_text(patch)
    with pytest.raises(FairleadError) as caught:
        build(recipe, cache=TEST_CACHE)
    finding = caught.value.findings[0]
    assert (finding.check, finding.what) == (
        "source-patch",
        "patch `other.patch` does not apply to source `hello`",
    )
    assert "Hunk #1 FAILED" in finding.why
    log = Path(finding.where.split("the whole log: ")[1])
    assert "patch -p1" in log.read_text()


def test_source_without_network_fails_with_its_last_lines_and_its_log(
    from_source: BuildResult, tmp_path: Path
) -> None:
    """Also: a program that a build leaves running ends with it."""
    long = f"{7_000_000 + os.getpid()}"  # no other test's
    lines = f"sleep {long} &\\necho about to ask\\ncat < /dev/tcp/127.0.0.1/9 || exit 7"
    recipe = mine(tmp_path, "make -j", f"bash -c '{lines}'\nmake -j".replace("\\n", "\n"))
    with pytest.raises(FairleadError) as caught:
        build(recipe, cache=TEST_CACHE)
    finding = caught.value.findings[0]
    assert finding.check == "source-build" and "about to ask" in finding.why
    assert "Connection refused" in finding.why
    output = running(long)
    assert output == []


def test_tree_remade_keeps_its_debian_part_and_its_bytes(tmp_path: Path) -> None:
    """As after a changed pip line: of Debian nothing is unpacked again, and no source is built."""
    before = build("mpi-base").entry
    again = Cache(tmp_path / "cache")
    copied(again, "blobs", "debian", "sources", "tools", source=Cache.default())
    titles = Titles()
    made = build("mpi-base", cache=again, progress=titles)
    assert "install wheels" in titles.seen
    assert not {"unpack Debian packages", "build mpi-ring 1"} & set(titles.seen)
    assert made.entry is not None and before is not None
    assert made.entry.squashfs_sha256 == before.squashfs_sha256
