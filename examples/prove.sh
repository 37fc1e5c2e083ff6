#!/bin/sh
# Which MPI does a container use that fairlead did not start? `python3 -m fairlead.prove`, as every rank
# of a job, answers that under any engine and launcher. Here the line comes from --dry-run, as
# in a job script. Run it from the top of the checkout:
#
#     $ sh examples/prove.sh mpi-base
set -eu

line=$(fairlead run --dry-run -n 2 "$1" -- python3 -m fairlead.prove)
# The line knows the planned MPI; elsewhere --expects FILE names it, without which the answer is an observation.
# 0: as many ranks as promised, one MPI, the same on each; 122: not so, with a row for each rank.
eval "$line"
