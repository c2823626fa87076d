# SPDX-License-Identifier: Apache-2.0
"""Findings from values, where no simulated node has the fault: SELinux, kernels, engines that are not here."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from oci_gpu_hook.cli import doctor
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.formats.ldcache import Entry
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node import diagnosis
from oci_gpu_hook.node.diagnosis import (
    FAIL,
    PASS,
    WARN,
    containercheck,
    drivercheck,
    enginecheck,
    remedy,
    speccheck,
    systemcheck,
)
from oci_gpu_hook.node.engines import cdispecs, containers
from oci_gpu_hook.node.engines import installed as host_engines
from oci_gpu_hook.node.engines.cdispecs import SpecFile
from oci_gpu_hook.node.engines.containers import ContainerNames, Running
from oci_gpu_hook.node.engines.installed import Engine, Registration, Runtime
from oci_gpu_hook.node.machine import kernelconfig, libselinux, processes
from oci_gpu_hook.node.machine.libselinux import Label, Module, Status, Use
from oci_gpu_hook.operations import Device, LdCache, LimitMemory, Mount
from tests.unit import hosts
from tests.unit.containers import USER, plant_cgroup, stat

OUR_FILE = "oci-gpu-hook.json"
SHARE, ETC = host_engines.VENDORS_FOLDER, host_engines.ADMINISTRATORS_FOLDER


V1 = "oci_gpu_hook_use_cgroup_v1"
STATUS = Status(
    enabled=True,
    enforcing=True,
    policy="targeted",
    version=33,
    modules=(Module("nvidia_container", ("200",), True),),
    booleans={"container_use_devices": False, V1: False},
    void={},
    labels=(),
    uses=(Use("container_t", "made by the hook", True, "needs no module and no boolean"),),
)


@pytest.mark.parametrize(
    ("changes", "cgroups", "level", "seen", "remedy"),
    [
        ({}, "v2", PASS, "enforcing, policy targeted", ""),
        ({"booleans": {V1: True}}, "v1", PASS, "enforcing", ""),
        ({"booleans": {}}, "v1", PASS, "enforcing", ""),
        ({}, "v1", FAIL, f"{V1} is off", f"setsebool -P {V1} on"),
        ({"booleans": {V1: True}}, "v2", WARN, f"{V1} is on", f"setsebool -P {V1} off"),
        (
            {"modules": (Module("oci_gpu_hook", ("200",), False),)},
            *("v2", FAIL, "half installed", "oci-gpu-hook selinux install"),
        ),
        (
            {"booleans": {"container_use_devices": True}},
            *("v2", WARN, "container_use_devices is on", "container_use_devices off"),
        ),
        (
            {"labels": (Label("/run/x", "u:r:var_t:s0", "u:r:run_t:s0"),)},
            *("v2", FAIL, "/run/x bears u:r:var_t:s0, the policy says u:r:run_t:s0", "oci-gpu-hook selinux relabel"),
        ),
        (
            {"uses": (Use("container_t", "any", False, "the loaded policy does not know the type"),)},
            *("v2", FAIL, "does not know the type", "dnf install container-selinux"),
        ),
    ],
)
def test_selinux(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], cgroups: str, level: str, seen: str, remedy: str
) -> None:
    monkeypatch.setattr(libselinux, "status", lambda _: STATUS._replace(**changes))
    found = systemcheck.selinux(HostRoot(), cgroups, "dnf")
    assert any(f.level == level and seen in f.seen and remedy in f.remedy for f in found)
    assert {f.level for f in found if seen not in f.seen} == {PASS}


def test_selinux_that_cannot_be_asked_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libselinux, "imported", lambda: None)
    assert [f.level for f in systemcheck.selinux(HostRoot(str(tmp_path)), "v2", "dnf")] == [PASS]
    hosts.plant(tmp_path, "sys/fs/selinux/enforce", "1")
    assert [f.level for f in systemcheck.selinux(HostRoot(str(tmp_path)), "v2", "dnf")] == [WARN]


@pytest.mark.parametrize(
    ("refusal", "as_root", "level", "words"),
    [
        (None, True, PASS, "are taken"),
        (OSError("it may not"), False, WARN, "only root"),
        (OSError("it may not"), True, FAIL, "it may not"),
    ],
)
def test_ebpf(refusal: OSError | None, as_root: bool, level: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernelconfig, "try_device_program", mock.Mock(side_effect=refusal))
    monkeypatch.setattr("os.geteuid", lambda: 0 if as_root else 1000)
    assert "not tried" in systemcheck.ebpf(HostRoot(), "v1").seen
    found = systemcheck.ebpf(HostRoot(), "v2")
    assert found.level == level
    assert words in found.seen
    assert bool(found.remedy) == (level != PASS)


def test_kernels_and_interpreters_that_are_too_old() -> None:
    for release, level in (("5.14.0-427.el9", PASS), ("10.1", PASS), ("4.18.0-553.el8", FAIL), ("nonsense", FAIL)):
        assert systemcheck.kernel(release, "dnf").level == level
    for file, level in (("/usr/bin/python3.9", PASS), ("/usr/libexec/platform-python3.6", FAIL), ("/opt/python", PASS)):
        assert systemcheck.python("/usr/bin/python3", file, "dnf").level == level


@pytest.mark.parametrize("lacks", ["etc/subuid", "etc/subgid", "usr/bin/newuidmap", ""])
def test_rootless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    """Where users' containers run, or could, their starts must be able to read the settings."""
    for name in {"etc/subuid", "etc/subgid", "usr/bin/newuidmap", "settings"} - {lacks}:
        hosts.plant(tmp_path, name, "user:100000:65536\n")
    root, settings = HostRoot(str(tmp_path)), tmp_path / "settings"
    for mode, runs, level in ((0o644, True, PASS), (0o600, True, WARN), (0o600, False, PASS if lacks else WARN)):
        settings.chmod(mode)
        monkeypatch.setattr(containers, "users_have_some", lambda _, runs=runs: runs)
        found = systemcheck.rootless(root, [str(settings)])
        assert (found.level, found.remedy) == (level, f"chmod a+r {settings}" if level == WARN else "")


