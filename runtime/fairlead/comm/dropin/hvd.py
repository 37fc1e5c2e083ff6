"""``horovod``: what its TensorFlow, Keras and torch modules share.

Each collective is called by all ranks in the same order, as fairlead does, and not in any order, as
Horovod allows; ranks that differ get an error, and do not hang.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.core import Array, Comm
from fairlead.comm.dropin import tensors
from fairlead.comm.dropin.absent import getter, not_offered
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.dropin.tensors import in_order

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
Average, Sum = "Average", "Sum"
_SMALL = ("float16", "bfloat16")
_initialized = False

__getattr__ = getter("horovod")


class Compression:
    """How gradients travel: as they are, or as float16."""

    none = "none"
    fp16 = "fp16"


@dataclass
class _Layout:
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool


_layout: _Layout | None = None
# TensorFlow runs the operations of a step in threads, so each optimizer's gradients have a
# communicator of their own.
_lanes: list[Comm] = []


def init(comm_: Any = None, process_sets: Any = None, **more: Any) -> None:
    """Starts MPI. Calling it again is free.

    Raises:
        FairleadError: a subset of the ranks, or process sets, are asked for.
    """
    if comm_ or process_sets or more.get("comm"):
        raise not_offered("init of a subset of the ranks", "init() of all of them")
    global _initialized, _layout
    if _initialized:
        return
    ranks = comm.init()
    _initialized = True
    import socket

    # Nodes in the order of their first rank.
    hosts = gather_objects(socket.gethostname())
    nodes = list(dict.fromkeys(hosts))
    mine = hosts[ranks.rank]
    counts = {hosts.count(node) for node in nodes}
    _layout = _Layout(hosts.count(mine), nodes.index(mine), len(nodes), len(counts) == 1)
    say_on_rank_0(f"{ranks.size} rank(s), by {ranks.backend}, in place of Horovod")


def shutdown() -> None:
    """Ends MPI. Collective."""
    global _initialized
    if _initialized:
        _initialized = False
        comm.finalize()


def is_initialized() -> bool:
    return _initialized


def rank() -> int:
    return _ranks().rank


def size() -> int:
    return _ranks().size


def local_rank() -> int:
    return _ranks().local_rank


def local_size() -> int:
    return _here().local_size


def cross_rank() -> int:
    return _here().cross_rank


def cross_size() -> int:
    return _here().cross_size


def is_homogeneous() -> bool:
    return _here().homogeneous


def barrier() -> None:
    _ranks().barrier()


def mpi_threads_supported() -> bool:
    return True


def mpi_enabled() -> bool:
    return True


def mpi_built() -> bool:
    return True


def gloo_enabled() -> bool:
    return False


def gloo_built() -> bool:
    return False


def nccl_built() -> int:
    return 0


def cuda_built() -> bool:
    return False


def rocm_built() -> bool:
    return False


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    **more: Any,
) -> Any:
    """The mean (or sum) of a tensor over ranks. Collective; see :func:`grouped_allreduce`."""
    return grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, **more
    )[0]


def grouped_allreduce(
    tensors: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    **more: Any,
) -> list[Any]:
    """The mean (or sum) of each tensor over ranks, through one buffer. Collective.

    Args:
        compression: ``Compression.fp16``: float32 and float64 travel as float16.
        more: ``device_dense``, ``sparse_as_dense`` and the like, without meaning here.
    Raises:
        FairleadError: another ``op``, or process sets.
    """
    reduce = reduction(average, op, compression, prescale_factor, postscale_factor, **more)
    return in_order(reduce, list(tensors))


def broadcast(tensor: Any, root_rank: int = 0, name: str | None = None, **more: Any) -> Any:
    """Rank ``root_rank``'s tensor. Collective."""
    _no_sets(more)
    _ranks()
    return in_order(lambda arrays: tensors.broadcast_arrays(arrays, root_rank), [tensor])[0]


def allgather(tensor: Any, name: str | None = None, **more: Any) -> Any:
    """The tensors of all ranks, joined along their first dimension, which may differ. Collective."""
    _no_sets(more)
    _ranks()

    def join(arrays: list[Array]) -> list[Array]:
        (array,) = arrays
        return [np.concatenate([np.atleast_1d(a) for a in gather_objects(array)])]

    return in_order(join, [tensor], same_shape=False)[0]


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, **more: Any
) -> Any:
    """Rank ``root_rank``'s object, which must be picklable. Collective."""
    from fairlead.comm.frameworks.common import broadcast_object

    _no_sets(more)
    return broadcast_object(_ranks(), obj, root_rank)


