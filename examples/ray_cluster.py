"""One Ray cluster for a launch: its head on rank 0, a node on each other rank, and a script that finds it in RAY_ADDRESS.

$ fairlead run -n 1 trainers -- python3 examples/ray_cluster.py examples/trainers/ray_train.py
"""

import os
import socket
import subprocess
import sys
import time

host, port, size = (os.environ[n] for n in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"))
head, first = f"{host}:{port}", os.environ["RANK"] == "0"
options = f"--head --node-ip-address {host} --port {port} --include-dashboard=false --temp-dir /tmp/ray-{port}"
start = "env RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 ray start --block --disable-usage-stats"
limit, code = time.monotonic() + 120, 0


def answers():
    return socket.socket().connect_ex((host, int(port))) == 0


if first:
    node = subprocess.Popen(f"{start} {options}".split())
while not answers():
    time.sleep(0.5) if time.monotonic() < limit else sys.exit(f"no head of Ray at {head}")
if first:
    import ray

    ray.init(head, logging_level="error")
    while sum(n["Alive"] for n in ray.nodes()) < int(size):
        time.sleep(0.5) if time.monotonic() < limit else sys.exit("nodes have not joined")
    code = subprocess.call([sys.executable, *sys.argv[1:]], env={**os.environ, "RAY_ADDRESS": head})
else:
    node = subprocess.Popen(f"{start} --address {head}".split())
    while answers() and node.poll() is None:
        time.sleep(1)
node.terminate()
node.wait()
sys.exit(code)