@pytest.mark.parametrize(
    ("maker", "cgroup", "are_some"),
    [
        (USER, f"/user.slice/libpod-{'a' * 64}.scope", True),
        (USER, "/user.slice/browser.scope", False),
        (0, f"/machine.slice/libpod-{'a' * 64}.scope", False),
    ],
)
def test_who_has_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maker: int, cgroup: str, are_some: bool) -> None:
    """A program that makes a user namespace for itself, as browsers do, is no container."""
    monkeypatch.setattr(processes, "maker", lambda root, pid: maker)
    hosts.plant(tmp_path, "proc/7/stat", stat(7))
    plant_cgroup(tmp_path, 7, cgroup)
    assert containers.users_have_some(HostRoot(str(tmp_path))) == are_some


def registration(path: str, kind: str = "ours", stages: tuple[str, ...] = ("createRuntime",)) -> Registration:
    return Registration(path, kind, "/x", ("x", "createRuntime"), None, stages, True, "")


@pytest.mark.parametrize(
    ("folders", "hook", "level", "seen"),
    [
        # A folder that only the other engine reads is no mask.
        ((SHARE,), registration(f"{ETC}/{OUR_FILE}", "other"), PASS, f"registered by {SHARE}/"),
        # Our own file in both is one registration, the preferred one's.
        (
            *((SHARE, ETC), registration(f"{ETC}/{OUR_FILE}"), PASS),
            f"registered by {ETC}/{OUR_FILE}; without root, builds need 'podman build --hooks-dir {ETC}'",
        ),
        ((ETC,), registration(f"{ETC}/{OUR_FILE}", stages=("prestart", "createRuntime")), FAIL, "runs twice"),
    ],
)
def test_what_an_engine_sees(folders: tuple[str, ...], hook: Registration, level: str, seen: str) -> None:
    found = enginecheck.seen_by(Engine("podman", folders, ""), (registration(f"{SHARE}/{OUR_FILE}"), hook), "dnf")
    assert found.level == level and seen in found.seen


