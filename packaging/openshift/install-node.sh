#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs, upgrades and removes the hook on one node, from a container that has the node's root at $HOST.
#
#   install-node.sh run        install, then wait; SIGTERM ends it, and removes only with REMOVE_ON_TERM=yes
#   install-node.sh install    install or upgrade, and end
#   install-node.sh remove     take everything away again
#   install-node.sh ready      on the node itself, at its boot: install what the MachineConfig has put there
#
#   HOST       the node's root (/host)          HOOKS_DIR  the folder where the node's CRI-O looks for hooks (found out)
#   PAYLOAD    what `make install PREFIX=/usr/local` made (/payload)   GRACE  seconds for hooks still running (30)
#
# Each version has a folder of its own, which the scripts name: one rename is the whole upgrade, and a container
# that starts meanwhile finds one whole version. The registration is added last and removed first: an engine that has it
# without the rest can start no container at all. So a version that fails its trial is not registered. With CRI-O it is a
# file that CRI-O reads at each container; with containerd a drop-in that makes our runtime the default one, and a restart
# of containerd, which leaves its containers alone.
#
# Needs root, CAP_SYS_CHROOT and an SELinux type that may write to the host (spc_t), and no namespace of the host. From
# its own image it needs sh, coreutils, grep and sed, but no find and no xargs, which minimal images lack.
set -eu
umask 022

action=${1:-} host=${HOST:-/host} payload=${PAYLOAD:-/payload} grace=${GRACE:-30}
host=${host%/}
prefix=/usr/local
library=$prefix/lib/oci-gpu-hook
entry=$prefix/libexec/oci/hooks.d/oci-gpu-hook
start=$prefix/libexec/oci-gpu-hook-start
command=$prefix/bin/oci-gpu-hook
# Only with containerd.
runtime=$prefix/bin/oci-gpu-runtime
drop_in=/etc/containerd/conf.d/99-oci-gpu-hook.toml
socket=/run/containerd/containerd.sock
# What else of the payload is installed as it is.
shared='share/oci-gpu-hook/vendors lib/systemd/system lib/udev/rules.d lib/tmpfiles.d'
delivered=$prefix/libexec/oci-gpu-hook # only there on nodes that the MachineConfig serves
python=/usr/bin/python3
staged='' fresh='' unpacked='' hooks='' unserved=''

fail() {
    echo "install-node.sh: $*" >&2
    exit 1
}

# Runs a program of the node in the node's root.
inside() {
    if [ -n "$host" ]; then chroot "$host" "$@"; else "$@"; fi
}

# Runs a command; if it fails, fails with $1, which says what could not be done, and the last line of its output.
try() {
    what=$1
    shift
    said=$("$@" 2>&1) || fail "$what: $(echo "$said" | tail -n 1)"
}

# Finds the real path of /usr/local: image-based systems have a link there, which would lead out of $host.
find_local() {
    [ -d "$host/usr" ] || fail "${host:-/} is not a node's root: mount the node's / there"
    real=$(inside readlink -f $prefix) ||
        fail "the node's $prefix leads nowhere: make that folder on the node, or give the pod root and SYS_CHROOT"
    at=$host$real
}

# The place on the node of a path below /usr/local.
on_node() { echo "$at${1#"$prefix"}"; }

check_python() {
    inside $python -IS -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
        fail "the node has no Python 3.9 or later at $python: use an image of the node's system that has it"
}

# Which engine runs the node's pods, crio or containerd. Where another one does, all would look well here, and no container
# would get a GPU. A node may have the settings of an engine that it does not run, and Docker's containerd beside CRI-O.
find_engine() {
    engine=crio
    [ -z "${HOOKS_DIR:-}" ] && [ ! -e "$host/run/crio" ] || return 0
    if [ -e "$host$socket" ] && [ -e "$host/etc/containerd/config.toml" ]; then
        engine=containerd
    elif [ ! -e "$host/etc/crio" ]; then
        fail "the node runs neither CRI-O nor a containerd that has /etc/containerd/config.toml: see README.md, Which way is yours?"
    fi
}

