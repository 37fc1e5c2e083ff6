#!/bin/sh
#PBS -N train
#PBS -l select=1:ncpus=12:mpiprocs=3:ngpus=3+1:ncpus=8:mpiprocs=2:ngpus=2
#PBS -l place=scatter
#PBS -l walltime=1:30:00
#PBS -A phys-12
#PBS -q debug
#PBS -J 0-9
#PBS -r y
#PBS -j oe
#PBS -o train.log

# Written by: fairlead script -n 8 …

if ! command -v module >/dev/null 2>&1; then
    for file in "${MODULESHOME:-/none}/init/sh" /etc/profile.d/lmod.sh /etc/profile.d/modules.sh; do
        if [ -r "$file" ]; then . "$file"; break; fi
    done
fi
module load cray-mpich-abi/8.1 || exit
module unload xalt || exit

set -eu
cd "$PBS_O_WORKDIR"
export XDG_CACHE_HOME='/scratch/my cache'
export FAIRLEAD_ARRAY_INDEX="$PBS_ARRAY_INDEX"
exec fairlead run -n 8 -N 2 mpi-base -- python3 train.py
