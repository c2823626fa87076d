#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs, upgrades and removes the hook on one node, from a container that has the node's root at $HOST.
#
#   install-node.sh run        install, then wait; SIGTERM ends it, and removes only with REMOVE_ON_TERM=yes
#   install-node.sh install    install or upgrade, and end
#   install-node.sh remove     take everything away again
#   install-node.sh ready      on the node itself, where the MachineConfig has put the files: compile, prove, register
#
#   HOST       the node's root (/host)          HOOKS_DIR  the folder where the node's engine looks for hooks (found out)
#   PAYLOAD    what `make install PREFIX=/usr/local` made (/payload)   GRACE  seconds for hooks still running (30)
#
# Each version has a folder of its own, and the door that the engine starts names it: one rename is the whole upgrade, and
# a container that starts meanwhile finds either version whole. The registration comes last and goes first: an engine
# that had it without the rest could start no container at all, so a version that does not prove itself is not registered.
#
# Needs root, CAP_SYS_CHROOT and an SELinux type that may write the host (spc_t); no namespace of the host's. Of its own
# image it needs sh, coreutils, grep and sed: no find and no xargs, which minimal images lack.
set -eu
umask 022

action=${1:-} host=${HOST:-/host} payload=${PAYLOAD:-/payload} grace=${GRACE:-30}
host=${host%/}
prefix=/usr/local
library=$prefix/lib/oci-gpu-hook
door=$prefix/libexec/oci/hooks.d/oci-gpu-hook
command=$prefix/bin/oci-gpu-hook
delivered=$prefix/libexec/oci-gpu-hook # only there on nodes that the MachineConfig serves
python=/usr/bin/python3
staged='' fresh=''

fail() {
    echo "install-node.sh: $*" >&2
    exit 1
}

# A program of the node's, as the node sees its files.
inside() {
    if [ -n "$host" ]; then chroot "$host" "$@"; else "$@"; fi
}

# Or else: what a command said, in our sentence. $1 says what could not be done.
try() {
    what=$1
    shift
    said=$("$@" 2>&1) || fail "$what: $(echo "$said" | tail -n 1)"
}

# Where /usr/local really is: image-based systems have a link there, which would lead out of $host.
find_local() {
    [ -d "$host/usr" ] || fail "${host:-/} is no node's root: mount the node's / there"
    real=$(inside readlink -f $prefix) || fail "the node's $prefix leads nowhere: make that folder on the node"
    at=$host$real
}

# The place on the node of a path below /usr/local.
on_node() { echo "$at${1#"$prefix"}"; }

check_python() {
    inside $python -IS -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
        fail "the node has no Python 3.9 or later at $python: use an image of the node's system that has it"
}

# CRI-O's own default is the folder below /usr/share alone; OpenShift's configuration adds the one below /etc.
find_hooks_dir() {
    hooks=${HOOKS_DIR:-}
    [ -z "$hooks" ] || return 0
    hooks=/etc/containers/oci/hooks.d
    said_by=
    for file in "$host"/etc/crio/crio.conf "$host"/etc/crio/crio.conf.d/*; do
        # The last that names folders has the say.
        ! grep -qs '^[[:space:]]*hooks_dir[[:space:]]*=' "$file" || said_by=$file
    done
    [ -z "$said_by" ] || ! grep -q "^[^#]*[\"']${hooks}[\"']" "$said_by" || return 0
    hooks=/usr/share/containers/oci/hooks.d
    make_folder "$hooks" 2>/dev/null || :
    [ -w "$host$hooks" ] ||
        fail "the node's CRI-O looks for hooks in $hooks only, which is read-only:" \
            "add \"/etc/containers/oci/hooks.d\" to hooks_dir in /etc/crio/crio.conf.d"
}

# A file of somebody else's in our place is never written over, and never removed.
check_ours() {
    if [ "$action" != ready ] && [ -e "$(on_node $delivered)" ]; then
        fail "a MachineConfig serves this node already: remove that one first, or leave this node out of the DaemonSet"
    fi
    for file in "$(on_node $door)" "$(on_node $command)" "$host$hooks/oci-gpu-hook.json"; do
        if [ -e "$file" ] && ! grep -qs 'oci[-_]gpu[-_]hook' "$file"; then
            fail "$file is there and is not ours: move it away first"
        fi
    done
    folder=$(on_node $library)
    [ "$action" != ready ] && [ ! -e "$folder/installed-folders" ] || return 0
    # What an installation leaves that was killed at its very start is ours all the same.
    for file in "$folder"/* "$folder"/.[!.]*; do
        case $file in */installed-folders.new | */.new) continue ;; esac
        [ ! -e "$file" ] || fail "$folder is there and is not ours: move it away first"
    done
}

