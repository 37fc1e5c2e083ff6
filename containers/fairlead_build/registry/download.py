"""One blob to one file, whatever happens on the way.

What has come is kept in ``work/HASH.partial``, also when the process is killed; the next download of
the same blob goes on from there. Only the whole, checked by its hash, gets its final name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import requests

from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Progress
from fairlead_build.cache.store import Cache
from fairlead_build.registry.client import Advance, Client, wrong_digest
from fairlead_build.registry.manifest import Descriptor

_CHUNK = 4 << 20


def partial_of(cache: Cache, item: Descriptor) -> Path:
    """Where what has come of a blob is kept."""
    return cache.root / "work" / f"{item.hex}.partial"


def download(
    client: Client,
    item: Descriptor,
    target: Path,
    cache: Cache,
    advance: Advance,
    progress: Progress,
) -> None:
    """Brings the blob ``item`` to ``target``, which must be on the cache's file system.

    Args:
        advance: told the bytes that are there; also those of an earlier try.
    Raises:
        FairleadError: it cannot be had, or it is not what its digest says.
    """
    if target.is_file():
        advance(item.size)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(partial_of(cache, item), progress) as partial:
        if target.is_file():  # somebody else brought it while we waited
            advance(item.size)
            Path(partial.name).unlink(missing_ok=True)
            return
        _complete(client, item, partial, advance)
        partial.flush()
        os.fsync(partial.fileno())
        Path(partial.name).chmod(0o644)
        Path(partial.name).replace(target)


@contextlib.contextmanager
def _alone(path: Path, progress: Progress) -> Iterator[IO[bytes]]:
    """The partial file, open and ours alone; a killed process holds nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("ab+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with progress.stage("wait for another process, which is pulling the same"):
                    fcntl.flock(stream, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(stream.fileno())):
                    yield stream
                    return
            # The other process gave it its final name: begin with a new one.


def _complete(client: Client, item: Descriptor, partial: IO[bytes], advance: Advance) -> None:
    """Appends to ``partial`` until it is the blob."""
    digest, have = _hash_so_far(partial, item.size)
    advance(have)
    resumed, most = have > 0, have
    pauses = list(client.transport.pauses_s)
    while True:
        if have < item.size:
            cut = ""
            try:
                with client.open_blob(item, have) as body:
                    if body.start != have:  # it begins anew
                        partial.truncate(0)
                        advance(-have)
                        digest, have, resumed = hashlib.sha256(), 0, False
                    while body.usable and have <= item.size and (data := body.read()):
                        have += len(data)
                        if have <= item.size:
                            partial.write(data)
                            digest.update(data)
                            advance(len(data))
            except requests.exceptions.ConnectionError as exc:
                cut = type(exc.args[0] if exc.args else exc).__name__
            if have < item.size:
                if have > most:  # it helped: be patient anew
                    pauses, most = list(client.transport.pauses_s), have
                if not pauses:
                    raise _cut(client, have, item.size, cut)
                client.transport.sleep(pauses.pop(0))
                continue
        real = f"sha256:{digest.hexdigest()}"
        if have == item.size and real == item.digest:
            return
        partial.truncate(0)
        advance(-min(have, item.size))
        if have > item.size:
            raise client.transport.odd(
                f"a part of the image has {item.size} bytes, and it sends more"
            )
        if not resumed:
            raise wrong_digest("a part of the image", str(client.reference), item.digest, real)
        # What was kept from an earlier try may have been wrong: once more from the beginning.
        digest, have, resumed = hashlib.sha256(), 0, False


def _cut(client: Client, have: int, size: int, name: str) -> FairleadError:
    return fail(
        f"the connection to {client.reference.host} is cut again and again",
        where=str(client.reference),
        why=f"{have} of {size} bytes have come" + (f"; the last end was: {name}" if name else ""),
        remedy="the same command goes on from there",
        check="registry-cut",
    )


def _hash_so_far(partial: IO[bytes], size: int) -> tuple[hashlib._Hash, int]:
    digest, have = hashlib.sha256(), 0
    partial.seek(0)
    while data := partial.read(_CHUNK):
        digest.update(data)
        have += len(data)
    if have > size:
        partial.truncate(0)
        return hashlib.sha256(), 0
    return digest, have
