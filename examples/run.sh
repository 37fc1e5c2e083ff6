#!/bin/sh
# For job scripts: `--dry-run` prints the line that `fairlead run` would execute and creates what
# the line binds. It is plain shell: variables, the launcher,
# the engine, the image, the command. Run it from the top of the checkout:
#
#     $ sh examples/run.sh
#
# The line holds paths of the machine it was printed on. A pasted line still proves itself, in
# fewer words: rank 0 reports that world and library are as planned, or all ranks end.
set -eu

line=$(fairlead run --dry-run -n 2 mpi-base -- python3 examples/hello_mpi.py)
printf '%s\n\n' "$line"
eval "$line"
