#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts the programs of Docker, containerd and Compose that Debian's next release has into a folder.  They are not installed.
#
#   tests/docker/next.sh FOLDER
#
# The mirror and the keys are this machine's own.  apt's lists of that release go with the temporary folder.
set -eu

release=trixie
folder=$1
[ ! -e "$folder/docker-compose" ] || exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck disable=SC2016  # apt's own words
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | grep -v security | head -n 1)
[ -n "$mirror" ] || { echo >&2 "next.sh: apt has no mirror of Debian's here"; exit 1; }
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" >"$scratch/sources"
mkdir -p "$scratch/state/lists/partial" "$scratch/cache/archives/partial" "$scratch/packages" "$folder"
apt() {
    apt-get -q -q -o APT::Sandbox::User=root -o Dir::Etc::SourceList="$scratch/sources" -o Dir::Etc::SourceParts=- \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
        -o Dir::State::Lists="$scratch/state/lists" -o Dir::Cache="$scratch/cache" "$@"
}
apt update
(cd "$scratch/packages" && apt download docker.io docker-cli containerd docker-compose)
for package in "$scratch"/packages/*.deb; do dpkg -x "$package" "$scratch/tree"; done
# Not docker-init, a link to another package's program.
find "$scratch/tree/usr/bin" -type f -exec cp -t "$folder" {} +
cp "$scratch"/tree/usr/sbin/dockerd "$folder"
# Last: it says that all is there.
cp "$scratch"/tree/usr/libexec/docker/cli-plugins/docker-compose "$folder"
