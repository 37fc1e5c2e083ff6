"""Trains data-parallel with a framework as its documentation shows it, and prints ``RANK of SIZE: DIGEST OF WEIGHTS``.

The only argument is the framework. Each rank has data and first weights of its own, so that only an exchange can make
the digests equal.
"""

import hashlib
import os
import sys

import numpy as np


def digest(weights):
    flat = np.concatenate([np.asarray(w, np.float32).ravel() for w in weights])
    return hashlib.sha256(flat.tobytes()).hexdigest()[:12]


def say(rank, size, weights):
    # In one write: lines of two ranks can run into each other.
    os.write(1, f"{rank} of {size}: {digest(weights)}\n".encode())


def rows(seed):
    return np.random.default_rng(seed).standard_normal((64, 8)).astype(np.float32)


def _network():
    import torch

    torch.manual_seed(os.getpid())
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def _of_torch(rank, size, model):
    import torch.distributed as dist

    say(rank, size, [p.detach().cpu().numpy() for p in model.parameters()])
    # Without it, one process in ten ends with SIGABRT, in torch's own threads.
    dist.destroy_process_group()


def _steps(model, rank):
    import torch

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in torch.from_numpy(rows(rank)).split(16):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()


def ddp():
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(_network())
    _steps(model, dist.get_rank())
    _of_torch(dist.get_rank(), dist.get_world_size(), model)


def fsdp():
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = _network()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    _steps(model, dist.get_rank())
    whole = [p.full_tensor().detach().numpy() for p in model.parameters()]
    assert all(torch.isfinite(torch.from_numpy(w)).all() for w in whole)
    say(dist.get_rank(), dist.get_world_size(), whole)
    dist.destroy_process_group()


def accelerate():
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.utils.data.DataLoader(torch.from_numpy(rows(1)), batch_size=8)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for batch in data:
        optimizer.zero_grad()
        accelerator.backward(model(batch).pow(2).mean())
        optimizer.step()
    _of_torch(accelerator.process_index, accelerator.num_processes, model)


def lightning():
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = _network()

        def training_step(self, batch, _):
            return self.inner(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    nodes = int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=nodes, max_epochs=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(torch.from_numpy(rows(1)))
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=8))
    _of_torch(trainer.global_rank, trainer.world_size, trainer.model)


def deepspeed():
    import deepspeed
    import torch
    import torch.distributed as dist

    model = _network()
    config = {
        "train_batch_size": 16, "optimizer": {"type": "Adam", "params": {"lr": 0.1}}, "zero_optimization": {"stage": 1},
    }  # fmt: skip
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    each = engine.train_micro_batch_size_per_gpu()
    for batch in torch.from_numpy(rows(dist.get_rank())).split(each):
        engine.backward(engine(batch).pow(2).mean())
        engine.step()
    _of_torch(dist.get_rank(), dist.get_world_size(), engine.module)


def ray():
    import tempfile
    from pathlib import Path

    import torch.distributed as dist
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer, prepare_model

    folder = tempfile.mkdtemp()  # that both hosts see
    size = 2

    def loop():
        model = prepare_model(_network())
        _steps(model, dist.get_rank())
        found = digest([p.detach().numpy() for p in model.parameters()])
        Path(folder, str(dist.get_rank())).write_text(f"of {dist.get_world_size()}: {found}")

    workers = ScalingConfig(num_workers=size, placement_strategy="SPREAD")
    TorchTrainer(loop, scaling_config=workers, run_config=RunConfig(storage_path=folder)).fit()
    for rank in range(size):
        os.write(1, f"{rank} {Path(folder, str(rank)).read_text()}\n".encode())


def trainer():
    import tempfile

    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = _network()

        def forward(self, x):
            return {"loss": self.inner(x).pow(2).mean()}

    arguments = TrainingArguments(
        tempfile.mkdtemp(), use_cpu=True, num_train_epochs=1, per_device_train_batch_size=8, report_to=[],
        save_strategy="no", disable_tqdm=True, remove_unused_columns=False, logging_strategy="no",
    )  # fmt: skip
    made = Trainer(
        Model(), arguments, train_dataset=[{"x": row} for row in torch.from_numpy(rows(1))]
    )
    made.train()
    _of_torch(arguments.process_index, arguments.world_size, made.model)


def jax():
    import jax

    jax.distributed.initialize()
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("rank",))
    mine = rows(jax.process_index())
    inputs = jax.make_array_from_process_local_data(
        NamedSharding(mesh, PartitionSpec("rank")), mine
    )
    weights = jax.device_put(jnp.ones(8), NamedSharding(mesh, PartitionSpec()))
    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w))
    for _ in range(3):
        weights = step(weights, inputs)
    say(jax.process_index(), jax.process_count(), [weights.addressable_data(0)])


def multiworker():
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
        weights = tf.Variable(tf.ones((8, 1)))
    del model

    @tf.function
    def step(x):
        def one(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weights) ** 2)
            gradient = tape.gradient(loss, weights)
            mean = tf.distribute.get_replica_context().all_reduce("mean", gradient)
            weights.assign_sub(0.1 * mean)

        strategy.run(one, (x,))

    rank = strategy.cluster_resolver.task_id
    for _ in range(3):
        step(tf.constant(rows(rank)))
    say(rank, strategy.num_replicas_in_sync, [weights.numpy()])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
