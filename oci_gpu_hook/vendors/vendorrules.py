# SPDX-License-Identifier: Apache-2.0
"""What a vendor's file may name: folders of the host, places in the container, devices.  Pure.

A vendor's file is root's own, yet any user who starts a container chooses among what it names.  So it gives none of the
host's disks, memory, consoles and controls, and no folder of everybody's files.  A device's name is only udev's: its
number and its driver are judged when it is found.  Each function says why something is refused, "" if it is not.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import quoted
from oci_gpu_hook.formats import glob

VERSION, DEV = "{version}", "/dev/"

# Of drivers, and of what they make while they run.
FOLDERS = ("/usr", "/opt", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/run")
# No target: a mount there would cover what the runtime has made, and what the kernel says.
_NO_TARGETS = ("/proc", "/sys", "/dev")

LONGEST_PATH, LONGEST_NAME, _LONGEST_VERSION = 4095, 255, 64

# Folders that hold everybody's files: one that is mounted whole hides the container's own, or shows all of the host's.
_SHARED = (
    *("/usr/bin", "/usr/sbin", "/usr/games", "/usr/include", "/usr/libexec", "/usr/share", "/usr/src"),
    *("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/lib/modules", "/lib/modules"),
    *("/usr/local", "/usr/local/bin", "/usr/local/sbin", "/usr/local/lib", "/usr/local/lib64", "/usr/local/share"),
    *("/usr/local/libexec", "/usr/local/include", "/usr/lib/*-linux-gnu", "/lib/*-linux-gnu", "/etc/ld.so.conf.d"),
)

# Who reads or speaks to these is the host's root: passwords and keys, the engines' sockets, systemd's.
_SECRET = {
    "/etc": (
        *("shadow", "shadow-", "gshadow", "gshadow-", "sudoers", "sudoers.d", "ssh", "ssl/private", "pki/*/private"),
        *("krb5.keytab", "ipsec.d", "wireguard", "NetworkManager", "kubernetes", "crio", "cni", "oci-gpu-hook*"),
        *("munge", "slurm", "ceph", "rancher", "letsencrypt", "security", "sssd", "cryptsetup-keys.d", "containers"),
        *("docker", "containerd", "pki/nssdb", "pam.d", "polkit-1", "cron*", "systemd"),
    ),
    "/run": (
        *("oci-gpu-hook", "docker*", "containerd*", "containers", "crio", "podman", "cri-dockerd.sock", "buildkit"),
        *("libvirt", "systemd", "dbus", "credentials", "secrets", "user", "sshd*", "cockpit", "netns", "k3s", "k0s"),
        *("nri", "lxd*", "incus*", "balena*", "snapd*", "udev/control", "munge", "slurm*"),
    ),
}

# Drivers that no file may name, nor any that begins so: who has a node of theirs reaches more than a device.
_REACH_FURTHER = (
    # Disks and their controllers, memory.
    *("aac", "bcache", "bsg", "cciss", "crash", "cxl", "dax", "dimmctl", "fct", "fio", "megadev", "megaraid", "ndctl"),
    *("nvme", "rpmb", "twa", "twe", "twl", "ubi", "ublk", "userfaultfd", "vduse"),
    # Firmware, keys and power.
    *("acpi_", "efi_", "gpiochip", "hpilo", "ipmi", "isst_", "mei", "sev", "tee", "tpm", "vtpmx", "watchdog"),
    # Consoles, hypervisors, and what leads to any device.
    *("firewire", "fwctl", "hidraw", "iommu", "ipvtap", "macvtap", "misc", "mshv", "nitro_enclaves", "switchtec"),
    *("tty", "uio", "usb", "vbox", "vfio", "vhost", "vm", "xen"),
)
# Paths that say which driver's they are.
_KNOWN_NODES = ("nvidia*", "onload*", "sfc_*", "kfd", "accel/*", "dri/*", "infiniband/*")
# In these folders of /dev others than root make files, or the kernel one for each container.
_MOUNTED = ("shm", "mqueue", "pts", "hugepages", "fd")

# Numbers that are given for good (Documentation/admin-guide/devices.txt) and that accelerators have: v4l and ALSA (of a
# system on a chip), NVIDIA's, DRM, InfiniBand, accel, and those for local use; and those that the kernel gives while it
# runs (fs/char_dev.c).
_MAJORS = frozenset((81, 116, 195, 226, 231, 261, *range(60, 64), *range(120, 128), *range(234, 255), *range(384, 512)))
# Of the misc driver's minors these are given for good, and no accelerator has one (include/linux/miscdevice.h).
MISC, _MISC_MINORS = 10, frozenset((*range(16), *range(128, 255)))
NULL = (1, 3)


def fault_of_host_path(path: str) -> str:
    """Why a vendor's file may not name this path of the host; it may be a pattern, with ``{version}``."""
    if fault := fault_of_path(path):
        return fault
    parts = path.split("/")[1:]
    folder, below = f"/{parts[0]}", parts[1:]
    if folder not in FOLDERS:
        return f"{quoted(path)} lies outside of {', '.join(FOLDERS)}"
    if not below or any([_fit(parts, shared.split("/")[1:]) for shared in _SHARED]):
        return f"{quoted(path)} is a folder of everybody's files"
    if folder in _SECRET and _is_anything(below[0]):
        return f"{quoted(path)} could mean what is for the host's root alone"
    for secret in _SECRET.get(folder, ()):
        patterns = secret.split("/")
        # A folder below it, it itself, or one that it lies in.
        least = min(len(below), len(patterns))
        if _fit(below[:least], patterns[:least]):
            return f"{quoted(path)} is for the host's root alone"
    return ""


