"""The formats of a built image in the cache, ``images/KEY.SUFFIX``, and copies handed to the user."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.base.errors import fail, os_error_as
from fairlead.base.paths import atomic_write
from fairlead.base.progress import Progress
from fairlead.image.signature import carry
from fairlead_build.base.proc import run
from fairlead_build.cache.store import Cache, publish, workspace
from fairlead_build.formats.images import ImageEntry, check_target, file_in
from fairlead_build.formats.model import Format


def kept(form: Format, cache: Cache, key: str) -> tuple[Path, ...]:
    """Where a format of the image ``key`` is kept: its file or folder, then its sidecars."""
    main = cache.image(key).with_suffix(form.suffix)
    return (main, *(main.with_suffix(suffix) for suffix in form.sidecars))


def is_kept(form: Format, cache: Cache, key: str) -> bool:
    """Whether it has been made."""
    return all(path.exists() for path in kept(form, cache, key))


def make(form: Format, entry: ImageEntry, cache: Cache, progress: Progress) -> Path:
    """The format in the cache, made if it is not there. The caller holds the recipe's lock.

    Raises:
        FairleadError: a tool failed, or there is no room, or the format cannot hold the image.
    """
    target, *_ = kept(form, cache, entry.key)
    if not is_kept(form, cache, entry.key):
        _write_sidecars(form, entry, target)
        if not target.exists():
            with _placed(cache.root / "work", f"{form.name}-", target, form.folder) as made:
                form.write(entry, made, progress)
    return target


def target_of(form: Format, recipe: str, output: Path) -> Path:
    """The name that a copy of the image of ``recipe`` gets: ``output``, or in a folder the recipe's."""
    own_name = form.folder and output.suffix == form.suffix
    return output if own_name else file_in(output, recipe, form.suffix)


def hand_out(
    form: Format, entry: ImageEntry, cache: Cache, output: Path, progress: Progress
) -> Path:
    """Gives the user a separate copy: signing or changing it must not reach the cache.

    Args:
        output: the name it gets, or a folder, in which it is called after its recipe.
    Raises:
        FairleadError: it cannot be written there, or a folder of that name holds something else.
    """
    target = target_of(form, entry.recipe, output)
    source, *_ = kept(form, cache, entry.key)
    with os_error_as("output-unwritable-cannot-write-image", target=target):
        check_target(target, 0)
        if form.copied:
            make(form, entry, cache, progress)
        if form.folder and (target.exists() or target.is_symlink()):
            if not form.holds(target, source, entry, progress):
                raise fail("output-exists", target=target)
        else:
            _write_sidecars(form, entry, target)
            prefix = f".{target.name}.partial-"
            with _placed(target.parent, prefix, target, form.folder) as made:
                if form.copied:
                    (shutil.copytree if form.folder else shutil.copyfile)(source, made)
                else:
                    form.write(entry, made, progress)
        carry(source, target)
    return target


def _write_sidecars(form: Format, entry: ImageEntry, target: Path) -> None:
    for suffix, text_of in form.sidecars.items():
        with atomic_write(target.with_suffix(suffix), "w") as out:
            out.write(text_of(entry))


@contextmanager
def _placed(parent: Path, prefix: str, final: Path, folder: bool) -> Iterator[Path]:
    """A new path below ``parent``; what the block wrote to it gets the name ``final``."""
    with workspace(parent, prefix) as work:
        work.chmod(0o700)  # what is half-written must not pass for an image
        made = work / "new"
        yield made
        if not folder:
            publish(made, final)
            return
        # All files at once: a sandbox has tens of thousands.
        run(
            ["sync", "--file-system", made],
            doing="write the image to disk",
            remedy=f"df {final.parent}",
        )
        final.parent.mkdir(parents=True, exist_ok=True)
        made.replace(final)
