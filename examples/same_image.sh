#!/bin/sh
# One image in two formats, and the proof that they hold the same tree.
#
#   $ sh examples/same_image.sh mpi-base
set -e
image=${1:?the name of a recipe}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fairlead build "$image" --format squashfs,oci -o "$folder"

# 0: the same; 1: different; 2: they cannot be compared.
fairlead diff "$image" "$folder/$image.squashfs"

# The bill of materials names every package, its version, and where it came from.
fairlead inspect "$image" --sbom > "$folder/materials.json"
grep -o '"purl": "pkg:pypi/mpi4py[^"]*"' "$folder/materials.json"

# What a registry would show of the OCI image.
grep -o '"org.fairlead.tree.sha256":"[^"]*"' "$folder/$image.oci/blobs/sha256/"*
