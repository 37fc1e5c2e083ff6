"""Environments of launchers that cannot be started here, and ranks that run in them.

A record (``tests/recorded/launchers/NAME.toml``) has the variables that a launcher sets, as its source or documentation
gives them: none was taken from a run. Each node of a record is a name and a network of its own, on this machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fairlead.launch.launch import recorded
from fairlead.rendezvous import script
from fairlead.rendezvous.registry import FRAMEWORKS

FOLDER = Path(__file__).parents[1] / "recorded/launchers"
SPACES = ("unshare", "--user", "--map-root-user", "--uts", "--net", "--")
# The node's name, and an interface with an address; then its ranks.
_NODE = """\
hostname "$1" && ip link set lo up && ip link add hsn0 type veth peer name far0 &&
ip address add "$2" dev hsn0 && ip link set far0 up && ip link set hsn0 up || exit 1
"""


@dataclass(frozen=True)
class Rank:
    node: str
    environ: Mapping[str, str]


@dataclass(frozen=True)
class Recorded:
    """What the ranks of one launch have.

    Attributes:
        kind: of the launcher's driver.
        sources: where the variables are from.
        ranks: in their order.
    """

    name: str
    title: str
    kind: str
    sources: tuple[str, ...]
    ranks: tuple[Rank, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rank.node for rank in self.ranks))


def read(path: Path) -> Recorded:
    kept = tomllib.loads(path.read_text())
    ranks = tuple(
        Rank(r["node"], {**kept["environment"], **r["environment"]}) for r in kept["rank"]
    )
    return Recorded(path.stem, kept["title"], kept["kind"], tuple(kept["sources"]), ranks)


@cache
def every() -> tuple[Recorded, ...]:
    return tuple(read(path) for path in sorted(FOLDER.glob("*.toml")))


def apart() -> bool:
    """Whether this machine gives nodes a network and a name of their own."""
    if not all(map(shutil.which, ("unshare", "ip", "hostname"))):
        return False
    words = [*SPACES, "sh", "-c", _NODE, "node", "probe", "10.78.0.1/24"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def replayed(
    record: Recorded, folder: Path, interfaces: tuple[str, ...] = ()
) -> list[dict[str, str]]:
    """Runs each rank of a record in the shell that is around the ranks of a launch; the variables of their commands.

    Args:
        folder: the run's, which does not exist.
    """
    folder.mkdir()
    seen = folder.with_name(f"{folder.name}-seen")
    seen.mkdir()
    frameworks = [f for f in FRAMEWORKS if not f.launchers]
    of_slurm = record.kind == "srun"
    text = script.text(frameworks, len(record.ranks), "run-1", interfaces, of_slurm=of_slurm)
    (folder / script.SCRIPT).write_text(text)
    started = []
    for number, node in enumerate(record.nodes, 1):
        lines = [_NODE]
        for place, rank in enumerate(record.ranks):
            if rank.node == node:
                environ = {"PATH": os.environ["PATH"], **rank.environ}
                command = ("sh", "-c", f"env -0 >{shlex.quote(str(seen / str(place)))}")
                words = recorded(command, str(folder), "", record.kind)
                given = [f"{name}={value}" for name, value in environ.items()]
                lines.append(shlex.join(["env", "-i", *given, *words]) + " &")
        lines.append("wait")
        words = (*SPACES, "sh", "-c", "\n".join(lines), "node", node, f"10.78.0.{number}/24")
        started.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=60)[1] for process in started]
    assert not any(errors), errors
    texts = [(seen / str(place)).read_text() for place in range(len(record.ranks))]
    return [dict(line.split("=", 1) for line in text.split("\0") if line) for text in texts]
