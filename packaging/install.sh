#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs and uninstalls: `make install`, `make install-docker`, `make install-cli` and `make uninstall` call it.
#
#   packaging/install.sh install DESTDIR PREFIX PYTHON
#   packaging/install.sh install-docker DESTDIR PREFIX     the link by which dockerd starts what is installed there
#   packaging/install.sh install-cli DESTDIR PREFIX        the link by which LXC, enroot and others start it
#   packaging/install.sh uninstall DESTDIR PREFIX
#   packaging/install.sh stage DESTDIR PREFIX PYTHON       for a package: records no folders
#   packaging/install.sh sources DESTDIR PREFIX PYTHON     the same, and compiles nothing: for a package of any Python
#
#   PREFIX/libexec/oci/hooks.d/oci-gpu-hook                what an engine starts
#   PREFIX/libexec/oci-gpu-hook-start                      what our CDI specs and oci-gpu-runtime have an engine start
#   PREFIX/bin/oci-gpu-hook                                what people start
#   PREFIX/bin/oci-gpu-runtime                             a runtime, for engines that read no hooks.d
#   PREFIX/bin/nvidia-container-runtime-hook               install-docker: a link to the entry script
#   PREFIX/bin/nvidia-container-cli                        install-cli: another one
#   PREFIX/lib/oci-gpu-hook/                               the package, byte-compiled, and linked for the hook
#   PREFIX/share/containers/oci/hooks.d/oci-gpu-hook.json  registers the hook with engines
#   PREFIX/lib/{systemd,udev,tmpfiles.d}/                  units that keep nodes and inventory: packaging/systemd
#   PREFIX/share/oci-gpu-hook/oci-gpu-hook.conf            the settings, each with its default
#   PREFIX/share/oci-gpu-hook/vendors/                     the vendors' files, beside it vendor.schema.json
#   PREFIX/share/oci-gpu-hook/prometheus/                  alerts and a dashboard
#   PREFIX/share/oci-gpu-hook/swarm/                       a script that makes a Swarm worker
#   PREFIX/share/selinux/packages/oci-gpu-hook/            the SELinux modules
#   PREFIX/share/man/man5/, man7/, man8/                   the manuals
#   PREFIX/share/bash-completion/, zsh/, fish/             the completions for these shells
#   /run/oci-gpu-hook/                                     what hooks save; not with DESTDIR
#
# With SOURCE_DATE_EPOCH set, two installations of the same source are equal, times included.
set -eu
umask 022

action=$1 destdir=${2%/} prefix=${3%/} python=${4:-}
sources=$(cd "$(dirname "$0")/.." && pwd)

library=$prefix/lib/oci-gpu-hook
entry=$prefix/libexec/oci/hooks.d/oci-gpu-hook
start=$prefix/libexec/oci-gpu-hook-start
command=$prefix/bin/oci-gpu-hook
runtime=$prefix/bin/oci-gpu-runtime
dockers=$prefix/bin/nvidia-container-runtime-hook
cli=$prefix/bin/nvidia-container-cli
registration=$prefix/share/containers/oci/hooks.d/oci-gpu-hook.json
# Where podman and CRI-O look, whatever PREFIX is.
looked_into=/usr/share/containers/oci/hooks.d
data=$prefix/share/oci-gpu-hook
modules=$prefix/share/selinux/packages/oci-gpu-hook
# What goes below PREFIX/share as it is: FILE:FOLDER, the file below packaging/, the folder below PREFIX/share.
shared='
    completions/oci-gpu-hook:bash-completion/completions
    completions/_oci-gpu-hook:zsh/site-functions
    completions/oci-gpu-hook.fish:fish/vendor_completions.d
    oci-gpu-hook.conf:oci-gpu-hook
    prometheus/README.md:oci-gpu-hook/prometheus
    prometheus/dashboard.json:oci-gpu-hook/prometheus
    prometheus/oci-gpu-hook.rules.yaml:oci-gpu-hook/prometheus
    prometheus/prometheusrule.yaml:oci-gpu-hook/prometheus
    swarm/make-worker.sh:oci-gpu-hook/swarm