def test_shims_that_are_no_default() -> None:
    for engine, level in (("podman", WARN), ("Docker", PASS)):
        shim = Runtime(engine, "/f", "nvidia", is_default=False)
        assert [f.level for f in enginecheck.other_hooks((), (), [shim])] == [level]


@pytest.mark.parametrize(
    ("specs", "found"),
    [
        ([("/etc/cdi/a", False), ("/etc/cdi/ours", True)], [(FAIL, "rm /etc/cdi/a"), (PASS, "")]),
        (
            [("/etc/cdi/a", True), ("/etc/cdi/b", True), ("/var/run/cdi/a", True)],
            [(PASS, ""), (FAIL, "rm /etc/cdi/b"), (PASS, "")],
        ),
        # The service would write its own again.
        ([("/run/cdi/a.yaml", True), ("/run/cdi/oci-gpu-hook.yaml", True)], [(FAIL, "rm /run/cdi/a.yaml"), (PASS, "")]),
        # So does NVIDIA's.
        (
            [("/var/run/cdi/nvidia.yaml", False), ("/var/run/cdi/oci-gpu-hook.yaml", True)],
            [(FAIL, f"rm /var/run/cdi/nvidia.yaml  # {speccheck._AT_BOOT}"), (PASS, "")],
        ),
    ],
)
def test_of_two_specs_in_one_folder_ours_stays(specs: list[tuple[str, bool]], found: list[tuple[str, str]]) -> None:
    findings = judged(tuple([SpecFile(path, cdispecs.GPU, is_ours, "580.1", {}) for path, is_ours in specs]))
    assert [(one.level, one.remedy) for one in findings] == found


def judged(specs: tuple[SpecFile, ...], why: str = "", fix: str = speccheck.AGAIN) -> list[diagnosis.Finding]:
    """What is found on a host where each spec of ours is out of date for this reason; fix: what ends that."""
    return [*speccheck.unread(specs), *speccheck.compared(specs, "580.1", lambda spec: (why, fix))]


SPECS = Path(__file__).parents[1] / "data/specs"
OUR_SPEC, THEIR_SPEC, JSON_SPEC = [(SPECS / it).read_text() for it in ("ours.json", "theirs.yaml", "theirs.json")]


def planted(tree: Path, *texts: str) -> tuple[SpecFile, ...]:
    """The specs of a host that has files with these texts."""
    for number, text in enumerate(texts):
        hosts.plant(tree, f"etc/cdi/{number}.yaml", text)
    return cdispecs.specs(HostRoot(str(tree)))


def test_whose_a_spec_is_is_read_from_each_programs_text(tmp_path: Path) -> None:
    found = planted(tmp_path, OUR_SPEC, THEIR_SPEC, JSON_SPEC, THEIR_SPEC.replace("\n", "\r\n"))
    assert [spec.driver for spec in found] == ["", "580.1", "580.1", "580.1"]
    assert [spec.is_ours for spec in found] == [True, False, False, False]
    assert {spec.kind for spec in found} == {"nvidia.com/gpu"}


def test_a_broken_spec_is_no_second_one_of_the_gpus(tmp_path: Path) -> None:
    found = judged(planted(tmp_path, "kind: [", OUR_SPEC))
    assert [(one.level, one.seen.split()[0]) for one in found] == [(WARN, "/etc/cdi/0.yaml"), (PASS, "/etc/cdi/1.yaml")]
    theirs = planted(tmp_path / "theirs", "kind: [", THEIR_SPEC)
    assert "made by another program" in judged(theirs)[1].seen