# CRI-O's own default is the folder below /usr/share alone; OpenShift's configuration adds the one below /etc.
find_hooks_dir() {
    hooks=${HOOKS_DIR:-}
    [ -z "$hooks" ] || return 0
    hooks=/etc/containers/oci/hooks.d
    set_by=
    for file in "$host"/etc/crio/crio.conf "$host"/etc/crio/crio.conf.d/*; do
        # The last file that sets it counts.
        ! grep -qs '^[[:space:]]*hooks_dir[[:space:]]*=' "$file" || set_by=$file
    done
    [ -z "$set_by" ] || ! grep -q "^[^#]*[\"']${hooks}[\"']" "$set_by" || return 0
    hooks=/usr/share/containers/oci/hooks.d
    make_folder "$hooks" 2>/dev/null || :
    [ -w "$host$hooks" ] ||
        fail "the node's CRI-O looks for hooks in $hooks only, which is read-only:" \
            "add \"/etc/containers/oci/hooks.d\" to hooks_dir in /etc/crio/crio.conf.d"
}

# Prints our registrations on the node: also one in a folder that CRI-O's settings named before.
registrations() {
    # shellcheck disable=SC2046
    for folder in "$hooks" $(cat "$(on_node $library)/installed-hooks" 2>/dev/null) \
        /etc/containers/oci/hooks.d /usr/share/containers/oci/hooks.d; do
        ! grep -qs "\"$entry\"" "$host$folder/oci-gpu-hook.json" || echo "$host$folder/oci-gpu-hook.json"
    done | sort -u
}

# Whether the node's engine knows the hook already, or may know it.
is_registered() {
    if [ $engine = crio ]; then
        [ -n "$(registrations)" ]
    else
        names_runtime || { [ -e "$(on_node $runtime)" ] && is_unread; }
    fi
}

# All but $1, by whatever path.
remove_registrations() {
    kept=$([ -z "${1:-}" ] || readlink -f "$1")
    registrations | while read -r file; do
        [ "$(readlink -f "$file")" = "$kept" ] || rm -f "$file" || exit 1
    done
}

# Fails where another program's file is in our place: it is never replaced or removed.
check_ours() {
    if [ "$action" != ready ] && [ -e "$(on_node $delivered)" ]; then
        fail "a MachineConfig serves this node already: remove that one first, or leave this node out of the DaemonSet"
    fi
    for file in "$(on_node $entry)" "$(on_node $start)" "$(on_node $command)" "$(on_node $runtime)" \
        "$host$hooks/oci-gpu-hook.json"; do
        if [ -e "$file" ] && ! grep -qs 'oci[-_]gpu[-_]hook' "$file"; then
            fail "$file is there and is not ours: move it away first"
        fi
    done
    folder=$(on_node $library)
    [ "$action" != ready ] && [ ! -e "$folder/installed-folders" ] || return 0
    # An installation that was killed at its very start leaves these, and no list yet.
    for file in "$folder"/* "$folder"/.[!.]*; do
        case $file in */installed-folders.new | */.new) continue ;; esac
        [ ! -e "$file" ] || fail "$folder is there and is not ours: move it away first"
    done
}

# Makes the folder $1 on the node with its parents, and remembers those that must be removed with us.
make_folder() {
    [ ! -d "$host$1" ] || return 0
    make_folder "$(dirname "$1")" || return 1
    mkdir "$host$1" || return 1
    made="$made$1
"
}

# Writes standard input to the file $2 of the node with mode $1, whole or not at all.
write() {
    said=$({ cat >"$2.new" && chmod "$1" "$2.new" && mv "$2.new" "$2"; } 2>&1) || {
        rm -f "$2.new"
        fail "cannot write $2: $(echo "$said" | tail -n 1)"
    }
}

