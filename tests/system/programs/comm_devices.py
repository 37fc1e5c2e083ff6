"""What tensors on GPUs go through: on a GPU by NCCL where TEST_DEVICE says so, else over Gloo and tensors of the host.

There the process group is another one; fusing, agreement, order and words are the same code.
"""

import hashlib
import json
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"
import torch
from torch.nn.parallel import DistributedDataParallel

from fairlead import comm
from fairlead.base.errors import FairleadError
from fairlead.comm import torch as front
from fairlead.comm.frameworks import torch_nccl as nccl

RANKS = comm.init()
ME, SIZE = RANKS.rank, RANKS.size
torch.set_num_threads(1)
DEVICE = os.environ.get("TEST_DEVICE", "cpu")
LIBRARY = "gloo" if DEVICE == "cpu" else "nccl"


def bits(tensors):
    state = hashlib.sha256()
    for t in tensors:
        plain = t.detach().contiguous().reshape(-1).view(torch.uint8)
        state.update(repr((t.dtype, tuple(t.shape))).encode() + plain.cpu().numpy().tobytes())
    return state.hexdigest()


def refusal(call):
    try:
        call()
    except FairleadError as exc:
        return [getattr(exc.findings[0], name) for name in ("check", "what", "where", "why")]
    return "nothing"


def mine(rank=ME):
    torch.manual_seed(rank)
    made = [
        torch.randn(5, 7), torch.randn((), dtype=torch.float64), torch.randn(3, dtype=torch.complex64),
        torch.zeros(0, 4), torch.randn(70_000, 3).half(), torch.randn(9, 2).bfloat16(), torch.randn(4, 6).T,
    ]  # fmt: skip
    return [tensor.to(DEVICE) for tensor in made]


def ones(*shape):
    return torch.ones(*shape, device=DEVICE)


NAMES = [f"weight {i}" for i in range(7)]


def aggregate():
    """The mean of each, of the halves rounded once; the order of strides does not matter."""
    group = nccl.Group(RANKS, LIBRARY)
    given, every = mine(), [mine(rank) for rank in range(SIZE)]
    group.aggregate(given, NAMES)
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
    right = []
    for i, got in enumerate(given):
        total = sum(each[i].to(wide.get(got.dtype, got.dtype)) for each in every)
        right.append(torch.equal(got, (total / SIZE).to(got.dtype)))
    future = group.start([first := torch.full((3,), float(ME), device=DEVICE)], ["bucket 0"])
    half = torch.full((3,), 0.5, device=DEVICE)
    return [right, bits(given), torch.equal(future.wait(), half), first[0].item()]


def broadcast():
    group = nccl.Group(RANKS, LIBRARY)

    def more(rank):
        return [
            torch.tensor([rank == 0, True], device=DEVICE),
            torch.arange(4, device=DEVICE) + rank,
        ]

    given = [*mine(), *more(ME)]
    group.broadcast(given, [*NAMES, "mask", "steps"], 1)
    return [bits(given) == bits([*mine(1), *more(1)])]


def differ():
    """Before anything has moved, so that the ranks can go on."""
    group = nccl.Group(RANKS, LIBRARY)
    found = [
        refusal(lambda: group.aggregate([ones(2), ones(4 + ME)], NAMES)),
        refusal(lambda: group.aggregate([ones(2).to((torch.bfloat16, torch.float32)[ME])], NAMES)),
        refusal(lambda: group.aggregate([ones(2)] * (1 + ME), NAMES)),
        refusal(lambda: group.broadcast([ones(2)], NAMES, ME)),
        refusal(lambda: RANKS.barrier() if ME else group.aggregate([ones(2)], NAMES)),
    ]
    group.aggregate([last := torch.full((2,), float(ME), device=DEVICE)], NAMES)
    return [*found, last.tolist()]


def network(seed, device="cpu"):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    ).to(device)


def trained(model, optimizer, steps=6):
    torch.manual_seed(ME)
    device, losses = next(model.parameters()).device, []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((model(torch.randn(8, 4).to(device)) - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def as_if_on_gpus():
    """The whole front by the group; then by the host. Two ranks' sums have one order: the same bits."""

    def end():
        model = network(ME)
        front.broadcast_parameters(model)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        trained(model, front.DistributedOptimizer(optimizer, model.named_parameters()))
        front.average_buffers(model)
        front.check_state(model, optimizer)
        return bits(model.state_dict().values())

    by_host = end()
    calls, aggregated = [], nccl.Group.aggregate
    group = nccl.Group(RANKS, LIBRARY)
    nccl.on_gpu, kept = (lambda tensor: True), nccl.on_gpu
    nccl.group_of, made = (lambda ranks, tensors, names: group), nccl.group_of
    nccl.Group.aggregate = lambda self, *words: (
        calls.append(len(words[0])),
        aggregated(self, *words),
    )
    by_group = end()
    # Halves: a scaled model in float16 has its means taken in float32.
    parallel = DistributedDataParallel(network(ME))
    parallel.register_comm_hook(None, front.ddp_hook)
    trained(parallel, torch.optim.SGD(parallel.parameters(), 0.1))
    nccl.on_gpu, nccl.group_of, nccl.Group.aggregate = kept, made, aggregated
    front.check_state(dict(parallel.module.named_parameters()))
    return [by_group == by_host, calls]


def no_gpus():
    """What is said where it cannot be had: this torch has no NCCL, and its tensors are nowhere."""
    away = torch.nn.Linear(2, 2, device="meta")
    lost = refusal(lambda: front.broadcast_parameters(away))
    device = torch.device("cuda", 0)

    class Tensor:
        pass

    there = Tensor()
    there.device = device
    why = refusal(lambda: nccl._check(there, "weight", device, ""))
    forced = refusal(lambda: nccl._check(there, "weight", device, "mpi4py"))
    shared = "NCCL error in: NCCLUtils.cpp:93, invalid usage\nLast error:\nDuplicate GPU detected : rank 0\n"
    return [lost, why, forced, [nccl._reason(shared), nccl._reason("Connection closed\nmore")]]


def on_gpus():
    """The whole front with a model on a GPU, nothing replaced: losses on the device and on the host."""

    def end(device):
        model = network(ME, device)
        front.broadcast_parameters(model)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        losses = trained(model, front.DistributedOptimizer(optimizer, model.named_parameters()))
        front.average_buffers(model)
        front.check_state(model, optimizer)
        parallel = DistributedDataParallel(network(ME, device))
        parallel.register_comm_hook(None, front.ddp_hook)
        losses += trained(parallel, torch.optim.SGD(parallel.parameters(), 0.1))
        front.check_state(dict(parallel.module.named_parameters()))
        return losses

    return [end("cpu"), end(DEVICE)]


CASES = (
    aggregate,
    broadcast,
    differ,
    *((as_if_on_gpus, no_gpus) if DEVICE == "cpu" else (on_gpus,)),
)
for case in CASES:
    sys.stdout.write(f"{json.dumps({'case': case.__name__, 'rank': ME, 'seen': case()})}\n")
    sys.stdout.flush()
comm.finalize()
