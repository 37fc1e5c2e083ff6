#!/bin/sh
# flux: --job-name=train
# flux: --nslots=8
# flux: --nodes=2
# flux: --cores-per-slot=4
# flux: --gpus-per-slot=1
# flux: --time-limit=5400s
# flux: --bank=phys-12
# flux: --queue=debug
# flux: --output=train.log

# Written by: fairlead script -n 8 …

if ! command -v module >/dev/null 2>&1; then
    for file in "${MODULESHOME:-/none}/init/sh" /etc/profile.d/lmod.sh /etc/profile.d/modules.sh; do
        if [ -r "$file" ]; then . "$file"; break; fi
    done
fi
module load cray-mpich-abi/8.1 || exit
module unload xalt || exit

set -eu
export XDG_CACHE_HOME='/scratch/my cache'
exec fairlead run -n 8 -N 2 mpi-base -- python3 train.py
