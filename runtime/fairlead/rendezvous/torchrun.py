"""torchrun, one on each node: its agents meet at rank 0's, and start the node's processes.

Every option of torchrun is also a variable (``torch.distributed.argparse_util``). ``is_host`` and PET_LOCAL_ADDR keep
it from resolving host names, which decide otherwise who opens the store, and what the workers' MASTER_ADDR is
(pytorch#137402). Workers that share the agents' store find the addresses of those before them there after a restart on
another node, and fail over Gloo (seen with torch 2.13); TORCH_DISABLE_SHARE_RDZV_TCP_STORE gives each attempt a store of
its own. Source: torch/distributed/run.py, torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py.
"""

from __future__ import annotations

from fairlead.rendezvous.model import Framework

FRAMEWORK = Framework(
    name="torchrun",
    title="torchrun",
    variables={
        "PET_NNODES": "$w_size",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "$w_first_bracketed:$w_port0",
        "PET_RDZV_ID": "$w_run",
        "PET_RDZV_CONF": "is_host=$w_is_first",
        "PET_LOCAL_ADDR": "$w_here",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "GLOO_SOCKET_IFNAME": "$w_interface",
    },
    why="torchrun takes its options from them; it is started once on each node",
    launchers=("torchrun", "torch.distributed.run", "torch.distributed.launch"),
)
