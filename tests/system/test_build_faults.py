"""Builds that are killed, cut off, without room or in each other's way: what is left is whole.

Each ends with a message or is killed, nothing of it runs on, no half file bears a final name, and
the next build gives the image that an undisturbed one gives.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts
from tests.system.sitemirror import Wire, mirror
from tests.system.test_build import running, wait_for

from fairlead.base.progress import Silent
from fairlead_build.build import build
from fairlead_build.cache.store import Cache, missing, scratch_parent, workspace
from fairlead_build.formats.images import ImageEntry
from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import Lock, load_lock
from fairlead_build.resolve import fetch
from fairlead_build.tools import tool_tree
from fairlead_build.tree import sources
from fairlead_build.tree.wheel import runtime_requirements

RECIPE = "mpi-base"
SEED = 20261121
_MEBI = 1 << 20


@pytest.fixture(scope="module")
def reference() -> ImageEntry:
    """The image as it is when nobody disturbs its build."""
    entry = build(RECIPE).entry
    assert entry is not None
    return entry


@pytest.fixture(scope="module")
def lock() -> Lock:
    return load_lock(load_recipe(RECIPE), runtime_requirements())[0]


def stocked(root: Path, lock: Lock, tree: str = "") -> Path:
    """A cache below ``root`` that has the downloads, and the finished tree called ``tree`` with its core."""
    source, target = Cache.default(), Cache(root / "fairlead")
    target.make()
    for package in (*lock.packages, *tool_tree.debs()):
        shutil.copy(source.blob(package.sha256), target.blob(package.sha256))
    if tree:
        shutil.copytree(
            tool_tree.unpacked(source), target.tools(tool_tree.identity()), symlinks=True
        )
        shutil.copy(source.tree(tree), target.tree(tree))
        shutil.copy(source.tree_record(tree), target.tree_record(tree))
        loaded = load_recipe(RECIPE)
        for key in sources.keys(loaded, lock, sources.compiled_bundled(loaded, lock)):
            shutil.copytree(source.source(key), target.source(key))
    root.chmod(0o755)
    return root


def sound(root: Path) -> None:
    """Whatever bears a final name below ``root`` is what an undisturbed build puts there."""
    whole, found = Cache.default().root, root / "fairlead"
    for path in (p for p in found.rglob("*") if p.is_file() and not p.is_symlink()):
        place = path.relative_to(found)
        if place.parts[0] in ("work", "locks", "facts") or path.name.startswith("."):
            continue
        if place.parts[:2] == ("images", "by-name"):
            image = Path(json.loads(path.read_text())["path"])
            assert _sha256(image) == json.loads(path.read_text())["sif_sha256"], place
        else:
            assert _sha256(path) == _sha256(whole / place), f"{place} is half a file"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def built(root: Path, scratch: Path, reference: ImageEntry) -> None:
    """The next build gives the right image, and leaves no scratch of those before it."""
    done = hosts.fairlead("build", RECIPE, "--json", env=places(root, scratch), limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    image = hosts.answer(done)["image"]
    assert image["squashfs_sha256"] == reference.squashfs_sha256
    assert image["sif_sha256"] == reference.sif_sha256
    sound(root)
    assert not list((root / "fairlead/work").iterdir()) and not list(scratch.iterdir())
    assert not running(str(scratch)) and str(root) not in Path("/proc/mounts").read_text()


def places(root: Path, scratch: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(root), "TMPDIR": str(scratch)}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where there is room: a build syncs whatever it keeps, and disks are not the point."""
    with workspace(scratch_parent(2 << 30), "fairlead-faults-") as folder:
        yield folder


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A TMPDIR of its own."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    tmp_path.chmod(0o755)
    folder.chmod(0o755)
    return folder


# --- killed ------------------------------------------------------------------------------------


