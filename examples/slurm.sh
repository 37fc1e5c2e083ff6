#!/bin/sh
#SBATCH --job-name=hello
#SBATCH --nodes=2
#SBATCH --ntasks=4
#SBATCH --time=0:05:00
# A job script you write yourself. In place of `srun python3 hello_mpi.py`, `fairlead run` starts the ranks in an
# image, by srun, on the nodes that Slurm gave. Send it from the top of the checkout:
#
#     $ sbatch --wait examples/slurm.sh
#
# `fairlead script` writes one like it for Slurm, PBS, LSF, Flux and Cobalt.
set -eu

fairlead run -N "$SLURM_JOB_NUM_NODES" -n "$SLURM_NTASKS" mpi-base -- python3 examples/hello_mpi.py
