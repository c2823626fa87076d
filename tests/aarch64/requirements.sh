#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the distribution's packages that `make test-aarch64` needs, if they are missing.
#
# Debian only: the virtual machine's kernel, runtimes and programs are Debian's packages for arm64, which are unpacked
# and never installed here.
set -eu

# shellcheck source=tests/debian.sh
. "$(dirname "$0")/../debian.sh"

need make make
need python3 python3
need qemu-system-aarch64 qemu-system-arm
need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
need mmdebstrap mmdebstrap
need mke2fs e2fsprogs
need cpio cpio
need_pip
install_needed
