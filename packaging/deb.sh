#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages below FOLDER from a clean copy of this tree: what git does not ignore, with uncommitted changes.
#
#   packaging/deb.sh FOLDER [VERSION]                      VERSION stands in for the changelog's own
set -eu
umask 022

folder=$1
sources=$(cd "$(dirname "$0")/.." && pwd)
version=${2:-$(sed -n '1s/.*(\(.*\)-.*/\1/p' "$sources/packaging/debian/changelog")}
name=oci-gpu-hook-$version
# Two builds of one source are equal.  Without git the changelog's time stands in for the last commit's.
: "${SOURCE_DATE_EPOCH=$(git -c safe.directory="$sources" -C "$sources" log -1 --format=%ct 2>/dev/null ||
    dpkg-parsechangelog -l "$sources/packaging/debian/changelog" -S Timestamp)}"
export SOURCE_DATE_EPOCH

if [ ! -x "$(command -v dh)" ] || [ ! -x "$(command -v dpkg-buildpackage)" ]; then
    echo "deb.sh: there is no debhelper here; packaging/requirements.sh deb installs it" >&2
    exit 1
fi

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
rm -rf "${folder:?}/$name"
archive=$folder/oci-gpu-hook_$version.orig.tar.gz
"$sources/packaging/archive.sh" "$name" >"$archive"
tar -x -C "$folder" -f "$archive"
cp -a "$folder/$name/packaging/debian" "$folder/$name/"
sed -i "1s/([^)]*)/($version-1)/" "$folder/$name/debian/changelog"

# -d: nothing but Python, debhelper and a shell is needed, which may come from elsewhere than packages.
(cd "$folder/$name" && dpkg-buildpackage -us -uc -d) >"$folder/log" 2>&1 || {
    tail -n 20 "$folder/log" >&2
    echo "deb.sh: dpkg-buildpackage failed; all that it said is in $folder/log" >&2
    exit 1
}
rm -rf "${folder:?}/$name"
find "$folder" -name "oci-gpu-hook*_$version-1_all.deb"
