"""How long each rank waited for the others, from rank 0 of :mod:`fairlead.comm` to the host that has launched it.

It comes as a file in the run's folder, which is the ranks' own to write: what is in it is read with care.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.paths import atomic_write
from fairlead.base.serde import from_json, to_json

RUN_FOLDER = "FAIRLEAD_RUN_FOLDER"  # names that folder, in a rank
_FILE = "waits.json"
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class TeamWaits:
    """The waits of one team.

    Attributes:
        bytes: averaged, by one rank.
        wait_s: seconds that each rank spent waiting for the others.
    """

    team: str
    calls: int
    bytes: int
    wait_s: tuple[float, ...]


def write(folder: Path, teams: tuple[TeamWaits, ...]) -> None:
    """Leaves ``teams`` for the host. A folder that cannot be written costs the report, not the run."""
    with suppress(OSError), atomic_write(folder / _FILE, "w") as stream:
        json.dump(to_json(teams), stream)


def read(folder: Path) -> tuple[TeamWaits, ...]:
    """What rank 0 left; nothing where it left none, or no such thing."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        # A rank could have put a pipe or a link there.
        number = os.open(folder / _FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, encoding="utf-8") as stream:
            if os.fstat(number).st_size <= _MOST_BYTES:
                teams = bounded_json.loads(stream.read(_MOST_BYTES))
                return tuple(from_json(TeamWaits, team) for team in teams)
    return ()
