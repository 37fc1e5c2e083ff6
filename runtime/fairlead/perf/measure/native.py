"""Launches without a container: the same programs by a Python of the host, over the MPI that the plan swaps in.

It is what a container is compared with. The Python needs NumPy and mpi4py, for trainings TensorFlow or torch, Keras and
h5py as well; fairlead's own modules come along.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import fairlead
from fairlead import native
from fairlead.base.errors import fail, os_error_as
from fairlead.base.paths import cache_dir
from fairlead.launch import launch as launching
from fairlead.launch.launch import CommandLine
from fairlead.launch.run_folder import new_run_folder
from fairlead.launchers import registry
from fairlead.ml.train.host import WORKER
from fairlead.ml.train.runner import Runner, RunOutcome
from fairlead.ml.train.session_runner import tail
from fairlead.mpi.host import HostMpi
from fairlead.session.model import Prepared
from fairlead.session.recorder import Recorder

# Prints which of the modules that every program needs are absent.
_LACKING = """
import importlib.util, json
print(json.dumps([n for n in ("numpy", "mpi4py") if not importlib.util.find_spec(n)]))
"""


def check(python: Path) -> None:
    """Checks that a Python of the host can run ranks.

    Raises:
        FairleadError: it cannot be run, or has no NumPy or no mpi4py.
    """
    command = [str(python), "-c", _LACKING]
    try:
        with os_error_as("validate-native-unstartable", python=python):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        lacking = json.loads(done.stdout)
    except subprocess.CalledProcessError as exc:
        output = exc.stderr.strip().rpartition("\n")[2]
        raise fail(
            "validate-native-exit-code", python=python, returncode=exc.returncode, output=output
        ) from None
    except subprocess.TimeoutExpired:
        raise fail("validate-native-timeout", python=python) from None
    except ValueError:
        raise fail("validate-native-not-python", python=python) from None
    if lacking:
        install = f"{python} -m pip install numpy mpi4py, and tensorflow keras h5py for trainings"
        raise fail(
            "validate-native-lacks-package",
            python=python,
            lacking=" and no ".join(lacking),
            install=install,
        )


def runner(
    prepared: Prepared, mpi: HostMpi, python: Path, log: Path, recorder: Recorder | None = None
) -> Runner:
    """A runner that launches every command by ``python`` on this host.

    Args:
        mpi: whose library mpi4py shall open.
        log: file that all output of the ranks is added to.
        recorder: of a timeline, in which the trainings among the launches are.
    """
    cache, launcher, shape = cache_dir(), prepared.plan.launcher, prepared.plan.request.shape
    core = native.path_of(native.CORE, cache)
    environ = {
        "PYTHONPATH": str(_modules_folder(cache)),
        "PYTHONNOUSERSITE": "1",
        # mpi4py looks next to Python first; this names the file.
        "MPI4PY_LIBMPI": mpi.library.path,
        **({"FAIRLEAD_COMM_LIBRARY": str(core)} if core.is_file() else {}),
    }

    def run(ranks: int, command: Sequence[str], binds: Sequence[Path]) -> RunOutcome:
        words = (str(python), *command[1:])
        folder = new_run_folder(cache)
        inner = launching.recorded(words, str(folder), "", launcher.kind)
        whole = registry.words(launcher, shape.of(ranks), inner)
        timeline = recorder.launch() if recorder and WORKER in command else None
        more = timeline.native_env if timeline else {}
        line = CommandLine(whole.argv, {**environ, **more, **whole.environ}, kind=launcher.kind)
        with log.open("ab") as stream:
            start = stream.tell()
            stream.write(f"$ {' '.join(words)}\n".encode())
            stream.flush()
            if timeline:
                timeline.begun()
            done = launching.launch(
                line, folder, streams=launching.Streams(stream, stream, subprocess.DEVNULL)
            )
        if timeline:
            timeline.ended()
        return RunOutcome(done.code, tail(log, start), launching.killed(done, {}))

    return run


def _modules_folder(cache: Path) -> Path:
    """A folder with fairlead and nothing else: what lies next to it here is for another Python."""
    folder = cache / "native-modules"
    folder.mkdir(parents=True, exist_ok=True)
    package = Path(fairlead.__file__).parent
    link = folder / "fairlead"
    if not link.is_symlink() or link.readlink() != package:
        fresh = folder / f".fairlead.{os.getpid()}"
        fresh.symlink_to(package)
        fresh.replace(link)
    return folder
