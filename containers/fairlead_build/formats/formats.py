"""The formats of an image: one squashfs, wrapped. Each is made once and kept beside the SIF.

=========  ==============================================  ===============
format     in the cache, ``images/``                       handed out as
=========  ==============================================  ===============
sif        ``KEY.sif``                                     NAME.sif
squashfs   ``KEY.squashfs``                                NAME.squashfs
shifter    ``KEY.squashfs`` and ``KEY.meta``               NAME.squashfs, NAME.meta
oci        ``KEY.oci/``: an OCI image layout               NAME.oci/
sandbox    ``KEY.sandbox/``: the tree, unpacked            NAME.sandbox/
=========  ==============================================  ===============
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from fairlead.base.errors import ExitCode, fail
from fairlead.base.paths import atomic_write
from fairlead.base.progress import Progress
from fairlead.base.suggest import suggest
from fairlead.image.sif import copy_object, read_sif
from fairlead.image.signature import carry, signature_file
from fairlead.image.tree_digest import scan_folder, tree_sha256
from fairlead_build.base.proc import run
from fairlead_build.cache.store import Cache, need_space, publish, remove_tree, workspace
from fairlead_build.formats import oci, shifter
from fairlead_build.formats.images import ImageEntry, unwritable
from fairlead_build.formats.images import hand_out as hand_out_file
from fairlead_build.formats.wrapping import wrapping_of
from fairlead_build.recipe.load import file_name
from fairlead_build.squashfs.tree_stream import bare_squashfs
from fairlead_build.tools import tool_tree

Format = Literal["sif", "shifter", "oci", "squashfs", "sandbox"]
FORMATS: tuple[Format, ...] = ("sif", "shifter", "oci", "squashfs", "sandbox")
SUFFIX: dict[Format, str] = {
    "sif": ".sif",
    "shifter": ".squashfs",
    "oci": ".oci",
    "squashfs": ".squashfs",
    "sandbox": ".sandbox",
}
_FOLDERS = ("oci", "sandbox")


def chosen(names: Sequence[str], output: Path | None) -> list[Format]:
    """The formats called ``names``, each once.

    Raises:
        FairleadError: exit code 2; there is no such format, or they cannot all go to ``output``.
    """
    found: list[Format] = []
    for name in names:
        match = next((known for known in FORMATS if known == name), None)
        if match is None:
            raise fail(
                f"no image format `{name}`",
                where="--format",
                why=suggest(name, FORMATS),
                remedy=f"--format {','.join(FORMATS)}",
                check="format",
                code=ExitCode.USAGE,
            )
        if match not in found:
            found.append(match)
    if output is not None and len(found) > 1 and not output.is_dir():
        raise fail(
            f"{len(found)} formats cannot become one file",
            where=f"-o {output}",
            why="it is not a folder",
            remedy=f"mkdir -p {output}, or give one --format",
            check="format",
            code=ExitCode.USAGE,
        )
    return found


def kept(form: Format, cache: Cache, key: str) -> tuple[Path, ...]:
    """Where a format of the image ``key`` is kept: the file or folder to be used, then what belongs
    to it."""
    main = cache.image(key).with_suffix(SUFFIX[form])
    return (main, main.with_suffix(".meta")) if form == "shifter" else (main,)


def is_kept(form: Format, cache: Cache, key: str) -> bool:
    """Whether it has been made."""
    return all(path.exists() for path in kept(form, cache, key))


def forget(cache: Cache, key: str) -> None:
    """Removes every format of the image ``key``."""
    for form in FORMATS:
        for path in kept(form, cache, key):
            if form in _FOLDERS:
                remove_tree(path)
            else:
                path.unlink(missing_ok=True)
            signature_file(path).unlink(missing_ok=True)


def make(form: Format, entry: ImageEntry, cache: Cache, progress: Progress) -> Path:
    """The format in the cache, made if it is not there. The caller holds the recipe's lock.

    Raises:
        FairleadError: a tool failed, or there is no room, or the format cannot hold the image.
    """
    target, *beside = kept(form, cache, entry.key)
    if is_kept(form, cache, entry.key):
        return target
    image = Path(entry.path)
    with workspace(cache.root / "work", f"{form}-") as work:
        match form:
            case "squashfs" | "shifter":
                for meta in beside:  # first: Shifter finds an image by its squashfs
                    _write_meta(meta, entry)
                if not target.is_file():
                    _squashfs(image, work / "image.squashfs", progress)
                    publish(work / "image.squashfs", target)
            case "oci":
                need_space(cache.root, 2 * entry.bytes, "the OCI layout", "XDG_CACHE_HOME")
                _oci(entry, work / "image.oci", progress)
                _publish_folder(work / "image.oci", target)
            case "sandbox":
                unpack(image, work / "image.sandbox", progress)
                _publish_folder(work / "image.sandbox", target)
    return target


def hand_out(
    form: Format, entry: ImageEntry, cache: Cache, output: Path, progress: Progress
) -> Path:
    """Gives the user a copy of their own: signing or changing it must not reach the cache.

    Args:
        output: the name it gets, or a folder, in which it is called after its recipe.
    Raises:
        FairleadError: it cannot be written there, or a folder of that name holds something else.
    """
    image = Path(entry.path)
    if form == "sif":
        return hand_out_file(image, output, SUFFIX[form], entry.recipe)
    target = output
    if output.is_dir() and not (form in _FOLDERS and output.suffix == SUFFIX[form]):
        target = output / f"{file_name(entry.recipe)}{SUFFIX[form]}"
    try:
        match form:
            case "squashfs" | "shifter":
                if form == "shifter":
                    _write_meta(target.with_suffix(".meta"), entry)
                with atomic_write(target) as out:
                    copy_object(image, read_sif(image).squashfs, out)
            case "oci":
                made = make(form, entry, cache, progress)
                _folder(target, _same_layout(made), lambda new: _copy_tree(made, new))
            case "sandbox":
                same = _same_tree(entry, progress)
                _folder(target, same, lambda new: unpack(image, new, progress))
        carry(kept(form, cache, entry.key)[0], target)
    except OSError as exc:
        raise unwritable(target, exc) from None
    return target


def _folder(target: Path, same: Callable[[Path], bool], fill: Callable[[Path], object]) -> None:
    """Makes the folder ``target`` by ``fill``, unless it is there already."""
    if target.exists() or target.is_symlink():
        if same(target):
            return
        raise fail(
            f"{target.name} is there already, and holds something else",
            where=str(target),
            why="it may have been changed on purpose, so it is not replaced",
            remedy=f"rm -r {target}, or give another name with -o",
            check="output-exists",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with workspace(target.parent, f".{target.name}.partial-") as work:
        work.chmod(0o700)  # until it is whole it is nobody's image
        fill(work / "new")
        _publish_folder(work / "new", target)


def _publish_folder(made: Path, final: Path) -> None:
    # All files at once: a sandbox has tens of thousands.
    run(
        ["sync", "--file-system", made],
        doing="write the image to disk",
        remedy=f"df {final.parent}",
    )
    final.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        remove_tree(final)  # a part of one: its other files are gone
    made.replace(final)


def _copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target)


def _same_layout(made: Path) -> Callable[[Path], bool]:
    def same(target: Path) -> bool:
        try:
            return all(
                (target / path.relative_to(made)).stat().st_size == path.stat().st_size
                for path in made.rglob("*")
                if path.is_file()
            ) and oci.read_result(target) == oci.read_result(made)
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            return False

    return same


def _same_tree(entry: ImageEntry, progress: Progress) -> Callable[[Path], bool]:
    def same(target: Path) -> bool:
        if not target.is_dir() or target.is_symlink():
            return False
        with progress.stage(f"compare {target.name}", unit="B") as stage, suppress(OSError):
            return tree_sha256(scan_folder(target, stage.advance)) == entry.tree_sha256
        return False

    return same


def _write_meta(path: Path, entry: ImageEntry) -> None:
    text = shifter.meta(wrapping_of(Path(entry.path), entry.sif_sha256))
    with atomic_write(path, "w") as out:
        out.write(text)


def _squashfs(image: Path, made: Path, progress: Progress) -> None:
    held = read_sif(image).squashfs
    with progress.stage("take the squashfs out of the SIF") as stage:
        with made.open("wb") as out:
            copy_object(image, held, out)
        stage.result(f"{held.size / 1e6:.0f} MB")


def _oci(entry: ImageEntry, made: Path, progress: Progress) -> None:
    image = Path(entry.path)
    wrapping = wrapping_of(image, entry.sif_sha256)
    with progress.stage("write the OCI layers", wrapping.bytes, "B") as stage:
        made.mkdir()
        result = oci.write_layout(made, image, wrapping, stage.advance)
        size = sum(layer.size for layer in result.layers)
        stage.result(f"{len(result.layers)} layers, {size / 1e6:.0f} MB, {result.manifest_digest}")


def unpack(image: Path, made: Path, progress: Progress) -> None:
    """The tree of a SIF or squashfs as a folder: modes and times as in the image, owned by whoever
    unpacks it.

    Raises:
        FairleadError: there is no room, or the image is damaged.
    """
    with progress.stage("unpack the sandbox"), bare_squashfs(image) as squashfs:
        made.mkdir()
        argv = [
            *tool_tree.command("rdsquashfs"),
            "--unpack-path",
            "/",
            "--unpack-root",
            made,
            "--quiet",
        ]
        argv += ["--chmod", "--set-times", squashfs]
        run(argv, doing="unpack the image", remedy="fairlead build RECIPE --format sandbox")
        made.chmod(0o755)
