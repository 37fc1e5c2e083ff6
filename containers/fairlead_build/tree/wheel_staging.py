"""What ``inside/install.py`` finds in a tree: wheels by role, their hashes, and the prefixes."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fairlead.base.progress import Stage
from fairlead_build.base.digest import sha256_of
from fairlead_build.cache.store import check_blob
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import Wheel
from fairlead_build.recipe.model import Recipe
from fairlead_build.squashfs.squash import unsquash_argv
from fairlead_build.tree.debian import INSIDE, write
from fairlead_build.tree.job import TreeJob

# The wheels that make an image; those of role "build" are for sources only.
ROLES = ("python", "mpi", "installer")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Built:
    """What was built from one source; its ``folder`` in the cache holds the result and ``build.log``."""

    folder: Path

    @cached_property
    def wheel(self) -> Path | None:
        """The wheel, in normal form; None when the result is ``overlay.tar``."""
        return next(self.folder.glob("*.whl"), None)

    @property
    def inside(self) -> str:
        """Its path in a tree that has the cache's sources at ``/.fairlead-sources``."""
        result = self.wheel.name if self.wheel else "overlay.tar"
        return f"/.fairlead-sources/{self.folder.name}/{result}"


def path_of(recipe: Recipe, below: str = "") -> str:
    """PATH in an image of ``recipe``; ``below`` is that of the image that it starts from."""
    bins = [f"{recipe.python.prefix}/bin"] if recipe.python else []
    if recipe.mpi_prefix:
        bins.append(f"{recipe.mpi_prefix}/bin")
    return ":".join([*bins, below or _SYSTEM_PATH])


def plan_of(loaded: LoadedRecipe) -> dict[str, str]:
    """The prefixes, as :mod:`fairlead_build.tree.inside.install` wants them."""
    python = loaded.recipe.python
    return {"python": python.prefix if python else "", "mpi": loaded.recipe.mpi_prefix}


def variables_of(recipe: Recipe) -> dict[str, str]:
    """What a recipe passes to the builds of its sources about its image."""
    return {
        "PATH": path_of(recipe),
        "PREFIX": recipe.python.prefix if recipe.python else "/usr/local",
        "MPI_PREFIX": recipe.mpi_prefix or "/usr",
    }


def request(job: TreeJob, below: Path, scratch: Path, *folders: str) -> dict[str, Any]:
    """What a sandbox over the squashfs ``below`` is asked; ``folders`` of ``scratch`` are seen in it."""
    binds = {f"/.fairlead-{name}": str(scratch / name) for name in folders}
    binds["/.fairlead-blobs"] = str(job.cache.root / "blobs" / "sha256")
    binds["/.fairlead-sources"] = str(job.cache.root / "sources")
    untar = [str(word) for word in unsquash_argv(below, job.cache)]
    return {"untar": untar, "epoch": job.lock.source_date_epoch, "binds": binds}


def stage_wheels(
    wheels: Sequence[Wheel], built: Sequence[Built], job: TreeJob, scratch: Path, stage: Stage
) -> None:
    """Lays out what :mod:`fairlead_build.tree.inside.install` reads: ``stage/ROLE/``, each wheel a link into the store.

    Args:
        built: what was built from source; its wheels are for the Python prefix.
    Raises:
        FairleadError: a wheel in the store has changed.
    """
    inside = scratch / "stage"
    unpacked = 0
    for role in (*ROLES, "build"):
        (inside / role).mkdir(parents=True)
        pins = []
        for wheel in (w for w in wheels if w.role == role):
            blob = check_blob(job.cache, wheel.sha256)
            stage.advance(wheel.size)
            (inside / role / wheel.file).symlink_to(f"/.fairlead-blobs/{wheel.sha256}")
            pins.append(f"{wheel.pin}\n")
            if role != "installer":
                unpacked += _unpacked(blob)
        for made in built if role == "python" else ():
            if made.wheel is not None:
                name, version = made.wheel.name.split("-")[:2]
                (inside / role / made.wheel.name).symlink_to(made.inside)
                pins.append(f"{name}=={version} --hash=sha256:{sha256_of(made.wheel)}\n")
                unpacked += _unpacked(made.wheel)
        write(inside / role / "requirements.txt", "".join(pins))
    write(inside / "plan.json", json.dumps({**plan_of(job.loaded), "bytes": unpacked}))
    for script in INSIDE.glob("*.py"):
        write(inside / script.name, script.read_text("utf-8"))


def _unpacked(wheel: Path) -> int:
    """Bytes of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return sum(info.file_size for info in archive.infolist())
