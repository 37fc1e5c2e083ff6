"""One blob into one file, whatever happens on the way.

What has come is kept in ``work/HASH.partial``, also when the process is killed; the next download of
the same blob goes on from there. Only the whole, checked by its hash, gets its final name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import requests

from fairlead.base.errors import fail
from fairlead.base.progress import Progress
from fairlead_build.cache.store import Cache
from fairlead_build.registry.client import Advance, Client, wrong_digest
from fairlead_build.registry.manifest import Descriptor

_CHUNK = 4 << 20


def partial_of(cache: Cache, item: Descriptor) -> Path:
    """Where the part of a blob that has come is kept."""
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
        advance: called with the bytes that are there, also those of an earlier try.
    Raises:
        FairleadError: it cannot be fetched, or is not what its digest says.
    """
    if target.is_file():
        advance(item.size)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(partial_of(cache, item), progress) as partial:
        if target.is_file():  # another process fetched it while we waited
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


class _Partial:
    """A file that grows until it is the blob ``item``. What an earlier try brought counts.

    Attributes:
        have: bytes so far; one piece more than the blob has when too much was sent.
        resumed: some of it comes from an earlier try.
    """

    def __init__(self, stream: IO[bytes], item: Descriptor, advance: Advance):
        self._stream, self._item, self._advance = stream, item, advance
        self._digest, self.have = hashlib.sha256(), 0
        stream.seek(0)
        while data := stream.read(_CHUNK):
            self._digest.update(data)
            self.have += len(data)
        advance(min(self.have, item.size))
        if self.have > item.size:
            self.restart()
        self.resumed = self.have > 0

    @property
    def digest(self) -> str:
        return f"sha256:{self._digest.hexdigest()}"

    def restart(self) -> None:
        self._stream.truncate(0)
        self._advance(-min(self.have, self._item.size))
        self._digest, self.have, self.resumed = hashlib.sha256(), 0, False

    def append(self, client: Client) -> str:
        """Asks for what is missing; the name of the error that cut it off, if any."""
        if self.have >= self._item.size:
            return ""
        try:
            with client.open_blob(self._item, self.have) as (start, pieces):
                if start != self.have:  # the registry sends it from the beginning
                    self.restart()
                for data in pieces:
                    self.have += len(data)
                    if self.have > self._item.size:
                        break
                    self._stream.write(data)
                    self._digest.update(data)
                    self._advance(len(data))
        except requests.exceptions.ConnectionError as exc:
            return type(exc.args[0] if exc.args else exc).__name__
        return ""


def _complete(client: Client, item: Descriptor, stream: IO[bytes], advance: Advance) -> None:
    """Appends to ``stream`` until it is the blob."""
    partial = _Partial(stream, item, advance)
    most, pauses = partial.have, list(client.transport.pauses_s)
    while True:
        cut = partial.append(client)
        if partial.have < item.size:
            if partial.have > most:  # it made progress: start over with the pauses
                most, pauses = partial.have, list(client.transport.pauses_s)
            if not pauses:
                raise fail(
                    "registry-cut-last-end" if cut else "registry-cut",
                    reference=client.reference,
                    have=partial.have,
                    size=item.size,
                    name=cut,
                )
            time.sleep(pauses.pop(0))
            continue
        if partial.have == item.size and partial.digest == item.digest:
            return
        too_long, resumed, real = partial.have > item.size, partial.resumed, partial.digest
        partial.restart()
        if too_long:
            why = f"a part of the image has {item.size} bytes, and it sends more"
            raise client.transport.odd(why)
        if not resumed:
            raise wrong_digest("a part of the image", str(client.reference), item.digest, real)
        # What was kept from an earlier try may have been wrong: once more from the beginning.
