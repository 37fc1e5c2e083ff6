"""What can be set of :mod:`fairlead.comm` by the environment, and its defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """One variable.

    Attributes:
        default: in effect where the variable is not set; in the unit that the name ends in.
    """

    name: str
    default: str
    meaning: str


SETTINGS = (
    Setting(
        "FAIRLEAD_COMM_BACKEND",
        "auto",
        "`native`, `mpi4py`, `horovod`, `dl_comm`, `nccl`; `auto`: the core where it is found",
    ),
    Setting(
        "FAIRLEAD_COMM_SAME_CODE",
        "1",
        "0: ranks may run different programs; versions of libraries are compared all the same",
    ),
    Setting("FAIRLEAD_COMM_DL_COMM", "", "folder of the site's own module dl_comm"),
    Setting("FAIRLEAD_COMM_LIBRARY", "", "file of the core; `fairlead run` sets it for the ranks"),
    Setting(
        "FAIRLEAD_COMM_TENSORFLOW_OP",
        "",
        "file of the operation for TensorFlow; `none`: numpy_function; unset: the image's own",
    ),
    Setting(
        "FAIRLEAD_COMM_COMPRESSION",
        "none",
        "how float32 gradients travel: `fp16`, `bf16` or `none`",
    ),
    Setting(
        "FAIRLEAD_COMM_STALL_S",
        "20",
        "after so many seconds in one call the ranks that are missing are named; 0: never",
    ),
    Setting(
        "FAIRLEAD_COMM_TIMEOUT_S",
        "0",
        "after so many seconds a call fails, naming them; 0: a slow rank is waited for",
    ),
    Setting(
        "FAIRLEAD_COMM_SHARED_MEMORY", "1", "0: ranks of a node exchange by MPI like all others"
    ),
    Setting(
        "FAIRLEAD_COMM_NODE_RANKS",
        "0",
        "so many ranks of a node share memory at most, for example those of a socket; 0: all",
    ),
    Setting(
        "FAIRLEAD_COMM_DETERMINISTIC",
        "0",
        "1: what nodes send is added in the order of the nodes, whatever the MPI and the chunks",
    ),
    Setting(
        "FAIRLEAD_COMM_NONFINITE",
        "tell",
        "NaN or infinity in what a rank passes: it is named once, `tell`; the call fails, `stop`; `ignore`",
    ),
    Setting(
        "FAIRLEAD_COMM_LIFELINE",
        "1",
        "nodes watch each other by a TCP connection, so that one that is gone is named; 0: not so",
    ),
    Setting("FAIRLEAD_COMM_SHM", "/dev/shm", "folder of the shared memory"),
    Setting("FAIRLEAD_COMM_CHUNK_KB", "384", "what is reduced at a time; it should fit the cache"),
    Setting(
        "FAIRLEAD_COMM_KERNELS", "", "`generic`, `avx2` or `avx512`; unset: the processor's best"
    ),
    Setting(
        "FAIRLEAD_COMM_SPIN_US",
        "100",
        "a waiting rank keeps its core for so long; none where ranks outnumber cores",
    ),
    Setting(
        "FAIRLEAD_COMM_POLL_US",
        "100",
        "how long a helper thread sleeps between looks at the network",
    ),
    Setting(
        "FAIRLEAD_COMM_REPORT", "1", "0: nothing is said at the end of how long the ranks waited"
    ),
    Setting(
        "FAIRLEAD_COMM_TIMELINE",
        "",
        "a file for what every rank did, and when; `--timeline` sets it",
    ),
    Setting(
        "FAIRLEAD_COMM_TIMELINE_MB",
        "8",
        "room of each rank for its collectives; older ones give way to newer",
    ),
    Setting(
        "FAIRLEAD_COMM_TIMELINE_EVENTS",
        "100000",
        "events that Python records of each rank, such as steps; older ones give way to newer",
    ),
    Setting("FAIRLEAD_COMM_TIMELINE_CHUNKS", "0", "1: every chunk's stages too, in the core"),
    Setting(
        "FAIRLEAD_COMM_DELAY_MOMENTUM",
        "",
        "momentum of an old script's optimizer; its late gradients are then made smaller",
    ),
)


def in_effect(environ: Mapping[str, str] = os.environ) -> tuple[tuple[Setting, str], ...]:
    """Each setting and its value."""
    return tuple((s, environ.get(s.name) or s.default) for s in SETTINGS)
