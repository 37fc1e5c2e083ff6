"""A Ctrl-C that comes while rank 0 waits for rank 1 in an aggregation, eager and inside of a function.

Rank 0 prints what it ended by, and after how many seconds.
"""

import json
import os
import signal
import threading
import time

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
import tensorflow as tf

from fairlead import comm
from fairlead.comm import tensorflow as front
from fairlead.comm.native_core import library_path

ranks = comm.init()
front.carrier()  # collective
teams = {"eager": ranks.team(), "graph": ranks.team()}
path, _ = library_path()
seen = {"backend": ranks.backend, "library": path, "carrier": str(front.carrier())}
for name, team in teams.items():
    if ranks.rank == 1:
        continue

    def wait(team=team):
        return front.aggregate(tf.ones(3), team)

    # Traced before, so that the signal comes while it waits.
    call = tf.function(wait).get_concrete_function() if name == "graph" else wait
    threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.perf_counter()
    try:
        call()
    except BaseException as exc:
        seen[name] = [type(exc).__name__, time.perf_counter() - begun]
if ranks.rank == 0:
    print(json.dumps(seen), flush=True)
else:
    time.sleep(8)
comm._comm = None  # the call that was interrupted leaves no meeting at the end; MPI ends by mpi4py
