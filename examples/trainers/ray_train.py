"""Ray Train as its documentation writes it; ../ray_cluster.py starts the cluster."""

import tempfile

import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def train():
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {loss.item():.4f}")


# A folder that every node sees.
storage = RunConfig(storage_path=tempfile.mkdtemp())
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=storage).fit()
print("trained on 2 workers")
