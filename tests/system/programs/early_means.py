"""Gradients that leave during the backward pass: each case next to one process with the whole batch.

Every rank prints, for each case: the largest distance to that process, in how many steps what had left was not what
was needed, and whether gradients still leave early.
"""

import copy
import io
import json
import os
from contextlib import nullcontext

os.environ["OMP_NUM_THREADS"] = "1"
import torch

from fairlead import comm
from fairlead.comm.overlap import Overlap
from fairlead.comm.torch import (
    DistributedOptimizer,
    average_gradients,
    averaging_of,
    broadcast_parameters,
    check_state,
)

torch.set_num_threads(1)
ME, RANKS = comm.rank(), comm.size()
FIRST = 25  # step, when gradients surely leave early


def background(self, foreground, background):
    """This machine may have no idle core."""
    self.decided = self.background = True


Overlap.decide = background


def network(seed, dtypes=(torch.float32,) * 3):
    torch.manual_seed(seed)
    sizes = [(300, 400), (400, 500), (500, 300)]
    layers = [torch.nn.Linear(*size).to(dtype) for size, dtype in zip(sizes, dtypes, strict=True)]
    return torch.nn.ModuleList(layers)


def loss_of(layers, x):
    for layer in layers:
        x = torch.tanh(layer(x.to(layer.weight.dtype)))
    return x.square().mean()


class Training:
    """A model on ranks, and the same on one process; ``step`` does to both what its hooks do."""

    def __init__(self, distribute=DistributedOptimizer, **how):
        self.model, self.whole = network(ME, **how), network(0, **how)
        broadcast_parameters(self.model)
        self.pairs = [(self.model, ME), (self.whole, None)]
        make = [torch.optim.SGD(m.parameters(), 0.5, momentum=0.5) for m, _ in self.pairs]
        self.optimizers = [distribute(make[0], self.model.named_parameters()), make[1]]
        self.generator = torch.Generator().manual_seed(3)
        self.at = 0

    def batch(self):
        return torch.randn(2 * RANKS, 300, generator=self.generator)

    def step(self, passes=1, changed=None, alone=None, loss_of=loss_of):
        """``changed`` is called with a model before its optimizer's step, ``alone`` with that of the ranks."""
        x = self.batch()
        for (model, rank), optimizer in zip(self.pairs, self.optimizers, strict=True):
            optimizer.zero_grad()
            part = x if rank is None else x[rank::RANKS]
            for _ in range(passes):
                (loss_of(model, part) / passes).backward()
            if changed:
                changed(model)
            if alone and rank is not None:
                alone(model, part)
            optimizer.step()
        self.at += 1

    def steps(self, until, **how):
        while self.at < until:
            self.step(**how)

    def seen(self):
        pairs = zip(self.model.parameters(), self.whole.parameters(), strict=True)
        early = averaging_of(self.optimizers[0])._early
        apart = max(float((a - b).detach().abs().max()) for a, b in pairs)
        check_state(self.model)
        return [apart, early._missed, bool(early._buckets) and early._overlap.background]


CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def steps_alike():
    training = Training()
    training.steps(40)
    return training.seen()


@case
def several_passes():
    training = Training()
    training.steps(40, passes=3)
    return training.seen()


@case
def two_dtypes():
    training = Training(dtypes=(torch.float32, torch.float64, torch.float32))
    training.steps(40)
    return training.seen()


@case
def another_pass_in_two_steps():
    training = Training()
    training.steps(FIRST)
    for passes in (2, 1, 2, 1, 1):
        training.step(passes)
    return training.seen()


@case
def changed_behind_the_version_counter():
    training = Training()
    training.steps(FIRST)

    def halve(model):
        for p in model.parameters():
            p.grad.data.mul_(0.5)

    training.step(changed=halve)
    training.steps(30)
    return training.seen()


@case
def clipped_before_every_step():
    training = Training()

    def clip(model):
        if model is training.model:
            average_gradients(training.optimizers[0])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    training.steps(40, changed=clip)
    return training.seen()


