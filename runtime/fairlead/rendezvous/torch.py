"""PyTorch: ``torch.distributed.init_process_group()`` by ``env://``, and what is built on it.

Sources: torch/distributed/rendezvous.py (``_env_rendezvous_handler``: all four of RANK, WORLD_SIZE, MASTER_ADDR,
MASTER_PORT); Accelerate's ``PartialState`` and Lightning's ``LightningEnvironment`` read LOCAL_RANK as well, the
latter NODE_RANK or GROUP_RANK. Gloo listens where the host name leads, which is the loopback on many machines.
"""

from __future__ import annotations

from fairlead.rendezvous.model import Framework

FRAMEWORK = Framework(
    name="torch",
    title="PyTorch",
    variables={
        "RANK": "$w_rank",
        "WORLD_SIZE": "$w_size",
        "LOCAL_RANK": "$w_local",
        "LOCAL_WORLD_SIZE": "$w_locals",
        "GROUP_RANK": "$w_node",
        "NODE_RANK": "$w_node",
        "MASTER_ADDR": "$w_first",
        "MASTER_PORT": "$w_port0",
        "GLOO_SOCKET_IFNAME": "$w_interface",
        "OMP_NUM_THREADS": "$w_cores",
    },
    why="torch.distributed, Accelerate, Lightning and DeepSpeed read them",
)
