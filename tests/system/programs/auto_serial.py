"""What serial torch scripts do next to their steps. Argument 1 is the folder for what it saw."""

import json
import os
import sys
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

epochs = int(input("epochs? "))
x = torch.arange(8.0).reshape(8, 1)
rows = TensorDataset(x, 100 * x * (1 - 2 * (x % 2)))
seen = {}


def trained(data, clip=None, batch=4):
    """A model that is made after other loaders were read, and is gone when the function returns."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.0))
    if clip:
        torch.nn.init.zeros_(model[0].weight), torch.nn.init.zeros_(model[0].bias)
    optimizer = torch.optim.SGD(model.parameters(), 0.1 if clip else 1e-4)
    for _ in range(1 if clip else epochs):
        for a, b in DataLoader(data, batch, shuffle=True):
            optimizer.zero_grad()
            functional.mse_loss(model(a), b).backward()
            if clip:
                seen.setdefault("norms", []).append(float(clip(model)))
            optimizer.step()
    return [float(p) for p in model.parameters()]


looked_at = next(iter(DataLoader(rows, 4, shuffle=True)))  # before there is a model
for way, clip in (
    ("norm", lambda m: torch.nn.utils.clip_grad_norm_(parameters=m.parameters(), max_norm=1.0)),
    ("value", lambda m: torch.nn.utils.clip_grad_value_(m.parameters(), 1.0) or 0.0),
):
    seen[way] = trained(rows, clip)
seen["folds"] = [trained(Subset(rows, torch.randperm(8)[:6].tolist()), batch=2) for _ in range(3)]

accumulated = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(accumulated.parameters(), 1e-4)
for a, b in DataLoader(rows, 2, shuffle=True):  # clips after each of two backward passes
    functional.mse_loss(accumulated(a), b).backward()
    torch.nn.utils.clip_grad_norm_(accumulated.parameters(), 1.0)
    seen["clips"] = seen.get("clips", 0) + 1
    if seen["clips"] % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
seen["accumulated"] = [float(p) for p in accumulated.parameters()]

for (a, b), (c, _) in zip(DataLoader(rows, 2, shuffle=True), DataLoader(rows, 2), strict=False):
    optimizer.zero_grad()
    (functional.mse_loss(accumulated(a), b) + accumulated(c).mean()).backward()
    optimizer.step()

held_out = DataLoader(rows, 2, shuffle=True)
batches = len(held_out)
with torch.no_grad():
    seen["evaluated"] = [sorted(float(a) for batch in held_out for a in batch[0]) for _ in range(2)]
seen["lengths"] = [batches, len(held_out)]
seen["read"] = sum(len(a) for a, _ in DataLoader(rows, 2, shuffle=True))
(Path(sys.argv[1]) / f"seen.{os.getpid()}").write_text(json.dumps(seen))
