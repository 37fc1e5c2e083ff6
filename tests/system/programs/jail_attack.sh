# What a hostile program tries from where a build runs it. A line "BROKEN what" for each that works.
# SECRET: a file of the machine, in FOLDER. WORD: what it holds, and a process, a key and a socket are called.
broken() { echo "BROKEN $*"; }
holds() { case $("$@" 2>/dev/null) in *"$WORD"*) broken "$*" ;; esac; }

# --- files of the machine
for root in "" /proc/1/root /proc/1/cwd /proc/self/root /proc/[0-9]*/root /proc/[0-9]*/cwd /proc/[0-9]*/fd/*; do
    holds cat "$root$SECRET"
    (echo overwritten > "$root$FOLDER/written") 2>/dev/null && broken "wrote $root$FOLDER"
done
for pid in $(cd /proc && echo [0-9]*); do
    holds nsenter -t "$pid" -m cat "$SECRET"
    holds nsenter -t "$pid" -m -r cat "$SECRET"
    holds nsenter -t "$pid" -a cat "$SECRET"
done
holds perl -e 'mkdir "/tmp/x"; chroot "/tmp/x"; chdir ".." for 1 .. 64; chroot "."; exec "/bin/cat", $ENV{SECRET}'
[ -n "${PACKAGE-}" ] || perl -e 'for (3 .. 255) { print "BROKEN inherited $_: ", readlink "/proc/self/fd/$_", "\n" if -l "/proc/self/fd/$_" }'
mknod /tmp/disk b "$((DEVICE >> 8))" "$((DEVICE & 255))" 2>/dev/null && holds head -c 512 /tmp/disk && broken "mknod"
for mounted in / /.fairlead-stage /build/stage; do
    umount -l "$mounted" 2>/dev/null && broken "umount $mounted"
done
mkdir -p /tmp/mnt
for kind in sysfs cgroup cgroup2 devtmpfs debugfs tracefs securityfs bpf; do
    mount -t "$kind" none /tmp/mnt 2>/dev/null || continue
    case $kind in
        bpf) ;; # an empty one of its own
        sysfs) # shows its own network only; nothing in it may be written
            (echo 1 > /tmp/mnt/kernel/mm/ksm/run) 2>/dev/null && broken "writes to sysfs" ;;
        *) broken "mounted $kind" ;;
    esac
    umount /tmp/mnt
done
for given in /.fairlead-stage /build/stage; do
    [ -d "$given" ] || continue
    mount -o remount,rw,bind "$given" 2>/dev/null
    (: > "$given/written") 2>/dev/null && broken "wrote $given"
done

# --- processes, keys, sockets, settings
for pid in $(cd /proc && echo [0-9]*); do
    case $(tr '\0' ' ' 2>/dev/null < "/proc/$pid/environ") in *"$WORD"*) [ "$pid" = $$ ] || [ "$pid" -gt $$ ] || broken "environ of $pid" ;; esac
done
kill -9 1 2>/dev/null && kill -0 1 2>/dev/null || broken "killed process 1"
outside=$(perl -e '
    use Socket;
    my ($arch) = (`uname -m`);
    my ($keyctl, $ptrace) = $arch =~ /x86_64/ ? (250, 101) : (219, 117);
    my $word = $ENV{WORD};
    my ($kind, $name) = ("user", $word);
    print "key\n" if syscall($keyctl, 10, -3, $kind, $name, 0) > 0;
    # In a package, process 1 is its own mmdebstrap.
    print "ptrace\n" if !$ENV{PACKAGE} and syscall($ptrace, 16, 1, 0, 0) == 0;
    socket(my $s, PF_UNIX, SOCK_STREAM, 0);
    print "abstract socket\n" if connect($s, pack_sockaddr_un("\0$word"));
    socket(my $t, PF_INET, SOCK_STREAM, 0);
    print "network\n" if connect($t, pack_sockaddr_in($ENV{PORT}, inet_aton("127.0.0.1")));
')
[ -z "$outside" ] || broken "$outside"
for setting in kernel/core_pattern kernel/panic kernel/randomize_va_space vm/overcommit_memory vm/drop_caches fs/file-max; do
    (cat "/proc/sys/$setting" > /tmp/value && cat /tmp/value > "/proc/sys/$setting") 2>/dev/null && broken "sysctl $setting"
done
(echo h > /proc/sysrq-trigger) 2>/dev/null && broken sysrq
grep -q '^NoNewPrivs:[[:space:]]*1$' /proc/self/status || broken "new privileges"
read -r inside outside count < /proc/self/uid_map
[ "$inside $outside" = "0 $OWNER" ] || broken "ids $inside $outside $count"

# --- what our own code does afterwards
# A package's would keep its own chroot busy.
[ -n "${PACKAGE-}" ] || setsid sh -c 'exec >/dev/null 2>&1 </dev/null; while :; do sleep 0.01; echo late > /.late; done' "$WORD-late" &
if [ -n "${DESTDIR-}" ]; then
    ln -s "$SECRET" "$DESTDIR/link"
    ln -s "$FOLDER" "$DESTDIR/folder"
    mkfifo "$DESTDIR/fifo"
    echo made > "$DESTDIR/made"
fi
if [ -n "${REPLACE-}" ]; then # folders that are emptied, and copied from, once the tree is done
    for name in var etc; do
        mv "/$name" "/$name.before"
        ln -s "$FOLDER" "/$name"
    done
fi
echo "attacked as $(id -u)"
