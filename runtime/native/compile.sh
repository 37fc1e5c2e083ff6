# sh compile.sh FOLDER: the collective core, and its operation for TensorFlow, which needs none to be compiled.
#
# Run in this folder. The same compilers give the same bytes: no paths, times or identifiers enter them.
set -eu
out=$1
mkdir -p "$out"
alike="-ffile-prefix-map=$PWD=. -Wl,--build-id=none -Wl,-s"
# shellcheck disable=SC2046,SC2086  # flags are words
${CXX:-g++} $(cat flags) $alike -I include -o "$out/libfairlead_comm.so" src/*.cpp -lgcc
# shellcheck disable=SC2046,SC2086
${CXX:-g++} $(cat flags) $alike -I include -o "$out/libfairlead_tensorflow.so" tensorflow/operation.cpp -lgcc
