"""One Ray cluster for a launch: its head on rank 0, a node on each other rank, and a script on it.

    $ fairlead run -n 1 trainers -- python3 examples/ray_cluster.py examples/trainers/ray_train.py

On several nodes: ``fairlead run -N 4 --ranks-per-node 1``, since Ray starts the processes of a node itself. The script
finds the cluster in RAY_ADDRESS, where ``ray.init()`` and Ray Train look. ``examples/trainers`` is an image with Ray.
"""

import os
import socket
import subprocess
import sys
import time

LIMIT_S = 120  # for nodes to join

address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
named = ":".join(map(str, address))
size = int(os.environ["WORLD_SIZE"])


def start(*options):
    """A Ray node that ends with this process."""
    words = ["ray", "start", "--block", "--disable-usage-stats", *options]
    at_once = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}  # its work is done by then
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, **at_once})


def answers():
    try:
        socket.create_connection(address, 5).close()
    except OSError:
        return False
    return True


def wait(done, what):
    end = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > end:
            sys.exit(f"{what} within {LIMIT_S} s")
        time.sleep(0.5)


def joined():
    import ray

    ray.init(named, logging_level="error")
    wait(
        lambda: sum(n["Alive"] for n in ray.nodes()) >= size, f"fewer than {size} nodes have joined"
    )
    ray.shutdown()


if os.environ["RANK"] == "0":
    node = start(
        "--head",
        "--node-ip-address",
        address[0],
        "--port",
        str(address[1]),
        "--include-dashboard=false",
    )
    try:
        wait(answers, f"the head does not answer at {named}")
        joined()
        code = subprocess.call(
            [sys.executable, *sys.argv[1:]], env={**os.environ, "RAY_ADDRESS": named}
        )
    finally:
        node.terminate()
        node.wait()
    sys.exit(code)
wait(answers, f"the head does not answer at {named}")
node = start("--address", named)
while node.poll() is None and answers():
    time.sleep(1)
node.terminate()
node.wait()
