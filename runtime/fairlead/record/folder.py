"""A record's folder: reserved before the run, written at once after it, read and checked later."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fairlead import __version__
from fairlead.base import bounded_json
from fairlead.base.errors import fail, os_error_as
from fairlead.base.paths import atomic_folder, atomic_write
from fairlead.base.serde import from_json, to_json
from fairlead.image.keys import PrivateKey, PublicKey
from fairlead.record.crate import CRATE, crate
from fairlead.record.gather import Attached
from fairlead.record.model import SCHEMA, SCHEMA_VERSION, RunRecord
from fairlead.record.statement import (
    ENVELOPE,
    SSH_SIGNATURE,
    STATEMENT,
    envelope,
    signer_of,
    ssh_signature,
    statement,
    subjects,
    text_of,
    verifies,
)

RUN, SBOM, LOCK = "run.json", "sbom.cdx.json.gz", "lock.toml.gz"
_SIGNED_FILES = (CRATE, LOCK, RUN, SBOM)
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Opened:
    """A record that was read, and is as its statement says.

    Attributes:
        key: identifier of the key that signed it; empty if none did.
    """

    path: Path
    record: RunRecord
    key: str


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """``folder`` is this run's as long as the block runs. What is there of a failed run may be replaced.

    Raises:
        FairleadError: exit code 2; something is there already, another run writes there, or nothing can be written.
    """
    lock = folder.with_name(f".{folder.name}.recording")
    with os_error_as("record-unwritable", folder=folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        fd = _held(lock, folder)
    try:
        _refuse_other(folder)
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(fd)


def _held(lock: Path, folder: Path) -> int:
    """A descriptor that holds the lock, which another run may be removing."""
    while True:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise fail("record-busy", folder=folder) from None
        except OSError:  # a file system without locks: what is there at the end decides
            return fd
        with suppress(OSError):
            if os.path.samestat(os.fstat(fd), lock.stat(follow_symlinks=False)):
                return fd
        os.close(fd)


def _refuse_other(folder: Path) -> None:
    if os.path.lexists(folder) and not _is_replaceable(folder):
        raise fail("record-exists", folder=folder, quoted=shlex.quote(str(folder)))


def _is_replaceable(folder: Path) -> bool:
    """Whether it is an empty folder, or the record of a run that has failed."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    with suppress(OSError):
        if not any(folder.iterdir()):
            return True
    try:
        return bool(bounded_json.loads((folder / RUN).read_bytes())["outcome"]["exit_code"])
    except (OSError, ValueError, LookupError, TypeError):
        return False


def write(
    folder: Path, record: RunRecord, attached: Attached, key: PrivateKey | None = None
) -> None:
    """Writes a record; the folder gets its name when all of it is there.

    Raises:
        FairleadError: it cannot be written.
    """
    document = {"schema": SCHEMA, "version": SCHEMA_VERSION, "fairlead": __version__}
    files = {RUN: text_of({**document, **to_json(record)})}
    files |= {n: c for n, c in ((SBOM, attached.sbom), (LOCK, attached.lock)) if c is not None}
    files[CRATE] = text_of(crate(record, files))
    text = statement(record, files)
    files |= {STATEMENT: text, **(_signatures(text, key) if key else {})}
    _refuse_other(folder)
    with os_error_as("record-unwritable", folder=folder), atomic_folder(folder) as tree:
        for name, content in files.items():
            (tree / name).write_bytes(content)


def _signatures(text: bytes, key: PrivateKey) -> dict[str, bytes]:
    return {ENVELOPE: envelope(text, key), SSH_SIGNATURE: ssh_signature(text, key)}


def is_record(path: Path) -> bool:
    """Whether a folder looks like a record."""
    return (path / STATEMENT).is_file() and (path / RUN).is_file()


def sign(folder: Path, key: PrivateKey) -> None:
    """Signs a record that is whole; a signature that it had is replaced.

    Raises:
        FairleadError: it is damaged, or cannot be written to.
    """
    text = _checked(folder)
    with os_error_as("record-unwritable", folder=folder):
        for name, content in _signatures(text, key).items():
            with atomic_write(folder / name) as out:
                out.write(content)


def read(folder: Path, keys: Mapping[str, PublicKey] | None) -> Opened:
    """A record, whose files must be those of its statement, and whose signature, if it has one, must be by one of ``keys``.

    Args:
        keys: by identifier; None to leave the signature alone.
    Raises:
        FairleadError: exit code 2; it is damaged, of a newer version, or the signature does not hold.
    """
    text = _checked(folder)
    key = "" if keys is None else _signer(folder, text, keys)
    try:
        document = bounded_json.loads(_content(folder, RUN))
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}")
        version = document["version"]
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise fail(
                "record-newer", folder=folder, version=version, known=SCHEMA_VERSION, by=document.get("fairlead", "?")
            )  # fmt: skip
        own = {n: v for n, v in document.items() if n not in ("schema", "version", "fairlead")}
        record = from_json(RunRecord, own)
    except (ValueError, LookupError, TypeError) as exc:
        raise fail("record-damaged", folder=folder, file=RUN, why=str(exc)[:200]) from None
    return Opened(folder, record, key)


def _checked(folder: Path) -> bytes:
    """The text of the statement, when all other files are as it says."""
    if not folder.is_dir():
        raise fail("record-missing", folder=folder)
    text = _content(folder, STATEMENT)
    try:
        noted = subjects(bounded_json.loads(text))
    except (ValueError, LookupError, TypeError) as exc:
        raise fail("record-damaged", folder=folder, file=STATEMENT, why=str(exc)[:200]) from None
    if RUN not in noted or CRATE not in noted:
        why = f"it does not name {RUN} and {CRATE}"
        raise fail("record-damaged", folder=folder, file=STATEMENT, why=why)
    for name, sha256 in noted.items():
        if name not in _SIGNED_FILES:
            why = f"it names {name[:80]}, which is not a file of a record"
            raise fail("record-damaged", folder=folder, file=STATEMENT, why=why)
        actual = hashlib.sha256(_content(folder, name)).hexdigest()
        if actual != sha256:
            why = f"its sha256 is {actual[:16]}…, the statement has {sha256[:16]}…"
            raise fail("record-damaged", folder=folder, file=name, why=why)
    return text


def _signer(folder: Path, text: bytes, keys: Mapping[str, PublicKey]) -> str:
    if not (folder / ENVELOPE).exists():
        return ""
    raw = _content(folder, ENVELOPE)
    try:
        identifier, signature = signer_of(bounded_json.loads(raw), text)
    except (ValueError, LookupError, TypeError) as exc:
        raise fail("record-damaged", folder=folder, file=ENVELOPE, why=str(exc)[:200]) from None
    key = keys.get(identifier)
    if key is None:
        shown = ", ".join(sorted(keys))
        raise fail("record-untrusted", folder=folder, key=identifier[:64], keys=shown)
    if not verifies(text, signature, key):
        raise fail("record-signature", folder=folder, key=key)
    return key.id


def _content(folder: Path, name: str) -> bytes:
    path = folder / name
    with os_error_as("record-incomplete", folder=folder, file=name):
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, "there is no such file")
        with path.open("rb") as stream:
            raw = stream.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise fail("record-damaged", folder=folder, file=name, why="it is far too large")
    return raw
