# fairlead VERSION: NCCL's network plugin, aws-ofi-nccl 1.19.2 of x3001.
# First run stage.sh; it makes /opt/fairlead/stage/nccl-aws-ofi-nccl-1.19.2-a71402d0248e.
# Source it in the job; then: srun apptainer exec --rocm IMAGE …
# The job itself needs --network=disable_rdzv_get.
export APPTAINER_BINDPATH="${APPTAINER_BINDPATH:+$APPTAINER_BINDPATH,}"/opt/fairlead/stage/nccl-aws-ofi-nccl-1.19.2-a71402d0248e:/opt/fairlead/nccl:ro
export APPTAINERENV_FI_CXI_DEFAULT_CQ_SIZE=131072
export APPTAINERENV_FI_CXI_DEFAULT_TX_SIZE=2048
export APPTAINERENV_FI_CXI_DISABLE_HOST_REGISTER=1
export APPTAINERENV_FI_CXI_RDZV_EAGER_SIZE=0
export APPTAINERENV_FI_CXI_RDZV_GET_MIN=0
export APPTAINERENV_FI_CXI_RDZV_PROTO=alt_read
export APPTAINERENV_FI_CXI_RDZV_THRESHOLD=0
export APPTAINERENV_FI_CXI_RX_MATCH_MODE=hybrid
export APPTAINERENV_FI_MR_CACHE_MONITOR=kdreg2
export APPTAINERENV_HSA_FORCE_FINE_GRAIN_PCIE=1
export APPTAINERENV_LD_LIBRARY_PATH=/opt/fairlead/nccl/lib"${APPTAINERENV_LD_LIBRARY_PATH:+:$APPTAINERENV_LD_LIBRARY_PATH}"
export APPTAINERENV_NCCL_CROSS_NIC=1
export APPTAINERENV_NCCL_NET_GDR_LEVEL=PHB
export APPTAINERENV_NCCL_NET_PLUGIN=fairlead
export APPTAINERENV_NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
# On several nodes NCCL must find this network, or end with an error; on one the site wants it unset.
fairlead_nodes=${SLURM_JOB_NUM_NODES:-}
if [ -z "$fairlead_nodes" ] && [ -r "${PBS_NODEFILE:-}" ]; then
    fairlead_nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
fi
if [ "${fairlead_nodes:-1}" -gt 1 ]; then
    export APPTAINERENV_NCCL_NET=OFI
fi
unset fairlead_nodes
