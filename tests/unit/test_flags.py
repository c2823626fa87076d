# SPDX-License-Identifier: Apache-2.0
"""`flags`: what it prints is correct input for a shell, Docker, Python and JupyterHub, and names what was asked for."""

from __future__ import annotations

import ast
import asyncio
import csv
import shlex
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from oci_gpu_hook.cli import flaglines
from oci_gpu_hook.cli.flaglines import WantedDevices
from oci_gpu_hook.container.layout import MUSL
from oci_gpu_hook.driver import survey
from oci_gpu_hook.node.gpus import nvml
from oci_gpu_hook.operations import Mount
from oci_gpu_hook.planning import provision
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.words import CAPABILITIES
from tests.unit import hosts, manifests
from tests.unit.containers import planned
from tests.unit.program import Program
from tests.vocabulary.host import FACTS, LAYOUT, MIG_UUID, everything, plant

UUIDS = [hosts.uuid(1), hosts.uuid(0)]
NODES = ("/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm")
ALL = WantedDevices(("all",), (UUIDS[0], UUIDS[1]), NODES, "580.65.06")
TWO = WantedDevices(("0", UUIDS[1]), (UUIDS[0], UUIDS[1]), NODES, "580.65.06")
SPAWNERS = ("runtime", "device-requests", "by-user", "driver-volume")


class Section:
    """A section of JupyterHub's configuration."""


class DeviceRequest:
    """Stands for docker.types.DeviceRequest, with its parameters."""

    def __init__(self, *, count: int = 0, device_ids: Any = None, capabilities: Any = None) -> None:
        self.asked = (count, device_ids, capabilities)


class APIError(Exception):
    """Stands for docker.errors.APIError."""

    explanation = ""


class HTTPError(Exception):
    """Stands for tornado.web.HTTPError."""


class Refusing:
    """Stands for DockerSpawner, whose Docker refuses each start."""

    async def start(self) -> None:
        raise APIError


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    hosts.host(tmp_path)
    return tmp_path


def command(tree: Path, *words: object) -> list[object]:
    first, *rest = words
    config = tree / "hook.conf"
    config.touch()
    return ["flags", first, "--host-root", tree, "--config", config, *rest]


