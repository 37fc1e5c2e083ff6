#!/bin/sh
# Know who made an image: create a key, sign an image, and run it only because the
# key is trusted. The key goes into a folder that is removed at the end. Run it from the top of the
# checkout:
#
#     $ sh examples/signed.sh
#
# A real key has a passphrase that is typed, and stays: `fairlead key new`.
set -eu

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
export XDG_CONFIG_HOME="$work" FAIRLEAD_KEY_PASSPHRASE=correct-horse

fairlead build mpi-base -o "$work/app.sif"
fairlead run --require-signature "$work/app.sif" -- true || echo "unsigned: exit code $?"

fairlead key new -o "$work/site.key"
fairlead sign "$work/app.sif" --key "$work/site.key"
fairlead key trust "$work/site.key.pub"
fairlead run -n 2 --require-signature "$work/app.sif" -- python3 examples/hello_mpi.py

printf x >>"$work/app.sif"
fairlead verify "$work/app.sif" || echo "changed: exit code $?"
