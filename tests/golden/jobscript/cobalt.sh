#!/bin/sh
#COBALT -n 2
#COBALT -t 90
#COBALT -A phys-12
#COBALT -q debug
#COBALT --jobname train
#COBALT -O train.log
#COBALT --attrs mcdram=cache:numa=quad

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