'
for page in "$sources"/packaging/man/*.rst; do
    page=$(basename "$page" .rst)
    shared="$shared man/$page:man/man${page##*.}"
done
state=/run/oci-gpu-hook
folders=$library/installed-folders # a list of those that we have made
vendors_list=$library/installed-vendors # a list of our vendors' files
case $action in stage | sources) packed=yes ;; *) packed='' ;; esac

fail() {
    echo "make $action: $*" >&2
    exit 1
}

check_arguments() {
    case $prefix in /*) ;; *) fail "PREFIX must be an absolute path, not '$prefix'" ;; esac
    case $destdir in '' | /*) ;; *) fail "DESTDIR must be an absolute path, not '$destdir'" ;; esac
    case $destdir$prefix$python in *[!A-Za-z0-9_./+:@~-]*)
        # They are written into shebang lines, Python and JSON.
        fail "DESTDIR, PREFIX and PYTHON may hold letters, digits and _./+:@~- only" ;;
    esac
}

check_python() {
    case $python in /*) ;; *) fail "PYTHON must be an absolute path, not '$python'" ;; esac
    "$python" -IS -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
        fail "PYTHON=$python is not there or older than Python 3.9"
}

# Fails where another program's file is in our place: it is never replaced.
check_ours() {
    for file in "$entry" "$start" "$command" "$runtime" "$registration"; do
        if [ -e "$destdir$file" ] && ! grep -q 'oci[-_]gpu[-_]hook' "$destdir$file"; then
            fail "$destdir$file is there and is not ours: move it away first"
        fi
    done
    # An installation that was killed at its very start leaves an empty one.
    if [ -e "$destdir$library" ] && [ ! -e "$destdir$folders" ] && [ -n "$(ls -A "$destdir$library")" ]; then
        [ -n "$destdir" ] || check_package
        fail "$destdir$library is there and is not ours: move it away first"
    fi
}

# Fails where a package of this host owns the library: moved away, its hook could start no container.
check_package() {
    ! dpkg-query -S "$library/link.py" >/dev/null 2>&1 ||
        fail "a package has put $library there: remove it first, by 'apt remove oci-gpu-hook'"
    ! rpm -qf "$library/link.py" >/dev/null 2>&1 ||
        fail "a package has put $library there: remove it first, by 'dnf remove oci-gpu-hook'"
}

# Whether the link $1 is there, as we make it or as somebody has made it by hand.
is_our_link() {
    case $(readlink "$destdir$1") in "../${entry#"$prefix"/}" | "$entry") ;; *) return 1 ;; esac
}

# Makes the folder $1 with its parents, and remembers those that uninstall must remove.
make_folder() {
    [ ! -d "$destdir$1" ] || return 0
    above=${1%/*}
    make_folder "${above:-/}"
    mkdir "$destdir$1"
    made="$made$1
"
}

remember_folders() {
    [ "$packed" ] || printf %s "$made" >>"$destdir$folders"
    made=
}

# Name and installed path of each file in packaging/systemd.
services() {
    for file in "$sources"/packaging/systemd/*; do
        name=${file##*/}
        case $name in
        *.service | *.path | *.timer) echo "$name $prefix/lib/systemd/system/$name" ;;
        *.preset) echo "$name $prefix/lib/systemd/system-preset/$name" ;;
        *.rules) echo "$name $prefix/lib/udev/rules.d/$name" ;;
        *.tmpfiles.conf) echo "$name $prefix/lib/tmpfiles.d/${name%.tmpfiles.conf}.conf" ;;
        esac
    done
}

install_services() {
    while read -r name place; do
        make_folder "${place%/*}"
        sed "s|/usr/bin/oci-gpu-hook|$command|" "$sources/packaging/systemd/$name" | write 0644 "$place"
    done <<END
$(services)
END
}

