#!/bin/sh
# A site as configuration of other tools. For Apptainer it is taken at its word here: the host's MPI is
# staged, the variables are set, and `apptainer exec` is typed without fairlead. Run it from the top of
# the checkout:
#
#     $ sh examples/export.sh mpi-base
set -eu

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# What an administrator of each engine would install, to be looked at.
for target in shifter podman-hpc sarus ce enroot; do
    fairlead site export --for "$target" -o "$out/$target"
done

# A temporary folder is closed to others: without --private that is refused.
fairlead site export --for apptainer --private --image "$1" --stage "$out/stage" -o "$out/apptainer"
"$out/apptainer/stage.sh"
. "$out/apptainer/environment.sh"

# The programs that fairlead would use, and the image's file.
line=$(fairlead run --dry-run "$1" -- true)
word() { printf '%s\n' "$line" | tr ' ' '\n' | grep -m 1 -e "$1"; }
"$(word '/mpiexec')" -n 2 "$(word '/apptainer$')" --quiet exec "$(word '\.sif$')" \
    python3 -m fairlead.prove
