"""A serial torch script with a loader; it knows nothing of ranks. Argument 1 is the folder for what it saw."""

import copy
import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

folder = Path(sys.argv[1])
seen = {}


class Rows(Dataset):
    def __init__(self):
        self.read = []

    def __len__(self):
        return 64

    def __getitem__(self, index):
        self.read.append(index)
        x = torch.arange(4, dtype=torch.float32) + index / 64
        return x, x.sum() / 8


class Normed(torch.nn.Module):
    """Its statistics are of modules whose own parameters no optimizer has."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.BatchNorm1d(8, affine=False)
        )
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def model():
    made = copy.deepcopy(Normed())
    return made, torch.optim.SGD(made.last.parameters(), 0.05, momentum=0.5)


try:  # before there is an optimizer
    weight = torch.ones(4, requires_grad=True)
    (weight * 2).sum().backward()
    seen["by hand"] = "trained"
except Exception as exc:
    seen["by hand"] = str(exc)

try:
    weight = torch.ones(4, requires_grad=True)
    torch.autograd.grad((weight * 2).sum(), weight)
    seen["by hand, autograd.grad"] = "trained"
except Exception as exc:
    seen["by hand, autograd.grad"] = str(exc)

try:
    torch.func.grad(lambda weight: (weight * 2).sum())(torch.ones(4))
    seen["by hand, func.grad"] = "trained"
except Exception as exc:
    seen["by hand, func.grad"] = str(exc)

try:  # before any loader that shuffles was gone through
    made, optimizer = model()
    made(torch.rand(2, 4)).sum().backward()
    optimizer.step()
    seen["alone"] = "trained"
except Exception as exc:
    seen["alone"] = str(exc)

try:
    DataLoader(type("Stream", (IterableDataset,), {"__iter__": lambda self: iter([])})())
    seen["stream"] = "taken"
except Exception as exc:
    seen["stream"] = str(exc)

made, optimizer = model()
rows = Rows()
loader = DataLoader(rows, batch_size=8, shuffle=True)
losses, epochs = [], []
for _ in range(3):
    rows.read = []
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(made(x)[:, 0], y)
        loss.backward()
        optimizer.step()
        total += float(loss)
    losses.append(total)
    made.eval()
    seen.setdefault("evaluated", []).append(float(made(torch.ones(3, 4)).sum().detach()))
    made.train()
    epochs.append(sorted(rows.read))


def adversary():
    """What changes tensors without an optimizer, and is not a training: a penalty by gradients of inputs, an average."""
    average = copy.deepcopy(made).requires_grad_(False)
    x = torch.rand(8, 4, requires_grad=True)
    for _ in range(3):
        [towards] = torch.autograd.grad(made(x).sum(), [x], create_graph=True)
        (made(x).sum() + average(x).sum() + (towards**2).sum()).backward()
        with torch.no_grad():
            x += 0.01 * towards.sign()
            for mean, now in zip(average.parameters(), made.parameters(), strict=True):
                mean.mul_(0.9).add_(now, alpha=0.1)


adversary()


def by_hand(way):
    other = torch.nn.Linear(4, 1)
    for _ in range(3):
        loss = other(torch.rand(8, 4)).sum()
        if way == "grad":
            gradients = torch.autograd.grad(loss, list(other.parameters()))
        else:
            loss.backward()
            gradients = [p.grad for p in other.parameters()]
        for p, gradient in zip(other.parameters(), gradients, strict=True):
            p.data -= 0.1 * gradient


for way in ("grad", "backward"):  # an optimizer is there, for another model
    try:
        by_hand(way)
        seen[f"by hand, {way}, next to an optimizer"] = "trained"
    except Exception as exc:
        seen[f"by hand, {way}, next to an optimizer"] = str(exc)


class Backwards(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(range(len(rows))[::-1])


with torch.no_grad():  # an evaluation on a part does not make the next loader's data parts
    for _ in loader:
        pass
for title, batches in (
    ("sampler", DataLoader(rows, batch_size=8, sampler=Backwards())),
    ("again", loader),
    ("in order", DataLoader(rows, batch_size=8)),
):
    try:
        for x, y in batches:
            torch.nn.functional.mse_loss(made(x)[:, 0], y).backward()
            optimizer.step()
            with torch.no_grad():  # evaluates in between
                next(iter(DataLoader(rows)))
        seen[title] = "trained"
    except Exception as exc:
        seen[title] = str(exc)
for _ in range(110 if not sys.argv[2:] else 0):  # batches of the script's own
    made(torch.rand(8, 4)).sum().backward()
    optimizer.step()
optimizer.zero_grad()
seen["losses"], seen["epochs"] = losses, epochs
seen["weights"] = [float(p.abs().sum()) for p in made.state_dict().values()]
if sys.argv[2:]:  # statistics that no step follows
    made(os.getpid() * torch.rand(8, 4))  # other numbers on each rank
seen["whole"] = len(list(DataLoader(rows, batch_size=8)))
torch.save(made.state_dict(), folder / "model.pt")
print("the script has come to its end")
(folder / f"seen.{os.getpid()}").write_text(json.dumps(seen))