def fault_of_target(path: str) -> str:
    if fault := fault_of_path(path):
        return fault
    if glob.is_pattern(path) or "{" in path:
        return f"{quoted(path)} is a pattern, a target is one folder"
    return f"{quoted(path)} lies in /proc, /sys or /dev" if "/" + path.split("/")[1] in _NO_TARGETS else ""


def fault_of_device_path(path: str) -> str:
    """Why a vendor's file may not name this path, or pattern, below /dev: what is there is judged by its number."""
    if fault := fault_of_path(path):
        return fault
    if not path.startswith(DEV):
        return f"{quoted(path)} lies outside of /dev"
    first = path[len(DEV) :].partition("/")[0]
    if _is_anything(first):
        return f"{quoted(path)} could mean any device of the host"
    return f"{quoted(path)} lies in {DEV}{first}, where no accelerator has its devices" if first in _MOUNTED else ""


def known_node(path: str) -> bool:
    parts = path[len(DEV) :].split("/")
    return any([_fit(parts, known.split("/")) for known in _KNOWN_NODES])


def fault_of_device_number(major: int, minor: int) -> str:
    is_given = minor not in _MISC_MINORS if major == MISC else major in _MAJORS
    return "" if is_given else f"character device {major}:{minor} is of a driver that is not an accelerator's"


def is_null(number: int) -> bool:
    return (posix.major(number), posix.minor(number)) == NULL


def fault_of_driver(name: str) -> str:
    """Why devices of the driver with this name, in /proc/devices or in /proc/misc, may not be given."""
    return f"the driver {quoted(name)} is the host's own" if name.startswith(_REACH_FURTHER) else ""


def fault_of_version(text: str) -> str:
    odd = [letter for letter in text if not ((letter.isascii() and letter.isalnum()) or letter in "._+~:-")]
    if odd or not text or text.startswith(".") or len(text) > _LONGEST_VERSION:
        return f"the version {quoted(text)} is not 1 to {_LONGEST_VERSION} letters, digits and ._+~:-"
    return ""


def fault_of_path(path: str) -> str:
    """Why this is not an absolute path without doubt of what it means."""
    parts = path[1:].split("/")
    rules = (
        (path.startswith("/"), "is not an absolute path"),
        (path.isprintable(), "has characters that cannot be printed"),
        (all(parts), "has an empty name in it"),
        (not {".", ".."} & {*parts}, "has '.' or '..' in it"),
        (len(path) <= LONGEST_PATH and max(map(len, parts)) <= LONGEST_NAME, "is too long"),
    )
    return next((f"{quoted(path)} {fault}" for is_right, fault in rules if not is_right), "")


def _is_anything(part: str) -> bool:
    return part.startswith(("*", "?", VERSION))


def _fit(parts: list[str], patterns: list[str]) -> bool:
    return len(parts) == len(patterns) and all(map(glob.matches, patterns, parts))
