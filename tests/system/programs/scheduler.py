"""A scheduler and its launcher that take exactly what their documentation names, and run it on this machine.

Called as ``scheduler.py KIND REAL WORDS``: ``qsub``, ``bsub``, ``flux`` and the like read a script's directives by
``tests/grammars.py`` and run it with the variables that a job of theirs has; ``mpiexec``, ``aprun``, ``jsrun`` and
``flux run`` read their options by it and have REAL, an MPI's own launcher, start the ranks. What is not in the
grammar ends with exit code 64.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests import grammars


def submit(kind: str, text: str) -> int:
    said = vars(grammars.directives(kind, text))
    with tempfile.TemporaryDirectory() as work:
        script, hosts = Path(work, "script"), Path(work, "hosts")
        script.write_text(text)
        script.chmod(0o755)
        variables = {}
        if kind == "pbs":
            (select,) = [r for r in said["resources"] if r.startswith("select=")]
            lines = []
            for number, chunk in enumerate(select.partition("=")[2].split("+")):
                count, *parts = chunk.split(":")
                ranks = int(dict(p.split("=") for p in parts)["mpiprocs"])
                lines += [f"x{number}c{i}" for i in range(int(count)) for _ in range(ranks)]
            hosts.write_text("\n".join(lines) + "\n")
            variables = {"PBS_JOBID": "1.test", "PBS_NODEFILE": hosts, "PBS_O_WORKDIR": Path.cwd()}
        elif kind == "lsf":
            nodes = [f"a{i}" for i in range(said["nnodes"])]
            hosts.write_text("batch1\n" + "".join(f"{node}\n" * 42 for node in nodes))
            variables = {"LSB_JOBID": "1", "LSB_DJOB_HOSTFILE": hosts}
        elif kind == "cobalt":
            hosts.write_text("".join(f"nid{i}\n" for i in range(said["n"])))
            variables = {
                "COBALT_JOBID": "1", "COBALT_NODEFILE": hosts, "COBALT_JOBSIZE": said["n"],
            }  # fmt: skip
        else:
            variables = {"FLUX_URI": "local:///tmp/none", "FLUX_JOB_NNODES": said["nodes"]}
        # A job has little of the shell that sent it.
        kept = {name: os.environ[name] for name in ("PATH", "HOME")}
        given = {name: str(value) for name, value in variables.items()}
        return subprocess.call([script], env={**kept, **given}, cwd="/" if kind == "pbs" else None)


def main(kind: str, real: str, words: list[str]) -> int:
    if kind == "flux-any":
        kind = "flux-batch" if words[:1] == ["batch"] else "flux"
        words = words[1:] if kind == "flux-batch" else words
    if kind in ("pbs", "lsf", "cobalt", "flux-batch"):
        if kind == "cobalt" and words[:2] != ["--mode", "script"]:
            raise grammars.Refused("qsub of Cobalt runs a script only with --mode script")
        text = sys.stdin.read() if kind == "lsf" else Path(words[-1]).read_text()
        return submit(kind.removesuffix("-batch"), text)
    said = vars(grammars.launcher(kind, tuple(words)))
    ranks = said.get("ntasks") or said["n"]
    crowd = ["--oversubscribe"] if kind == "jsrun" else []
    # MPIs know some schedulers too, and would look for nodes that are none.
    foreign = ("PBS_", "COBALT_", "LSB_", "FLUX_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    os.execve(real, [real, *crowd, "-n", str(ranks), *placed(said, ranks)], environ)


def placed(said: dict, ranks: int) -> list[str]:
    """A rank's words on its node, which is a host name here."""
    each = said.get("ppn") or said.get("N") or said.get("r")
    if said.get("nodes"):
        each = -(-ranks // said["nodes"])
    if not each:
        return said["inner"]
    name = f'hostname "node$((${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}} / {each}))" && exec "$@"'
    return ["unshare", "--uts", "/bin/sh", "-c", name, "sh", *said["inner"]]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
    except grammars.Refused as refused:
        print(refused, file=sys.stderr)
        sys.exit(64)
