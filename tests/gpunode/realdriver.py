# SPDX-License-Identifier: Apache-2.0
"""A real driver's user space on a node: by its Debian packages, or laid out from wherever its files lie.

    python3 realdriver.py lib64|run|nix LIST

On a throw-away node, as root: moves the files that LIST names, one path a line, to where such a host has them, and
names these in LIST.  What a file is, its ELF header and its name say; nothing here is taken from the product.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from typing import NamedTuple

# What fetch.sh of tests/driver has fetched.
FETCHED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.build/driver")
PREFIX = "debian:"

MULTIARCH, MULTIARCH_32 = f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib/i386-linux-gnu"
# A NixOS host's store is its builders', too.  Here it lies below /run, for the node's / is the machine's.
STORE, BUILDERS = "/run/nix/store", 30_000
NVIDIA, DRIVERS = f"{STORE}/0a1b-nvidia-x11", f"{STORE}/2c3d-graphics-drivers"
USERS = "/run/current-system/sw"

# Modules of the X server, by their names up to ".so": the folder below the server's own.
MODULES = {"nvidia_drv": "drivers", "libglxserver_nvidia": "extensions"}
# Other files by their names: the folder below a prefix's share.  NVIDIA's installer has them in one flat folder.
SHARED = {
    "10_nvidia.json": "glvnd/egl_vendor.d",
    "[0-9][0-9]_nvidia_*.json": "egl/egl_external_platform.d",
    "nvidia_icd_vksc.json": "vulkansc/icd.d",
    "nvidia_icd*.json": "vulkan/icd.d",
    "nvidia_layers.json": "vulkan/implicit_layer.d",
    "nvidia-drm-outputclass.conf": "X11/xorg.conf.d",
    "nvoptix.bin": "nvidia",
}
ICD, ICD_FOLDER = "nvidia.icd", "/etc/OpenCL/vendors"
FIRMWARE = "gsp*.bin"
PROGRAMS = ("nvidia-*", "nv-*")
# Of the installer's folder: what is the installer's own.
INSTALLERS = ("nvidia-installer", "libglvnd_install_checker")
# As a manifest names one.
LIBRARY = re.compile(r'"(?:/[^"]*/)?(lib(?:GLX|EGL)_nvidia[.][^"]*)"')
# In a folder of its own, where libvdpau looks for it.
VDPAU = "libvdpau_nvidia"
# Those that have a link without a number.
WITH_LINKS = ("libcuda", "libnvidia-ml", "libnvcuvid", "libnvidia-encode")


class Driver(NamedTuple):
    """Paths of a driver's files.

    libraries: by 64 and 32 bits, by their names; programs, manifests and firmware: by their names; modules: of the X
    server, by their paths below its folder; shared: by the folder below share and the name.
    """

    libraries: dict[int, dict[str, str]]
    programs: dict[str, str]
    modules: dict[str, str]
    shared: dict[str, str]
    firmware: dict[str, str]
    icd: str = ""

    @property
    def version(self) -> str:
        """As libcuda's file is named; FileNotFoundError if there is none."""
        for name in self.libraries[64]:
            start, _, version = name.partition(".so.")
            if start == "libcuda" and "." in version:
                return version
        raise FileNotFoundError("no libcuda.so.VERSION among the driver's files")


def look(paths: Iterable[str]) -> Driver:
    """What a driver's files are; others among them do not count."""
    driver, icd = Driver({64: {}, 32: {}}, {}, {}, {}, {}), ""
    for path in paths:
        name = os.path.basename(path)
        if os.path.islink(path) or not os.path.isfile(path) or any([it in path.split("/") for it in INSTALLERS]):
            continue
        with open(path, "rb") as file:
            head = file.read(20)
        bits = {1: 32, 2: 64}[head[4]] if head.startswith(b"\x7fELF") else 0
        stem = name.partition(".so")[0]
        shared = next((folder for pattern, folder in SHARED.items() if fnmatch(name, pattern)), "")
        if bits and stem in MODULES:
            driver.modules.setdefault(f"{MODULES[stem]}/{stem}.so", path)
        elif bits and ".so" in name:
            driver.libraries[bits].setdefault(name, path)
        elif bits and any([fnmatch(name, pattern) for pattern in PROGRAMS]):
            driver.programs.setdefault(name, path)
        elif shared:
            driver.shared.setdefault(f"{shared}/{name}", path)
        elif fnmatch(name, FIRMWARE):
            driver.firmware.setdefault(name, path)
        elif name == ICD:
            icd = path
    return driver._replace(icd=icd)


def below(folder: str) -> list[str]:
    """Each file below a folder, those that lie highest first."""
    return [f"{at}/{name}" for at, _, names in sorted(os.walk(folder)) for name in sorted(names)]


def move(path: str, target: str) -> None:
    if path != target:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(target):
            os.unlink(target)
        shutil.move(path, target)