def allgather_object(obj: Any, name: str | None = None, **more: Any) -> list[Any]:
    """Each rank's object, in rank order, on every rank. Collective."""
    _no_sets(more)
    _ranks()
    return gather_objects(obj)


def gather_objects(value: Any) -> list[Any]:
    ranks = comm.init()
    # Pickled by itself: the objects of an old script need not be small.
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    result: list[Any] = []
    for root, length in enumerate(_lengths(ranks, data.size)):
        mine = data if ranks.rank == root else np.empty(length, np.uint8)
        (whole,) = ranks.broadcast([mine], root)
        result.append(pickle.loads(whole.tobytes()))
    return result


def _lengths(ranks: Comm, mine: int) -> list[int]:
    table = np.zeros(ranks.size)
    table[ranks.rank] = mine
    return [round(mean * ranks.size) for mean in ranks.aggregate([table])[0].tolist()]


def reduction(
    average: bool | None = None,
    op: Any = None,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    lane: Comm | None = None,
    **more: Any,
) -> tensors.Collective:
    """What an allreduce with these arguments does to arrays.

    Args:
        lane: the communicator that it uses; that of all calls without it.
    """
    _no_sets(more)
    ranks = lane or _ranks()
    if op is None:
        op = Average if average is None or average else Sum
    if op not in (Average, Sum):
        raise not_offered(f"op={op}", "op=Average or op=Sum")
    if compression not in (Compression.none, Compression.fp16):
        raise not_offered(f"compression={compression}", "Compression.none or Compression.fp16")
    factor = prescale_factor * postscale_factor * (ranks.size if op == Sum else 1)

    def reduce(arrays: list[Array]) -> list[Array]:
        sent = [_as_sent(array, compression, op == Sum) for array in arrays]
        results = []
        for mean, array in zip(ranks.aggregate(sent), arrays, strict=True):
            value = mean if factor == 1 else mean.astype(_wider(mean.dtype)) * factor
            if array.dtype.kind in "iub":
                # As Horovod has it: the mean of integers is cut.
                value = np.trunc(
                    np.where(np.abs(value - np.rint(value)) < 1e-9, np.rint(value), value)
                )
            results.append(np.asarray(value).astype(array.dtype, copy=False))
        return results

    return reduce


def _as_sent(array: Array, compression: str, exact: bool) -> Array:
    kind, name = array.dtype.kind, array.dtype.name
    if kind in "iub":
        return array.astype(np.float64)
    if compression == Compression.fp16 and kind == "f":
        return array.astype(np.float16)
    # A sum is the mean times the ranks, which rounds once more than the sum itself.
    return array.astype(np.float64) if exact and name == "float32" else array


def _wider(dtype: Any) -> Any:
    return np.float32 if dtype.name in _SMALL else dtype


def lane() -> Comm:
    """Another communicator of all ranks, for calls that may be in flight at any time. Collective."""
    made = _ranks().team()
    _lanes.append(made)
    return made


def _ranks() -> Comm:
    if not _initialized:
        raise fail("comm-dropin-init-horovod-missing")
    return comm.init()


def _here() -> _Layout:
    _ranks()
    assert _layout is not None
    return _layout


def _no_sets(more: dict[str, Any]) -> None:
    if more.get("process_set") is not None:
        raise not_offered("process_set", "all ranks")


def bound(
    call: str, parameters: Mapping[str, Any], args: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name: defaults, then those by place, then those by name.

    Raises:
        TypeError: there are too many, or one is given twice, as Python says it.
    """
    by_place = dict(zip(parameters, args, strict=False))
    twice = [name for name in by_place if name in named]
    if len(args) > len(parameters):
        raise TypeError(f"{call}() takes {len(parameters) + 1} positional arguments at most")
    if twice:
        raise TypeError(f"{call}() got multiple values for argument {twice[0]!r}")
    return {**parameters, **by_place, **named}


def require(condition: bool, what: str, instead: str) -> None:
    """Raises that ``what`` is not offered unless ``condition`` holds."""
    if not condition:
        raise not_offered(what, instead)


Mean = Callable[[list[Any]], list[Any]]
