"""What the engines that are started by a shell of each rank have in common.

What a rank's folders are is known on its node only: a launcher may set a working folder and a TMPDIR.
"""

from __future__ import annotations

from fairlead.engines.model import Call

# Files of a run's folder that have the process numbers of what holds a node's container, of what runs the engine, and of a
# process in the container.
KEPT = "kept"
# Sets three variables to these numbers for this node; $1 is the run's folder. A variable that a user exports stays exported
# when a shell sets it, hence the names.
KEEPER = f"""
read -r fairlead_host </proc/sys/kernel/hostname
read -r fairlead_boot </proc/sys/kernel/random/boot_id
read -r fairlead_keeper fairlead_engine fairlead_inside <"$1/{KEPT}.$fairlead_host.$fairlead_boot"
"""

# Of an image that does not say; what Apptainer gives it.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Bash that has BASH_ENV or exported functions of a site does not take them.
BASH = ("/bin/bash", "-p", "-c")
# Sets `places` to the folders of the machine that a container shows under their own names, as Apptainer
# does; a working folder that is a part of every system is the image's instead.
PLACES = r"""
places=()
for f in /tmp /var/tmp "$HOME" "$PWD" "$TMPDIR"; do
  case $f in
  '' | [!/]* | *:* | / | /bin | /boot | /dev | /etc | /home | /lib* | /mnt | /opt | /proc | /run | /sbin | /srv | /sys | /usr | /var)
    continue ;;
  esac
  [ -d "$f" ] || continue
  for g in "${places[@]}"; do
    case $f/ in "$g"/*) continue 2 ;; esac
  done
  places+=("$f")
done
"""


def variables(call: Call) -> dict[str, str]:
    """Every variable that the container gets besides the rank's own ones.

    The machine's search path and preloads stay outside: they name files of the machine.
    """
    return {
        "PATH": DEFAULT_PATH,
        "LD_LIBRARY_PATH": "",
        "LD_PRELOAD": "",
        **call.image_env,
        **call.env,
        **call.literal,
    }
