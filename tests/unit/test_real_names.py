# SPDX-License-Identifier: Apache-2.0
"""What stays simulated has the names of the real thing, and the product knows those: lists of tests/data/names.

The lists were recorded from NVIDIA's kernel modules, from its lists for a Jetson, and from hosts with WSL 2.  Each name
that a simulated node makes is in a list; each name of a list is the product's, or has a reason here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from oci_gpu_hook.driver import catalogue, nodes, proc
from oci_gpu_hook.formats import glob
from oci_gpu_hook.request.words import FEATURES
from oci_gpu_hook.vendors import vendorrules, wsl
from oci_gpu_hook.vendors.tegra import parse_csv
from tests.gpunode import catalogue as simulated_catalogue
from tests.gpunode import description, node, tegra
from tests.gpunode import wsl as simulated_wsl
from tests.gpunode.content import Content
from tests.gpunode.vendors.additions import Additions

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = REPOSITORY / "tests/data/names"
PRODUCT = [REPOSITORY / "oci_gpu_hook", REPOSITORY / "hooks.d"]

# Nodes that no container gets from us.
NOT_GIVEN = {
    "nvidia-vgpu{0-255}": "the host's of virtual machines",
    "nvidia-vgpuctl": "the host's of virtual machines",
    "nvidia-nvlink": "the fabric manager's, who reads what /proc/driver/nvidia-nvlink says",
}
# Of other modules: the kernel's own lists, and the simulation's.
NOT_NVIDIAS = ("/dev/dri/", "/dev/infiniband/", "gpunode/")
# In a Jetson's lists, and refused.
REFUSED_OF_JETSON = {"dir /dev/dri/by-path": "the links in it are made for the nodes that a container gets"}
# Libraries that no simulated driver has: what finds NVLink's switches, planted in test_files.
NOT_SIMULATED = {"libnvsdm", "libibumad", "libibmad"}
# Beside those of /usr/lib/wsl/lib.
NOT_GIVEN_OF_WSL = {"{store} nvidia-smi": "the one in lib is it, too"}


def listed(name: str) -> list[list[str]]:
    lines = (NAMES / f"{name}.txt").read_text().splitlines()
    return [line.split(" ", 1) for line in lines if line and not line.startswith("#")]


def numbered(kind: str) -> dict[str, str]:
    """Names of one kind in the kernel's list, each with its number or ""."""
    found = {}
    for word, rest in listed("kernel"):
        if word == kind:
            name, _, number = rest.rpartition(" ") if re.search(r" \d+$", rest) else (rest, "", "")
            found[name] = number
    return found


def matching(name: str, patterns: Iterable[str]) -> str:
    """The pattern that a name has the form of, "" for none."""
    for pattern in patterns:
        form = re.escape(pattern).replace(r"\{address\}", r"[\da-f]{4}:[\da-f]{2}:[\da-f]{2}\.\d")
        found = re.fullmatch(re.sub(r"\\\{.*?\\\}", r"(\\d+)", form), name)
        bounds = [it.split("-") for it in re.findall(r"\{(\d+-\d+)\}", pattern)]
        if found and all([int(low) <= int(it) <= int(high) for it, (low, high) in zip(found.groups(), bounds)]):
            return pattern
    return ""


@pytest.fixture(params=[name for name in description.names() if name != "none"])
def content(request: pytest.FixtureRequest) -> Content:
    return node.prepare(str(request.param), [])


def test_the_simulated_kernel_has_the_real_names(content: Content) -> None:
    files, majors, devices = numbered("proc"), numbered("chardev"), numbered("node")
    for path in [path for path in content.proc if not path.startswith(NOT_NVIDIAS)]:
        assert matching(f"driver/{path}", files), path
    for name, major in content.registered.items():
        if name not in ("infiniband_verbs", "drm"):
            assert name in majors and majors[name] in ("", str(major)), name
    for made in [made for made in content.nodes if not made.path.startswith(NOT_NVIDIAS)]:
        pattern = matching(made.path[len("/dev/") :], devices)
        assert pattern and devices[pattern] in ("", str(made.minor)), made
    params = {line.partition(":")[0] for line in content.proc["nvidia/params"].splitlines()}
    assert params <= numbered("param").keys()
    fields = {
        line.partition(":")[0]
        for path, text in content.proc.items()
        for line in text.splitlines()
        if path.endswith(("/information", "/access", "/config", "/monitor"))
    }
    assert fields <= numbered("field").keys()


def test_the_simulated_capabilities_have_the_modules_minors(content: Content) -> None:
    """As nv-caps.c numbers its tables, one after the other."""
    minors = numbered("minor")
    texts = [content.proc.get(f"nvidia-caps/{name}-minors", "") for name in ("mig", "nvlink", "sys")]
    found = dict([line.split() for line in "".join(texts).splitlines()])
    assert found == {**found, **{name: minor for name, minor in minors.items() if name in found}}
    assert {"config", "monitor"} <= found.keys()
    # A GPU's instances lie between those.
    assert (found["gpu0/gi0/access"], found["gpu31/gi14/ci7/access"]) == ("3", "4322")