def test_a_text_that_is_no_spec_is_warned_of(tmp_path: Path) -> None:
    """Aliases make one larger than any memory once it is shown, and longer than any time once it is walked."""
    bomb = "a0: &a0 x\n" + "".join([f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40)])
    texts = {
        f"{bomb}kind: *a39\ndevices: [{{name: *a39, containerEdits: {{}}}}]\n": "it has YAML aliases",
        f"a: [{'7, ' * 400_000}": "it is not JSON, and larger than 1 MiB",
        " " * (9 << 20): "it cannot be read as a file of at most 8 MiB",
    }
    wrong = ("{", "[" * 100000, "a: " * 100000, "!!python/object:os.system x", "7")
    texts.update(dict.fromkeys(wrong, "it is neither JSON nor YAML"))
    for number, (spec, fault) in enumerate(zip(planted(tmp_path, *texts), texts.values())):
        assert (spec.kind, spec.document) == ("", {})
        (found,) = judged((spec,))
        assert found.seen == f"/etc/cdi/{number}.yaml cannot be read: {fault}"
        assert (found.level, found.remedy) == (WARN, f"vi /etc/cdi/{number}.yaml")


def test_a_spec_where_an_engine_does_not_look_is_named(tmp_path: Path) -> None:
    """Unless the engine has another of that kind: which one is to be kept is the administrator's choice."""
    ours, theirs = planted(tmp_path, OUR_SPEC, THEIR_SPEC)
    podman, docker = Engine("podman", ("/etc/cdi", "/run/cdi")), Engine("Docker", (), "/etc/docker/daemon.json")
    crio = Engine("CRI-O", ("/opt/a", "/opt/b"), "/etc/crio/crio.conf")
    elsewhere = (ours, theirs, ours._replace(path="/opt/b/gpu.yaml"))
    (found,) = speccheck.unseen(elsewhere[:2], (podman, docker), lambda path: path)
    assert found.seen == "Docker does not read /etc/cdi/0.yaml: /etc/docker/daemon.json names no folder"
    assert (found.level, found.remedy) == (WARN, "vi /etc/docker/daemon.json")
    assert [*speccheck.unseen(elsewhere, (podman, crio), lambda path: path)] == []
    (found,) = speccheck.unseen((ours,), (crio,), lambda path: path, ("/opt/a", "/opt/b"))
    assert found.remedy == "vi /etc/crio/crio.conf", "no spec is written into a folder of a user's"
    (found,) = speccheck.unseen(elsewhere[2:], (podman,), lambda path: path)
    assert found.seen == "podman does not read /opt/b/gpu.yaml: by default it looks in /etc/cdi, /run/cdi"


def test_without_pyyaml_others_specs_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    texts = (OUR_SPEC, THEIR_SPEC, THEIR_SPEC.replace("nvidia.com", "amd.com"), THEIR_SPEC.replace("580.1", "570.1"))
    found = judged(planted(tmp_path, *texts))
    assert [one.level for one in found] == [PASS, FAIL, FAIL]
    (theirs,) = judged(planted(tmp_path / "other", THEIR_SPEC))
    assert theirs.level == WARN and "no PyYAML (python3-pyyaml, on Debian python3-yaml)" in theirs.seen
    (older,) = judged(planted(tmp_path / "older", THEIR_SPEC.replace("580.1", "570.1")))
    assert (older.level, older.seen) == (FAIL, "/etc/cdi/0.yaml is for driver 570.1, the host has 580.1")


def test_without_a_driver_nothing_is_said_of_others_specs_of_gpus(tmp_path: Path) -> None:
    """Ours are compared, as on a Jetson, and other devices' specs."""
    vendors = OUR_SPEC.replace("nvidia.com/gpu", "a.com/npu").replace('--cdi", "compute"', '--cdi-vendor", "OCI_A"')
    specs = planted(tmp_path, OUR_SPEC, THEIR_SPEC, vendors)
    ours, found = speccheck.compared(specs, "", lambda spec: ("it is old", speccheck.AGAIN))
    assert ours.seen == "/etc/cdi/0.yaml: it is old"
    assert found.seen == "/etc/cdi/2.yaml: it is old" and "--vendor OCI_A" in found.remedy
    (found,) = judged(specs[:1], "no driver is loaded", "the administrator must load it")
    assert found.remedy == "the administrator must load it", "what is right again after a boot is not removed"


