# SPDX-License-Identifier: Apache-2.0
"""Findings from values, where no simulated node has the fault: SELinux, lockdown, engines that are not here."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook import cli, ldmerge, ldso, toml
from oci_gpu_hook.diagnosis import FAIL, PASS, WARN, container, driver, engines, system
from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.host import engines as host_engines
from oci_gpu_hook.host import registrations, running
from oci_gpu_hook.host.cdispecs import Spec
from oci_gpu_hook.host.engines import Engine, Shim
from oci_gpu_hook.host.kernel import Kernel
from oci_gpu_hook.host.libselinux import Label, Module, Status, Use
from oci_gpu_hook.host.registrations import Registration
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations import Device, LdCache, Mount
from tests.unit import hosts

KERNEL = Kernel("5.14.0-427.el9", "v2", "", "none", True, (), {})
OUR_FILE = "oci-gpu-hook.json"
SHARE, ETC = host_engines.VENDORS_FOLDER, host_engines.ADMINISTRATORS_FOLDER


def status(**changes: Any) -> Status:
    plain = Status(
        enabled=True,
        enforcing=True,
        policy="targeted",
        version=33,
        modules=(Module("nvidia_container", ("200",), True),),
        booleans=(("container_use_devices", False),),
        labels=(),
        uses=(Use("container_t", "made by the hook", True, "needs no module and no boolean"),),
    )
    return plain._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "level", "seen", "remedy"),
    [
        ({}, PASS, "enforcing, policy targeted", ""),
        (
            {"modules": (Module("oci_gpu_hook", ("200",), False),)},
            FAIL,
            "half installed",
            "oci-gpu-hook selinux install",
        ),
        (
            {"booleans": (("container_use_devices", True),)},
            WARN,
            "container_use_devices is on",
            "setsebool -P container_use_devices off",
        ),
        (
            {"labels": (Label("/run/x", "u:r:var_t:s0", "u:r:run_t:s0"),)},
            FAIL,
            "/run/x bears u:r:var_t:s0, the policy says u:r:run_t:s0",
            "restorecon -v /run/x",
        ),
        (
            {
                "uses": (
                    Use("container_t", "any", False, "the loaded policy does not know the type"),
                )
            },
            FAIL,
            "does not know the type",
            "dnf install container-selinux",
        ),
    ],
)
def test_selinux(changes: dict[str, Any], level: str, seen: str, remedy: str) -> None:
    found = system.selinux(status(**changes), True)
    assert any(f.level == level and seen in f.seen and remedy in f.remedy for f in found)
    others = {f.level for f in found if seen not in f.seen}
    assert others == {PASS}


def test_selinux_that_cannot_be_asked_is_no_failure() -> None:
    assert [f.level for f in system.selinux(None, True)] == [WARN]
    assert [f.level for f in system.selinux(None, False)] == [PASS]


@pytest.mark.parametrize(
    ("changes", "as_root", "level", "words"),
    [
        ({}, True, PASS, "are taken"),
        ({"cgroups": "v1"}, True, PASS, "not needed"),
        ({"bpf_refusal": "Operation not permitted"}, False, WARN, "only root"),
        ({"bpf_refusal": "Operation not permitted"}, True, FAIL, "Operation not permitted"),
        (
            {"bpf_refusal": "Operation not permitted", "lockdown": "confidentiality"},
            True,
            FAIL,
            "lockdown is confidentiality",
        ),
    ],
)
def test_ebpf(changes: dict[str, Any], as_root: bool, level: str, words: str) -> None:
    (found,) = system.ebpf(KERNEL._replace(**changes), as_root)
    assert found.level == level
    assert words in found.seen
    assert bool(found.remedy) == (level != PASS)


@pytest.mark.parametrize(
    ("release", "level"),
    [
        ("5.14.0-427.el9", PASS),
        ("6.18.44", PASS),
        ("10.1", PASS),
        ("5.4.0", FAIL),
        ("4.18.0-553.el8", FAIL),
        ("", FAIL),
        ("nonsense", FAIL),
    ],
)
def test_kernel_releases(release: str, level: str) -> None:
    assert [f.level for f in system.kernel(KERNEL._replace(release=release), "dnf")] == [level]


@pytest.mark.parametrize(
    ("file", "level"),
    [
        ("/usr/bin/python3.11", PASS),
        ("/usr/bin/python3.9", PASS),
        ("/usr/libexec/platform-python3.6", FAIL),
        ("/opt/python", PASS),
        ("", FAIL),
    ],
)
def test_interpreters(file: str, level: str) -> None:
    assert [f.level for f in system.python("/usr/bin/python3", file, "dnf")] == [level]


@pytest.mark.parametrize(
    ("sysctls", "subids", "newuidmap", "remedy"),
    [
        ({}, True, True, ""),
        ({"user/max_user_namespaces": 0}, True, True, "sysctl -w user.max_user_namespaces"),
        ({"kernel/unprivileged_userns_clone": 0}, True, True, "unprivileged_userns_clone=1"),
        ({}, True, False, "uidmap"),
        ({}, False, True, "usermod"),
    ],
)
def test_rootless(sysctls: dict[str, int], subids: bool, newuidmap: bool, remedy: str) -> None:
    (found,) = system.rootless(KERNEL._replace(sysctls=sysctls), subids, newuidmap)
    assert found.level == (WARN if remedy else PASS)
    assert remedy in found.remedy


def registration(path: str, kind: str = "ours", **changes: Any) -> Registration:
    return Registration(
        path, kind, "/x", ("x", "createRuntime"), None, ("createRuntime",), True, ""
    )._replace(**changes)


def test_a_folder_that_only_the_other_engine_reads_is_no_mask() -> None:
    both = Engine("CRI-O", (SHARE, ETC), "/etc/crio/crio.conf", "")
    one = Engine("podman", (SHARE,), "", "")
    hooks = (registration(f"{SHARE}/{OUR_FILE}"), registration(f"{ETC}/{OUR_FILE}", "other"))
    assert [f.level for f in engines.seen_by(one, hooks, OUR_FILE, "dnf")] == [PASS]
    (masked,) = engines.seen_by(both, hooks, OUR_FILE, "dnf")
    assert (masked.level, masked.remedy) == (FAIL, f"rm {ETC}/{OUR_FILE}")


def test_our_own_file_in_the_preferred_folder_is_one_registration() -> None:
    both = Engine("podman", (SHARE, ETC), "", "")
    hooks = (registration(f"{SHARE}/{OUR_FILE}"), registration(f"{ETC}/{OUR_FILE}"))
    (found,) = engines.seen_by(both, hooks, OUR_FILE, "dnf")
    assert (found.level, found.seen) == (PASS, f"registered by {ETC}/{OUR_FILE}")


def test_a_link_that_leads_nowhere_is_passed_over_as_engines_do(tmp_path: Path) -> None:
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks/gone.json").symlink_to("/nowhere")
    (tmp_path / "hooks/there.json").write_text("")
    found = registrations.of_folder(HostRoot(str(tmp_path)), "/hooks")
    assert [item.path for item in found] == ["/hooks/there.json"]


def test_both_stages_that_are_served_are_one_too_many() -> None:
    stages = ("prestart", "createRuntime")
    hooks = (registration(f"{SHARE}/{OUR_FILE}", stages=stages),)
    (found,) = engines.seen_by(Engine("podman", (SHARE,), "", ""), hooks, OUR_FILE, "dnf")
    assert found.level == FAIL
    assert "runs twice" in found.seen


@pytest.mark.parametrize(
    ("shim", "level"),
    [
        (Shim("podman", "/f", "nvidia", True), FAIL),
        (Shim("podman", "/f", "nvidia", False), WARN),
        (Shim("Docker", "/f", "nvidia", True), WARN),
        (Shim("Docker", "/f", "nvidia", False), PASS),
        (Shim("containerd", "/f", "nvidia", True), WARN),
    ],
)
def test_shims(shim: Shim, level: str) -> None:
    assert [f.level for f in engines.rivals((), (), (shim,))] == [level]


def test_two_specs_in_one_folder_conflict() -> None:
    ours, other = Spec("/etc/cdi/ours.yaml", True, "580.1"), Spec("/etc/cdi/a.yaml", False, "580.1")
    found = driver.cdi_specs((other, ours), "580.1")
    assert [(f.level, f.remedy) for f in found] == [(FAIL, "rm /etc/cdi/a.yaml"), (PASS, "")]


def test_two_of_ours_in_one_folder_conflict_too() -> None:
    specs = [Spec(f"/etc/cdi/{name}.yaml", True, "580.1") for name in ("a", "b")]
    found = driver.cdi_specs((*specs, Spec("/var/run/cdi/a.yaml", True, "580.1")), "580.1")
    assert [(f.level, f.remedy) for f in found] == [
        (PASS, ""),
        (FAIL, "rm /etc/cdi/b.yaml"),
        (PASS, ""),
    ]


@pytest.mark.parametrize("tool", ["dnf", "apt"])
def test_an_engine_is_installed_by_the_distributions_own_tool(tool: str) -> None:
    assert [f.remedy for f in engines.none_installed(tool)] == [f"{tool} install podman"]


def test_nouveau_is_named() -> None:
    sign = driver.Absence(
        "no driver", has_nodes=False, has_module=False, nouveau=True, has_root=True
    )
    (found,) = driver.absent(sign, "dnf")
    assert "nouveau" in found.seen
    assert found.remedy == "modprobe -r nouveau && modprobe nvidia"


def test_the_toml_of_engines() -> None:
    text = """
