#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the unit tests on every Python that is served and that this machine has: on PATH, or as a
# pyenv version.  The oldest and the newest run all tests; those between run the tests that are
# marked `pythons`, which are about what differs between Pythons.
#
#   tests/unit-pythons.sh [--others] [VERSION...]
#
# --others: not on the Python of .venv, which `make unit` takes; all tests on the oldest alone, and a tenth of the
# examples of properties (tests/unit/examples.py), as `make test` has no more time.
# A Python that is missing is named, not an error: no machine has them all.
set -eu

cd "$(dirname "$0")/.."
others=''
[ "${1:-}" != --others ] || { others=yes; shift; }
versions=("$@")
[ $# -gt 0 ] || versions=(3.9 3.11 3.12 3.13 3.14 3.15)
read -ra options <<<"-q ${PARALLEL:-}"
# What bash does, and what manifests say, is the same under every Python: `make unit` tests it.
if [ "$others" ]; then
    export OCI_GPU_HOOK_EXAMPLES_PART=10
    options+=(--ignore tests/unit/test_entry_script.py --ignore tests/unit/test_runtime_script.py)
    options+=(--ignore tests/unit/test_openshift.py --ignore tests/unit/test_pools.py)
fi

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
declare -A pythons
there=()
for version in "${versions[@]}"; do
    if python=$(find_python "$version"); then
        pythons[$version]=$python
        there+=("$version")
    else
        missing+=" $version"
    fi
done
for version in "${there[@]}"; do
    if [ "$others" ] && usable .venv/bin/python "$version"; then
        continue
    fi
    venv=$(environment "$version" "${pythons[$version]}")
    which=()
    case $version in
    "${there[0]}") ;;
    "${there[-1]}") [ ! "$others" ] || which=(-m pythons) ;;
    *) which=(-m pythons) ;;
    esac
    echo "== Python $version ($("$venv/bin/python" --version)) ${which[*]}"
    if "$venv/bin/python" -m pytest "${options[@]}" "${which[@]}" tests/unit; then
        passed+=" $version"
    else
        failed+=" $version"
    fi
done
echo "== unit tests passed on Python:${passed:- none}${failed:+; failed on:$failed}"
[ -z "$missing" ] || echo "== not on this machine, so not tested: Python$missing"
[ -z "$failed" ] && [ "$passed$others" ]
