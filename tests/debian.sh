# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# What installs Debian's packages for the lanes that build on them; their scripts read it, and say what they need.
PATH=$PATH:/usr/sbin:/sbin

say() { echo "${0##*/}: $*" >&2; }

if ! command -v apt-get >/dev/null; then
    say "these tests build on Debian's packages, and there is no apt-get here: run them on Debian"
    exit 1
fi

mirror() { # prints the address of Debian's that this machine has its packages from
    # shellcheck disable=SC2016  # apt's own words
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | grep -v security | head -n 1 |
        grep . || { say "apt has no mirror of Debian's here"; return 1; }
}

needed=''
need() { # PROGRAM-or-FILE PACKAGE
    case $1 in
    /*) [ -e "$1" ] || needed="$needed $2" ;;
    *) command -v "$1" >/dev/null || needed="$needed $2" ;;
    esac
}

need_machine() { # of a virtual machine's tree and disk
    need make make
    need python3 python3
    need mmdebstrap mmdebstrap
    need mke2fs e2fsprogs
    need cpio cpio
    need_pip
}

need_pip() {
    [ -x /usr/bin/python3 ] && /usr/bin/python3 -I -c 'import pip' 2>/dev/null || needed="$needed python3-pip"
}

install_needed() {
    [ -n "$needed" ] || return 0
    say "installing$needed"
    if [ "$(id -u)" != 0 ]; then
        say "that needs root"
        exit 1
    fi
    apt-get -q -q update
    # --no-remove: rather fail than take a package from the host.  $needed is a list of package names.
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get -q -q -y --no-install-recommends --no-remove install $needed >/dev/null
}
