# fairlead VERSION: NCCL's network plugin, aws-ofi-nccl 1.9.1 of x3001.
# First run stage.sh; it makes /opt/fairlead/stage/nccl-aws-ofi-nccl-1.9.1-b396e64d14e1.
# Source it in the job; then: srun apptainer exec --nv IMAGE …
export APPTAINER_BINDPATH="${APPTAINER_BINDPATH:+$APPTAINER_BINDPATH,}"/opt/fairlead/stage/nccl-aws-ofi-nccl-1.9.1-b396e64d14e1:/opt/fairlead/nccl:ro
export APPTAINERENV_FI_CXI_DEFAULT_CQ_SIZE=131072
export APPTAINERENV_FI_CXI_DISABLE_HOST_REGISTER=1
export APPTAINERENV_FI_MR_CACHE_MONITOR=userfaultfd
export APPTAINERENV_LD_LIBRARY_PATH=/opt/fairlead/nccl/lib"${APPTAINERENV_LD_LIBRARY_PATH:+:$APPTAINERENV_LD_LIBRARY_PATH}"
export APPTAINERENV_NCCL_COLLNET_ENABLE=1
export APPTAINERENV_NCCL_CROSS_NIC=1
export APPTAINERENV_NCCL_NET_GDR_LEVEL=PHB
export APPTAINERENV_NCCL_NET_PLUGIN=fairlead
export APPTAINERENV_NCCL_SOCKET_IFNAME=hsn
# On several nodes NCCL must find this network, or end with an error; on one the site wants it unset.
fairlead_nodes=${SLURM_JOB_NUM_NODES:-}
if [ -z "$fairlead_nodes" ] && [ -r "${PBS_NODEFILE:-}" ]; then
    fairlead_nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
fi
if [ "${fairlead_nodes:-1}" -gt 1 ]; then
    export APPTAINERENV_NCCL_NET='AWS Libfabric'
fi
unset fairlead_nodes
