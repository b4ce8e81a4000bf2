#!/bin/sh
# Makes a Docker engine answer on this machine, or prints the one command that does.
#
#   scripts/docker-setup.sh              install Debian's docker.io if needed and start it
#   DOCKER_SETUP=no scripts/docker-setup.sh   change nothing; print the command and exit 3
#
# Exit 0: an engine answers. Exit 3: none does, and the last lines say what to do.
# Safe to repeat: it does nothing when an engine answers already.
set -u

LOG=${DOCKER_SETUP_LOG:-/var/log/nightshift-dockerd.log}
WAIT_S=${DOCKER_SETUP_WAIT_S:-60}
PACKAGES="docker.io iptables"
SELF=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)/$(basename -- "$0")
# Debian keeps the daemon in sbin, which is not on every user's path.
PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin
export PATH

say() { printf 'docker-setup: %s\n' "$*" >&2; }

socket_answers() { # the engine's own socket, asked without a docker client
    command -v curl >/dev/null 2>&1 &&
        $1 curl -fsS --max-time 3 --unix-socket /var/run/docker.sock http://localhost/_ping >/dev/null 2>&1
}

answers() { # answers [sudo]
    if command -v docker >/dev/null 2>&1; then
        $1 timeout 10 docker info >/dev/null 2>&1 && return 0
    fi
    [ -z "${DOCKER_HOST:-}" ] && socket_answers "$1"
}

give_up() { # give_up REASON
    say "$1"
    say "this one command sets Docker up:"
    printf '\n    %s\n\n' "${2:-sudo sh $SELF}" >&2
    exit 3
}

answers "" && exit 0

if [ -n "${DOCKER_HOST:-}" ]; then
    give_up "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST" "unset DOCKER_HOST && sh $SELF"
fi
if [ "$(id -u)" = 0 ]; then
    AS_ROOT=""
    MANUAL="sh $SELF"
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    AS_ROOT="sudo -n"
    MANUAL="sudo sh $SELF"
else
    AS_ROOT=none
    MANUAL="sudo sh $SELF"
fi
[ "${DOCKER_SETUP:-yes}" = no ] && give_up "no Docker engine answers and DOCKER_SETUP=no forbids setting one up" "env -u DOCKER_SETUP $MANUAL"

# A running engine that this user may not reach is a matter of groups, not of installing.
JOIN_GROUP="sudo usermod -aG docker $(id -un) && newgrp docker"
if [ "$AS_ROOT" = none ]; then
    [ -S /var/run/docker.sock ] && [ ! -w /var/run/docker.sock ] &&
        give_up "a Docker engine is there, but $(id -un) may not use it" "$JOIN_GROUP"
    give_up "no Docker engine answers, and setting one up needs root or passwordless sudo"
fi
if [ "$AS_ROOT" = "sudo -n" ] && answers "sudo -n"; then
    give_up "a Docker engine runs, but $(id -un) may not use it" "$JOIN_GROUP"
fi

install_engine() {
    command -v apt-get >/dev/null 2>&1 ||
        give_up "no Docker daemon is installed and this is not a Debian-like system" "see https://docs.docker.com/engine/install/"
    say "no Docker engine answers. Will install the Debian packages '$PACKAGES' and start the daemon"
    say "(DOCKER_SETUP=no prevents this)"
    $AS_ROOT apt-get update -qq || say "apt-get update failed; trying with the lists that are there"
    # policy-rc.d or a missing init may refuse to start the service: it is started below either way.
    # shellcheck disable=SC2086
    $AS_ROOT env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $PACKAGES >&2 ||
        give_up "apt-get could not install $PACKAGES" "$MANUAL"
    # From Debian 13 on the client is a package of its own; we can do without it.
    if ! command -v docker >/dev/null 2>&1 && apt-cache show docker-cli >/dev/null 2>&1; then
        $AS_ROOT env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker-cli >&2 || true
    fi
    command -v dockerd >/dev/null 2>&1 || give_up "docker.io is installed but there is no dockerd" "$MANUAL"
}

drop_stale_pid_file() { # drop_stale_pid_file FILE PROGRAM
    # dockerd refuses to start while the number in its pid file belongs to any living process, its own or not.
    pid=$($AS_ROOT cat "$1" 2>/dev/null) || return 0
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] && return 0
    $AS_ROOT rm -f "$1"
}

start_by_hand() { # start_by_hand [dockerd options]
    for run in /var/run /run; do
        drop_stale_pid_file $run/docker.pid dockerd
        drop_stale_pid_file $run/docker/containerd/containerd.pid containerd
    done
    # A session of its own and no inherited file: neither Ctrl-C nor the end of make reaches it.
    # shellcheck disable=SC2016
    $AS_ROOT sh -c 'log=$1; shift; : >"$log"; cd /; setsid dockerd "$@" >>"$log" 2>&1 </dev/null &' dockerd "$LOG" "$@"
}

wait_for_engine() {
    waited=0
    while [ "$waited" -lt "$WAIT_S" ]; do
        answers "$AS_ROOT" && return 0
        # Waiting longer for a daemon that has already given up is pointless.
        if [ "$1" = by-hand ] && [ "$waited" -ge 2 ] && ! daemon_alive; then return 1; fi
        sleep 1
        waited=$((waited + 1))
    done
    return 1
}

daemon_alive() { # a dockerd that runs, not one that is only waiting for its parent to notice its end
    for status in /proc/[0-9]*/status; do
        awk '/^Name:/ { name = $2 } /^State:/ { state = $2; exit } END { exit !(name == "dockerd" && state !~ /[ZX]/) }' \
            "$status" 2>/dev/null && return 0
    done
    return 1
}

if command -v dockerd >/dev/null 2>&1; then
    say "no Docker engine answers. Will start the daemon that is installed (DOCKER_SETUP=no prevents this)"
else
    install_engine
fi

if [ -d /run/systemd/system ]; then
    HOW=service
    $AS_ROOT systemctl start docker || true
    wait_for_engine service || {
        $AS_ROOT journalctl -u docker -n 20 --no-pager >&2 2>/dev/null
        give_up "the docker service did not come up within ${WAIT_S} s (its last lines are above)" "sudo systemctl restart docker && sudo journalctl -u docker -e"
    }
else
    HOW="log: $LOG"
    # A second try: the daemon that was seen at first may have been on its way out.
    for _ in 1 2; do
        daemon_alive || start_by_hand
        wait_for_engine by-hand && break
    done
    if ! answers "$AS_ROOT" && grep -qi iptables "$LOG" 2>/dev/null && ! daemon_alive; then
        # Sandboxes have no network, so an engine without one serves us as well.
        say "dockerd could not set up its firewall; trying without a network bridge"
        start_by_hand --bridge=none --iptables=false --ip6tables=false
        wait_for_engine by-hand
    fi
    answers "$AS_ROOT" || {
        say "dockerd does not answer; the last lines of $LOG:"
        $AS_ROOT tail -n 20 "$LOG" >&2
        give_up "the Docker daemon did not come up" "$MANUAL"
    }
fi

answers "" || give_up "the Docker engine runs now, but $(id -un) may not use it yet" "$JOIN_GROUP"
say "the Docker engine answers ($HOW)"
