# sh compile.sh FOLDER: the collective core, and its operation for the TensorFlow of `python3` where that has one.
#
# Run in this folder; without `src` in it, only the operation is compiled. The same compilers give the same bytes: no
# paths, times or identifiers enter them. If the operation does not compile, gradients go through numpy_function, and
# `tensorflow-op.txt` says why.
set -eu
out=$1
mkdir -p "$out"
alike="-ffile-prefix-map=$PWD=. -Wl,--build-id=none -Wl,-s"
# shellcheck disable=SC2046,SC2086  # flags are words
[ ! -d src ] || ${CXX:-g++} $(cat flags) $alike -I include -o "$out/libfairlead_comm.so" src/*.cpp -lgcc

# Not from this folder, whose subfolder tensorflow would be imported.
(cd / && python3 -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("tensorflow"))') || exit 0
log=$PWD/tensorflow.log
asked='import tensorflow as tf; print(tf.__version__, *tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags())'
# TensorFlow's remarks about the processor are off.
found=$(cd / && TF_CPP_MIN_LOG_LEVEL=3 python3 -c "$asked" 2> "$log") || { tail -n 3 "$log" > "$out/tensorflow-op.txt"; exit 0; }
op="$out/libfairlead_tensorflow-${found%% *}.so"
# shellcheck disable=SC2086
if ! ${CXX:-g++} -O2 -fPIC -shared -fvisibility=hidden -w $alike -I include tensorflow/aggregate.cpp ${found#* } -o "$op" 2> compile.log; then
    rm -f "$op"
    grep -m 3 error compile.log > "$out/tensorflow-op.txt" || tail -n 3 compile.log > "$out/tensorflow-op.txt"
fi
