# SPDX-License-Identifier: Apache-2.0
"""Lays the real driver of a node out as other hosts have it, from where Debian's packages have put it.

    python3 relayout.py rpm|nix INVENTORY

As root on a throw-away node.  INVENTORY: what ``oci-gpu-hook info --saved --format json`` says of Debian's layout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

# A NixOS host's store is its builders', too.  Here it lies below /run, for the node's / is the machine's.
STORE, BUILDERS = "/run/nix/store", 30_000
NVIDIA, DRIVERS = f"{STORE}/0a1b-nvidia-x11", f"{STORE}/2c3d-graphics-drivers"
USERS = "/run/current-system/sw"


def move(path: str, target: str) -> None:
    """The file, and in its place nothing."""
    real = os.path.realpath(path)
    if os.path.exists(real) and real != target:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(target):
            os.unlink(target)
        shutil.move(real, target)


def as_packaged(found: dict[str, Any], prefix: str, folders: dict[int, str]) -> None:
    """Libraries, programs and configuration below a prefix; manifests name libraries there by their whole paths."""
    for item in found["libraries"]:
        move(item["path"], f"{folders[item['bits']]}/{item['file']}")
    for folder in folders.values():
        # Each SONAME is a link, which ldconfig makes.
        subprocess.run(["/sbin/ldconfig", "-n", folder], check=True)
        for name in ("libcuda", "libnvidia-ml", "libnvcuvid", "libnvidia-encode"):
            if os.path.exists(f"{folder}/{name}.so.1"):
                os.symlink(f"{name}.so.1", f"{folder}/{name}.so")
        if os.path.exists(f"{folder}/libnvidia-allocator.so.1"):
            os.makedirs(f"{folder}/gbm", exist_ok=True)
            os.symlink("../libnvidia-allocator.so.1", f"{folder}/gbm/nvidia-drm_gbm.so")
    for item in found["binaries"]:
        move(item["path"], f"{prefix}/bin/{os.path.basename(item['target'])}")
    for item in found["files"]:
        if not item["target"].startswith(("/usr/share/", "/etc/vulkan")):
            continue
        target = f"{prefix}/share/{item['target'].partition('/share/' if 'share' in item['target'] else '/etc/')[2]}"
        move(item["path"], target)
        if target.endswith(".json"):
            with open(target) as file:
                text = file.read()
            with open(target, "w") as file:
                file.write(
                    text.replace('"libGLX', f'"{folders[64]}/libGLX').replace('"libEGL', f'"{folders[64]}/libEGL')
                )


def without_debians() -> None:
    """No alternative and no folder of Debian's is left."""
    names = os.listdir("/etc/alternatives")
    for path in [f"/etc/alternatives/{name}" for name in names if name.startswith(("nvidia", "glx"))]:
        os.unlink(path)
    for folder in ("/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu"):
        shutil.rmtree(f"{folder}/nvidia", ignore_errors=True)


def rpm(found: dict[str, Any]) -> None:
    """As RHEL's and Fedora's packages have it."""
    as_packaged(found, "/usr", {64: "/usr/lib64", 32: "/usr/lib"})
    modules = [item for item in found["files"] if item["module"]]
    for item in modules:
        move(item["path"], f"/usr/lib64/xorg/modules/{item['module']}")
    # One for each architecture.
    manifest = "/usr/share/vulkan/icd.d/nvidia_icd"
    with open(f"{manifest}.json") as file:
        text = file.read()
    for machine, folder in (("x86_64", "lib64"), ("i686", "lib")):
        with open(f"{manifest}.{machine}.json", "w") as file:
            file.write(text.replace("/usr/lib64", f"/usr/{folder}"))
    os.unlink(f"{manifest}.json")
    with open("/etc/ld.so.conf.d/000-rpm.conf", "w") as file:
        file.write("/usr/lib64\n/usr/lib\n")
    without_debians()


def nix(found: dict[str, Any]) -> None:
    """As NixOS has it: no cache knows the libraries, and a folder of links leads to them."""
    as_packaged(found, NVIDIA, {64: f"{NVIDIA}/lib", 32: f"{NVIDIA}/lib32"})
    for item in found["files"]:
        if item["module"]:
            move(item["path"], f"{NVIDIA}/lib/xorg/modules/{item['module']}")
    for below in ("lib", "share"):
        for folder, _, names in os.walk(f"{NVIDIA}/{below}"):
            os.makedirs(folder.replace(NVIDIA, DRIVERS), exist_ok=True)
            for name in names:
                os.symlink(f"{folder}/{name}", f"{folder}/{name}".replace(NVIDIA, DRIVERS))
    os.symlink(DRIVERS, "/run/opengl-driver")
    os.makedirs(f"{USERS}/bin")
    for name in os.listdir(f"{NVIDIA}/bin"):
        os.symlink(f"{NVIDIA}/bin/{name}", f"{USERS}/bin/{name}")
    os.chown(STORE, 0, BUILDERS)
    os.chmod(STORE, 0o1775)
    os.unlink("/etc/ld.so.conf.d/000-rpm.conf")
    without_debians()


if __name__ == "__main__":
    with open(sys.argv[2]) as listing:
        {"rpm": rpm, "nix": nix}[sys.argv[1]](json.load(listing))
