# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's real user space, as Debian packages it, on the simulated kernel side: nothing here is made from our tables.

The packages' own maintainer scripts install them on the node, behind Debian's alternatives; then they are laid out as
RPMs and NixOS have them.  What loads on the host must load in each image, programs must say there what they say on the
host, and each library of the packages is given, or is in a list here with its reason.
"""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.driver import images
from tests.driver.conftest import PACKAGES
from tests.gpunode import catalogue, realdriver
from tests.integration import roots
from tests.integration.engines import REPOSITORY, Bundle, Installed, in_turn, start

HERE = REPOSITORY / "tests/driver"
REALDRIVER = REPOSITORY / "tests/gpunode/realdriver.py"
DRIVERS = ("535", "tesla-470")
FOLDER = "/usr/local/nvidia"

# Files of the packages that no container gets, and why.
LEFT_OUT = {
    "*/libnvidia-api.so.1": "it runs Windows' programs, and has no version in its name",
    "*/nvidia/wine/*.dll": "they are Windows' programs'",
    "/usr/share/nvidia/nvidia-application-profiles-*": "they tune games on a desktop",
    "*/nvidia.ids": "it names GPUs for the host's X server, which looks for its driver by them",
    "/usr/bin/nvidia-modprobe": "it loads kernel modules and makes nodes",
    "*/nvidia-bug-report.sh": "it reads the host's logs",
    "/etc/init.d/*": "the host's services",
    "/lib/systemd/*": "the host's services",
    "/lib/udev/*": "the host's devices",
    "/usr/lib/ConsoleKit/*": "the host's sessions",
    "/usr/share/initramfs-tools/*": "the host's boot",
    "/usr/lib/nvidia/alternate-install-present": "for NVIDIA's own installer",
    "/usr/lib/nvidia/pre-install": "for NVIDIA's own installer",
    "/usr/lib/nvidia/check-for-*": "the packages' own scripts",
    "/usr/sbin/update-glx": "the packages' own scripts",
    "*.1.gz": "a manual",
}
DOCUMENTS = ("/usr/share/doc/", "/usr/share/bug/", "/usr/share/lintian/", "/usr/share/man/")

INSTALL = """
oci-gpu-hook inventory refresh >&2
oci-gpu-hook info --saved --json >/run/inventory
# Not by the file's own name, but for a library that has no other: the loader's cache has it in neither place.
for bits in 64 32; do
    python3 -c 'import json, sys
for it in json.load(open("/run/inventory"))["libraries"]:
    for name in it["names"] if it["bits"] == int(sys.argv[1]) and not it["subfolder"] else ():
        if name != it["file"] or name == it["soname"]:
            print(name)' $bits >/run/names$bits
done
python3 -c 'import json
print(*[it["path"] for it in json.load(open("/run/inventory"))["libraries"] if it["bits"] == 64])' >/run/paths
libgbm=$(ldconfig -p | sed -n 's/^\\s*libgbm.so.1 .* => //p' | head -n 1)
(ldd $(cat /run/paths) /usr/lib/xorg/Xorg /usr/bin/vulkaninfo /usr/bin/clinfo $libgbm 2>/dev/null || :) |
    sed -n 's/.* => \\(\\/[^ ]*\\) .*/\\1/p' | sort -u | grep -v -e nvidia -e libcuda >/run/needed
