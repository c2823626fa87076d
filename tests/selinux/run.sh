#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `make test-selinux` starts: installs what it needs, then boots the machine.  Options as run.py's.
set -eu
cd "$(dirname "$0")/../.."
tests/selinux/requirements.sh vm
exec /usr/bin/python3 -B -m tests.selinux.run "$@"
