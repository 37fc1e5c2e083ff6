"""What a run record says: one run, from its image to its results, as values that files hold.

``before`` is known before the launch, and :mod:`fairlead.record.compare` can find it again without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SCHEMA, SCHEMA_VERSION = "fairlead/run-record", 1


@dataclass(frozen=True)
class Data:
    """A file or folder that the run read or wrote.

    Attributes:
        name: as it was given.
        path: absolute, on the host.
        kind: ``file``, ``folder``, ``absent``, or ``weights`` of a training, which are in no file.
        sha256: of a file's bytes, or of a folder's tree as :func:`fairlead.record.data.tree_digest` takes it; empty if absent.
        bytes: in all of its files.
        files: how many there are.
        before: of a result, its kind before the run.
    """

    name: str
    path: str
    kind: str
    sha256: str = ""
    bytes: int = 0
    files: int = 1
    before: str = ""


@dataclass(frozen=True)
class ImageUsed:
    """The image of a run.

    Attributes:
        name: as it was given.
        sha256: of its file system; empty for a folder.
        tree_sha256: of its files, whatever they are wrapped in; empty where neither its record nor a look says.
        lock_sha256: of the lock that it was built from; empty in images of others.
        sbom_sha256: of its bill of materials, unpacked.
        signed_by: identifier of the key whose signature the launch has checked.
    """

    name: str
    path: str
    format: str
    sha256: str
    tree_sha256: str = ""
    recipe: str = ""
    lock_sha256: str = ""
    sbom_sha256: str = ""
    signed_by: str = ""


@dataclass(frozen=True)
class Code:
    """The Git repository that the script is in.

    Attributes:
        commit: empty where that could not be found.
        remote: address of its origin, without passwords.
        diff_sha256: of the changes to tracked files, as ``git diff --binary HEAD`` prints them; empty if there are none.
        untracked: files that Git does not know and does not ignore.
        unknown: why something could not be found.
    """

    folder: str
    commit: str = ""
    remote: str = ""
    diff_sha256: str = ""
    untracked: int = 0
    unknown: str = ""

    @property
    def title(self) -> str:
        """The commit, and what is changed of it."""
        more = [f"changes {self.diff_sha256[:12]}"] if self.diff_sha256 else []
        return ", ".join([self.commit[:12] or self.unknown or "no commit", *more])


@dataclass(frozen=True)
class Parameters:
    """The command line; a word that looks like a secret reads ``(withheld)`` in part.

    Attributes:
        options: as they were given, but for those that only say what is shown and kept.
        command: what was launched; of a training, its model.
        folder: in which it was started.
        verb: ``run`` or ``train``.
    """

    options: tuple[str, ...]
    image: str
    command: tuple[str, ...]
    folder: str
    verb: str = "run"

    @property
    def words(self) -> tuple[str, ...]:
        """The whole line."""
        return ("fairlead", *self.line(self.options, self.image))

    def line(self, options: Sequence[str], image: str) -> tuple[str, ...]:
        """The verb and what is behind it, with these options and this image."""
        if self.verb == "train":
            return (self.verb, *self.command, "--image", image, *options)
        return (self.verb, *options, image, "--", *self.command)


@dataclass(frozen=True)
class Environment:
    """Variables that change what ranks do, of the caller's shell and of the container; secrets are only named."""

    shell: Mapping[str, str] = field(default_factory=dict)
    container: Mapping[str, str] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostFacts:
    """The machine that launched."""

    name: str
    os: str
    kernel: str
    arch: str
    processor: str
    site: str
    engine: str
    launcher: str
    scheduler: str = ""
    job: str = ""
    user: str = ""


@dataclass(frozen=True)
class Mpi:
    """The MPI that was planned: ``mode`` is ``host`` or ``container``."""

    mode: str
    title: str
    file: str


@dataclass(frozen=True)
class Before:
    """What is known before the launch."""

    image: ImageUsed
    parameters: Parameters
    script: Data | None
    code: Code | None
    inputs: tuple[Data, ...]
    environment: Environment
    host: HostFacts
    mpi: Mpi
    fairlead: str


@dataclass(frozen=True)
class Library:
    """A file with code that ranks map.

    Attributes:
        source: ``image``, ``host`` (a staged copy) or ``bound`` (a folder of the host).
        sha256: of the host's file; empty for the image's own, which the image's digest covers, and for bound ones.
    """

    path: str
    source: str
    sha256: str = ""


@dataclass(frozen=True)
class RankGroup:
    """Ranks with the same MPI and transports; ``ranks`` are their numbers, as ``0-3,7``."""

    ranks: str
    mpi: str
    version: str
    transport: str
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class OtherLibraries:
    """Ranks that map others than most do: ``also`` and ``without`` are paths."""

    ranks: str
    also: tuple[str, ...]
    without: tuple[str, ...]


@dataclass(frozen=True)
class Ranks:
    """What the ranks have seen.

    Attributes:
        proved: whether the launch was proved; None where no MPI was started.
        hosts: numbers of ranks, by host.
        libraries: what most ranks map, of the process of each that maps the most.
        unlisted: numbers of ranks that map others still; only so many lists are read.
        worlds: of frameworks, in words.
        nccl: what NCCL used, in words.
    """

    count: int
    proved: bool | None
    hosts: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[RankGroup, ...] = ()
    libraries: tuple[Library, ...] = ()
    others: tuple[OtherLibraries, ...] = ()
    unlisted: str = ""
    worlds: tuple[str, ...] = ()
    nccl: str = ""


@dataclass(frozen=True)
class Outcome:
    """How the run ended.

    Attributes:
        began, ended: UTC, as ``2026-01-31T12:00:00Z``.
        error: what went wrong; empty if nothing did.
        failed: codes of ranks that did not end with 0, by their numbers.
    """

    exit_code: int
    began: str
    ended: str
    seconds: float
    error: str = ""
    failed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """One run. ``id`` is a UUID."""

    id: str
    before: Before
    ranks: Ranks
    results: tuple[Data, ...]
    outcome: Outcome


def ranges(numbers: Iterable[int]) -> str:
    """
    >>> ranges([0, 1, 2, 7, 9, 8])
    '0-2,7-9'
    """
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
