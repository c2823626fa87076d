# SPDX-License-Identifier: Apache-2.0
"""What root pastes is made of words, and a text that a container or a user has chosen is one only as a name."""

from __future__ import annotations

import errno
import json
import os
import posix
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.asking import Options, Question
from oci_gpu_hook.cli import containerreport
from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.host import docker
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import FAIL, Finding, namecheck, remedy
from oci_gpu_hook.node.diagnosis.remedy import as_root, command, in_words, install, is_name, then
from oci_gpu_hook.node.engines import containers
from oci_gpu_hook.node.engines.containers import ContainerNames, Running
from oci_gpu_hook.node.machine import childprocess, kernelconfig, processes
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.state import State
from tests.unit import hosts
from tests.vocabulary.host import MIG_UUID, UUID, everything

ROOT = Path(__file__).parents[2]
EVIL = "x;echo Y3VybA==|base64 -d>/etc/cron.d/x"


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_words_stay_words(words: list[str]) -> None:
    assert shlex.split(command(*words)) == words


LOOK = then(command("rm", "a && b"), command("ls", note="and look"))


def test_several_commands_and_a_note() -> None:
    assert LOOK == "rm 'a && b' && ls  # and look"
    assert shlex.split(LOOK, comments=True) == ["rm", "a && b", "&&", "ls"]
    # No note hides a command behind it.
    both = then(command("vi", "/f", note="a line"), in_words("ask"), command("systemctl", "reboot"))
    assert both == "vi /f && systemctl reboot  # a line; ask"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("web", True), ("a" * 64, True), ("k8s_a.b-c", True), ("-f", False), ("", False)]
    + [(text, False) for text in (EVIL, "a b", "a\n", "$(id)", "é", "../x", "a" * 257)],
)
def test_what_is_a_name(text: str, expected: bool) -> None:
    assert is_name(text) == expected


ID = "ab" * 32
ADVISE = (remedy.restart, remedy.start, remedy.resume, remedy.ask)


@pytest.mark.parametrize("engine", ["", "podman", "CRI-O", "Docker", "containerd"])
@pytest.mark.parametrize("is_pods", [False, True])
@pytest.mark.parametrize("advise", ADVISE)
def test_no_name_that_a_user_chose_is_a_word(engine: str, is_pods: bool, advise: object) -> None:
    """Neither the container's, nor its id, nor the folder above its bundle."""
    for word, id, bundle in ((EVIL, ID, f"/run/{EVIL}/{ID}"), ("--evil", "--all", "/b"), (EVIL, EVIL, f"/b/{EVIL}")):
        called = ContainerNames(engine, word, pod="pod" if is_pods else "")
        who = Running(id, 7, "" if id != ID else bundle, "runc", called, os.geteuid())
        said = advise(who)  # type: ignore[operator]
        assert "echo" not in said.replace(f"/run/{EVIL}", ""), said
        words = shlex.split(said.rpartition(": ")[2], comments=True)
        assert not {"--evil", "--all"} & {word for word in words if word in (called.name, who.id)}


@pytest.mark.parametrize("advise", ADVISE)
def test_a_users_container_is_that_users_to_start_again(advise: object) -> None:
    """Root would start what the user's bundle says."""
    who = Running("web", 7, "/users/ann/bundle", "runc", ContainerNames("", "web"), 1000 + os.geteuid())
    said = advise(who)  # type: ignore[operator]
    assert "/users/ann" not in said
    assert "runc" not in said or str(who.owner) in said


def test_who_is_not_root_gets_sudo_before_each_command_and_root_before_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert as_root(LOOK) == "sudo rm 'a && b' && sudo ls  # and look"
    assert as_root(in_words("ask the administrator")) == "ask the administrator"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert as_root(LOOK) == LOOK


@pytest.mark.parametrize(("tool", "make"), [("apt", "make deb"), ("dnf", "make rpm")])
def test_no_repository_has_our_packages(tool: str, make: str) -> None:
    """As README says they are made and installed; the second needs the first."""
    said = install(tool, "oci-gpu-hook-docker")
    assert said.commands[0] == make and make in (ROOT / "README.md").read_text()
    names = [word.rpartition("/")[2] for word in said.commands[1].split() if "/" in word]
    assert [re.split("[_-][^a-z]", name)[0] for name in names] == ["oci-gpu-hook", "oci-gpu-hook-docker"]


# --- advice about a container is in the words of the engine that runs it, and of no other