@case
def changed_in_every_step():
    training = Training()

    def negate(model):
        for p in model.parameters():
            p.grad.neg_()

    training.steps(40, changed=negate)
    return training.seen()


@case
def further_pass_of_one_rank():
    training = Training()
    training.steps(FIRST)

    def look(model, part):
        if ME == 1:
            kept = [p.grad.clone() for p in model.parameters()]
            loss_of(model, part).backward()
            for p, gradient in zip(model.parameters(), kept, strict=True):
                p.grad = gradient

    training.step(alone=look)
    training.steps(30)
    return training.seen()


@case
def passes_of_one_rank_after_the_last_step():
    training = Training()
    training.steps(30)
    if ME == 0:
        for _ in range(3):
            loss_of(training.model, training.batch()).backward()
    return training.seen()


@case
def layer_that_one_rank_skips():
    """The others' gradient is divided by all ranks; so one process scales its own."""
    training = Training()
    training.steps(FIRST)

    def part(layers, x):
        skips = ME == 1 and layers is training.model
        with torch.no_grad() if skips else nullcontext():
            x = torch.tanh(layers[0](x))
        return loss_of(layers[1:], x)

    before = copy.deepcopy(training.whole.state_dict())
    training.step(loss_of=part)
    training.whole.load_state_dict(before)
    training.whole.load_state_dict(training.model.state_dict())
    return training.seen()


@case
def frozen_layer():
    training = Training()
    training.steps(FIRST)
    for model, _ in training.pairs:
        model[0].requires_grad_(False)
    training.steps(35)
    return training.seen()


@case
def second_optimizer_of_the_same_parameters():
    training = Training()
    training.steps(30)
    first = averaging_of(training.optimizers[0])._early
    training.optimizers = [torch.optim.Adam(m.parameters(), 1e-3) for m, _ in training.pairs]
    DistributedOptimizer(training.optimizers[0])
    training.at = 0
    training.steps(30)
    return [*training.seen(), first._buckets == [] and first._closed]


@case
def two_that_alternate():
    """As a generator and its critic: passes of one add to gradients of the other."""
    one, other = Training(), Training()
    for _ in range(30):
        x = one.batch()
        for (a, rank), (b, _), mine, theirs in zip(
            one.pairs, other.pairs, one.optimizers, other.optimizers, strict=True
        ):
            part = x if rank is None else x[rank::RANKS]
            for optimizer in (mine, theirs):
                optimizer.zero_grad()
                (loss_of(b, loss_of(a, part) * part) + loss_of(a, part)).backward()
                optimizer.step()
    return [*one.seen(), *other.seen()]


@case
def by_horovods_names():
    import horovod.torch as hvd

    hvd.init()
    training = Training(hvd.DistributedOptimizer)
    training.steps(40)
    return training.seen()


@case
def copied_and_saved():
    training = Training()
    training.steps(30)
    kept = io.BytesIO()
    torch.save(training.model, kept)
    other = copy.deepcopy(training.model)
    loss_of(other, training.batch()).backward()
    training.steps(32)
    return training.seen()


@case
def small_model():
    model = torch.nn.Linear(4, 4)
    broadcast_parameters(model)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(5):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    return averaging_of(optimizer)._early._closed


@case
def infinite_once():
    training = Training()
    training.steps(FIRST)
    for p in training.model[1].parameters():
        p.register_hook(lambda g: g * float("inf") if ME == 1 and training.at == FIRST else g)
    whole = copy.deepcopy(training.whole.state_dict())
    training.step()
    finite = all(p.isfinite().all() for p in training.model.parameters())
    training.whole.load_state_dict(whole)
    training.model.load_state_dict(whole)
    return [finite, averaging_of(training.optimizers[0])._early._missed]


for name, function in CASES.items():
    seen = json.dumps({"case": name, "rank": ME, "seen": function()})
    os.write(1, f"{seen}\n".encode())
