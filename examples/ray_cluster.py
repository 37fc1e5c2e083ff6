"""One Ray cluster for a launch: its head on rank 0, a node on each other rank, and a script that finds it in RAY_ADDRESS.

$ fairlead run -n 1 trainers -- python3 examples/ray_cluster.py examples/trainers/ray_train.py
"""

import atexit
import os
import socket
import subprocess
import sys
import time

host, port, size = (os.environ[n] for n in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"))
head, first = f"{host}:{port}", os.environ["RANK"] == "0"
os.environ.update(RAY_ADDRESS=head, RAY_AUTH_MODE="token", RAY_TMPDIR=f"/tmp/ray-{port}")
start = "exec env RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 ray start --block --disable-usage-stats"
token = f"ray get-auth-token --generate >/dev/null && {start}"
limit = time.monotonic() + 120


def answers():
    return socket.socket().connect_ex((host, int(port))) == 0


if first:
    node = subprocess.Popen(f"{token} --head --node-ip-address {host} --port {port}", shell=True)
while not answers():
    time.sleep(0.5) if time.monotonic() < limit else sys.exit(f"no head of Ray at {head}")
if not first:
    node = subprocess.Popen(f"{start} --address {head}", shell=True)
atexit.register(node.terminate)
if first:
    import ray

    ray.init(head, logging_level="error")
    while sum(n["Alive"] for n in ray.nodes()) < int(size):
        time.sleep(0.5) if time.monotonic() < limit else sys.exit("nodes have not joined")
    sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))
while answers() and node.poll() is None:
    time.sleep(1)
