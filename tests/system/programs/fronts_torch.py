"""What the torch front promises, one function a promise; as ``fronts_keras.py``."""

import copy
import gc
import json
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from fairlead import comm
from fairlead.base.errors import FairleadError
from fairlead.comm.torch import (
    DistributedOptimizer,
    average_buffers,
    average_gradients,
    broadcast_optimizer_state,
    broadcast_parameters,
    check_state,
    ddp_hook,
    init_process_group,
)

ME, RANKS = comm.rank(), comm.size()
CASES = {}
torch.set_num_threads(1)


def case(function):
    CASES[function.__name__] = function
    return function


def data(rank=None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 4)).astype("float32")
    y = (x[:, :1] * x[:, 1:2] + x.sum(1, keepdims=True)).astype("float32")
    rows = slice(None) if rank == "all" else slice(ME, None, RANKS)
    batch = 4 * (RANKS if rank == "all" else 1)
    return list(zip(*(torch.split(torch.from_numpy(a[rows]), batch) for a in (x, y)), strict=True))


def network(seed, *more):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), *more, torch.nn.Linear(8, 1))


def loss_of(model, x, y):
    return torch.mean((model(x) - y) ** 2)


def train(model, optimizer, rank=None, epochs=2, every=1, clip=None, schedule=None):
    optimizer.zero_grad()
    for _ in range(epochs):
        for step, (x, y) in enumerate(data(rank)):
            (loss_of(model, x, y) / every).backward()
            if (step + 1) % every == 0:
                if clip:
                    if rank != "all":
                        average_gradients(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        if schedule:
            schedule.step()


def distance(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)


def refusal(call):
    try:
        call()
    except FairleadError as exc:
        return [exc.findings[0].check, exc.findings[0].where]
    return None


def wrapped(optimizer, model):
    broadcast_parameters(model)
    return DistributedOptimizer(optimizer, model.named_parameters())


OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, 0.05), {}),
    "momentum": (lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True), {}),
    "adam": (lambda p: torch.optim.Adam(p, 0.01), {}),
    "clipped": (lambda p: torch.optim.AdamW(p, 0.01), {"clip": 0.1}),
    "accumulating": (lambda p: torch.optim.SGD(p, 0.05), {"every": 2}),
}


@case
def one_process_with_the_whole_batch():
    seen = {}
    for name, (make, how) in OPTIMIZERS.items():
        model, whole = network(ME), network(0)
        optimizer = wrapped(make(model.parameters()), model)
        train(model, optimizer, **how)
        train(whole, make(whole.parameters()), "all", **how)
        check_state(model, optimizer)
        seen[name] = [distance(model, whole), distance(model, network(0))]
    return seen


@case
def optimizer_unwrapped():
    model = network(0)
    train(model, torch.optim.SGD(model.parameters(), 0.05))
    return refusal(lambda: check_state(model))


@case
def no_broadcast():
    model = network(ME)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.05), model.named_parameters()
    )
    return refusal(lambda: train(model, optimizer))


@case
def schedule_made_before_or_after():
    seen = []
    for before in (True, False):
        model, whole = network(ME), network(0)
        plain = torch.optim.SGD(model.parameters(), 0.1)
        if before:
            schedule = torch.optim.lr_scheduler.StepLR(plain, 1)
        optimizer = wrapped(plain, model)
        if not before:
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        train(model, optimizer, schedule=schedule)
        other = torch.optim.SGD(whole.parameters(), 0.1)
        train(whole, other, "all", schedule=torch.optim.lr_scheduler.StepLR(other, 1))
        seen.append(distance(model, whole))
    return seen


@case
def closures():
    """LBFGS calls its closure as often as the loss tells it to: it must see the same everywhere."""
    model, whole, losses = network(ME), network(0), []

    def run(model, optimizer, rank):
        (x, y), *_ = data(rank)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            return loss

        for _ in range(2):
            losses.append(optimizer.step(closure).item())

    lbfgs = {"max_iter": 4, "line_search_fn": "strong_wolfe"}
    optimizer = wrapped(torch.optim.LBFGS(model.parameters(), **lbfgs), model)
    run(model, optimizer, None)
    run(whole, torch.optim.LBFGS(whole.parameters(), **lbfgs), "all")
    check_state(model)
    return [distance(model, whole), abs(losses[1] - losses[3])]


