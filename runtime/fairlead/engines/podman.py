"""Podman, of root's or an ordinary user's own: what it needs to run a rank as an HPC engine would.

Podman isolates a container from the machine by default; ranks must not be isolated. The
program that one starts is not the parent of what runs in the container, and it keeps a store. So
each rank has a separate store below /tmp of its node, and a *guard*: a shell that waits for the
rank's end, however it comes about, then ends what is left of its container and removes the store.

Sources: podman-run(1), conmon(8); limits, descriptors and leftovers as seen with Podman 4.3.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fairlead.base.system import View
from fairlead.base.timeboxed import clear, first, settings
from fairlead.engines.model import Call, Config, Driver, Engine, Takes, Words, find_program
from fairlead.engines.rank_shell import BASH, PLACES, variables

# It waits for the end of what holds the other end of its input, which is the rank's own shell. Then it
# ends every process that has the store in its words (podman, conmon, runc), their descendants, which
# are what ran in the container, and the process that keeps a user's namespace for later. Root's overlay is
# mounted in a namespace that the guard shares, a user's in one that goes with Podman; what lies in it
# belongs to that user's subordinate ids.
_GUARD = r"""
printf fairlead-guard >/proc/$$/comm
echo "$(readlink /proc/$$/ns/pid) $$" >"$1/guard"
trap '' TERM INT HUP
while read -r _; do :; done
below() { local k; for k in $(cat /proc/$1/task/*/children); do below $k; done; echo $1; }
end() {
  for try in 1 2 3 4 5 6 7 8 9 10; do
    all=
    for f in $(grep -las -- "$1/" /proc/[0-9]*/cmdline); do
      f=${f#/proc/}
      all+=" $(below ${f%/*})"
    done
    [ -e "$1/tmp/pause.pid" ] && all+=" $(cat "$1/tmp/pause.pid")" && rm "$1/tmp/pause.pid"
    kill -9 $all || break
    sleep 0.02
  done
}
end "$1"
for f in /sys/fs/cgroup/"${1##*/}" /sys/fs/cgroup/*/"${1##*/}"; do
  [ -d "$f" ] && rmdir "$f"/*/ "$f"
done
while read -r _ f _; do
  case $f in "$1"/*) umount -l "$f" ;; esac
done </proc/self/mounts
if [ $EUID != 0 ] && [ -e "$1/run/overlay-containers" ]; then
  rm -rf "$1/root"  # it refers to a container that Podman would look for
  CONTAINERS_CONF=$1/conf XDG_RUNTIME_DIR=$1/x "$2" --log-level=error --root "$1/root" --runroot "$1/run" --tmpdir "$1/tmp" \
    --storage-driver vfs unshare rm -rf "$1/run/overlay-containers"
  end "$1"
fi
rm -rf --one-file-system "$1"
exit  # otherwise bash would exec rm, which cannot be recognised as a guard
"""
# Podman passes on descriptors from 3 on without a gap, so the launcher's becomes 3. It sets limits, and
# fails where they are above its own. It passes on no terminal, which Open MPI's launcher gives a rank to
# write to. Signals are for what runs in the container.
_RANK = (
    r"""
printf fairlead-podman >/proc/$$/comm
trap : TERM INT HUP USR1 USR2
p=$1 guard=$2 global=$3 w=$4 terminal=$5 n=0 cats=() typed=
shift 5
if [ "$PMI_FD" ]; then
  [ "$PMI_FD" = 3 ] || eval "exec 3<&$PMI_FD"
  export PMI_FD=3
  n=1
fi
for f in /proc/$$/fd/*; do
  f=${f##*/}
  [ $f -gt $((n + 2)) ] && eval "exec $f>&-"
done
for i in 0 1 2; do
  [ $terminal = yes ] || [ ! -t $i ] && continue
  if [ $i = 0 ]; then
    exec < <(exec cat)
    typed=$!
  else
    eval "exec $i> >(exec cat >&$i)"
    cats+=($!)
  fi
done
# A scheduler that kills a whole job kills its guards too: what they would have removed goes now. A guard
# that is dead may be a zombie for long, where nothing reaps, and its number may be another's.
for f in /tmp/fairlead-podman.*/guard; do
  [ -O "$f" ] && read -r s i <"$f" && [ "$s" = "$(readlink /proc/$$/ns/pid)" ] && ! grep -qas -- "${f%/guard}" "/proc/$i/cmdline" &&
    setsid /bin/bash -p -c "$guard" fairlead-guard "${f%/guard}" "$p" </dev/null
