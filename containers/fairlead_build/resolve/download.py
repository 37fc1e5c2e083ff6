"""Downloads by address, for what neither apt nor pip downloads: pages of an index, source archives.

An interrupted download goes on where it stopped, also in another process: what is there already is
kept under the hash that it is to have; requests and pip resume nothing across processes.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from fairlead.base.errors import FairleadError, fail

if TYPE_CHECKING:
    from requests import Response, Session

_TRIES = 5
_PAUSE_S = 1
_TIMEOUT_S = (20, 60)  # to connect; between two bytes


@dataclass(frozen=True)
class Place:
    """Where a file is: an address, or a path on this machine."""

    address: str
    certificates: str = ""

    @property
    def shown(self) -> str:
        """Without a password."""
        parts = urlsplit(self.address)
        host = parts.netloc.rsplit("@", 1)[-1]
        return urlunsplit((parts.scheme, host, parts.path, "", ""))


def get(
    url: str, certificates: str, *, accept: str, absent_ok: bool = False
) -> tuple[str, str] | None:
    """The text at ``url`` and its content type; None when it is absent and may be.

    Raises:
        FairleadError: it cannot be downloaded.
    """
    import requests

    place = Place(url, certificates)
    with _session(place) as session:
        try:
            answer = _ask(session, place, {"Accept": accept})
            if answer.status_code == 404 and absent_ok:
                return None
            _check(answer, place)
            return answer.text, answer.headers.get("Content-Type", "")
        except requests.RequestException as exc:
            raise _unreachable(place, str(exc)) from None


def download(place: Place, partial: Path, advance: Callable[[float], None]) -> None:
    """Completes ``partial`` with the file at ``place``, from where it stopped.

    Args:
        advance: called with how many bytes came, those of earlier tries included.
    Raises:
        FairleadError: it cannot be downloaded; what came is kept.
    """
    partial.parent.mkdir(parents=True, exist_ok=True)
    if "://" not in place.address:
        shutil.copyfile(place.address, partial)
        advance(partial.stat().st_size)
        return
    import requests

    reported = 0
    with _session(place) as session:
        for left in reversed(range(_TRIES)):
            done = partial.stat().st_size if partial.exists() else 0
            advance(done - reported)
            reported = done
            try:
                answer = _ask(session, place, {"Range": f"bytes={done}-"} if done else {})
                if answer.status_code == 416:  # nothing is left of it, or it is another file
                    answer.close()
                    if answer.headers.get("Content-Range", "") == f"bytes */{done}":
                        return
                    partial.unlink()
                    continue
                _check(answer, place)
                with partial.open("ab" if answer.status_code == 206 else "wb") as out:
                    if answer.status_code != 206:
                        advance(-reported)
                        reported = 0
                    for chunk in answer.iter_content(1 << 18):
                        out.write(chunk)
                        reported += len(chunk)
                        advance(len(chunk))
                    out.flush()
                    os.fsync(out.fileno())
                return
            except requests.RequestException as exc:
                if not left:
                    raise _unreachable(place, str(exc)) from None
                time.sleep(_PAUSE_S)


def _session(place: Place) -> Session:
    import requests

    session = requests.Session()
    if place.certificates:
        session.verify = place.certificates
    session.headers["Accept-Encoding"] = "identity"  # a Range counts the file's own bytes
    return session


def _ask(session: Session, place: Place, headers: dict[str, str]) -> Response:
    return session.get(place.address, headers=headers, timeout=_TIMEOUT_S, stream=True)


def _check(answer: Response, place: Place) -> None:
    if answer.status_code not in (200, 206):
        answer.close()
        raise _unreachable(place, f"the answer is {answer.status_code} {answer.reason}")


def _unreachable(place: Place, why: str) -> FairleadError:
    name = Path(urlsplit(place.address).path).name or place.shown
    return fail("download", name=name, place=place, why=why.replace(place.address, place.shown))
