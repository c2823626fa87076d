#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts the newest runtimes that Debian has, and CRIU, into a folder, with the libraries that they need.  They are not
# installed: who runs one gives it the loader of that folder (`newest` in tests/integration/conftest.py).  Prints their
# versions.
#
#   tests/newest.sh FOLDER
#
# The mirror and the keys are this machine's own.
set -eu

folder=$1
versions() {
    loader=$(echo "$folder"/lib/ld-linux-*.so.*)
    for program in crun runc criu; do
        echo "$program: $("$loader" --library-path "$folder/lib" "$folder/bin/$program" --version | head -n 1)"
    done
}
[ ! -e "$folder/bin" ] || { versions; exit 0; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck disable=SC2016  # apt's own words
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | grep -v security | head -n 1)
[ -n "$mirror" ] || { echo >&2 "newest.sh: apt has no mirror of Debian's here"; exit 1; }
# A machine's clock may be ahead of the release that its mirror has.
mmdebstrap --quiet --mode=root --variant=extract --include=crun,runc,criu \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Sandbox::User "root"' \
    sid "$scratch/tree" "$mirror" >"$scratch/log" 2>&1 || { cat >&2 "$scratch/log"; exit 1; }
mkdir -p "$folder/lib" "$folder/new"
cp -L "$scratch"/tree/usr/lib/*-linux-gnu/*.so.* "$folder/lib"
for program in crun runc criu; do
    set -- "$scratch"/tree/usr/*bin/$program
    cp "$1" "$folder/new"
done
# Last: it says that all is there.
mv "$folder/new" "$folder/bin"
versions
