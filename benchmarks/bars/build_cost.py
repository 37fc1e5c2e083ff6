"""What ``fairlead build`` costs: its peak of memory, and the time that one changed pip line takes.

Memory is that of all the build's processes (proportional: what several share is divided among them) and
of the build's own ``/dev/shm``, in which it unpacks: a file system of its own, so that no other process's
files count. Both are read together, many times a second.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.bars.build_time import copy_downloads
from benchmarks.result import FAIRLEAD, Benchmark, Result, absolute
from fairlead.base.progress import Silent
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import load_lock
from fairlead_build.resolve import fetch
from fairlead_build.tree.wheel import runtime_requirements

RECIPE, LINE = "tensorflow", "tqdm>=4"
MEMORY_GIB, REBUILD_S = 2.0, 20.0
_INTERVAL_S = 0.1


def measure() -> Result:
    """GiB at the peak of a build from downloads alone; then seconds of one with a line changed."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        root = Path(name)
        root.chmod(0o755)
        changed = _changed(root / "recipes" / RECIPE)
        normal, cache = Cache.default(), Cache(root / "cache" / "fairlead")
        for recipe in (RECIPE, changed):
            loaded = load_recipe(recipe)
            lock, _ = load_lock(loaded, runtime_requirements())
            fetch.fetch(loaded, lock, normal, Silent())
            copy_downloads(lock, cache.root)
        first_s, peak = _watched([*FAIRLEAD, "build", RECIPE], root / "cache")
        again_s, again_peak = _watched([*FAIRLEAD, "build", str(changed)], root / "cache")

    rows = (
        absolute(f"fairlead build {RECIPE}, peak memory", [peak], MEMORY_GIB, "GiB"),
        absolute(f"fairlead build {RECIPE}, from downloads", [first_s], None, "s"),
        absolute(f"… with pip line `{LINE}` more, peak memory", [again_peak], MEMORY_GIB, "GiB"),
        absolute(f"… with pip line `{LINE}` more", [again_s], REBUILD_S, "s"),
    )
    what = f"fairlead build {RECIPE}: downloads cached; then again with one pip line more"
    return Result("build-cost", what, "nothing: a bar each", rows, dict(lock.tools))


def _changed(folder: Path) -> Path:
    """A copy of the recipe with one pip line more, and its lock."""
    shutil.copytree(load_recipe(RECIPE).folder, folder)
    recipe = folder / "recipe.toml"
    before = recipe.read_text()
    after = before.replace('pip = ["', f'pip = ["{LINE}", "', 1)
    assert after != before
    recipe.write_text(after)
    argv = [*FAIRLEAD, "recipe", "lock", str(folder)]
    subprocess.run(argv, check=True, capture_output=True)
    return folder


def _watched(argv: list[str], cache: Path) -> tuple[float, float]:
    """Seconds that a command took, and GiB at its peak."""
    own = 'mount -t tmpfs -o size=100% none /dev/shm; exec "$@"'
    env = {k: v for k, v in os.environ.items() if k != "TMPDIR"} | {"XDG_CACHE_HOME": str(cache)}
    begun, peak = time.perf_counter(), 0
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-ec", own, "sh", *argv],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None:
            peak = max(peak, _memory(process.pid))
            time.sleep(_INTERVAL_S)
        took = time.perf_counter() - begun
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, argv)
    return took, peak / 2**30


def _memory(pid: int) -> int:
    """Bytes of a process, all below it, and its ``/dev/shm``."""
    total = 0
    for one in _family(pid):
        with suppress(OSError, TypeError):  # it has ended
            rolled = Path(f"/proc/{one}/smaps_rollup").read_text()
            total += int(re.search(r"^Pss: +(\d+) kB", rolled, re.M)[1]) << 10  # type: ignore[index]
    with suppress(OSError):
        own = os.statvfs(f"/proc/{pid}/root/dev/shm")
        # Until it is mounted, the machine's is seen there.
        if Path(f"/proc/{pid}/root/dev/shm").stat().st_dev != Path("/dev/shm").stat().st_dev:
            total += (own.f_blocks - own.f_bfree) * own.f_frsize
    return total


def _family(pid: int) -> list[int]:
    pids = [pid]
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pids += _family(int(child))
    return pids


BENCHMARKS = (Benchmark("build-cost", 160, measure),)
