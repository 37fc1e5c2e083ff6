"""Signatures of images: a file ``IMAGE.sig`` next to the image, made with an offline key.

The signed content is a :class:`Statement`: size and sha256 of every file of the image. ``verify`` reads
the whole image each time and records the identity of its files, so that ``unchanged`` can check, before
and after a launch, that they are still the same.

The signature file has one canonical form and is compared with it byte for byte: a changed space in
it is detected like a changed byte of the image. Read next: ``keys.py``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, Finding, fail, os_error_as, warning
from fairlead.base.exposure import open_to_others, way
from fairlead.base.paths import atomic_write
from fairlead.base.progress import Progress, Silent
from fairlead.base.serde import from_json, to_json
from fairlead.image.keys import PrivateKey, PublicKey, read_most
from fairlead.image.open import file_format, find, reading
from fairlead.image.sif import Sif, read_sif

SCHEMA, VERSION = "fairlead/signature", 1
# Goes before what is signed, so that no signature made for another purpose can be passed off as one.
_DOMAIN = b"fairlead image signature v1\0"
_MOST_BYTES = 16 << 20
_MOST_FILES = 10_000


@dataclass(frozen=True)
class SignedFile:
    """One file of an image. ``name`` is its part, or its path in an OCI layout; never its own
    name, so an image may be renamed."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Statement:
    """What is signed.

    Attributes:
        format: ``sif``, ``squashfs``, ``shifter`` (squashfs and ``.meta``) or ``oci``.
        squashfs_sha256, tree_sha256: of the file system inside, where known; they follow from
            ``files``, and let a reader compare images of other formats.
        key: identifier of the key.
        created: UTC, as ``2026-01-31T12:00:00Z``.
    """

    format: str
    files: tuple[SignedFile, ...]
    squashfs_sha256: str
    tree_sha256: str
    key: str
    created: str

    @property
    def message(self) -> bytes:
        """The bytes that the key signs."""
        text = json.dumps(to_json(self), sort_keys=True, separators=(",", ":"))
        return _DOMAIN + text.encode("ascii")


@dataclass(frozen=True)
class FileState:
    """Which file was read: any write to it or replacement of it changes one of these."""

    path: str
    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True)
class Verified:
    """A signature that holds."""

    path: str
    key: str
    key_file: str
    statement: Statement
    files: tuple[FileState, ...]


def signature_file(image: Path) -> Path:
    """The path of the signature file next to ``image``."""
    return image.with_name(image.name + ".sig")


def located(name: str, environ: Mapping[str, str], progress: Progress | None = None) -> Path:
    """The file or folder whose signature counts for IMAGE ``name``.

    An OCI layout is signed itself, although what runs is the SIF that fairlead makes of it.

    Raises:
        FairleadError: as :func:`fairlead.image.open.find`.
    """
    if os.path.isfile(os.path.join(name, "oci-layout")):  # noqa: PTH113, PTH118
        return Path(name).absolute()
    return find(name, environ, progress)


def sign(
    image: Path,
    key: PrivateKey,
    *,
    now: Callable[[], float] = time.time,
    progress: Progress | None = None,
) -> Statement:
    """Signs ``image`` as it is now; ``image.sig`` is made, or replaced.

    Raises:
        FairleadError: the image cannot be signed, it contradicts its own record, or the
            signature cannot be written.
    """
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now()))
    statement = replace(statement_of(image, progress), key=key.public.id, created=created)
    text = render(statement, key.sign(statement.message))
    file = signature_file(image)
    with os_error_as("signature-unwritable", signature_file=file), atomic_write(file) as out:
        out.write(text)
    return statement


def statement_of(image: Path, progress: Progress | None = None) -> Statement:
    """What :func:`sign` would sign, without key and time."""
    return _read(image, progress or Silent())[0]


