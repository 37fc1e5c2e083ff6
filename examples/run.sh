#!/bin/sh
# For whoever keeps a job script of their own: `--dry-run` prints the line that `fairlead run` would
# execute, and what the line binds is there afterwards. It is plain shell: variables, the launcher,
# the engine, the image, the command. Run it from the top of the checkout:
#
#     $ sh examples/run.sh
#
# The line holds paths of the machine it was printed on. Pasted, it proves itself in fewer words than
# `fairlead run` has: rank 0 says that world and library are as planned, or all ranks end.
set -eu

line=$(fairlead run --dry-run -n 2 mpi-base -- python3 examples/hello_mpi.py)
printf '%s\n\n' "$line"
eval "$line"
