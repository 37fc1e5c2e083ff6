# A rank of a node's container, by bash: RUN APPTAINER FOLDER COMMAND..., where FOLDER is the container's to start in, or empty.
#
# Apptainer's own join leaves its starter above the rank, which ends by any signal and takes the rank with it: Slurm sends
# SIGTERM to all processes of a job that is cancelled or out of time, and a rank that saves then would be killed. So Apptainer
# is only asked what a rank sees, its variables and its folder, and the shell enters the container's namespaces and becomes
# the rank. To ask takes 50 ms of a core: it is done once a node, when it is tried whether ranks can join, and a rank's variables
# differ from those of then by its launcher's. Where this cannot be, the rank is Apptainer's.
#
# Names begin with fairlead_, since a variable that the user exports stays exported when a shell sets it.
unset APPTAINER_SHARENS SINGULARITY_SHARENS
export APPTAINER_CONFIGDIR="$1/apptainer"
fairlead_known=$1/kept.$fairlead_host.$fairlead_boot.asked # it goes with the container
fairlead_join=("$2" --quiet exec ${3:+--pwd "$3"} "instance://sharens_instance_$fairlead_keeper")
shift 3
fairlead_enter=(env -i "PATH=$PATH" nsenter --preserve-credentials --target "$fairlead_inside")
[ $EUID -eq 0 ] || fairlead_enter=(setpriv --no-new-privs "${fairlead_enter[@]}") # as Apptainer does
for fairlead_kind in user/U mnt/m ipc/i uts/u net/n cgroup/C pid/p; do
  fairlead_file=ns/${fairlead_kind%/*}
  [ "/proc/self/$fairlead_file" -ef "/proc/$fairlead_inside/$fairlead_file" ] || fairlead_enter+=("-${fairlead_kind#*/}")
done

# The folder, the image's scripts for variables, the variables, and END; a NUL after each.
fairlead_ask() {
  APPTAINERENV_FAIRLEAD_ASIDE=1 "${fairlead_join[@]}" /bin/sh -c '
    printf "%s\0" "$(pwd -P)"
    cat /.singularity.d/env/*.sh 2>/dev/null
    printf "\0"
    cat /proc/$$/environ && printf "END\0"' </dev/null
}

# Sets fairlead_folder, fairlead_scripts and the array fairlead_all from a file of `fairlead_ask`; 1 where it is not whole.
fairlead_answer() {
  local entry entries=()
  while IFS= read -r -d '' entry; do entries+=("$entry"); done
  [ ${#entries[@]} -gt 2 ] && [ "$entry" != END ] && [ "${entries[${#entries[@]} - 1]}" = END ] || return 1
  fairlead_folder=${entries[0]} fairlead_scripts=${entries[1]} fairlead_all=()
  for entry in "${entries[@]:2:${#entries[@]}-3}"; do
    case $entry in FAIRLEAD_ASIDE=* | _=* | SHLVL=*) ;; *) fairlead_all+=("$entry") ;; esac
  done
  # Bash has changed it.
  while IFS= read -r -d '' entry; do
    case $entry in SHLVL=*) fairlead_all+=("$entry") ;; esac
  done </proc/$$/environ
}

# What was answered before, with this rank's variables; 1 where Apptainer would have to be asked.
fairlead_derive() {
  local entry name folder place
  local -A before=() mine=() changed=()
  { read -r -d '' folder && while IFS= read -r -d '' entry; do before[${entry%%=*}]=$entry; done; } <"$fairlead_known/before"
  [ "$folder" = "$(pwd -P)" ] && fairlead_answer <"$fairlead_known/answer" || return 1
  while IFS= read -r -d '' entry; do
    name=${entry%%=*}
    mine[$name]=$entry
    [ "${before[$name]-}" = "$entry" ] || changed[$name]=$entry
  done </proc/$$/environ
  for name in "${!before[@]}"; do [ "${mine[$name]-}" ] || changed[$name]=; done
  unset 'changed[_]' 'changed[PATH]' # the container has the image's, whatever the machine's
  # A script that runs programs may come to something else in each rank, as one that reads what differs.
  case $fairlead_scripts in *'$('* | *'`'* | *'$$'* | *'${!'* | *RANDOM* | *eval* | */proc/*) return 1 ;; esac
  for name in "${!changed[@]}"; do
    case $name in APPTAINER* | SINGULARITY* | LD_* | HOME | PWD | USER | PS1 | PROMPT*) return 1 ;; esac
    case $fairlead_scripts in *"$name"*) return 1 ;; esac
  done
  place=0
  for entry in "${fairlead_all[@]}"; do
    name=${entry%%=*}
    # Apptainer's USER_PATH is the machine's, and folders after it.
    case $entry in "USER_${before[PATH]-PATH=}"*)
      fairlead_all[place]=USER_${mine[PATH]-PATH=}${entry#"USER_${before[PATH]-PATH=}"} ;;
    esac
    if [ "${changed[$name]+set}" ]; then
      [ "$entry" = "${before[$name]-}" ] || return 1 # it was not handed on as it was
      if [ "${changed[$name]}" ]; then fairlead_all[place]=${changed[$name]}; else unset "fairlead_all[place]"; fi
      unset "changed[$name]"
    fi
    place=$((place + 1))
  done
  for name in "${!changed[@]}"; do
    [ ! "${before[$name]-}" ] || continue # Apptainer keeps it from the container
    fairlead_all+=("${changed[$name]}")
  done
}

if [ "$*" = "/bin/sh -c :" ]; then # PROBE of fairlead.launch.node_container
  rm -rf "$fairlead_known" && mkdir -m 700 "$fairlead_known" || exit
  { printf '%s\0' "$(pwd -P)"; cat /proc/$$/environ; } >"$fairlead_known/before"
  fairlead_ask >"$fairlead_known/partial" && fairlead_answer <"$fairlead_known/partial" || exit
  case " ${fairlead_enter[*]} " in *" -p "*) exit 0 ;; esac # nsenter would stay above the rank, too
  if "${fairlead_enter[@]}" "$@" 2>/dev/null; then mv "$fairlead_known/partial" "$fairlead_known/answer"; fi
  exit 0
fi
case $1 in *=*) exec "${fairlead_join[@]}" "$@" ;; esac # env would take it for a variable
if [ -e "$fairlead_known/answer" ] && { fairlead_derive || fairlead_answer < <(fairlead_ask); }; then
  exec "${fairlead_enter[@]}" /bin/sh -c 'cd "$0" && exec env -i "$@"' "$fairlead_folder" "${fairlead_all[@]}" "$@"
fi
exec "${fairlead_join[@]}" "$@"
