"""Data-parallel torch: a wrapped optimizer, or a hook for torch's own DDP.

    from fairlead.comm.torch import DistributedOptimizer, broadcast_parameters, rank, size

    x, y = x[rank() :: size()], y[rank() :: size()]
    broadcast_parameters(model)
    optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())

Every rank computes the gradients of its own batch, and ``optimizer.step()`` applies their mean:
one step on N ranks is one step on a batch N times as large. With :func:`ddp_hook`, torch's
DistributedDataParallel sends its buckets through the same :meth:`fairlead.comm.Comm.aggregate`
while the backward pass still runs.

Tensors of the host go by :meth:`fairlead.comm.Comm.aggregate`, those on GPUs by NCCL
(:mod:`fairlead.comm.frameworks.torch_nccl`). docs/tutorials/training.md describes what is averaged when.
"""

from __future__ import annotations

import functools
import io
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm import rank, size
from fairlead.comm.core import BFLOAT16, Array, Comm
from fairlead.comm.frameworks import common, torch_nccl
from fairlead.comm.frameworks.torch_buckets import Buckets
from fairlead.comm.frameworks.torch_early import EarlyMeans

if TYPE_CHECKING:
    from fairlead.comm.timeline import Timeline

__all__ = [
    "DistributedOptimizer",
    "average_buffers",
    "average_gradients",
    "average_tensors",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_state",
    "ddp_hook",
    "init_process_group",
    "rank",
    "size",
    "start_tensors",
]

_MARK = "_fairlead_averaging"
_watched: list[Timeline] = []  # by the marks of a step's parts
# Those that stepped since one of them began: their models may belong to a function that returns, and are compared when
# the next one begins, or MPI ends.
_stepped: list[Averaging] = []


def DistributedOptimizer(
    optimizer: Any, named_parameters: Iterable[tuple[str, Any]] | None = None
) -> Any:
    """``optimizer``, whose ``step()`` first makes the gradients their mean over all ranks.

    It is the same object, with a hook before ``step``: it saves and loads as before, and schedulers
    and scalers take it. Gradients that were accumulated over several backward passes are averaged
    once. A closure is followed by an average of gradients and loss each time that it is called. A
    ``torch.amp.GradScaler`` averages when it unscales, so that all ranks skip the same steps.

    To clip gradients, call :func:`average_gradients` before; ``step`` then does not average again.

    Gradients leave during the backward pass where that makes steps shorter
    (:mod:`fairlead.comm.frameworks.torch_early`); the means are those of what ``step()`` finds.

    A parameter that has no gradient on some ranks counts as zero there; one that has none anywhere
    keeps none. Before the first step the parameters are compared over ranks.

    Args:
        named_parameters: ``model.named_parameters()``, so that errors name them.
    Raises:
        FairleadError: later, by ``step``: the ranks began with different parameters, or disagree on
            number, shape or dtype of the gradients, or on their number of steps; a tensor is sparse, or
            on a GPU from which NCCL cannot move it.
    """
    if not hasattr(optimizer, _MARK):
        names = {id(parameter): name for name, parameter in named_parameters or ()}
        attach(Averaging(optimizer, names))
    return optimizer


def attach(averaging: Averaging) -> None:
    """Puts it around the ``step`` of its optimizer."""
    common.end_together()
    optimizer = averaging.optimizer
    for each in _stepped:
        each.give_way(averaging)
    setattr(optimizer, _MARK, averaging)
    optimizer.register_step_pre_hook(averaging.before_step)
    optimizer.register_step_post_hook(averaging.after_step)
    # A fused optimizer would unscale by itself, after each rank has looked for infinities alone.
    optimizer._step_supports_amp_scaling = False
    _average_before_unscaling()
    if comm._comm is not None:
        watch(comm._comm)


def average_gradients(optimizer: Any) -> None:
    """Averages now what ``step()`` would; call it after the last backward pass. Collective.

    Raises:
        FairleadError: as :func:`DistributedOptimizer`, or the optimizer is none.
    """
    averaging_of(optimizer).average()


def broadcast_parameters(parameters: Any, root: int = 0) -> None:
    """Gives every rank rank ``root``'s tensors, in place, and compares them. Collective.

    Args:
        parameters: a module (its parameters and buffers, the statistics of BatchNorm among them),
            or a state_dict, or any mapping of names to tensors.
    Raises:
        FairleadError: the ranks disagree on number, shape or dtype of tensors, or hold others afterwards.
    """
    named = _tensors(parameters)
    ranks = comm.init()
    host, gpu = _by_place(named)
    arrays = [_array(tensor, name) for name, tensor in host.items()]
    for array, value in zip(arrays, common.broadcast(ranks, arrays, list(host), root), strict=True):
        np.copyto(array, value)
    if gpu:
        _group(*_listed(gpu)).broadcast(*_listed(gpu), root)
    require_equal(named, "after the broadcast")