@case
def loss_scale():
    """One rank's gradient is infinite in one step: every rank skips it and halves its scale."""
    seen = {}
    for kind in ("plain", "fused", "unscaled by hand"):
        model = network(ME)
        fused = {"fused": True} if kind == "fused" else {}
        optimizer = wrapped(torch.optim.Adam(model.parameters(), 0.01, **fused), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step, (x, y) in enumerate(data()):
            loss = loss_of(model, x, y)
            optimizer.zero_grad()
            scaler.scale(loss * float("inf") if step == ME == 1 else loss).backward()
            if kind == "unscaled by hand":
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        check_state(model, optimizer)
        steps = int(optimizer.state_dict()["state"][0]["step"])
        seen[kind] = [
            steps,
            scaler.get_scale(),
            all(p.isfinite().all() for p in model.parameters()),
        ]
    return [[int(s), scale, bool(finite)] for s, scale, finite in seen.values()]


@case
def parameter_used_on_one_rank():
    """Its gradient counts as zero on the other rank; one that nobody uses keeps none."""
    model = network(ME)
    model.some, model.none = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = wrapped(torch.optim.SGD(model.parameters(), 1.0), model)
    x, y = data()[0]
    (loss_of(model, x, y) + (model.some.sum() if ME == 1 else 0)).backward()
    optimizer.step()
    check_state(model)
    return [model.some.tolist(), model.none.grad is None]


@case
def half_precision():
    model = network(ME).to(torch.bfloat16)
    optimizer = wrapped(torch.optim.SGD(model.parameters(), 0.1), model)
    for x, y in data():
        optimizer.zero_grad()
        loss_of(model, x.bfloat16(), y.bfloat16()).backward()
        optimizer.step()
    check_state(model)
    return distance(model, network(0).to(torch.bfloat16))


@case
def batch_norm_statistics():
    model = network(ME, torch.nn.BatchNorm1d(8))
    train(model, wrapped(torch.optim.SGD(model.parameters(), 0.05), model))
    before = refusal(lambda: check_state(model))
    own = [b.detach().numpy().copy() for b in model.buffers()][:2]
    average_buffers(model)
    check_state(model)
    means = comm.aggregate(own)
    pairs = zip(means, model.buffers(), strict=False)
    return [before, max(float(np.abs(a - b.numpy()).max()) for a, b in pairs)]


@case
def optimizer_state_of_one_rank():
    """Rank 1 goes on from a state that rank 0 has never seen."""
    model = network(ME)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    if ME == 1:
        train(model, optimizer, epochs=1)
        optimizer.param_groups[0]["lr"] = 0.5
    broadcast_parameters(model.state_dict(), root=1)
    broadcast_optimizer_state(optimizer, root=1)
    check_state(model, optimizer)
    return [optimizer.param_groups[0]["lr"], int(optimizer.state_dict()["state"][0]["step"])]


@case
def saved_and_loaded():
    model = network(ME)
    optimizer = wrapped(torch.optim.Adam(model.parameters(), 0.01), model)
    train(model, optimizer)
    other = torch.optim.Adam(model.parameters(), 0.3)
    other.load_state_dict(optimizer.state_dict())
    return [type(optimizer) is torch.optim.Adam, other.param_groups[0]["lr"]]


@case
def distributed_data_parallel():
    init_process_group()
    model, whole = network(ME), network(0)
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(None, ddp_hook)
    before = comm.init().timings.calls
    train(parallel, torch.optim.Adam(model.parameters(), 0.01))
    train(whole, torch.optim.Adam(whole.parameters(), 0.01), "all")
    calls = comm.init().timings.calls - before
    check_state(model)
    group = [torch.distributed.get_rank() == ME, torch.distributed.get_world_size() == RANKS]
    torch.distributed.destroy_process_group()
    return [all(group), calls >= 8, distance(model, whole)]


def shared_mappings():
    with open("/proc/self/maps") as maps:
        return sum(" rw-s " in line and "/dev/shm/" in line for line in maps)


def linear_steps(model, whole):
    """22 steps, enough for buckets to move, and for both ways of moving means; the largest distance to one process."""
    optimizers = [torch.optim.SGD(m.parameters(), 0.01) for m in (model, whole)]
    generator = torch.Generator().manual_seed(3)
    for _ in range(22):
        x = torch.randn(2 * RANKS, 300, generator=generator)
        for m, optimizer, part in zip((model, whole), optimizers, (x[ME::RANKS], x), strict=True):
            optimizer.zero_grad()
            m(part).square().mean().backward()
            optimizer.step()
    return distance(model, whole)


@case
def ddp_in_shared_memory():
    """Buckets are summed where they are: the program's views of them still hold, and memory is given back."""
    from fairlead.comm.torch import _buckets

    init_process_group()
    before = shared_mappings()
    seen = []
    for view in (False, True):
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300))
        whole = copy.deepcopy(model)
        parallel = DistributedDataParallel(model, gradient_as_bucket_view=view)
        parallel.register_comm_hook(None, ddp_hook)
        apart = linear_steps(parallel, whole)
        check_state(model)
        seen.append([shared_mappings() > before, apart])
        del model, parallel, whole
        gc.collect()
    torch.distributed.destroy_process_group()
    return [seen, shared_mappings() == before, _buckets(comm.init())._overlap.decided]


@case
def tensor_elsewhere_and_sparse():
    away = torch.nn.Linear(2, 2, device="meta")
    sparse = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = wrapped(torch.optim.SGD(sparse.parameters(), 0.1), sparse)
    sparse(torch.tensor([1])).sum().backward()
    return [refusal(lambda: broadcast_parameters(away)), refusal(optimizer.step)]


@case
def other_shape_on_one_rank():
    model = torch.nn.Linear(3 + ME, 1)
    return refusal(lambda: broadcast_parameters(model))


@case
def fewer_steps_on_one_rank():
    """The last case: rank 1 ends, and rank 0 is told so in the step that it makes alone."""
    model = network(ME)
    optimizer = wrapped(torch.optim.SGD(model.parameters(), 0.1), model)
    for x, y in data()[: 4 - ME]:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        found = refusal(optimizer.step)
    return found


for name, function in CASES.items():
    begun = time.perf_counter()
    line = {"case": name, "rank": ME, "seen": function(), "seconds": time.perf_counter() - begun}
    # one write, so that the ranks' lines do not run into each other
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
