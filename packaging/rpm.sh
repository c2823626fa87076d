#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the RPMs below FOLDER from a clean copy of this tree: what git does not ignore, with uncommitted changes.
#
#   packaging/rpm.sh FOLDER [VERSION]                      VERSION stands in for the spec's own
set -eu
umask 022

folder=$1
sources=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$folder/SOURCES" "$folder/SPECS"
folder=$(cd "$folder" && pwd)
version=${2:-$(sed -n 's/^Version: *//p' "$sources/packaging/oci-gpu-hook.spec")}
# Two builds of one source are equal.
: "${SOURCE_DATE_EPOCH=$(git -c safe.directory="$sources" -C "$sources" log -1 --format=%ct 2>/dev/null || echo 1)}"
export SOURCE_DATE_EPOCH

if [ ! -x "$(command -v rpmbuild)" ]; then
    echo "rpm.sh: there is no rpmbuild here; packaging/requirements.sh rpm installs it" >&2
    exit 1
fi

# The files of the tree, NUL-separated; without git, all that are neither hidden nor generated.
list() {
    cd "$sources"
    if git -c safe.directory="$sources" rev-parse --git-dir >/dev/null 2>&1; then
        git -c safe.directory="$sources" ls-files -z --cached --others --exclude-standard
    else
        find . -path './.*' ! -path './.ci*' -prune -o -name __pycache__ -prune -o -type f -print0
    fi
}

sed "s/^Version: .*/Version:        $version/" "$sources/packaging/oci-gpu-hook.spec" \
    >"$folder/SPECS/oci-gpu-hook.spec"
# Files that were deleted but are still in git's index are skipped.
list | tar -C "$sources" --null --verbatim-files-from -T - --ignore-failed-read --sort=name \
    --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --transform="s|^\(\./\)\{0,1\}|oci-gpu-hook-$version/|" -c 2>/dev/null |
    gzip -n >"$folder/SOURCES/oci-gpu-hook-$version.tar.gz"

rpmbuild -ba --define "_topdir $folder" "$folder/SPECS/oci-gpu-hook.spec" >"$folder/log" 2>&1 || {
    tail -n 20 "$folder/log" >&2
    echo "rpm.sh: rpmbuild failed; all that it said is in $folder/log" >&2
    exit 1
}
find "$folder/RPMS" "$folder/SRPMS" -name "oci-gpu-hook-*$version-*.rpm"
