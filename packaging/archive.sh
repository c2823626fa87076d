#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Packs a clean copy of this tree, what git does not ignore, with uncommitted changes, and what `make generated` makes: rpm.sh
# and deb.sh build from it, and make none of these.
#
#   SOURCE_DATE_EPOCH=SECONDS packaging/archive.sh NAME    a tar.gz on standard output, all of it below NAME/
#
# The same tree gives the same bytes, whatever umask it was checked out with.
set -eu

name=$1
cd "$(dirname "$0")/.."

in_git() { git -c safe.directory="$PWD" rev-parse --git-dir >/dev/null 2>&1; }

# The files of the tree, NUL-separated; without git, all that are neither hidden nor caches.
list() {
    if in_git; then
        git -c safe.directory="$PWD" ls-files -z --cached --others --exclude-standard
        echo "$generated" | tr '\n' '\0'
    else
        find . -path './.*' ! -path './.ci*' -prune -o -name __pycache__ -prune -o -type f -print0
    fi
}

! in_git || generated=$(make --silent --no-print-directory list-generated)
# Files that were deleted but are still in git's index are skipped.
list | tar --null --verbatim-files-from -T - --ignore-failed-read --sort=name \
    --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    --transform="s|^\(\./\)\{0,1\}|$name/|" -c 2>/dev/null |
    gzip -n
