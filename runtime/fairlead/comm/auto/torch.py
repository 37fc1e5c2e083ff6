"""torch: optimizers, loaders in a random order, BatchNorm and ``torch.save`` of many ranks."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import inspect
import itertools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.auto import files, held, shared
from fairlead.comm.auto.imports import AfterImport
from fairlead.comm.auto.shared import (
    SUMS,
    before,
    done,
    fitted,
    fitted_rows,
    in_fit,
    own_loop,
    say_once,
    warned,
)
from fairlead.comm.frameworks import common

_STEPS_WITHOUT = 10  # in a row; a batch may be kept for many
_COMPARED = (1, 2, 4, 16, 256, 65536)  # steps before which weights are compared over ranks
_FEW = 64  # values of a parameter, or nodes of a graph, that are looked at
_ALIKE = 1 << 40  # seeds of numbers that all ranks draw are above it
_SUM = 2  # of torch's losses: reduction="sum"
_SUMMING = ("SumBackward", "DotBackward", "MeanBackward")
# Nodes of a graph through which a sum stays one.
_LINEAR = tuple(
    f"{kind}Backward" for kind in ("Add", "Sub", "Neg", "Mul", "Div", "Squeeze", "View", "ToCopy")
)
_DOCS = "docs/tutorials/training.md"
_PASS = "_fairlead_pass"  # of what iterates over a DataLoader


def patch(torch: Any) -> None:
    """Makes optimizers, loaders in a random order, BatchNorm and ``torch.save`` those of many ranks."""
    # Models begin alike; the first step of each optimizer compares them.
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
    before(torch.nn.Module, "register_parameter", batches.parameter)
    before(torch, "manual_seed", batches.seeded)
    before(torch.optim.Optimizer, "__init__", optimizers.made)
    before(
        torch.optim.Optimizer, "__setstate__", optimizers.made
    )  # a copy, or a state that it loads
    # What is patched is called, and not compiled, within a step that the script compiles.
    AfterImport({"torch._dynamo.trace_rules": lambda rules: rules.add("fairlead")}).install()
    # Tensor.backward and torch.func's gradients come here, too.
    before(torch.autograd, "backward", optimizers.backward)
    before(torch.autograd, "grad", optimizers.grad)
    before(torch.amp.GradScaler, "scale", optimizers.scale)
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        before(torch.Tensor, name, functools.partial(_hook, batches))
    if torch.distributed.is_available():
        before(torch.distributed, "init_process_group", _join)
    for saving, loading in ((torch, torch), (torch.jit.RecursiveScriptModule, torch.jit)):
        before(saving, "save", _save)
        before(loading, "load", files.load)
    AfterImport({"torch.export": lambda export: before(export, "save", _save)}).install()
    shared.at_end.append(modules.compare)
    shared.drawing.append(batches.draw)


def _loader(
    data: Any,
    original: Callable[..., Any],
    loader: Any,
    dataset: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    if in_fit():  # of Keras, for the part of its data that this rank has
        original(loader, dataset, *args, **kwargs)
        return
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
    elif batches is sampler is None and hasattr(dataset, "__len__"):
        given["sampler"] = _in_order(data)(data.SequentialSampler(dataset))
    original(*call.args, **call.kwargs)


def _is_random(data: Any, sampler: Any) -> bool:
    """Whether it is one of torch's, which draw from a generator alone."""
    return type(sampler) in (
        data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler
    )  # fmt: skip


def part_of(loader: Any) -> Part | None:
    """What shares out a DataLoader, also one that Accelerate makes from another; None for all else."""
    sampler = _sampler_of(loader)
    return sampler if sampler is not None and sampler.trained else None


def _sampler_of(loader: Any) -> Part | None:
    batches, sampler = (getattr(loader, name, None) for name in ("batch_sampler", "sampler"))
    sampler = getattr(batches, "sampler", sampler)
    return sampler if isinstance(sampler, Part) else None


