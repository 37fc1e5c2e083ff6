"""A serial torch script of what ranks could do each in its own way; it knows nothing of ranks.

Argument 1 is the folder for what it saw, argument 2 what it does.
"""

import io
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

folder, way = Path(sys.argv[1]), sys.argv[2]
count = 320
x = torch.arange(count, dtype=torch.float32)[:, None] / count
whole = TensorDataset(x, 3 * x + 0.1 * torch.randn(count, 1), torch.arange(count))
splits = {
    "numpy": lambda: np.random.permutation(count),
    "default_rng": lambda: np.random.default_rng().permutation(count),
    "random": lambda: random.sample(range(count), count),
    "set": lambda: [int(name) for name in {str(i) for i in range(count)}],
    "urandom": lambda: np.random.default_rng(list(os.urandom(8))).permutation(count),
}
order = splits.get(way, lambda: range(count))()
train, held = Subset(whole, order[:256]), Subset(whole, order[256:])


class Augmented(Dataset):
    """What it holds and gives is this rank's own, rightly."""

    def __init__(self):
        self.seen, self.cache = [], [None] * len(train)
        self.rng = np.random.default_rng(os.getpid())

    def __len__(self):
        return len(train)

    def __getitem__(self, index):
        self.seen.append(index)
        a, b, number = self.cache[index] = train[index]
        return a + 0.01 * self.rng.random() + 0.01 * torch.rand(1), b, number


def by_parts():
    """Of two models that are gone when it returns, each rank changes one in its own way, at last."""
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    one, two = (torch.optim.SGD(each.parameters(), 0.01) for each in (first, second))
    for a, b, _ in DataLoader(train, batch_size=16, shuffle=True):
        for each, chosen in ((first, one), (second, two)):
            chosen.zero_grad()
            torch.nn.functional.mse_loss(each(a), b).backward()
            chosen.step()
    first.weight.data.add_(1e-3 * os.urandom(1)[0] + 1e-6 * os.getpid())


if way == "parts":
    by_parts()
    sys.exit()
model = torch.nn.Sequential(torch.nn.Linear(1, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
if way == "queue":
    model.register_buffer("queue", torch.zeros(16))
data = Augmented() if way == "augmented" else train
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
seen, best, bad = set(), float("inf"), 0
for epoch in range(30 if way in ("stops", "plateau") else 3):
    total = 0.0
    if way == "augmented" and epoch == 1:  # made anew, of numbers that are this rank's own
        data = TensorDataset(x + 0.1 * torch.randn_like(x), x, torch.arange(count))
    if way == "leaves" and epoch == 1 and 0 in seen:  # one rank
        data = TensorDataset(x, 3 * x, torch.arange(count))
    for a, b, number in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        if way == "queue":
            model.queue.copy_(a[:, 0])
        loss = torch.nn.functional.mse_loss(model(a), b)
        loss.backward()
        if way == "shaken":
            for p in model.parameters():
                p.grad.add_(0.01 * torch.randn_like(p.grad))
        optimizer.step()
        total += float(loss)
        if way == "noise":
            for p in model.parameters():
                p.data.add_(0.01 * torch.randn_like(p))
        seen |= set(number.tolist())
    if way == "stops":
        best, bad = (total, 0) if total < best - 1e-4 else (best, bad + 1)
        if bad >= 1:
            break
    if way == "plateau":
        scheduler.step(total)
    if way == "best":
        torch.save(model.state_dict(), folder / "best.pt")
if way == "best":
    model.load_state_dict(torch.load(folder / "best.pt"))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    torch.load(io.BytesIO(buffer.getvalue()))
kept = [int(number) for _, _, numbers in DataLoader(held, batch_size=64) for number in numbers]
report = {"seen": sorted(seen), "held": sorted(kept)}
(folder / f"seen.{os.getpid()}").write_text(json.dumps(report))
