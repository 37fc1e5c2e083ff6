"""Serial scripts on frameworks that train by themselves; argument 1 is the folder, argument 2 the framework."""

import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

folder, framework = Path(sys.argv[1]), sys.argv[2]
torch.manual_seed(3)
x = torch.arange(256, dtype=torch.float32)[:, None] / 256
rows = TensorDataset(x, 3 * x)
model = torch.nn.Linear(1, 1)
seen = []


def loss_of(a, b):
    seen.extend((a[:, 0] * 256).round().int().tolist())
    return torch.nn.functional.mse_loss(model(a), b)


if framework == "lightning":
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, index):
            return loss_of(*batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.1)

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    trainer.fit(Module(), DataLoader(rows, batch_size=16, shuffle=True))
    world = trainer.world_size
elif framework == "accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    loader = DataLoader(rows, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_of(*batch))
        optimizer.step()
    world = accelerator.num_processes
else:
    from transformers import Trainer, TrainingArguments

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, a, labels):
            return {"loss": loss_of(a, labels)}

    arguments = TrainingArguments(
        str(folder / "out"), num_train_epochs=1, per_device_train_batch_size=16, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    items = [{"a": a, "labels": b} for a, b in rows]
    Trainer(model=Whole(), args=arguments, train_dataset=items).train()
    world = arguments.world_size
weights = [float(p.sum()) for p in model.parameters()]
report = {"seen": sorted(seen), "world": world, "weights": weights}
(folder / f"seen.{os.getpid()}").write_text(json.dumps(report))
