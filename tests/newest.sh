#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a root of Debian's unstable release, with its newest engines and what the tests need, and prints the engines'
# versions.  With a command, runs it in that root, which has this folder, /dev and the cgroups of the machine's.
#
#   tests/newest.sh FOLDER [COMMAND...]
#
# The mirror and the keys are this machine's own.  FOLDER/root stays as it was on its day: remove it for another.
set -eu

folder=$(realpath -m "$1") root=$(realpath -m "$1")/root
shift
engines='podman buildah conmon crun runc criu docker.io docker-cli containerd docker-compose lxc
    incus-base systemd netavark'
# Of the tests; what more the engines call; and what the nodes are made with.
beside='make patchelf python3-click python3-pytest python3-pytest-xdist python3-pyudev python3-yaml
    catatonit curl dbus iproute2 iptables jq mount passt podman-compose procps slirp4netns strace udev uidmap libcriu2
    busybox-static gcc libc6-dev musl-tools policycoreutils setools'
cd "$(dirname "$0")/.."
. tests/debian.sh

make_root() {
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    rm -rf "$root"
    mkdir -p "$folder"
    # A machine's clock may be ahead of the release that its mirror has.
    # shellcheck disable=SC2016,SC2046,SC2086  # the hook's; words
    TMPDIR=$scratch mmdebstrap --quiet --mode=root --variant=apt --include="$(echo $engines $beside | tr ' ' ,)" \
        --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
        $(printf ' --dpkgopt=path-exclude=/usr/share/%s/*' doc man locale) \
        --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
        --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Sandbox::User "root"' \
        --aptopt='APT::Install-Recommends "false"' \
        --customize-hook='cd "$1/var/cache" && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -q -q download selinux-policy-default' \
        sid "$root" "$(mirror)" >"$scratch/log" 2>&1 || { cat >&2 "$scratch/log"; exit 1; }
    # Debian has no package of it.
    PIP_CACHE_DIR=$PWD/.build/pip .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
        --target "$root/usr/lib/python3/dist-packages" 'nvidia-ml-py >=12'
    # Last: it says that all is there.
    echo "$version" >"$folder/whole"
}

version=$(cksum <tests/newest.sh)
[ "$(cat "$folder/whole" 2>/dev/null)" = "$version" ] || make_root
echo "Debian's unstable release of $(date -r "$folder/whole" +%F):"
# shellcheck disable=SC2086  # words
dpkg-query --admindir="$root/var/lib/dpkg" --show --showformat '  ${Package} ${Version}\n' $engines python3
[ $# -gt 0 ] || exit 0

export root
# pivot_root(8), not chroot(8): after that the kernel refuses user namespaces.
# shellcheck disable=SC2016  # the inner shell's
exec unshare --mount --propagation private sh -euc '
    mount --bind "$root" "$root"
    mkdir -p "$root$PWD"
    mount --bind "$PWD" "$root$PWD"
    for folder in /dev /sys; do mount --rbind "$folder" "$root$folder"; done
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=0755 none "$root/run"
    here=$PWD
    cd "$root"
    pivot_root . mnt
    umount -l /mnt
    cd "$here"
    exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 "$@"' sh "$@"
