# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's real user space, as Debian packages it, on the simulated kernel side: nothing here is made from our tables.

The packages' own maintainer scripts install them on the node, behind Debian's alternatives.  What loads on the host
must load in a container, and each library of the packages is given, or is in a list here with its reason.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration import roots
from tests.integration.engines import REPOSITORY, Bundle, Installed, in_turn, start

PACKAGES = REPOSITORY / ".build/driver"
# The names of their packages, and the package whose version is the driver's.
DRIVERS = {"535": "libcuda1", "tesla-470": "libnvidia-tesla-470-cuda1"}
FOLDER = "/usr/local/nvidia"

# Libraries of the packages that no container gets, and why.
LEFT_OUT = {"libnvidia-api.so.1": "it runs Windows' programs, and has no version in its name"}

OPEN = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        printf("%s: %s\n", dlopen(names[i], RTLD_LAZY | RTLD_LOCAL) ? "opened" : dlerror(), names[i]);
        fflush(stdout);
    }
    /* Some crash at an ordinary exit, on the host too. */
    _exit(0);
}
"""
# On overlays of the node's own.  An image gets what the driver's libraries need of the host's, and nothing more.
OVERLAYS = """
mount -t tmpfs none /mnt && mkdir /mnt/upper /mnt/work
mount -t overlay -o lowerdir=/var,upperdir=/mnt/upper,workdir=/mnt/work none /var
"""
INSTALL = """
dpkg --force-depends -i {packages}/*.deb >/run/dpkg.log 2>&1 || {{ tail -n 20 /run/dpkg.log >&2; exit 1; }}
ldconfig
oci-gpu-hook inventory refresh >&2
oci-gpu-hook info --saved --format json >/run/inventory
# Not by the file's own name, but for a library that has no other: the loader's cache has it in neither place.
python3 -c 'import json; print(*[name for it in json.load(open("/run/inventory"))["libraries"] for name in it["names"]
    if it["bits"] == 64 and not it["subfolder"] and (name != it["file"] or name == it["soname"])])' >/run/names
for name in $(cat /run/names); do
    ldd $(ldconfig -p | sed -n "s/^\\s*$name .* => //p" | head -n 1) 2>/dev/null || :
done | sed -n 's/.* => \\(\\/[^ ]*\\) .*/\\1/p' | sort -u | grep -v -e nvidia -e libcuda >/run/needed
for root in {roots}; do
    cp /run/names $root/names
    while read -r path; do cp -n "$(readlink -f $path)" $root/usr/lib/{multiarch}/${{path##*/}}; done </run/needed
    ldconfig -r $root
done
"""
# The manifests of Vulkan, EGL and OpenCL in a container, and the libraries that they name.
MANIFESTS = """
for file in $(find /usr/share /etc -name '*nvidia*.json' -o -name 'nvidia.icd'); do
    echo "manifest $file"
    grep -o 'lib[A-Za-z0-9_-]*[.]so[0-9.]*' $file | while read -r name; do /app/open $name; done
done
"""


class Seen(NamedTuple):
    """What was seen of one driver on a node and in containers, by the names of the scripts that looked."""

    version: str
    said: dict[str, list[str]]

    def opened(self, where: str) -> set[str]:
        return {line.removeprefix("opened: ") for line in self.said[where] if line.startswith("opened: ")}

    def inventory(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads("\n".join(self.said["inventory"]))
        return found


@pytest.fixture(scope="module", params=DRIVERS)
def seen(
    request: pytest.FixtureRequest,
    installed: Installed,
    patterns: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Seen:
    packages = PACKAGES / str(request.param)
    (file,) = packages.glob(f"{DRIVERS[request.param]}_*.deb")
    version = file.name.split("_")[1].partition("-")[0]
    folder = tmp_path_factory.mktemp("driver")
    description = json.loads((REPOSITORY / "tests/gpunode/descriptions/h100x8.json").read_text())
    (folder / "node.json").write_text(json.dumps({**description, "driver": version}))
    commands = {
        "all": ("all", f"/app/open $(cat /names); /app/open $(find {FOLDER}/lib64/gbm -name '*.so')"),
        "programs": ("compute,utility", "nvidia-smi || echo ended with $?; /app/cuda"),
        "manifests": ("compute,graphics,display", MANIFESTS),
    }
    bundles = {}
    for name, (capabilities, command) in commands.items():
        (folder / name).mkdir()
        shutil.copytree(patterns["debian"], folder / name / "rootfs", symlinks=True)
        made = bundles[name] = Bundle(folder / name, installed.hooks())
        source = folder / name / "open.c"
        source.write_text(OPEN)
        subprocess.run(["cc", "-o", made.rootfs / "app/open", source], check=True)
        made.asks("0", capabilities).runs("/bin/sh", "-c", command)
    before = OVERLAYS + INSTALL.format(
        packages=packages, roots=" ".join([str(it.rootfs) for it in bundles.values()]), multiarch=roots.MULTIARCH
    )
    program = bundles["all"].rootfs / "app"
    paths = " ".join([shlex.quote(str(path)) for path in sorted(packages.glob("*.deb"))])
    scripts = {
        "packaged": f"for it in {paths}; do dpkg-deb -c $it; done | grep '^-' | sed -n 's,.* [.]/,/,p' | grep '[.]so'",
        "inventory": "cat /run/inventory",
        "host": f"{program}/open $(cat /run/names)",
        "host programs": f"nvidia-smi || echo ended with $?; {program}/cuda",
        "doctor": "oci-gpu-hook doctor | grep -e libraries -e ld.so.cache",
        **{name: f"{start('runc', it)} 2>&1" for name, it in bundles.items()},
    }
    how: dict[str, Any] = {"description": str(folder / "node.json"), "faults": ("no-user-space",)}
    return Seen(version, in_turn(installed, scripts, before, **how))


def test_each_library_of_the_packages_is_given_or_left_out_with_a_reason(seen: Seen) -> None:
    found = seen.inventory()
    given = {item["path"] for kind in ("libraries", "files") for item in found[kind]}
    missing = [path for path in seen.said["packaged"] if path not in given and path.rpartition("/")[2] not in LEFT_OUT]
    assert missing == [] and len(seen.said["packaged"]) > 20
    assert (found["driver_version"], found["misfits"]) == (seen.version, [])
    assert not [line for line in found["unknown"] if "left out" in line], found["unknown"]


def test_what_loads_on_the_host_loads_in_a_container(seen: Seen) -> None:
    """By each name by which programs look for it."""
    on_host, inside = seen.opened("host"), seen.opened("all")
    assert on_host <= inside, [line for line in seen.said["all"] if not line.startswith("opened: ")]
    assert {"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ml.so", "libnvcuvid.so", "libnvidia-encode.so"} <= inside
    assert any(name.endswith("gbm/nvidia-drm_gbm.so") for name in inside), inside


def test_programs_get_as_far_as_on_the_host(seen: Seen) -> None:
    """There is no driver behind the simulated nodes, and they say so."""
    for where in ("host programs", "programs"):
        said = "\n".join(seen.said[where])
        assert "couldn't communicate with the NVIDIA driver" in said and "ended with 9" in said, said
        assert "cuInit 100, -1 devices" in said, said


def test_each_manifest_names_libraries_that_are_there(seen: Seen) -> None:
    said = seen.said["manifests"]
    assert len([line for line in said if line.startswith("manifest ")]) >= 3, said
    assert not [line for line in said if not line.startswith(("manifest ", "opened: "))], said


def test_doctor_passes_the_libraries(seen: Seen) -> None:
    assert [line.split()[0] for line in seen.said["doctor"]] == ["pass", "pass"], seen.said["doctor"]


ROCM = """
dpkg --force-depends -i {packages}/*.deb >/run/dpkg.log 2>&1 || {{ tail -n 20 /run/dpkg.log >&2; exit 1; }}
ldconfig
oci-gpu-hook inventory refresh >&2
ldd /usr/bin/rocminfo | sed -n 's/.* => \\(\\/[^ ]*\\) .*/\\1/p' | grep -e stdc -e libgcc -e libm[.] -e libz >/run/n
cp -n $(cat /run/n) {root}/usr/lib/{multiarch}/
ldconfig -r {root}
"""


def test_debians_rocm_is_found_as_amds_own(installed: Installed, patterns: dict[str, Path], tmp_path: Path) -> None:
    """In the distribution's folders, and nothing in /opt; the image has a C++ library and no more of it."""
    shutil.copytree(patterns["debian"], tmp_path / "rootfs", symlinks=True)
    made = Bundle(tmp_path, installed.hooks()).asks(None, None, OCI_AMD="0")
    # It asks lsmod, which neither has.
    command = "rocminfo 2>&1 | grep -v lsmod"
    made.runs("/bin/sh", "-c", command)
    before = OVERLAYS + ROCM.format(packages=PACKAGES / "rocm", root=made.rootfs, multiarch=roots.MULTIARCH)
    scripts = {"host": f"{command} || :", "container": start("runc", made)}
    seen = in_turn(installed, scripts, before, faults=("no-user-space",), vendors=("amd",))
    assert seen["container"] == seen["host"] and "error while loading" not in seen["host"][0], seen
