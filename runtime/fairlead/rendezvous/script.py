"""The shell text by which the ranks of a launch learn of each other before their containers start.

Each rank writes its node, address and free ports into the run's folder; rank 0 puts them together; all read that. The
only fact taken from the launcher is the rank's number, so that this works with every launcher in the same way. It
needs a shell and awk on the nodes, no Python.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from fairlead.rendezvous.model import Framework
from fairlead.rendezvous.registry import FRAMEWORKS

SCRIPT = "world.sh"
RANK = "FAIRLEAD_RANK"  # of the launcher; one that a rank starts itself changes the launchers' variables, not this

# A step of Slurm sets these for each task. Under another launcher they are those of the batch script, or of the
# launcher's own daemon: Lightning and JAX would take each process for rank 0.
_OF_A_TASK = (
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID", "SLURM_STEPID",
    "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE",
)  # fmt: skip
# More would not fit into one variable (MAX_ARG_STRLEN, execve(2)).
MOST_MEMBERS = 4096

# Its own address, the interface, and three free ports that no other rank of the node takes. /proc/net/route has
# addresses in the order of the machine's bytes; every machine that fairlead runs on is little-endian.
_OWN = r"""
function hex(s, i, v) { s = toupper(s); v = 0; for (i = 1; i <= length(s); i++) v = v * 16 + index("0123456789ABCDEF", substr(s, i, 1)) - 1; return v }
function number(s) { return hex(substr(s, 7, 2) substr(s, 5, 2) substr(s, 3, 2) substr(s, 1, 2)) }
function fits(name, pattern) { gsub(/[.]/, "[.]", pattern); gsub(/[*]/, ".*", pattern); gsub(/[?]/, ".", pattern); return name ~ ("^" pattern "$") }
function choose(  i, j) {
  for (i = 1; i <= wanted; i++) for (j = 1; j <= devices; j++) if (fits(order[j], want[i])) return order[j]
  if (standard != "" && standard in address) return standard
  for (j = 1; j <= devices; j++) if (order[j] !~ /^(docker|virbr|br-|cni|podman)/) return order[j]
  return devices ? order[1] : ""
}
function add(name, value) { if (!(name in address)) { address[name] = value; order[++devices] = name } }
BEGIN { wanted = split(interfaces, want, " ") }
FILENAME ~ /route$/ && FNR > 1 {
  if ($2 == "00000000") { if (standard == "") standard = $1 }
  else if ($1 != "lo") { to[++routes] = number($2); mask[routes] = number($8); by[routes] = $1 }
}
FILENAME ~ /fib_trie$/ {
  if ($1 == "|--") last = $2
  else if (/host LOCAL/ && last !~ /^127[.]/ && !(last in seen)) {
    seen[last] = 1; split(last, b, "."); value = ((b[1] * 256 + b[2]) * 256 + b[3]) * 256 + b[4]; best = -1
    for (i = 1; i <= routes; i++) {
      block = 4294967296 - mask[i]
      if (mask[i] > best && int(value / block) == int(to[i] / block)) { best = mask[i]; name = by[i] }
    }
    if (best >= 0) add(name, last)
  }
}
FILENAME ~ /if_inet6$/ && $4 == "00" && $6 != "lo" && !($6 in six) {
  six[$6] = substr($1, 1, 4); for (i = 5; i < 33; i += 4) six[$6] = six[$6] ":" substr($1, i, 4)
  sixes[++many] = $6
}
FILENAME ~ /status$/ && /^Cpus_allowed_list:/ { mine = $2 }
FILENAME ~ /online$/ { online = $1 }
FILENAME ~ /tcp6?$/ && FNR > 1 { split($2, q, ":"); used[hex(q[2])] = 1 }
END {
  if (!devices) for (i = 1; i <= many; i++) add(sixes[i], six[sixes[i]])
  name = choose(); printf "%s %s", name == "" ? "-" : address[name], name == "" ? "-" : name
  # Below the ports that the kernel gives out, where there is room.
  from = low > 30000 ? 20000 : 30000; span = low > 30000 ? low - from : 30000; step = size * 3 < span ? size : 1
  start = int(hex(seed) % span); start -= start % step
  for (i = 0; i * step < span && found < 3; i++) {
    port = from + (start + i * step + rank % step) % (span - span % step)
    if (!(port in used)) { found++; printf " %d", port; used[port] = 1 }
  }
  for (i = split(mine, parts, ","); i > 0; i--) { split(parts[i], ends, "-"); cores += (ends[2] == "" ? ends[1] : ends[2]) - ends[1] + 1 }
  print " " cores + 0, mine == online ? "all" : "bound"
}
"""
# Lines of: rank, node's number, local rank, ranks on the node, address, interface, three ports, cores.
_ALL = r"""
{ key[$1] = $2; address[$1] = $3; device[$1] = $4; ports[$1] = $5 " " $6 " " $7; cores[$1] = $8; all[$1] = $9; last[$1] = $7 }
END {
  # A file can be there before its line is.
  for (r = 0; r < size; r++) if (all[r] == "") exit 3
  for (r = 0; r < size; r++) { k = key[r]; if (!(k in node)) node[k] = nodes++; place[r] = count[k]++ }
  for (r = 0; r < size; r++) {
    a = nodes == 1 ? "127.0.0.1" : address[r]; d = nodes == 1 ? "lo" : device[r]
    if (a == "-") { split(key[r], n, "."); print "bad " n[1]; exit }
    c = cores[r]; if (all[r] == "all" && count[key[r]] > 1) c = int(c / count[key[r]]); if (c < 1) c = 1
    print r, node[key[r]], place[r], count[key[r]], a, d, ports[r], c, nodes
    if (members != "") printf "%s\"%s:%s\"", r ? ", " : "", a ~ /:/ ? "[" a "]" : a, last[r] > members
  }
}
"""
_BODY = r"""
w_dir=${f%/*}
w_wait() {  # $1: until this succeeds
  w_tries=0
  until eval "$1"; do
    [ -d "$w_dir" ] || exit 1
    w_tries=$((w_tries + 1))
    # A client of NFS that changes a folder asks what is in it again.
    [ $((w_tries % 50)) != 49 ] || { : >"$w_dir/.poll.$r"; rm -f "$w_dir/.poll.$r"; }
    sleep 0.01
  done
}
w_gather() (
  set -- "$w_dir"/here.*
  [ $# -ge "$w_size" ] && [ -e "$1" ] || exit
  LC_ALL=C awk -v size="$w_size" -v members="${w_listed:+$w_dir/members}" "$w_all" "$@" >"$w_dir/.world" && mv "$w_dir/.world" "$w_dir/world"
)
w_meet() {
  read -r w_host </proc/sys/kernel/hostname
  read -r w_boot </proc/sys/kernel/random/boot_id
  read -r w_seed </proc/sys/kernel/random/uuid
  read -r w_low _ </proc/sys/net/ipv4/ip_local_port_range || w_low=32768
  w_files=
  for w_file in /sys/devices/system/cpu/online /proc/self/status /proc/net/route /proc/net/fib_trie /proc/net/if_inet6 /proc/net/tcp /proc/net/tcp6; do
    [ ! -r "$w_file" ] || w_files="$w_files $w_file"
  done
  w_mine=$(LC_ALL=C awk -v interfaces="$w_interfaces" -v size="$w_size" -v rank="$r" -v low="$w_low" -v seed="${w_seed%%-*}" "$w_own" $w_files) &&
    echo "$r $w_host.$w_boot $w_mine" >"$w_dir/here.$r" || return 1
  [ "$r" != 0 ] || w_wait w_gather
  w_wait '[ -e "$w_dir/world" ]'
  while read -r w_rank w_node w_local w_locals w_here w_interface w_port0 w_port1 w_port2 w_cores w_nodes; do
    [ "$w_rank" != bad ] || { echo "fairlead: $w_node has no address that the other nodes could reach it by: name the interface in the site's profile, or give --rendezvous none" >&2; return 1; }
    [ "$w_rank" != 0 ] || w_first=$w_here w_first0=$w_port0 w_first1=$w_port1
    [ "$w_rank" != "$r" ] || break
  done <"$w_dir/world"
  w_port0=$w_first0 w_port1=$w_first1 w_first_bracketed=$w_first w_is_first=0
  case $w_first in *:*) w_first_bracketed="[$w_first]" ;; esac
  [ "$r" != 0 ] || w_is_first=1
  w_members=
  [ -z "$w_listed" ] || read -r w_members <"$w_dir/members" || [ -n "$w_members" ]
}
[ "$w_size" != 1 ] || r=0
case $r in
'' | *[!0-9]*) w_known= ;;
*) [ "$r" -lt "$w_size" ] && w_known=yes || w_known= ;;
esac
if [ -z "$w_known" ]; then
  echo "fairlead: this launcher gives its processes no rank below $w_size: RANK and the like are not set" >&2
elif ! command -v awk >/dev/null; then
  echo "fairlead: $(uname -n) has no awk: RANK and the like are not set" >&2
elif w_meet; then
  SET
else
  exit 121
fi
"""


def passed() -> tuple[str, ...]:
    """The variables that the shell around a rank may set."""
    return (RANK, *sorted({name for framework in FRAMEWORKS for name in framework.variables}))


def text(
    frameworks: Iterable[Framework],
    ranks: int,
    run: str,
    interfaces: Iterable[str] = (),
    *,
    of_slurm: bool = False,
) -> str:
    """The script, which the shell around a rank reads: ``$r`` is its number, ``$f`` a file in the run's folder.

    Args:
        run: a name of this launch.
        interfaces: patterns of the network interfaces to use, in order of preference.
        of_slurm: the launcher is srun, whose variables are the rank's own.
    """
    chosen = tuple(frameworks)
    sets = [f"export {RANK}=$w_rank"]
    listed = any(f.members for f in chosen) and ranks <= MOST_MEMBERS
    for framework in chosen:
        if framework.members and not listed:
            continue
        for name, word in framework.variables.items():
            escaped = word.replace("\\", "\\\\").replace('"', '\\"')
            sets.append(f'[ -n "${{{name}+set}}" ] || export {name}="{escaped}"')
    if not of_slurm:
        sets.append(f"unset {' '.join(_OF_A_TASK)}")
    values = {
        "w_size": str(ranks),
        "w_run": run,
        "w_interfaces": " ".join(interfaces),
        "w_listed": "yes" if listed else "",
        "w_own": _OWN,
        "w_all": _ALL,
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join([*lines, _BODY.replace("SET", "\n  ".join(sets))])
