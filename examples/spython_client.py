"""Ranks in containers that spython starts, on the host's MPI: fairlead makes the plan and prepares its files.

For programs that drive Apptainer through spython, which calls it `singularity`. From the top of the checkout:

    $ python examples/spython_client.py mpi-base
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
from mpi4py import MPI
world, version = MPI.COMM_WORLD, " ".join(MPI.Get_library_version().split()[:3])
print(f"rank {world.rank} of {world.size}: {version}, sum {world.allreduce(world.rank + 1)}")
"""

if "PLAN" in os.environ:  # a rank
    from spython.main import Client

    plan = json.loads(os.environ["PLAN"])
    options = [*plan["engine"]["options"], *(f"--env={n}={v}" for n, v in plan["env"].items())]
    binds = [f"{bind['source']}:{bind['target']}:ro" for bind in plan["binds"]]
    command = ["python3", "-c", PROGRAM]
    print(Client.execute(plan["image"]["path"], command, bind=binds, options=options, quiet=True))
else:
    words = ["-n", "2", sys.argv[1], "--", "python3"]
    subprocess.run(["fairlead", "run", "--dry-run", *words], check=True, stdout=subprocess.DEVNULL)
    text = subprocess.check_output(["fairlead", "explain", "--json", *words], text=True)
    engine, launcher = (json.loads(text)[part]["path"] for part in ("engine", "launcher"))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "singularity").symlink_to(engine)
        environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PLAN": text}
        # spython closes the descriptor by which Hydra's ranks would find each other: they use a port.
        ranks = [launcher, "-pmi-port", "-n", "2", sys.executable, __file__]
        subprocess.run(ranks, check=True, env=environ)