# Ends our units, and takes the links to those that are enabled.  By the file: another installation may have units of
# these names.
stop_services() {
    services | while read -r name place; do
        for link in /etc/systemd/system/*.wants/"$name"; do
            # shellcheck disable=SC3013
            [ ! "$link" -ef "$place" ] || systemctl --quiet disable "$name" >/dev/null 2>&1 || :
        done
        # shellcheck disable=SC3013
        [ ! "$(systemctl show --value --property FragmentPath "$name" 2>/dev/null)" -ef "$place" ] ||
            systemctl --quiet stop "$name" >/dev/null 2>&1 || :
    done
}

# Where neither systemd nor udev runs, such as in a chroot, there is none to tell.
tell_services_are_gone() {
    [ ! -d /run/systemd/system ] || systemctl daemon-reload >/dev/null 2>&1 || :
    [ ! -S /run/udev/control ] || udevadm control --reload >/dev/null 2>&1 || :
}

# Installs the package into a new folder, which then changes places with the old one: a container that starts meanwhile
# finds one of the two, and all its modules in the one linked file that it has open.
install_library() {
    staged=$destdir$library/.new
    rm -rf "$staged" "$destdir$library/.old"
    mkdir "$staged"
    absolute=$(cd "$staged" && pwd)
    (cd "$sources" && find oci_gpu_hook -name '*.py' -exec cp --parents --preserve=timestamps -t "$absolute" {} +)
    find "$staged" -type d -exec chmod 0755 {} +
    find "$staged" -type f -exec chmod 0644 {} +
    [ "$action" = sources ] || compile_library
    # For nodes with another Python, where the package must be linked again.
    install -p -m 0644 "$sources/packaging/link.py" "$destdir$library/"
    # For packages that are to be removed.
    install -p -m 0755 "$sources/packaging/in-use.sh" "$destdir$library/"
    package=$destdir$library/oci_gpu_hook
    if [ ! -e "$package" ]; then
        mv "$staged/oci_gpu_hook" "$package"
    elif ! exchange "$staged/oci_gpu_hook" "$package"; then
        mv "$package" "$destdir$library/.old"
        mv "$staged/oci_gpu_hook" "$package"
    fi
    rm -rf "$staged" "$destdir$library/.old"
}

# unchecked-hash: image-based systems (OSTree, so OpenShift's own) give all files the same time. A cache that is checked
# by time would never be valid there, and every container start would compile the package again. No user edits an installed
# file in place, and each installation compiles what it installs.
compile_library() {
    "$python" -IS -m compileall -q -d "$library/oci_gpu_hook" --invalidation-mode unchecked-hash \
        "$staged/oci_gpu_hook"
    "$python" -ISB -X no_debug_ranges "$sources/packaging/link.py" "$staged" "$library"
}

# Exchanges two folders in one step, by renameat2(2) with RENAME_EXCHANGE. mv cannot, nor can every filesystem.
exchange() {
    "$python" -IS -c 'import ctypes, os, sys
one, other = [os.fsencode(word) for word in sys.argv[1:]]
sys.exit(ctypes.CDLL(None).renameat2(-100, one, -100, other, 2) != 0)' "$1" "$2" 2>/dev/null
}

# Downloads nothing: the distribution's packages serve, and what pip's --target has put into PREFIX/lib/oci-gpu-hook/vendor.
# Not called with DESTDIR: the packages of that root are not this host's.
check_packages() {
    has click || fail "$python has no click, which the command line needs: install the distribution's python3-click"
    has pynvml || echo "without nvidia-ml-py, 'inventory refresh' cannot ask NVML"
    has pyudev || echo "without pyudev, 'inventory watch' looks by itself every 30 seconds"
    has yaml || echo "without PyYAML, 'doctor' cannot read other programs' CDI specs"
    has tomllib || has tomli || echo "without tomli, 'doctor' and 'configure' cannot read the engines' TOML"
}

has() {
    "$python" -IB -c "import sys; sys.path.append('$library/vendor'); import $1" 2>/dev/null
}

# Makes the folder that systemd-tmpfiles makes at each boot: hooks save there what they saw. A package leaves that to its
# own scripts, and a container's image or a chroot without a /run has none.
make_state_folder() {
    [ -z "$destdir" ] && [ -d "${state%/*}" ] && [ ! -e "$state" ] || return 0
    mkdir -m 0755 "$state" 2>/dev/null || echo "$state cannot be made: it will be there after the next boot"
}

# The names of our vendors' files.
vendors() {
    for file in "$sources"/packaging/vendors/*.json; do
        case $file in */vendor.schema.json) ;; *) echo "${file##*/}" ;; esac
    done
}

