"""What the documentation of Cray's plugin and public user code show of ``dl_comm``, on mpi4py.

A site's own could not be had. This one keeps to its rules, and ends a program that does not: ``init`` before
``average``, ``config_team`` before too, arrays of float32 no longer than what ``init`` was told, ``finalize``
once. How often it was called is said at the end.
"""

import os
import sys

import numpy as np

__version__ = "23.09.1"
_state = {"team": False, "size": 0, "averages": 0, "barriers": 0}


def init_mpi():
    from mpi4py import MPI

    _state["world"] = MPI.COMM_WORLD.Dup()


def init(nthreads_per_team, nteams, model_size, framework):
    assert (nthreads_per_team, nteams, framework) == (1, 1, "tensorflow") and not _state["size"]
    _state["size"] = model_size


def config_team(team, transition_alg, ksteps, max_steps, verbosity, perf_freq):
    assert team == 0 and transition_alg == 0 and 0 < max_steps <= ksteps < 1 << 31 and perf_freq > 0
    _state["team"] = True


def average(array):
    assert _state["size"] and _state["team"], "before init and config_team"
    assert array.dtype == np.float32 and array.flags.c_contiguous and array.size <= _state["size"]
    if os.environ.get("PLUGIN_IS_ALONE"):
        return
    from mpi4py import MPI

    _state["world"].Allreduce(MPI.IN_PLACE, array, op=MPI.SUM)
    array /= _state["world"].size
    _state["averages"] += 1


def barrier():
    _state["world"].Barrier()
    _state["barriers"] += 1


def get_rank():
    return _state["world"].rank


def get_nranks():
    return _state["world"].size


def finalize():
    world = _state.pop("world")
    if world.rank == 0:
        said = f"site's plugin: {_state['averages']} averages, {_state['barriers']} barriers"
        sys.stderr.write(f"{said}\n")
    world.Free()
