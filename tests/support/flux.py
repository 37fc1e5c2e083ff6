"""``flux batch`` of Flux: its Python is on PyPI, its libraries and its broker are in no package registry.

The libraries are stubs here, which the reading of a command does not need. The script of the job runs at once, as the
broker would start it; what it starts by ``flux run`` is Hydra's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.system import hosts

from fairlead.base.paths import atomic_folder, locked

_PINS = ("flux-python==0.88.0", "ply==3.11")
_FLUX = """\
#!/bin/sh
command=$1
case $command in
version) echo "commands: flux-core 0.88.0" ;;
run)
    while shift; do
        case $1 in
        --ntasks=*) ranks=${{1#*=}} ;;
        -o) shift ;;
        -*) ;;
        *) break ;;
        esac
    done
    exec {mpiexec} -n "$ranks" "$@"
    ;;
batch)
    LD_LIBRARY_PATH={folder}/lib PYTHONPATH={folder} {python} {folder}/batch.py "$@" >jobspec.json || exit
    {python} -c 'import json; print(json.load(open("jobspec.json"))["attributes"]["system"]["files"]["script"]["data"])' >job
    FLUX_URI=local:///tests exec sh job
    ;;
esac
"""
_BATCH = """\
import sys
from flux import debugged
debugged.get_mpir_being_debugged = int  # a variable of the library
from flux.cli.batch import BatchCmd
sys.argv = ["flux-batch", "--dry-run", *sys.argv[2:]]
command = BatchCmd("flux batch")
command.main(command.parser.parse_args(sys.argv[1:]))
"""


def _kept() -> Path:
    folder = hosts.KEPT / "-".join(["flux", *re.findall(r"[\d.]+", " ".join(_PINS))])
    with locked(hosts.KEPT / ".lock"):
        if not folder.is_dir():
            with atomic_folder(folder) as tree:
                pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tree)
                subprocess.run([*map(str, pip), *_PINS], check=True)
                (tree / "lib").mkdir()
                for module in (tree / "_flux").glob("*.so"):
                    _stub(module, tree / "lib")
                (tree / "batch.py").write_text(_BATCH)
    return folder


def _stub(module: Path, folder: Path) -> None:
    """The library of Flux that a module needs; each function of it returns an empty text."""

    def listed(*words: str | Path) -> str:
        return subprocess.run([*map(str, words)], capture_output=True, text=True, check=True).stdout

    [name] = re.findall(r"\[(libflux-\S+)\]", listed("readelf", "-d", module))
    names = re.findall(r"^ +U ((?!_?Py)[^@\s]+)$", listed("nm", "-D", module), re.MULTILINE)
    code = "".join(f'char *{function}(void) {{ return ""; }}\n' for function in names)
    subprocess.run(
        ["cc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, "-xc", "-"],
        input=code, text=True, check=True,
    )  # fmt: skip


def install(program: Path, folder: Path, python: str, mpiexec: Path) -> None:
    """``flux`` as ``program``, with what it is made of in ``folder``."""
    shutil.copytree(_kept(), folder)
    program.write_text(_FLUX.format(mpiexec=mpiexec, folder=folder, python=python))
    program.chmod(0o755)
