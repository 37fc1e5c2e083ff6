"""Trains one configuration after another in one process: ``python3 tune_server.py FOLDER``.

A search over hundreds of small trainings would spend most of its time on loading a framework. What a training costs is
counted in samples, so that it does not matter.
"""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import keras

from fairlead import comm
from fairlead.base.serde import from_json, to_json
from fairlead.ml.train import worker
from fairlead.ml.train.events import EventLog
from fairlead.ml.train.model import WorkerConfig

folder = Path(sys.argv[1])
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # while it trains, it ends the training
ranks = comm.init()
(folder / "server.pid").write_text(str(os.getpid()))
while not (folder / "stop").exists():
    waiting = sorted(folder.glob("*.ask"))
    if not waiting:
        time.sleep(0.005)
        continue
    (ask,) = waiting[:1]
    config = from_json(WorkerConfig, json.loads(Path(ask.read_text()).read_text()))
    ask.unlink()
    try:
        result = worker.work(config, ranks, EventLog(config.events))
        config.result.with_suffix(".part").write_text(json.dumps(to_json(result)))
        config.result.with_suffix(".part").replace(config.result)
        (folder / ask.with_suffix(".done").name).touch()
    except SystemExit:
        (folder / ask.with_suffix(".ended").name).touch()
    except Exception:
        traceback.print_exc()
        (folder / ask.with_suffix(".failed").name).touch()
    keras.backend.clear_session()
comm.finalize()
