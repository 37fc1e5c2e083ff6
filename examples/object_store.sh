#!/bin/sh
# A data set in a bucket: packed, published, used by a run whose results go back to it, verified and synced.
# Needs a store: AWS_ENDPOINT_URL and credentials in the environment or ~/.aws, and BUCKET, which exists.
#   $ BUCKET=lab sh examples/object_store.sh
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/numbers"
for n in 0 1 2 3 4 5 6 7; do
    echo "$n" >"$work/numbers/$n.txt"
done

fairlead data pack "$work/numbers" "$work/shards"
fairlead data sync "$work/shards" "s3://$BUCKET/numbers"
fairlead data verify "s3://$BUCKET/numbers"

fairlead run -n 2 --stage-to "$work" --stage-in "s3://$BUCKET/numbers" --stage-out "sums:s3://$BUCKET/sums" mpi-base -- \
    python3 -c '
import os, tarfile
from mpi4py import MPI
comm, stage = MPI.COMM_WORLD, os.environ["FAIRLEAD_STAGE"]
with tarfile.open(f"{stage}/numbers/data-000000.tar") as shard:
    numbers = [int(shard.extractfile(member).read()) for member in shard]
total = comm.allreduce(sum(numbers[comm.rank :: comm.size]))
if comm.rank == 0:
    os.makedirs(f"{stage}/sums")
    with open(f"{stage}/sums/total", "w") as out:
        out.write(str(total))
'

fairlead data sync "s3://$BUCKET/sums" "$work/sums"
echo "the sum of the numbers in s3://$BUCKET/numbers is $(cat "$work/sums/total")"
