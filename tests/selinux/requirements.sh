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
# shellcheck source=tests/debian.sh
. "$(dirname "$0")/../debian.sh"

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
    need busybox busybox-static
    need cc gcc
    need /usr/include/stdlib.h libc6-dev
    need_machine
fi
install_needed