BUNDLE = f"/run/tasks/prod/{ID}"
LXC = ContainerNames("LXC", "web")
OF = {
    name: Running(ID, 7, BUNDLE, runtime, called, os.geteuid())
    for name, runtime, called in (
        ("podman", "crun", ContainerNames("podman", "web")),
        ("CRI-O", "crun", ContainerNames("CRI-O", "main", "k8s_main_gpu_ml_u_0", "gpu", "ml")),
        ("CRI-O without its list of names", "crun", ContainerNames("CRI-O")),
        ("Docker", "runc", ContainerNames("Docker", "web")),
        ("containerd", "runc", ContainerNames("containerd", "mine")),
        ("containerd for the kubelet", "runc", ContainerNames("containerd", "train", pod="gpu")),
        ("runc", "runc", ContainerNames("", ID)),
        *(("LXC", "lxc-start", LXC), ("Incus", "incusd", LXC), ("LXD", "lxd", LXC), ("of LXC's, by whom", "", LXC)),
    )
}
WORDS = {
    "podman": ("podman",),
    "CRI-O": ("crictl", "kubectl", "crun resume"),
    "CRI-O without its list of names": ("crictl", "kubectl", "crun resume"),
    "Docker": ("docker",),
    "containerd": ("ctr --namespace prod",),
    "containerd for the kubelet": ("crictl", "kubectl", "runc resume"),
    "runc": ("runc", "vi "),
    "LXC": ("lxc-stop ", "start it", "lxc-unfreeze ", "oci-gpu-hook flags lxc "),
    "Incus": ("incus ", "start it"),
    "LXD": ("lxc ", "start it"),
    "of LXC's, by whom": ("start it", "let it run on", "oci-gpu-hook-hpc(7) says"),
}


@pytest.mark.parametrize("name", OF)
def test_every_advice_is_in_the_engines_own_words(name: str) -> None:
    for advise in ADVISE:
        text = advise(OF[name]).rpartition(": ")[2]
        assert text.startswith(WORDS[name]), text


def test_an_instances_project_is_named() -> None:
    other = [remedy.restart(OF[name]._replace(id="ml_web")) for name in ("LXC", "Incus")]
    assert other == ["lxc-stop --name ml_web && lxc-start --name ml_web", "incus restart web --project=ml"]
    assert remedy.restart(OF["LXD"]._replace(id="ml_--all")) == "start it again"


def asks(*env: str, **more: object) -> Question:
    bundle = Bundle("/b", {"process": {"env": list(env)}, **more})
    return Question(bundle, State(), Options())


def unasked(engine: str, question: Question, settings: Settings, *notes: str) -> Finding:
    return containerreport._unasked(HostRoot(os.path.dirname(__file__)), OF[engine], question, settings, notes)


LIST = {"destination": f"{sources.LIST_FOLDER}/0", "source": "/dev/null"}


def test_the_reason_is_the_setting_that_does_not_accept_what_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    privileged = Settings()._replace(accept_environment="privileged")
    found = unasked("CRI-O", asks("NVIDIA_VISIBLE_DEVICES=all"), privileged, "why")
    assert "accept-environment = privileged does not accept: why" in found.seen
    assert found.remedy.startswith("oci-gpu-hook info --settings  # accept-environment, accept-")
    found = unasked("Docker", asks("A=1", mounts=[LIST]), Settings())
    assert "accept-volume-mounts = no does not accept" in found.seen
    found = unasked("Docker", asks("A=1"), Settings())
    assert "it asks for no GPU" in found.seen
    assert found.remedy == "docker run --gpus all ..."
    for count in (0, -1):
        monkeypatch.setattr(docker, "requests_of", lambda *_, count=count: [{"Count": count, "DeviceIDs": None}])
        assert ("--gpus 0" in unasked("Docker", asks("A=1"), Settings()).seen) == (count == 0)


def test_a_container_that_has_stopped_is_to_be_started_and_not_to_be_root(tmp_path: Path) -> None:
    hosts.plant(tmp_path, f"var/lib/docker/containers/{ID}/config.v2.json", json.dumps({"Name": "/web"}))
    with pytest.raises(UsageError, match=r"web does not run \(docker start web\)"):
        containerreport.running(HostRoot(str(tmp_path)), containers.find(HostRoot(str(tmp_path)), "web"), None)


def test_a_container_is_named_with_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "is_contained", lambda _: True)
    monkeypatch.setattr(childprocess, "ask", lambda *_: [])
    (found,) = containerreport.running(HostRoot(), OF["podman"]._replace(owner=1000), None)
    assert found.seen == f"web ({ID[:12]}) of podman, user 1000's, process 7"


