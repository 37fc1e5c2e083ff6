#!/bin/sh
# Compiles all of Debian's own Python modules in the tree "$1" anew: its .pyc files hold time stamps
# and were made in no fixed order. "$2" holds bytecode.py; `debian.py` starts it.
set -eu
root=$1
[ -x "$root/usr/bin/python3" ] || exit 0

find "$root"/usr/lib/python3* -name __pycache__ -prune -exec rm -rf {} +
# Debian's minimal Python has not the modules that compiling takes; it stays without .pyc files.
for module in "$root"/usr/lib/python3.*/shutil.py; do
    [ -f "$module" ] || exit 0
done
printf 'fairlead-stage\tcompile Python modules\t0\t\n' >&2
cp "$2/bytecode.py" "$root/.fairlead-bytecode.py"
chroot "$root" sh -c 'exec python3 -I /.fairlead-bytecode.py /usr/lib/python3*'
rm "$root/.fairlead-bytecode.py"
