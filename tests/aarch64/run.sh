#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `make test-aarch64` starts: installs what it needs, then boots the machine.  Options as run.py's.
#
# Debian only: the virtual machine's kernel, runtimes and programs are Debian's packages for arm64, which are unpacked
# and never installed here.
set -eu
cd "$(dirname "$0")/../.."

# shellcheck source=tests/debian.sh
. tests/debian.sh

need qemu-system-aarch64 qemu-system-arm
need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
need_machine
install_needed
exec /usr/bin/python3 -B -m tests.aarch64.run "$@"
