#!/bin/sh
# An image by way of a registry: built here, pushed, pulled by its digest, and run under that name.
# REGISTRY is where you may push to; log in first (`podman login`), unless it is on this machine:
#
#     $ REGISTRY=registry.example.org/ml sh examples/registry.sh
#
# On the machine that runs it, only the last two commands are needed. The digest makes sure that the
# image is the one that was pushed, whatever the tag has come to mean.
set -eu

image=$(fairlead push mpi-base "docker://$REGISTRY/mpi-base:1" | head -n 1)
echo "$image"

fairlead pull "$image"
fairlead run -n 2 "$image" -- python3 examples/hello_mpi.py
