#!/bin/sh
#BSUB -J train
#BSUB -n 8
#BSUB -R "span[ptile=4]"
#BSUB -R "affinity[core(4)]"
#BSUB -gpu "num=1/task"
#BSUB -W 1:30
#BSUB -P phys-12
#BSUB -q debug
#BSUB -rn
#BSUB -o train.log
#BSUB -alloc_flags "smt4 gpumps"

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
