"""``horovod``: what its TensorFlow, Keras and torch modules share.

Each collective is called by all ranks in the same order, as fairlead does, and not in any order, as
Horovod allows; ranks that differ get an error, and do not hang.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.core import Comm
from fairlead.comm.dropin import rules
from fairlead.comm.dropin.absent import not_offered
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.dropin.tensors import in_order
from fairlead.comm.frameworks import common

__all__ = [
    "Average",
    "Compression",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
]

__version__ = "0.28.1"  # the interface that this follows
Average, Sum = rules.AVERAGE, rules.SUM
_hosts: list[str] = []  # of each rank; none before init and after shutdown


class Compression:
    """How float32 travels: as it is, or as float16."""

    none = "none"
    fp16 = "fp16"


def init(comm_: Any = None, process_sets: Any = None, **more: Any) -> None:
    """Starts MPI. Calling it again is free.

    Raises:
        FairleadError: a subset of the ranks, or process sets, are asked for.
    """
    if comm_ or process_sets or more.get("comm"):
        raise not_offered("init of a subset of the ranks", "init() of all of them")
    if _hosts:
        return
    import socket

    ranks = comm.init()
    _hosts.extend(gather_objects(socket.gethostname()))
    say_on_rank_0(f"{ranks.size} rank(s), by {ranks.backend}, in place of Horovod")


def shutdown() -> None:
    """Ends MPI. Collective."""
    if _hosts:
        _hosts.clear()
        comm.finalize()


def is_initialized() -> bool:
    return bool(_hosts)


def rank() -> int:
    return _ranks().rank


def size() -> int:
    return _ranks().size


def local_rank() -> int:
    return _ranks().local_rank


def local_size() -> int:
    return _ranks_of_nodes()[_hosts[rank()]]


def cross_rank() -> int:
    return list(_ranks_of_nodes()).index(_hosts[rank()])


def cross_size() -> int:
    return len(_ranks_of_nodes())


def is_homogeneous() -> bool:
    return len(set(_ranks_of_nodes().values())) == 1


def barrier() -> None:
    _ranks().barrier()


def mpi_built() -> bool:
    return True


def gloo_built() -> bool:
    return False


def nccl_built() -> int:
    return 0


mpi_enabled = mpi_threads_supported = mpi_built
gloo_enabled = cuda_built = rocm_built = ddl_built = ccl_built = gloo_built


def allreduce(tensor: Any, *args: Any, **named: Any) -> Any:
    """The mean (or sum) of a tensor over ranks. Collective; see :func:`grouped_allreduce`."""
    return grouped_allreduce([tensor], *args, **named)[0]


def grouped_allreduce(tensors: Any, *args: Any, **named: Any) -> list[Any]:
    """The mean (or sum) of each tensor over ranks, through one buffer. Collective.

    The other arguments are those of :func:`reduction`, in its order.
    """
    return in_order(reduction(*args, **named).operation(_ranks), list(tensors))


def broadcast(tensor: Any, root_rank: int = 0, name: str | None = None, **more: Any) -> Any:
    """Rank ``root_rank``'s tensor. Collective."""
    _ranks(more)
    return in_order(rules.broadcast(root_rank), [tensor])[0]


def allgather(tensor: Any, name: str | None = None, **more: Any) -> Any:
    """The tensors of all ranks, joined along their first dimension, which may differ. Collective."""
    _ranks(more)
    return in_order(rules.allgather(), [tensor])[0]


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, **more: Any
) -> Any:
    """Rank ``root_rank``'s object, which must be picklable. Collective."""
    return common.broadcast_object(_ranks(more), obj, root_rank)


def allgather_object(obj: Any, name: str | None = None, **more: Any) -> list[Any]:
    """Each rank's object, in rank order, on every rank. Collective."""
    _ranks(more)
    return gather_objects(obj)


def gather_objects(value: Any) -> list[Any]:
    ranks = comm.init()
    # Pickled by itself: the objects of an old script need not be small.
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    result: list[Any] = []
    for root, length in enumerate(common.of_each_rank(ranks, data.size)):
        mine = data if ranks.rank == root else np.empty(length, np.uint8)
        (whole,) = ranks.broadcast([mine], root)
        result.append(pickle.loads(whole.tobytes()))
    return result


def reduction(
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    **more: Any,
) -> rules.Reduction:
    """What an allreduce with these arguments does to arrays.

    Args:
        compression: ``Compression.fp16``: float32 travels as float16.
        more: ``device_dense``, ``sparse_as_dense`` and the like, without meaning here.
    Raises:
        FairleadError: another ``op``, or process sets.
    """
    _ranks(more)
    if op is None:
        op = Average if average is None or average else Sum
    require(op in (Average, Sum), f"op={op}", "op=Average or op=Sum")
    known = (Compression.none, Compression.fp16)
    require(
        compression in known, f"compression={compression}", "Compression.none or Compression.fp16"
    )
    return rules.Reduction(op, compression, prescale_factor, postscale_factor)


def _ranks(more: Mapping[str, Any] = {}) -> Comm:
    """All ranks; ``more`` are arguments of a call, which must not ask for other ones."""
    no_sets(more)
    if not _hosts:
        raise fail("comm-dropin-init-horovod-missing")
    return comm.init()


def _ranks_of_nodes() -> Counter[str]:
    """How many ranks each node has; nodes are in the order of their first rank."""
    _ranks()
    return Counter(_hosts)


def no_sets(more: Mapping[str, Any]) -> None:
    """Refuses a process set among the arguments of a call."""
    require(more.get("process_set") is None, "process_set", "all ranks")


def require(condition: bool, what: str, instead: str) -> None:
    """Raises that ``what`` is not offered unless ``condition`` holds."""
    if not condition:
        raise not_offered(what, instead)