def test_the_product_names_what_the_kernel_has() -> None:
    """Each path of NVIDIA's in the sources is one of the lists', or the beginning of one."""
    paths = [path for folder in PRODUCT for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    text = "\n".join([path.read_text() for path in paths])
    files, devices = numbered("proc"), [*numbered("node"), "dxg"]
    for path in set(re.findall(r"/proc/(driver/[a-z][\w/-]*)", text)):
        assert any([it.startswith(path.rstrip("/")) for it in files]), path
    for path in set(re.findall(r"/dev/((?:nvidia|gdrdrv|dxg)[\w/-]*)", text)):
        stem = path.rstrip("0123456789N")
        assert any([it.startswith(stem) for it in devices]), path


def test_the_product_knows_each_node_of_the_drivers() -> None:
    stems = [nodes.CONTROL, nodes.MODESET, nodes.UVM, nodes.UVM_TOOLS]
    stems += [f"{nodes.CAPS_FOLDER}/nvidia-cap", f"{nodes.IMEX_FOLDER}/channel", "/dev/nvidia"]
    stems += [path.rstrip("*") for feature in FEATURES for path in feature.devices]
    for name in numbered("node"):
        known = any([f"/dev/{name.partition('{')[0]}" == stem for stem in stems]) or name == "nvidia-nvswitchctl"
        assert known != (name in NOT_GIVEN), name
    numbers = numbered("chardev")["nvidia"], numbered("node")["nvidiactl"], numbered("node")["nvidia-modeset"]
    assert tuple(map(int, numbers)) == (nodes.GPU_MAJOR, nodes.CONTROL_MINOR, nodes.MODESET_MINOR)
    paths = [proc.VERSION, proc.PARAMS, f"{proc.GPUS}/0000:17:00.0/information", f"{proc.CAPABILITIES}/mig/config"]
    for path in paths:
        assert matching(path[len("/proc/") :], numbered("proc")), path


def forms(paths: Iterable[str]) -> set[str]:
    """Paths, apart from a release's numbers and from the folder of an architecture's libraries."""
    usual = re.compile(r"/usr/lib/\w+-linux-gnu|\{lib\}")
    return {re.sub(r"[.][\d.]+$", ".N", usual.sub("{lib}", path)) for path in paths}


def test_a_simulated_jetson_has_the_names_of_nvidias_lists() -> None:
    real = forms([" ".join(line) for line in listed("jetson")])
    made = Additions(description.load("none"), "/usr/lib/aarch64-linux-gnu", iter(range(300, 400)))
    tegra.tegra(made)
    for name in ("devices", "drivers"):
        lines = made.texts[f"{tegra.LISTS}/{name}.csv"].splitlines()
        simulated = forms([line.replace(", ", " ") for line in lines if line])
        assert simulated <= real, simulated - real
    assert forms([f"dev {it.path}" for it in made.nodes]) <= real


def test_of_nvidias_lists_a_jetsons_containers_get_all_but_what_has_a_reason() -> None:
    lines = [f"{word}, {path}".replace("{lib}", "/usr/lib/aarch64-linux-gnu") for word, path in listed("jetson")]
    entries = parse_csv("\n".join(lines).encode(), "it.csv")
    assert len(entries) > 300 and {word for word, _ in entries} == {"dev", "lib", "dir", "sym"}
    refused = {
        f"{word} {path}"
        for word, path in entries
        if (vendorrules.fault_of_device_path if word == "dev" else vendorrules.fault_of_host_path)(path)
    }
    assert refused == REFUSED_OF_JETSON.keys()
    # A frame buffer is refused by its number, when it is found.
    assert vendorrules.fault_of_device_number(29, 0) and not vendorrules.fault_of_driver("nvhost")


def test_a_simulated_wsl_has_the_names_that_hosts_have() -> None:
    real = {" ".join(line) for line in listed("wsl")}
    made = Additions(description.load("none"), "/usr/lib/x86_64-linux-gnu", iter(range(300, 400)))
    simulated_wsl.wsl(made)
    folders = {simulated_wsl.FOLDER: "lib", simulated_wsl.STORE: "{store}"}
    for path in [*made.libraries, *made.programs, *made.texts]:
        folder, _, name = path.rpartition("/")
        if folder in folders and not name.endswith((".dll", ".bin")):
            assert f"{folders[folder]} {name}" in real


def test_under_wsl_a_container_gets_each_name_that_hosts_have() -> None:
    patterns = {"lib": ("lib*.so*", "nvidia-smi"), "{store}": wsl.OF_STORE}
    missed = {
        f"{folder} {name}"
        for folder, name in listed("wsl")
        if not any([glob.matches(pattern, name) for pattern in patterns[folder]])
    }
    assert missed == NOT_GIVEN_OF_WSL.keys()
    assert {name for folder, name in listed("wsl") if folder == "lib"} >= {*wsl.REQUIRED}


def test_each_library_and_program_of_the_catalogue_is_simulated() -> None:
    """So that none is added to the catalogue alone, where no container would ever get it in a test."""
    simulated = {library.name for library in simulated_catalogue.LIBRARIES}
    listed = {name for name, _ in (*catalogue.LIBRARIES, *catalogue.OWN_VERSION)}
    assert listed - simulated == NOT_SIMULATED
    assert {name for name, _ in catalogue.BINARIES} <= {*simulated_catalogue.PROGRAMS}
