#!/bin/sh
# Which network plugin of this machine serves the NCCL of an image, and what do ranks get for it?
# FILE is a plugin, or a folder with some; without it, those of the site's profile and of loaded modules count.
#
#     $ sh examples/nccl_plugin.sh IMAGE FILE
set -eu

image=$1 plugin=${2:-host}
fairlead preflight "$image" --nccl "$plugin" # 121: no, and each reason comes with its remedy
fairlead explain "$image" --nccl "$plugin" | sed -n "/^NCCL's network/,/^$/p"
fairlead run -n 2 --dry-run --nccl "$plugin" "$image" -- python3 train.py
