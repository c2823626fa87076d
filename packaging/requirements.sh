#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the distribution's packages that `make demo`, `make test`, `make bench`, `make rpm`, `make deb` or
# packaging/generate.sh needs, if they are missing.
#
#   packaging/requirements.sh demo|test|bench|rpm|deb|generate
#
# What counts is whether the program is there, not which package it came from: a host may have runc from Docker's
# packages, which the distribution's own package would replace.
set -eu

purpose=$1
PATH=$PATH:/usr/sbin:/sbin

say() { echo "requirements.sh: $*" >&2; }

if command -v apt-get >/dev/null; then
    distribution=debian
elif command -v dnf >/dev/null; then
    distribution=fedora
else
    say "neither apt-get nor dnf is here: whatever is missing must be installed by hand"
    exit 0
fi

needed='' wanted=''
debian() { if [ $distribution = debian ]; then "$@"; fi; }
fedora() { if [ $distribution = fedora ]; then "$@"; fi; }
has() { command -v "$1" >/dev/null; }
python_has() { [ -x /usr/bin/python3 ] && /usr/bin/python3 -I -c "import $1" 2>/dev/null; }
rpm_has() { rpm -q "$1" >/dev/null 2>&1; }
need() { needed="$needed $1"; }
want() { wanted="$wanted $1"; }

has make || need make
has /usr/bin/python3 || need python3
python_has click || { debian need python3-click; fedora want python3-click; }

if [ "$purpose" = generate ]; then
    python_has docutils || need python3-docutils
else
    has cc || need gcc
    [ -e /usr/include/stdlib.h ] || { debian need libc6-dev; fedora need glibc-devel; }
    has unshare || need util-linux
    has ldconfig || { debian need libc-bin; fedora need glibc; }
    # RHEL 10 has no runc.
    runtime=runc
    ! grep -q '^PLATFORM_ID=.*el10' /etc/os-release || runtime=crun
    has $runtime || need $runtime
    python_has pyudev || { debian need python3-pyudev; fedora want python3-pyudev; }
    python_has yaml || { debian need python3-yaml; fedora want python3-pyyaml; }
    python_has tomllib || python_has tomli || fedora want python3-tomli
fi

if [ "$purpose" = test ]; then
    has crun || need crun
    has podman || need podman
    has conmon || need conmon
    has dockerd || { debian need docker.io; fedora want moby-engine; }
    has containerd || need containerd
    # Who starts nvidia-container-cli, or no hook at all.
    has lxc-execute || need lxc
    has lxd || debian need lxd
    has ch-fromhost || debian need charliecloud
    has systemd-nspawn || need systemd-container
    # Docker's networks; and the CRI's calls are HTTP/2.
    has iptables || need iptables
    has curl || need curl
    # Where docker.io has it no more.
    has docker || debian want docker-cli
    # JupyterHub's proxy.  The others of its programs come from PyPI.
    has configurable-http-proxy || debian need node-configurable-http-proxy
    has docker-compose || { debian need docker-compose; fedora want docker-compose; }
    # What podman's pods begin with.
    has catatonit || need catatonit
    has podman-compose || { debian need podman-compose; fedora want podman-compose; }
    # A user's own Docker.
    has rootlesskit || need rootlesskit
    has slirp4netns || need slirp4netns
    has newuidmap || { debian need uidmap; fedora need shadow-utils; }
    has pkill || { debian need procps; fedora need procps-ng; }
    has strace || need strace
    # The newest engines, beside the distribution's own.
    has mmdebstrap || debian need mmdebstrap
    # Doctor's remedy for a missing pynvml, which is run, has it installed already.
    python_has pip || { debian need python3-pip; fedora want python3-pip; }
    has patchelf || { debian need patchelf; fedora want patchelf; }
    has shellcheck || { debian need shellcheck; fedora want ShellCheck; }
    has musl-gcc || { debian need musl-tools; fedora want musl-gcc; }
    has busybox || { debian need busybox-static; fedora want busybox; }
    # The manuals and completions are tested with the programs that use them.
    has man || need man-db
    has groff || need groff
    has mandoc || { debian need mandoc; fedora want mandoc; }
    has zsh || need zsh
    has fish || { debian need fish; fedora want fish; }
    # What makes a MachineSet of the cluster's own.
    has jq || need jq
    # What reads our metrics, rules and dashboard.
    has promtool || { debian need prometheus; fedora want golang-github-prometheus; }
    # A locale of another charset is made of it.
    [ -e /usr/share/i18n/locales/de_DE ] || { debian need locales; fedora want glibc-locale-source; }
    # Debian's package has a dracut module, which would go into every later initramfs.
    has ignition-validate || { has dracut || debian want ignition; fedora want ignition-validate; }
    # What NVIDIA's, AMD's and Intel's real libraries load, and the X server beside them.
    for library in Xext.so.6:libxext6 gbm.so.1:libgbm1 wayland-client.so.0:libwayland-client0 numa.so.1:libnuma1 \
        z3.so.4:libz3-4 edit.so.2:libedit2 xml2.so.2:libxml2 freetype.so.6:libfreetype6 dbus-1.so.3:libdbus-1-3 \
        audit.so.1:libaudit1 Xau.so.6:libxau6 Xdmcp.so.6:libxdmcp6 bsd.so.0:libbsd0 drm.so.2:libdrm2; do
        ldconfig -p | grep -qF "lib${library%:*} " || debian need "${library#*:}"
    done
    python_has ensurepip || { debian need python3-venv; fedora need python3-libs; }