def verify(
    image: Path, keys: Mapping[str, PublicKey], progress: Progress | None = None
) -> Verified:
    """Verifies the signature of ``image``, reading every byte of it.

    Args:
        keys: those that count, by identifier.
    Raises:
        FairleadError: there is no signature, its key is not among ``keys``, it is damaged, or the
            image is not the one that was signed.
    """
    file = signature_file(image)
    statement, signature = parse(_content(image, file), file)
    key = keys.get(statement.key)
    if key is None:
        shown = ", ".join(sorted(keys))
        raise fail("signature-untrusted", image=image, file=file, statement=statement, keys=shown)
    if not key.verifies(signature, statement.message):
        raise fail("signature-bad", image=image, file=file, key=key)
    current, files = _read(image, progress or Silent())
    if lost := _difference(statement, current):
        raise fail("signature-mismatch", image=image, lost=lost)
    return Verified(str(image), key.id, key.path, statement, files)


def unchanged(verified: Verified) -> None:
    """Checks that the files that were verified are still the same.

    Raises:
        FairleadError: one was written to, replaced or removed since.
    """
    for before in verified.files:
        try:
            now = _state_of(before.path, os.stat(before.path))  # noqa: PTH116
        except OSError as exc:
            raise changed(verified, f"{before.path}: {exc.strerror}") from None
        if now != before:
            raise changed(verified, f"{before.path} was written to or replaced")


def exposed(verified: Verified) -> Finding | None:
    """A warning if another user could replace the image between check and use."""
    for part in reversed(way(Path(verified.path))):
        if why := open_to_others(part):
            return warning(
                "signature-exposed", part=part, why=why, quoted_part=shlex.quote(str(part))
            )
    return None


def carry(source: Path, target: Path) -> None:
    """Gives a copy of an image its signature too: ``target.sig`` becomes that of ``source``.

    A signature that lay at ``target`` belonged to what was there before, and goes.

    Raises:
        OSError: as reading and writing do.
    """
    try:
        text = signature_file(source).read_bytes()
    except FileNotFoundError:
        text = b""
    with suppress(FairleadError):
        if parse(text, source)[0].format == "shifter" and not _meta(target).is_file():
            text = b""  # it is one over both files
    if not text:
        signature_file(target).unlink(missing_ok=True)
        return
    with atomic_write(signature_file(target)) as out:
        out.write(text)