def configured(text: str, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """JupyterHub's configuration after these lines."""
    stubs: dict[str, dict[str, Any]] = {
        "docker": {},
        "docker.types": {"DeviceRequest": DeviceRequest},
        "docker.errors": {"APIError": APIError},
        "dockerspawner": {"DockerSpawner": Refusing},
        "tornado": {},
        "tornado.web": {"HTTPError": HTTPError},
    }
    for name, content in stubs.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    names = ("DockerSpawner", "SwarmSpawner", "KubeSpawner", "JupyterHub")
    found = SimpleNamespace(**{name: Section() for name in names})
    ast.parse(text, feature_version=(3, 9))
    exec(compile(text, "jupyterhub_config.py", "exec"), {"c": found})
    return found


def docker_reads(value: str) -> list[str]:
    """What Docker makes of the value of --gpus: a line of CSV, whose fields are KEY=VALUE."""
    (fields,) = csv.reader([value])
    return fields


# docker and podman.


def test_docker_has_a_line_for_each_way(program: Program, tree: Path) -> None:
    lines = program(*command(tree, "docker", 0, UUIDS[1].upper())).splitlines()
    assert [line[:1] for line in lines] == ["#", "-"] * 4
    gpus, runtime, cdi, volume = [shlex.split(line) for line in lines[1::2]]
    assert gpus[0] == "--gpus" and docker_reads(gpus[1]) == [f"device=0,{UUIDS[1]}"]
    wanted = f"NVIDIA_VISIBLE_DEVICES=0,{UUIDS[1]}"
    assert runtime == ["--runtime", "oci-gpu-runtime", "--env", wanted]
    assert cdi == ["--device", "nvidia.com/gpu=0", "--device", f"nvidia.com/gpu={UUIDS[1]}"]
    assert volume[0] == "--volume=nvidia_driver_580.65.06:/usr/local/nvidia:ro"
    assert volume[1:] == [
        "--device=/dev/nvidiactl",
        "--device=/dev/nvidia1",
        "--device=/dev/nvidia0",
        "--device=/dev/nvidia-uvm",
        "--device=/dev/nvidia-uvm-tools",
    ]
    # A tree has no nodes.
    assert program.err.startswith("not there: /dev/nvidiactl, ") and "prepare" in program.err


def test_all_is_what_is_meant_where_nothing_is_named(program: Program, tree: Path) -> None:
    for words in ([], ["all"]):
        lines = program(*command(tree, "docker", *words)).splitlines()
        assert lines[1::2][:3] == [
            "--gpus all",
            "--runtime oci-gpu-runtime --env NVIDIA_VISIBLE_DEVICES=all",
            "--device nvidia.com/gpu=all",
        ]


@pytest.mark.parametrize("devices", [["1"], ["0", "1"], ["all"]])
def test_one_way_is_for_the_shells_own_substitution(program: Program, tree: Path, devices: list[str]) -> None:
    """A shell splits what $(...) gives at blanks and takes no quotes away."""
    words = program(*command(tree, "docker", "--way", "gpus", *devices)).split()
    assert len(words) == 2
    assert docker_reads(words[1]) == ["all" if devices == ["all"] else f"device={','.join(devices)}"]
    for way in ("runtime", "cdi", "driver-volume"):
        text = program(*command(tree, "docker", "--way", way, *devices))
        assert text.split() == shlex.split(text) and text.count("\n") == 1


def test_podman_by_the_hook_and_by_cdi(program: Program, tree: Path) -> None:
    lines = program(*command(tree, "podman", 1)).splitlines()
    assert lines[1::2] == ["--env NVIDIA_VISIBLE_DEVICES=1", "--device nvidia.com/gpu=1"]
    assert program(*command(tree, "podman", "--way", "cdi")) == "--device nvidia.com/gpu=all\n"


def test_names_that_only_the_hook_knows_become_others(program: Program, tree: Path) -> None:
    """A CDI spec has no PCI addresses, and no shares."""
    lines = program(*command(tree, "docker", "0000:08:00.0", f"{UUIDS[0]}-3")).splitlines()
    assert lines[1] == f"""--gpus '"device=1,{UUIDS[0]}"'"""


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["7"], "unknown device '7': this host has indices 0 to 1"),
        (["x"], "'x' is not a GPU's name"),
        (["none"], "'none' is not a GPU's name"),
        (["0:1"], "MIG"),
        (["all", "0"], "'all' cannot be given with other devices"),
        (["\x1b[31m"], "is not a GPU's name"),
        ([hosts.uuid(9)], "unknown device"),
    ],
)
@pytest.mark.parametrize("engine", ["docker", "podman", "dockerspawner", "swarmspawner", "kubespawner"])
def test_what_is_not_there_is_not_printed(
    program: Program, tree: Path, engine: str, names: list[str], why: str
) -> None:
    assert why in program.mistake(2, *command(tree, engine, *names))


def test_without_a_driver_nothing_is_guessed(program: Program, tmp_path: Path) -> None:
    assert "no NVIDIA driver" in program.mistake(6, *command(tmp_path, "docker"))


def test_any_is_for_ways_by_which_the_hook_chooses(program: Program, tree: Path) -> None:
    words = command(tree, "docker", "any")
    (tree / "hook.conf").write_text("gpu-holders = 2\n")
    options = ["--gpus device=any:1", "--runtime oci-gpu-runtime --env NVIDIA_VISIBLE_DEVICES=any:1"]
    assert program(*words).splitlines()[1::2] == options
    for engine, way in (
        *[("docker", "cdi"), ("docker", "driver-volume"), ("podman", "cdi"), ("compose", "cdi")],
        *[("dockerspawner", "by-user"), ("dockerspawner", "driver-volume")],
    ):
        said = program.mistake(2, *command(tree, engine, "--way", way, "any"))
        assert f"--way {way} needs the names of GPUs" in said


