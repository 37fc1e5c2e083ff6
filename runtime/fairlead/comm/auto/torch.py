"""torch: optimizers, loaders in a random order, BatchNorm and ``torch.save`` of many ranks."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.auto import files, held, shared
from fairlead.comm.auto.shared import PART, before, done, in_fit, own_loop
from fairlead.comm.frameworks.common import say

_STEPS_WITHOUT = 100  # in a row; a batch may be kept for many
_FEW = 64  # values of a parameter that are looked at
_DOCS = "docs/tutorials/training.md"


def patch(torch: Any) -> None:
    """Makes optimizers, loaders in a random order, BatchNorm and ``torch.save`` those of many ranks."""
    # Models begin alike; the first step compares them.
    torch.manual_seed(0)
    import torch.utils.data as data

    shared.ends_together()

    modules, batches = _Modules(torch), _Batches(torch)
    optimizers = _Optimizers(modules, batches)
    before(data.DataLoader, "__init__", functools.partial(_loader, data))
    before(data.DataLoader, "__iter__", batches.epoch)
    before(data.dataloader._BaseDataLoaderIter, "__next__", batches.taken)
    before(torch.nn.Module, "__init__", modules.made)
    before(torch.nn.Module, "__setstate__", modules.made)  # a copy
    before(torch.optim.Optimizer, "__init__", optimizers.made)
    # Tensor.backward and torch.func's gradients come here, too.
    before(torch.autograd, "backward", optimizers.backward)
    before(torch.autograd, "grad", optimizers.grad)
    if torch.distributed.is_available():
        before(torch.distributed, "init_process_group", _join)
    before(torch, "save", _save)
    before(torch, "load", files.load)
    shared.at_end.append(modules.compare)


def _loader(
    data: Any, original: Callable[..., Any], loader: Any, dataset: Any, *args: Any, **kwargs: Any
) -> None:
    call = inspect.signature(original).bind(loader, dataset, *args, **kwargs)
    given = call.arguments
    if isinstance(dataset, data.IterableDataset):
        raise fail("auto-data-iterable-dataset")  # fmt: skip
    sampler, batches = given.get("sampler"), given.get("batch_sampler")
    if (
        batches is not None
        and type(batches) is data.BatchSampler
        and _is_random(data, batches.sampler)
    ):
        batches = given["batch_sampler"] = copy.copy(batches)
        batches.sampler = Part(batches.sampler)
    elif batches is None and given.get("shuffle") and sampler is None:
        given["sampler"], given["shuffle"] = Part(data.RandomSampler(dataset)), None
    elif _is_random(data, sampler):
        given["sampler"] = Part(sampler)
    original(*call.args, **call.kwargs)
    # Accelerate makes a loader anew, of the one that was shared out.
    if _part_of(loader) is not None:
        setattr(loader, PART, 0)


def _is_random(data: Any, sampler: Any) -> bool:
    """Whether it is one of torch's, which draw from a generator alone."""
    return type(sampler) in (
        data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler
    )  # fmt: skip


def _part_of(loader: Any) -> Part | None:
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    return sampler if isinstance(sampler, Part) else None


