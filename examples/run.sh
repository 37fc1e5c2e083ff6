#!/bin/sh
# For whoever keeps a job script of their own: `--dry-run` prints the line that `fairlead run` would
# execute, and what the line binds is there afterwards. It is plain shell: variables, the launcher,
# the engine, the image, the command. Run it from the top of the checkout:
#
#     $ sh examples/run.sh
#
# The line holds paths of the machine it was printed on. It is not proved when it is pasted: to have
# the proof, use `fairlead run`.
set -eu

line=$(fairlead run --dry-run -n 2 mpi-base -- python3 examples/hello_mpi.py)
printf '%s\n\n' "$line"
eval "$line"
