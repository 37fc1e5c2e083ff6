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
        max_epochs=2, accelerator="cpu", default_root_dir=folder / "out", logger=False
    )
    module = Module()
    trainer.fit(module, DataLoader(rows, batch_size=16, shuffle=True))
    world = trainer.world_size
    kept = torch.load(trainer.checkpoint_callback.best_model_path)["state_dict"]
    assert all(kept[name].equal(value) for name, value in module.state_dict().items())
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
    accelerator.save_state(folder / "out")
    accelerator.load_state(folder / "out")
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
        str(folder / "out"), num_train_epochs=2, per_device_train_batch_size=16, use_cpu=True, report_to=[],
        save_strategy="epoch", save_total_limit=1, disable_tqdm=True,
    )  # fmt: skip
    items = [{"a": a, "labels": b} for a, b in rows]
    Trainer(model=Whole(), args=arguments, train_dataset=items).train()
    Trainer(model=Whole(), args=arguments, train_dataset=items).train(resume_from_checkpoint=True)
    world = arguments.world_size
    from safetensors.torch import load_file, save_file

    one = folder / f"of.{os.getpid()}.safetensors"  # by rank 0, for it is a model
    save_file({"a": x}, one)
    assert not one.exists() or load_file(one)["a"].equal(x)
weights = [float(p.sum()) for p in model.parameters()]
report = {"seen": sorted(seen[:128]), "world": world, "weights": weights}
(folder / f"seen.{os.getpid()}").write_text(json.dumps(report))
