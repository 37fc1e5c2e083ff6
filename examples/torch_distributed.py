"""`torch_serial.py` on many ranks: five lines differ; docs/tutorials/training.md explains them.

Run it from the top of the checkout, on as many ranks as you like:

    $ fairlead run -n 2 pytorch -- python3 examples/torch_distributed.py
"""

import torch

from fairlead.comm.torch import DistributedOptimizer, broadcast_parameters, rank, size

torch.manual_seed(1)
x = torch.randn(4096, 8)
y = (x[:, 0] * x[:, 1] > 0).float()  # not linearly separable
x, y = x[rank() :: size()], y[rank() :: size()]

model = torch.nn.Sequential(
    torch.nn.Linear(8, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 1),
    torch.nn.Flatten(0),
)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
broadcast_parameters(model)
optimizer = DistributedOptimizer(optimizer, model.named_parameters())
loss_of = torch.nn.BCEWithLogitsLoss()
for _ in range(5):
    for rows, labels in zip(x.split(32), y.split(32), strict=True):
        optimizer.zero_grad()
        loss_of(model(rows), labels).backward()
        optimizer.step()

accuracy = ((model(x) > 0) == (y > 0)).float().mean()
print(f"accuracy {accuracy:.3f}") if rank() == 0 else None
