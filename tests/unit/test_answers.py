# SPDX-License-Identifier: Apache-2.0
"""Answers that are kept: the same as what is decided anew, and none where anything that they came from has changed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook import decision, plan, provision, request, rootfs, selection, sources
from oci_gpu_hook.config import Config
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host import answers, inventory, nodes, saved, stamp, survey
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.rootfs import Container
from tests.unit import hosts
from tests.unit.test_plan import ALPINE, DEBIAN, ROOTLESS

LAYOUTS = {
    "debian": DEBIAN,
    "alpine": ALPINE,
    "rootless": ROOTLESS,
    "host's /dev": DEBIAN._replace(dev_is_hosts=True),
    "newer CUDA": DEBIAN._replace(compat_names=("libcuda.so.1", "libcuda.so.999.1")),
}
SETTINGS = Config()


@pytest.fixture(autouse=True)
def linked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "BUILD", "1")


@pytest.fixture()
def host(tmp_path: Path) -> HostRoot:
    root = hosts.host(tmp_path, gpus=4)
    (tmp_path / "run").mkdir()
    hosts.plant(tmp_path, "etc/ld.so.cache", "")
    for number in range(4):
        hosts.plant(
            tmp_path, f"sys/bus/pci/devices/0000:{7 + number:02x}:00.0/drm/card{number}", ""
        )
    save(root)
    return root


def save(root: HostRoot) -> None:
    survey.save(root, stamp.now(root, "/"), survey.survey(root))


def asked(devices: str = "1", capabilities: str = "", **more: str) -> request.Request:
    environment = {
        "NVIDIA_VISIBLE_DEVICES": devices,
        "NVIDIA_DRIVER_CAPABILITIES": capabilities,
        **more,
    }
    found, _ = request.parse(sources.Inputs(environment, privileged=True), SETTINGS)
    assert found is not None
    return found


def question(
    root: HostRoot, wanted: request.Request, container: Container = DEBIAN
) -> answers.Question:
    found = answers.question(root, wanted, rootfs.like(container), "/")
    assert found is not None
    return found


def decided(
    root: HostRoot, wanted: request.Request, container: Container = DEBIAN
) -> plan.Provision:
    """What a start decides, which keeps it."""
    asks = answers.question(root, wanted, rootfs.like(container), "/")
    given, _ = decision._provide(root, container, wanted, SETTINGS, answers, asks)
    return given


def recalled(
    root: HostRoot, wanted: request.Request, container: Container = DEBIAN
) -> plan.Provision | None:
    found = answers.recall(root, question(root, wanted, container))
    return None if found is None else plan.Provision(*found)


def kept(root: HostRoot) -> list[str]:
    return [name for name in root.names(saved.FOLDER) if name.startswith(answers.PREFIX)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("capabilities", ["", "compute", "utility,graphics", "all"])
@pytest.mark.parametrize("devices", ["0", "1,3", "all", "none", hosts.uuid(2)])
def test_an_answer_is_what_would_be_decided(
    host: HostRoot, devices: str, capabilities: str, layout: str
) -> None:
    wanted, container = asked(devices, capabilities), LAYOUTS[layout]
    first = decided(host, wanted, container)
    again = recalled(host, wanted, container)
    assert again == first
    # Equal tuples may be of different records.
    assert repr(again) == repr(first)


def test_nothing_is_known_that_was_not_asked_for(host: HostRoot) -> None:
    assert recalled(host, asked()) is None
    decided(host, asked("1"))
    assert recalled(host, asked("2")) is None


OTHERS: dict[str, Callable[[request.Request], request.Request]] = {
    "source": lambda found: found._replace(source="mounts"),
    "devices": lambda found: found._replace(devices=("2",)),
    "capabilities": lambda found: found._replace(capabilities=("compute",)),
    "requirements": lambda found: found._replace(requirements=("cuda>=1",)),
    "mig_config": lambda found: found._replace(mig_config=True),
    "mig_monitor": lambda found: found._replace(mig_monitor=True),
    "imex_channels": lambda found: found._replace(imex_channels=("1",)),
    "features": lambda found: found._replace(features=("gds",)),
}


def test_every_field_of_a_request_is_in_the_question() -> None:
    assert set(OTHERS) == set(request.Request._fields)


def under_one_name(
    root: HostRoot, known: answers.Question, other: answers.Question
) -> tuple[Any, ...] | None:
    """The answer to another question, whose file has the name of the one that is known."""
    return answers.recall(root, (known[0], other[1]))


@pytest.mark.parametrize("field", OTHERS)
def test_another_request_has_no_answer(host: HostRoot, field: str) -> None:
    decided(host, asked())
    known, other = question(host, asked()), question(host, OTHERS[field](asked()))
    assert under_one_name(host, known, known) is not None
    assert under_one_name(host, known, other) is None


LAYOUT: dict[str, Any] = {
    "library_folder": "/usr/lib64",
    "library_folder_32": "",
    "compat_names": ("libcuda.so.9",),
    "loader": "musl",
    "user_namespace": True,
    "dev_is_hosts": True,
}
ITS_OWN: dict[str, Any] = {
    "id": "c2",
    "bundle": "/c",
    "rootfs": "/c/rootfs",
    "device_cgroup": DEBIAN.device_cgroup._replace(path="/sys/fs/cgroup/c2", top="/sys/fs/cgroup"),
    "scope": object(),
}


def test_every_field_of_a_container_is_its_layout_or_its_own() -> None:
    assert set(LAYOUT) | set(ITS_OWN) == set(Container._fields)


@pytest.mark.parametrize("field", LAYOUT)
def test_a_container_of_another_layout_has_no_answer(host: HostRoot, field: str) -> None:
    decided(host, asked())
    known = question(host, asked())
    other = question(host, asked(), DEBIAN._replace(**{field: LAYOUT[field]}))
    assert under_one_name(host, known, known) is not None
    assert under_one_name(host, known, other) is None


@pytest.mark.parametrize("field", ITS_OWN)
def test_what_is_a_containers_own_changes_nothing(host: HostRoot, field: str) -> None:
    first = decided(host, asked())
    container = DEBIAN._replace(**{field: ITS_OWN[field]})
    assert recalled(host, asked(), container) == first
    have = inventory.with_nodes(host, survey.survey(host))
    chosen = selection.select(asked(), have)
    assert provision.make(rootfs.like(container), asked(), chosen, have) == first


def change_mode(tree: Path) -> None:
    (tree / "dev/nvidia-uvm").mkdir(parents=True)


HOST_CHANGES: dict[str, Callable[[Path], object]] = {
    "another boot": lambda tree: hosts.plant(tree, "proc/sys/kernel/random/boot_id", "another\n"),
    "another driver": lambda tree: hosts.plant(tree, "proc/driver/nvidia/version", "NVRM 1.2\n"),
    "a GPU more": lambda tree: hosts.plant_gpu(tree, 20, 9),
    "ldconfig": lambda tree: os.utime(tree / "etc/ld.so.cache", ns=(1, 1)),
    "a MIG device": lambda tree: hosts.plant(
        tree, "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", ""
    ),
    "another inventory": lambda tree: save(HostRoot(str(tree))),
    "majors": lambda tree: hosts.plant(
        tree, "proc/devices", hosts.DEVICES.replace("505 nvidia-uvm", "506 nvidia-uvm")
    ),
    "a service that started": lambda tree: hosts.plant(
        tree, "var/run/nvidia-fabricmanager/socket", ""
    ),
    "a service that ended": lambda tree: (tree / "var/run/nvidia-persistenced/socket").unlink(),
    "something in /dev": change_mode,
    "a DRM node": lambda tree: hosts.plant(
        tree, "sys/bus/pci/devices/0000:08:00.0/drm/renderD129", ""
    ),
}


@pytest.mark.parametrize("change", HOST_CHANGES)
def test_a_host_that_has_changed_is_asked_anew(host: HostRoot, tmp_path: Path, change: str) -> None:
    wanted = asked("1", "all")
    decided(host, wanted)
    assert recalled(host, wanted) is not None
    HOST_CHANGES[change](tmp_path)
    assert recalled(host, wanted) is None


def test_rooms_of_another_build_know_nothing(
    host: HostRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided(host, asked())
    monkeypatch.setattr(answers, "BUILD", "2")
    assert recalled(host, asked()) is None


def test_rooms_that_are_not_linked_neither_ask_nor_keep(
    host: HostRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "BUILD", "")
    assert answers.question(host, asked(), rootfs.like(DEBIAN), "/") is None
    decided(host, asked())
    assert kept(host) == []


def test_what_a_driver_container_or_an_engine_has_given_is_not_kept(host: HostRoot) -> None:
    assert answers.question(host, asked(), rootfs.like(DEBIAN), "/run/nvidia/driver") is None
    by_engine = asked()._replace(source="cdi")
    assert answers.question(host, by_engine, rootfs.like(DEBIAN), "/") is None


def test_without_a_saved_inventory_nothing_is_kept(host: HostRoot, tmp_path: Path) -> None:
    (tmp_path / inventory.SAVED[1:]).unlink()
    decided(host, asked())
    assert kept(host) == []
    # That start has saved one.
    decided(host, asked())
    assert len(kept(host)) == 1


def test_a_gpu_that_may_yet_be_named_is_not_kept(host: HostRoot, tmp_path: Path) -> None:
    """Its UUID appears when it is first used, and no stamp tells."""
    hosts.plant_gpu(tmp_path, 30, 7)
    file = tmp_path / "proc/driver/nvidia/gpus/0000:1e:00.0/information"
    file.write_text(
        file.read_text().replace(hosts.uuid(7), "GPU-????????-????-????-????-????????????")
    )
    save(host)
    decided(host, asked())
    assert kept(host) == []


def test_what_cannot_be_met_is_not_kept(host: HostRoot, tmp_path: Path) -> None:
    hosts.plant(tmp_path, "proc/devices", "Character devices:\n195 nvidia\n\nBlock devices:\n")
    with pytest.raises(DriverError, match="nvidia-uvm is not loaded"):
        decided(host, asked())
    assert kept(host) == []


def spoil(file: Path, how: str) -> None:
    data = file.read_bytes()
    if how == "a fifo":
        file.unlink()
        os.mkfifo(file)
    elif how == "a socket":
        file.unlink()
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(file))
    elif how == "writable by others":
        file.chmod(0o666)
    elif how == "a link":
        file.rename(file.with_name("elsewhere"))
        file.symlink_to("elsewhere")
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "another shape":
        file.write_bytes(b"N")
    elif how == "huge":
        file.write_bytes(data.ljust(saved.LARGEST + 1))
    else:
        file.write_bytes(data[: len(data) * int(how) // 10])


@pytest.mark.parametrize(
    "how",
    ["a fifo", "a socket", "writable by others", "a link", "empty", "another shape", "huge"]
    + [str(tenth) for tenth in range(1, 10)],
)
def test_a_spoilt_answer_is_none(host: HostRoot, tmp_path: Path, how: str) -> None:
    first = decided(host, asked())
    (name,) = kept(host)
    spoil(tmp_path / saved.FOLDER[1:] / name, how)
    assert recalled(host, asked()) is None
    assert decided(host, asked()) == first
    assert recalled(host, asked()) == first


def test_a_folder_that_others_may_write_to_has_no_answers(host: HostRoot, tmp_path: Path) -> None:
    wanted = question(host, asked())
    first = decided(host, asked())
    folder = tmp_path / saved.FOLDER[1:]
    folder.chmod(0o777)
    assert answers.recall(host, wanted) is None
    folder.chmod(0o755)
    assert recalled(host, asked()) == first


def test_an_answer_that_cannot_be_kept_stops_no_start(host: HostRoot, tmp_path: Path) -> None:
    folder = tmp_path / saved.FOLDER[1:]
    folder.chmod(0o777)  # nothing is written where others may write
    assert decided(host, asked()).driver_version == hosts.VERSION
    assert kept(host) == []


def test_they_are_not_more_than_there_may_be(host: HostRoot) -> None:
    for number in range(answers.MOST + 5):
        decided(host, asked("1", NVIDIA_REQUIRE_CUDA=f"cuda>={number % 9}.{number}"))
        assert 0 < len(kept(host)) <= answers.MOST


class Narrow:
    """A host's root that can be asked what a witness has."""

    def __init__(self, root: HostRoot) -> None:
        self.stat, self.read, self.names = root.stat, root.read, root.names


def test_nodes_are_found_by_what_a_witness_sees(host: HostRoot) -> None:
    """Else an answer would outlive what it came from."""
    narrow: Any = Narrow(host)
    found = inventory.with_nodes(narrow, survey.survey(host), nodes.FAMILIES, ("3",))
    assert found == inventory.with_nodes(host, survey.survey(host), nodes.FAMILIES, ("3",))