def test_why_a_process_cannot_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"No such file or directory \(it has ended\)"):
        processes.is_contained(4194305)

    def refused(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(posix, "stat", refused)
    with pytest.raises(UsageError, match=r"Permission denied \(run it as root, with CAP_SYS_PTRACE\)"):
        processes.is_contained(1)


# --- names of devices in others' files: what is no longer here is named, and what may be here is not judged

FILE = "/etc/docker/daemon.json"
HERE, GONE = hosts.uuid(0), hosts.uuid(9)


def judged(*resources: object) -> list[tuple[str, str, str]]:
    found = namecheck.resources(FILE, {"node-generic-resources": [*resources]}, everything())
    return [(one.level, one.seen, one.remedy) for one in found]


def test_resources_of_swarm_are_compared_with_the_host() -> None:
    assert judged(f"GPU={HERE}", f"GPU={MIG_UUID}", "SSD=2", 7) == []
    ((level, seen, remedy),) = judged(f"NVIDIA-GPU={HERE}-0", f"NVIDIA-GPU={GONE}-0", f"NVIDIA-GPU={GONE}-1")
    assert (level, seen) == (FAIL, f"{FILE} gives {GONE} to Swarm's tasks, and they cannot have it here")
    again = "oci-gpu-hook configure docker --swarm NVIDIA-GPU --shares=2"
    assert remedy == f"oci-gpu-hook inventory refresh && {again} && systemctl restart docker"
    for resource in (f"-x y={GONE}", f"GPU={GONE}-150"):
        ((level, _, remedy),) = judged(resource)
        assert (level, f" && vi {FILE} && systemctl restart" in remedy) == (FAIL, True), "no command can name it"


def test_names_are_compared_as_a_start_reads_them() -> None:
    assert judged(f"GPU={HERE.lower()}", f"GPU={HERE.upper()}") == []
    assert [it[0] for it in judged(f"GPU={UUID}")] == [FAIL], "it is divided: its MIG devices alone give it"


def test_what_names_no_device_or_may_be_any_is_not_judged() -> None:
    """A GPU without a UUID gets one at its first use."""
    assert judged("GPU=2") == []
    assert namecheck.resources(FILE, {}, everything()) == []
    assert namecheck.resources(FILE, {"node-generic-resources": "GPU=GPU-1"}, everything()) == []
    unused = tuple([gpu._replace(uuid=None) for gpu in everything().gpus])
    resources = {"node-generic-resources": [f"GPU={GONE}"]}
    assert namecheck.resources(FILE, resources, everything()._replace(gpus=unused)) == []


HOOK = "lxc.hook.mount = /bin/sh -c 'exec nvidia-container-cli --user configure --no-cgroups --device={} --compute'\n"


def rules(*numbers: str) -> str:
    return "".join([f"lxc.cgroup2.devices.allow = c {it} rw\n" for it in numbers])


def configured(tree: Path, text: str) -> list[Finding]:
    root = hosts.host(tree, gpus=1)
    hosts.plant(tree, "var/lib/lxc/a/config", text)
    # A folder of the test's is no cgroup filesystem.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernelconfig, "cgroup_version", lambda _: "v2")
        return namecheck.configurations(root, hosts.surveyed(root))


def test_rules_of_lxc_are_compared_with_the_nodes_numbers(tmp_path: Path) -> None:
    path = "/var/lib/lxc/a/config"
    numbers = ["195:255", "195:0", "505:0", "505:1"]
    moved = [(FAIL, f"{path} has no rule for /dev/nvidia-uvm and 1 more, now device 505:0")]
    unknown = "this host has 1 GPU, and none has this UUID"
    ours, older = HOOK.format("0"), rules("195:255", "195:0", "77:0", "77:1")
    cases = {
        "other": ("lxc.hook.mount = /usr/bin/other\n" + rules("1:2"), []),
        "well": (ours + rules(*numbers), []),
        "whole": (ours + rules("195:*", "505:*"), []),
        "all": (ours + "lxc.cgroup2.devices.allow = a\n", []),
        "none": (ours, []),
        "v1": (ours + rules(*numbers).replace("cgroup2", "cgroup"), []),
        "moved": (ours + older, moved),
        "gone": (HOOK.format(GONE) + rules(*numbers), [(FAIL, f"{path}: unknown device '{GONE}': {unknown}")]),
        "last": (HOOK.format("7") + ours + rules(*numbers), []),
        "upper": (HOOK.format(HERE.upper()) + older, moved),
        "no name": (HOOK.format("$(x)") + older, [(FAIL, f"{path}: unknown device '$(x)' in {path}")]),
        "garbage": ("\0\xff" * 100, []),
        "long": ("lxc.hook.mount = " + "nvidia-container-cli " * 100_000, []),
    }
    for name, (text, wanted) in cases.items():
        assert [(one.level, one.seen) for one in configured(tmp_path / name, text)] == wanted, name
    (tmp_path / "moved/var/lib/lxc/a/config").chmod(0o666)
    root = HostRoot(str(tmp_path / "moved"))
    assert namecheck.configurations(root, hosts.surveyed(root)) == [], "who wrote it is not known"


def test_capabilities_that_were_changed_by_hand_are_not_written_over(tmp_path: Path) -> None:
    path, older = "/var/lib/lxc/a/config", rules("77:0")
    (changed,) = configured(tmp_path / "changed", HOOK.format("0") + older)
    assert changed.remedy == f"oci-gpu-hook flags lxc 0  # replace the rules in '{path}' by these"
    (ours,) = configured(tmp_path / "ours", HOOK.format("0").replace("--compute", "--utility --compute") + older)
    assert ours.remedy == f"oci-gpu-hook flags lxc --write {path} 0"
