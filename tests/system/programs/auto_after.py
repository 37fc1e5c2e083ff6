"""Steps on batches that a script makes itself, after those of a loader in a random order, and what looks like them.

Argument 1 is which.
"""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

way = sys.argv[1]
rows = torch.randn(32, 4)
loader = DataLoader(TensorDataset(rows), batch_size=4, shuffle=True)
model, other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
first = torch.optim.SGD(model.parameters(), 1e-3)
second = torch.optim.SGD(other.parameters(), 1e-3)


def step(batch, optimizer=first):
    net = model if optimizer is first else other
    optimizer.zero_grad()
    net(batch).square().mean().backward()
    optimizer.step()


if way == "after":  # two batches of all rows
    for (batch,) in loader:
        step(batch)
    step(rows[:16])
    step(rows[16:])
elif way == "left":  # the loader was left early
    for (batch,) in loader:
        step(batch)
        break
    step(rows)
elif way == "kept":
    for (batch,) in loader:
        step(batch)
        step(batch)  # again, on the same
        step(batch, second)
elif (
    way == "ahead"
):  # the next batch is taken before the step on this one, and the last step is on one taken before
    for _ in range(2):
        batches = iter(loader)
        batch = next(batches)
        while batch is not None:
            following = next(batches, None)
            step(batch[0])
            batch = following
elif way == "taken":
    for _ in range(4):
        (batch,) = next(iter(loader))
        step(batch)
        step(batch, second)
elif way == "rest":  # gradients are accumulated, and the last ones applied behind the loop
    for number, (batch,) in enumerate(loader):
        model(batch).square().mean().backward()
        if number % 3 == 2:
            first.step()
            first.zero_grad()
    first.step()
