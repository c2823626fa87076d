#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a script that makes files from the program: `make generated` calls it for manuals and completions.
#
#   packaging/generate.sh SCRIPT FOLDER                    SCRIPT: of packaging/; what it makes goes into FOLDER
#
# They are made by the Python of the virtual environment; else by PYTHON, with the distribution's click and docutils; else
# by that of a small environment.
set -eu

cd "$(dirname "$0")/.."
exec >&2
: "${PYTHON=/usr/bin/python3}"
small=.build/generate

# The first Python that has both.
find_python() {
    for python in .venv/bin/python "$PYTHON" $small/bin/python; do
        if "$python" -c 'import click, docutils' 2>/dev/null; then return; fi
    done
    return 1
}

if ! find_python && ! { packaging/requirements.sh generate && find_python; }; then
    packaging/venv.sh $small "$PYTHON" generate
    find_python
fi
"$python" "packaging/$1" "$2"
