#!/bin/sh
# Bring up a machine without a site profile: detect it, draft a profile, list what does not match, and
# capture the machine in a file. All of it goes into one folder. From the top of the checkout:
#
#     $ sh examples/new_machine.sh "$(mktemp -d)/my-machine"
set -eu

folder=$1
mkdir -p "$folder/sites"

fairlead site detect | tee "$folder/seen.txt"

# Each value with its evidence as a comment. Edit it: one node does not show a whole machine.
draft="$folder/sites/$(basename "$folder").toml"
fairlead site detect --write "$draft"
fairlead site show "$draft"

# From now on this machine is known by it. On a real one the file goes into /etc/fairlead/sites.d.
export FAIRLEAD_SITES_EXTRA="$folder/sites"
fairlead site check
fairlead site capture -o "$folder/here.json"