class Part:
    """This rank's part of what a random sampler draws: every N-th index of an order that all ranks draw alike.

    Repeats a few indices where they do not come out even: every rank has as many batches.

    Without gradients a script evaluates, on all that is drawn. The length is then that of all, also after the iteration,
    by which scripts divide their sums.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._epoch, self._whole, self._asked = 0, False, False
        self._begun = self._looked = False

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":  # while it is copied
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def set_epoch(self, epoch: int) -> None:
        """Other frameworks set their own."""

    def begin(self, epoch: int) -> bool:
        """The next iteration's epoch; whether it gives a part.

        Raises:
            FairleadError: the length of a part was asked for, of what is all now.
        """
        self._epoch, self._whole = epoch, _evaluates()
        if self._whole and self._asked and not self._begun:
            raise fail("auto-data-length", part=self._length(), whole=len(self.sampler))
        self._begun = True
        return not self._whole

    def look(self) -> list[held.Part]:
        """What it draws from, to be compared over ranks, at the first time."""
        parts: list[held.Part] = []
        for name in () if self._looked else ("indices", "weights"):
            value = getattr(self.sampler, name, None)
            parts += held.of_value(value, f"`{name}` of {type(self.sampler).__name__}")
        self._looked = True
        return parts

    def __iter__(self) -> Iterator[Any]:
        import torch

        drawn = copy.copy(self.sampler)
        drawn.generator = torch.Generator().manual_seed(self._epoch)
        return iter(drawn) if self._whole else self._own(iter(drawn))

    @staticmethod
    def _own(drawn: Iterator[Any]) -> Iterator[Any]:
        first: list[Any] = []
        while several := list(itertools.islice(drawn, comm.size())):
            first = first or several
            yield list(itertools.islice(itertools.cycle([*several, *first]), comm.size()))[
                comm.rank()
            ]

    def __len__(self) -> int:
        if self._whole or _evaluates():
            return len(self.sampler)
        self._asked = True
        return self._length()

    def _length(self) -> int:
        return -(-len(self.sampler) // comm.size())


def _evaluates() -> bool:
    import torch

    return not torch.is_grad_enabled()


def _join(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A script that takes its ranks from the environment is not a serial one."""
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    by_environment = given.get("store") is None and given.get("init_method") in (None, "env://")
    if by_environment and given.get("world_size") != 1:
        raise fail("auto-joins")
    return original(*args, **kwargs)


