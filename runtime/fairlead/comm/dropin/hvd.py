"""``horovod``: what its TensorFlow, Keras and torch modules share.

Collectives are asked for in any order, by name or by their number, and carried out when all ranks have asked
(:mod:`fairlead.comm.dropin.engine`); ranks that ask for different things get an error, and do not hang.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.dropin import requests, rules, sets
from fairlead.comm.dropin.absent import not_offered
from fairlead.comm.dropin.failures import HorovodInternalError, HostsUpdatedInterrupt, usage
from fairlead.comm.dropin.parameters import takes
from fairlead.comm.dropin.sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    remove_process_set,
)
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.dropin.tensors import in_order

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "num_rank_is_power_2",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

__version__ = "0.28.1"  # the interface that this follows
Average, Sum = rules.AVERAGE, rules.SUM
Min, Max, Product, Adasum = rules.MIN, rules.MAX, rules.PRODUCT, rules.ADASUM


class _Plain:
    """Tensors travel as they are."""

    wire = "none"

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor


class _Half:
    """Floats travel as float16. In an allreduce, float32 alone does, and sums are float32."""

    wire = "fp16"

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what :meth:`decompress` has to know."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(tensor, torch.Tensor):
            whole = tensor.dtype
            return (tensor.half() if whole.is_floating_point else tensor), whole
        if isinstance(tensor, (np.ndarray, np.generic)):
            floats = tensor.dtype.kind == "f"
            return (tensor.astype(np.float16) if floats else tensor), tensor.dtype
        import tensorflow

        floats = tensor.dtype.is_floating
        return (tensorflow.cast(tensor, tensorflow.float16) if floats else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(tensor, torch.Tensor):
            return tensor.to(context)
        if isinstance(tensor, (np.ndarray, np.generic)):
            return tensor.astype(context)
        import tensorflow

        return tensorflow.cast(tensor, context)


class Compression:
    """How tensors travel. Any class with :meth:`compress` and :meth:`decompress` of these is accepted as well."""

    none = _Plain
    fp16 = _Half


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Starts MPI, unless it has, and adds ``process_sets``.

    Args:
        comm: all ranks: a communicator, or their numbers.
        process_sets: to add at once.
    Raises:
        FairleadError: ``comm`` is a subset of the ranks.
        UsageError, HorovodInternalError: as :func:`add_process_set`.
    """
    if not is_initialized():
        ranks = sets.start(comm)
        say_on_rank_0(f"{ranks.size} rank(s), by {ranks.backend}, in place of Horovod")
        file, marks = (os.environ.get(f"HOROVOD_TIMELINE{n}", "") for n in ("", "_MARK_CYCLES"))
        if file not in ("", "DYNAMIC"):
            start_timeline(file, marks not in ("", "0"))
    if process_sets not in (None, "dynamic") and process_sets:
        sets.add_process_sets(process_sets)


def start_timeline(file_path: Any, mark_cycles: bool = False) -> None:
    """Rank 0 writes what it asks for and waits for to a file, until :func:`stop_timeline`; see `fairlead run --timeline`.

    Raises:
        OSError: the file cannot be written.
    """
    if rank() == 0:
        sets.engine().start_timeline(file_path, marks_turns=mark_cycles)


def stop_timeline() -> None:
    """Ends what :func:`start_timeline` began."""
    sets.engine().stop_timeline()


def shutdown() -> None:
    """Ends MPI. Collective."""
    if is_initialized():
        comm.init().check_last()  # of process sets, too
        sets.stop()
        comm.finalize()


def is_initialized() -> bool:
    return bool(sets.hosts())


def rank() -> int:
    return _all().rank()


def size() -> int:
    return _all().size()


def local_rank() -> int:
    _all()
    return comm.local_rank()


def local_size() -> int:
    return _ranks_of_nodes()[sets.hosts()[rank()]]


def cross_rank() -> int:
    return list(_ranks_of_nodes()).index(sets.hosts()[rank()])


def cross_size() -> int:
    return len(_ranks_of_nodes())