# a comment = "no"
top = 1
[crio.runtime] # of CRI-O
hooks_dir = [ "/a#b", # not this: "/x"
  '/c',
]
log = "a = b" # said
[plugins."io.containerd.cri".containerd.runtimes.nvidia.options]
  BinaryName = "/usr/bin/nvidia-container-runtime"
"""
    assert toml.parse(text) == {
        "top": "1",
        "crio.runtime.hooks_dir": ("/a#b", "/c"),
        "crio.runtime.log": "a = b",
        "plugins.io.containerd.cri.containerd.runtimes.nvidia.options.BinaryName": (
            "/usr/bin/nvidia-container-runtime"
        ),
    }


@pytest.mark.parametrize("text", ["", "[", "=", "a = [", "[[x]]", "a = [[", "\0", '"', "a"])
def test_what_is_no_toml_gives_no_traceback(text: str) -> None:
    assert isinstance(toml.parse(text), dict)


def test_engines_are_told_from_their_files(tmp_path: Path) -> None:
    hosts.plant(tmp_path, "usr/bin/podman", "")
    hosts.plant(tmp_path, "usr/bin/crio", "")
    conf = '[engine]\nhooks_dir = ["/etc/h"]\nruntime = "nvidia"\n[engine.runtimes]\n'
    conf += 'nvidia = ["/usr/bin/nvidia-container-runtime"]\n'
    hosts.plant(tmp_path, "etc/containers/containers.conf", conf)
    hosts.plant(
        tmp_path, "etc/containers/containers.conf.d/x.old", '[engine]\nhooks_dir = ["/x"]\n'
    )
    hosts.plant(tmp_path, "etc/crio/crio.conf", '[crio.runtime]\nhooks_dir = ["/one"]\n')
    crio = '[crio.runtime]\nhooks_dir = ["/two"]\ncgroup_manager = "cgroupfs"\n'
    hosts.plant(tmp_path, "etc/crio/crio.conf.d/20-x", crio)
    docker = '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'
    hosts.plant(tmp_path, "etc/docker/daemon.json", docker)
    containerd = 'default_runtime_name = "nvidia"\n[plugins."x".runtimes.nvidia.options]\n'
    containerd += 'BinaryName = "/usr/bin/nvidia-container-runtime"\n'
    hosts.plant(tmp_path, "etc/containerd/config.toml", containerd)
    root = HostRoot(str(tmp_path))
    assert host_engines.installed(root) == (
        Engine("podman", ("/etc/h",), "/etc/containers/containers.conf", "", ""),
        Engine(
            "CRI-O",
            ("/two",),
            "/etc/crio/crio.conf.d/20-x",
            "cgroupfs",
            "/etc/crio/crio.conf.d/20-x",
        ),
    )
    found = {(shim.engine, shim.runtime, shim.is_default) for shim in host_engines.shims(root)}
    assert found == {(name, "nvidia", True) for name in ("podman", "Docker", "containerd")}


@pytest.mark.parametrize("text", ["[]", "{", "null", '{"runtimes": 1}', '{"runtimes": []}', "\xff"])
def test_a_daemon_json_of_any_shape_is_no_traceback(tmp_path: Path, text: str) -> None:
    hosts.plant(tmp_path, "etc/docker/daemon.json", text)
    assert host_engines.shims(HostRoot(str(tmp_path))) == ()


def test_another_root_is_read_below_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No root privileges, no engine, no driver: said, with exit code 1 and no traceback."""
    assert cli.main(["doctor", "--host-root", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "this host has no NVIDIA driver" in out
    hosts.host(tmp_path)
    hosts.plant(tmp_path, "etc/oci-gpu-hook.conf", "device-cgroup = perhaps\n")
    assert cli.main(["doctor", "--host-root", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "the kernel module is of version" in out
    assert "device-cgroup is 'perhaps', allowed is one of auto, on, off" in out


NODE = Device("/dev/nvidiactl", "c", 195, 255, "rw", 0o666, 0, 0, "", True, "")
GPU = NODE._replace(path="/dev/nvidia0", minor=0)
LIBRARY = Mount("/h/libcuda.so.580.1", "/usr/lib64/libcuda.so.580.1", (), True, "")
LIBRARY = LIBRARY._replace(names=("libcuda.so.1",))
NAMED = ldmerge.prepare([ldso.Entry(b"libcuda.so.1", b"/x", 3)])
CACHE = LdCache("/etc/ld.so.cache", NAMED, True, "")
PLANNED = (NODE, GPU, LIBRARY, CACHE)
WELL = container.Seen(
    nodes={"/dev/nvidiactl": (195, 255), "/dev/nvidia0": (195, 0)},
    opened={"/dev/nvidiactl": 0, "/dev/nvidia0": 0},
    names={"/usr/lib64": frozenset(["libcuda.so.580.1", "libcuda.so.1"])},
    cached=frozenset(["libcuda.so.1"]),
    process_label="u:r:container_t:s0:c1,c2",
    shm_label="u:r:container_file_t:s0:c1,c2",
)


@pytest.mark.parametrize(
    ("changes", "level", "seen"),
    [
        ({"nodes": {}}, FAIL, "the hook did not run"),
        ({"nodes": {"/dev/nvidiactl": (195, 255)}}, FAIL, "/dev/nvidia0 missing"),
        (
            {"nodes": {**WELL.nodes, "/dev/nvidia0": (1, 3)}},
            FAIL,
            "/dev/nvidia0 is device 1:3",
        ),
        ({"opened": None}, WARN, "nothing was opened"),
        ({"opened": {"/dev/nvidia0": errno.EPERM}}, FAIL, "its device cgroup denies /dev/nvidia0"),
        ({"opened": {"/dev/nvidia0": errno.EACCES}}, FAIL, "its user may not open"),
        ({"opened": {"/dev/nvidia0": errno.ENXIO}}, WARN, "no driver answers"),
        ({"opened": {"/dev/nvidia0": errno.EIO}}, FAIL, "Input/output error"),
        ({"names": {}}, FAIL, "libcuda.so.580.1, /usr/lib64/libcuda.so.1 missing"),
        (
            {"names": {"/usr/lib64": frozenset(["libcuda.so.570.9", "libcuda.so.1"])}},
            FAIL,
            "/usr/lib64/libcuda.so.580.1 missing, libcuda.so.570.9 is there: the driver has changed",
        ),
        ({"cached": None}, FAIL, "there is none"),
        ({"cached": frozenset(["libc.so.6"])}, FAIL, "does not name libcuda.so.1"),
        ({"shm_label": "u:r:container_file_t:s0:c1,c9"}, FAIL, "semaphores fail"),
        ({"shm_label": "nonsense"}, WARN, "cannot be read"),
    ],
)
def test_a_containers_faults(changes: dict[str, Any], level: str, seen: str) -> None:
    assert {f.level for f in container.judge(PLANNED, WELL, "restart it")} == {PASS}
    found = [f for f in container.judge(PLANNED, WELL._replace(**changes), "r") if f.level != PASS]
    assert [f.level for f in found] == [level]
    assert seen in found[0].seen
    assert found[0].remedy


def test_a_link_that_somebody_has_removed_is_no_change_of_the_driver() -> None:
    """As an image's package manager may, since it is in the container's own root."""
    left = WELL._replace(names={"/usr/lib64": frozenset(["libcuda.so.580.1"])})
    (found,) = [f for f in container.judge(PLANNED, left, "r") if f.level != PASS]
    assert (found.level, found.seen) == (FAIL, "/usr/lib64/libcuda.so.1 missing")


RUNC = '{"id": "abc0", "init_process_pid": 7, "config": {"labels": ["bundle=/b/runc"]}}'
CRUN = '{"pid": 8, "bundle": "/b/crun"}'
POD = "0123456789abcdef"


@pytest.fixture()
def runs(tmp_path: Path) -> HostRoot:
    """A host on which a few containers run, as its files have them."""
    hosts.plant(tmp_path, "run/runc/abc0/state.json", RUNC)
    hosts.plant(tmp_path, "run/crun/abd0/status", CRUN)
    hosts.plant(tmp_path, f"run/user/1000/crun/{POD}/status", CRUN.replace("8", "9"))
    hosts.plant(tmp_path, "run/runc/broken/state.json", "{")
    hosts.plant(tmp_path, "run/crun/odd/status", '{"pid": "8"}')
    names = '[{"id": "abc0", "names": ["web"]}, null, {"names": null}]'
    hosts.plant(tmp_path, "var/lib/containers/storage/overlay-containers/containers.json", names)
    hosts.plant(tmp_path, "proc/8/cgroup", "5:devices:/x/abd0\n0::/x\n")
    hosts.plant(tmp_path, "proc/12/cgroup", f"0::/machine.slice/libpod-{POD}.scope\n")
    hosts.plant(tmp_path, "proc/13/cgroup", "0::/user.slice\n")
    return HostRoot(str(tmp_path))


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("abc0", ("abc0", 7, "/b/runc", "runc")),
        ("abc", ("abc0", 7, "/b/runc", "runc")),
        ("web", ("abc0", 7, "/b/runc", "runc")),
        ("abd0", ("abd0", 8, "/b/crun", "crun")),
        ("8", ("abd0", 8, "/b/crun", "crun")),
        ("0123", (POD, 9, "/b/crun", "crun")),
        ("12", (POD, 12, "/b/crun", "crun")),
        ("13", ("", 13, "", "")),
    ],
)
def test_a_container_is_found(runs: HostRoot, word: str, found: tuple[str, int, str, str]) -> None:
    assert tuple(running.find(runs, word)) == found


@pytest.mark.parametrize(
    ("word", "why"),
    [("ab", "several"), ("zz", "no running"), ("broken", "no running"), ("99", "no")],
)
def test_a_container_that_is_not_found(runs: HostRoot, word: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        running.find(runs, word)


def test_the_device_cgroup_of_each_version(runs: HostRoot) -> None:
    assert running.device_cgroup(runs, 8, "v1") == "/sys/fs/cgroup/devices/x/abd0"
    assert running.device_cgroup(runs, 8, "v2") == "/sys/fs/cgroup/x"
    assert running.device_cgroup(runs, 13, "v1") == ""
