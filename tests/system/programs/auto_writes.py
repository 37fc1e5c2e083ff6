"""A serial torch script that writes as scripts do. Argument 1 is the folder for what it writes; it may be there already."""

import csv
import datetime
import json
import logging
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

out = Path(sys.argv[1])
if out.exists():
    shutil.rmtree(out)
os.makedirs(out)
(out / "parts").mkdir()
try:
    os.mkdir(out)
except FileExistsError:
    (out / "there").mkdir(exist_ok=True)
logging.basicConfig(filename=out / "log.txt", level=logging.INFO, format="%(message)s")
rows = TensorDataset(torch.randn(64, 4))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
table = open(out / "steps.csv", "w")
steps = csv.writer(table)
for epoch in range(3):
    for (a,) in DataLoader(rows, 8, shuffle=True):
        optimizer.zero_grad()
        loss = (model(a) ** 2).mean()
        loss.backward()
        optimizer.step()
        steps.writerow([epoch, float(loss)])
        table.flush()
    logging.info("epoch %d", epoch)
    with open(out / "model.pt", "wb") as f:
        torch.save(model.state_dict(), f)
    with open(out / "model.pt", "rb") as f:
        model.load_state_dict(torch.load(f))
    model.load_state_dict(torch.load(out / "model.pt"))
    with open(out / "model.tmp", "wb") as f:
        pickle.dump(model, f)
    os.replace(out / "model.tmp", out / "model.pkl")
    with open(out / "model.pkl", "rb") as f:
        model.load_state_dict(pickle.load(f).state_dict())
    np.savez(out / "parts" / "a.npz", a=np.arange(10.0))
    assert np.load(out / "parts" / "a.npz")["a"].sum() == 45
    with open(out / "history.jsonl", "a") as f:
        f.write(json.dumps({"epoch": epoch}) + "\n")
    assert len((out / "history.jsonl").read_text().splitlines()) == epoch + 1
    shutil.copy(out / "model.pt", out / f"model.{epoch}.pt")
    if epoch:
        os.remove(out / f"model.{epoch - 1}.pt")
kept = np.memmap(out / "kept.bin", dtype="f4", mode="w+", shape=(1000,))
kept[:] = 3
kept.flush()
assert float(np.memmap(out / "kept.bin", dtype="f4", mode="r").sum()) == 3000
run = out / f"{datetime.datetime.now():%Y%m%d-%H%M%S.%f}"  # another on each rank
os.makedirs(run)
torch.save(model.state_dict(), run / "best.pt")
model.load_state_dict(torch.load(run / "best.pt"))
(run / "log.txt").write_text("once")
assert (run / "log.txt").read_text() == "once"
torch.save(model.state_dict(), out / "last.pt")
scripted = torch.jit.script(model)
for write in (scripted.save, lambda path: torch.jit.save(scripted, path)):
    write(str(out / "scripted.pt"))
    torch.jit.load(str(out / "scripted.pt"))
with open(out / "last.pt", "rb") as f:
    torch.load(f)
(out / f"of.{os.getpid()}").write_text("this rank's")