# systemd-nspawn.


@pytest.mark.parametrize("is_file", [False, True])
def test_nspawn_binds_files_where_the_loader_and_programs_look_by_themselves(is_file: bool) -> None:
    """It makes no cache of the loader's, so that nothing would find a library in the driver's folder."""
    cuda = next(library for library in everything().libraries if library.soname == "libcuda.so.1")
    twin = cuda._replace(path="/usr/lib32/libcuda.so", bits=32)
    inventory = everything()._replace(libraries=(*everything().libraries, twin))
    request = Request("env", ("all",), CAPABILITIES, features=("gds",))
    lines, _ = flaglines.nspawn(planned(request, inventory, LAYOUT._replace(caches=False)), is_file=is_file)
    start = "BindReadOnly=" if is_file else "--bind-ro="
    pairs = [line.removeprefix(start).split(":") for line in lines if line.startswith(start)]
    bound = {target: source for source, target in pairs}
    assert not [line for line in lines if provision.FOLDER in line]
    # As with musl, which reads no cache either.
    others = planned(request, inventory, LAYOUT._replace(loader=MUSL)).operations
    mounts = {path: it.source for it in others if isinstance(it, Mount) for path in it.paths()}
    assert bound == {path: source for path, source in mounts.items() if not path.startswith("/proc/")}
    folder, folder_32 = LAYOUT.library_folder, LAYOUT.library_folder_32
    for path, source in (
        *[(f"{folder}/{name}", cuda.path) for name in cuda.names],
        *[(f"{folder_32}/{name}", twin.path) for name in cuda.names],
        (f"{folder}/gbm/nvidia-drm_gbm.so", f"{folder}/libnvidia-allocator.so.{hosts.VERSION}"),
        *[(path, path) for path in ("/usr/bin/nvidia-smi", "/etc/OpenCL/vendors/nvidia.icd", "/etc/cufile.json")],
    ):
        assert bound[path] == source


# JupyterHub.


@pytest.mark.parametrize("way", SPAWNERS)
@pytest.mark.parametrize("devices", [[], ["0"], ["0", "1"]])
def test_dockerspawner_prints_python(
    program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch, way: str, devices: list[str]
) -> None:
    text = program(*command(tree, "dockerspawner", "--way", way, *devices))
    assert configured(text, monkeypatch).DockerSpawner.extra_host_config
    assert all(other in text.splitlines()[-1] for other in SPAWNERS if other != way)


@pytest.mark.parametrize(
    ("explanation", "raised"),
    [
        (
            "OCI runtime create failed: ... oci-gpu-hook: GPU 0 is held by c (hint)\n",
            "503, 'GPU 0 is held by c (hint)'",
        ),
        ("no such image", ""),
    ],
)
def test_a_hubs_user_reads_the_hooks_sentence(monkeypatch: pytest.MonkeyPatch, explanation: str, raised: str) -> None:
    spawner = configured(flaglines.SPAWNER_TELLS, monkeypatch).JupyterHub.spawner_class()
    monkeypatch.setattr(APIError, "explanation", explanation)
    with pytest.raises(HTTPError if raised else APIError) as caught:
        asyncio.run(spawner.start())
    assert ", ".join(map(repr, caught.value.args)) == raised


def test_dockerspawner_by_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    found = configured(flaglines.filled(flaglines.SPAWNER["runtime"], TWO), monkeypatch).DockerSpawner
    assert found.extra_host_config == {"runtime": "oci-gpu-runtime"}
    assert found.environment["NVIDIA_VISIBLE_DEVICES"] == f"0,{UUIDS[1]}"