def test_an_engine_is_installed_by_the_distributions_own_tool(tmp_path: Path) -> None:
    hosts.plant(tmp_path, "usr/bin/dnf", "")
    found = doctor.of_host(HostRoot(str(tmp_path)), None)
    assert [f.remedy for f in found if f.check == "engines"] == ["dnf install podman"]
    hosts.plant(tmp_path, "etc/singularity/singularity.conf", "")
    seen = {f.check: f.seen for f in doctor.of_host(HostRoot(str(tmp_path)), None)}
    assert "engines" not in seen and "by which SingularityCE can give GPUs" in seen["callers"]


def test_ubuntus_packages_of_a_driver(tmp_path: Path) -> None:
    """They have its branch in their names; those for servers are of the same versions, and exclude the others."""
    hosts.plant(tmp_path, "/etc/os-release", "ID=ubuntu\n")
    host = HostRoot(str(tmp_path))
    found = drivercheck.absent(host, (), DriverError("no driver"), "apt")
    assert found.remedy == "apt install ubuntu-drivers-common && ubuntu-drivers install"
    lacks = SimpleNamespace(why="", found="", capability="compute", name="libcuda")
    inventory: Any = SimpleNamespace(driver_version="580.178.04", unknown=(), misfits=(lacks,), libraries=())
    for names in ("compute-580", "compute-580-server"):
        _, missing = drivercheck._parts(host, "/", inventory, "apt")
        assert f"""|{names}))$"),?version("^580[.]178[.]04"))'""" in missing.remedy
        hosts.plant(tmp_path, "/var/lib/dpkg/info/nvidia-kernel-common-580-server.md5sums", "")


def test_nouveau_is_named() -> None:
    found = drivercheck.absent(HostRoot(), ("nouveau",), DriverError("no driver"), "dnf")
    assert "nouveau" in found.seen
    assert found.remedy == "modprobe -r nouveau && modprobe nvidia"


OPEN, CLOSED = "NVIDIA UNIX Open Kernel Module for x86_64", "NVIDIA UNIX x86_64 Kernel Module"


@pytest.mark.parametrize(
    ("modules", "module", "reach"),
    [(("nvidia_peermem",), CLOSED, True), (("nv_peer_mem",), CLOSED, True), ((), OPEN, True), ((), CLOSED, False)],
)
def test_adapters_without_peer_memory(tmp_path: Path, modules: tuple[str, ...], module: str, reach: bool) -> None:
    """By their driver: software has no such device, and other makers' adapters have other ways."""
    root = hosts.host(tmp_path)
    version = tmp_path / "proc/driver/nvidia/version"
    version.write_text(version.read_text().replace(OPEN, module))
    for name, driver in (("bnxt_re0", "bnxt_en"), ("mlx5_0", "mlx5_core"), ("mlx5_1", "mlx5_core")):
        assert name == "mlx5_1" or drivercheck.rdma(root, modules) == []
        folder = tmp_path / f"sys/bus/pci/devices/0000:0{name[-1]}:00.{len(name)}"
        (folder / "infiniband" / name).mkdir(parents=True)
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    hosts.plant(tmp_path, "proc/modules", "".join([f"{name} 16384 0 - Live 0x0\n" for name in modules]))
    found = [item[2:] for item in doctor.of_host(root, None) if item.check == "GPUDirect RDMA"]
    remedy = "modprobe nvidia_peermem && sh -c 'echo nvidia_peermem >/etc/modules-load.d/nvidia-peermem.conf'"
    said = [(seen.partition(":")[0], remedy) for seen, remedy in found]
    assert said == ([] if reach else [("mlx5_0 and 1 more cannot reach the GPUs' memory", remedy)])