# Other packages may have put files of their own beside ours: a list says which are ours.  One that we have no more would
# be read on, and its flag may be that of another now; it goes last, as no start may miss a file meanwhile.
install_vendors() {
    install -p -m 0644 "$sources/packaging/vendors/vendor.schema.json" "$destdir$data/"
    { cat "$destdir$vendors_list" 2>/dev/null || :; vendors; } | sort -u | write 0644 "$vendors_list"
    vendors | while read -r name; do
        write 0644 "$data/vendors/$name" <"$sources/packaging/vendors/$name"
    done
    while read -r name; do
        [ -e "$sources/packaging/vendors/$name" ] || rm -f "$destdir$data/vendors/$name"
    done <"$destdir$vendors_list"
    vendors | write 0644 "$vendors_list"
    # A package manager knows by itself.
    [ -z "$packed" ] || rm -f "$destdir$vendors_list"
}

remove_vendors() {
    [ ! -e "$destdir$vendors_list" ] || while read -r name; do
        rm -f "$destdir$data/vendors/$name" "$destdir$data/vendors/$name.new"
    done <"$destdir$vendors_list"
}

install_scripts() {
    script oci-gpu-hook | write 0755 "$entry"
    script oci-gpu-hook-start | write 0755 "$start"
    # -I without -S: site finds the distribution's click, which comes before ours.
    write 0755 "$command" <<END
#!$python -I
import sys
sys.path.insert(0, "$library")
sys.path.append("$library/vendor")
from oci_gpu_hook.__main__ import main; sys.exit(main())
END
    sed "s|/usr/libexec/oci/hooks.d/oci-gpu-hook|$entry|" "$sources/hooks.d/oci-gpu-hook.json" |
        write 0644 "$registration"
    script oci-gpu-runtime | write 0755 "$runtime"
}

# The script $1 of hooks.d as it is installed: with this installation's paths, and with the text of asking.bash in place
# of the line that reads it.
script() {
    sed '1,/^$/d' "$sources/hooks.d/asking.bash" |
        sed -e '/# shellcheck source=/d; /^ *source /{r /dev/stdin' -e 'd}' "$sources/hooks.d/$1" |
        sed "s|/usr/bin/python3|$python|; s|/usr/lib/oci-gpu-hook|$library|; s|/usr/libexec/oci-gpu-hook-start|$start|"
}

# Writes standard input to the file $2 with mode $1, whole or not at all.
write() {
    cat >"$destdir$2.new"
    chmod "$1" "$destdir$2.new"
    mv "$destdir$2.new" "$destdir$2"
}

# The installed path of FILE:FOLDER.
shared_path() {
    file=${1%:*}
    echo "$prefix/share/${1#*:}/${file##*/}"
}

# The installed files outside of the folders that are ours alone. The registration comes first, to be removed first: an
# engine that still had it, and found no entry script, could start no container.
single_files() {
    printf '%s\n' "$registration" "$entry" "$start" "$command" "$runtime"
    for file in $shared; do shared_path "$file"; done
    services | sed 's/.* //'
}

# Gives all installed files the time SOURCE_DATE_EPOCH.
set_times() {
    { single_files | sed "s|^|$destdir|" && find "$destdir$library" "$destdir$data" "$destdir$modules"; } |
        xargs touch -c -h -d "@$SOURCE_DATE_EPOCH"
}