# Removes what another Python has compiled and linked below the folder $1.
unmake() (
    rm -rf "$1/__pycache__" "$1/__linked__" || exit 1
    for folder in "$1"/*/; do
        [ ! -d "$folder" ] || unmake "${folder%/}" || exit 1
    done
)

# The digest of each file below the folder $1, without compiled and linked ones.
digests() (
    for file in "$1"/*; do
        case $file in */__pycache__ | */__linked__) continue ;; esac
        if [ -d "$file" ]; then digests "$file"; else sha256sum "$file"; fi || exit 1
    done
)

# The node's own Python compiles the package in the folder $1, and links it with $2 for its installed path $3.
# unchecked-hash: see install.sh.
compile() {
    try "cannot write below $1" unmake "$host$1"
    try "the node's Python cannot compile $1" inside $python -IS -m compileall -q \
        --invalidation-mode unchecked-hash -d "$1/oci_gpu_hook" "$1/oci_gpu_hook"
    try "the node's Python cannot link $1" inside $python -ISB -X no_debug_ranges \
        "$2" "$1" "$3"
}

# Gives $1 the label that the node's policy has for it.
label() {
    [ -e "$host/sys/fs/selinux/enforce" ] || return 0
    try "cannot give $1 its SELinux label" inside restorecon -R -F "$1"
}

# Writes the script $2 of the payload to $3, for a package in the folder $1.
stage_script() {
    sed "s|\"$library/|\"$1/|" "$payload$2" >"$3"
    chmod 0755 "$3"
}

# A trial: a container that asks for no GPU must start, whatever happens. $1 is the package's folder. The word void asks for
# none, but only Python knows that: so both scripts, the linked file and the package run.
prove() {
    trial=$1/trial
    mkdir -p "$host$trial"
    echo '{"ociVersion": "1.0.2", "process": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}, "root": {"path": "rootfs"}}' \
        >"$host$trial/config.json"
    proved=yes
    for script in $entry $start; do
        stage_script "$1" "$script" "$host$trial/script"
        said=$(echo "{\"ociVersion\": \"1.0.2\", \"id\": \"trial\", \"status\": \"created\", \"pid\": 1, \"bundle\": \"$trial\"}" |
            inside "$trial/script" createRuntime 2>&1) || proved=no
        [ "$proved" = yes ] || break
    done
    if [ "$proved$engine" = yescontainerd ]; then
        stage_script "$1" $runtime "$host$trial/script"
        said=$(inside "$trial/script" --version 2>&1) || proved=no
    fi
    rm -rf "$host$trial"
    [ "$proved" = yes ] || fail "the hook does not start on this node, so it was not registered: $(echo "$said" | tail -n 1)"
}

# The version: a digest of what is installed, and the Python that it is for.
version_of_payload() {
    digest=$(cd "$payload" && digests .) || fail "$payload cannot be read: $digest"
    digest=$(echo "$digest" | sha256sum)
    tag=$(inside $python -IS -c 'import sys; print(sys.implementation.cache_tag)')
    version=$(echo "$digest" | cut -c1-12)-$tag
}

# Copies the payload into a folder that no script names yet.
stage() {
    staged=$(on_node $library)/.new
    rm -rf "$staged"
    try "cannot write below $(on_node $library)" mkdir "$staged"
    for part in "$payload$library"/*/; do
        try "cannot write below $(on_node $library)" cp -R "${part%/}" "$staged/"
    done
    try "cannot write below $(on_node $library)" cp -R "$payload$prefix/share/selinux/packages/oci-gpu-hook" "$staged/policy"
    try "cannot write below $(on_node $library)" cp "$payload$library/link.py" "$staged/"
    compile "$real/lib/oci-gpu-hook/.new" "$real/lib/oci-gpu-hook/.new/link.py" "$library/$version"
    label "$real/lib/oci-gpu-hook/.new"
    prove "$real/lib/oci-gpu-hook/.new"
    try "cannot put the new version in its place" mv "$staged" "$(on_node $library)/$version"
    staged=
}

# Installs the payload's scripts, which name this version from now on.
switch_version() {
    for file in $command $start $entry $(has_runtime && echo $runtime); do
        sed "s|\"$library|\"$library/$version|" "$payload$file" | write 0755 "$(on_node "$file")"
        label "$real${file#"$prefix"}"
    done
}

# Prints what of the payload is installed as it is.
list_shared() {
    for folder in $shared; do
        for file in "$payload$prefix/$folder"/*; do
            [ ! -e "$file" ] || echo "$folder/${file##*/}"
        done
    done
}

