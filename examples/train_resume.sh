#!/bin/sh
# A training that is cut, as a job is at its time limit, and goes on from its checkpoint: it ends with the same bits as
# one that was never cut. It takes minutes on two cores. From the top of the checkout:
#
#     $ sh examples/train_resume.sh
#
# So few samples teach little: exit code 1 says that the linear model was not beaten, which does not matter here.
set -eu

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

train() { # NAME OPTIONS...: a training in the folder of that name, with its JSON output next to it
    name=$1
    shift
    fairlead train cosmoflow -n 2 --train-samples 400 --epochs 2 --json -o "$folder/$name" "$@" \
        >"$folder/$name.json" || [ $? = 1 ]
}

train whole --max-seconds 600
train cut --max-seconds 2 --checkpoint-steps 5
ls "$folder/cut/checkpoints"
train cut --max-seconds 600 --resume

python3 - "$folder/whole.json" "$folder/cut.json" <<'END'
import json, sys

whole, cut = (json.load(open(path))["result"]["all"] for path in sys.argv[1:])
print(f"went on after step {cut['resumed_from']} of {len(cut['loss'])}")
digests = {weights["final"] for one in (whole, cut) for weights in one["weights"]}
print("the same bits" if len(digests) == 1 else "OTHER BITS", "on all ranks, cut or not")
sys.exit(len(digests) != 1)
END
