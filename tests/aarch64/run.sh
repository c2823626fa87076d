#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `make test-aarch64` starts: installs what it needs, then boots the machine.  Options as run.py's.
set -eu
cd "$(dirname "$0")/../.."
tests/aarch64/requirements.sh
exec /usr/bin/python3 -B -m tests.aarch64.run "$@"
