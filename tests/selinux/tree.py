# SPDX-License-Identifier: Apache-2.0
"""The virtual machine's root tree, brought up to date for each run, and made into a disk.

On the kept base come our policy modules, the installed hook, the simulated driver's files and the guest's programs.
Labels are written on this machine, offline: a file system may hold SELinux's labels though the kernel that writes them
has no SELinux.  Must not touch anything outside the cache.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil

from tests import pods
from tests.gpunode import build, description, node
from tests.guest.tree import Fault
from tests.policy import debian
from tests.policy.debian import run
from tests.selinux import base
from tests.selinux.base import GUEST, HERE, LAYER, MULTIARCH, REPOSITORY
from tests.selinux.files import write
from tests.selinux.guest import vendors

OUR_MODULES = ("nvidia_container", "oci_gpu_hook")
# Of the tests, by the policy: what is logged, and what it lacks for them.
TESTS_MODULES = {"default": f"{HERE}/guest/refpolicy.cil", "targeted": f"{HERE}/guest/targeted.cil"}
ENTRY = "usr/libexec/oci/hooks.d/oci-gpu-hook"
DOCKERS_NAME = "usr/bin/nvidia-container-runtime-hook"
# What completes the simulation, as podman reads it.
_BEFORE = {"hook": {"path": f"/{GUEST}/bin/before"}, "when": {"always": True}, "stages": ["prestart"]}
BEFORE = {"version": "1.0.0", **_BEFORE}
DESCRIPTION = "h100mig"
LIBRARY = "usr/lib/oci-gpu-hook"

_RELABEL = "def relabel(tree: Tree, path: str, context: str) -> None:\n"


def _first(lines: str) -> Fault:
    """What `--break` puts before all that relabels."""
    return Fault("changes/contextset.py", _RELABEL, f"{_RELABEL}{lines}")


FAULTS = {
    "no-relabel": _first("    return\n"),
    # Before pivot_root this is the host's own, as it is below /proc/PID/root.  Our policy refuses it.
    "host-path": _first(
        "    try:\n        return posix.setxattr(path, XATTR, context.encode())\n    except OSError:\n        return\n"
    ),
    "wrong-level": _first("    context = ':'.join([*context.split(':')[:3], 's0:c8,c9'])\n"),
}

# Copies of the hook that lack one check each: what the text in a module is replaced with.  Where "ro" goes too, the
# kernel would refuse by itself what SELinux is asked here.
_WRITABLE = Fault("operations.py", '_SERVICE_OPTIONS = ("ro", *_SOCKET_OPTIONS)', "_SERVICE_OPTIONS = _SOCKET_OPTIONS")
UNCHECKED = {
    "sources": (
        Fault(
            "host/source.py", "    if parent.st_uid not in roots:\n", "    return\n    if parent.st_uid not in roots:\n"
        ),
        _WRITABLE,
    ),
    "mounts": (Fault("changes/tree.py", "return syscalls.mount_of(fd)[0] in self._own\n", "return True\n"), _WRITABLE),
    "root": (
        Fault("container/rootfs.py", "if not is_mounted_there:", "if False:"),
        Fault("container/rootfs.py", "if not _is_here_too(fd, path):", "if False:"),
        Fault("container/rootfs.py", " and not _is_roots(path, fd, owner):", " and False:"),
    ),
}

# Of a copy that somebody has taken over: what the modules end with.
TAKEN = (
    "\n\ndef main(*_):\n"
    f"    with open('/{GUEST}/tests/selinux/guest/taken.py') as file:\n"
    "        exec(file.read(), {})\n"
)
TAKEN_OVER = ("hook.py", "runtime/create.py")

# Where this run's files lie, and so what must be labelled again at each run.
_RENEWED = (
    *("etc", "opt", "usr/bin", "usr/lib/xorg", "usr/lib64", "usr/libexec", "usr/sbin", "usr/share", "var/lib/selinux"),
    *(GUEST, LIBRARY, f"usr/lib/{MULTIARCH}", f"{LAYER}/app"),
)


class Tree:
    def __init__(self, kept: base.Base) -> None:
        self.base = kept
        self.root = kept.root

    def renew(self, policy: str, only: str, fault: str) -> None:
        """Our modules, the installed hook, the simulated driver and the guest's programs, as they are now."""
        self._install_guest(only)
        self._install_pods()
        self._install_node()
        for name in (*(LIBRARY, "usr/libexec/oci", "usr/share/containers/oci"), "usr/share/oci-gpu-hook"):
            shutil.rmtree(f"{self.root}/{name}", ignore_errors=True)
        run("make", "-s", "-C", REPOSITORY, "install", f"DESTDIR={self.root}", "PYTHON=/usr/bin/python3")
        # As `make install-docker`.
        if not os.path.lexists(f"{self.root}/{DOCKERS_NAME}"):
            os.symlink(f"/{ENTRY}", f"{self.root}/{DOCKERS_NAME}")
        self._copy_unchecked()
        if fault:
            FAULTS[fault].plant(f"{self.root}/{LIBRARY}/oci_gpu_hook")
            _link(f"{self.root}/{LIBRARY}")
        if self._install_modules(policy):
            self.base.say("labelling all files")
            self._label("")
        else:
            for name in _RENEWED:
                self._label(name)

    def _install_modules(self, policy: str) -> bool:
        """Install our policy modules; whether they are others than before."""
        stamp = f"{self.base.folder}/modules"
        files = [f"{policy}/{name}.cil" for name in OUR_MODULES]
        files.append(TESTS_MODULES[self.base.policy])
        # Which an earlier run may have installed.
        is_ours = glob.glob(f"{self.root}/var/lib/selinux/{self.base.policy}/active/modules/*/kubelet")
        if is_ours or b"kubelet_t" not in _bytes(debian.binary(self.root)):
            files.append(f"{HERE}/guest/kubelet.cil")
        digest = hashlib.sha256(b"".join(_bytes(file) for file in files)).hexdigest()
        if os.path.exists(stamp) and _bytes(stamp).decode() == digest:
            return False
        self.base.say("installing our policy modules")
        if os.path.exists(stamp):
            os.unlink(stamp)
        debian.install(self.root, *files)
        write(stamp, digest)
        return True

    def _copy_unchecked(self) -> None:
        """The hook without its own checks: what is left then is SELinux's to refuse."""
        for name in (*UNCHECKED, "taken"):
            folder = f"{self.root}/{GUEST}/unchecked/{name}"
            shutil.copytree(f"{self.root}/{LIBRARY}", folder, symlinks=True)
            for change in UNCHECKED.get(name, ()):
                change.plant(f"{folder}/oci_gpu_hook")
            if name == "taken":
                for module in TAKEN_OVER:
                    with open(f"{folder}/oci_gpu_hook/{module}", "a", encoding="ascii") as file:
                        file.write(TAKEN)
            _link(folder)

    def _install_guest(self, only: str) -> None:
        guest = f"{self.root}/{GUEST}"
        shutil.rmtree(guest, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__", "*.c", "src")
        # By the names that they have here.
        for name in ("selinux/guest", "gpunode"):
            shutil.copytree(f"{REPOSITORY}/tests/{name}", f"{guest}/tests/{name}", ignore=ignored)
        for name in ("tests", "tests/selinux"):
            write(f"{guest}/{name}/__init__.py", "")
        shutil.copy(f"{HERE}/files.py", f"{guest}/tests/selinux")
        shutil.copy(f"{REPOSITORY}/tests/guest/mounts.sh", guest)
        for source, target in (
            ("load", f"{GUEST}/load"),
            ("init", "usr/sbin/init"),
            ("service", "etc/init.d/e2e"),
            ("e2e.service", "etc/systemd/system/e2e.service"),
        ):
            os.makedirs(os.path.dirname(f"{self.root}/{target}"), exist_ok=True)
            shutil.copy(f"{HERE}/guest/{source}", f"{self.root}/{target}")
            os.chmod(f"{self.root}/{target}", 0o644 if target.endswith(".service") else 0o755)
        write(f"{self.root}/etc/e2e-only", only)
        # The kernel's log is read for denials: journald is to leave auditing as it is.
        write(f"{self.root}/etc/systemd/journald.conf.d/e2e.conf", "[Journal]\nAudit=\n")
        os.makedirs(f"{guest}/bin")
        for runtime in ("runc", "oci-gpu-runtime"):
            shutil.copy(f"{HERE}/guest/simulated", f"{guest}/bin/simulated-{runtime}")
            os.chmod(f"{guest}/bin/simulated-{runtime}", 0o755)
        write(f"{guest}/hooks.d/before.json", json.dumps(BEFORE))
        flags = ["-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
        run("cc", *flags, "-static", "-o", f"{guest}/bin/before", f"{HERE}/guest/before.c")
        run("cc", *flags, "-o", f"{self.root}/{LAYER}/app/probe", f"{HERE}/guest/probe.c")
        for name in ("story.py", "agent.py"):
            shutil.copy(f"{HERE}/guest/{name}", f"{self.root}/{LAYER}/app")

    def _install_pods(self) -> None:
        """The pods that people paste, for a GPU of this node; and what their image has."""
        [uuid] = [gpu.uuid for gpu in description.load(DESCRIPTION).gpus if not gpu.mig]
        for type_, name in pods.FILES.items():
            write(f"{self.root}/{GUEST}/pods/{name}", pods.text(type_, uuid))
        write(f"{self.root}/{LAYER}/app/nvidia-smi", pods.LOOK, 0o755)

    def _install_node(self) -> None:
        """The drivers, NVIDIA's and other vendors', but for what lies in memory, and for libraries of 32 bits."""
        content = node.prepare(DESCRIPTION, [], layout="multiarch", vendors=vendors.NAMES)
        for path, file in content.files.items():
            if not path.startswith(f"{content.twin_folder}/"):
                os.makedirs(os.path.dirname(self.root + path), exist_ok=True)
                shutil.copy(file, self.root + path)
        for path, text in {**content.texts, vendors.FILE: json.dumps(vendors.EVERYTHING)}.items():
            if not path.startswith("/run/"):
                write(self.root + path, text)
        for path, target in content.links.items():
            if not path.startswith(f"{content.twin_folder}/") and not os.path.lexists(self.root + path):
                os.makedirs(os.path.dirname(self.root + path), exist_ok=True)
                os.symlink(target, self.root + path)
        built = build.build(content.node.driver, content.node.cuda_number)
        shutil.copy(f"{built}/mig-minors", f"{self.root}/{GUEST}/mig-minors")
        run("/sbin/ldconfig", "-X", "-r", self.root)

    def _label(self, below: str) -> None:
        path = f"{self.root}/{below}".rstrip("/")
        if os.path.lexists(path):
            run("setfiles", "-F", "-m", "-r", self.root, debian.file_contexts(self.root), path)


def _link(folder: str) -> None:
    """Link the modules in `folder` again: compiled and linked files are taken whatever became of their sources."""
    for top, folders, _ in os.walk(folder):
        for name in {"__pycache__", "__linked__"} & {*folders}:
            shutil.rmtree(f"{top}/{name}")
    link = f"{REPOSITORY}/packaging/link.py"
    run("/usr/bin/python3", "-ISB", "-X", "no_debug_ranges", link, folder, f"/{LIBRARY}")


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
