# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# What the init of each virtual machine reads first: it mounts what a distribution's would.  $cgroup: options of cgroup2.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root
exec </dev/console >/dev/console 2>&1
mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs /run
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /tmp
mkdir -p /dev/shm /dev/pts /dev/mqueue
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm
mount -t devpts -o mode=0620,ptmxmode=0666 devpts /dev/pts
mount -t mqueue mqueue /dev/mqueue
mount -t cgroup2 -o "${cgroup:-rw}" cgroup2 /sys/fs/cgroup
busybox ip link set lo up
# The simulated nodes have no driver: opening one must not send the kernel looking for its module, as no real node does.
echo >/proc/sys/kernel/modprobe