def broadcast_optimizer_state(optimizer: Any, root: int = 0) -> None:
    """Gives every rank rank ``root``'s optimizer state, learning rates included. Collective.

    The others need not have made a step, nor have read a checkpoint.
    """
    ranks, data = comm.init(), io.BytesIO()
    if ranks.rank == root:
        torch.save(optimizer.state_dict(), data)
    state = common.broadcast_object(ranks, data.getvalue(), root)
    if ranks.rank != root:
        optimizer.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))


def average_buffers(module: Any) -> None:
    """Makes a module's buffers equal, e.g. once an epoch, before validation. Collective.

    BatchNorm counts mean and variance of this rank's batches; all ranks then get the mean of these
    over ranks. What is not a float becomes rank 0's.
    """
    average_state(dict(module.named_buffers()))


def average_state(named: Mapping[str, Any]) -> None:
    """:func:`average_buffers` of tensors by name."""
    host, gpu = _by_place(named)
    arrays = [_array(tensor, name) for name, tensor in host.items()]
    means = common.mean_state(comm.init(), arrays, list(host))
    for array, mean in zip(arrays, means, strict=True):
        np.copyto(array, mean)
    if gpu:
        floats = {name: t for name, t in gpu.items() if t.is_floating_point() or t.is_complex()}
        others = {name: t for name, t in gpu.items() if name not in floats}
        # In double precision what all ranks hold alike keeps its bits.
        wide = [
            t.detach().to(torch.complex128 if t.is_complex() else torch.float64)
            for t in floats.values()
        ]
        group = _group(*_listed(gpu))
        group.aggregate(wide, list(floats))
        for tensor, mean in zip(floats.values(), wide, strict=True):
            tensor.detach().copy_(mean)
        group.broadcast(*_listed(others), 0)


def check_state(module: Any, optimizer: Any = None) -> None:
    """Compares parameters, buffers and optimizer state over ranks, bit by bit. Collective.

    Raises:
        FairleadError: they differ; the first that does is named with the ranks that hold it.
    """
    named = _tensors(module)
    for index, state in (optimizer.state_dict()["state"] if optimizer else {}).items():
        named |= {f"optimizer state {index} {k}": v for k, v in state.items() if torch.is_tensor(v)}
    for index, group in enumerate(optimizer.param_groups if optimizer else ()):
        named[f"learning rate of group {index}"] = torch.as_tensor(group["lr"])
    require_equal(named, "now")


def require_equal(named: Mapping[str, Any], when: str, remedy: str = common.ALIKE) -> None:
    """Compares tensors over ranks, bit by bit. Collective; the rest as :func:`check_state`."""
    arrays = [held(tensor, name) for name, tensor in named.items()]
    common.require_equal(comm.init(), arrays, list(named), when, remedy)


def ddp_hook(state: Any, bucket: Any) -> Any:
    """A communication hook for DistributedDataParallel: the mean of a bucket over MPI's ranks.

        init_process_group()
        model = DistributedDataParallel(model)
        model.register_comm_hook(None, ddp_hook)

    Args:
        state: not used; DDP hands over what it was registered with.
        bucket: a ``torch.distributed.GradBucket``; its buffer is averaged in place.
    Returns:
        A ``torch.futures.Future`` of the buffer.
    Source: https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html: the hook divides by itself.
    """
    buffer = bucket.buffer()
    name = f"bucket {bucket.index()}"
    if torch_nccl.on_gpu(buffer):
        return _group([buffer], [name]).start([buffer], [name])
    return _buckets(comm.init()).mean(bucket, lambda: _array(bucket.buffer(), name, BFLOAT16))


# DDP reads annotations, and knows its own types only, not their names.
ddp_hook.__annotations__.clear()


@functools.lru_cache(maxsize=1)
def _buckets(ranks: Comm) -> Buckets:
    return Buckets(ranks)


