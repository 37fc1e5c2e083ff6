"""``horovod.torch``'s collectives of tensors on CPUs: with handles, in place, and of sparse tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fairlead.base.errors import fail
from fairlead.comm.core import Array
from fairlead.comm.dropin import hvd, requests, sets
from fairlead.comm.dropin.engine import Handle
from fairlead.comm.dropin.moves import Done
from fairlead.comm.dropin.parameters import takes

_ASYNC = [
    f"{name}_async{place}"
    for name, places in {
        "allreduce": ("", "_"),
        "grouped_allreduce": ("", "_"),
        "allgather": ("",),
        "grouped_allgather": ("",),
        "broadcast": ("", "_"),
        "alltoall": ("",),
        "reducescatter": ("",),
        "grouped_reducescatter": ("",),
        "sparse_allreduce": ("",),
    }.items()
    for place in places
]
__all__ = [
    *_ASYNC,
    "allreduce_",
    "alltoall",
    "broadcast_",
    "grouped_allreduce_",
    "poll",
    "synchronize",
]


@dataclass(frozen=True)
class _Asked:
    """A collective that was asked for, and what to make of its result."""

    handle: Handle
    finish: Callable[[Done], Any]


# By number, as scripts see them.
_asked: dict[int, _Asked] = {}
_numbers = itertools.count()


def poll(handle: int) -> bool:
    """Whether :func:`synchronize` returns at once."""
    return handle not in _asked or sets.engine().poll(_asked[handle].handle)


def synchronize(handle: int) -> Any:
    """The result of what was asked for; None for a handle whose result was given already.

    Raises:
        HorovodInternalError: it cannot be carried out, on any rank.
    """
    if handle not in _asked:
        return None
    asked = _asked.pop(handle)
    return asked.finish(sets.engine().wait(asked.handle))


def _ask(
    kind: str,
    tensors: Sequence[Any],
    into: Sequence[Any] | None,
    single: bool,
    process_set: Any,
    **request: Any,
) -> int:
    """
    Args:
        into: tensors to write the results to; without it, they are new.
        single: whether the result is a tensor, not a list.
    """
    if any(tensor.device.type != "cpu" for tensor in tensors):
        raise fail("comm-device-tensor-gpu")
    arrays = [_array(tensor) for tensor in tensors]

    def finish(done: Done) -> Any:
        made = [_tensor(a, t.dtype) for a, t in zip(done.arrays, tensors, strict=True)]
        if into is not None:
            with torch.no_grad():
                made = [to.copy_(new) for to, new in zip(into, made, strict=True)]
        return made[0] if single else made

    handle = hvd.member_set(process_set).ask(kind, arrays, **request)
    number = next(_numbers)
    _asked[number] = _Asked(handle, finish)
    return number


def _array(tensor: Any) -> Array:
    given = tensor.detach()
    # NumPy has no bfloat16; float32 holds each of its values.
    array: Array = (given.float() if given.dtype == torch.bfloat16 else given).numpy()
    return array


def _tensor(array: Array, dtype: Any) -> Any:
    return torch.from_numpy(np.asarray(array)).to(dtype)


def _reduce(
    tensors: Sequence[Any],
    into: Any,
    single: bool,
    name: str | None = None,
    process_set: Any = None,
    **options: Any,
) -> int:
    how = hvd.reduction(process_set=process_set, **options)
    zeros = how.with_zeros
    return _ask(
        requests.ALLREDUCE, tensors, into, single, process_set, how=how, name=name, zeros=zeros
    )


_single = takes("tensor average name op prescale_factor postscale_factor process_set")
_grouped = takes("tensors average name op prescale_factor postscale_factor process_set")


@_single
def allreduce_async(tensor: Any, **how: Any) -> int:
    """:func:`allreduce`, for :func:`synchronize`, before which the tensor must not change."""
    return _reduce([tensor], None, True, **how)


@_single
def allreduce_async_(tensor: Any, **how: Any) -> int:
    """:func:`allreduce_async`, into the tensor itself."""
    return _reduce([tensor], [tensor], True, **how)


@_single
def allreduce_(tensor: Any, **how: Any) -> Any:
    """:func:`allreduce`, into ``tensor`` itself."""
    return synchronize(allreduce_async_(tensor, **how))


@_grouped
def grouped_allreduce_async(tensors: Any, **how: Any) -> int:
    """:func:`allreduce_async` of each tensor, all or none of them."""
    return _reduce(list(tensors), None, False, **how)


@_grouped
def grouped_allreduce_async_(tensors: Any, **how: Any) -> int:
    """:func:`grouped_allreduce_async`, into the tensors themselves."""
    given = list(tensors)
    return _reduce(given, given, False, **how)


@_grouped
def grouped_allreduce_(tensors: Any, **how: Any) -> Any:
    """:func:`grouped_allreduce`, into the tensors themselves."""
    return synchronize(grouped_allreduce_async_(tensors, **how))


def allgather_async(tensor: Any, name: str | None = None, process_set: Any = None) -> int:
    return _ask(requests.ALLGATHER, [tensor], None, True, process_set, name=name)


def grouped_allgather_async(tensors: Any, name: str | None = None, process_set: Any = None) -> int:
    return _ask(requests.ALLGATHER, list(tensors), None, False, process_set, name=name)


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: Any = None
) -> int:
    root = hvd.member_set(process_set).root(root_rank)
    return _ask(requests.BROADCAST, [tensor], None, True, process_set, name=name, how=root)


def broadcast_async_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: Any = None
) -> int:
    """:func:`broadcast_async`, into the tensor itself."""
    root = hvd.member_set(process_set).root(root_rank)
    return _ask(requests.BROADCAST, [tensor], [tensor], True, process_set, name=name, how=root)


def broadcast_(
    tensor: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None
) -> Any:
    """:func:`broadcast`, into ``tensor`` itself."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: Any = None
) -> Any:
    """:func:`fairlead.comm.dropin.hvd.alltoall`; the rows of each rank come as a tensor."""
    result = hvd.alltoall(tensor, splits, name, process_set)
    return result if splits is None else (result[0], torch.from_numpy(result[1]))


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: Any = None
) -> int:
    given = hvd.splits_of(splits, tensor, hvd.member_set(process_set))
    number = _ask(requests.ALLTOALL, [tensor], None, True, process_set, name=name, splits=given)
    if splits is not None:
        plain = _asked[number]
        _asked[number] = _Asked(
            plain.handle,
            lambda done: (plain.finish(done), torch.tensor(done.received, dtype=torch.int32)),
        )
    return number


