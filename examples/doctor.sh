#!/bin/sh
# Do two nodes differ in what matters for containers? `fairlead doctor --json` on each, then the findings
# that only one of them has. On a cluster the two lines are a login node's and a job's:
#
#     fairlead doctor --json >login.json; srun -N1 -n1 fairlead doctor --json >node.json
#
# Here the second runs with a setting that breaks jobs, so that there is a difference. From the top
# of the checkout:
#
#     $ sh examples/doctor.sh
set -eu

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
# Exit code 1: something stops fairlead there; the findings say what.
fairlead doctor --json >"$folder/login.json" || true
I_MPI_FABRICS=shm fairlead doctor --json >"$folder/node.json" || true

python3 - "$folder/login.json" "$folder/node.json" <<'END'
import json, sys

ill = ("warning", "error")
login, node = (json.load(open(path))["findings"] for path in sys.argv[1:])
seen = {(f["check"], f["what"]) for f in login}
for found in node:
    if found["severity"] in ill and (found["check"], found["what"]) not in seen:
        print(f"only there: {found['check']}: {found['what']}")
        print(f"next: {found['remedy']}")
END
