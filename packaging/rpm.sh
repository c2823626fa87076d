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

sed "s/^Version: .*/Version:        $version/" "$sources/packaging/oci-gpu-hook.spec" \
    >"$folder/SPECS/oci-gpu-hook.spec"
"$sources/packaging/archive.sh" "oci-gpu-hook-$version" >"$folder/SOURCES/oci-gpu-hook-$version.tar.gz"

# No package has the name of the host that has built it.
rpmbuild -ba --define "_topdir $folder" --define "_buildhost localhost" "$folder/SPECS/oci-gpu-hook.spec" >"$folder/log" 2>&1 || {
    tail -n 20 "$folder/log" >&2
    echo "rpm.sh: rpmbuild failed; all that it said is in $folder/log" >&2
    exit 1
}
find "$folder/RPMS" "$folder/SRPMS" -name "oci-gpu-hook-*$version-*.rpm"