@takes("tensor name op process_set prescale_factor postscale_factor")
def reducescatter_async(
    tensor: Any, name: str | None = None, process_set: Any = None, **how: Any
) -> int:
    scattering = hvd.scattering([tensor], **how)
    return _ask(
        requests.REDUCESCATTER, [tensor], None, True, process_set, name=name, how=scattering
    )


@takes("tensors name op process_set prescale_factor postscale_factor")
def grouped_reducescatter_async(
    tensors: Any, name: str | None = None, process_set: Any = None, **how: Any
) -> int:
    given = list(tensors)
    scattering = hvd.scattering(given, **how)
    return _ask(requests.REDUCESCATTER, given, None, False, process_set, name=name, how=scattering)


def sparse_allreduce_async(
    tensor: Any, name: str | None = None, op: Any = hvd.Average, process_set: Any = None
) -> Callable[[], Any]:
    """The sum or mean of sparse tensors; the result waits for it, and gives the sparse tensor."""
    hvd.require(op in (hvd.Average, hvd.Sum), f"sparse op={op}", "op=Average or op=Sum")
    whole = tensor.coalesce()
    base = None if name is None else f"{name}.sparse"
    places = allgather_async(
        whole.indices().t().contiguous(), base and f"{base}.indices", process_set
    )
    values = allgather_async(whole.values().contiguous(), base and f"{base}.values", process_set)
    divisor = hvd.member_set(process_set).size() if op == hvd.Average else 1

    def wait() -> Any:
        held = synchronize(values)
        return torch.sparse_coo_tensor(
            synchronize(places).t(), held / divisor if divisor > 1 else held, whole.shape
        ).coalesce()

    return wait
