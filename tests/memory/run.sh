#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `make test-memory` starts: installs what it needs, then boots the machine.  Options as run.py's.
#
# Debian only: the virtual machine's kernel is built from Debian's source package, and its programs are Debian's; both
# are unpacked and never installed here.
set -eu
cd "$(dirname "$0")/../.."

# shellcheck source=tests/debian.sh
. tests/debian.sh

need cc gcc
need /usr/include/stdlib.h libc6-dev
need flex flex
need bison bison
need bc bc
need xz xz-utils
need /usr/include/libelf.h libelf-dev
need qemu-system-x86_64 qemu-system-x86
need patchelf patchelf
need_machine
install_needed
tests/newest.sh .build/newest
exec /usr/bin/python3 -B -m tests.memory.run "$@"