# No start may miss a vendor's file meanwhile: nothing is removed here, and the list has the earlier payload's files too.
install_shared() {
    list_of_files=$(on_node $library)/installed-files
    { cat "$list_of_files" 2>/dev/null || :; list_shared; } | sort -u | write 0644 "$list_of_files"
    list_shared | while read -r name; do
        write 0644 "$at/$name" <"$payload$prefix/$name"
        label "$real/$name"
    done
}

# What the earlier payload alone had: a vendor's flag may be another file's now.
remove_earlier() {
    while read -r name; do
        [ -e "$payload$prefix/$name" ] ||
            try "cannot remove what an earlier version had" rm -f "$at/$name" "$at/$name.new"
    done <"$list_of_files"
    list_shared | write 0644 "$list_of_files"
}

remove_shared() {
    list_of_files=$(on_node $library)/installed-files
    [ ! -e "$list_of_files" ] || while read -r name; do
        try "cannot remove what is installed" rm -f "$at/$name" "$at/$name.new"
    done <"$list_of_files"
}

# Tells the node's systemd something, or asks it, by the node's D-Bus, whose socket is in /run. systemd's own socket does
# not answer, as its process is in another PID namespace.
ask_systemd() { inside env SYSTEMD_IGNORE_CHROOT=1 SYSTEMCTL_FORCE_BUS=1 systemctl --quiet "$@"; }

# Sets told, to "" if it does not answer: nothing here may fail the installation, as the hook works without.
tell_systemd() {
    told=yes
    [ ! -d "$host/run/systemd/system" ] || ask_systemd "$@" >&2 || {
        told=''
        echo "the node's systemd was not told: systemctl $*" >&2
    }
}