done >/dev/null 2>&1
d=$(mktemp -d /tmp/fairlead-podman.XXXXXXXX) || exit 125
exec 4> >(exec 3>&- >/dev/null 2>&1; exec setsid /bin/bash -p -c "$guard" fairlead-guard "$d" "$p")
guard=$!
mkdir "$d/x" "$d/tmp"
# Otherwise its locks stay in one shared table of 2048.
for f in "$CONTAINERS_CONF" "$HOME/.config/containers/containers.conf" {/etc,/usr/share}/containers/containers.conf; do
  [ -f "$f" ] && break
done
sed -e '/^ *lock_type/d' -e 's/^ *\[engine\].*/[engine]\nlock_type = "file"/' "$f" >"$d/conf" 2>/dev/null
grep -q '^lock_type' "$d/conf" || printf '[engine]\nlock_type = "file"\n' >>"$d/conf"
most() {
  local s=$(ulimit -S$1) h=$(ulimit -H$1)
  { [ $h = unlimited ] || [ $h -gt $2 ]; } && h=$2
  { [ $s = unlimited ] || [ $s -gt $h ]; } && s=$h
  echo $s:$h
}
o=(--ulimit nofile=$(most n 1048576) --ulimit nproc=$(most u 32768) --preserve-fds $n)
o+=(--env "CONTAINERS_CONF=$CONTAINERS_CONF")
[ "$XDG_RUNTIME_DIR" ] && o+=(--env "XDG_RUNTIME_DIR=$XDG_RUNTIME_DIR")
[ $EUID = 0 ] && o+=(--cgroup-parent "/${d##*/}")
[ -e /etc/localtime ] && o+=(--tz=local)
"""
    + PLACES.strip()
    + r"""
for f in "${places[@]}"; do
  o+=(--volume "$f:$f")
