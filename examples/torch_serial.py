"""A torch script as anybody writes it; `torch_distributed.py` is the same on many ranks.

Run it from the top of the checkout:

    $ fairlead run -n 1 pytorch -- python3 examples/torch_serial.py
"""

import torch

torch.manual_seed(1)
x = torch.randn(4096, 8)
y = (x[:, 0] * x[:, 1] > 0).float()  # not linearly separable

model = torch.nn.Sequential(
    torch.nn.Linear(8, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 1),
    torch.nn.Flatten(0),
)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
loss_of = torch.nn.BCEWithLogitsLoss()
for _ in range(5):
    for rows, labels in zip(x.split(32), y.split(32), strict=True):
        optimizer.zero_grad()
        loss_of(model(rows), labels).backward()
        optimizer.step()

accuracy = ((model(x) > 0) == (y > 0)).float().mean()
print(f"accuracy {accuracy:.3f}")