fi

if [ "$purpose" = test ] || [ "$purpose" = rpm ]; then
    has rpmbuild || { debian need rpm; fedora need rpm-build; }
    has rpmlint || { debian need rpmlint; fedora want rpmlint; }
    has git || need git
    # What the spec requires of a build host there.
    rpm_has selinux-policy || fedora need selinux-policy
    rpm_has systemd-rpm-macros || fedora need systemd-rpm-macros
fi

if [ "$purpose" = test ] || [ "$purpose" = deb ]; then
    has dh || { debian need debhelper; fedora want debhelper; }
    has dpkg-buildpackage || { debian need dpkg-dev; fedora want dpkg-dev; }
    has git || need git
fi

if [ "$purpose" = test ]; then
    has lintian || debian need lintian
    has systemd-analyze || need systemd
    # The node that systemd boots, and its network.
    [ -x /lib/systemd/systemd ] || need systemd
    has ip || { debian need iproute2; fedora need iproute; }
    has dbus-daemon || { debian need dbus; fedora need dbus-daemon; }
    has udevadm || { debian need udev; fedora need systemd-udev; }
fi

if [ "$purpose" = bench ]; then
    has busybox || { debian need busybox-static; fedora want busybox; }
fi

# The distribution may not have what is only wanted: for that alone nothing is installed, as every run would try again.
[ -n "$needed" ] || exit 0
say "installing$needed$wanted"
if [ "$(id -u)" != 0 ]; then
    say "that needs root"
    exit 1
fi
install_all() {
    case $distribution in
    # --no-remove: rather fail than take a package from the host.
    debian) apt-get -q -q -y --no-install-recommends --no-remove install "$@" >/dev/null ;;
    fedora) dnf -q -y --setopt=install_weak_deps=False install "$@" ;;
    esac
}

# No service is started: the tests start their own daemons, where nothing of them stays.
policy=/usr/sbin/policy-rc.d
if [ $distribution = debian ] && ! [ -e $policy ]; then
    trap 'rm -f $policy' EXIT
    # A shell may run no EXIT trap where a signal ends it.
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
fi

export DEBIAN_FRONTEND=noninteractive
[ $distribution = fedora ] || apt-get -q -q update
# $needed and $wanted are lists of package names.
# shellcheck disable=SC2086
install_all $needed
for package in $wanted; do
    install_all "$package" || say "there is no package $package here: done without"
done
