# SPDX-License-Identifier: Apache-2.0
"""Debian's SELinux policy with its container module, in a module store below a folder of ours.

Debian 12 ships the container module as source only; it is built here and neither its source nor its binary is kept in
the repository.  semodule(8) works on another root without SELinux in the running kernel.

Must not touch this machine's own policy, nor anything outside the folder that it is given.
"""

from __future__ import annotations

import bz2
import glob
import os
import shutil
import subprocess
import sys

POLICY_PACKAGE = "selinux-policy-default"
CONTAINER_MODULES = ("container", "docker", "podman")
STORE = "default"
# tests/newest.sh leaves it there: another release's.
_KEPT = f"/var/cache/{POLICY_PACKAGE}_*.deb"
_SOURCES = "/usr/src/selinux-policy-src.tar.zst"
_DEVELOPMENT = "/usr/share/selinux/devel/Makefile"


def run(*words: str, cwd: str | None = None) -> str:
    """A program that must succeed; what it says is shown where it does not."""
    done = subprocess.run(words, check=False, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise SystemExit(f"{' '.join(words[:4])} ... failed with status {done.returncode}")
    return done.stdout


def download(folder: str, *packages: str) -> list[str]:
    """Debian packages, not installed: their files, in the order of their names."""
    os.makedirs(folder, exist_ok=True)
    run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *packages, cwd=folder)
    return sorted(glob.glob(f"{folder}/*.deb"))


def version() -> str:
    """Of the package that this machine has kept or would download."""
    if kept := glob.glob(_KEPT):
        return os.path.basename(kept[0])
    text = run("apt-cache", "policy", POLICY_PACKAGE)
    return next(line.split()[-1] for line in text.splitlines() if "Candidate:" in line)


def link(root: str, scratch: str) -> None:
    """The whole base policy, linked in the store below `root`."""
    [package] = glob.glob(_KEPT) or download(f"{scratch}/policy-package", POLICY_PACKAGE)
    shipped = f"{scratch}/policy"
    os.makedirs(shipped)
    run("dpkg", "-x", package, shipped)
    folder = f"{shipped}/usr/share/selinux/{STORE}"
    with open(f"{folder}/.modules", encoding="ascii") as file:
        modules = [f"{folder}/{name}.pp.bz2" for name in file.read().split()]
    if not os.path.exists(f"{folder}/{CONTAINER_MODULES[0]}.pp.bz2"):
        modules += _container_modules(f"{scratch}/container-policy")
    shutil.copytree(f"{shipped}/etc/selinux", f"{root}/etc/selinux", dirs_exist_ok=True)
    os.makedirs(f"{root}/var/lib/selinux", exist_ok=True)
    install(root, *modules)


def _container_modules(folder: str) -> list[str]:
    os.makedirs(folder)
    names = [f"*/policy/modules/services/{name}.{end}" for name in CONTAINER_MODULES for end in ("te", "fc")]
    run("tar", "-C", folder, "--strip-components=4", "--wildcards", "-xf", _SOURCES, *names)
    packages = [f"{name}.pp" for name in CONTAINER_MODULES]
    run("make", "-f", _DEVELOPMENT, *packages, cwd=folder)
    return [f"{folder}/{name}" for name in packages]


def store_name(root: str) -> str:
    """What the policy in the store below `root` is called: the one folder in etc/selinux."""
    [folder] = glob.glob(f"{root}/etc/selinux/*/")
    return os.path.basename(folder.rstrip("/"))


def file_contexts(root: str) -> str:
    return f"{root}/etc/selinux/{store_name(root)}/contexts/files/file_contexts"


def install(root: str, *modules: str) -> None:
    """Install modules into the store; all at once, for each transaction links everything."""
    run("semodule", "-p", root, "-s", store_name(root), "-n", *[word for module in modules for word in ("-i", module)])


def binary(root: str) -> str:
    """The policy as a kernel loads it."""
    [path] = glob.glob(f"{root}/etc/selinux/{store_name(root)}/policy/policy.*")
    return path


def modules_text(root: str) -> str:
    texts = []
    for path in sorted(glob.glob(f"{root}/var/lib/selinux/{STORE}/active/modules/*/*/cil")):
        with open(path, "rb") as file:
            data = file.read()
        texts.append((bz2.decompress(data) if data.startswith(b"BZh") else data).decode())
    return "\n".join(texts)