def test_dockerspawner_by_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, expected in ((ALL, (-1, None)), (TWO, (0, ["0", UUIDS[1]]))):
        found = configured(flaglines.filled(flaglines.SPAWNER["device-requests"], asked), monkeypatch).DockerSpawner
        (request,) = found.extra_host_config["device_requests"]
        assert request.asked == (*expected, [["gpu"]])


def test_dockerspawner_by_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each user has another GPU, and a stranger none, also from a runtime that goes by the environment."""
    found = configured(flaglines.filled(flaglines.SPAWNER["by-user"], ALL), monkeypatch).DockerSpawner
    visible = found.environment["NVIDIA_VISIBLE_DEVICES"]
    asked, seen = [], []
    for name in ("user0", "user1"):
        spawner = SimpleNamespace(user=SimpleNamespace(name=name))
        (request,) = found.extra_host_config(spawner)["device_requests"]
        asked.append(request.asked)
        seen.append(visible(spawner))
    assert asked == [(0, [uuid], [["gpu"]]) for uuid in UUIDS]
    assert seen == list(UUIDS)
    stranger = SimpleNamespace(user=SimpleNamespace(name="mallory"))
    assert found.extra_host_config(stranger) == {} and visible(stranger) == "void"


def test_dockerspawner_by_the_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    found = configured(flaglines.filled(flaglines.SPAWNER["driver-volume"], TWO), monkeypatch).DockerSpawner
    assert found.read_only_volumes == {"nvidia_driver_580.65.06": "/usr/local/nvidia"}
    assert found.extra_host_config == {"devices": [f"{path}:{path}:rw" for path in NODES]}


def test_swarmspawner_counts(program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, expected in (([], {"GPU": 1}), (["--name", "NVIDIA-GPU", "0", "1"], {"NVIDIA-GPU": 2})):
        found = configured(program(*command(tree, "swarmspawner", *words)), monkeypatch)
        assert found.SwarmSpawner.extra_resources_spec == {"generic_resources": expected}


@pytest.mark.parametrize("mode", ["none", "selinux", "privileged"])
def test_kubespawner_in_each_mode(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Where no GPU is named no host is asked: the hub is elsewhere."""
    text = program("flags", "kubespawner", "--mode", mode, "--host-root", tmp_path)
    found = configured(text, monkeypatch).KubeSpawner
    options = {"type": "nvidia_container_t", "level": "s0"}
    expected: dict[str, dict[str, Any]] = {
        "none": {},
        "selinux": {"pod_security_context": {"seLinuxOptions": options}},
        "privileged": {"privileged": True, "allow_privilege_escalation": True},
    }
    limits = {"nvidia.com/gpu": "1"}
    assert vars(found) == {"extra_resource_limits": limits, **expected[mode]}
    assert "/dev/shm" in text and "hostIPC" in text
    assert ("It costs everything" in text) == (mode == "privileged")


