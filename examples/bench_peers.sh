# Which library trains fastest here? The same network by fairlead, by parameter servers and by
# TensorFlow's own strategy, in turns, every answer checked. Tiny inputs: leave out --quick to measure.
#
#   $ sh examples/bench_peers.sh
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# With tensorflow-horovod and pytorch built too, leave out --peers.
fairlead build tensorflow
python -m benchmarks.peers hepcnn -n 2 --quick --rounds 1 --peers fairlead,mirrored,ps-1 -o "$folder"

# What a program reads: every sample, and the medians with their intervals.
python3 - "$folder/bench-peers.json" <<'END'
import json, sys
for peer in json.load(open(sys.argv[1]))["peers"]:
    print(peer["name"], peer["outcome"], f"{peer['samples_per_s']['value']:.3g} samples/s")
END
