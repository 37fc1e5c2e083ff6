#!/bin/sh
# Compare container engines: the same image and program under each engine installed here, each launch
# proved, then the time of each. Run it from the top of the checkout:
#
#     $ sh examples/engines.sh
#
# The first launch by Podman or Charliecloud lays the image out as a folder, which takes some seconds;
# so each engine runs twice, and the second time counts.
set -eu

for engine in apptainer podman charliecloud; do
    fairlead preflight --engine "$engine" mpi-base >/dev/null 2>&1 || { echo "$engine: not here"; continue; }
    for round in first second; do
        begun=$(date +%s%N)
        said=$(fairlead run -n 2 --engine "$engine" mpi-base -- python3 examples/hello_mpi.py 2>&1)
        ended=$(date +%s%N)
    done
    echo "$said" | grep proved
    echo "$engine: $(((ended - begun) / 1000000)) ms"
done
