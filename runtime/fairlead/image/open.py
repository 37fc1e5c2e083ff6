"""An image on disk and its facts, from its record or from a scan.

IMAGE is the name of a built recipe, a SIF, a bare squashfs, a folder with a root file system,
FOLDER/ID of an image in Shifter's store, an OCI layout, an image archive (`docker save`, oci-archive), or the
reference of a pulled image.
Facts are cached under the file's identity, so a 1 GB image is read only once; those of a folder, under the
metadata of everything in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, fail, os_error_as
from fairlead.base.paths import bundled, cache_dir
from fairlead.base.progress import Progress, Silent
from fairlead.base.registry import entry_points
from fairlead.base.serde import cached, from_json
from fairlead.base.suggest import suggest
from fairlead.elf.facts import ImageFacts
from fairlead.image.contents import VERSION, contents_of
from fairlead.image.folder import kept
from fairlead.image.mount import CannotLook, look_into
from fairlead.image.packages import Installed
from fairlead.image.sif import blocks, identity, is_sif, read_sif

_RECORD_NAME = "image.json"  # the SIF's JSON object
_SQUASHFS_MAGIC = b"hsqs"
_TEXTS = ("recipe", "fairlead_version", "squashfs_sha256", "tree_sha256")
_SUFFIXES = (".sif", ".sqsh", ".squashfs")
_ENTRIES = 10_000  # of a folder in which a near name is looked for


@dataclass(frozen=True)
class Image:
    """One image.

    Attributes:
        name: as the user gave it.
        path: the file or folder that an engine is given.
        format: ``sif``, ``squashfs`` or ``sandbox``.
        digest: sha256 of its squashfs, verified; empty for a sandbox.
        looked: False where this machine cannot look inside, and the facts are those that the image states.
        record: the record that fairlead's builder left in it; empty in images of others.
        installed: its packages, of an image that was looked into.
    """

    name: str
    path: str
    format: str
    bytes: int
    digest: str
    looked: bool
    facts: ImageFacts
    record: Mapping[str, Any] = field(default_factory=dict)
    installed: Installed = field(default_factory=Installed)

    @property
    def packages(self) -> Mapping[str, Mapping[str, str]]:
        """Versions by name, of the kinds ``deb`` and ``wheel``: those recorded where they are all there, else those found.

        A look also finds what other packages contain.
        """
        recorded: Mapping[str, Mapping[str, str]] = self.record.get("packages", {})
        versions = self.installed.versions() if self.installed.packages else {}
        # The record of a folder may be older than the folder.
        holds = self.format != "sandbox" and all(
            recorded[kind].items() <= versions.get(kind, {}).items() for kind in recorded
        )
        first = recorded if recorded and (holds or not self.looked) else versions or recorded
        return {"deb": {}, "wheel": {}, **first}

    def lacks(self, needed: Mapping[str, str]) -> list[str]:
        """Which of some Python packages it has neither as a wheel nor from Debian.

        Args:
            needed: their names on PyPI, and those of Debian's packages.
        """
        listings = (self.packages, self.installed.versions())
        names = {name for listing in listings for versions in listing.values() for name in versions}
        return [pip for pip, deb in needed.items() if not {pip, deb} & names]

    @property
    def env(self) -> Mapping[str, str]:
        """The environment that the image sets, as its record says."""
        return dict(self.record.get("env", {}))


def find(
    name: str, environ: Mapping[str, str] = os.environ, progress: Progress | None = None
) -> Path:
    """The file or folder of IMAGE ``name``.

    The name of a built image takes precedence over a folder of that name in the current folder;
    ``./NAME`` is always the folder. Entry points of the group ``fairlead.images`` resolve references to
    registries, OCI layouts and image archives.

    Raises:
        FairleadError: exit code 2; there is neither such a file nor a built image of that name.
    """
    path = Path(name)
    by_name = cache_dir(environ) / "images" / "by-name"
    index = by_name / f"{name}.json"
    # os.path, since pathlib's questions raise for a name that is too long.
    folder = os.path.isdir(name) and not os.path.isfile(index)  # noqa: PTH112, PTH113
    layout = folder and os.path.isfile(path / "oci-layout")  # noqa: PTH113
    file = name and not name.endswith(_SUFFIXES) and not folder and not os.path.isfile(index)  # noqa: PTH113
    if "://" in name or layout or file:
        elsewhere = _known_elsewhere(name, environ, progress or Silent())
        if elsewhere:
            return elsewhere
    if name and ("/" in name or name.endswith(_SUFFIXES) or folder):
        if there := _on_disk(name):
            return there
        if "://" in name:
            raise fail("image-missing-reference", name=name)
        raise _missing(name, _built(by_name))
    remedy = f"fairlead build {name}"
    try:
        built = Path(json.loads(index.read_text("utf-8"))["path"])
        if built.exists():
            return built
        why = f"it was built, but {built} is gone"
    except (OSError, ValueError, KeyError):
        known = _built(by_name)
        why = f"no recipe of that name was built here. {suggest(name, known)}"
        if not name or not os.path.isdir(bundled("recipes") / name.split(":")[0]):  # noqa: PTH112
            remedy = "fairlead recipe list"
    raise fail("image-unknown", name=name, why=why, remedy=remedy)


def _built(by_name: Path) -> list[str]:
    """The names of built images."""
    return sorted(p.stem for p in by_name.glob("*.json")) if by_name.is_dir() else []


def _missing(name: str, built: Iterable[str]) -> FairleadError:
    """Why a path is not an image, and which images have a name like it, in its folder or among those that were built."""
    path = Path(name).absolute()
    given: dict[str, Any] = {"name": name, "image": path}
    known = {each: each for each in built}
    with suppress(OSError):
        if path.is_symlink():
            return fail("image-missing-target", target=path.readlink(), **given)
        if not path.parent.is_dir():
            there = next(folder for folder in path.parents if folder.is_dir())
            return fail("image-missing-folder", folder=path.parent, there=there, **given)
        for entry in islice(path.parent.iterdir(), _ENTRIES):
            if entry.name.endswith(_SUFFIXES) or entry.is_dir():
                known[_stem(entry.name)] = os.path.join(os.path.dirname(name), entry.name)  # noqa: PTH118, PTH120
    if near := get_close_matches(_stem(path.name), known, n=1, cutoff=0.66):
        return fail("image-missing-near", near=known[near[0]], **given)
    return fail("image-missing", folder=path.parent, **given)


def _stem(name: str) -> str:
    suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(suffix)


def _on_disk(name: str) -> Path | None:
    """The file or folder ``name``, or the squashfs of FOLDER/ID; None if there is neither.

    Raises:
        FairleadError: exit code 2; FOLDER/ID is there in part, and Shifter would not find it.
    """
    if os.path.exists(name):  # noqa: PTH110
        return Path(name).absolute()
    image, meta = (Path(f"{name}{end}").absolute() for end in (".squashfs", ".meta"))
    if not os.path.isfile(image):  # noqa: PTH113
        return None
    if not os.path.isfile(meta):  # noqa: PTH113
        raise fail("image-shifter-meta", image=image, meta=meta)
    return image


def _known_elsewhere(name: str, environ: Mapping[str, str], progress: Progress) -> Path | None:
    """What the image builder, which this package does not import, knows under ``name``."""
    providers = entry_points("fairlead.images")
    return next(filter(None, (p.load()(name, environ, progress) for p in providers)), None)


def open_image(
    name: str, environ: Mapping[str, str] = os.environ, progress: Progress | None = None
) -> Image:
    """IMAGE with its facts, read at most once.

    Raises:
        FairleadError: it is missing, cut short, damaged, or of a format that fairlead cannot read.
    """
    path = find(name, environ, progress)
    if path.is_dir():
        if not any((path / folder).is_dir() for folder in ("bin", "usr/bin")):
            if (path / "recipe.toml").is_file():
                raise fail("image-format-recipe", path_name=path.name, path=path, name=name)
            raise fail("image-format-folder", path_name=path.name or path, path=path)
        facts = cache_dir(environ) / "facts"
        make = lambda: _read_folder(name, path, progress or Silent())  # noqa: E731
        return replace(kept(Image, path, facts, VERSION, make), name=name)
    kind = file_format(path)
    if kind == "sif":
        read_sif(path)  # report a truncated file even if its facts are cached
    status = path.stat()
    identity = (
        f"{VERSION} {path} {status.st_dev} {status.st_ino} {status.st_size} "
        f"{status.st_mtime_ns} {status.st_ctime_ns}"
    )
    key = hashlib.sha256(identity.encode()).hexdigest()[:20]
    image = cached(
        Image,
        cache_dir(environ) / "facts" / f"image-{key}.json",
        lambda: _read(name, path, kind, status.st_size, progress or Silent(), environ),
        keep=lambda image: image.looked,  # squashfuse may be installed tomorrow
    )
    return replace(image, name=name)


def reading(path: Path) -> AbstractContextManager[None]:
    """Reports an image that cannot be read."""
    return os_error_as("image-cannot-read", path=path, quoted_path=shlex.quote(str(path)))


def file_format(path: Path) -> str:
    """``squashfs`` or ``sif``.

    Raises:
        FairleadError: the file is of another format, or cannot be read.
    """
    with reading(path):
        if not path.is_file():  # opening a pipe would block
            raise fail("image-format-special-file", path_name=path.name or path, path=path)
        with path.open("rb") as stream:
            magic = stream.read(4)
        if magic == _SQUASHFS_MAGIC:
            return "squashfs"
        if is_sif(path):
            return "sif"
    raise fail("image-format-magic", path_name=path.name or path, path=path)


def _read_folder(name: str, path: Path, progress: Progress) -> Image:
    with progress.stage(f"looking into {path.name}") as stage, reading(path):
        inspected = look_into(path)
        stage.result(f"{inspected.facts.files} ELF files")
    # Unlike that of a file, nothing shows whether the record still holds.
    record = _sound({k: v for k, v in inspected.record.items() if k != "facts"}, path)
    return Image(
        name, str(path), "sandbox", 0, "", True, inspected.facts, record, inspected.installed
    )


def _read(
    name: str, path: Path, kind: str, size: int, progress: Progress, environ: Mapping[str, str]
) -> Image:
    record: dict[str, Any] = {}
    offset, length = 0, size
    if kind == "sif":
        sif = read_sif(path)
        record = _sound(sif.document(_RECORD_NAME) or {}, path)
        offset, length = sif.squashfs.offset, sif.squashfs.size
    content = hashlib.sha256()
    with progress.stage(f"verifying {path.name}", length, "B") as stage:
        for block in blocks(path, offset, length):
            content.update(block)
            stage.advance(len(block))
    digest = content.hexdigest()
    expected = record.get("squashfs_sha256", "")
    given = {"path": path, "recipe": record.get("recipe", "RECIPE")}
    if expected and digest != expected:
        raise fail("image-digest-file-system", digest=digest, expected=expected, **given)
    if expected and kind == "sif":
        text = sif.document_bytes(_RECORD_NAME) or b""
        if sif.uuid != str(identity(digest, text)):
            raise fail("image-digest-identifier", record_name=_RECORD_NAME, **given)
    facts = cache_dir(environ) / "facts"
    try:
        inside = contents_of(path, offset, digest, facts, progress, environ)
    except CannotLook:
        if not expected or "facts" not in record:
            raise
        recorded = _recorded(record["facts"], path)
        return Image(name, str(path), kind, size, digest, False, recorded, _without_facts(record))
    record = _without_facts(record) or _sound(dict(inside.record), path)
    return Image(name, str(path), kind, size, digest, True, inside.facts, record, inside.installed)


def _without_facts(record: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k != "facts"}


def _recorded(facts: object, path: Path) -> ImageFacts:
    """The facts that an image states about itself, for a machine that cannot look."""
    try:
        return from_json(ImageFacts, facts)
    except ValueError:  # of another version, or of another author
        raise fail("image-record", path=path, record_name=_RECORD_NAME) from None


def _sound(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """``record``, after checking the types of the parts that fairlead reads; its author is not trusted."""

    def texts(value: object) -> bool:
        return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())

    packages = record.get("packages", {})
    if not (
        texts(record.get("env", {}))
        and isinstance(packages, dict)
        and all(map(texts, packages.values()))
        and texts({k: record.get(k, "") for k in _TEXTS})
    ):
        raise fail("image-record", path=path, record_name=_RECORD_NAME)
    return record