def profiles(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """What KubeSpawner overrides for who picks a profile, by the profile; nothing is said of all users."""
    found = vars(configured(text, monkeypatch).KubeSpawner)
    assert found.keys() == {"profile_list"}
    assert [item["slug"] for item in found["profile_list"] if item.get("default")] == ["no-gpu"]
    return {item["slug"]: item.get("kubespawner_override", {}) for item in found["profile_list"]}


@pytest.mark.parametrize("mode", ["none", "selinux", "privileged"])
def test_kubespawner_gives_gpus_to_who_picks_the_profile(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    words = ["flags", "kubespawner", "--mode", mode, "--host-root", tmp_path]
    everybodys = vars(configured(program(*words), monkeypatch).KubeSpawner)
    assert profiles(program(*words, "--way", "profile"), monkeypatch) == {"no-gpu": {}, "gpu": everybodys}


def spawned(settings: dict[str, Any]) -> dict[str, Any]:
    """The pod that KubeSpawner makes by these settings, as far as constraints look at it."""
    security = {"allowPrivilegeEscalation": settings.get("allow_privilege_escalation", False)}
    if settings.get("privileged"):
        security["privileged"] = True
    limits = settings.get("extra_resource_limits", {})
    container = {"name": "notebook", "securityContext": security, "resources": {"limits": limits}}
    return {
        "metadata": {"annotations": settings.get("extra_annotations", {})},
        "spec": {"containers": [container], "securityContext": settings.get("pod_security_context", {})},
    }


def test_openshift_admits_notebooks_each_by_its_own_constraints(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["flags", "kubespawner", "--host-root", tmp_path, "--way", "profile"]
    scc = manifests.named("scc-nvidia-container.yaml", "SecurityContextConstraints")
    constraints = {scc["metadata"]["name"]: scc, "restricted-v2": manifests.restricted()}
    found = profiles(program(*words, "--mode", "selinux", "--scc", "nvidia-container"), monkeypatch)
    ends = {}
    for slug, settings in found.items():
        pod = spawned(settings)
        name = pod["metadata"]["annotations"]["openshift.io/required-scc"]
        ends[slug] = manifests.admitted(pod["spec"], constraints[name])
    level = {"level": "s0:c27,c9"}
    assert ends == {"no-gpu": level, "gpu": {**level, "type": "nvidia_container_t"}}
    # By mode none both keep the default; who names the type is admitted by neither.
    for settings in profiles(program(*words), monkeypatch).values():
        assert manifests.admitted(spawned(settings)["spec"], manifests.restricted()) == level
    for mode in ("selinux", "privileged"):
        typed = spawned(profiles(program(*words, "--mode", mode), monkeypatch)["gpu"])
        assert [manifests.admitted(typed["spec"], it) for it in constraints.values()] == [None, None]


@pytest.mark.parametrize("words", [["--scc", "x"], ["--mode", "selinux", "--scc", "a b"]])
def test_constraints_are_named_for_selinux_alone(program: Program, tree: Path, words: list[str]) -> None:
    assert "--scc is the name of constraints" in program.mistake(2, *command(tree, "kubespawner", *words))


def test_kubespawner_counts_kinds(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plant(tmp_path)
    saved = nvml.with_facts(survey.survey(root), FACTS)
    profile = next(device.profile for device in saved.mig_devices if device.uuid == MIG_UUID)
    monkeypatch.setattr(survey, "survey", lambda *_: saved)
    found = configured(program(*command(tmp_path, "kubespawner", MIG_UUID)), monkeypatch)
    name = f"nvidia.com/mig-{profile.replace('+', '.')}" if profile else "nvidia.com/gpu"
    assert found.KubeSpawner.extra_resource_limits == {name: "1"}


def test_lines_of_lxc_are_exchanged_for_new_ones() -> None:
    """All else of a configuration stays, in its order."""
    hook = "lxc.hook.mount = /bin/sh -c 'exec nvidia-container-cli {}'"
    new = [hook.format("new"), "lxc.cgroup2.devices.allow = c 195:0 rw"]
    theirs = ["lxc.cgroup2.devices.allow = c 195:7 rw", "lxc.hook.mount = /usr/bin/other"]
    fuse, end = "lxc.cgroup2.devices.allow = c 10:229 rwm", "lxc.uts.name = one"
    old = [hook.format("old"), "lxc.cgroup.devices.allow = c 1:2 rw", "lxc.cgroup2.devices.allow = c 3:4 rw"]
    for before, after in (
        ([], new),
        ([end], [end, *new]),
        ([*theirs, *old, fuse, *theirs, end], [*theirs, *new, fuse, *theirs, end]),
        ([*old, end, *old], [end, *new]),
    ):
        text = flaglines.with_lxc("".join([f"{line}\n" for line in before]), new)
        assert text == "".join([f"{line}\n" for line in after])
        assert flaglines.with_lxc(text, new) == text, "once more changes nothing"
