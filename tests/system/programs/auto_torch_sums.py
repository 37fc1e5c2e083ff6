"""Sums over a batch in a torch script, and what is none. Argument 1 is which."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

way = sys.argv[1]
torch.manual_seed(1)
x = torch.randn(96, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
scaler = torch.amp.GradScaler("cpu")


def loss_of(a, b):
    error = ((model(a) - b) ** 2)[:, 0]
    if way == "half":
        return 0.5 * error.sum()
    if way == "negated":
        return -torch.distributions.Normal(model(a), 1.0).log_prob(b).sum()
    if way == "scaled":
        return scaler.scale(torch.nn.functional.mse_loss(model(a), b, reduction="sum"))
    if way == "accumulated":
        return error.sum() / 4
    if way == "product":
        return (model(a) - b)[:, 0] @ (model(a) - b)[:, 0]
    if way == "axis":
        return ((model(a) - b) ** 2).sum(dim=-2).mean()
    few = (a[:, 0] > -9).float()
    few[:3] = 0
    mean = error.sum() / len(a) + 0.5 * error.sum() / 8 - error.sum() * (1 / 8) + 3 * error.mean()
    return mean + (error * few).sum() / few.sum() + error.sum() / (few > 0).sum()


for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True):
    optimizer.zero_grad()
    loss_of(a, b).backward()
    optimizer.step()
