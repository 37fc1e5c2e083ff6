"""torch: optimizers, loaders that shuffle, BatchNorm and ``torch.save`` of many ranks."""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import weakref
from collections.abc import Callable
from typing import Any

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.auto import shared
from fairlead.comm.auto.shared import PART, before, done, in_fit, on_rank_0, own_loop


def patch(torch: Any) -> None:
    """Makes optimizers, loaders that shuffle, BatchNorm and ``torch.save`` those of many ranks."""
    # Models begin alike; the first step compares them.
    torch.manual_seed(0)
    import torch.utils.data as data

    modules, optimizers = _Modules(torch), _Optimizers()
    before(data.DataLoader, "__init__", functools.partial(_loader, data))
    before(data.DataLoader, "__iter__", functools.partial(_epoch, torch))
    before(torch.nn.Module, "__init__", modules.made)
    before(torch.nn.Module, "__setstate__", modules.made)  # a copy
    before(torch.optim.Optimizer, "__init__", functools.partial(optimizers.made, modules))
    before(torch.Tensor, "backward", optimizers.backward)
    before(torch, "save", on_rank_0)
    shared.at_end.append(modules.compare)


def _loader(
    data: Any, original: Callable[..., Any], loader: Any, dataset: Any, *args: Any, **kwargs: Any
) -> None:
    call = inspect.signature(original).bind(loader, dataset, *args, **kwargs)
    given = call.arguments
    if isinstance(dataset, data.IterableDataset):
        raise fail("auto-data-iterable-dataset")  # fmt: skip
    chosen = given.get("sampler") is not None or given.get("batch_sampler") is not None
    split = bool(given.get("shuffle")) and not chosen
    if split:
        # Repeats a few samples where they do not come out even: every rank has as many batches.
        given["sampler"] = data.DistributedSampler(dataset, comm.size(), comm.rank(), shuffle=True)
        given["shuffle"] = None
    original(*call.args, **call.kwargs)
    if split:
        setattr(loader, PART, 0)


def _epoch(torch: Any, original: Callable[..., Any], loader: Any) -> Any:
    epoch = getattr(loader, PART, None)
    if epoch is not None:
        loader.sampler.set_epoch(epoch)
        setattr(loader, PART, epoch + 1)
        if "data" not in done:
            torch.manual_seed(comm.rank())  # dropout and the like: other masks on each rank
        done.add("data")
    return original(loader)


class _Optimizers:
    """Those that the script made, each of which averages."""

    def __init__(self) -> None:
        self._any = False

    def made(
        self,
        modules: _Modules,
        original: Callable[..., Any],
        optimizer: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        from fairlead.comm.torch import DistributedOptimizer

        self._any = True
        original(optimizer, *args, **kwargs)
        optimizer.register_step_pre_hook(functools.partial(_step, modules))
        DistributedOptimizer(optimizer)

    def backward(self, original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuses what no optimizer will apply: the script updates its parameters by hand."""
        if not self._any and not in_fit():
            raise own_loop("Tensor.backward, without an optimizer")
        return original(tensor, *args, **kwargs)


def _step(modules: _Modules, optimizer: Any, args: Any, kwargs: Any) -> None:
    if "data" not in done:
        raise fail("auto-data-no-loader")
    modules.average_statistics()
    done.add("gradients")


class _Modules:
    """All modules, in the order in which the script made them, which is the same on every rank.

    The mean of running means is the running mean of what all ranks saw, so BatchNorm's statistics are averaged
    in every step, few bytes next to the gradients', and are equal whenever the script evaluates or saves.
    """

    def __init__(self, torch: Any):
        self._kind = torch.nn.modules.batchnorm._NormBase
        self._every: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        self._grown = False
        self._statistics: list[
            tuple[str, Any]
        ] = []  # names, and the modules' own tables of buffers

    def made(self, original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> None:
        original(module, *args, **kwargs)
        self._every[next(self._numbers)] = module
        self._grown |= isinstance(module, self._kind)

    def average_statistics(self) -> None:
        """Makes BatchNorm's running means and variances equal. Collective."""
        if self._grown:
            self._grown = False
            norms = [m for m in self._alive() if isinstance(m, self._kind)]
            self._statistics = [
                (f"{type(m).__name__} {i}", m._buffers) for i, m in enumerate(norms)
            ]
        named = {
            f"{kind} {name}": table[name]
            for kind, table in self._statistics
            for name in ("running_mean", "running_var")
            if table.get(name) is not None
        }
        if named:
            from fairlead.comm.torch import average_state

            average_state(named)

    def compare(self) -> None:
        """Compares all buffers over ranks. Collective.

        Raises:
            FairleadError: they differ.
        """
        from fairlead.comm.torch import require_equal

        named = {
            f"{name} of {type(module).__name__} {i}": tensor
            for i, module in enumerate(self._alive())
            for name, tensor in module._buffers.items()
            if tensor is not None
        }
        if named:
            require_equal(named, "when the script ended", _BUFFERS)

    def _alive(self) -> list[Any]:
        # Without it, each rank would have dropped what stands in a circle at a time of its own.
        gc.collect()
        return [module for _, module in sorted(self._every.items(), key=lambda item: item[0])]


_BUFFERS = "call `fairlead.comm.torch.average_buffers(model)` after what changes buffers without a step of an optimizer"