def init_process_group() -> None:
    """torch.distributed's default group, of exactly the ranks of MPI. Collective.

    Over Gloo, and over NCCL for tensors on GPUs where torch sees some. ``MASTER_ADDR``, ``MASTER_PORT``,
    ``RANK`` and ``WORLD_SIZE`` are set; nothing has to be given to the launcher.
    """
    torch_nccl.init_process_group(comm.init(), torch_nccl.usual_library())


def average_tensors(
    gradients: Sequence[Any],
    like: Sequence[Any],
    names: Sequence[str],
    ranks: Comm | None = None,
    *,
    any_values: bool = False,
) -> list[Any]:
    """The mean of each tensor over all ranks, in place, through one fused buffer. Collective.

    Args:
        gradients: dense tensors; None counts as zeros where another rank has one. float16 and bfloat16
            are added up in float32, and rounded once. Those on a GPU go by NCCL.
        like: for each, a tensor of the same shape and dtype.
        names: for each, what errors call it.
        ranks: a team; without it, all ranks.
        any_values: as for :meth:`fairlead.comm.Comm.aggregate`.
    Returns:
        The same tensors; new ones in place of None, unless no rank has a gradient there.
    Raises:
        FairleadError: see :func:`DistributedOptimizer`.
    """
    arrays, their_names, means = _fused(gradients, like, names)
    common.aggregate(ranks or comm.init(), arrays, their_names, arrays, any_values=any_values)
    return means()


def start_tensors(
    gradients: Sequence[Any], like: Sequence[Any], names: Sequence[str], ranks: Comm
) -> Callable[[], list[Any]]:
    """:func:`average_tensors` in the background: what is returned waits, and gives the tensors."""
    arrays, their_names, means = _fused(gradients, like, names)
    arrived = common.start(ranks, arrays, their_names)

    def wait() -> list[Any]:
        arrived()
        return means()

    return wait


def _fused(
    gradients: Sequence[Any], like: Sequence[Any], names: Sequence[str]
) -> tuple[list[Array], list[str], Callable[[], list[Any]]]:
    """Arrays to be averaged in place, their names, and a function that then gives the means of all gradients.

    The arrays are the memory of the tensors of the host, and last, without a name, 1 for each gradient that is
    not None. Those on a GPU are averaged by the function.
    """
    whole = [
        torch.zeros_like(model, requires_grad=False) if gradient is None else gradient
        for gradient, model in zip(gradients, like, strict=True)
    ]
    for tensor, name in zip(whole, names, strict=True):
        _require_dense(tensor, name)
    host = [i for i, tensor in enumerate(whole) if not torch_nccl.on_gpu(tensor)]
    arrays = [_array(whole[i], names[i], BFLOAT16) for i in host]
    present = np.array([gradient is not None for gradient in gradients], np.float32)

    def means() -> list[Any]:
        for i, array in zip(host, arrays, strict=True):
            if whole[i].data_ptr() != array.ctypes.data:
                whole[i].copy_(_tensor(array))
        gpu = [i for i, tensor in enumerate(whole) if torch_nccl.on_gpu(tensor)]
        if gpu:
            there, called = [whole[i] for i in gpu], [names[i] for i in gpu]
            _group(there, called).aggregate(there, called)
        return [tensor if held else None for tensor, held in zip(whole, present, strict=True)]

    return [*arrays, present], [names[i] for i in host], means


