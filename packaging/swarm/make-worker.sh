#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes this host a Docker Swarm worker whose tasks get GPUs of their own.  Shows what it would do; does it with --write.
#
#   make-worker.sh [--write] [--shares N] [--name NAME] [--root DIR]
#
#   --shares N    name each GPU N times, for as many tasks to share it
#   --name NAME   the resource's name: services ask for NAME=1 (GPU)
#   --root DIR    the host's root, where that is not /
#
# It joins no swarm and restarts nothing, but says which restart it takes.  A second time it has nothing to do.
set -eu
umask 022

write='' shares='' name=GPU root=''
fail() {
    echo "make-worker.sh: $*" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        sed -n '3,/^set/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    --write) write=yes ;;
    --shares | --name | --root)
        [ $# -gt 1 ] || fail "$1 takes a word"
        case $1 in --shares) shares=$2 ;; --name) name=$2 ;; --root) root=${2%/} ;; esac
        shift
        ;;
    *) fail "unknown word '$1': it knows --write, --shares N, --name NAME and --root DIR" ;;
    esac
    shift
done
command -v oci-gpu-hook >/dev/null || fail "oci-gpu-hook is not in PATH: install it first"

settings=$root/etc/oci-gpu-hook.conf
drop_in=$settings.d/50-swarm.conf
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
changes=''

# Runs a command of oci-gpu-hook.  What it says of what this script does itself is left out, unless it fails.
hook() {
    code=0
    oci-gpu-hook "$@" >"$scratch/said" 2>"$scratch/told" || code=$?
    cat "$scratch/said"
    if [ $code != 0 ]; then
        cat "$scratch/told" >&2
        exit $code
    fi
    grep -v -e '^so that it holds: ' -e '^set in ' "$scratch/told" >&2 || :
    if grep -q '^wrote ' "$scratch/said"; then changes=yes; fi
}

# First what can fail: nothing is written if this host has no GPU to give.  A service can name no runtime.
echo "== dockerd's runtime, for all containers, and the GPUs as its resources"
set -- --host-root "${root:-/}" --set-as-default --swarm "$name"
[ -z "$shares" ] || set -- "$@" --shares "$shares"
[ "$write" ] || set -- "$@" --dry-run
hook configure docker "$@"
# The line of settings that it asks for, beside what is there; none if it is there.
line=$(sed -n 's/^set in [^:]*: \(swarm-resources = .*\)$/\1/p' "$scratch/told")

echo "== the hook's setting"
if [ -z "$line" ]; then
    echo "nothing to do in $settings"
elif [ -z "$write" ]; then
    echo "$drop_in: $line"
else
    mkdir -p "$settings.d"
    printf '# What Docker Swarm tells a task of its GPUs.\n%s\n' "$line" >"$drop_in.new"
    mv "$drop_in.new" "$drop_in"
    changes=yes
    echo "wrote $drop_in: $line"
    # A file behind it may say something else.
    set --
    [ -z "$root" ] || set -- --config "$settings"
    oci-gpu-hook info --settings "$@" >"$scratch/said"
    grep -qF "50-swarm.conf:2" "$scratch/said" || {
        grep '^swarm-resources' "$scratch/said" >&2
        echo "make-worker.sh: another file has the last word on swarm-resources: write that line there" >&2
        exit 1
    }
fi

echo "== then"
if [ -z "$write" ]; then
    echo "nothing was written: --write does it"
elif [ "$changes" ]; then
    echo "restart dockerd, which reads its resources at its start only: systemctl restart docker"
else
    echo "nothing to do"
fi
