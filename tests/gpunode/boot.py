# SPDX-License-Identifier: Apache-2.0
"""Run a command on a simulated GPU node that systemd has booted: PID 1, a message bus, and no other unit.

    python3 tests/gpunode/boot.py [--cgroup v1|v2] [--own-network] [node.py's other options] -- COMMAND [ARG...]

The command is a service there, in /system.slice; its output goes where this process's goes and its exit status becomes
this process's.  The node has its own namespaces (PID, mounts, cgroup, IPC, UTS) and sees its own part of the cgroup
tree only.  --own-network: a network of its own, too, with no way out; there the command may set what it likes.
Must not: let that systemd change the machine's sysctls, or leave a process or a cgroup.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

NODE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "node.py")
FAILED = 125
ROOT = "/sys/fs/cgroup"

UNITS = {
    "gpunode.target": """
        [Unit]
        DefaultDependencies=no
        Requires=dbus.service
        Wants=command.service
        """,
    # A real host restricts the devices of some service too (logind, timesyncd): on v1 systemd uses the devices
    # hierarchy in a slice from the moment that one of its units needs it, and misplaces what is there by then.
    # By these names systemd knows where it must offer its own service.
    "dbus.socket": """
        [Unit]
        DefaultDependencies=no
        [Socket]
        ListenStream=/run/dbus/system_bus_socket
        """,
    "dbus.service": """
        [Unit]
        DefaultDependencies=no
        Requires=dbus.socket
        [Service]
        Type=notify
        ExecStart=/usr/bin/dbus-daemon --system --address=systemd: --nofork --nopidfile
        DevicePolicy=closed
        """,
    "command.service": """
        [Unit]
        DefaultDependencies=no
        After=dbus.service
        [Service]
        Type=oneshot
        KillMode=none
        PassEnvironment=PATH SYSTEMD_DEVICE_VERIFY_SYSFS
        ExecStart={folder}/command
        ExecStopPost=/bin/sh -c 'echo "$$EXIT_STATUS" >{folder}/status.new && mv {folder}/status.new {folder}/status'
        StandardInput=file:{folder}/in
        StandardOutput=file:{folder}/out
        StandardError=file:{folder}/err
        """,
    # Each unit with default dependencies, as every scope, names them.
    "sysinit.target": "",
    "basic.target": "",
    "shutdown.target": "",
}

# Into the cgroups first, for the namespaces begin where their maker is; and to an end with the process that waits.
ENTER = """
for path in {cgroups}; do echo 0 >$path/cgroup.procs; done
exec setpriv --pdeathsig KILL \\
    unshare {network} --pid --fork --cgroup --ipc --uts --mount --mount-proc --kill-child -- "$@"