echo $libgbm >>/run/needed
"""
# An image gets what the driver's libraries and the programs need of the host's, and nothing more.
FILL = """
cp /run/names64 {root}/app/names; cp /run/names32 {root}/app/names32; cp {here}/look.sh {root}/app
while read -r path; do cp -n "$(readlink -f $path)" {root}/{folder}/${{path##*/}}; done </run/needed
ldconfig -r {root}
"""
# With musl some crash when they are loaded, on the host too.
ONE_BY_ONE = "for file in $({1}); do {0}/look $file; done 2>/dev/null || :"
# X's modules are no libraries to us; the platforms of EGL have versions of their own.
NOT_FETCHED = {"libnvoptix", "libnvidia-rtcore", "libnvidia-nvvm", "libnvidia-compiler", "libnvidia-nscq"}
NOT_FETCHED |= {"libnvidia-pkcs11", "libnvidia-api", "nvidia_drv", "libglxserver_nvidia"}
NOT_FETCHED |= {"libnvidia-egl-gbm", "libnvidia-egl-wayland"}


class Seen(NamedTuple):
    """What was seen of one driver on a node and in containers, by the names of the scripts that looked."""

    driver: str
    version: str
    said: dict[str, list[str]]

    def part(self, where: str, part: str) -> list[str]:
        """What one part of look.sh has said there."""
        (text,) = [it for it in "\n".join(self.said[where]).split("-- ") if it.startswith(f"{part}\n")]
        return text.splitlines()[1:]

    def opened(self, where: str, part: str) -> set[str]:
        """The libraries that could be opened there, by their files' names."""
        return {
            line.rpartition("/")[2].removeprefix("opened: ") for line in self.part(where, part) if "opened: " in line
        }

    def twins(self) -> set[str]:
        """The SONAMEs of libraries of 32 bits."""
        return {it["soname"] for it in self.inventory()["libraries"] if it["bits"] == 32 and not it["subfolder"]}

    def lacks_a_gpu(self, where: str) -> None:
        """Whether real programs get there as far as they get without a GPU: none is behind the simulated nodes."""
        assert any("couldn't communicate with the NVIDIA driver" in line for line in self.part(where, "nvidia-smi"))
        assert self.part(where, "cuInit") == ["cuInit 100, -1 devices"]
        assert any("NVIDIA dlloader X Driver" in line for line in self.part(where, "xorg")), self.part(where, "xorg")
        assert any("INCOMPATIBLE" in line for line in self.part(where, "vulkaninfo"))
        assert self.part(where, "vdpau") == ["libvdpau_nvidia.so"]

    def inventory(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads("\n".join(self.said["inventory"]))
        return found


def look(kind: images.Kind, folder: str, files: str) -> str:
    """The command that runs look.sh."""
    return f"sh {folder}/look.sh {folder} /{kind.modules} /{kind.folder}/gbm {files}"


@pytest.fixture(scope="module", params=DRIVERS)
def seen(
    request: pytest.FixtureRequest,
    installed: Installed,
    roots_of: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Seen:
    packages = PACKAGES / str(request.param)
    source = f"debian:{request.param}"
    version = realdriver.version(source)
    folder = tmp_path_factory.mktemp("driver")
    # By the names of containers: their images.
    wanted = {kind: kind for kind in ("debian", "rhel", "arch", "musl")}
    wanted |= {"cdi": "debian", "rpm": "debian", "nix": "rhel", "nix root": "arch"}
    bundles, fill = {}, ""
    for name, kind in wanted.items():
        made = bundles[name] = Bundle(folder / name.replace(" ", "-"), installed.hooks(), roots_of[kind])
        made.asks(*(("0", "all") if name != "cdi" else (None, None)))
        if kind == "musl":
            made.runs("/bin/sh", "-c", ONE_BY_ONE.format("/app", f"find /usr/lib -name '*.so.{version}'"))
        else:
            command = look(images.KINDS[kind], "/app", f"$(find {FOLDER}/lib64 -type f)")
            made.runs("/bin/sh", "-c", command)
            fill += FILL.format(root=made.rootfs, here=HERE, folder=images.KINDS[kind].folder)
    lists = " ".join([f"/var/lib/dpkg/info/{path.name.partition('_')[0]}[.:]*list" for path in packages.glob("*.deb")])
    before = INSTALL + f"cat {lists} >/run/list\n" + fill
    program = bundles["debian"].rootfs / "app"
    relayout = f"python3 {REALDRIVER} {{0}} /run/list\nldconfig\noci-gpu-hook inventory refresh >/dev/null\n"
    run = {name: f"{start('runc', it)} 2>&1" for name, it in bundles.items()}
    spec, edits = "/run/nvidia.yaml", REPOSITORY / "tests/integration/cdiedits.py"
    root = "/run/nix/store/0a1b-nvidia-x11"
    scripts = {
        "packaged": "find $(cat /run/list) -maxdepth 0 -type f",
        "inventory": "cat /run/inventory",
        "closure": f"python3 {HERE}/closure.py /run/inventory",
        "host": look(images.KINDS["debian"], str(program), "$(cat /run/paths)"),
        "host musl": ONE_BY_ONE.format(f"{bundles['musl'].rootfs}/app", "cat /run/paths"),
        "doctor": "oci-gpu-hook doctor | grep libraries",
        **{name: run[name] for name in ("debian", "rhel", "arch", "musl")},
        "cdi": f"oci-gpu-hook cdi generate --output {spec} >&2\n"
        f"python3 {edits} {bundles['cdi'].path} {spec} all\n{run['cdi']}",
        "rpm": relayout.format("lib64") + run["rpm"],
        "nix": relayout.format("nix") + run["nix"],
        "nix root": f"echo driver-root = {root} >/etc/oci-gpu-hook.conf\n"
        f"oci-gpu-hook inventory refresh >/dev/null\n{run['nix root']}",
    }
    scripts = {name: f"{{\n{text}\n}} || :" for name, text in scripts.items()}
    said = in_turn(scripts, before, driver=source, packages=(PACKAGES / "programs",))
    return Seen(str(request.param), version, said)


# Hosts as packages have made them, and images as distributions lay them out.
PROGRAMS = ("nvidia-smi", "cuInit", "mps", "clinfo", "vulkaninfo", "vdpau", "gbm", "xorg")
CONTAINERS = ("debian", "rhel", "arch", "cdi", "rpm", "nix", "nix root")


def test_each_file_of_the_packages_is_given_or_left_out_with_a_reason(seen: Seen) -> None:
    found = seen.inventory()
    given = {item["path"] for kind in ("libraries", "binaries", "files") for item in found[kind]}
    others = [path for path in seen.said["packaged"] if path not in given and not path.startswith(DOCUMENTS)]
    missing = [path for path in others if not any(fnmatch(path, pattern) for pattern in LEFT_OUT)]
    assert missing == [] and len(seen.said["packaged"]) > 20
    assert not given - {*seen.said["packaged"]} - {"/etc/cufile.json", "/run/udev"}
    assert (found["driver_version"], found["misfits"]) == (seen.version, [])
    assert not [line for line in found["unknown"] if "left out" in line], found["unknown"]


def test_the_simulated_driver_has_the_real_names(seen: Seen) -> None:
    """Of files and SONAMEs, but for what fetch.sh leaves out and what Debian does not package."""
    real = {it["file"]: it["soname"] for it in seen.inventory()["libraries"] if it["bits"] == 64}
    of_driver = {name: soname for name, soname in real.items() if name.endswith(f".{seen.version}")}
    simulated = {it.basename(seen.version): it.soname_of(seen.version) for it in catalogue.libraries(seen.version)}
    assert of_driver.items() <= simulated.items()
    names = {name.partition(".so")[0] for name in simulated.keys() - real.keys()}
    assert names <= NOT_FETCHED, names


def test_each_capability_has_what_its_libraries_need(seen: Seen, pytestconfig: pytest.Config) -> None:
    """What is opened and not brought is for another capability's sake: CUDA's with graphics, NVML's with a debugger."""
    golden = REPOSITORY / f"tests/data/closure/{seen.driver}.txt"
    text = "\n".join([*seen.said["closure"], ""])
    if pytestconfig.getoption("--update-goldens"):
        golden.write_text(text)
    assert text == golden.read_text()
    assert not [line for line in text.splitlines() if line.endswith(" needs")]


@pytest.mark.parametrize("where", CONTAINERS)
def test_what_loads_on_the_host_loads_in_a_container(seen: Seen, where: str) -> None:
    """By each name by which programs look for it, each file, and each name of 32-bit programs."""
    for part in ("names", "files"):
        missing = seen.opened("host", part) - seen.opened(where, part)
        assert not missing, [line for line in seen.part(where, part) if not line.startswith("opened: ")]
    # This machine need not have a loader of 32 bits, and each image has.
    twins = seen.part(where, "twins")
    assert seen.twins() <= {line.removeprefix("found: ") for line in twins}, twins
    assert len(seen.twins()) > 5 or seen.driver != "535"
    first = {"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ml.so", "libnvcuvid.so", "libnvidia-encode.so"}
    assert first <= seen.opened(where, "names")


@pytest.mark.parametrize("where", CONTAINERS)
def test_a_program_gets_as_far_as_on_the_host(seen: Seen, where: str) -> None:
    """And each library in a manifest is there."""
    inside = {part: seen.part(where, part) for part in PROGRAMS}
    on_host = {part: seen.part("host", part) for part in PROGRAMS}
    # Drivers before 495 have no link for it, and then libgbm finds nothing in the library.
    assert inside == {**on_host, "gbm": ["nvidia-drm_gbm.so"]}
    said = seen.part(where, "manifests")
    assert len(said) >= 3 and not [line for line in said if not line.startswith("opened: ")], said


def test_with_musl_opens_what_opens_on_the_host(seen: Seen) -> None:
    """What musl has of glibc is enough for some."""
    lists = [seen.said[where] for where in ("host musl", "musl")]
    host, inside = [{line.rpartition("/")[2] for line in it if line.startswith("opened: ")} for it in lists]
    assert host and host <= inside, "\n".join(seen.said["musl"])


def test_doctor_passes_the_libraries_and_programs_find_the_driver_not_running(seen: Seen) -> None:
    assert [line.split()[0] for line in seen.said["doctor"]] == ["pass"], seen.said["doctor"]
    seen.lacks_a_gpu("host")


ROCM = """
oci-gpu-hook inventory refresh >&2
ldd /usr/bin/rocminfo | sed -n 's/.* => \\(\\/[^ ]*\\) .*/\\1/p' | grep -e stdc -e libgcc -e libm[.] -e libz >/run/n
cp -n $(cat /run/n) {root}/usr/lib/{multiarch}/
ldconfig -r {root}
"""


def test_debians_rocm_is_found_as_amds_own(installed: Installed, patterns: dict[str, Path], tmp_path: Path) -> None:
    """In the distribution's folders, and nothing in /opt; the image has a C++ library and no more of it."""
    made = Bundle(tmp_path, installed.hooks(), patterns["debian"]).asks(None, None, OCI_AMD="0")
    # It asks lsmod, which neither has.
    command = "rocminfo 2>&1 | grep -v lsmod"
    made.runs("/bin/sh", "-c", command)
    before = ROCM.format(root=made.rootfs, multiarch=roots.MULTIARCH)
    scripts = {"host": f"{command} || :", "container": start("runc", made)}
    seen = in_turn(scripts, before, packages=(PACKAGES / "rocm",), vendors=("amd",))
    assert seen["container"] == seen["host"] and "error while loading" not in seen["host"][0], seen


# Intel's compute runtime and compilers, on a node of i915: they need LLVM and clang of the host's.
# What the runtime opens: itself by its ICD, the front end and the back end of the compiler, Level Zero.
OPENED = (
    f"/usr/lib/{roots.MULTIARCH}/intel-opencl/libigdrcl.so",
    *("libigdfcl.so.1", "libigc.so.1", "libopencl-clang.so.14", "libze_intel_gpu.so.1"),
)
# The image has a C++ library, and a terminal library of its own, which the host's must not hide.
INTEL = """
oci-gpu-hook inventory refresh >&2
ldd /usr/lib/{multiarch}/libLLVM-14.so.1 | sed -n 's/.* => \\(\\/[^ ]*\\) .*/\\1/p' >/run/n
cp -n $(grep -e stdc -e libgcc -e libm[.] -e libz[.] -e libtinfo /run/n) {root}/usr/lib/{multiarch}/
ldconfig -r {root}
"""
LIST = "-p | sed -n 's/^[[:space:]]*\\(lib[^ ]*\\) .* => /\\1 /p'"


def test_intels_compilers_load_as_on_the_host(installed: Installed, patterns: dict[str, Path], tmp_path: Path) -> None:
    made = Bundle(tmp_path, installed.hooks(), patterns["debian"]).asks(None, None, OCI_INTEL="0")
    images.compile_look("cc", made.rootfs / "app/open")
    # The second list is as apt-get would have it made.
    look = f"ldconfig {LIST}; echo ==again; ldconfig -C /app/cache; ldconfig -C /app/cache {LIST}"
    made.runs("/bin/sh", "-c", f"/app/open {' '.join(OPENED)}; echo ==first; {look}")
    before = INTEL.format(root=made.rootfs, multiarch=roots.MULTIARCH)
    scripts = {
        "host": f"{made.rootfs}/app/open {' '.join(OPENED)}",
        "doctor": "oci-gpu-hook doctor | grep OCI_INTEL",
        "container": f"{start('runc', made)} 2>&1",
    }
    seen = in_turn(scripts, before, packages=(PACKAGES / "intel",), vendors=("intel",))
    assert seen["host"] == [f"opened: {name}" for name in OPENED], seen["host"]
    assert [line.split()[0] for line in seen["doctor"]] == ["pass"], seen["doctor"]
    opened, *lists = "\n".join(seen["container"]).split("\n==")
    assert opened.split("\n") == seen["host"]
    for listed in lists:
        # The first of each name counts.
        paths = dict([line.split(maxsplit=1) for line in reversed(listed.split("\n")[1:])])
        assert paths["libLLVM-14.so.1"].startswith("/usr/local/oci-gpu-hook/OCI_INTEL/"), listed
        assert not paths["libtinfo.so.6"].startswith("/usr/local/"), listed
