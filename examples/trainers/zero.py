"""DeepSpeed as its documentation writes it: ``deepspeed.initialize()``, and no launcher of DeepSpeed's.

The first run compiles DeepSpeed's optimizer and collectives into ~/.cache/torch_extensions, which takes minutes.
"""

import deepspeed
import torch
import torch.distributed as dist

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 1},
}

deepspeed.init_distributed()
torch.manual_seed(dist.get_rank())  # each rank has rows of its own
weights = torch.arange(8.0)
rows = torch.randn(512, 8)
model = torch.nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
for _ in range(20):
    for batch in rows.split(16):
        loss = (engine(batch).squeeze() - batch @ weights).pow(2).mean()
        engine.backward(loss)
        engine.step()
found = [None] * dist.get_world_size()
dist.all_gather_object(found, [round(w, 4) for w in model.weight.detach().flatten().tolist()])
if dist.get_rank() == 0:
    equal = all(each == found[0] for each in found)
    print(
        f"loss {loss.item():.4f}; {'equal' if equal else 'other'} weights on {len(found)} ranks",
        flush=True,
    )
dist.destroy_process_group()
