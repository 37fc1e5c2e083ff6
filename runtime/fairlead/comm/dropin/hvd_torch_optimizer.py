"""The optimizer of ``horovod.torch``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fairlead.base.errors import fail
from fairlead.comm.core import Comm
from fairlead.comm.dropin import hvd, requests
from fairlead.comm.dropin.failures import usage
from fairlead.comm.dropin.hvd_torch_handles import sparse_allreduce_async
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.frameworks import common
from fairlead.comm.torch import Averaging, attach, average_gradients, average_tensors

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(  # noqa: PLR0913, Horovod's
    optimizer: Any,
    named_parameters: Any = None,
    compression: Any = hvd.Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = hvd.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: hvd.ProcessSet = hvd.global_process_set,
) -> Any:
    """:func:`fairlead.comm.torch.DistributedOptimizer`, with ``synchronize`` and ``skip_synchronize``.

    However many backward passes a step has, their sum is averaged once, in the step. The parameters are compared
    before the second step, since scripts may broadcast after the first.

    Args:
        op: ``Average`` or ``Sum``.
        gradient_predivide_factor, num_groups, groups: without meaning here; the mean is the same.
        sparse_as_dense: gradients of embeddings travel dense.
        process_set: ranks outside of it train alone.
    Raises:
        FairleadError: another ``op``.
        UsageError: names are missing, or there twice.
    """
    hvd.require(op in (hvd.Average, hvd.Sum), f"op={op} in torch", "op=Average or op=Sum")
    named = _named(optimizer, named_parameters)
    if compression is hvd.Compression.fp16:
        say_on_rank_0("torch: gradients travel in full precision; `compression` is without meaning")
        compression = hvd.Compression.none
    names = {id(parameter): name for name, parameter in named}
    averaging = _Averaging(optimizer, names, op, compression, sparse_as_dense, process_set)
    if process_set is hvd.global_process_set or process_set.included():
        attach(averaging)
        optimizer.register_step_pre_hook(averaging.warn)
        optimizer.synchronize = averaging.synchronize
    else:
        optimizer.synchronize = lambda: None
    optimizer.skip_synchronize = averaging.skip_synchronize
    optimizer._parameter_names = {parameter: name for name, parameter in named}
    return optimizer


def _named(optimizer: Any, named_parameters: Any) -> list[tuple[str, Any]]:
    """Names of the optimizer's parameters, and they.

    Raises:
        UsageError: they are not the names of all, or one is there twice.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is None:
        return [(f"allreduce.noname.{i}", parameter) for i, parameter in enumerate(parameters)]
    named = list(named_parameters)
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise usage(fail("comm-dropin-names-twice", names=", ".join(twice)))
    known = {id(parameter) for _, parameter in named}
    unnamed = sum(id(parameter) not in known for parameter in parameters)
    if unnamed:
        raise usage(fail("comm-dropin-names-missing", count=unnamed, of=len(parameters)))
    return named


class _Averaging(Averaging):
    """Gradients by Horovod's options."""

    compared_at = (2,)  # scripts may broadcast after the first

    def __init__(
        self,
        optimizer: Any,
        names: Mapping[int, str],
        op: str,
        compression: Any,
        sparse_as_dense: bool,
        members: hvd.ProcessSet,
    ):
        super().__init__(optimizer, names)
        self._op, self._compression = op, compression
        self._as_dense, self._members = sparse_as_dense, members
        self._sparse: list[bool] | None = None
        self._synchronized = self._skips = False

    def ranks(self) -> Comm:
        return self._members.core_comm()

    def can_be_early(self) -> bool:
        plain = self._op == hvd.Average and self._compression is hvd.Compression.none
        return plain and not self._as_dense and super().can_be_early()

    def is_of(self, ranks: Comm) -> bool:
        return self._members.exists() and super().is_of(ranks)

    def compare_end(self) -> bool:
        if not self._members.exists():
            common.say(common.NOT_COMPARED)
            return False
        return super().compare_end()

    def means(
        self, gradients: list[Any], like: list[Any], names: list[str], *, any_values: bool
    ) -> list[Any]:
        sparse = self._sparse_on_any_rank(gradients)
        if self._as_dense:
            whole = [g.to_dense() if g is not None and g.is_sparse else g for g in gradients]
            means = self._dense(whole, like, names, any_values)
            # As their optimizer takes them.
            return [
                mean.to_sparse() if i in sparse and mean is not None else mean
                for i, mean in enumerate(means)
            ]
        handles = {
            i: sparse_allreduce_async(
                torch.zeros_like(like[i]).to_sparse() if gradients[i] is None else gradients[i],
                name=names[i],
                op=self._op,
                process_set=self._members,
            )
            for i in sparse
        }
        dense = [i for i in range(len(gradients)) if i not in handles]
        reduced = self._dense(
            [gradients[i] for i in dense], [like[i] for i in dense], [names[i] for i in dense],
            any_values,
        )  # fmt: skip
        others = dict(zip(dense, reduced, strict=True))
        return [handles[i]() if i in handles else others[i] for i in range(len(gradients))]

    def _sparse_on_any_rank(self, gradients: Sequence[Any]) -> list[int]:
        """Which gradients are sparse, as found in the first step: a rank may have none of what another one has."""
        known = self._sparse
        if known is None:
            mine = np.array([[g is not None and g.is_sparse for g in gradients]], bool)
            (table,) = self._members.run(requests.ALLGATHER, [mine]).arrays
            known = self._sparse = [any(column) for column in table.T.tolist()]
        return [i for i, sparse in enumerate(known) if sparse]

    def _dense(
        self, gradients: list[Any], like: list[Any], names: list[str], any_values: bool
    ) -> list[Any]:
        contexts: list[Any] = []
        if self._compression is not hvd.Compression.none:
            whole = [
                torch.zeros_like(model) if gradient is None else gradient
                for gradient, model in zip(gradients, like, strict=True)
            ]
            sent = [self._compression.compress(gradient) for gradient in whole]
            gradients = like = [tensor for tensor, _ in sent]
            contexts = [context for _, context in sent]
        means = average_tensors(gradients, like, names, self.ranks(), any_values=any_values)
        if self._op == hvd.Sum:
            means = [None if mean is None else mean.mul_(self._members.size()) for mean in means]
        if contexts:
            means = [
                self._compression.decompress(mean, context)
                for mean, context in zip(means, contexts, strict=True)
            ]
        return means

    def synchronize(self) -> None:
        """Averages the gradients now; the next step does not average them again."""
        average_gradients(self.optimizer)
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """For a step after :meth:`synchronize`."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def warn(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._synchronized and not self._skips:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after"
                " optimizer.synchronize(): the gradients are not averaged again",
                stacklevel=3,
            )
        self._synchronized = False
