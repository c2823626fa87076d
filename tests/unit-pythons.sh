#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the unit tests on every Python that is served and that this machine has: on PATH, or as a
# pyenv version.
#
#   tests/unit-pythons.sh [VERSION...]
#
# A Python that is missing is named, not an error: no machine has them all.
set -eu

cd "$(dirname "$0")/.."
versions=("$@")
[ $# -gt 0 ] || versions=(3.9 3.11 3.12 3.13 3.14)

usable() { # PYTHON VERSION: it starts (a pyenv shim may not), is that version, and can make a venv
    "$1" -c 'import ensurepip, sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' \
        "$2" 2>/dev/null
}

find_python() { # VERSION
    local python pyenv=${PYENV_ROOT:-$HOME/.pyenv}/versions
    for python in $(type -ap "python$1") /usr/bin/python3 "$pyenv/$1".*/bin/python3; do
        if usable "$python" "$1"; then
            echo "$python"
            return
        fi
    done
    return 1
}

environment() { # VERSION PYTHON: the folder of an up-to-date virtual environment
    local venv=.venv-$1
    if usable .venv/bin/python "$1"; then
        venv=.venv
    elif [ ! "$venv/up-to-date" -nt setup.cfg ]; then
        packaging/venv.sh "$venv" "$2" test >&2
    fi
    echo "$venv"
}

passed='' failed='' missing=''
for version in "${versions[@]}"; do
    if ! python=$(find_python "$version"); then
        missing+=" $version"
        continue
    fi
    venv=$(environment "$version" "$python")
    echo "== Python $version ($("$venv/bin/python" --version))"
    if "$venv/bin/python" -m pytest -q tests/unit; then
        passed+=" $version"
    else
        failed+=" $version"
    fi
done
echo "== unit tests passed on Python:${passed:- none}${failed:+; failed on:$failed}"
[ -z "$missing" ] || echo "== not on this machine, so not tested: Python$missing"
[ -n "$passed" ] && [ -z "$failed" ]
