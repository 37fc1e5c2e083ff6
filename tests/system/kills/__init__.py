"""Random failures against a training under Slurm."""
