"""``fairlead images``: what images take in the cache, and their removal."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import click

from fairlead.base.errors import fail
from fairlead.base.paths import cache_dir
from fairlead.base.progress import human_bytes
from fairlead.cli.declare import JSON, argument, declared, option
from fairlead.cli.group import Group
from fairlead.cli.names import completer
from fairlead.cli.screen import answer, table
from fairlead.image import stored
from fairlead.image.stored import Stored
from fairlead.launch import unpack
from fairlead.launch.unpack import Unpacked

_DAY_S = 24 * 3600.0
DRY_RUN = option("--dry-run", "Print what would be removed, and remove nothing.")


@click.group(cls=Group)
def images() -> None:
    """Manage the images in the cache: list, remove, prune.

    \b
    fairlead images list
    fairlead images remove my-image
    fairlead images prune --dry-run
    """


@images.command("list", short_help="List built and pulled images.")
@declared
def list_images(as_json: bool = JSON) -> None:
    """List built and pulled images: size, when made, when last read.

    `previous` is an image that a newer one of its recipe replaced, kept for the jobs that use it. The size
    includes the tree that the next build of the recipe starts from.

    \b
    fairlead images list
    """
    cache = cache_dir()
    every, laid_out = stored.stored(cache), list(unpack.unpacked(cache))
    rows = [
        (i.kind, human_bytes(i.bytes), _day(i.made), _day(i.used), _formats(i), i.title)
        for i in every
    ]
    for folder in laid_out:
        of = [i.title for i in every if _is_of(folder, i)]
        title, form = (
            next(iter(of), folder.image or str(folder.path)),
            folder.path.suffix[1:] or "folder",
        )
        rows.append(("unpacked", human_bytes(folder.bytes), _day(folder.made), _day(folder.used), form, title))  # fmt: skip
    text = table(rows, ("KIND", "SIZE", "MADE", "READ", "FORMATS", "IMAGE"))
    amount = sum(i.bytes for i in every) + sum(folder.bytes for folder in laid_out)
    answer(
        as_json,
        "images",
        {"images": every, "unpacked": laid_out, "bytes": amount},
        text or "no image is in the cache: fairlead build mpi-base",
        f"{len(every)} images, {human_bytes(amount)}" if rows else None,
    )


@images.command(short_help="Remove images by name.")
@declared
def remove(
    names: tuple[str, ...] = argument(
        metavar="IMAGE...", nargs=-1, required=True, shell_complete=completer("image")
    ),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Remove images in all their formats; an image that a process here uses is refused.

    IMAGE is a name or a path of `fairlead images list`. What runs on other nodes is not seen.

    \b
    fairlead images remove my-image
    fairlead images remove docker://registry.example.org/ml/mpi-base:1 --dry-run
    """
    cache = cache_dir()
    chosen = list(dict.fromkeys(stored.named(cache, name) for name in names))
    laid_out = list(unpack.unpacked(cache))
    unpacked = [
        folder.path for folder in laid_out if any(_is_of(folder, image) for image in chosen)
    ]
    for path in unpacked:
        if pids := stored.users([path]):
            raise fail("unpacked-in-use", path=path, pids=",".join(map(str, pids)))
    for image in chosen:
        stored.check_unused(image)
    _remove("images-remove", cache, chosen, unpacked, dry_run, as_json)


@images.command(short_help="Remove images that were replaced or not used for long.")
@declared
def prune(
    days: float = option(
        "--unused DAYS", "Those not read for so long.", default=30.0, type=click.FloatRange(0)
    ),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Remove previous and pulled images, and unpacked ones, that were not used for long.

    The newest image of each recipe stays, and whatever a process here uses.

    \b
    fairlead images prune
    fairlead images prune --unused 7 --dry-run
    """
    cache = cache_dir()
    before = time.time() - days * _DAY_S
    old = [i for i in stored.stored(cache) if i.kind != "built" and i.used < before]
    chosen = [image for image in old if not stored.users(image.files)]
    unpacked = list(unpack.unused(cache / "unpacked", days * _DAY_S))
    unpacked = [path for path in unpacked if not stored.users([path])]
    _remove("images-prune", cache, chosen, unpacked, dry_run, as_json)


def _is_of(unpacked: Unpacked, image: Stored) -> bool:
    """Whether it was made of that image: by its digest, or where no record has that, by its path."""
    return unpacked.digest == image.digest or unpacked.image in map(str, image.files)


def _remove(
    kind: str, cache: Path, chosen: list[Stored], unpacked: list[Path], dry_run: bool, as_json: bool
) -> None:
    amount = sum(i.bytes for i in chosen) + sum(map(stored.size, unpacked))
    lines = [f"{image.title}: {human_bytes(image.bytes)}" for image in chosen]
    lines += [f"{path}: {human_bytes(stored.size(path))}" for path in unpacked]
    for image in chosen if not dry_run else ():
        stored.remove(image, cache)
    for path in unpacked if not dry_run else ():
        unpack.forget(path)
    document = {"images": chosen, "unpacked": unpacked, "bytes": amount, "dry_run": dry_run}
    verb = "would remove" if dry_run else "removed"
    answer(as_json, kind, document, "\n".join([*lines, f"{verb} {human_bytes(amount)}"]))


def _day(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d")


def _formats(image: Stored) -> str:
    kinds = {path.suffix.lstrip(".") for path in image.files if path.parent == image.path.parent}
    return " ".join(sorted(kinds & {"sif", "squashfs", "oci", "sandbox", "meta"}))