done
# A terminal's container needs a /dev and a console of its own: with the machine's, runc refuses.
[ $terminal = yes ] && for f in /dev/*; do
  case ${f#/dev/} in
  console | core | fd | full | initctl | log | loop* | mqueue | null | ptmx | pts | random | shm | std* | tty* | urandom | vcs* | zero) ;;
  *) o+=(--volume "$f:$f") ;;
  esac
done
CONTAINERS_CONF=$d/conf XDG_RUNTIME_DIR=$d/x PATH=$PATH:/usr/sbin:/sbin "$p" --log-level=error --root "$d/root" --runroot "$d/run" \
  --tmpdir "$d/tmp" --storage-driver vfs --events-backend none --runtime-flag "root=$d/runc" $global \
  run "${o[@]}" --workdir "${w:-$PWD}" "$@" 4>&-
c=$?
exec 4>&- 3>&-
wait $guard
exec 1>&- 2>&-
[ "$typed" ] && kill $typed
for i in "${cats[@]}"; do
  while kill -0 $i; do sleep 0.01; done
done
exit $c
"""
)
_PASSTHROUGH = "--log-driver=passthrough"  # which it refuses for a terminal
_DEVICES = "--volume=/dev:/dev:rslave"
_OPTIONS = (
    "--network=host", "--ipc=host", "--pid=host", "--uts=host", _DEVICES,
    "--env-host", _PASSTHROUGH, "--interactive",
    "--read-only", "--read-only-tmpfs=false",
    "--security-opt=label=disable", "--security-opt=seccomp=unconfined",
)  # fmt: skip
_REASONS = (
    (
        "--network=host --ipc=host --pid=host --uts=host",
        "the ranks of a node must see each other's memory and processes, and reach the launcher",
    ),
    (_DEVICES, "network cards and GPUs are devices of the machine"),
    ("--env-host", "the launcher passes ranks their settings in variables"),
    ("--preserve-fds", "Hydra and Slurm speak to a rank by a descriptor, which becomes number 3"),
    ("--log-driver=passthrough", "a rank's output goes straight to the launcher"),
    (
        "--security-opt=seccomp=unconfined",
        "Podman's filter refuses what binds memory to a core, and others of MPI's calls",
    ),
    (
        "--rootfs IMAGE:O",
        "the image, laid out once, below a layer of each rank's own for the places of binds",
    ),
    ("--read-only", "what is written into the image would be lost: it fails, as under Apptainer"),
    (
        "--root, --runroot, --tmpdir",
        "a store of each rank's own on its node, so that none of it stays, however the rank ends",
    ),
)
_PRIVATE = "a private namespace for each rank: the MPI cannot reach the other ranks of the node"

_GLOBAL = ("--runtime=", "--cgroup-manager=")
_STORAGE_KEYS = (
    "driver", "graphroot", "rootless_storage_path", "additionalimagestores", "mount_program",
)  # fmt: skip


class Podman(Driver):
    kind = "podman"
    title = "Podman"
    programs = ("podman",)
    processes = ("podman", "conmon", "runc", "crun", "fairlead-")
    shows = ()
    reads = ("TMPDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    parting_options = MappingProxyType(
        {
            **dict.fromkeys(("--ipc=private", "--ipc=none", "--ipc=shareable"), _PRIVATE),
            **dict.fromkeys(("--pid=private", "--uts=private", "--network=none"), _PRIVATE),
            "--unsetenv-all": "the launcher's variables do not reach the ranks: each would run alone",
        }
    )
    inside_files = ("/run/.containerenv",)
    config_keys = (
        "runtime", "cgroups", "cgroup_manager", "hooks_dir", "default_ulimits", "netns", "ipcns", "pidns",
    )  # fmt: skip

    def detect(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        path = find_program(self.variable, self.programs, environ)
        runc = shutil.which("runc", path=f"{environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
        # Of the second version of control groups there is one folder for all.
        old_cgroups = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
        return describe(str(path), os.geteuid(), old_cgroups, runc or "") if path else None

    def words(self, engine: Engine, call: Call) -> Words:
        """A shell of the rank's own that starts ``podman run``, and waits for it."""
        # Options of Podman itself stand before `run`, those of a container behind it.
        own = [o for o in engine.options if o.startswith(_GLOBAL)]
        words = [o for o in engine.options if not o.startswith(_GLOBAL)]
        words += [_volume(*bind) for bind in call.binds]
        for name, value in variables(call).items():
            words += ["--env", f"{name}={value}"]
        if call.terminal:
            words = [o for o in words if o not in (_PASSTHROUGH, _DEVICES)] + ["--tty"]
        # As root, Podman mounts where all can see it; in a namespace of the rank's own it goes with it.
        private = () if engine.userns_per_rank else ("unshare", "--mount", "--propagation", "slave")
        rank = (*BASH, _RANK.strip(), "fairlead-podman", engine.path, _GUARD.strip())
        return Words(
            (
                *(*private, *rank, " ".join(own), call.workdir, "yes" if call.terminal else "no"),
                *(*words, *call.extra, "--rootfs", f"{call.image}:O", *call.command),
            ),
            {},
        )

    def configuration(self, view: View, real: str) -> Config | None:
        home = view.environ.get("XDG_CONFIG_HOME") or f"{view.environ.get('HOME', '')}/.config"
        merged: dict[str, str] = {}
        used: list[str] = []
        # A user's own file hides storage.conf of the system; of containers.conf all that there are count.
        storage = first(
            view,
            *filter(None, [view.environ.get("CONTAINERS_STORAGE_CONF", "")]),
            *([f"{home}/containers/storage.conf"] if view.uid else []),
            "/etc/containers/storage.conf",
            "/usr/share/containers/storage.conf",
        )
        confs: list[tuple[str, Sequence[str]]] = [(storage, _STORAGE_KEYS)] if storage else []
        several = [
            "/usr/share/containers/containers.conf",
            "/etc/containers/containers.conf",
            *view.matching("/etc/containers/containers.conf.d/*.conf"),
            f"{home}/containers/containers.conf",
        ]
        if own := view.environ.get("CONTAINERS_CONF", ""):
            several = [own]
        confs += [(path, self.config_keys) for path in several if view.access(path, 0)]
        for path, keys in confs:
            text = view.read(path) or ""
            values = {k: clear(v) for k, v in settings(text, keys).items() if v}
            if values or path == storage:
                used.append(path)
            merged |= values
        return Config(", ".join(used), merged) if used else None


ENGINE = Podman()


def describe(path: str, uid: int, old_cgroups: bool, runc: str) -> Engine:
    """How the Podman at ``path`` must be called by ``uid``.

    Args:
        old_cgroups: the machine has control groups of the first version, or of both.
        runc: the path of runc; empty when there is none.
    """
    if uid:
        why = "you are yourself in the container too, in a user namespace of each rank's own"
        more = [("--userns=keep-id", why)]
    else:
        more = [("--pids-limit=-1", "threads are counted too, and Podman stops at 2048")]
    if old_cgroups or not uid:
        more.append(("--cgroup-manager=cgroupfs", "a job has no session of systemd's to ask"))
    if old_cgroups and runc:
        why = "crun, which Podman prefers, refuses cgroups v1 together with cgroups v2"
        more.append((f"--runtime={runc}", why))
    options = (*_OPTIONS, *(option for option, _ in more))
    return Engine("podman", path, bool(uid), options, (*_REASONS, *more), takes=Takes.FOLDER)


def _volume(source: str, target: str, read_only: bool) -> str:
    """A bind. A colon can be written in one of Podman's two forms, a comma in the other."""
    if ":" in source + target:
        return f"--mount=type=bind,source={source},target={target}" + (",ro" if read_only else "")
    return f"--volume={source}:{target}" + (":ro" if read_only else "")
