#!/bin/sh
# Record a run, sign the record, verify it with OpenSSH alone, and repeat the run. Run it from the top of the checkout:
#
#     $ sh examples/record/record.sh
#
# Key, records and results go into a folder that is removed at the end.
set -eu

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
export XDG_CONFIG_HOME="$work" FAIRLEAD_KEY_PASSPHRASE=correct-horse

fairlead key new -o "$work/me.key"
fairlead key trust "$work/me.key.pub"
cp examples/record/* "$work"
cd "$work"
fairlead run -n 2 --record run-1 --input seed.txt --result walk.npy --record-key me.key \
    mpi-base -- python3 mean_walk.py seed.txt walk.npy

fairlead verify run-1
echo "me@example.org $(cat me.key.pub)" >signers
ssh-keygen -Y verify -f signers -I me@example.org -n fairlead-run-record \
    -s run-1/statement.json.sig <run-1/statement.json

fairlead replay run-1
echo 43 >seed.txt
fairlead replay run-1 || echo "another seed: exit code $?"
fairlead replay run-1 --force || echo "its result: exit code $?"
printf ' ' >>run-1/run.json
fairlead verify run-1 || echo "changed: exit code $?"
