#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the distribution's packages that `make test-aarch64` needs, if they are missing.
#
# Debian only: the virtual machine's kernel, runtimes and programs are Debian's packages for arm64, which are unpacked
# and never installed here.
set -eu

PATH=$PATH:/usr/sbin:/sbin

say() { echo "requirements.sh: $*" >&2; }

if ! command -v apt-get >/dev/null; then
    say "the aarch64 machine is made of Debian's packages, and there is no apt-get here: run it on Debian"
    exit 1
fi

needed=''
need() { # PROGRAM-or-FILE PACKAGE
    case $1 in
    /*) [ -e "$1" ] || needed="$needed $2" ;;
    *) command -v "$1" >/dev/null || needed="$needed $2" ;;
    esac
}

need make make
need python3 python3
need qemu-system-aarch64 qemu-system-arm
need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
need mmdebstrap mmdebstrap
need mke2fs e2fsprogs
need cpio cpio
[ -x /usr/bin/python3 ] && /usr/bin/python3 -I -c 'import pip' 2>/dev/null || needed="$needed python3-pip"

[ -n "$needed" ] || exit 0
say "installing$needed"
if [ "$(id -u)" != 0 ]; then
    say "that needs root"
    exit 1
fi
apt-get -q -q update
# --no-remove: rather fail than take a package from the host.  $needed is a list of package names.
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get -q -q -y --no-install-recommends --no-remove install $needed >/dev/null
