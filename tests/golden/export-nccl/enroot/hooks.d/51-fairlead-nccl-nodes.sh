#!/usr/bin/env bash
# What NCCL needs in jobs on several nodes: without its network it ends with an error. fairlead VERSION.
set -euo pipefail
if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then
    printf '%s\n' 'NCCL_NET=AWS Libfabric' >>"$ENROOT_ENVIRON"
fi
