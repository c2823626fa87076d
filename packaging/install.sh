#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs and uninstalls; the front door is `make install` and `make uninstall`.
#
#   packaging/install.sh install DESTDIR PREFIX PYTHON
#   packaging/install.sh uninstall DESTDIR PREFIX
#   packaging/install.sh stage DESTDIR PREFIX PYTHON       for a package: fetches nothing, remembers no folder
#
#   PREFIX/libexec/oci/hooks.d/oci-gpu-hook                what an engine starts
#   PREFIX/bin/oci-gpu-hook                                what people start
#   PREFIX/lib/oci-gpu-hook/                               the package, byte-compiled, and linked for the hook
#   PREFIX/share/containers/oci/hooks.d/oci-gpu-hook.json  tells engines of it
#   PREFIX/lib/{systemd,udev,tmpfiles.d}/                  what keeps nodes and inventory: packaging/systemd
#   PREFIX/share/oci-gpu-hook/oci-gpu-hook.conf            the settings, each with its default
#   PREFIX/share/oci-gpu-hook/policy/                      the SELinux modules
#   PREFIX/share/man/man8/, man5/                          the manuals
#   PREFIX/share/bash-completion/, zsh/, fish/             what their shells offer at a Tab
#
# With SOURCE_DATE_EPOCH set, two installations of the same source are equal, times included.
set -eu
umask 022

action=$1 destdir=${2%/} prefix=${3%/} python=${4:-}
sources=$(cd "$(dirname "$0")/.." && pwd)

library=$prefix/lib/oci-gpu-hook
door=$prefix/libexec/oci/hooks.d/oci-gpu-hook
command=$prefix/bin/oci-gpu-hook
registration=$prefix/share/containers/oci/hooks.d/oci-gpu-hook.json
data=$prefix/share/oci-gpu-hook
# What goes below PREFIX/share as it is: FILE:FOLDER, the file below packaging/, the folder below PREFIX/share.
shared='
    man/oci-gpu-hook.8:man/man8
    man/oci-gpu-hook.conf.5:man/man5
    man/oci_gpu_hook_selinux.8:man/man8
    completions/oci-gpu-hook:bash-completion/completions
    completions/_oci-gpu-hook:zsh/site-functions
    completions/oci-gpu-hook.fish:fish/vendor_completions.d
'
folders=$library/installed-folders # those that were not there before us

# The command line's packages; setup.cfg has the same ranges.  It works without the others, knowing less.
click='click >=7.1,<9'
pynvml='nvidia-ml-py >=12'
pyudev='pyudev >=0.22'
tomli='tomli >=1.1'

fail() {
    echo "make $action: $*" >&2
    exit 1
}