# The folder $1 of the node with its parents, remembering which of them are ours to take away again.
make_folder() {
    [ ! -d "$host$1" ] || return 0
    make_folder "$(dirname "$1")" || return 1
    mkdir "$host$1" || return 1
    made="$made$1
"
}

# Standard input as the file $2 of the node with mode $1, whole or not at all.
write() {
    said=$({ cat >"$2.new" && chmod "$1" "$2.new" && mv "$2.new" "$2"; } 2>&1) || {
        rm -f "$2.new"
        fail "cannot write $2: $(echo "$said" | tail -n 1)"
    }
}

# Takes away what another Python has made below the folder $1.
unmake() (
    rm -rf "$1/__pycache__" "$1/__linked__" || exit 1
    for folder in "$1"/*/; do
        [ ! -d "$folder" ] || unmake "${folder%/}" || exit 1
    done
)

# The digest of each file below the folder $1 that no Python has made.
digests() (
    for file in "$1"/*; do
        case $file in */__pycache__ | */__linked__) continue ;; esac
        if [ -d "$file" ]; then digests "$file"; else sha256sum "$file"; fi || exit 1
    done
)

# The node's own Python compiles the package in the folder $1, and links it with $2 for its place $3. Unchecked-hash, as
# image-based systems give every file one time: see install.sh.
compile() {
    try "cannot write below $1" unmake "$host$1"
    try "the node's Python cannot compile $1" inside $python -IS -m compileall -q \
        --invalidation-mode unchecked-hash -d "$1/oci_gpu_hook" "$1/oci_gpu_hook"
    try "the node's Python cannot link $1" inside $python -ISB -X no_debug_ranges \
        "$2" "$1" "$3"
}

# The label that the node's policy has for our places.
label() {
    [ -e "$host/sys/fs/selinux/enforce" ] || return 0
    try "cannot give $1 its SELinux label" inside restorecon -R -F "$1"
}

# A container that asks for no GPU must start: the one thing that must never break. $1 is the package's folder, $2 a door.
# The word void asks for none, but only Python knows that: the door, what is linked and the package are all tried.
prove() {
    trial=$1/trial
    mkdir -p "$host$trial"
    sed "s|=$library/|=$1/|" "$2" >"$host$trial/door"
    echo '{"ociVersion": "1.0.2", "process": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}, "root": {"path": "rootfs"}}' \
        >"$host$trial/config.json"
    said=$(echo "{\"ociVersion\": \"1.0.2\", \"id\": \"trial\", \"status\": \"created\", \"pid\": 1, \"bundle\": \"$trial\"}" |
        inside /bin/bash -p "$trial/door" createRuntime 2>&1) && proved=yes || proved=no
    rm -rf "$host$trial"
    [ "$proved" = yes ] || fail "the hook does not start on this node, so it was not registered: $(echo "$said" | tail -n 1)"
}

# Which version is which: what is installed, and for which Python.
version_of_payload() {
    digest=$(cd "$payload" && digests .) || fail "$payload cannot be read: $digest"
    digest=$(echo "$digest" | sha256sum)
    tag=$(inside $python -IS -c 'import sys; print(sys.implementation.cache_tag)')
    version=$(echo "$digest" | cut -c1-12)-$tag
}

# Into a folder that no door names yet.
stage() {
    staged=$(on_node $library)/.new
    rm -rf "$staged"
    try "cannot write below $(on_node $library)" mkdir "$staged"
    for part in "$payload$library"/*/; do
        try "cannot write below $(on_node $library)" cp -R "${part%/}" "$staged/"
    done
    try "cannot write below $(on_node $library)" cp -R "$payload$prefix/share/oci-gpu-hook/policy" "$staged/"
    try "cannot write below $(on_node $library)" cp "$payload$library/link.py" "$staged/"
    compile "$real/lib/oci-gpu-hook/.new" "$real/lib/oci-gpu-hook/.new/link.py" "$library/$version"
    label "$real/lib/oci-gpu-hook/.new"
    prove "$real/lib/oci-gpu-hook/.new" "$payload$door"
    try "cannot put the new version in its place" mv "$staged" "$(on_node $library)/$version"
    staged=
}

# The doors of the payload, led to this version.
open_doors() {
    for file in $command $door; do
        sed "s|\([\"=]\)$library|\1$library/$version|" "$payload$file" | write 0755 "$(on_node "$file")"
        label "$real${file#"$prefix"}"
    done
}

# Versions that no door names; a hook that was started by the old door may still be reading its own.
prune() {
    for folder in "$(on_node $library)"/*/; do
        case $folder in */"$version"/ | */\*/) continue ;; esac
        [ "$grace" = 0 ] || sleep "$grace"
        rm -rf "$folder"
    done
}

