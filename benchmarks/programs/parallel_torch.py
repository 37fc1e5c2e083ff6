"""A rank of a pipeline of torch layers: ``parallel_torch.py SOCKET``; ``benchmarks/bars/parallel.py`` asks.

``fairlead`` passes them on, or ``torch.distributed.pipelining`` on Gloo, whose layers and schedules are the same.
"""

import os
import time

os.environ["OMP_NUM_THREADS"] = "1"

import sys

import turns

turns.pin(turns.rank_of())

import torch
from torch.distributed import pipelining

from fairlead import comm
from fairlead.comm.frameworks.torch_stage import GraphStage
from fairlead.comm.pipeline import SCHEDULES, Pipeline
from fairlead.comm.torch import init_process_group

WIDTH, SAMPLES, LAYERS = 512, 128, 4
torch.set_num_threads(1)
torch.manual_seed(turns.rank_of())
init_process_group()
RANKS = comm.init()
LAST = RANKS.rank == RANKS.size - 1
LINEAR = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
MODEL = torch.nn.Sequential(*(part for layer in LINEAR for part in (layer, torch.nn.Tanh())))
BATCH = torch.rand(SAMPLES, WIDTH)


def loss_of(y, _target):
    return (y**2).sum() / y.numel()


def call(_at, x):
    y = MODEL(BATCH if RANKS.rank == 0 else x)
    return loss_of(y, None) if LAST else y


def fairlead(schedule, microbatches):
    pipeline = Pipeline(RANKS.point_to_point(), GraphStage(call), SCHEDULES[schedule])
    return lambda: pipeline.step(microbatches)


def by_torch(schedule, microbatches):
    stage = pipelining.PipelineStage(MODEL, RANKS.rank, RANKS.size, torch.device("cpu"))
    kind = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[schedule]
    whole = kind(stage, microbatches, loss_of, scale_grads=False)
    batch = BATCH.repeat(microbatches, 1)
    if RANKS.rank == 0:
        return lambda: whole.step(batch)
    return lambda: whole.step(target=torch.zeros_like(batch))


MADE = {}


def steps(way, schedule, microbatches, repeats):
    """Seconds of each."""
    key = way, schedule, microbatches
    if key not in MADE:
        MADE[key] = {"fairlead": fairlead, "torch": by_torch}[way](schedule, microbatches)
    times = []
    for _ in range(repeats):
        MODEL.zero_grad()
        RANKS.barrier()
        begun = time.perf_counter()
        MADE[key]()
        times.append(time.perf_counter() - begun)
    return times


def gradients():
    """A number for each layer, to be compared."""
    return [float(p.grad.abs().sum()) for p in MODEL.parameters()]


turns.serve(sys.argv[1], {"steps": steps, "gradients": gradients})
sys.stdout.flush()
os._exit(0)  # torch's group would not let go
