#!/bin/sh
# Takes out of the tree "$1" what differs between builds or identifies the machine that built it.
# Runs last, outside the tree, as its root; `debian.py` starts it.
set -eu
root=$1

rm -f "$root/etc/apt/sources.list" "$root"/etc/apt/sources.list.d/* "$root/etc/apt/apt.conf.d/99mmdebstrap" \
      "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/cache/ldconfig "$root"/var/log/*
rm -f "$root"/var/lib/dpkg/*-old "$root"/var/cache/debconf/*-old "$root"/etc/*- "$root"/var/lib/dpkg/lock*
rm -rf "$root"/usr/share/man/*
rm -f "$root/var/lib/systemd/random-seed" "$root/etc/.pwd.lock" "$root/etc/ld.so.cache"

sh "${0%/*}/secrets.sh" "$root"

authorities=/etc/ssl/certs/java/cacerts
if [ -f "$root$authorities" ]; then
    cp "${0%/*}/keystore.pl" "$root/.keystore.pl"
    chroot "$root" perl /.keystore.pl "$authorities" "$SOURCE_DATE_EPOCH"
    rm "$root/.keystore.pl"
fi

# Files that engines bind over must exist; their content must not be this machine's.
for name in hostname hosts resolv.conf machine-id localtime; do
    rm -f "$root/etc/$name"
    : > "$root/etc/$name"
    chmod 0644 "$root/etc/$name"
done
# Not every engine brings its own, and MPI launchers look themselves up.
printf '127.0.0.1 localhost\n::1 localhost\n' > "$root/etc/hosts"

# The host's /dev, /proc and /sys are mounted here; -xdev alone does not keep out of /dev/shm, which
# may be the very file system that the tree is on.
in_tree() {
    find "$root" -xdev \( -path "$root/dev" -o -path "$root/proc" -o -path "$root/sys" \) -prune -o "$@"
}

# Containers run without set-user-id; files of other owners cannot be unpacked by ordinary users.
in_tree \( ! -user 0 -o ! -group 0 \) -exec chown -h 0:0 {} +
in_tree -type f -perm /6000 -exec chmod ug-s {} +

in_tree -type f -printf '%s\n' | awk '{ n += $1 * 1.05 } END { printf "fairlead-stage\tsquash the Debian part\t%.0f\tB\n", n }' >&2