def _save(original: Callable[..., Any], obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(f, (str, os.PathLike)):
        files.save(f, lambda path: original(obj, path, *args, **kwargs))
    elif comm.rank() == 0 or getattr(f, "name", None) is None:  # a buffer is each rank's own
        original(obj, f, *args, **kwargs)


class _Batches:
    """What loaders have given since the last step: a step on whole data only is refused.

    With batches that are taken without gradients a script evaluates. They count only before the first step, as of a
    script that takes all of its batches so.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._seeded = False
        self._taken: dict[bool, set[bool]] = {True: set(), False: set()}
        self._without = 0
        self._unlike: list[held.Part] = []  # what is to be compared over ranks
        self.epochs = 0

    def epoch(self, original: Callable[..., Any], loader: Any) -> Any:
        epoch, sampler, is_part = getattr(loader, PART, None), _part_of(loader), False
        if epoch is not None and sampler is not None:
            self._look(loader.dataset, sampler)
            is_part = sampler.begin(epoch)
            setattr(loader, PART, epoch + 1)
            if is_part and not self._seeded:
                # dropout and the like: other masks on each rank
                self._torch.manual_seed(comm.rank())
                self._seeded = True
        batches = original(loader)
        setattr(batches, PART, is_part)
        return batches

    def _look(self, dataset: Any, sampler: Part) -> None:
        """Before a loader reads: what its dataset holds is compared in the next step, which all ranks make."""
        if threading.current_thread() is not threading.main_thread():
            return
        self.epochs += 1
        parts = sampler.look()
        if held.is_new(dataset):
            parts += held.of_dataset(dataset)
        if parts:
            # Later the ranks' numbers are their own, and may have made other augmentations.
            self._unlike += [p._replace(values=None) for p in parts] if self._seeded else parts

    def taken(self, original: Callable[..., Any], batches: Any) -> Any:
        batch = original(batches)
        self._taken[self._torch.is_grad_enabled()].add(getattr(batches, PART, False))
        return batch

    def step(self) -> None:
        """Of an optimizer.

        Raises:
            FairleadError: it is not on a part of the data.
        """
        since = self._taken[True] or (set() if "data" in done else self._taken[False])
        if since and True not in since:
            raise fail("auto-data-other-loader")
        if not since and "data" not in done:
            raise fail("auto-data-no-loader")
        done.add("data")
        if self._unlike:
            parts, self._unlike = self._unlike, []
            held.require_alike(parts, "optimizer.step")
        self._without = 0 if since else self._without + 1
        if self._without == _STEPS_WITHOUT and comm.rank() == 0:
            say(
                f"{_STEPS_WITHOUT} steps of optimizers since a DataLoader in a random order gave its last batch: where they"
                f" are on other data than that, every rank trains on all of it ({_DOCS})"
            )
        self._taken = {True: set(), False: set()}


class _Optimizers:
    """Those that the script made, each of which averages; and parameters that none of them has."""

    def __init__(self, modules: _Modules, batches: _Batches) -> None:
        self._modules, self._batches = modules, batches
        self._any = False
        self._every: weakref.WeakSet[Any] = weakref.WeakSet()
        self._known = (0, 0)
        self._loose: list[weakref.ref[Any]] = []
        self._differentiated: dict[int, tuple[Any, Any]] = {}
        self._rates: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def made(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> None:
        from fairlead.comm.torch import DistributedOptimizer

        self._any = True
        original(optimizer, *args, **kwargs)
        self._every.add(optimizer)
        optimizer.register_step_pre_hook(self._step)
        DistributedOptimizer(optimizer)

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._batches.step()
        if self._rates.get(optimizer) != self._batches.epochs:
            self._rates[optimizer] = self._batches.epochs
            shared.require_equal_rates([float(group["lr"]) for group in optimizer.param_groups])
        self._modules.average_statistics()
        done.add("gradients")

    def backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Refuses what no optimizer will apply: the script updates its parameters by hand."""
        self._require("Tensor.backward")
        result = original(*args, **kwargs)
        self._compare("Tensor.backward", lambda tensor: tensor.grad is not None)
        return result

    def grad(
        self, original: Callable[..., Any], outputs: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """As :meth:`backward`."""
        self._require("torch.autograd.grad")
        result = original(outputs, inputs, *args, **kwargs)
        of = {id(each) for each in (inputs if isinstance(inputs, (list, tuple)) else (inputs,))}
        self._compare("torch.autograd.grad", lambda tensor: id(tensor) in of)
        return result

    def _require(self, where: str) -> None:
        if not self._any and not in_fit():
            raise own_loop(f"{where}, without an optimizer")

    def _compare(self, where: str, has_gradient: Callable[[Any], bool]) -> None:
        """Refuses a gradient of a parameter without an optimizer that the script has changed since the last one.

        Such a parameter alone is usual (a part that is not trained, the average of another model), and so is changing it.
        """
        if in_fit():
            return
        found = {}
        for each in self._without_optimizer():
            tensor = each()
            if tensor is not None and tensor.requires_grad and has_gradient(tensor):
                few = tensor.detach().reshape(-1)[:_FEW].clone()
                known, before_it = self._differentiated.get(id(tensor), (None, None))
                if known is each and not before_it.equal(few):
                    raise own_loop(f"{where}, of parameters that no optimizer has")
                found[id(tensor)] = each, few
        self._differentiated |= found

    def _without_optimizer(self) -> list[weakref.ref[Any]]:
        groups = [group["params"] for optimizer in self._every for group in optimizer.param_groups]
        known = (self._modules.made_so_far, sum(map(len, groups)))
        if known != self._known:
            self._known = known
            held = {id(tensor) for group in groups for tensor in group}
            loose = [each for each in self._modules.parameters() if id(each) not in held]
            self._loose = [weakref.ref(tensor) for tensor in loose]
            self._differentiated = {}
        return self._loose


class _Modules:
    """All modules, in the order in which the script made them, which is the same on every rank.

    The mean of running means is the running mean of what all ranks saw, so BatchNorm's statistics are averaged
    in every step, few bytes next to the gradients', and are equal whenever the script evaluates or saves.
    """

    def __init__(self, torch: Any):
        self._kind = torch.nn.modules.batchnorm._NormBase
        self._every: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.made_so_far = 0
        self._grown = False
        self._statistics: list[
            tuple[str, Any]
        ] = []  # names, and the modules' own tables of buffers

    def made(self, original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> None:
        original(module, *args, **kwargs)
        self._every[self.made_so_far] = module
        self.made_so_far += 1
        self._grown |= isinstance(module, self._kind)

    def parameters(self) -> list[Any]:
        """Those of all modules."""
        tables = [module._parameters for module in list(self._every.values())]
        return [tensor for table in tables for tensor in table.values() if tensor is not None]

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
