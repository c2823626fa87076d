#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `make test-memory` starts: installs what it needs, then boots the machine.  Options as run.py's.
set -eu
cd "$(dirname "$0")/../.."
tests/memory/requirements.sh
tests/newest.sh .build/newest
exec /usr/bin/python3 -B -m tests.memory.run "$@"
