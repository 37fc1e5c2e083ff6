"""What ``inside/install.py`` finds in a tree: wheels by role, their hashes, and the prefixes."""

from __future__ import annotations

import json
import shutil
import stat
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fairlead.base.progress import Stage
from fairlead.base.system import mount_of
from fairlead_build.base.digest import sha256_of
from fairlead_build.cache.store import check_blob, copy_blob
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import Wheel
from fairlead_build.recipe.model import Recipe
from fairlead_build.squashfs.squash import unsquash_argv
from fairlead_build.tree.debian import INSIDE, write
from fairlead_build.tree.job import TreeJob

# The wheels that make an image; those of role "build" are for sources only.
ROLES = ("python", "mpi", "installer")
# On these the mode of a file says whether a jail's ids may read it; on others a server may know better.
_BY_MODE = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Built:
    """What was built from one source; its ``folder`` in the cache holds the result and ``build.log``."""

    folder: Path

    @cached_property
    def wheel(self) -> Path | None:
        """The wheel, in normal form; None when the result is ``overlay.tar``."""
        return next(self.folder.glob("*.whl"), None)

    def staged(self, stage: Path) -> str:
        """Copies the result into a folder that a tree shows as ``/.fairlead-stage``; its path in that tree."""
        result = self.wheel or self.folder / "overlay.tar"
        folder = stage / "built" / self.folder.name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(result, folder / result.name)
        return f"/.fairlead-stage/built/{self.folder.name}/{result.name}"


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


def request(
    job: TreeJob, below: Path, scratch: Path, *folders: str, wheels: Mapping[str, Path]
) -> dict[str, Any]:
    """What a sandbox over the squashfs ``below`` is asked; ``folders`` of ``scratch`` are seen in it.

    Args:
        wheels: what :func:`stage_wheels` has returned.
    """
    given = {f"/.fairlead-{name}": str(scratch / name) for name in folders}
    given |= {f"/.fairlead-stage/{place}": str(path) for place, path in wheels.items()}
    untar = [str(word) for word in unsquash_argv(below, job.cache)]
    return {"untar": untar, "epoch": job.lock.source_date_epoch, "given": given}


def stage_wheels(
    wheels: Sequence[Wheel], built: Sequence[Built], job: TreeJob, scratch: Path, stage: Stage
) -> dict[str, Path]:
    """Lays out what :mod:`fairlead_build.tree.inside.install` reads: ``stage/ROLE/``, each wheel a copy or a place for it.

    Args:
        built: what was built from source; its wheels are for the Python prefix.
    Returns:
        Files of the store by the places in ``stage/`` where the tree is to show them: copies would take as much memory.
    Raises:
        FairleadError: a wheel in the store has changed.
    """
    inside = scratch / "stage"
    unpacked, shown = 0, dict[str, Path]()
    readable = mount_of(job.cache.blob("any").parent).kind in _BY_MODE
    for role in (*ROLES, "build"):
        (inside / role).mkdir(parents=True)
        pins = []
        for wheel in (w for w in wheels if w.role == role):
            place = inside / role / wheel.file
            if readable and job.cache.blob(wheel.sha256).stat().st_mode & stat.S_IROTH:
                shown[f"{role}/{wheel.file}"] = check_blob(job.cache, wheel.sha256)
                place.touch()
            else:
                copy_blob(job.cache, wheel.sha256, place)
            stage.advance(wheel.size)
            pins.append(f"{wheel.pin}\n")
            if role != "installer":
                unpacked += _unpacked(job.cache.blob(wheel.sha256))
        for made in built if role == "python" else ():
            if made.wheel is not None:
                name, version = made.wheel.name.split("-")[:2]
                (inside / role / made.wheel.name).symlink_to(made.staged(inside))
                pins.append(f"{name}=={version} --hash=sha256:{sha256_of(made.wheel)}\n")
                unpacked += _unpacked(made.wheel)
        write(inside / role / "requirements.txt", "".join(pins))
    write(inside / "plan.json", json.dumps({**plan_of(job.loaded), "bytes": unpacked}))
    for script in INSIDE.glob("*.py"):
        write(inside / script.name, script.read_text("utf-8"))
    return shown


def _unpacked(wheel: Path) -> int:
    """Bytes of the files in a wheel; its own for what is no zip, which pip refuses by name."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return sum(info.file_size for info in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError):  # a version that Python does not read
        return wheel.stat().st_size
