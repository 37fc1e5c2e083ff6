"""A torch network by layers over ranks, each with its own; with -n 1, the same bits.

$ fairlead run -n 2 pytorch -- python3 examples/parallel/layers_torch.py 4
"""

import sys
from hashlib import sha256

import numpy as np
import torch

from fairlead import comm
from fairlead.comm.frameworks.torch_stage import GraphStage
from fairlead.comm.pipeline import Pipeline

SIZES, MICROBATCHES = (8, 64, 64, 32, 1), int(sys.argv[1])
torch.set_num_threads(1)  # adds in one order
torch.manual_seed(1)
links = comm.init().point_to_point()
batch = torch.randn(64, SIZES[0]).chunk(MICROBATCHES)
layers = [torch.nn.Linear(*SIZES[n : n + 2]) for n in range(len(SIZES) - 1)]
own = [layers[n] for n in np.array_split(range(len(layers)), links.size)[links.rank]]
model = torch.nn.Sequential(*(part for layer in own for part in (layer, torch.nn.Tanh())))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)


def call(at, x):
    y = model(batch[at] if links.rank == 0 else x)
    if links.rank < links.size - 1:
        return y
    return torch.mean((y - torch.sin(batch[at][:, :1])) ** 2) / MICROBATCHES


pipeline = Pipeline(links, GraphStage(call))
for _ in range(30):
    optimizer.zero_grad()
    pipeline.step(MICROBATCHES)
    optimizer.step()
if stages := comm.gather(b"".join(w.detach().numpy().tobytes() for w in model.parameters())):
    print("weights sha256", sha256(b"".join(stages)).hexdigest())
