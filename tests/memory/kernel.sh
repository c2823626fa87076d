#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds a Linux with the dmem controller into a folder: `vmlinuz`, `modules`, `headers` for more, and `version`.
#
#   tests/memory/kernel.sh CONFIG FOLDER
#
# The source is Debian's newest package of it, which is unpacked and not installed.  The mirror and the keys are this
# machine's own; the lists of packages and all that is built on the way lie in a scratch folder beside FOLDER.
set -eu

# shellcheck source=tests/debian.sh
. "$(dirname "$0")/../debian.sh"

config=$1 folder=$2
scratch=$folder.scratch
rm -rf "$scratch" "$folder"
mkdir -p "$scratch/lists/partial" "$scratch/archives/partial"
trap 'rm -rf "$scratch"' EXIT
mirror=$(mirror)
for suite in trixie-backports sid; do
    # A machine's clock may be ahead of the release that its mirror has.
    words="signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no"
    echo "deb [$words] $mirror $suite main"
done >"$scratch/sources.list"
cat >"$scratch/apt.conf" <<EOF
Dir::Etc::SourceList "$scratch/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$scratch/lists";
Dir::Cache "$scratch";
APT::Sandbox::User "root";
EOF
export APT_CONFIG="$scratch/apt.conf"
apt-get -q -q update
package=$(apt-cache --names-only search '^linux-source-[0-9]+\.[0-9]+$' | cut -d ' ' -f 1 | sort -V | tail -n 1)
cd "$scratch"
apt-get -q -q download "$package"
dpkg -x "$package"_*.deb .
tar -xJf "usr/src/$package.tar.xz"
rm -r ./*.deb usr
cd "$package"

make -s "KCONFIG_ALLCONFIG=$config" allnoconfig
grep '^CONFIG_' "$config" | while read -r line; do
    grep -q -x "$line" .config || { echo >&2 "kernel.sh: $package has no $line"; exit 1; }
done
# This machine may be in use.
nice -n 5 make -s -j "$(nproc)" bzImage modules >"$scratch/log" 2>&1 || { tail -n 30 >&2 "$scratch/log"; exit 1; }
mkdir "$scratch/built"
cp "$(make -s image_name)" "$scratch/built/vmlinuz"
make -s modules_install "INSTALL_MOD_PATH=$scratch/tree" DEPMOD=true
mv "$scratch/tree/lib/modules" "$scratch/built/modules"
make -s run-command KBUILD_RUN_COMMAND="\$(srctree)/scripts/package/install-extmod-build $scratch/built/headers"
make -s kernelrelease >"$scratch/built/version"
# Last: it says that all is there.
mv "$scratch/built" "$folder"