def is_homogeneous() -> bool:
    return len(set(_ranks_of_nodes().values())) == 1


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the process set has called it."""
    process_set.run(requests.BARRIER)


def join(device: int = -1) -> int:
    """Takes part in the sums and means of others with zeros, until all ranks have called it.

    Returns:
        The rank that was last.
    """
    done = sets.engine().run(sets.engine().all, requests.JOIN, name=requests.JOIN)
    return done.last


def mpi_built() -> bool:
    return True


def gloo_built() -> bool:
    return False


def nccl_built() -> int:
    return 0


mpi_enabled = mpi_threads_supported = mpi_built
gloo_enabled = cuda_built = rocm_built = ddl_built = ccl_built = gloo_built


@takes("tensor average name compression op prescale_factor postscale_factor process_set")
def allreduce(tensor: Any, **how: Any) -> Any:
    """One tensor's :func:`grouped_allreduce`."""
    return grouped_allreduce([tensor], **how)[0]


@takes("tensors average name compression op prescale_factor postscale_factor process_set")
def grouped_allreduce(
    tensors: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    process_set: Any = None,
    **how: Any,
) -> list[Any]:
    """The mean, sum, minimum, maximum or product of each tensor over ranks, all or none of them.

    Args:
        how: as for :func:`reduction`.
    """
    members = member_set(process_set)
    reduced = reduction(compression=compression, process_set=members, **how)
    operation = reduced.operation(lambda: members, name)
    if compression is None or compression in (Compression.none, Compression.fp16):
        return in_order(operation, list(tensors))
    return _compressed(operation, compression, tensors)


def _compressed(operation: rules.Operation, compression: Any, tensors: Any) -> list[Any]:
    sent = [compression.compress(tensor) for tensor in tensors]
    back = in_order(operation, [tensor for tensor, _ in sent])
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(back, sent, strict=True)
    ]


def broadcast(
    tensor: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None
) -> Any:
    """Rank ``root_rank``'s tensor. Collective."""
    members = member_set(process_set)
    root = members.root(root_rank)
    return in_order(rules.broadcast(lambda: members, root, name), [tensor])[0]


def allgather(tensor: Any, name: str | None = None, process_set: Any = None) -> Any:
    """The tensors of all ranks, joined along their first dimension, which may differ. Collective."""
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(tensors: Any, name: str | None = None, process_set: Any = None) -> list[Any]:
    """:func:`allgather` of each tensor, all or none of them."""
    members = member_set(process_set)
    return in_order(rules.allgather(lambda: members, name), list(tensors))


@takes("tensor name compression op process_set prescale_factor postscale_factor")
def reducescatter(tensor: Any, **how: Any) -> Any:
    """One tensor's :func:`grouped_reducescatter`."""
    return grouped_reducescatter([tensor], **how)[0]


@takes("tensors name compression op process_set prescale_factor postscale_factor")
def grouped_reducescatter(
    tensors: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    process_set: Any = None,
    **how: Any,
) -> list[Any]:
    """This rank's rows of the mean or sum of each tensor; the first ranks get one more where they are not as many.

    Args:
        how: as for :func:`scattering`.
    """
    members = member_set(process_set)
    operation = rules.reducescatter(lambda: members, scattering(tensors, **how), name)
    return _compressed(operation, compression, tensors)


def scattering(
    tensors: Sequence[Any],
    op: Any = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> rules.Reduction:
    """What a reducescatter with these arguments does to arrays.

    Raises:
        HorovodInternalError: another ``op``; a scalar.
    """
    if op not in (Average, Sum):
        refused = not_offered(f"reducescatter with op={op}", "op=Average or op=Sum")
        raise HorovodInternalError(refused.findings)
    for index, tensor in enumerate(tensors):
        if not len(tensor.shape):
            raise usage(fail("comm-dropin-scalar", call="reducescatter", index=index))
    return rules.Reduction(op, "none", prescale_factor, postscale_factor)


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: Any = None
) -> Any:
    """The rows of each rank that are for this one.

    Args:
        splits: how many rows each rank gets; without them, as many for all.
    Returns:
        The rows; with ``splits``, also how many there are of each rank.
    Raises:
        UsageError: the splits do not fit the tensor.
    """
    members = member_set(process_set)
    given = splits_of(splits, tensor, members)
    moved = rules.Alltoall(lambda: members, given, name)
    (result,) = in_order(moved.operation, [tensor])
    return result if splits is None else (result, np.array(moved.received, np.int32))


