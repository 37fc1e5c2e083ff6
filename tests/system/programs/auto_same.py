"""What a serial torch script computes, however many processes share each batch.

Argument 1 is the folder for what it saw, argument 2 how many they are: a step of all of them takes all samples.
"""

import copy
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

folder, processes = Path(sys.argv[1]), int(sys.argv[2])
count = 16
torch.manual_seed(7)
x = torch.randn(count, 4)
rows = TensorDataset(x, x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]) + 5)


def loader(parts=1):
    return DataLoader(rows, count // processes // parts, shuffle=True)


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def weights(*models):
    return [value for model in models for p in model.parameters() for value in p.flatten().tolist()]


def trained(between, rate=0.05, scaler=None):
    """``between`` is called with a model whose gradients no step has used yet."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for _ in range(4):
        for a, b in loader():
            optimizer.zero_grad()
            loss = functional.mse_loss(model(a), b)
            (scaler.scale(loss) if scaler else loss).backward()
            between(model)
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
    return weights(model)


def clamped(model):
    for p in model.parameters():
        p.grad.data.clamp_(-0.1, 0.1)


def own_norm(model):
    norm = float(sum(p.grad.norm() ** 2 for p in model.parameters())) ** 0.5
    for p in model.parameters():
        p.grad.mul_(min(1.0, 0.3 / norm))


def signs(model):
    for p in model.parameters():
        p.grad = p.grad.sign()


def sharp():
    """Steps from where the gradient leads up to."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(3):
        for a, b in loader():
            functional.mse_loss(model(a), b).backward()
            steps = [0.05 * p.grad / p.grad.norm() for p in model.parameters()]
            with torch.no_grad():
                for p, step in zip(model.parameters(), steps, strict=True):
                    p.add_(step)
            optimizer.zero_grad()
            functional.mse_loss(model(a), b).backward()
            with torch.no_grad():
                for p, step in zip(model.parameters(), steps, strict=True):
                    p.sub_(step)
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def accumulated():
    """Clips what it has so far after each of two backward passes."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(4):
        for a, b in loader(2):
            (functional.mse_loss(model(a), b) / 2).backward()
        own_norm(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return weights(model)


def adversaries():
    """Each one's backward passes reach, or do not reach, the other."""
    maker, judge = net(), net()
    makers = torch.optim.Adam(maker.parameters(), 0.01)
    judges = torch.optim.Adam(judge.parameters(), 0.01)
    for _ in range(4):
        for a, _ in loader():
            made = a + maker(a)
            judge.zero_grad()
            judge(a).mean().backward()
            drawn.append(float(torch.randn(1)))
            (-judge(made.detach()).mean()).backward()
            clamped(judge)
            judges.step()
            maker.zero_grad()
            (judge(made) ** 2).mean().backward()
            clamped(maker)
            makers.step()
    return weights(maker, judge)


def meta():
    """Gradients that it assigns itself."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(3):
        for a, b in loader():
            loss = functional.mse_loss(model(a), b)
            own = torch.autograd.grad(loss, model.parameters())
            for p, gradient in zip(model.parameters(), own, strict=True):
                p.grad = gradient
            optimizer.step()
    return weights(model)


def copied():
    """A model and its optimizer, copied amid a training."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(2):
        for _ in range(2):
            for a, b in loader():
                optimizer.zero_grad()
                functional.mse_loss(model(a), b).backward()
                optimizer.step()
        model, optimizer = copy.deepcopy((model, optimizer))
    return weights(model)


def compiled():
    """The whole step."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    @torch.compile(backend="eager")
    def step(a, b):
        optimizer.zero_grad()
        functional.mse_loss(model(a), b).backward()
        optimizer.step()

    for _ in range(3):
        for a, b in loader():
            step(a, b)
    return weights(model)


def recomputed():
    """A backward pass begins others."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(3):
        for a, b in loader():
            optimizer.zero_grad()
            hidden = torch.utils.checkpoint.checkpoint(
                model[:2], a.requires_grad_(), use_reentrant=True
            )
            functional.mse_loss(model[2](hidden), b).backward()
            clamped(model)
            optimizer.step()
    return weights(model)


def twice():
    """A second optimizer of the same parameters, when the first is gone but for a circle."""
    model = net()
    for _ in range(3):
        optimizer = torch.optim.SGD([*model[2].parameters(), *model[0].parameters()], 0.05)
        optimizer.itself = optimizer
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for a, b in loader():
            optimizer.zero_grad()
            functional.mse_loss(model(a), b).backward()
            clamped(model)
            optimizer.step()
    return weights(model)


def graphs():
    """Passes that keep their graph, each of which makes new gradients of the sum so far."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(3):
        for a, b in loader():
            optimizer.zero_grad()
            for _ in range(3):
                functional.mse_loss(model(a), b).backward(create_graph=True)
            optimizer.step()
            for p in model.parameters():
                p.grad = None
    return weights(model)


def chosen():
    """One pass, through what a batch's samples choose."""
    experts = [net() for _ in range(4)]
    optimizers = [torch.optim.SGD(expert.parameters(), 0.05) for expert in experts]
    few = TensorDataset(torch.arange(4), *rows[:4])
    for _ in range(12):
        for numbers, a, b in DataLoader(few, 4 // processes, shuffle=True):
            for optimizer in optimizers:
                optimizer.zero_grad()
            made = torch.cat([experts[number](a[i : i + 1]) for i, number in enumerate(numbers)])
            functional.mse_loss(made, b).backward()
            for expert, optimizer in zip(experts, optimizers, strict=True):
                clamped(expert) if expert[0].weight.grad is not None else None
                optimizer.step()
    return weights(*experts)


drawn = []  # between two backward passes of a step: each rank its own
seen = {
    "clamped": trained(clamped),
    "own norm": trained(own_norm),
    "signs": trained(signs, 0.01),
    "scaled": trained(lambda model: None, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**9)),
    "sharp": sharp(),
    "accumulated": accumulated(),
    "adversaries": adversaries(),
    "meta": meta(),
    "recomputed": recomputed(),
    "twice": twice(),
    "copied": copied(),
    "compiled": compiled(),
    "chosen": chosen(),
    "graphs": graphs(),
}
hooked = net()
hooked[0].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
adding = torch.optim.SGD(hooked.parameters(), 0.001)
for a, b in loader():
    functional.mse_loss(hooked(a), b, reduction="sum").backward()
    adding.step()
(folder / f"seen.{os.getpid()}").write_text(json.dumps({"same": seen, "drawn": drawn}))