class Part:
    """This rank's part of what a random sampler draws: every N-th index of an order that all ranks draw alike.

    Repeats a few indices where they do not come out even: every rank has as many batches.

    Without gradients a script evaluates, on all that is drawn. The length is then that of all, also after the iteration,
    by which scripts divide their sums.

    Attributes:
        epoch: of the pass that begins.
        passes: how many were asked for.
        whole: the last pass was, or the next is, an evaluation; None before the first.
        asked: for its length, before any pass and while gradients were enabled.
        trained: a step was made on its batches, or is to be expected.
    """

    trained = True

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.epoch = self.passes = 0
        self.whole: bool | None = None
        self.asked = self._looked = False

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":  # while it is copied
            raise AttributeError(name)
        return getattr(self.sampler, name)

    @property
    def num_samples(self) -> int:
        """Of a part."""
        return -(-len(self.sampler) // comm.size())

    def look(self) -> list[held.Part]:
        """What it draws from, to be compared over ranks, at the first time."""
        parts: list[held.Part] = []
        for name in () if self._looked else ("indices", "weights"):
            value = getattr(self.sampler, name, None)
            parts += held.of_value(value, f"`{name}` of {type(self.sampler).__name__}")
        self._looked = True
        return parts

    def drawn(self) -> Iterator[Any]:
        """An order of this epoch's, which all ranks draw alike."""
        import torch

        drawn = copy.copy(self.sampler)
        drawn.generator = torch.Generator().manual_seed(self.epoch)
        return iter(drawn)

    def __iter__(self) -> Iterator[Any]:
        return self.drawn() if self.whole else self._own(self.drawn())

    @staticmethod
    def _own(drawn: Iterator[Any]) -> Iterator[Any]:
        first, rank, size = list[Any](), comm.rank(), comm.size()
        while several := list(itertools.islice(drawn, size)):
            first = first or several
            if len(several) < size:
                several = list(itertools.islice(itertools.cycle([*several, *first]), size))
            yield several[rank]

    def __len__(self) -> int:
        if self.whole or _evaluates() or not self.trained:
            return len(self.sampler)
        self.asked |= self.whole is None
        return self.num_samples


class _InOrder(Part):
    """The part of a loader in order, which most scripts evaluate on: it gives all samples until a step is made on them.

    The batches until then are every rank's, and so is that step: one of one process. What follows is shared out, in this
    pass too.
    """

    trained = False

    def drawn(self) -> Iterator[Any]:
        return iter(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        drawn, evaluates = self.drawn(), self.whole
        while evaluates or not self.trained:
            try:
                yield next(drawn)
            except StopIteration:
                return
        yield from self._own(drawn)


@functools.cache
def _in_order(data: Any) -> type[_InOrder]:
    """Libraries ask whether a loader is in order by the class of torch's."""
    return type("InOrder", (_InOrder, data.SequentialSampler), {})


def _evaluates() -> bool:
    import torch

    return not torch.is_grad_enabled()


def _hook(
    batches: _Batches, original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any
) -> Any:
    """What a parameter's hook is called with comes before the mean."""
    if isinstance(tensor, batches.torch.nn.Parameter):
        say_once(_HOOK)
    return original(tensor, *args, **kwargs)


def _adds_up(loss: Any, rows: int) -> bool:
    """Whether a loss, or a part of it, is a sum over the ``rows`` of a batch, which a mean over ranks makes smaller.

    Also one that is negated or scaled, but not to a mean.
    """
    ahead: list[Any] = [getattr(loss, "grad_fn", None)]
    for node in itertools.islice(ahead, _FEW):
        kind = type(node).__name__
        if kind.startswith(_LINEAR) and not _makes_mean(node, kind, rows):
            ahead += [before_it for before_it, _ in node.next_functions]
        if getattr(node, "_saved_reduction", 0) == _SUM:
            return True
        if kind.startswith(_SUMMING):
            if _is_over(node, rows):
                if kind.startswith("MeanBackward"):
                    continue
                return True
            ahead += [before_it for before_it, _ in node.next_functions]
    return False


def _makes_mean(node: Any, kind: str, rows: int) -> bool:
    """Whether a product or quotient may be a mean: what a tensor divides, by a count for example, is taken for one."""
    divides = kind.startswith("DivBackward")
    if not divides and not kind.startswith("MulBackward"):
        return False
    factors = [getattr(node, name) for name in ("_saved_self", "_saved_other")[divides:]]
    numbers = [float(each) for each in factors if _is_number(each)]
    if numbers:
        return shared.makes_mean(numbers[0], rows, divides)
    # One value, such as a scaler's factor; reading it from a GPU would wait for all that runs there.
    scales = [each for each in factors if each is not None and each.numel() == 1]
    return divides or all(bool(each.is_cpu) and abs(float(each)) < 1 for each in scales)


def _is_number(factor: Any) -> bool:
    """Whether it is Python's: unlike a tensor it does not widen the type of what it is combined with."""
    import torch

    if factor is None or factor.dim() or factor.is_complex():
        return False
    narrow = torch.float16 if factor.is_floating_point() else torch.int8
    return bool(torch.result_type(torch.zeros((), dtype=narrow), factor) == narrow != factor.dtype)


def _is_over(node: Any, rows: int) -> bool:
    """Whether a sum runs over the rows of a batch."""
    size = getattr(node, "_saved_self_sym_sizes", None)
    if size is None:  # of a product of two vectors
        size = getattr(node, "_saved_self").shape  # noqa: B009
    over = getattr(node, "_saved_dim", None)  # -1 is kept as 2 ** 64 - 1
    places = {(axis + len(size)) % 2**64 % len(size) for axis in over} if over and size else {0}
    return bool(0 in places and tuple(size[:1]) == (rows,))


def _rows(batch: Any) -> int:
    """How many samples a batch has; 0 where it is not known."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    first = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
    return int(first.shape[0]) if getattr(first, "shape", None) else 0


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
    else:
        original(obj, f, *args, **kwargs)


def _words_of_parts(loader: Any, sampler: Any) -> str:
    count, each = len(loader.dataset), loader.batch_size
    batch = f"batches of {each} a rank, {each * comm.size()} in all" if each else "each its batches"
    return (
        f"{comm.size()} ranks train together: {batch}; the learning rate is not scaled. Of {count} samples a rank reads"
        f" {sampler.num_samples} an epoch: a sum over them that the script divides by {count} is printed too small"
    )


@dataclasses.dataclass(eq=False)
class _Pass:
    """One iteration over a loader that is shared out, or may be."""

    loader: Any
    sampler: Part
    epoch: int
    whole: bool
    used: int  # backward passes and steps, when it began
    first: bool = True  # no batch was taken of it

    @property
    def is_part(self) -> bool:
        return not self.whole and self.sampler.trained

    def begin(self) -> None:
        self.sampler.epoch, self.sampler.whole = self.epoch, self.whole


class _Batches:
    """What loaders have given since the last step: a step on whole data only is refused.

    A loader that a script goes through without gradients evaluates: it gives all samples, to every rank alike. Batches
    that are taken so count only before the first step, as of a script that takes all of its batches so.
    """

    def __init__(self, torch: Any) -> None:
        self.torch, self._seed = torch, torch.manual_seed
        self._seeded = False
        self._taken: dict[bool, set[bool]] = {True: set(), False: set()}
        self._whole: set[_Pass | None] = set()  # what else they came from, if it goes on
        self._gave: set[Part] = set()  # since the last step
        self._in_order: set[Part] = set()  # those of the first step that was on them
        self._without = self._steps = self._used = self._rows = 0
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()  # iterations that may give more
        self._stepped: set[int] = set()  # optimizers, since the last batch
        self._given = 0  # batches since a pass began
        self._made: Counter[int] = Counter()  # steps of each optimizer since then
        self._own_numbers = False  # of torch, on each rank, while it trains
        self._again = 0  # how often they were alike again
        self._unlike: list[held.Part] = []  # what is to be compared over ranks
        self.epochs = 0

    def epoch(self, original: Callable[..., Any], loader: Any) -> Any:
        sampler = _sampler_of(loader)
        if sampler is None:
            return original(loader)
        epoch, sampler.passes = sampler.passes, sampler.passes + 1
        of_pass = _Pass(loader, sampler, epoch, _evaluates(), self._used)
        if sampler.trained:
            self._look(loader.dataset, sampler)
            if not of_pass.whole:
                self._begin_parts(loader, sampler)
            elif sampler.asked and sampler.whole is None:
                say_once(_LENGTH)
        if not of_pass.whole:
            self._given, self._made = 0, Counter()
        of_pass.begin()
        batches = self._with_own_workers(original, of_pass) if sampler.trained else original(loader)
        setattr(batches, _PASS, of_pass)
        self._open.add(batches)
        return batches

    def _with_own_workers(self, original: Callable[..., Any], of_pass: _Pass) -> Any:
        """An iteration whose workers make other augmentations on each rank."""
        with self.torch.random.fork_rng(devices=[]):
            self._seed(of_pass.epoch * comm.size() + comm.rank())
            return original(of_pass.loader)

    def _begin_parts(self, loader: Any, sampler: Part) -> None:
        if not self._seeded:
            say_once(_words_of_parts(loader, sampler))
        self._seeded = True

    def _train_in_order(self) -> bool:
        """Shares out the loaders in order whose batches a step takes; False if some are of another kind."""
        if not self._whole or None in self._whole:
            return False
        say_once(_IN_ORDER)
        for of_pass in self._whole:
            if of_pass is not None:
                of_pass.sampler.trained = True
                self._in_order.add(of_pass.sampler)
                self._look(of_pass.loader.dataset, of_pass.sampler)
                self._begin_parts(of_pass.loader, of_pass.sampler)
        return True

    def _only_looked_at(self) -> None:
        """Loaders in order that the first step took a batch of, and the next one does not, were not trained on."""
        for sampler in self._in_order - self._gave:
            sampler.trained = False
        self._in_order = set()

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
        of_pass = getattr(batches, _PASS, None)
        if of_pass is not None and of_pass.first:
            of_pass.begin()  # its sampler begins now, and may have begun another pass in between
            of_pass.first = False
        try:
            batch = original(batches)
        except StopIteration:
            self._open.discard(batches)
            self._whole.discard(of_pass)
            if of_pass is not None and of_pass.is_part:
                self._end(of_pass)
            raise
        part = of_pass is not None and of_pass.is_part
        if of_pass is not None:
            self._gave.add(of_pass.sampler)
        if not part and self.torch.is_grad_enabled():
            self._whole.add(None if of_pass is None or of_pass.whole else of_pass)
        self._taken[self.torch.is_grad_enabled()].add(part)
        self._given += self.torch.is_grad_enabled()
        if part:
            self._rows = _rows(batch)
            if self._steps:  # before the first one, its model may be to be made
                self._draw_own()
        return batch

    def parameter(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Of a module, which may draw its values next: alike on all ranks. A ``fit`` makes them so by itself."""
        if not in_fit():
            self._draw_alike()
        original(*args, **kwargs)

    def seeded(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """By the script: what it draws next is as it says."""
        self._own_numbers = False
        return original(*args, **kwargs)

    def draw(self, own: bool) -> None:
        """Of a Keras model on torch."""
        self._draw_own() if own else self._draw_alike()

    def _draw_own(self) -> None:
        if not self._own_numbers:  # dropout and the like: other masks on each rank
            self._seed(self._steps * comm.size() + comm.rank())
            self._own_numbers = True

    def _draw_alike(self) -> None:
        if self._own_numbers:  # models, splits and orders that the script makes now are alike
            self._again += 1
            self._seed(_ALIKE + self._again)
            self._own_numbers = False

    def check(self, loss: Any) -> None:
        """Of a backward pass."""
        self._used += 1
        if SUMS not in warned and _adds_up(loss, fitted_rows() if in_fit() else self._rows):
            say_once(SUMS)

    def _end(self, of_pass: _Pass) -> None:
        if of_pass.used == self._used:
            say_once(_READ)
        self._draw_alike()

    def step(self, optimizer: Any) -> None:
        """Of an optimizer.

        Raises:
            FairleadError: it is not on a part of the data.
        """
        since = self._taken[True] or (set() if "data" in done else self._taken[False])
        if since and self._in_order:
            self._only_looked_at()
        if since and True not in since and not self._train_in_order():
            raise fail("auto-data-other-loader")
        if since == {True, False}:
            say_once(_BOTH)
        if not since and "data" not in done:
            raise fail("auto-data-no-loader")
        done.add("data")
        self._steps += 1
        self._used += 1
        self._draw_own()
        if self._unlike:
            parts, self._unlike = self._unlike, []
            held.require_alike(parts, "optimizer.step")
        self._without = 0 if since else self._without + 1
        self._made[id(optimizer)] += 1
        if since:
            self._stepped = set()
        elif self._without == _STEPS_WITHOUT or (
            not self._open
            and id(optimizer) in self._stepped
            and self._made[id(optimizer)]
            != self._given  # else it takes each batch ahead, as Accelerate does
        ):
            say_once(_WITHOUT)
        self._stepped.add(id(optimizer))
        self._taken, self._whole, self._gave = {True: set(), False: set()}, set(), set()


def _gradients(optimizer: Any) -> list[tuple[Any, int]]:
    """Which gradients its parameters have; others after a backward pass that has added to them."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
    return [(each, 0 if each is None else each._version) for each in gradients]


def _are_new(optimizer: Any, earlier: list[tuple[Any, int]]) -> bool:
    """Whether it has other gradients than ``earlier``, which are kept: a new one has the place of what is gone."""
    now = _gradients(optimizer)
    return len(now) != len(earlier) or any(
        tensor is not before_it or version != of_then
        for (tensor, version), (before_it, of_then) in zip(now, earlier, strict=True)
    )


def _average_in_fit() -> None:
    """Of a Keras model on torch: before its ``train_step`` clips or applies gradients."""
    import keras

    from fairlead.comm.keras import IS_MEAN, is_scaled
    from fairlead.comm.torch import average_tensors

    if keras.backend.backend() != "torch":
        return
    model = fitted()
    variables = model.trainable_weights
    parameters = [variable.value for variable in variables]
    means = average_tensors(
        [p.grad for p in parameters],
        parameters,
        [variable.path for variable in variables],
        any_values=is_scaled(model.optimizer),
    )
    for parameter, mean in zip(parameters, means, strict=True):
        parameter.grad = mean
        if mean is not None:
            setattr(mean, IS_MEAN, True)


class _Optimizers:
    """Those that the script made, each of which averages; and parameters that none of them has."""

    def __init__(self, modules: _Modules, batches: _Batches) -> None:
        self._modules, self._batches = modules, batches
        self._any = self._scaled = self._grown = False
        self._passes = 0  # backward passes under way: one may begin others, to recompute
        self._every: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._made = 0
        self._known = (0, 0)
        self._loose: list[weakref.ref[Any]] = []
        self._differentiated: dict[int, tuple[Any, Any]] = {}
        self._rates: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def made(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> None:
        from fairlead.comm.torch import DistributedOptimizer, averaging_of

        original(optimizer, *args, **kwargs)
        if any(known is optimizer for known in self._every.values()):
            return
        self._any = self._grown = True
        self._every[self._made] = optimizer
        self._made += 1
        optimizer.register_step_pre_hook(self._step)
        averaging = averaging_of(DistributedOptimizer(optimizer))
        averaging.by_backward, averaging.compared_at = True, _COMPARED

    def _alive(self) -> list[Any]:
        """In the order in which the script made them, which is the same on every rank."""
        if self._grown:
            self._grown = False
            gc.collect()  # each rank would drop those that stand in a circle at a time of its own
        return [optimizer for _, optimizer in sorted(self._every.items(), key=lambda item: item[0])]

    def scale(self, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        """Infinite gradients are to be expected from now on."""
        self._scaled |= scaler.is_enabled()
        return original(scaler, *args, **kwargs)

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._batches.step(optimizer)
        if self._rates.get(optimizer) != self._batches.epochs:
            self._rates[optimizer] = self._batches.epochs
            shared.require_equal_rates([float(group["lr"]) for group in optimizer.param_groups])
        self._modules.average_statistics()
        self._modules.step()
        done.add("gradients")

    def backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Averages the gradients that it adds to: what the script does with them before a step, it does with the mean.

        The sum of the means of several passes is the mean of their sums. Refused is what no optimizer will apply: the
        script updates its parameters by hand.
        """
        if self._passes:
            return original(*args, **kwargs)
        self._require("Tensor.backward")
        alive = self._alive()
        before_it = [_gradients(optimizer) for optimizer in alive]
        self._passes += 1
        self._batches.check(args[0] if args else kwargs.get("tensors"))
        try:
            result = original(*args, **kwargs)
        finally:
            self._passes -= 1
        self._average_new(alive, before_it)
        if in_fit():
            _average_in_fit()
        self._compare("Tensor.backward", lambda tensor: tensor.grad is not None)
        return result

    def _average_new(self, alive: list[Any], before_it: list[list[tuple[Any, int]]]) -> None:
        """Averages what a pass has added to on any rank: it may have gone through other models on each."""
        from fairlead.comm.torch import averaging_of

        new = [_are_new(each, known) for each, known in zip(alive, before_it, strict=True)]
        if len(alive) > 1 and any(new):
            flags = np.array(new, np.float32)
            (counts,) = common.aggregate(comm.init(), [flags], ["which models a pass reached"])
            new = [bool(count) for count in counts]
        for optimizer in itertools.compress(alive, new):
            averaging_of(optimizer).average(scaled=self._scaled)

    def grad(
        self, original: Callable[..., Any], outputs: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuses as :meth:`backward`."""
        from fairlead.comm.torch import averaging_of

        self._require("torch.autograd.grad")
        if not isinstance(inputs, (list, tuple)):
            inputs = [inputs] if hasattr(inputs, "detach") else list(inputs)
        result = original(outputs, inputs, *args, **kwargs)
        of = set(map(id, inputs))
        for optimizer in list(self._every.values()):
            averaging = averaging_of(optimizer)
            averaging.averaged = False  # the script may make it the gradient
            if any(id(each) in of for each in averaging.parameters()):
                say_once(_GRAD)
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
        differing = {}
        for each in self._without_optimizer():
            tensor = each()
            if tensor is not None and tensor.requires_grad and has_gradient(tensor):
                few = tensor.detach().reshape(-1)[:_FEW].clone()
                known, before_it = self._differentiated.get(id(tensor), (None, None))
                if known is each and not before_it.equal(few):
                    raise own_loop(f"{where}, of parameters that no optimizer has")
                differing[id(tensor)] = each, few
        self._differentiated |= differing

    def _without_optimizer(self) -> list[weakref.ref[Any]]:
        groups = [
            group["params"] for optimizer in self._alive() for group in optimizer.param_groups
        ]
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
        self.made_so_far = self._steps = 0
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

    def step(self) -> None:
        """Of any optimizer: says which buffers differ over ranks, long before :meth:`compare` ends the run. Collective."""
        from fairlead.comm.torch import held as values

        self._steps += 1
        if self._steps not in _COMPARED or _DIFFERING in warned:
            return
        named = self._named()
        arrays = [common.plain(values(tensor, name)) for name, tensor in named.items()]
        first = common.match(comm.init(), arrays, f"buffers in step {self._steps}").first
        if first is not None:
            names = [*named, "their number"]
            warned.add(_DIFFERING)
            say_once(_DIFFERING.format(name=names[first]))

    def compare(self) -> None:
        """Compares all buffers over ranks. Collective.

        Raises:
            FairleadError: they differ.
        """
        from fairlead.comm.torch import require_equal

        if named := self._named():
            require_equal(named, "when the script ended", _BUFFERS)

    def _named(self) -> dict[str, Any]:
        """All buffers."""
        return {
            f"{name} of {type(module).__name__} {i}": tensor
            for i, module in enumerate(self._alive())
            for name, tensor in module._buffers.items()
            if tensor is not None
        }

    def _alive(self) -> list[Any]:
        # Without it, each rank would have dropped what stands in a circle at a time of its own.
        gc.collect()
        return [module for _, module in sorted(self._every.items(), key=lambda item: item[0])]


_READ = (
    "a DataLoader that the ranks share gave all its batches without a step, while gradients were enabled: each rank read its"
    f" own part. Under torch.no_grad() it gives all samples ({_DOCS})"
)
_LENGTH = (
    "the len() of a DataLoader with shuffle=True counted the batches of a part, and then all samples were evaluated: what"
    " the script divided by it is too large, this once. Under torch.no_grad(), or with shuffle=False, it counts all"
    f" ({_DOCS})"
)
_WITHOUT = (
    "an optimizer steps on no new batch of a DataLoader in a random order, which has given its last one or waits: where it"
    f" is on other data than these batches, every rank trains on all of it ({_DOCS})"
)
_BOTH = (
    "a step took batches of a DataLoader in order next to those of one in a random order: where they are trained on, every"
    f" rank trains on all of them. Under torch.no_grad() they are not ({_DOCS})"
)
_IN_ORDER = (
    "a DataLoader in order is trained on: its batches until this first step are those of every rank, and the step is one of"
    f" one process. Then each rank has its part; a len() of before counts all batches ({_DOCS})"
)
_HOOK = f"hooks of a parameter get this rank's own gradient; `.grad` is the mean after backward ({_DOCS})"
_GRAD = (
    "torch.autograd.grad gives each rank's own gradient of parameters; one that the script makes their `.grad` is averaged in the"
    f" step ({_DOCS})"
)
_DIFFERING = (
    "{name} differs between the ranks: each changes it by its own part of the samples, as a queue or a codebook of features"
    f" does, and what reads it is not what one process has. If it differs at the end, the run fails ({_DOCS})"
)
_BUFFERS = "call `fairlead.comm.torch.average_buffers(model)` after what changes buffers without a step of an optimizer"
