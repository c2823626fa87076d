# SPDX-License-Identifier: Apache-2.0
"""What a vendor's file may name: folders of the host, places in the container, devices.

A vendor's file is root's own, yet whoever starts a container chooses among what it names.  So it gives nothing that is
more than an accelerator: none of the host's disks, memory, consoles and controls, and no folder that holds everybody's
files.  Each function gives a sentence that says why something is refused, "" for what may be named.

A device is refused thrice: by its name where the file is read, also where a pattern could mean that name; by its number
and by its driver's name where a node is found, as a name is only what udev has made of it.

Pure.  Must not look at the host.
"""

from __future__ import annotations

from oci_gpu_hook.errors import quoted
from oci_gpu_hook.formats import glob
from oci_gpu_hook.record import NamedTuple

VERSION = "{version}"
DEV = "/dev/"

# Where drivers lie, and what they make while they run.
FOLDERS = ("/usr", "/opt", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/run")
# Nobody's target: a mount there would cover what the runtime has made, and what the kernel says.
_NO_TARGETS = ("/proc", "/sys", "/dev")

LONGEST_PATH = 4095
LONGEST_NAME = 255
_LONGEST_VERSION = 64

# Folders that hold everybody's files: one that is mounted whole hides the container's own, or shows all of the host's.
_SHARED = (
    *("/usr/bin", "/usr/sbin", "/usr/games", "/usr/include", "/usr/libexec", "/usr/share"),
    *("/usr/src", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/lib/modules"),
    *("/lib/modules", "/usr/local", "/usr/local/bin", "/usr/local/sbin", "/usr/local/lib"),
    *("/usr/local/lib64", "/usr/local/share", "/usr/local/libexec", "/usr/local/include"),
    *("/etc/ld.so.conf.d", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    *("/usr/lib/i386-linux-gnu", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu"),
    "/lib/i386-linux-gnu",
)

# Whoever reads or speaks to these is the host's root: passwords and keys, the engines' sockets, systemd's.
_SECRET = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers"),
    *("/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private", "/etc/pki/*/private", "/etc/krb5.keytab"),
    *("/etc/ipsec.d", "/etc/wireguard", "/etc/NetworkManager", "/etc/kubernetes", "/etc/crio"),
    *("/etc/cni", "/etc/oci-gpu-hook*", "/run/oci-gpu-hook", "/run/docker*", "/run/containerd*"),
    *("/run/containers", "/run/crio", "/run/podman", "/run/cri-dockerd.sock", "/run/buildkit"),
    *("/run/libvirt", "/run/systemd", "/run/dbus", "/run/credentials", "/run/secrets"),
    *("/run/user", "/run/sshd*", "/run/cockpit", "/run/netns", "/run/k3s", "/run/k0s", "/run/nri"),
    *("/run/lxd*", "/run/incus*", "/run/balena*", "/run/snapd*", "/run/udev/control", "/run/munge", "/run/slurm*"),
    *("/etc/munge", "/etc/slurm", "/etc/ceph", "/etc/rancher", "/etc/letsencrypt", "/etc/security"),
    *("/etc/sssd", "/etc/cryptsetup-keys.d", "/etc/containers", "/etc/docker", "/etc/containerd"),
    *("/etc/pki/nssdb", "/etc/pam.d", "/etc/polkit-1", "/etc/cron*", "/etc/systemd"),
)


class _Kind(NamedTuple):
    """Devices that no vendor's file gives: what they are, their names below /dev, and their drivers' names.

    drivers: in /proc/devices and in /proc/misc.
    """

    what: str
    names: tuple[str, ...]
    drivers: tuple[str, ...] = ()


_DISKS = _Kind(
    "a disk or tape of the host, or its controller",
    (
        *("sd[a-z]*", "sg[0-9]*", "bsg/*", "bsg", "sr[0-9]*", "scd[0-9]*", "hd[a-z]*"),
        *("vd[a-z]*", "xvd*", "nvme*", "ng[0-9]*", "mmcblk*", "pmem*", "loop*", "dm-*"),
        *("md[0-9]*", "md/*", "mapper/*", "disk/*", "disk/*/*", "block/*", "nbd*", "rbd*"),
        *("zd[0-9]*", "zfs", "zram*", "ram[0-9]*", "raw*", "raw/*", "st[0-9]*", "nst*", "osst*"),
        *("nosst*", "sch[0-9]*", "fd[0-9]*", "changer*", "mtd*", "mtd/*", "ubi*", "bcache*"),
        *(
            "bcache/*",
            "drbd*",
            "dasd*",
            "cciss/*",
            "btrfs-control",
            "megaraid*",
            "megadev*",
            "twe[0-9]*",
            "ublk*",
            "vduse/*",
            "mpt[0-9]*ctl",
        ),
        *("mptctl", "aac[0-9]*", "twa[0-9]*", "root", "cdrom*", "dvd*", "scsi/*", "rpmb*"),
        *("fioa*", "fct[0-9]*"),
    ),
    (
        *("sg", "st", "osst", "ch", "bsg", "raw", "mtd", "ubi*", "nvme*", "rpmb", "ses", "pt"),
        *("pg", "loop-control", "device-mapper", "btrfs-control", "zfs", "megaraid*", "mpt*ctl"),
        *("aac*", "bcache*", "nbd*", "drbd*", "twa", "twe", "osd", "ublk*", "vduse*", "megadev*"),
    ),
)
_MEMORY = _Kind(
    "memory, firmware or processor registers of the host",
    (
        *("mem", "kmem", "kmsg", "port", "core", "oldmem", "nvram", "snapshot", "crash"),
        *("userfaultfd", "cpu/*", "cpu/*/*", "mcelog", "dax[0-9]*", "dax/*", "ndctl*", "nmem*"),
        *("dimmctl*", "cxl/*", "tpm*", "tpmrm*", "mei*", "ipmi*", "ipmi/*", "hpilo/*"),
        *("isst_interface", "sev", "i2c*", "spidev*", "efi_*", "hpet", "gpiochip*", "megarac*"),
        "acpi_*",
    ),
    (
        *("mem", "cpu/*", "msr", "cpuid", "dax", "ndctl", "dimmctl", "cxl", "tpm*", "mei*"),
        *("ipmi*", "hpilo", "nvram", "snapshot", "userfaultfd", "mcelog", "hpet", "i2c", "spi"),
        *("gpiochip", "sev", "isst_*", "crash", "microcode"),
    ),
)
_CONSOLES = _Kind(
    "a console, terminal, screen or keyboard of the host",
    (
        *("console", "tty*", "tts/*", "vc/*", "vcs*", "vcc/*", "ptmx", "pty*", "pts/*", "hvc*"),
        *("hvsi*", "xvc[0-9]*", "sclp*", "3270/*", "cua*", "fb[0-9]*", "fb/*", "input/*"),
        *("input/*/*", "hidraw*", "hiddev*", "uinput", "uhid", "userio", "mouse*", "mice"),
        *("js[0-9]*", "psaux", "kbd", "usbmon*", "xconsole", "stdin", "stdout", "stderr", "fd/*"),
        *("rfcomm*", "lp[0-9]*", "parport*", "usb/*", "usb/*/*", "bus/*", "bus/*/*", "bus/*/*/*"),
        *("serial/*", "serial/*/*", "initctl", "vhci", "fw[0-9]*", "log"),
    ),
    (
        *("/dev/*", "tty*", "vcs", "ptm", "pts", "pty*", "fb", "input", "hidraw", "hvc*", "usb*"),
        *("lp", "ppdev", "uinput", "uhid", "userio", "rfcomm", "psaux", "xvc*", "sclp*", "cua*"),
    ),
)
# VFIO and UIO give a whole PCI device, which may be a disk's controller, and UIO its DMA to all memory.
_CONTROLS = _Kind(
    "a control of the host's kernel, not of an accelerator",
    (
        *("vfio/*", "vfio/*/*", "uio*", "iommu", "kvm", "fuse", "cuse", "net/*", "vhost*"),
        *("autofs", "watchdog*", "rtc*", "rfkill", "char/*", "hwrng", "vboxdrv*", "vmmon"),
        *("vmci", "vmnet*", "mshv*", "xen/*", "ppp", "shm/*", "mqueue/*", "hugepages/*"),
        "systrace",
    ),
    (
        *("vfio*", "uio*", "iommu*", "kvm", "fuse", "cuse", "tun", "vhost*", "autofs"),
        *("watchdog*", "rtc*", "rfkill", "hw_random", "ppp", "vbox*", "vmmon", "vmci", "vmnet*"),
        *("mshv*", "xen*"),
    ),
)
_OWN = _Kind("a device that every container has of its own", ("null", "zero", "full", "random", "urandom"))
_KINDS = (_DISKS, _MEMORY, _CONSOLES, _CONTROLS, _OWN)

# Numbers that the kernel gives to a driver for good (admin-guide/devices.txt) lie below these, and the first are of
# terminals, disks, tapes, buses and such.  Accelerators have these of them: v4l and ALSA (of a system on a chip),
# NVIDIA's, DRM, InfiniBand, and those for local use.  Others get theirs while the host runs.
_FIRST_DYNAMIC_MAJOR = 234
_MISC, _ACCELERATORS = 10, frozenset((81, 116, 195, 226, 231, *range(60, 64), *range(120, 128)))
_SCSI_OBJECTS = 260
# Of the misc driver's minors these are given for good, and no accelerator has one (include/linux/miscdevice.h).
_FIXED_MINORS = frozenset((*range(16), *range(128, 255)))
_MICE = frozenset(range(16))
_MEM = 1
_OWN_MINORS = frozenset((3, 5, 7, 8, 9))
_OF_MAJORS = (
    (_DISKS, (9, 12, 21, 27, 37, 86, 90, 96, 97, 109, 162, 206, 230, _SCSI_OBJECTS)),
    (_MEMORY, (_MEM, 89, 202, 203)),
    (_CONSOLES, (2, 3, 4, 5, 6, 7, 11, 13, 15, 29, *range(128, 144), 166, 180, 188, 189, 204, 227)),
)


def host_path(path: str) -> str:
    """Why a vendor's file may not name this path of the host; it may be a pattern, with ``{version}``."""
    fault = written(path)
    if fault:
        return fault
    folder = "/" + path.split("/")[1]
    if folder not in FOLDERS:
        return f"{quoted(path)} lies outside of {', '.join(FOLDERS)}"
    pattern = path.replace(VERSION, "*").split("/")[1:]
    if len(pattern) == 1:
        return f"{quoted(path)} is a folder of everybody's files"
    for shared in _SHARED:
        if _could_be(pattern, shared.split("/")[1:]):
            return f"{quoted(path)} {_means(path, shared)} a folder of everybody's files"
    for secret in _SECRET:
        parts = secret.split("/")[1:]
        # A folder below it, it itself, or one that it lies in.
        least = min(len(pattern), len(parts))
        if _could_be(pattern[:least], parts[:least]):
            return f"{quoted(path)} {_means(path, secret)} for the host's root alone"
    return ""


def target(path: str) -> str:
    """Why nothing may be put into this folder of the container."""
    fault = written(path)
    if fault:
        return fault
    if glob.is_pattern(path) or "{" in path:
        return f"{quoted(path)} is a pattern, a target is one folder"
    if "/" + path.split("/")[1] in _NO_TARGETS:
        return f"{quoted(path)} lies in {', '.join(_NO_TARGETS[:-1])} or {_NO_TARGETS[-1]}"
    return ""


def device_path(path: str) -> str:
    """Why a vendor's file may not name this device, a path below /dev, or a pattern that could mean such a one."""
    fault = written(path)
    if fault:
        return fault
    if not path.startswith(DEV):
        return f"{quoted(path)} lies outside of /dev"
    parts = path[len(DEV) :].split("/")
    for kind in _KINDS:
        for name in kind.names:
            if _could_be(parts, name.split("/")):
                return f"{quoted(path)} {_means(path, DEV + name)} {kind.what}"
    return ""


def device_number(major: int, minor: int) -> str:
    """Why a character device with this number may not be given, whatever its name is."""
    shown = f"character device {major}:{minor}"
    if major == _MISC:
        if minor not in _FIXED_MINORS:
            return ""
        return f"{shown} is {(_CONSOLES if minor in _MICE else _CONTROLS).what}"
    if major == _MEM and minor in _OWN_MINORS:
        return f"{shown} is {_OWN.what}"
    for kind, majors in _OF_MAJORS:
        if major in majors:
            return f"{shown} is {kind.what}"
    if major < _FIRST_DYNAMIC_MAJOR and major not in _ACCELERATORS:
        return f"{shown} is of a driver that is no accelerator's"
    return ""


def driver(name: str) -> str:
    """Why devices of the driver with this name, in /proc/devices or in /proc/misc, may not be given."""
    for kind in _KINDS:
        if any([glob.matches(pattern, name) for pattern in kind.drivers]):
            return f"the driver {quoted(name)} is of {kind.what}"
    return ""


def version(text: str) -> str:
    """Why a driver's version cannot stand for ``{version}`` in a path."""
    if not text or len(text) > _LONGEST_VERSION:
        return f"the version {quoted(text)} has not 1 to {_LONGEST_VERSION} characters"
    odd = [letter for letter in text if not ((letter.isascii() and letter.isalnum()) or letter in "._+~:-")]
    if odd or text.startswith("."):
        return f"the version {quoted(text)} is none: letters, digits and ._+~:- are"
    return ""


def written(path: str) -> str:
    """Why this is no absolute path without doubt of what it means."""
    if not path.startswith("/"):
        return f"{quoted(path)} is no absolute path"
    if len(path) > LONGEST_PATH:
        return f"{quoted(path)} is longer than {LONGEST_PATH} characters"
    if not path.isprintable():
        return f"{quoted(path)} has characters that cannot be printed"
    parts = path[1:].split("/")
    if not all(parts):
        return f"{quoted(path)} has an empty name in it"
    if "." in parts or ".." in parts:
        return f"{quoted(path)} has '.' or '..' in it"
    if max(map(len, parts)) > LONGEST_NAME:
        return f"{quoted(path)} has a name of more than {LONGEST_NAME} characters"
    return ""


def _means(path: str, other: str) -> str:
    """How a sentence goes on: what `path` is, or by which name it could mean it."""
    return f"could mean {other}, which is" if glob.is_pattern(path) or VERSION in path else "is"


def _could_be(pattern: list[str], others: list[str]) -> bool:
    """Whether one path can fit both, a name at a time."""
    return len(pattern) == len(others) and all(map(glob.overlap, pattern, others))