class Averaging:
    """The hooks around ``step`` of one optimizer.

    Attributes:
        compared_at: the steps before which the parameters are compared over ranks.
        by_backward: gradients are averaged at the end of each backward pass.
        averaged: they hold their mean, for the next step.
    """

    compared_at: Sequence[int] = (1,)
    by_backward = False

    def __init__(self, optimizer: Any, names: Mapping[int, str]):
        self.optimizer, self.names = optimizer, names
        self.averaged = self._begun = False
        self.steps = 0  # made
        self._compared = 0  # the step before which parameters were compared last
        self._early: EarlyMeans | None = None
        self.versions: list[int] = []  # of the parameters after the last step

    def before_step(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            if not self.averaged:
                self.average()
            return None
        if getattr(closure, "averages", False):
            return None  # a step that calls its parent's step
        return (args[0],), {**kwargs, "closure": self._averaging(closure)}

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.averaged = False
        self.steps += 1
        self.versions = [p._version for p in self.parameters()]
        if self not in _stepped:
            _stepped.append(self)
        if (timeline := comm.init().timeline) is not None:
            timeline.close_step()

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def average(self, *more: Any, scaled: bool = False) -> None:
        """Averages the gradients, and ``more`` tensors in place.

        Args:
            scaled: the loss was scaled: infinities are to be expected, and lower the scale.
        """
        parameters = self.parameters()
        names = self.called(parameters)
        if not self._begun:
            self._begun = True
            self._compare_earlier()
            self.watch_end()
            if self.can_be_early():
                self._early = EarlyMeans(self.ranks(), parameters)
        if self.steps + 1 in self.compared_at and self._compared <= self.steps:
            self._compared = self.steps + 1
            self._compare_before_step()
        watch(comm.init())
        common.step_averages(comm.init())
        early = self._early
        gradients = early.means(parameters, other=bool(more) or scaled) if early else None
        if gradients is None:
            gradients = self.means(
                [p.grad for p in parameters] + list(more),
                parameters + list(more),
                names + ["loss"] * len(more),
                any_values=scaled,
            )
        if early is not None:
            early.end_step()
        for parameter, gradient in zip(parameters, gradients, strict=False):
            parameter.grad = gradient
        self.averaged = True
        common.step_made(comm.init())

    def ranks(self) -> Comm:
        """Those that hold the same parameters."""
        return comm.init()

    def can_be_early(self) -> bool:
        """Whether gradients may leave during the backward pass."""
        ranks = comm.init()
        return (
            self.ranks() is ranks
            and ranks.size > 1
            and ranks.backend.startswith("native")  # started calls have an order of their own there
            and hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # torch 2.1
        )

    def means(
        self, gradients: list[Any], like: list[Any], names: list[str], *, any_values: bool
    ) -> list[Any]:
        """:func:`average_tensors` over :meth:`ranks`."""
        return average_tensors(gradients, like, names, any_values=any_values)

    def parameters(self) -> list[Any]:
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]

    def called(self, parameters: Sequence[Any]) -> list[str]:
        return [self.names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)]

    def _compare_before_step(self) -> None:
        """Collective.

        Raises:
            FairleadError: the ranks hold other parameters.
        """
        first = self._compared == self.compared_at[0]
        remedy = "call `fairlead.comm.torch.broadcast_parameters(model)` before training"
        number = {1: "the first step", 2: "the second step"}.get(
            self._compared, f"step {self._compared}"
        )
        named = self._held()
        common.require_equal(
            self.ranks(),
            list(named.values()),
            list(named),
            f"before {number}",
            remedy if first else common.UNEQUAL_AT_END,
        )

    def _held(self) -> dict[str, Array]:
        """What the parameters hold, by name."""
        parameters = self.parameters()
        names = self.called(parameters)
        return {name: held(p, name) for name, p in zip(names, parameters, strict=True)}

    def _compare_earlier(self) -> None:
        """Compares what other optimizers of the same ranks have left, and keeps them alive no longer. Collective."""
        earlier = [each for each in _stepped if each.is_of(self.ranks())]
        _stepped[:] = [each for each in _stepped if each not in earlier]
        for each in earlier:
            each.compare_end()

    def is_of(self, ranks: Comm) -> bool:
        """Whether its gradients are averaged over these."""
        return self.ranks() is ranks

    def give_way(self, other: Averaging) -> None:
        """Another optimizer begins: gradients of the same parameters leave no more for this one."""
        if self._early is not None and not {*map(id, self.parameters())}.isdisjoint(
            map(id, other.parameters())
        ):
            self._early.close()

    def watch_end(self) -> None:
        """Has the parameters compared before MPI ends, if the optimizer is alive then."""
        here = weakref.ref(self)

        def end() -> None:
            averaging = here()
            if averaging is not None:
                averaging.end()

        comm.init().before_end(end)

    def end(self) -> None:
        """:meth:`compare_end`, and says that they are equal. Collective."""
        if self.compare_end() and self.ranks().rank == 0:
            count = len(self.parameters())
            common.say(f"weights are bit-identical on {self.ranks().size} ranks ({count} arrays)")

    def compare_end(self) -> bool:
        """Compares the parameters that the last step left. Collective.

        Returns:
            Whether they are equal. They need not be where the script has changed them since, which is said.
        Raises:
            FairleadError: the ranks hold others.
        """
        ranks = self.ranks()
        if ranks.size == 1 or not self.versions:
            return False
        if self._early is not None:
            self._early.drain()
        # A script may give one rank other weights afterwards, such as the best ones, to evaluate them.
        later = self.versions != [p._version for p in self.parameters()]
        changed = [r for r, is_later in enumerate(common.of_each_rank(ranks, later)) if is_later]
        named = self._held()
        if not changed:
            common.require_equal(
                ranks,
                list(named.values()),
                list(named),
                "at the end of the training",
                common.UNEQUAL_AT_END,
            )
            return True
        every = len(changed) == ranks.size
        if every:
            match = ranks.check_buffers_match([common.plain(array) for array in named.values()])
            if match.first is None:
                return True
        if ranks.rank == 0:
            which, outcome = (
                ", ".join(map(str, changed)),
                "differ" if every else "were not compared",
            )
            common.say(
                f"weights {outcome} at the end: rank {which} changed them after the last step"
            )
        return False

    def _averaging(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def averaging() -> Any:
            with torch.enable_grad():
                loss = closure()
            mean = torch.as_tensor(loss, dtype=torch.float64).detach().clone()
            self.average(mean)  # a search along a line must see one loss on all ranks
            return mean.to(loss.dtype) if torch.is_tensor(loss) else float(mean)

        averaging.averages = True  # type: ignore[attr-defined]
        return averaging


def averaging_of(optimizer: Any) -> Averaging:
    """The hooks around its ``step``.

    Raises:
        FairleadError: it has none.
    """
    averaging: Averaging | None = getattr(optimizer, _MARK, None)
    if averaging is None:
        raise fail("comm-not-distributed", type=type(optimizer).__name__)
    return averaging


def _average_before_unscaling() -> None:
    """Lets every GradScaler average the gradients of our optimizers before it looks at them.

    It skips the step of an infinite gradient, and lowers its scale. If each rank looked at its own,
    one would skip a step that the others make, and wait for gradients that belong to another.
    """
    original = torch.amp.GradScaler.unscale_
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def unscale_(self: Any, optimizer: Any) -> None:
        averaging = getattr(optimizer, _MARK, None) if self.is_enabled() else None
        if averaging is not None and not (averaging.by_backward and averaging.averaged):
            averaging.average(scaled=True)
        original(self, optimizer)

    setattr(unscale_, _MARK, True)
    torch.amp.GradScaler.unscale_ = unscale_


def watch(ranks: Comm) -> None:
    """Marks the parts of steps from now on; called again, or without a timeline, it does nothing.

    It stands around ``Tensor.backward`` and around a loader's next batch, which every training loop goes through,
    and takes nothing from them.
    """
    timeline = ranks.timeline
    if timeline is None or _watched:
        return
    from torch.utils.data import dataloader

    _watched.append(timeline)
    timeline.open_step(ranks.timings)
    _around(torch.Tensor, "backward", timeline, "forward", "backward")
    # Of every kind of loader; there is no public name for what iterates.
    _around(dataloader._BaseDataLoaderIter, "__next__", timeline, "other", "input")


def _around(owner: Any, name: str, timeline: Timeline, before: str, after: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        timeline.mark(before)
        try:
            return original(*args, **kwargs)
        finally:
            timeline.mark(after)

    setattr(owner, name, marked)


def _tensors(parameters: Any) -> dict[str, Any]:
    if isinstance(parameters, torch.nn.Module):
        return {**dict(parameters.named_parameters()), **dict(parameters.named_buffers())}
    return {name: value for name, value in parameters.items() if torch.is_tensor(value)}


def _by_place(named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors of the host, and those on a GPU."""
    gpu = {name: tensor for name, tensor in named.items() if torch_nccl.on_gpu(tensor)}
    return {name: tensor for name, tensor in named.items() if name not in gpu}, gpu


def _listed(named: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    return list(named.values()), list(named)


def _group(tensors: Sequence[Any], names: Sequence[str]) -> torch_nccl.Group:
    return torch_nccl.group_of(comm.init(), tensors, names)


def _tensor(array: Array) -> Any:
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def held(tensor: Any, name: str) -> Array:
    """What a tensor holds, to be compared; from a GPU it is copied."""
    return _array(tensor.detach().cpu(), name)


def _require_dense(tensor: Any, name: str) -> None:
    if tensor.layout != torch.strided:
        raise fail("comm-sparse", name=name, layout=tensor.layout)


def _array(tensor: Any, name: str, bfloat16: Any = np.int16) -> Array:
    """The tensor's own memory, of the host, as an array; bfloat16, which NumPy lacks, in that dtype."""
    _require_dense(tensor, name)
    small = tensor.dtype == torch.bfloat16
    bits = tensor.detach().view(torch.int16) if small else tensor.detach()
    array: Array = bits.resolve_conj().resolve_neg().numpy()
    return array.view(bfloat16) if small else array
