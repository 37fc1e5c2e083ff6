#!/bin/sh
# Takes out of the tree "$1" what packages generated for one machine while they were installed: keys, cookies,
# databases. Each build would have others, and an image gives them to whoever has it.
# These are the files that no package ships and that others may not read; and their public halves.
set -eu
cd "$1"
export LC_ALL=C

# Accounts and the state of dpkg, debconf and ucf are the same in each build.
kept='^(etc/g?shadow|etc/security/opasswd|var/cache/debconf/.*|var/lib/(dpkg|ucf)/.*)$'
shipped=$(mktemp)
sed 's|^/||' var/lib/dpkg/info/*.list | sort -u > "$shipped"
folders=$(for name in etc var root home srv opt; do [ ! -d "$name" ] || echo "$name"; done)
find $folders -xdev -type f ! -perm /007 | grep -Ev "$kept" | sort | comm -23 - "$shipped" |
    while IFS= read -r file; do rm -f -- "$file" "$file.pub"; done
rm -f "$shipped"

snakeoil=ssl-cert-snakeoil
if [ -d etc/ssl/certs ] && [ ! -e "etc/ssl/private/$snakeoil.key" ]; then
    find etc/ssl/certs \( -name "$snakeoil.pem" -o -lname "$snakeoil.pem" \) -exec rm -f {} +
fi
