"""The native core: shared memory within a node, the host's MPI between nodes."""

from __future__ import annotations

from fairlead.base.comm_backend import Availability, CommBackend, CommFacts, Setting


def _available(facts: CommFacts) -> Availability:
    return Availability(not facts.no_core, facts.no_core)


_SETTINGS = (
    Setting("FAIRLEAD_COMM_LIBRARY", "", "file of the core; `fairlead run` sets it for the ranks"),
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
        "FAIRLEAD_COMM_LIFELINE",
        "1",
        "nodes watch each other by a TCP connection, so that one that is gone is named; 0: not so",
    ),
    Setting("FAIRLEAD_COMM_SHM", "/dev/shm", "folder of the shared memory"),
    Setting(
        "FAIRLEAD_COMM_CHUNK_KB",
        "",
        "what is reduced at a time; unset: what the first calls with a size show to be fastest, up to 768",
    ),
    Setting(
        "FAIRLEAD_COMM_NONTEMPORAL",
        "auto",
        "1: results bypass the caches, 0: not; auto: beyond the caches, as the first calls with a size show",
    ),
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
        "FAIRLEAD_COMM_ALGORITHM",
        "auto",
        "sums between nodes: `doubling`, `halving`, `ring`, `groups` or `mpi`; `auto`: as measured at the start",
    ),
    Setting("FAIRLEAD_COMM_TIMELINE_CHUNKS", "0", "1: every chunk's stages too, in the core"),
)

BACKENDS = (
    CommBackend(
        name="native",
        summary="the C++ core: shared memory within a node, the host's MPI between nodes",
        available=_available,
        connect=None,
        provided_by="install a C++ compiler (g++), or name a working one in CXX; or `--comm mpi4py`",
        not_chosen="faster within a node, and not asked for",
        priority=20,
        ordered=True,
        automatic=True,
        settings=_SETTINGS,
        position=1,
    ),
)