def splits_of(splits: Any, tensor: Any, members: ProcessSet) -> tuple[int, ...]:
    """
    Raises:
        UsageError: they do not fit the tensor.
    """
    length = int(tensor.shape[0]) if len(tensor.shape) else 0
    if splits is None:
        return rules.even(length, members.size())
    given = np.asarray(splits)
    if given.dtype.kind not in "iu" or given.shape != (members.size(),):
        raise usage(
            fail(
                "comm-dropin-splits-kind", given=f"{given.dtype} {given.shape}", size=members.size()
            )
        )
    rows = tuple(given.tolist())
    if sum(rows) > length or min(rows) < 0:
        raise usage(fail("comm-dropin-splits", splits=list(rows), length=length))
    return rows


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: Any = None
) -> Any:
    """Rank ``root_rank``'s object, which must be picklable. Collective."""
    members = member_set(process_set)
    root = members.root(root_rank)
    here = members.rank() == root
    data = np.frombuffer(pickle.dumps(obj), np.uint8) if here else np.empty(0, np.uint8)
    size = members.run(requests.BROADCAST, [np.array([data.size])], how=root).arrays[0]
    sent = data if here else np.empty(int(size[0]), np.uint8)
    (whole,) = members.run(requests.BROADCAST, [sent], how=root, name=name).arrays
    return pickle.loads(whole.tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: Any = None) -> list[Any]:
    """Each rank's object, in rank order, on every rank. Collective."""
    members = member_set(process_set)
    data = np.frombuffer(pickle.dumps(obj), np.uint8)
    (sizes,) = members.run(requests.ALLGATHER, [np.array([data.size])]).arrays
    (whole,) = members.run(requests.ALLGATHER, [data], name=name).arrays
    ends = np.cumsum(sizes)
    pieces = [whole[end - n : end] for n, end in zip(sizes, ends, strict=True)]
    return [pickle.loads(piece.tobytes()) for piece in pieces]


def reduction(
    average: bool | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> rules.Reduction:
    """What an allreduce with these arguments does to arrays.

    Args:
        compression: ``Compression.fp16``: float32 travels as float16. What another class compresses, it compresses
            before.
    Raises:
        FairleadError: another ``op``; a factor that is not finite.
        UsageError: both ``op`` and ``average``.
    """
    if op is not None and average is not None:
        raise usage(fail("comm-dropin-op-average"))
    if op is None:
        op = Average if average is None or average else Sum
    require(op in rules.OPERATIONS, f"op={op}", f"op={', '.join(rules.OPERATIONS)}")
    if op == Adasum:
        # As Horovod does; NotImplementedError is what its scripts catch.
        if member_set(process_set) is not global_process_set:
            raise NotImplementedError("Adasum is of all ranks, not of a process set")
        if not num_rank_is_power_2(size()):
            raise NotImplementedError(f"Adasum of {size()} ranks, which are not a power of 2")
    for factor in (prescale_factor, postscale_factor):
        require(math.isfinite(factor), f"the factor {factor}", "a finite factor")
    wire = getattr(compression, "wire", "none")
    return rules.Reduction(op, wire, float(prescale_factor), float(postscale_factor))


def member_set(given: Any) -> ProcessSet:
    """The process set that is an argument of a call; without one, that of all ranks.

    Raises:
        FairleadError: before ``init``.
        UsageError: it was not added, or is removed.
    """
    sets.engine()
    return sets.of(given)


# What scripts that look into Horovod ask for the process sets.
_basics = SimpleNamespace(_get_process_set_ids_and_ranks=get_process_set_ids_and_ranks)


def _all() -> ProcessSet:
    sets.engine()
    return global_process_set


def _ranks_of_nodes() -> Counter[str]:
    """How many ranks each node has; nodes are in the order of their first rank."""
    _all()
    return Counter(sets.hosts())


def require(condition: bool, what: str, instead: str) -> None:
    """Raises that ``what`` is not offered unless ``condition`` holds."""
    if not condition:
        raise not_offered(what, instead)
