#!/bin/sh
#SBATCH --job-name=train
#SBATCH --ntasks=8
#SBATCH --nodes=2
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-task=1
#SBATCH --time=1:30:00
#SBATCH --account=phys-12
#SBATCH --partition=debug
#SBATCH --array=1-99:2%8
#SBATCH --requeue
#SBATCH --output=train.log
#SBATCH --exclusive

# Written by: fairlead script -n 8 …

set -eu
export XDG_CACHE_HOME='/scratch/my cache'
export FAIRLEAD_ARRAY_INDEX="$SLURM_ARRAY_TASK_ID"
exec fairlead run -n 8 -N 2 mpi-base -- python3 train.py
