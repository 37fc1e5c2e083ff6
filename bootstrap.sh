#!/bin/sh
# From a machine with only sh and a fresh clone to a working .venv, and then a machine on which
# `fairlead doctor` has nothing to say. Needs nothing first, can be killed anywhere and run again.
#
#   sh bootstrap.sh         the virtual environment and the machine (`make setup`)
#   sh bootstrap.sh venv    the virtual environment only (`make check`)
#   sh bootstrap.sh test    and what only the tests run: a registry, Podman (`make test`)
#
# System packages come from apt: as root, or by sudo; without either, the line to type is printed.
set -eu
cd "$(dirname "$0")"

VENV=.venv
LOCK=requirements-dev.lock
PACKAGES=runtime/fairlead/doctor/system_packages.txt
TEST_PACKAGES=tests/system/system_packages.txt
LOG=
DATA="${XDG_DATA_HOME:-${HOME:-/}/.local/share}/fairlead"

# These would reach into, or out of, the virtual environment.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1

main() {
    # One at a time in a clone. What a killed run left running keeps the lock until it ends.
    exec 9<bootstrap.sh
    flock -n 9 || { echo "  ..    waiting for another make in this folder" >&2; flock 9; }
    venv_key="$(cat pyproject.toml bootstrap.sh "$LOCK" | sha256sum) $PWD"
    if [ "$(read_stamp made)" != "$venv_key" ] || ! "$VENV/bin/python" -c '' 2>/dev/null; then
        make_venv
    fi
    [ "${1:-}" = venv ] && return
    if [ "$(read_stamp ready)" != "$(machine_key)" ]; then
        "$VENV/bin/fairlead" doctor --fix --yes
        write_stamp ready "$(machine_key)"
    fi
    [ "${1:-}" = test ] || return 0
    wanted="$(missing_packages "$TEST_PACKAGES" | tr '\n' ' ')"
    [ -z "$wanted" ] || install_packages "$wanted"
}

# What the set-up of this machine depends on and what it made: when one of it changes, doctor looks
# again.
machine_key() {
    {
        echo "$venv_key"
        id -u
        cat /proc/sys/kernel/random/boot_id
        cat runtime/fairlead/doctor/*.txt runtime/fairlead/mpi/*.toml
        ls -ld "$DATA"/apptainer/current/bin/apptainer "$DATA"/mpi/*/bin/mpiexec /dev/fuse 2>&1
        missing_packages "$PACKAGES"
        cat /etc/subuid /etc/subgid 2>&1
    } | sha256sum
}

read_stamp() { cat "$VENV/.fairlead-$1" 2>/dev/null || true; }
write_stamp() { echo "$2" >"$VENV/.fairlead-$1.new" && mv "$VENV/.fairlead-$1.new" "$VENV/.fairlead-$1"; }

make_venv() {
    python=$(find_python) || {
        install_packages "python3 python3-venv $(missing_packages "$PACKAGES" | tr '\n' ' ')"
        python=$(find_python) || stop "no Python 3.11 or newer with venv and ensurepip" \
            "install one and put it first on PATH, then: make setup"
    }
    # Only a whole environment bears the stamp: what a killed run left does not, and one that was
    # moved with its folder bears another path.
    case "$(read_stamp made)" in
        *" $PWD") "$VENV/bin/python" -c '' 2>/dev/null || rm -rf "$VENV" ;;
        *) rm -rf "$VENV" ;;
    esac
    [ -d "$VENV" ] ||
        stage "virtual environment ($("$python" --version))" "$python" -m venv "$VENV"
    rm -f "$VENV/.fairlead-made"
    stage "Python packages" "$VENV/bin/python" -m pip install --progress-bar off \
        --no-deps --require-hashes -r "$LOCK"
    stage "fairlead itself" "$VENV/bin/python" -m pip install --no-deps --no-build-isolation -e .
    # Where PYTHONDONTWRITEBYTECODE is set, every start would compile the checkout again.
    "$VENV/bin/python" -m compileall -q runtime containers || true
    write_stamp made "$venv_key"
}

# The system's own first: the first on PATH may be a private one.
find_python() {
    for candidate in /usr/bin/python3 python3.13 python3.12 python3.11 python3 python3.14; do
        if found=$(command -v "$candidate") &&
            "$found" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
        then
            echo "$found"
            return
        fi
    done
    return 1
}

missing_packages() {
    while read -r package witness _; do
        case $package in '#'* | '') continue ;; esac
        case $witness in
            /*) [ -e "$witness" ] || echo "$package" ;;
            *) command -v "$witness" >/dev/null || echo "$package" ;;
        esac
    done <"$1"
}

# install_packages NAMES: as root or by sudo; else it says what to type.
install_packages() {
    wanted=$1
    line="apt-get install -y --no-install-recommends $wanted"
    command -v apt-get >/dev/null || stop "this machine has no apt-get" \
        "install Python 3.11 or newer with venv, and the like of: $wanted"
    if [ "$(id -u)" = 0 ]; then
        become=
    elif sudo -n true 2>/dev/null; then
        become="sudo -n"
    elif [ -t 0 ] && command -v sudo >/dev/null && sudo -v; then
        become="sudo -n"
    else
        stop "system packages are missing, and you are neither root nor allowed to use sudo" \
            "ask an administrator for: sudo $line"
    fi
    # shellcheck disable=SC2086
    stage "system packages" $become sh runtime/fairlead/doctor/apt_install.sh $wanted
}

# stage TITLE COMMAND...: runs it into a log; one line when it ends, signs of life meanwhile, and
# the log's end when it fails.
stage() {
    title=$1
    shift
    LOG=$(mktemp)
    begun=$(date +%s)
    signs_of_life 9<&- &
    watcher=$!
    status=0
    "$@" >"$LOG" 2>&1 </dev/null || status=$?
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    [ -t 2 ] && printf '\r\033[K' >&2
    if [ "$status" != 0 ]; then
        echo "  FAIL  $title" >&2
        tail -n 20 "$LOG" >&2
        rm -f "$LOG"
        stop "$title: code $status from: $*" "its words are above; to try again: make setup"
    fi
    rm -f "$LOG"
    echo "  ok    $title ($(($(date +%s) - begun)) s)" >&2
}

signs_of_life() {
    trap - INT TERM HUP
    shown=0
    while sleep 1 && kill -0 $$ 2>/dev/null; do
        seconds=$(($(date +%s) - begun))
        if [ -t 2 ]; then
            printf '\r\033[K  ..    %s (%d s) %.60s' "$title" "$seconds" "$(tail -n 1 "$LOG")" >&2
        elif [ $((seconds - shown)) -ge 15 ]; then
            shown=$seconds
            printf "  ..    %s: %.70s\n" "$title" "$(tail -n 1 "$LOG")" >&2
        fi
    done
}

stop() {
    printf 'error: %s\nnext:  %s\n' "$1" "$2" >&2
    exit 1
}

interrupted() {
    rm -f "$LOG"
    echo "interrupted; run the same command again to go on" >&2
    exit 130
}
trap interrupted INT TERM HUP

main "$@"
