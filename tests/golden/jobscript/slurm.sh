#!/bin/sh
#SBATCH --job-name=train
#SBATCH --ntasks=8
#SBATCH --nodes=2
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-task=1
#SBATCH --time=1:30:00
#SBATCH --account=phys-12
#SBATCH --partition=debug
#SBATCH --no-requeue
#SBATCH --output=train.log
#SBATCH --exclusive

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