"""

# The shell lines that PID 1 was before it became systemd.
INIT = """
units=/usr/lib/systemd/system
mkdir -p $units /etc/systemd/system
find $units /etc/systemd/system /usr/lib/systemd/system-generators -mindepth 1 -delete
rm -rf /run/systemd /run/dbus
cp {folder}/units/* $units/
{mount_v1}
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
{own_network}
export container=gpunode SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1
export SYSTEMD_PROC_CMDLINE="{cmdline}"
exec /lib/systemd/systemd --system --unit=gpunode.target --log-target=console --log-level=warning --show-status=0
"""

# These sysctls are the network namespace's own.
OWN_NETWORK = """
mount --bind /proc/sys/net /proc/sys/net
mount -o remount,bind,rw /proc/sys/net
ip link set lo up
"""

# The mounts that are there show the machine's whole tree, new ones the node's part: it has a cgroup namespace.
MOUNT_V1 = """
hierarchies=$(ls {root})
umount --recursive {root}
mount -t tmpfs -o mode=0755 none {root}
for name in $hierarchies; do
    options=$name
    test $name != systemd || options=none,name=systemd
    mkdir {root}/$name
    mount -t cgroup -o $options none {root}/$name || rmdir {root}/$name
done
"""


def hierarchies() -> list[str]:
    """Where the machine's cgroup hierarchies are mounted."""
    found = []
    with open("/proc/self/mountinfo", encoding="ascii") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if after.split()[0] in ("cgroup", "cgroup2"):
                found.append(before.split()[4])
    return found


def remove(path: str) -> None:
    """A cgroup and all below it; its processes are on their way out."""
    for _ in range(200):
        try:
            for folder, _, _ in os.walk(path, topdown=False):
                os.rmdir(folder)
            return
        except OSError:
            time.sleep(0.02)


def make_cgroups(name: str) -> list[str]:
    """A cgroup for the node in each hierarchy."""
    made = []
    for mount_point in hierarchies():
        path = f"{mount_point}/{name}"
        os.mkdir(path)
        made.append(path)
        if os.path.exists(f"{path}/cpuset.cpus") and "cpuset" in mount_point:
            # v1: a new one has none, and takes no process then.
            for file in ("cpuset.cpus", "cpuset.mems"):
                with open(f"{mount_point}/{file}") as of_parent, open(f"{path}/{file}", "w") as own:
                    own.write(of_parent.read())
    return made


def write_units(folder: str, command: list[str]) -> None:
    """What systemd will boot, and the files that the command's output goes to."""
    os.mkdir(f"{folder}/units")
    for name, text in UNITS.items():
        with open(f"{folder}/units/{name}", "w", encoding="ascii") as file:
            file.write(textwrap.dedent(text).replace("{folder}", folder))
    with open(f"{folder}/command", "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\ncd /\nexec {shlex.join(command)}\n")
    os.chmod(f"{folder}/command", 0o755)
    # in: a runtime may give its standard input to a container's root, and the machine's /dev/null is everybody's.
    for name in ("in", "out", "err"):
        open(f"{folder}/{name}", "w").close()


def status_of(node: subprocess.Popen[bytes], folder: str) -> int:
    """Wait for the command's end; its exit status."""
    while not os.path.exists(f"{folder}/status"):
        if node.poll() is not None:
            print("gpunode: the node did not boot", file=sys.stderr)
            return FAILED
        time.sleep(0.05)
    with open(f"{folder}/status", encoding="ascii") as file:
        word = file.read().strip()
    return int(word) if word.isdigit() else FAILED


def boot(options: list[str], command: list[str], cgroup: str, *, own_network: bool) -> int:
    """One node, from its cgroups' making to their end; the command's exit status."""
    # Below /tmp the node sees what was there before it.
    folder = tempfile.mkdtemp(prefix="gpunode-boot-", dir="/tmp")
    cgroups = make_cgroups(os.path.basename(folder))
    try:
        write_units(folder, command)
        mount_v1 = MOUNT_V1.format(root=ROOT) if cgroup == "v1" else ""
        # crun does not take a v1 host on which something is left to v2.
        pure = "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1"
        cmdline = pure if cgroup == "v1" else "systemd.unified_cgroup_hierarchy=1"
        network = OWN_NETWORK if own_network else ""
        init = INIT.format(folder=folder, mount_v1=mount_v1, own_network=network, cmdline=cmdline)
        enter = ENTER.format(cgroups=" ".join(cgroups), network="--net" if own_network else "")
        line = ["/bin/sh", "-eu", "-c", enter, "enter", sys.executable, NODE, *options]
        line += ["--cgroup", cgroup, "--", "/bin/sh", "-eu", "-c", init]
        with open(f"{folder}/log", "wb") as log:
            node = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                status = status_of(node, folder)
            finally:
                node.kill()
                node.wait()
        for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
            with open(f"{folder}/{name}", errors="replace") as file:
                stream.write(file.read())
        if status == FAILED:
            with open(f"{folder}/log", errors="replace") as file:
                sys.stderr.write(file.read())
        return status
    finally:
        for path in cgroups:
            remove(path)
        shutil.rmtree(folder)


def main() -> int:
    # As an end like any other: what was made is taken away.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    words = sys.argv[1:]
    if "--" not in words or os.geteuid() != 0:
        print(__doc__ or "", file=sys.stderr)
        return FAILED
    at = words.index("--")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--own-network", action="store_true")
    parser.add_argument("--cgroup", default="v2")
    own, options = parser.parse_known_args(words[:at])
    return boot(options, words[at + 1 :], own.cgroup, own_network=own.own_network)


if __name__ == "__main__":
    sys.exit(main())
