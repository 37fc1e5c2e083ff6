"""The values of a session: what the user fixed, what was prepared, and how a launch is to be made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fairlead.base.errors import Finding
from fairlead.base.nccl_verdict import Expected
from fairlead.base.progress import Progress
from fairlead.image import signature
from fairlead.image.open import Image
from fairlead.launch.launch import CommandLine, LaunchResult
from fairlead.launch.node_check import NodeMounts
from fairlead.launch.requeue import Requeue
from fairlead.proof.nccl import NcclProof
from fairlead.proof.unproved import Unproved
from fairlead.proof.verdict import Proof
from fairlead.rendezvous.worlds import World
from fairlead.schedulers.model import Allocation
from fairlead.session.gradients import CommChoice
from fairlead.swap import checks
from fairlead.swap.model import Bind, Plan


@dataclass(frozen=True)
class Choices:
    """What the command line leaves to be chosen, and what it fixes.

    Attributes:
        mpi: ``host``, ``container``, or the prefix of an MPI.
        site, launcher, engine: None to detect.
        comm: the backend of gradients; None to leave it to variable, site and fairlead.
        require_signature: refuse an image that no trusted key has signed.
        unpack: run from a folder that the image is unpacked to, once.
        container_per_rank: ranks of a node join no container of theirs.
    """

    mpi: str = "host"
    site: str | None = None
    launcher: str | None = None
    engine: str | None = None
    require_signature: bool = False
    comm: str | None = None
    unpack: bool = False
    container_per_rank: bool = False


@dataclass(frozen=True)
class Prepared:
    """A plan with the findings about it."""

    image: Image
    plan: Plan
    findings: tuple[Finding, ...]
    site_reason: str
    comm: CommChoice
    verified: signature.Verified | None = None

    @property
    def refused(self) -> bool:
        return checks.refused(self.findings)


@dataclass(frozen=True)
class LaunchOptions:
    """How a launch is made.

    Attributes:
        on_proof: called with the proof as soon as MPI has started on every rank, also with one that does
            not hold.
        on_finding: called with what was noticed before the launch.
        on_world: called with each world that a framework has formed, as soon as it is whole.
        on_nccl: called with what NCCL uses, as soon as a communicator stands on every rank.
        on_start: called with the line and the run's folder when all is staged and the launcher is about to start.
        allocation: whose nodes the watchdog names; that of ``environ`` otherwise.
        probe_first: also prove with a separate job before the launch.
        limit_s: how long the start-up may make no progress; the site's own by default.
        mounts: what nodes other than this host mount before their ranks start.
        after: called with the plan when its launch has ended, however.
        env: variables for the container.
        requeue: of the job; None where nothing asks for it.
        end_stopped: a rank that stands still ends the launch; otherwise that is a warning.
        nccl: the network that NCCL must use; that of the plan by default.
    """

    on_proof: Callable[[Proof], None] = lambda proof: None
    on_finding: Callable[[Finding], None] = lambda finding: None
    on_world: Callable[[World], None] = lambda world: None
    on_nccl: Callable[[NcclProof], None] = lambda proof: None
    on_start: Callable[[CommandLine, Path], None] = lambda line, folder: None
    allocation: Allocation | None = None
    probe_first: bool = False
    limit_s: float | None = None
    binds: Sequence[Bind] = ()
    mounts: NodeMounts | None = None
    after: Callable[[Plan], None] = lambda plan: None
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    progress: Progress | None = None
    stdout: IO[bytes] | int | None = None
    stderr: IO[bytes] | int | None = None
    stdin: int | None = None
    requeue: Requeue | None = None
    end_stopped: bool = False
    nccl: Expected | None = None


@dataclass(frozen=True)
class Launched:
    """A launch that has ended.

    Attributes:
        proof: None when no MPI_Init was seen.
        unproved: what is known in place of a proof.
        worlds: those that frameworks have formed.
        nccl: None when nothing was planned of it, or no communicator was seen.
    """

    line: CommandLine
    result: LaunchResult
    proof: Proof | None
    unproved: Unproved | None = None
    worlds: tuple[World, ...] = ()
    nccl: NcclProof | None = None
