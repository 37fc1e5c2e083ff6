#!/bin/sh
# Which MPI does a container run on that fairlead has not started itself? `python3 -m fairlead.prove`
# tells, as every rank of a job, under any engine and launcher. Here the line comes from --dry-run, as
# it would stand in a job script. Run it from the top of the checkout:
#
#     $ sh examples/prove.sh mpi-base
set -eu

line=$(fairlead run --dry-run -n 2 "$1" -- python3 -m fairlead.prove)
# 0: as many ranks as promised, one MPI, the same on each; 122: not so, with a row for each rank.
eval "$line"
