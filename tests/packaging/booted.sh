#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Boots the simulated node that it runs on: systemd as process 1 of namespaces of its own, with our units and none of
# the machine's, then what standard input says as a shell script, with the status of that.
#
#   ... | node.py --cgroup v2 -- tests/packaging/booted.sh
#
# Nothing of the machine changes: sysctls and sysfs are read-only, and the cgroup it lies in goes with it.
set -eu

units=/run/booted
driver=/run/simulated
group=/sys/fs/cgroup/oci-gpu-hook-booted-$$

# What a boot reaches; ours are wanted by it once they are enabled.
make_units() {
    rm -rf /etc/systemd/system /run/systemd
    mkdir -p $units /run/no-generators /etc/systemd/system
    for target in sysinit basic multi-user shutdown umount; do
        printf '[Unit]\nDefaultDependencies=no\n' >$units/$target.target
    done
    cp /usr/lib/systemd/system/oci-gpu-hook-* $units/
    for unit in "$units"/oci-gpu-hook-*; do
        mkdir "$unit.d"
        # Every condition but ConditionVirtualization, which forbids this.
        printf '[Unit]\nConditionVirtualization=\n%s\n' "$(grep "^Condition[DP]" "$unit")" >"$unit.d/here.conf"
        case $unit in *.path) continue ;; esac
        # There is no journal to say it to; and some sandboxes have a procfs of their own, which only a real driver is in.
        cat >>"$unit.d/here.conf" <<END
[Service]
StandardOutput=append:/run/said
StandardError=append:/run/said
BindReadOnlyPaths=$driver/driver:/proc/driver $driver/devices:/proc/devices
END
    done
}

# As process 1: a procfs of this namespace with the driver in it, and a cgroup root of its own.
become_init() {
    mount -t tmpfs none /mnt
    mkdir /mnt/proc /mnt/cgroup
    mount -t proc proc /mnt/proc
    mount --bind -o ro /mnt/proc/sys /mnt/proc/sys
    mount --rbind $driver/driver /mnt/proc/driver
    mount --bind $driver/devices /mnt/proc/devices
    mount -t cgroup2 none /mnt/cgroup
    mount -o remount,bind,ro /sys
    umount -R -l /sys/fs/cgroup /proc
    mount --move /mnt/cgroup /sys/fs/cgroup
    mount --move /mnt/proc /proc
    umount /mnt
    exec env -i container=test PATH="$PATH" SYSTEMD_GENERATOR_PATH=/run/no-generators \
        SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/systemd/system:/usr/local/lib/systemd/system:$units \
        /usr/lib/systemd/systemd --system --unit=multi-user.target --log-target=console --show-status=no
}

inside() { nsenter --target "$init" --all -- env SYSTEMD_UNIT_PATH=/etc/systemd/system:$units "$@"; }

end() {
    status=$?
    [ -z "$init" ] || kill -9 "$init"
    wait || :
    [ $status = 0 ] || cat /run/said >&2
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || :
}

if [ "${1:-}" = become-init ]; then become_init; fi

init=''
mkdir -p $driver/driver
: >$driver/devices
mount --rbind /proc/driver $driver/driver
mount --bind /proc/devices $driver/devices
make_units
SYSTEMD_UNIT_PATH=/etc/systemd/system:$units systemctl --quiet preset-all
mkdir "$group"
trap end EXIT
# The cgroup namespace has as its root where it is made.
sh -c "echo \$\$ >'$group/cgroup.procs'; exec unshare --pid --ipc --uts --net --cgroup --mount --propagation slave \
    --fork --kill-child sh '$0' become-init" >/run/booted.log 2>&1 </dev/null &
until init=$(pgrep --parent $!) && state=$(inside systemctl is-system-running) || [ "${state:-}" = degraded ]; do
    kill -0 $! || { cat /run/booted.log >&2; exit 1; }
    sleep 0.1
done 2>/dev/null
inside sh -eu
