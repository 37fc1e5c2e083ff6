#!/bin/sh
#SBATCH --job-name=bridge
#SBATCH --nodes=2
#SBATCH --time=0:30:00
# Spark and MPI side by side in one allocation: a standalone cluster of Spark on the first SPARK_NODES nodes, the
# ranks that its executors send rows to on the others. INTERFACE is the trusted network between them. Send it from
# the top of the checkout:
#
#     $ INTERFACE=hsn0 sbatch --wait examples/bridge_slurm.sh
set -eu

count=${SPARK_NODES:-1} session=job-$SLURM_JOB_ID
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=$(echo "$nodes" | head -n 1) spark=$(echo "$nodes" | head -n "$count" | paste -sd,)
others=$(echo "$nodes" | tail -n "+$((count + 1))" | paste -sd,)
folder=${XDG_STATE_HOME:-$HOME/.local/state}/fairlead/bridge/$session
scratch=$(mktemp -d)

fairlead bridge serve --hosts "$others" -N $((SLURM_JOB_NUM_NODES - count)) --ranks-per-node "${RANKS_PER_NODE:-1}" \
    --interface "$INTERFACE" --name "$session" --background analytics
trap 'fairlead bridge stop "$session"; kill "$workers"; wait; rm -r "$scratch"' EXIT

# The first process of the step is the master, too. A step of its own runs the driver: they overlap.
fairlead run -q --mpi container --hosts "$spark" -N "$count" --ranks-per-node 1 --launcher-arg=--overlap \
    --bind "$folder" --bind "$scratch" analytics -- sh -c '
        [ "$SLURM_PROCID" != 0 ] || spark-class org.apache.spark.deploy.master.Master --host "$1" &
        exec spark-class org.apache.spark.deploy.worker.Worker --work-dir "$2" "spark://$1:7077"' \
    sh "$first" "$scratch" &
workers=$!

fairlead run -q --mpi container --hosts "$first" -N 1 -n 1 --launcher-arg=--overlap --bind "$folder" --bind "$PWD" \
    --env FAIRLEAD_BRIDGE="$folder" analytics -- python3 examples/bridge_spark.py "spark://$first:7077"
