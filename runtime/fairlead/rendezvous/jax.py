"""JAX: ``jax.distributed.initialize()``.

JAX itself reads JAX_COORDINATOR_ADDRESS; rank and size it takes from clusters that it knows, of which Hydra, PALS,
Flux and Open MPI 5 are none. The hook in the container adds a cluster that reads the two others, whose names are
MaxText's. The hook also gives JAX's Gloo the interface. Source: jax/_src/distributed.py, jax/_src/clusters/cluster.py.
"""

from __future__ import annotations

from fairlead.rendezvous.model import Framework

FRAMEWORK = Framework(
    name="jax",
    title="JAX",
    variables={
        "JAX_COORDINATOR_ADDRESS": "$w_first_bracketed:$w_port1",
        "JAX_COORDINATOR_PORT": "$w_port1",
        "JAX_NUM_PROCESSES": "$w_size",
        "JAX_PROCESS_ID": "$w_rank",
        "GLOO_SOCKET_IFNAME": "$w_interface",
    },
    why="jax.distributed.initialize() reads them",
)