def copy(path: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(path, target)
    os.chmod(target, stat.S_IMODE(os.stat(path).st_mode) & 0o755 | 0o644)


class Places(NamedTuple):
    """Where a host has a driver's files.

    folders: of libraries, by 64 and 32 bits; whole: whether manifests name libraries by their whole paths.
    """

    folders: dict[int, str]
    programs: str
    share: str
    vulkan: str
    modules: str
    whole: bool = False


class Host(NamedTuple):
    """A host that a driver's files are laid out on; take: puts a file somewhere, from where it lies now."""

    driver: Driver
    take: Callable[[str, str], None]

    def place(self, places: Places) -> None:
        for bits, folder in places.folders.items():
            if self.driver.libraries[bits]:
                self._libraries(bits, folder)
        for name, path in self.driver.programs.items():
            self.take(path, f"{places.programs}/{name}")
            os.chmod(f"{places.programs}/{name}", 0o755)
        for name, path in self.driver.modules.items():
            self.take(path, f"{places.modules}/{name}")
        for name, path in self.driver.shared.items():
            target = f"{places.vulkan if name.startswith('vulkan') else places.share}/{name}"
            self.take(path, target)
            if target.endswith(".json"):
                rewrite(target, target, places.folders[64] if places.whole else "")
        for name, path in self.driver.firmware.items():
            self.take(path, f"/lib/firmware/nvidia/{self.driver.version}/{name}")
        if self.driver.icd:
            self.take(self.driver.icd, f"{ICD_FOLDER}/{ICD}")

    def _libraries(self, bits: int, folder: str) -> None:
        """And the links beside them, which packages and ldconfig make."""
        libraries = self.driver.libraries[bits]
        for name, path in libraries.items():
            # The host's own libglvnd stays, as NVIDIA's installer has it.
            own = os.path.realpath(f"{folder}/{'.'.join(name.split('.')[:3])}")
            if own in libraries.values() or not os.path.exists(own):
                self.take(path, f"{folder}/{'vdpau/' if name.startswith(VDPAU) else ''}{name}")
        # Each SONAME is a link, which ldconfig makes.
        subprocess.run(["/sbin/ldconfig", "-n", folder, f"{folder}/vdpau"], check=True, stderr=subprocess.DEVNULL)
        links = [(f"{folder}/{VDPAU}.so", f"vdpau/{VDPAU}.so.1")] if os.path.isdir(f"{folder}/vdpau") else []
        links += [
            (f"{folder}/{name}.so", f"{name}.so.1") for name in WITH_LINKS if f"{name}.so.1" in os.listdir(folder)
        ]
        if os.path.exists(f"{folder}/libnvidia-allocator.so.1"):
            os.makedirs(f"{folder}/gbm", exist_ok=True)
            links.append((f"{folder}/gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"))
        for link, target in links:
            if not os.path.exists(link):
                relink(link, target)


def rewrite(path: str, target: str, folder: str) -> None:
    """A manifest that names its library in a folder, or by its name alone."""
    with open(path) as file:
        text = file.read()
    with open(target, "w") as file:
        file.write(LIBRARY.sub(rf'"{folder}/\1"' if folder else r'"\1"', text))


def relink(link: str, target: str) -> None:
    if os.path.lexists(link):
        os.unlink(link)
    os.makedirs(os.path.dirname(link), exist_ok=True)
    os.symlink(target, link)


def without_debians() -> None:
    """No alternative and no folder of Debian's is left."""
    names = os.listdir("/etc/alternatives") if os.path.isdir("/etc/alternatives") else []
    for path in [f"/etc/alternatives/{name}" for name in names if name.startswith(("nvidia", "glx"))]:
        os.unlink(path)
    for folder in ("/usr/lib", MULTIARCH, MULTIARCH_32):
        shutil.rmtree(f"{folder}/nvidia", ignore_errors=True)


def lib64(host: Host) -> None:
    """As RHEL's and Fedora's packages have it."""
    # One for each architecture.
    manifest = "vulkan/icd.d/nvidia_icd{}.json"
    shared = dict(host.driver.shared)
    if manifest.format("") in shared:
        shared[manifest.format(".x86_64")] = shared.pop(manifest.format(""))
    host = host._replace(driver=host.driver._replace(shared=shared))
    modules, share = "/usr/lib64/xorg/modules", "/usr/share"
    host.place(Places({64: "/usr/lib64", 32: "/usr/lib"}, "/usr/bin", share, share, modules, whole=True))
    if manifest.format(".x86_64") in shared:
        own, other = [f"{share}/{manifest.format(it)}" for it in (".x86_64", ".i686")]
        rewrite(own, other, "/usr/lib")
    with open("/etc/ld.so.conf.d/000-rpm.conf", "w") as file:
        file.write("/usr/lib64\n/usr/lib\n")
    without_debians()


def run(host: Host) -> None:
    """As NVIDIA's own installer has it on this machine."""
    is_multiarch = os.path.isdir(MULTIARCH)
    folders = {64: MULTIARCH, 32: MULTIARCH_32} if is_multiarch else {64: "/usr/lib64", 32: "/usr/lib"}
    modules = "/usr/lib/xorg/modules" if is_multiarch else "/usr/lib64/xorg/modules"
    host.place(Places(folders, "/usr/bin", "/usr/share", "/etc", modules))
    with open("/etc/ld.so.conf.d/000-run.conf", "w") as file:
        file.write("".join([f"{folder}\n" for folder in folders.values()]))
    without_debians()


def nix(host: Host) -> None:
    """As NixOS has it: no cache knows the libraries, and a folder of links leads to them."""
    folders, share = {64: f"{NVIDIA}/lib", 32: f"{NVIDIA}/lib32"}, f"{NVIDIA}/share"
    host.place(Places(folders, f"{NVIDIA}/bin", share, share, f"{NVIDIA}/lib/xorg/modules", whole=True))
    links = {"lib": f"{DRIVERS}/lib", "share": f"{DRIVERS}/share", "lib32": f"{DRIVERS}-32/lib"}
    for part, linked in links.items():
        for folder, _, names in os.walk(f"{NVIDIA}/{part}"):
            at = folder.replace(f"{NVIDIA}/{part}", linked)
            os.makedirs(at, exist_ok=True)
            for name in names:
                os.symlink(f"{folder}/{name}", f"{at}/{name}")
    for suffix in ("", "-32"):
        os.symlink(f"{DRIVERS}{suffix}", f"/run/opengl-driver{suffix}")
    os.makedirs(f"{USERS}/bin")
    for name in os.listdir(f"{NVIDIA}/bin"):
        os.symlink(f"{NVIDIA}/bin/{name}", f"{USERS}/bin/{name}")
    os.chown(STORE, 0, BUILDERS)
    os.chmod(STORE, 0o1775)
    if os.path.exists("/etc/ld.so.conf.d/000-rpm.conf"):
        os.unlink("/etc/ld.so.conf.d/000-rpm.conf")
    without_debians()


LAYOUTS: dict[str, Callable[[Host], None]] = {"lib64": lib64, "run": run, "nix": nix}


def packages(folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.endswith(".deb")]


def folder_of(source: str) -> str:
    """Where a driver lies that is named ``debian:NAME`` or by its folder."""
    if source.startswith(PREFIX):
        return os.path.realpath(f"{FETCHED}/{source[len(PREFIX) :]}")
    return os.path.realpath(source)


def version(source: str) -> str:
    """The driver's, by its packages or files; FileNotFoundError."""
    folder = folder_of(source)
    for path in packages(folder):
        name, _, rest = os.path.basename(path).partition("_")
        if name.endswith("cuda1") or name.startswith("libnvidia-compute-"):
            return rest.partition("_")[0].partition("-")[0]
    return look(below(folder)).version


def install(folders: Iterable[str]) -> None:
    """Debian packages, by their own maintainer scripts."""
    done = subprocess.run(
        ["dpkg", "--force-depends", "-i", *[path for folder in folders for path in packages(folder)]],
        check=False,
        capture_output=True,
        text=True,
        input="",
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        cwd="/",
    )
    if done.returncode:
        raise OSError(f"dpkg failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def installed(folder: str) -> list[str]:
    """What the packages in a folder have brought."""
    names = [os.path.basename(path).partition("_")[0] for path in packages(folder)]
    found: list[str] = []
    for name in sorted(os.listdir("/var/lib/dpkg/info")):
        if name.endswith(".list") and name[: -len(".list")].partition(":")[0] in names:
            with open(f"/var/lib/dpkg/info/{name}") as file:
                found += file.read().splitlines()
    return found


def put(source: str, others: Iterable[str], layout: str) -> None:
    """A driver on this node, "" for none, and other packages; layout: "" for the packages' own, or an installer's."""
    folder = folder_of(source) if source else ""
    is_packaged = bool(source and packages(folder))
    debs = [*([folder] if is_packaged else []), *others]
    if debs:
        subprocess.run(["dpkg", "--add-architecture", "i386"], check=True)
        install(debs)
    if source and not is_packaged:
        LAYOUTS[layout or "run"](Host(look(below(folder)), copy))
    elif source and layout:
        LAYOUTS[layout](Host(look(installed(folder)), move))
    subprocess.run(["/sbin/ldconfig"], check=True)


def main() -> None:
    layout, listing = sys.argv[1:]
    moved: list[str] = []

    def take(path: str, target: str) -> None:
        move(path, target)
        moved.append(target)

    with open(listing) as file:
        LAYOUTS[layout](Host(look(file.read().splitlines()), take))
    with open(listing, "w") as file:
        file.write("".join([f"{path}\n" for path in moved]))


if __name__ == "__main__":
    main()