def killed_after(seconds: float, root: Path, scratch: Path) -> None:
    """A build that is killed ``seconds`` after it began; nothing that it started outlives it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "build", RECIPE],
        env={**os.environ, **places(root, scratch)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    process.wait()
    wait_for(lambda: not running(str(scratch)) and not running(str(root)))
    sound(root)


@pytest.mark.full
def test_build_killed_at_ten_moments_leaves_nothing_half(
    reference: ImageEntry, lock: Lock, tmp_path: Path, scratch: Path
) -> None:
    """Five kills before the tree is done, five after; each build goes on where the last one died."""
    rng = random.Random(SEED)
    early = stocked(tmp_path / "early", lock)
    late = stocked(tmp_path / "late", lock, reference.tree)
    for _ in range(5):
        killed_after(rng.uniform(0.2, 6), early, scratch)
        killed_after(rng.uniform(0.3, 2), late, scratch)
    built(late, scratch, reference)


@pytest.mark.full
def test_build_killed_at_any_moment_is_built_by_the_next(
    reference: ImageEntry, lock: Lock, tmp_path: Path, scratch: Path
) -> None:
    """Ten kills, each of a build from the downloads on; after each, a build that succeeds."""
    rng = random.Random(SEED + 1)
    begun = time.monotonic()
    built(stocked(tmp_path / "whole", lock), scratch, reference)
    whole = time.monotonic() - begun
    for number in range(10):
        root = stocked(tmp_path / f"cache-{number}", lock)
        killed_after(whole * rng.random(), root, scratch)
        built(root, scratch, reference)
        shutil.rmtree(root)


@pytest.mark.parametrize("victim", [pytest.param("tar2sqfs", marks=pytest.mark.full), "mmdebstrap"])
def test_build_whose_tool_is_killed_says_which(
    reference: ImageEntry, lock: Lock, tmp_path: Path, scratch: Path, victim: str
) -> None:
    """As the kernel does when memory runs out."""
    root = stocked(tmp_path / "cache", lock)
    process = begin(root, scratch)
    wait_for(lambda: [os.kill(pid, signal.SIGKILL) for pid in working(process.pid, victim)])
    finding = refused(process)
    assert finding["check"] == "tool-failed" and victim in finding["where"], finding
    wait_for(lambda: not running(str(scratch)))
    assert not list(scratch.iterdir())
    sound(root)


def working(pid: int, program: str) -> list[int]:
    """Descendants of ``pid`` that run ``program`` and not, any more, what started it."""
    found = []
    for child in descendants(pid):
        with suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            names = {word.rsplit(b"/", 1)[-1] for word in words[:4]}
            if program.encode() in names and b"setpriv" not in names:
                found.append(child)
    return found


def begin(root: Path, scratch: Path, enter: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*enter, sys.executable, "-m", "fairlead", "build", RECIPE, "--json"],
        env={**os.environ, **places(root, scratch)},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def refused(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The finding that a build ended with; it has all its parts, and there is no traceback."""
    out, err = process.communicate(timeout=200)
    assert process.returncode == 1 and "Traceback" not in err, out + err
    (finding,) = json.loads(out)["findings"]
    assert all(finding[part] for part in ("what", "where", "why", "remedy", "check")), finding
    return dict(finding)


