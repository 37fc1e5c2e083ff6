#!/bin/sh
# Which of these images will run on a machine that one is not on? Its capture was made there:
#
#     fairlead site capture -o login1.json
#
# Here one is made of this machine, so that the example runs. From the top of the checkout:
#
#     $ sh examples/preflight_elsewhere.sh mpi-base
set -eu

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
fairlead site capture -o "$folder/login1.json"

for image in "$@"; do
    # 0: yes; 121: no, and each reason comes with its remedy.
    if fairlead preflight "$image" --site "$folder/login1.json" >"$folder/said"; then
        echo "$image: $(tail -n 1 "$folder/said")"
    else
        echo "$image: no, exit code $?"
    fi
done