check_arguments() {
    case $prefix in /*) ;; *) fail "PREFIX must be an absolute path, not '$prefix'" ;; esac
    case $prefix in *:*) fail "PREFIX may hold no colon: Python divides its path there" ;; esac
    case $destdir in '' | /*) ;; *) fail "DESTDIR must be an absolute path, not '$destdir'" ;; esac
    case $destdir$prefix$python in *[!A-Za-z0-9_./+:@~-]*)
        # They go into shebang lines, Python and JSON.
        fail "DESTDIR, PREFIX and PYTHON may hold letters, digits and _./+:@~- only" ;;
    esac
}

check_python() {
    case $python in /*) ;; *) fail "PYTHON must be an absolute path, not '$python'" ;; esac
    "$python" -IS -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
        fail "PYTHON=$python is not there or older than Python 3.9"
}

# Another's file in our place is never written over.
check_ours() {
    for file in "$door" "$command" "$registration"; do
        if [ -e "$destdir$file" ] && ! grep -q 'oci[-_]gpu[-_]hook' "$destdir$file"; then
            fail "$destdir$file is there and is not ours: move it away first"
        fi
    done
    # An empty one is left by an installation that was killed at its very start, and is nobody's.
    if [ -e "$destdir$library" ] && [ ! -e "$destdir$folders" ] && [ -n "$(ls -A "$destdir$library")" ]; then
        fail "$destdir$library is there and is not ours: move it away first"
    fi
}

# The folder $1 with its parents, remembering which of them are ours to take away again.
make_folder() {
    [ ! -d "$destdir$1" ] || return 0
    make_folder "$(dirname "$1")"
    mkdir "$destdir$1"
    made="$made$1
"
}

remember_folders() {
    [ "$action" = stage ] || printf %s "$made" >>"$destdir$folders"
    made=
}

# What packaging/systemd holds: name, and place.
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
        make_folder "$(dirname "$place")"
        sed "s|/usr/bin/oci-gpu-hook|$command|" "$sources/packaging/systemd/$name" | write 0644 "$place"
    done <<END
$(services)
END
}

# Into a new folder beside the old one, which then changes places with it: a container that starts
# meanwhile finds one of them, and the rooms of its path in the one file that it has open.
install_library() {
    staged=$destdir$library/.new
    rm -rf "$staged" "$destdir$library/.old"
    mkdir "$staged"
    (cd "$sources" && find oci_gpu_hook -name '*.py') | while read -r file; do
        mkdir -p "$staged/$(dirname "$file")"
        install -p -m 0644 "$sources/$file" "$staged/$file"
    done
    # unchecked-hash: image-based systems (OSTree, so OpenShift's own) give every file one time; a
    # cache that is checked by time would be stale there for ever, and the package compiled again at
    # every container start. Nobody edits an installed file in place, and each installation compiles
    # what it installs.
    "$python" -IS -m compileall -q -d "$library/oci_gpu_hook" --invalidation-mode unchecked-hash \
        "$staged/oci_gpu_hook"
    "$python" -ISB -X no_debug_ranges "$sources/packaging/link.py" "$staged" "$library"
    # For those who carry the package to a node with another Python.
    install -p -m 0644 "$sources/packaging/link.py" "$destdir$library/"
    [ "$action" = stage ] || install_packages
    package=$destdir$library/oci_gpu_hook
    if [ ! -e "$package" ]; then
        mv "$staged/oci_gpu_hook" "$package"
    elif ! exchange "$staged/oci_gpu_hook" "$package"; then
        mv "$package" "$destdir$library/.old"
        mv "$staged/oci_gpu_hook" "$package"
    fi
    rm -rf "$staged" "$destdir$library/.old"
}

# renameat2(2), RENAME_EXCHANGE: in one step, which mv cannot; nor can every filesystem.
exchange() {
    "$python" -IS -c 'import ctypes, os, sys
one, other = [os.fsencode(word) for word in sys.argv[1:]]
sys.exit(ctypes.CDLL(None).renameat2(-100, one, -100, other, 2) != 0)' "$1" "$2" 2>/dev/null
}

# Beside ours, never into the system's site-packages; only those that the distribution has not.
install_packages() {
    pip=
    has click || install_package "$click" ||
        fail "$python has no click, and it cannot be fetched: install it and try again"
    has pynvml || install_package "$pynvml" ||
        echo "without nvidia-ml-py, 'inventory refresh' cannot ask NVML"
    has pyudev || install_package "$pyudev" ||
        echo "without pyudev, 'inventory watch' looks by itself every now and then"
    has tomllib || has tomli || install_package "$tomli" ||
        echo "without tomli, 'config import' cannot read NVIDIA's file"
    [ -e "$staged/vendor" ] || return 0
    rm -rf "$destdir$library/vendor"
    mv "$staged/vendor" "$destdir$library/"
}

has() {
    "$python" -IB -c "import $1" 2>/dev/null
}

# The requirement $1, by the Python's own pip, or by that of a virtual environment made for it.
install_package() {
    echo "$python lacks a package that the command line uses: installing $1 beside it"
    if [ -z "$pip" ] && "$python" -I -m pip --version >/dev/null 2>&1; then
        pip=$python
    elif [ -z "$pip" ]; then
        environment=$(mktemp -d)
        trap 'rm -rf "$environment"' EXIT
        "$python" -I -m venv "$environment" >/dev/null 2>&1 || return 1
        pip=$environment/bin/python
    fi
    "$pip" -I -m pip install --quiet --disable-pip-version-check --no-cache-dir \
        --target "$staged/vendor" "$1" 2>"$staged/pip-said" || {
        tail -n 1 "$staged/pip-said" >&2
        return 1
    }
}

install_doors() {
    sed "s|/usr/bin/python3|$python|; s|/usr/lib/oci-gpu-hook|$library|" "$sources/hooks.d/oci-gpu-hook" |
        write 0755 "$door"
    # With site, for the distribution's click; ours comes after it.
    write 0755 "$command" <<END
#!$python -I
import sys
sys.path.insert(0, "$library")
sys.path.append("$library/vendor")
from oci_gpu_hook.__main__ import main; sys.exit(main())
END
    sed "s|/usr/libexec/oci/hooks.d/oci-gpu-hook|$door|" "$sources/hooks.d/oci-gpu-hook.json" |
        write 0644 "$registration"
}

# Standard input as the file $2 with mode $1, whole or not at all.
write() {
    cat >"$destdir$2.new"
    chmod "$1" "$destdir$2.new"
    mv "$destdir$2.new" "$destdir$2"
}

# Where FILE:FOLDER goes.
shared_path() {
    file=${1%:*}
    echo "$prefix/share/${1#*:}/${file##*/}"
}