def descendants(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


# --- no room -----------------------------------------------------------------------------------


@dataclass
class Disks:
    """Folders that are file systems of their own, in a mount namespace that ``holder`` keeps."""

    holder: int

    @property
    def enter(self) -> tuple[str, ...]:
        return ("nsenter", f"--mount=/proc/{self.holder}/ns/mnt", "--wd=/")

    def inside(self, folder: Path) -> Path:
        """``folder`` as the namespace sees it, for this process."""
        return Path(f"/proc/{self.holder}/root{folder}")

    def fill(self, folder: Path) -> None:
        with suppress(OSError), (self.inside(folder) / "ballast").open("wb") as out:
            while True:
                out.write(bytes(_MEBI))


@contextmanager
def disks(script: str) -> Iterator[Disks]:
    """What ``script`` mounts is there for the block, and for nobody else."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small file system that mmdebstrap's user ids may use")
    argv = ["unshare", "--mount", "sh", "-ec", f"{script}\necho ready\nexec cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"ready\n"
            yield Disks(holder.pid)
        finally:
            holder.stdin.close()


def small(folder: Path, megabytes: int) -> str:
    return f"mount -t tmpfs -o size={megabytes}m none '{folder}'"


# What is full, and whether the tree is there already.
_FILLED = [
    pytest.param(
        "cache",
        False,
        id="cache, while unpacking",
        marks=pytest.mark.full,  # noticed only when the tree is written, at the end
    ),
    pytest.param("scratch", False, id="TMPDIR, while unpacking"),
    pytest.param("cache", True, id="cache, while writing the SIF", marks=pytest.mark.full),
    pytest.param("scratch", True, id="TMPDIR, while squashing", marks=pytest.mark.full),
]


def test_tool_that_does_not_say_why_it_failed_on_a_full_disk_had_no_room(tmp_path: Path) -> None:
    feed = (
        "import sys\nfrom pathlib import Path\nfrom fairlead.base.progress import Silent\n"
        "from fairlead_build.base.progress_protocol import Phases\n"
        "phases = Phases(Silent(), Path(sys.argv[1]))\nphases.feed('tar: cannot go on')\n"
        "print(phases.failed(['tar'], 2, 'unpack', 'again').findings[0].check)"
    )
    for free, check in ((15, "no-space"), (40, "tool-failed")):
        with disks(small(tmp_path, 60)) as room:
            (room.inside(tmp_path) / "ballast").write_bytes(bytes((60 - free) * _MEBI))
            words = (*room.enter, sys.executable, "-c", feed, tmp_path)
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == f"{check}\n"


@pytest.mark.parametrize(("which", "late"), _FILLED)
def test_build_whose_disk_is_filled_meanwhile_says_so(
    reference: ImageEntry,
    lock: Lock,
    tmp_path: Path,
    scratch: Path,
    which: str,
    late: bool,
) -> None:
    stock = stocked(tmp_path / "stock", lock, reference.tree if late else "")
    cache = tmp_path / "cache"
    cache.mkdir()
    mounts = [small(cache, 600), small(scratch, 700), f"cp -a '{stock}/.' '{cache}/'"]
    with disks("\n".join(mounts)) as room:
        process = begin(cache, scratch, room.enter)
        folder = cache if which == "cache" else scratch
        # Where the packages are unpacked, or the finished tree is looked into.
        begun = "*/mnt" if late else "*/tree/mmdebstrap.*"
        wait_for(lambda: any(room.inside(scratch).glob(begun)))
        process.send_signal(signal.SIGSTOP)  # what is left to do may take less time than filling
        room.fill(folder)
        process.send_signal(signal.SIGCONT)
        finding = refused(process)
        assert finding["check"] == "no-space", json.dumps(finding)
        sound(room.inside(cache))
        assert [p.name for p in room.inside(scratch).iterdir() if p.name != "ballast"] == []
        (room.inside(folder) / "ballast").unlink()
        if late:
            again = begin(cache, scratch, room.enter)
            out, err = again.communicate(timeout=200)
            assert again.returncode == 0, out + err
            assert json.loads(out)["image"]["sif_sha256"] == reference.sif_sha256


@pytest.mark.full
@pytest.mark.parametrize("megabytes", [20, 200, 340, 380, 500])
def test_build_on_a_small_disk_is_refused_or_succeeds(
    reference: ImageEntry, lock: Lock, tmp_path: Path, scratch: Path, megabytes: int
) -> None:
    """Cache and TMPDIR with room for so much more than the downloads."""
    stock = stocked(tmp_path / "stock", lock)
    downloads = sum(p.stat().st_size for p in stock.rglob("*") if p.is_file()) // _MEBI + 2
    cache = tmp_path / "cache"
    cache.mkdir()
    mounts = [
        small(cache, downloads + megabytes),
        small(scratch, 3 * megabytes),
        f"cp -a '{stock}/.' '{cache}/'",
    ]
    with disks("\n".join(mounts)) as room:
        process = begin(cache, scratch, room.enter)
        out, err = process.communicate(timeout=200)
        assert "Traceback" not in err
        if process.returncode == 0:
            assert json.loads(out)["image"]["sif_sha256"] == reference.sif_sha256
        else:
            (finding,) = json.loads(out)["findings"]
            assert process.returncode == 1 and finding["check"] == "no-space", finding
        sound(room.inside(cache))
        assert not list(room.inside(scratch).iterdir())


def test_build_in_a_cache_that_is_read_only_says_so(
    reference: ImageEntry, lock: Lock, tmp_path: Path, scratch: Path
) -> None:
    cache = stocked(tmp_path / "cache", lock, reference.tree)
    mounts = f"mount --bind '{cache}' '{cache}'\nmount -o remount,ro,bind '{cache}'"
    before = sorted(cache.rglob("*"))
    with disks(mounts) as room:
        finding = refused(begin(cache, scratch, room.enter))
        assert finding["check"] == "cache-unwritable", finding
        assert "XDG_CACHE_HOME" in finding["remedy"]
    assert sorted(cache.rglob("*")) == before and not list(scratch.iterdir())


def test_build_whose_cache_is_cleared_under_it_says_so(
    reference: ImageEntry, lock: Lock, tmp_path: Path, scratch: Path
) -> None:
    root = stocked(tmp_path / "cache", lock)
    process = begin(root, scratch)
    wait_for(lambda: any((root / "fairlead/work").glob("debian-*")))
    root.rename(tmp_path / "cleared")
    finding = refused(process)
    assert finding["check"] == "cache-removed" and "again" in finding["remedy"], finding
    assert not list(scratch.iterdir())


def test_build_from_a_tree_that_is_damaged_says_which_and_how_to_go_on(
    reference: ImageEntry, lock: Lock, tmp_path: Path, scratch: Path
) -> None:
    root = stocked(tmp_path / "cache", lock, reference.tree)
    tree = Cache(root / "fairlead").tree(reference.tree)
    body = bytearray(tree.read_bytes())
    body[len(body) // 2] ^= 1  # in the compressed content of some file
    tree.write_bytes(body)
    finding = refused(begin(root, scratch))
    assert finding["check"] == "cache-damaged" and str(tree) in finding["where"], finding
    remove, _, again = finding["remedy"].partition(" && ")
    assert (remove, again) == (f"rm {tree}", f"fairlead build {RECIPE}")


# --- no network --------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    "left",
    [
        pytest.param(3 * _MEBI, id="debs"),
        pytest.param(34 * _MEBI, id="wheels"),
    ],
)
def test_build_cut_from_the_network_goes_on_from_what_it_has(
    reference: ImageEntry, lock: Lock, tmp_path: Path, scratch: Path, left: int
) -> None:
    """The mirror dies while it sends; what had come whole is not asked for again."""
    root = tmp_path / "cache"
    cache = Cache(root / "fairlead")
    cache.make()
    for deb in tool_tree.debs():
        shutil.copy(Cache.default().blob(deb.sha256), cache.blob(deb.sha256))
    wire = Wire(left)
    with mirror([lock], Cache.default(), wire) as url:
        site = {"FAIRLEAD_INDEX_DEBIAN": f"{url}/debian", "PIP_INDEX_URL": f"{url}/simple"}
        env = {**places(root, scratch), **site, "PIP_RETRIES": "1", "PIP_NO_CACHE_DIR": "1"}
        done = hosts.fairlead("build", RECIPE, "--json", env=env)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        (finding,) = hosts.answer(done)["findings"]
        assert finding["check"] == "tool-failed" and "same command again" in finding["remedy"]
        sound(root)
        assert not list((cache.root / "work").iterdir())
        came = {p.name for p in (cache.root / "blobs/sha256").iterdir()}

        wire.left, wire.served = 1 << 60, []
        with _environment({**site, "PIP_NO_CACHE_DIR": "1"}):
            fetch.fetch(load_recipe(RECIPE), lock, cache, Silent())
        assert not missing(lock.packages, cache)
        asked = {path.rsplit("/", 1)[-1] for path in wire.served}
        kept = [d for d in lock.deb if d.sha256 in came]
        assert (left < 20 * _MEBI or kept) and not asked & {Path(d.path).name for d in kept}
        sound(root)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# --- two at once -------------------------------------------------------------------------------


def test_two_builds_at_once_wait_for_each_other_and_for_no_dead_one(
    reference: ImageEntry, lock: Lock, tmp_path: Path, scratch: Path
) -> None:
    """Three of one recipe: the first is killed, the second builds, the third takes what that made."""
    root = stocked(tmp_path / "cache", lock, reference.tree)
    first = begin(root, scratch)
    wait_for(lambda: list(scratch.iterdir()))
    second, third = begin(root, scratch), begin(root, scratch)
    wait_for(lambda: {second.pid, third.pid} <= waiting_for_a_lock())
    first.kill()
    first.communicate()
    output = []
    for process in (second, third):
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, out + err
        assert "wait for process" in err
        output.append(json.loads(out))
    assert {t["image"]["sif_sha256"] for t in output} == {reference.sif_sha256}
    sound(root)
    assert not list(scratch.iterdir()) and not list((root / "fairlead/work").iterdir())


def waiting_for_a_lock() -> set[int]:
    """Processes that wait for a file lock (proc_locks(5))."""
    lines = Path("/proc/locks").read_text().splitlines()
    return {int(line.split()[5]) for line in lines if " -> " in line}
