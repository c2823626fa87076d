#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the virtual environment VENV from PYTHON, with the packages of one extra of setup.cfg.
#
#   packaging/venv.sh VENV PYTHON EXTRA
#
# It is always made from nothing, so that its content depends on setup.cfg alone.
set -eu

venv=$1 python=$2 extra=$3
cd "$(dirname "$0")/.."

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "venv.sh: $python cannot make virtual environments;" \
        "packaging/requirements.sh test installs what it lacks" >&2
    exit 1
fi
echo "making $venv with $("$python" --version)"
"$python" -m venv --clear "$venv"
# All downloads stay in this folder.
export PIP_CACHE_DIR="$PWD/.build/pip"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extra]"
touch "$venv/up-to-date"