NODE = Device("/dev/nvidiactl", "c", 195, 255, "rw", 0o666, 0, 0, "", True, "")
GPU = NODE._replace(path="/dev/nvidia0", minor=0)
LIBRARY = Mount("/h/libcuda.so.580.1", "/usr/lib64/libcuda.so.580.1", (), True, "")
LIBRARY = LIBRARY._replace(names=("libcuda.so.1",))
NAMED = (Entry(b"libcuda.so.1", b"/x", 3),)
CACHE = LdCache("/etc/ld.so.cache", "/etc/ld.so.conf.d/x", ("/usr/local/nvidia",), NAMED, True, "")
PLANNED: Any = SimpleNamespace(operations=(NODE, GPU, LIBRARY, CACHE))
CONTAINER = Running("a" * 64, 7, "/b", "crun", ContainerNames("podman", "web"), os.geteuid())
WELL = containercheck.Seen(
    nodes={"/dev/nvidiactl": (195, 255), "/dev/nvidia0": (195, 0)},
    opened={"/dev/nvidiactl": 0, "/dev/nvidia0": 0},
    files=frozenset(["/usr/lib64/libcuda.so.580.1", "/usr/lib64/libcuda.so.1"]),
    cached=frozenset(["libcuda.so.1"]),
    process_label="u:r:container_t:s0:c1,c2",
    shm_label="u:r:container_file_t:s0:c1,c2",
)


@pytest.mark.parametrize(
    ("changes", "level", "seen"),
    [
        ({"opened": containercheck.NO_ENTRY}, WARN, "nothing was opened: its device cgroup cannot be entered"),
        ({"opened": containercheck.NO_ANSWER}, FAIL, "a GPU does not answer"),
        ({"opened": {"/dev/nvidia0": errno.ENXIO}}, WARN, "no driver answers"),
        ({"opened": {"/dev/nvidia0": errno.ENODEV}}, FAIL, "/dev/nvidia0: No such device"),
        ({"opened": {"/dev/nvidia0": errno.EIO}}, FAIL, "Input/output error"),
        ({"cached": None}, FAIL, "there is none"),
        ({"shm_label": "u:r:container_file_t:s0:c1,c9"}, FAIL, "semaphores fail"),
        ({"shm_label": "nonsense"}, WARN, "cannot be read"),
        # As an image's package manager may remove a link, since it is in the container's own root.
        ({"files": frozenset(["/usr/lib64/libcuda.so.580.1"])}, FAIL, "/usr/lib64/libcuda.so.1 missing"),
    ],
)
def test_a_containers_faults(changes: dict[str, Any], level: str, seen: str) -> None:
    assert {f.level for f in containercheck.judge(PLANNED, WELL, CONTAINER)} == {PASS}
    found = [f for f in containercheck.judge(PLANNED, WELL._replace(**changes), CONTAINER) if f.level != PASS]
    assert [f.level for f in found] == [level]
    assert seen in found[0].seen
    assert found[0].remedy


def test_nodes_of_a_container_that_asks_for_none() -> None:
    """By a volume of the host's /dev its cgroup denies them, which is well; a privileged one may open them."""
    denied = WELL._replace(opened=dict.fromkeys(WELL.nodes, errno.EPERM))
    levels = [[f.level for f in containercheck.judge(None, seen, CONTAINER)] for seen in (denied, WELL)]
    assert levels == [[PASS], [WARN, PASS]]


def test_a_node_of_mode_setting_wants_its_module() -> None:
    """A server without displays has it not loaded; a container with all capabilities has the node."""
    found = containercheck._unopened(errno.ENXIO, ["/dev/nvidia-modeset"], remedy.DOCTOR)
    assert str(found.remedy) == "modprobe nvidia-modeset"


@pytest.mark.parametrize(
    ("limits", "seen"),
    [
        ({"r": 2 << 20, "other": 5}, ""),
        ({"r": 3 << 20}, "its limit is 3 MiB of r, and is to have 2 MiB"),
        ({}, "it has no limit of r, and is to have 2 MiB: it was raised, or the driver was loaded again"),
    ],
)
def test_a_limit_of_memory_that_is_not_the_plans(limits: dict[str, int], seen: str) -> None:
    planned: Any = SimpleNamespace(operations=(*PLANNED.operations, LimitMemory("", "", (("r", 2 << 20),), True, "")))
    found = containercheck.judge(planned, WELL._replace(memory=limits), CONTAINER)
    (limited,) = [it for it in found if it.check == "memory"]
    assert (limited.level, bool(limited.remedy)) == ((FAIL, True) if seen else (PASS, False))
    assert seen in limited.seen
