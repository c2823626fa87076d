#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the distribution's packages that the SELinux tests need, if they are missing.
#
#   tests/selinux/requirements.sh policy|vm
#
# Debian only: the policies that the tests are made on, and the virtual machine's kernel, are Debian's packages.  None of
# them is turned on for the machine that runs the tests; its own SELinux, if it has any, is left as it is.
set -eu

purpose=$1
PATH=$PATH:/usr/sbin:/sbin

say() { echo "requirements.sh: $*" >&2; }

if ! command -v apt-get >/dev/null; then
    say "the SELinux tests build on Debian's packages, and there is no apt-get here: run them on Debian"
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
need m4 m4
need python3 python3
need zstd zstd
need secilc secilc
need checkmodule checkpolicy
need semodule policycoreutils
need semodule_package semodule-utils
need sesearch setools
need rpmbuild rpm
need /usr/share/selinux/devel/Makefile selinux-policy-dev
need /usr/src/selinux-policy-src.tar.zst selinux-policy-src
if [ "$purpose" = vm ]; then
    need qemu-system-x86_64 qemu-system-x86
    need mmdebstrap mmdebstrap
    need mke2fs e2fsprogs
    need cpio cpio
    need protoc protobuf-compiler
    need busybox busybox-static
    need cc gcc
    need /usr/include/stdlib.h libc6-dev
    [ -x /usr/bin/python3 ] && /usr/bin/python3 -I -c 'import pip' 2>/dev/null || needed="$needed python3-pip"
fi

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