def render(statement: Statement, signature: bytes) -> bytes:
    """The one text of a signature file."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "signed": to_json(statement),
        "signature": base64.b64encode(signature).decode(),
    }
    return json.dumps(document, indent=1, sort_keys=True).encode("ascii") + b"\n"


def parse(raw: bytes, file: Path) -> tuple[Statement, bytes]:
    """The inverse of :func:`render`; nothing is proved by it.

    Raises:
        FairleadError: it is not what :func:`render` writes, to the byte.
    """
    try:
        document = bounded_json.loads(raw)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"it is not an object of schema {SCHEMA}")
        if document.get("version") != VERSION:
            raise ValueError(f"its version is {document.get('version')!r}, known is {VERSION}")
        statement = from_json(Statement, document.get("signed"))
        signature = base64.b64decode(document.get("signature", ""), validate=True)
        if render(statement, signature) != raw:
            raise ValueError("its text is not as fairlead writes it")
    except (ValueError, TypeError, RecursionError) as exc:
        raise fail("signature-damaged", file=file, exc=str(exc)[:200]) from None
    return statement, signature


def _content(image: Path, file: Path) -> bytes:
    quoted = shlex.quote(str(image))
    with os_error_as("signature-missing", image_name=image.name, file=file, image=quoted):
        raw = read_most(file, _MOST_BYTES)
    return raw if len(raw) <= _MOST_BYTES else b""  # no signature is that long: a damaged one


def _read(image: Path, progress: Progress) -> tuple[Statement, tuple[FileState, ...]]:
    """The statement of ``image`` without key and time, and which files were read; reads every byte of it."""
    sif: Sif | None = None
    if image.is_dir():
        kind, parts = "oci", dict(_layout(image))
    else:
        kind, parts = file_format(image), {"image": image}
        meta = _meta(image)
        if kind == "squashfs" and image.suffix == ".squashfs" and os.path.lexists(meta):
            kind, parts = "shifter", {"image": image, "meta": meta}
        sif = read_sif(image) if kind == "sif" else None
    record = (sif.document("image.json") or {}) if sif else {}
    inner = (sif.squashfs.offset, sif.squashfs.size) if sif else (0, 0)
    whole = sum(path.stat().st_size for path in parts.values())
    files, entries, squashfs = [], [], ""
    with progress.stage(f"reading {image.name}", whole, "B") as stage:
        for name, path in sorted(parts.items()):
            digest, squashfs_digest, identity = _hash(path, inner, stage.advance)
            files.append(SignedFile(name, identity.size, digest))
            entries.append(identity)
            if name == "image":
                squashfs = squashfs_digest if sif else digest
            elif name.startswith("blobs/") and not name.endswith(f"/{digest}"):
                raise fail("image-digest-file", path=path, digest=digest)
    recorded = str(record.get("squashfs_sha256", "") or squashfs)
    if recorded != squashfs:
        raise fail("image-digest-squashfs", image=image, recorded=recorded[:64])
    tree = str(record.get("tree_sha256", ""))
    return Statement(kind, tuple(files), squashfs, tree, "", ""), tuple(entries)


def _meta(image: Path) -> Path:
    """The metadata file that Shifter keeps next to a squashfs."""
    return image.with_name(image.name.removesuffix(".squashfs") + ".meta")


def _layout(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file of an OCI layout."""
    if not (folder / "oci-layout").is_file():
        raise fail("signature-format-folder", folder=folder)
    count = 0
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(parent, name)
            count += 1
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or count > _MOST_FILES:
                raise fail("signature-format-oci-layout", folder_name=folder.name, path=path)
            if stat.S_ISREG(mode):
                yield str(path.relative_to(folder)), path


def _hash(
    path: Path, inner: tuple[int, int], advance: Callable[[float], None]
) -> tuple[str, str, FileState]:
    """sha256 of a file and of the part of it at ``inner`` (offset, size), and which file it was."""
    whole, part = hashlib.sha256(), hashlib.sha256()
    begin, end = inner[0], inner[0] + inner[1]
    at = 0
    with reading(path), path.open("rb") as stream:
        before = _state_of(str(path), os.fstat(stream.fileno()))
        while block := stream.read(4 << 20):
            whole.update(block)
            part.update(block[max(begin - at, 0) : max(end - at, 0)])
            at += len(block)
            advance(len(block))
        after = _state_of(str(path), os.fstat(stream.fileno()))
    if before != after or at != before.size:
        raise fail("signature-changed-during-read", path=path)
    return whole.hexdigest(), part.hexdigest(), after


def _state_of(path: str, status: os.stat_result) -> FileState:
    number = status.st_dev, status.st_ino
    return FileState(path, *number, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _difference(statement: Statement, current: Statement) -> str:
    """How an image differs from what was signed, in words; empty when it does not."""
    if statement.format != current.format:
        return f"a {statement.format} image was signed, this is {current.format}"
    signed = {file.name: file for file in statement.files}
    present = {file.name: file for file in current.files}
    for name in sorted({*signed, *present}):
        if name not in present:
            return f"{name} was signed and is not there"
        if name not in signed:
            return f"{name} was not signed"
        now, was = present[name], signed[name]
        if was.size != now.size:
            return f"{name} has {now.size} bytes, {was.size} were signed"
        if was != now:
            return f"{name} has sha256 {now.sha256[:16]}…, {was.sha256[:16]}… was signed"
    if replace(current, key=statement.key, created=statement.created) != statement:
        return "the digests of what is inside are others than those that were signed"
    return ""


def changed(verified: Verified, why: str) -> FairleadError:
    """The error for an image that changed after verification."""
    return fail("signature-changed-after-check", verified_path=verified.path, why=why)