# All but the folders that are ours alone. The registration comes first: an engine that still had it, and found no door,
# would fail to start any container.
single_files() {
    printf '%s\n' "$registration" "$door" "$command"
    for file in $shared; do shared_path "$file"; done
    services | sed 's/.* //'
}

# For SOURCE_DATE_EPOCH.
set_times() {
    { single_files | sed "s|^|$destdir|" && find "$destdir$library" "$destdir$data"; } |
        xargs touch -h -d "@$SOURCE_DATE_EPOCH"
}

do_install() {
    check_python
    check_ours
    made=
    [ -z "$destdir" ] || mkdir -p "$destdir"
    for file in "$library/." "$data/policy/." "$door" "$command" "$registration"; do
        make_folder "$(dirname "$file")"
    done
    for file in $shared; do make_folder "$prefix/share/${file#*:}"; done
    remember_folders
    install_library
    install -p -m 0644 "$sources"/policy/*.cil "$destdir$data/policy/"
    for file in $shared; do
        install -p -m 0644 "$sources/packaging/${file%:*}" "$destdir$(shared_path "$file")"
    done
    install -p -m 0644 "$sources/packaging/oci-gpu-hook.conf" "$destdir$data/"
    install_services
    remember_folders
    # The registration comes last: an engine may read it at any time, and what it leads to is there.
    install_doors
    [ -z "${SOURCE_DATE_EPOCH:-}" ] || set_times
    echo "installed $destdir$door, registered by $destdir$registration"
    echo "installed $destdir$command for people: try '$command info'"
}

do_uninstall() {
    check_ours
    made=$(cat "$destdir$folders" 2>/dev/null || true)
    # With what a full disk or a kill has kept from its name: see write.
    single_files | while read -r file; do rm -f "$destdir$file" "$destdir$file.new"; done
    rm -rf "$destdir$library" "$destdir$data"
    [ -n "$destdir" ] || rm -rf /run/oci-gpu-hook
    echo "$made" | sort -r | while read -r folder; do
        if [ -n "$folder" ] && [ -d "$destdir$folder" ]; then
            rmdir --ignore-fail-on-non-empty "$destdir$folder"
        fi
    done
    echo "uninstalled oci-gpu-hook from $destdir$prefix"
    settings=$destdir/etc/oci-gpu-hook.conf
    [ ! -e "$settings" ] || echo "$settings is the administrator's: left there"
}

check_arguments
case $action in
install | stage) do_install ;;
uninstall) do_uninstall ;;
*) fail "knows install and uninstall only" ;;
esac
