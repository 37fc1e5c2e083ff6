#!/bin/sh
# Data copied to the node before a command, results brought back after it; all of it verified.
#   $ sh examples/stage.sh
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/train"
for part in 0 1 2 3; do
    dd if=/dev/urandom of="$work/train/part$part" bs=1M count=5 status=none
done

fairlead run -n 2 --stage-to memory --stage-in "$work/train" --stage-out sums:"$work/sums" mpi-base -- python3 -c '
import os, zlib
from mpi4py import MPI
rank, stage = MPI.COMM_WORLD.rank, os.environ["FAIRLEAD_STAGE"]
os.makedirs(f"{stage}/sums", exist_ok=True)
for part in range(rank, 4, 2):  # each rank reads its own parts
    with open(f"{stage}/train/part{part}", "rb") as data, open(f"{stage}/sums/{part}", "w") as out:
        print(zlib.crc32(data.read()), file=out)
'

# The same sums of the files where they came from.
for part in 0 1 2 3; do
    python3 -c 'import sys, zlib; print(zlib.crc32(open(sys.argv[1], "rb").read()))' "$work/train/part$part" |
        cmp - "$work/sums/$part"
done
echo "the command read what lies in $work/train, and 4 results came back"