# The units that keep the inventory, with what NVML says of MIG devices, as a package's installation enables them: each
# once, as an administrator may disable it, and until systemd has heard of it.
start_units() {
    once=$(on_node $library)/enabled-units
    enabled=$(sed -n 's/^enable //p' "$payload$prefix"/lib/systemd/system-preset/*.preset 2>/dev/null) || return 0
    # The hook works without them: nothing here may fail the installation.
    [ -d "$host/run/systemd/system" ] || return 0
    inside systemd-tmpfiles --create "$prefix/lib/tmpfiles.d/oci-gpu-hook.conf" || :
    tell_systemd daemon-reload
    for unit in $enabled; do
        if ! grep -qsxF "$unit" "$once"; then
            tell_systemd enable "$unit"
            [ -z "$told" ] || echo "$unit" >>"$once"
        fi
        ! ask_systemd is-enabled "$unit" 2>/dev/null || tell_systemd --no-block start "$unit"
    done
}

# Registers the hook with CRI-O, which reads the folder at each container.
register_hook() {
    echo "$hooks" | write 0644 "$(on_node $library)/installed-hooks"
    write 0644 "$host$hooks/oci-gpu-hook.json" <"$payload$prefix/share/containers/oci/hooks.d/oci-gpu-hook.json"
    fresh=
    remove_registrations "$host$hooks/oci-gpu-hook.json"
}

# Whether the node gets our runtime, or has it from a time when containerd ran its pods.
has_runtime() { [ $engine = containerd ] || [ -e "$(on_node $runtime)" ]; }

# Makes our runtime the default one of containerd. containerd itself must say that it reads that, before it is restarted.
register_runtime() {
    try "our runtime does not start on this node, so it was not registered" inside $runtime --version
    # After a loss of power a setting that names an empty program would keep all pods from starting.
    inside sync -f "$real" || :
    before=$(cat "$host$drop_in" 2>/dev/null) || :
    try "our runtime cannot be written into containerd's settings" inside $command configure containerd --set-as-default
    told=$(echo "$said" | grep -v '^wrote \|^nothing to do\|^so that it holds') || :
    why=$(judge_settings)
    if [ -n "$why" ]; then
        [ -z "$before" ] || echo "$before" | write 0644 "$host$drop_in"
        fail "$why"
    fi
    [ -z "$told" ] || echo "$told" >&2
    if is_unread; then
        unserved=
        ask_systemd restart containerd >&2 || {
            # Where systemd has not answered, it is as before.
            ! is_unread || unserved=$fresh
            withdraw_runtime restart
            fail "containerd could not be restarted with our runtime as its default one, and has it no more: see its journal"
        }
    fi
    fresh=
}

# Prints why containerd would not start all pods by our runtime with its settings as they are, if it would not.
judge_settings() {
    if ! read_by=$(inside containerd config dump 2>&1); then
        echo "the node's 'containerd config dump' fails: $(echo "$read_by" | tail -n 1)"
    elif echo "$read_by" | grep -q "disabled_plugins = .*cri[\"'.]"; then
        echo "containerd's CRI plugin is off (disabled_plugins), so another engine runs the node's pods: see README.md"
    elif ! echo "$read_by" | grep -q "default_runtime_name = [\"']${runtime##*/}[\"']"; then
        echo "containerd does not read $drop_in: $told"
    fi
}

# Whether our drop-in is there, with this installation's runtime.
names_runtime() {
    grep -qs "^# Written by 'oci-gpu-hook " "$host$drop_in" && grep -qs "[\"']${runtime}[\"']" "$host$drop_in"
}

# Whether containerd's settings were changed since its start, at which it makes its socket.
is_unread() {
    [ -e "$host$socket" ] || return 1
    for file in "$host/etc/containerd/config.toml" "$host${drop_in%/*}" "$host${drop_in%/*}"/*; do
        # shellcheck disable=SC3013
        [ ! "$file" -nt "$host$socket" ] || return 0
    done
    return 1
}

# Whether containerd may start pods by our runtime, though its settings no longer name it. Not where a first installation fails
# before containerd has read any of it.
may_start_ours() { [ -z "$unserved" ] && is_unread; }

# Takes our runtime out of containerd's settings. Until containerd has read that, it starts each pod by our runtime: also
# where a removal was killed here.
withdraw_runtime() {
    names_runtime || [ -e "$(on_node $runtime)" ] || return 0
    ! names_runtime || try "our runtime cannot be taken out of containerd's settings" rm "$host$drop_in"
    may_start_ours || return 0
    # With a fault in its settings it would not start again; one that is stopped stays so.
    { inside containerd config dump >/dev/null 2>&1 && ask_systemd "${1:-try-restart}" containerd >&2; } ||
        echo "the node's containerd was not restarted" >&2
}

# Removes our runtime. The containers of pods that were made by it are started and ended by it: while there are some, a script
# of its name starts the runtime that it has started.
remove_runtime() {
    users=$(on_node $library)/in-use.sh
    [ -e "$users" ] || return 0
    said='containerd was not restarted, and starts pods by it until it is'
    if ! may_start_ours && said=$(inside sh -s $runtime <"$users" 2>&1); then
        try "cannot remove what is installed" rm -f "$(on_node $runtime)" "$(on_node $runtime).new"
        # Where another pod has installed it meanwhile.
        withdraw_runtime
        return
    fi
    starts=$(sed -n 's/^[[:space:]]*runtime[[:space:]]*=[[:space:]]*//; t found; d; :found; s/[[:space:]]*$//p' \
        "$host"/etc/oci-gpu-hook.conf "$host"/etc/oci-gpu-hook.conf.d/*.conf 2>/dev/null | tail -n 1) || :
    case $starts in
    *\'*) ;;
    /*) ! inside test -x "$starts" || found=$starts ;;
    esac
    [ -n "${found:-}" ] || found=$(inside sh -c 'command -v runc || command -v crun') || found=runc
    printf '%s\n' '#!/bin/sh' '# Left by oci-gpu-hook for pods that its runtime has made: remove it once they are gone.' \
        "exec '$found' \"\$@\"" | write 0755 "$(on_node $runtime)"
    echo "$runtime stays, as it is needed, and starts $found without the hook: $(echo "$said" | tail -n 1)" >&2
}

stop_units() {
    ours=$(sed -n 's|^lib/systemd/system/||p' "$(on_node $library)/installed-files" 2>/dev/null) || ours=
    # shellcheck disable=SC2086
    [ -z "$ours" ] || tell_systemd disable --now $ours
}

# Removes the versions that no script names, but later: a hook that the old entry script started may still read its own.
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
    find_engine
    if [ $engine = crio ]; then
        find_hooks_dir
    elif [ -e "$host$drop_in" ] && ! names_runtime; then
        fail "$host$drop_in is there and is not ours: move it away first"
    fi
    check_ours
    version_of_payload
    is_registered || fresh=yes
    unserved=$fresh
    for folder in "$library" "$(dirname $entry)" "$(dirname $command)" $shared; do
        folder=$real/${folder#"$prefix/"}
        make_folder "$folder" 2>/dev/null || fail "cannot make $folder on the node: it is read-only or full"
    done
    folder=${hooks:-$(dirname $drop_in)}
    make_folder "$folder" 2>/dev/null || fail "cannot make $folder on the node: it is read-only or full"
    list=$(on_node $library)/installed-folders
    { cat "$list" 2>/dev/null || :; printf %s "$made"; } | write 0644 "$list"
    [ -d "$(on_node $library)/$version" ] || stage
    install_shared
    # For the runtime's removal.
    ! has_runtime || write 0755 "$(on_node $library)/in-use.sh" <"$payload$library/in-use.sh"
    switch_version
    remove_earlier
    if [ $engine = crio ]; then register_hook; else register_runtime; fi
    start_units
    echo "installed version $version, registered in ${hooks:-$drop_in}"
    prune
}

# What is installed already is proved again: the node's Python, or a file, may be another than at the last boot.
do_ready() {
    find_local
    # If anything fails from here on, the engine starts containers without us.
    rm -f "$host${HOOKS_DIR:?}/oci-gpu-hook.json"
    check_python
    unpacked=$(mktemp -d "$host/run/oci-gpu-hook-payload.XXXXXX") || fail "/run is read-only or full"
    payload=$unpacked
    try "cannot unpack what the MachineConfig has put there" inside $python -IS -c \
        'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
        "$real/libexec/oci-gpu-hook/payload.tar.xz" "${payload#"$host"}"
    version_of_payload
    rm -rf "$(on_node "$library/${version:?}")"
    do_install
}

# Removes the registration first, then all our files, and the folders that we have made.
take_away() {
    folders=$(cat "$(on_node $library)/installed-folders" 2>/dev/null || :)
    # Before what they name.
    withdraw_runtime
    try "cannot remove what is installed" remove_registrations
    stop_units
    # Labels and alerts would be made of these files for ever.
    for word in features metrics; do inside $command $word --remove >/dev/null 2>&1 || :; done
    rm -f "$host$hooks/oci-gpu-hook.json.new"
    remove_runtime
    for file in $entry $start $command; do
        try "cannot remove what is installed" rm -f "$(on_node "$file")" "$(on_node "$file").new"
    done
    remove_shared
    [ -z "$ours" ] || tell_systemd daemon-reload
    try "cannot remove what is installed" rm -rf "$(on_node $library)" "$host/run/oci-gpu-hook"
    printf '%s\n' "$folders" "$made" | sort -ru | while read -r folder; do
        [ -z "$folder" ] || rmdir "$host$folder" 2>/dev/null || :
    done
}

do_remove() {
    find_local
    made=
    [ ! -e "$host/etc/crio" ] || find_hooks_dir
    check_ours
    take_away
    echo "removed; /etc/oci-gpu-hook.conf, if there is one, is the administrator's"
}

# The pod keeps running, so that it installs again after the node's next boot, and so that failures are visible.
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
    [ -z "$staged$unpacked" ] || rm -rf "$staged" "$unpacked"
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
