"""``fairlead build`` against ``apptainer build`` of the same recipe, rendered.

Both start from files that are here already: fairlead's download cache holds the packages, and a
mirror and index on loopback hand the same files to Apptainer, whose base image is unpacked in its
cache. Both work in memory. Ours makes tree and image again in each round. One bar is for the command
that one types, with which Apptainer packs by gzip; the other for one that packs by zstd at our level.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from tests.system.sitemirror import Site, site

from benchmarks.result import FAIRLEAD, Benchmark, Result, alternate, compare, seconds_of
from fairlead.base.paths import cache_dir
from fairlead_build.build import build
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import Lock
from fairlead_build.render import lock_of, render_recipe

RECIPE, ROUNDS, BAR, ZSTD_BAR = "tensorflow", 2, 0.5, 1.0
# Downloads, and what is made once a machine: the tools, and our own wheel.
KEPT = ("blobs", "tools", "runtime")


def measure() -> Result:
    """Seconds of wall time of each side, in turns."""
    build(RECIPE)  # whatever has to be downloaded
    loaded = load_recipe(RECIPE)
    lock = lock_of(loaded)
    assert lock is not None
    with site([lock]) as here:
        ours = here.scratch / "cache"
        copy_downloads(lock, ours / "fairlead")
        folder = render_recipe(RECIPE, here.scratch / "rendered").folder
        image = lock.inputs
        squash = f"-comp {image.compressor} -Xcompression-level {image.level}"
        sides = {
            "ours": lambda: _ours(ours),
            "theirs": lambda: _theirs(here, folder, ""),
            "zstd": lambda: _theirs(here, folder, squash),
        }
        _warm(here)
        seconds = alternate(ROUNDS, sides)
    ours_s = seconds["ours"]
    rows = (
        compare(f"fairlead build {RECIPE}", ours_s, seconds["theirs"], BAR),
        compare(f"… against `{squash}`", ours_s, seconds["zstd"], ZSTD_BAR),
    )
    against = "apptainer build --fakeroot of the rendered Singularity.def"
    what = f"fairlead build {RECIPE}, downloads cached, nothing else"
    versions = {"apptainer": here.apptainer_version, **lock.tools}
    return Result("build-tensorflow", what, against, rows, versions)


def copy_downloads(lock: Lock, target: Path) -> None:
    """What a user's second build finds: the lock's files, and what is made once a machine."""
    (target / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    for package in lock.packages:
        shutil.copy(Cache.default().blob(package.sha256), target / "blobs" / "sha256")
    for name in KEPT[1:]:
        if (cache_dir() / name).is_dir() and not (target / name).exists():
            shutil.copytree(cache_dir() / name, target / name, symlinks=True)


def _warm(here: Site) -> None:
    """Apptainer's cache gets the base image."""
    (here.scratch / "warm").mkdir()
    (here.scratch / "warm" / "Singularity.def").write_text(
        "Bootstrap: docker\nFrom: {{ BASE }}\n\n%arguments\n    BASE=\n    MIRROR=\n"
        "    PIP_INDEX_URL=\n\n%post\n    echo {{ MIRROR }} {{ PIP_INDEX_URL }}\n"
    )
    here.apptainer_build(here.scratch / "warm", here.scratch / "warm.sif")


def _ours(cache: Path) -> float:
    for name in (cache / "fairlead").iterdir():
        if name.name not in KEPT:
            shutil.rmtree(name) if name.is_dir() else name.unlink()
    environ = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return seconds_of([*FAIRLEAD, "build", RECIPE], environ)


def _theirs(here: Site, folder: Path, squash: str) -> float:
    image = here.scratch / "theirs.sif"
    image.unlink(missing_ok=True)
    begun = time.perf_counter()
    here.apptainer_build(folder, image, timeout=900, squash=squash)
    return time.perf_counter() - begun


BENCHMARKS = (Benchmark("build-tensorflow", 150, measure),)