do_install() {
    [ -d "$payload$library" ] || fail "there is no installation in $payload: build the image from the Containerfile"
    find_local
    made=
    check_python
    find_hooks_dir
    check_ours
    version_of_payload
    [ -e "$host$hooks/oci-gpu-hook.json" ] || fresh=yes
    for folder in "$library" "$(dirname $door)" "$(dirname $command)"; do
        folder=$real${folder#"$prefix"}
        make_folder "$folder" 2>/dev/null || fail "cannot make $folder on the node: it is read-only or full"
    done
    make_folder "$hooks" 2>/dev/null || fail "cannot make $hooks on the node: it is read-only or full"
    list=$(on_node $library)/installed-folders
    { cat "$list" 2>/dev/null || :; printf %s "$made"; } | write 0644 "$list"
    [ -d "$(on_node $library)/$version" ] || stage
    open_doors
    write 0644 "$host$hooks/oci-gpu-hook.json" <"$payload$prefix/share/containers/oci/hooks.d/oci-gpu-hook.json"
    fresh=
    prune
    echo "installed version $version, registered in $hooks"
}

do_ready() {
    find_local
    hooks=${HOOKS_DIR:?} made=
    check_ours
    # Whatever goes wrong from here on, an engine that starts next starts containers without us.
    rm -f "$host$hooks/oci-gpu-hook.json"
    check_python
    compile "$real/lib/oci-gpu-hook" "$real/lib/oci-gpu-hook/link.py" "$library"
    label "$real/lib/oci-gpu-hook"
    label "$real/libexec/oci/hooks.d/oci-gpu-hook"
    prove "$real/lib/oci-gpu-hook" "$(on_node $door)"
    make_folder "$hooks" || fail "cannot make $hooks on the node: it is read-only or full"
    write 0644 "$host$hooks/oci-gpu-hook.json" <"$(on_node $delivered)/oci-gpu-hook.json"
    echo "registered in $hooks"
}

# The registration first; then all that is ours, and the folders that were not there before us.
take_away() {
    folders=$(cat "$(on_node $library)/installed-folders" 2>/dev/null || :)
    try "cannot remove what is installed" rm -f "$host$hooks/oci-gpu-hook.json" "$host$hooks/oci-gpu-hook.json.new"
    for file in $door $command; do
        try "cannot remove what is installed" rm -f "$(on_node "$file")" "$(on_node "$file").new"
    done
    try "cannot remove what is installed" rm -rf "$(on_node $library)" "$host/run/oci-gpu-hook"
    printf '%s\n' "$folders" "$made" | sort -ru | while read -r folder; do
        [ -z "$folder" ] || rmdir "$host$folder" 2>/dev/null || :
    done
}

do_remove() {
    find_local
    made=
    find_hooks_dir
    check_ours
    take_away
    echo "removed; /etc/oci-gpu-hook.conf, if there is one, is the administrator's"
}

# The pod stays, so that the node is served again after its next boot, and so that what went wrong shows.
do_run() {
    trap 'finish' TERM INT
    do_install
    echo "waiting; REMOVE_ON_TERM=${REMOVE_ON_TERM:-no}"
    while :; do
        sleep 3600 &
        wait $! || :
    done
}

finish() {
    trap '' TERM INT
    action=remove
    [ "${REMOVE_ON_TERM:-no}" != yes ] || do_remove
    exit 0
}

# A first installation that fails leaves nothing; an upgrade that fails leaves the version that works.
undo() {
    trap '' EXIT
    [ -z "$staged" ] || rm -rf "$staged"
    [ -z "$fresh" ] || take_away
}

trap undo EXIT
case $action in
run) do_run ;;
install) do_install ;;
remove) do_remove ;;
ready) do_ready ;;
*) fail "knows run, install, remove and ready only, not '$action'" ;;
esac