do_install() {
    check_python
    check_ours
    [ "$packed$destdir" ] || check_packages
    made=
    [ -z "$destdir" ] || mkdir -p "$destdir"
    for file in "$library/." "$data/vendors/." "$modules/." "$entry" "$command" "$registration"; do
        make_folder "$(dirname "$file")"
    done
    for file in $shared; do make_folder "$prefix/share/${file#*:}"; done
    remember_folders
    install_library
    install -p -m 0644 "$sources"/policy/*.cil "$destdir$modules/"
    for file in $shared; do
        # What is generated: `make install` has made it, and so has a package's archive.  An image for nodes needs none.
        if [ ! -e "$sources/packaging/${file%:*}" ]; then
            [ ! "$packed" ] || fail "packaging/${file%:*} is not there: run 'make generated' first"
            continue
        fi
        case $file in *.sh:*) mode=0755 ;; *) mode=0644 ;; esac
        install -p -m $mode "$sources/packaging/${file%:*}" "$destdir$(shared_path "$file")"
    done
    install_vendors
    install_services
    remember_folders
    make_state_folder
    # The registration comes last: an engine may read it at any time, and must find what it names.
    install_scripts
    [ -z "${SOURCE_DATE_EPOCH:-}" ] || set_times
    echo "installed $destdir$entry, registered by $destdir$registration"
    [ -n "$destdir" ] || say_where_engines_look
    echo "installed $destdir$command for people: try '$command info'"
}

# No engine looks below another PREFIX than /usr.
say_where_engines_look() {
    # shellcheck disable=SC3013
    [ "$looked_into/oci-gpu-hook.json" -ef "$registration" ] ||
        echo "podman and CRI-O do not look there: 'mkdir -p $looked_into && ln -s $registration $looked_into/' makes" \
            "both find it"
}

# The name $1, by which others start the hook, for $2. A link of anybody else's stays, and any file.
install_link() {
    grep -qs 'oci[-_]gpu[-_]hook' "$destdir$entry" || fail "$destdir$entry is not there: run 'make install' first"
    if is_our_link "$1"; then
        echo "$destdir$1 is there already"
        exit 0
    fi
    if [ -e "$destdir$1" ] || [ -L "$destdir$1" ]; then
        fail "$destdir$1 is there and is not ours: move it away first"
    fi
    # Not -f: what another has put there meanwhile stays as well.
    ln -s "../${entry#"$prefix"/}" "$destdir$1"
    [ -z "${SOURCE_DATE_EPOCH:-}" ] || touch -h -d "@$SOURCE_DATE_EPOCH" "$destdir$1"
    echo "installed $destdir$1 for $2"
}

do_install_docker() {
    install_link "$dockers" "'docker run --gpus'"
    echo "dockerd looks for it once, when it starts: restart it, such as by 'systemctl restart docker'"
}

do_uninstall() {
    check_ours
    told="uninstalled oci-gpu-hook from $destdir$prefix"
    [ -e "$destdir$entry" ] || [ -e "$destdir$library" ] ||
        told="nothing was installed below $destdir$prefix: give DESTDIR and PREFIX of the installation"
    [ -n "$destdir" ] || "$sources/packaging/in-use.sh" "$runtime" || fail "nothing was removed"
    [ -n "$destdir" ] || stop_services
    # This node's features and metrics: labels and alerts would be made of them for ever.
    [ -n "$destdir" ] || "$command" features --remove >/dev/null 2>&1 || :
    [ -n "$destdir" ] || "$command" metrics --remove >/dev/null 2>&1 || :
    [ -n "$destdir" ] || "$command" cdi remove /run/cdi/oci-gpu-hook.yaml >/dev/null 2>&1 || :
    # Before what they lead to: dockerd could start no container with --gpus.
    for link in "$dockers" "$cli"; do
        ! is_our_link "$link" || rm -f "$destdir$link"
    done
    if [ -z "$destdir" ] && [ "$(readlink $looked_into/oci-gpu-hook.json)" = "$registration" ]; then
        rm -f $looked_into/oci-gpu-hook.json
    fi
    made=$(cat "$destdir$folders" 2>/dev/null || true)
    # *.new: what `write` leaves if the disk is full or it is killed.
    single_files | while read -r file; do rm -f "$destdir$file" "$destdir$file.new"; done
    remove_vendors
    rm -rf "$destdir$library" "$destdir$modules"
    rm -f "$destdir$data/vendor.schema.json"
    [ ! -d "$destdir$data" ] || find "$destdir$data" -depth -type d -empty -delete
    [ -n "$destdir" ] || tell_services_are_gone
    [ -n "$destdir" ] || rm -rf "$state"
    echo "$made" | sort -r | while read -r folder; do
        if [ -n "$folder" ] && [ -d "$destdir$folder" ]; then
            rmdir --ignore-fail-on-non-empty "$destdir$folder"
        fi
    done
    echo "$told"
    settings=$destdir/etc/oci-gpu-hook.conf
    [ ! -e "$settings" ] || echo "$settings is the administrator's: left there"
}

check_arguments
case $action in
install | stage | sources) do_install ;;
install-docker) do_install_docker ;;
install-cli) install_link "$cli" "LXC, enroot, Apptainer, Charliecloud and ctr" ;;
uninstall) do_uninstall ;;
*) fail "knows install, install-docker, install-cli and uninstall only" ;;
esac
