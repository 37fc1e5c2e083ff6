#!/bin/sh
# apt_install.sh PACKAGE...: installs Debian packages, as root. For bootstrap.sh and for doctor.
#
# The lists of a fresh machine are empty, and those of an old one name files that are gone: then
# they are fetched, else not. apt waits for dpkg's lock by itself, but not for that of the lists.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

apt() { apt-get -y -q -o DPkg::Lock::Timeout=600 "$@"; }

dpkg --configure -a || true # what an interrupted installation left
apt install --no-install-recommends "$@" && exit
tries=200
until said=$(apt update 2>&1); do
    echo "$said"
    tries=$((tries - 1))
    case $said in *'Could not get lock'*) [ "$tries" -gt 0 ] || exit 1 ;; *) exit 1 ;; esac
    sleep 3
done
apt install --no-install-recommends "$@"
