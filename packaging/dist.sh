#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes below FOLDER what a release publishes: the sources, the RPMs, the Debian packages, and their checksums.
#
#   packaging/dist.sh FOLDER
set -eu
umask 022

folder=$1
sources=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n 's/^version = //p' "$sources/setup.cfg")
newest=$(sed -n 's/^## \([0-9.]*\).*/\1/p' "$sources/CHANGELOG.md" | head -n 1)
[ "$newest" = "$version" ] || {
    echo "dist.sh: CHANGELOG.md's newest version is $newest, and setup.cfg has $version" >&2
    exit 1
}
: "${SOURCE_DATE_EPOCH=$(git -c safe.directory="$sources" -C "$sources" log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH

rm -rf "$folder"
mkdir -p "$folder/build"
folder=$(cd "$folder" && pwd)
"$sources/packaging/archive.sh" "oci-gpu-hook-$version" >"$folder/oci-gpu-hook-$version.tar.gz"
{
    "$sources/packaging/rpm.sh" "$folder/build/rpm"
    "$sources/packaging/deb.sh" "$folder/build/deb"
} | while read -r package; do mv "$package" "$folder/"; done
rm -rf "$folder/build"
(cd "$folder" && sha256sum ./* >SHA256SUMS && ls)
