#!/bin/sh
# One trace of a whole run: what each rank and the host did, and when. From the top of the checkout:
#
#     $ sh examples/trace.sh
#
# Give FILE instead of a temporary one to open it in ui.perfetto.dev: sh examples/trace.sh run.json.gz
set -eu

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cat >"$folder/steps.py" <<'END'
import time
import numpy as np
from fairlead import comm

ranks = comm.init()
for step in range(5):
    with comm.span("simulate", step=step):  # your phase
        time.sleep(0.01 * (1 + ranks.rank))
    ranks.aggregate([np.ones(100_000)])
comm.finalize()
END

file=${1:-$folder/run.json.gz}
fairlead run -n 2 -B "$folder" --timeline "$file" mpi-base -- python3 "$folder/steps.py"

python3 - "$file" <<'END'
import collections, gzip, json, sys

events = json.load(gzip.open(sys.argv[1]))["traceEvents"]
names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
spent = collections.Counter()
for event in events:
    if event["ph"] == "X":
        spent[names[event["pid"]], event["name"]] += event["dur"] / 1000
for (process, name), ms in sorted(spent.items()):
    print(f"{process:16} {name:28} {ms:9.1f} ms")
END
