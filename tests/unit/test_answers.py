# SPDX-License-Identifier: Apache-2.0
"""Saved answers: each is what would be decided anew, and none is used once anything that it came from has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oci_gpu_hook import build
from oci_gpu_hook.cli import shown
from oci_gpu_hook.container import rootfs
from oci_gpu_hook.container.layout import COMPAT_FOLDER, Layout
from oci_gpu_hook.driver import inventory, nodes, proc, survey
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host import saved
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.planning import answers, decide, drivers
from oci_gpu_hook.planning.plan import Found, Plan
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.vendorrequest import VendorRequest
from tests.unit import hosts
from tests.unit.asking import by_environment

NEWER_CUDA = "libcuda.so.999.1"


class Start(NamedTuple):
    """A start's plan, and whether it was decided anew."""

    plan: Plan
    anew: bool


class Node:
    """A host with a saved inventory, and the bundle of a container with a newer CUDA."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.bundle = folder / "host", folder / "bundle"
        self.root = hosts.host(self.tree, gpus=4)
        self.root.remember = True
        hosts.plant(self.tree, "etc/ld.so.cache", "")
        for number in range(4):
            device = f"sys/bus/pci/devices/0000:{7 + number:02x}:00.0"
            hosts.plant(self.tree, f"{device}/drm/card{number}", "")
        for name in ("libcuda.so.1", NEWER_CUDA):
            hosts.plant(self.bundle, f"rootfs{COMPAT_FOLDER}/{name}", "")
        hosts.saved(self.root)

    def start(
        self,
        request: Request,
        settings: Settings = Settings(),  # noqa: B008  read only
        id: str = "c1",
    ) -> Start:
        bundle = Bundle(str(self.bundle), {"root": {"path": "rootfs"}})
        root = rootfs.of_folder(bundle.rootfs())
        try:
            made = decide.decide(bundle, request, settings, self.root, root, id=id, process=None)
        finally:
            os.close(root.fd)
        return Start(made._replace(found=Found()), made.found.inventory is not None)

    def kept(self) -> list[str]:
        """The names of the answers' files."""
        names = self.root.names(saved.FOLDER)
        return [name for name in names if name.startswith(answers.PREFIX)]


@pytest.fixture()
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(build, "DIGEST", "1")
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("devices", "capabilities"), [("1,3", ""), ("all", "all"), ("none", "compute"), (hosts.uuid(2), "utility,graphics")]
)
def test_an_answer_is_what_would_be_decided(node: Node, devices: str, capabilities: str) -> None:
    request = by_environment(devices, capabilities)
    (first, anew), (again, anew_again) = node.start(request), node.start(request, id="c2")
    assert (anew, anew_again) == (True, False)
    assert again._replace(container=first.container) == first and first.operations
    # Equal tuples may be of different records.
    for one, other in zip(again.operations, first.operations):
        assert type(one) is type(other)
        assert (shown.rows(one), shown.document(one)) == (shown.rows(other), shown.document(other))
    assert len(node.kept()) == 1
    assert node.start(by_environment("2", capabilities)).anew


def test_a_start_wants_nvml_asked_for_as_long_as_a_mig_device_has_no_name(node: Node) -> None:
    """Also where what is saved is current: a wish may come to nothing."""
    wanted = node.tree / saved.FOLDER[1:] / saved.REFRESH_WANTED
    node.start(by_environment("0", "utility"))
    assert not wanted.exists()
    device = inventory.MigDevice(0, None, None, "", 1, 0, 30, 31)
    known = survey.survey(node.root)._replace(mig_devices=(device,))
    survey.save(node.root, proc.stamp(node.root, "/"), known)
    node.start(by_environment("1", "utility"))
    assert wanted.exists()


OTHER_REQUEST: dict[str, Any] = {
    "source": "mounts",
    "devices": ("2",),
    "capabilities": ("compute",),
    "requirements": ("cuda>=1",),
    "mig_config": True,
    "mig_monitor": True,
    "imex_channels": ("1",),
    "features": ("gds",),
    "jetpack_all": True,
}
OTHER_LAYOUT: dict[str, Any] = {
    "library_folder": "/opt/lib",
    "library_folder_32": "",
    "compat": ("/usr/local/cuda/compat", ("libcuda.so.9.1",)),
    "loader": "musl",
    "user_namespace": True,
    "dev_is_hosts": True,
}


def test_every_field_of_a_request_and_of_a_layout_is_in_the_question() -> None:
    assert {*OTHER_REQUEST, "vendors"} == set(Request._fields)
    assert set(OTHER_LAYOUT) == set(Layout._fields)


@pytest.mark.parametrize("field", [*OTHER_REQUEST, *OTHER_LAYOUT])
def test_another_question_has_no_answer(node: Node, field: str) -> None:
    """Also where its file would have the same name."""
    request = by_environment("1")
    layout = node.start(request).plan.layout
    known = answers.question(node.root, request, layout, Settings())
    if field in OTHER_REQUEST:
        request = request._replace(**{field: OTHER_REQUEST[field]})
    else:
        layout = layout._replace(**{field: OTHER_LAYOUT[field]})
    other = answers.question(node.root, request, layout, Settings())
    assert known is not None and answers.recall(node.root, known) is not None
    assert other is not None and other.values != known.values
    assert answers.recall(node.root, other._replace(name=known.name)) is None


def test_what_other_vendors_give_is_no_answer_of_nvidias(node: Node) -> None:
    request = by_environment("1")
    layout = node.start(request).plan.layout
    amd = VendorRequest("OCI_AMD", "/v/amd.json", "env", ("all",))
    assert answers.question(node.root, request, layout, Settings()) is not None
    both = request._replace(vendors=(amd,))
    assert answers.question(node.root, both, layout, Settings()) is None


HOST_CHANGES: dict[str, Callable[[Path], object]] = {
    # Of the stamp; test_survey has its other parts.
    "another boot": lambda tree: hosts.plant(tree, "proc/sys/kernel/random/boot_id", "another\n"),
    "another inventory": lambda tree: hosts.saved(HostRoot(str(tree))),
    "majors": lambda tree: hosts.plant(tree, "proc/devices", hosts.DEVICES.replace("505 nvidia-uvm", "506 nvidia-uvm")),
    "a service that started": lambda tree: hosts.plant(tree, "var/run/nvidia-fabricmanager/socket", ""),
    "a service that ended": lambda tree: (tree / "var/run/nvidia-persistenced/socket").unlink(),
    "something in /dev": lambda tree: (tree / "dev/nvidia-uvm").mkdir(parents=True),
    "a DRM node": lambda tree: hosts.plant(tree, "sys/bus/pci/devices/0000:08:00.0/drm/renderD129", ""),
}


@pytest.mark.parametrize("change", HOST_CHANGES)
def test_a_host_that_has_changed_is_looked_at_anew(node: Node, change: str) -> None:
    request = by_environment("1", "all")
    node.start(request)
    HOST_CHANGES[change](node.tree)
    assert node.start(request).anew


def test_modules_of_another_build_know_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.start(by_environment("1"))
    monkeypatch.setattr(build, "DIGEST", "2")
    assert node.start(by_environment("1")).anew


def unlinked(node: Node, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setattr(build, "DIGEST", "")
    return node.start(by_environment("1"))


def of_driver_container(node: Node, monkeypatch: pytest.MonkeyPatch) -> Start:
    (node.tree / "run/nvidia/driver").mkdir(parents=True)
    (node.tree / "usr").rename(node.tree / "run/nvidia/driver/usr")
    return node.start(by_environment("1"), Settings(driver_root="/run/nvidia/driver"))


def of_engine(node: Node, monkeypatch: pytest.MonkeyPatch) -> Start:
    return node.start(Request("cdi", ("/dev/nvidia1",), ("utility",)))


def without_inventory(node: Node, monkeypatch: pytest.MonkeyPatch) -> Start:
    (node.tree / inventory.SAVED[1:]).unlink()
    return node.start(by_environment("1"))


def with_unused_gpu(node: Node, monkeypatch: pytest.MonkeyPatch) -> Start:
    """A GPU's UUID appears when it is first used, and no stamp shows that."""
    hosts.plant_gpu(node.tree, 30, 7)
    file = node.tree / "proc/driver/nvidia/gpus/0000:1e:00.0/information"
    file.write_text(file.read_text().replace(hosts.uuid(7), hosts.NO_UUID))
    hosts.saved(node.root)
    return node.start(by_environment("1"))


def where_others_may_write(node: Node, monkeypatch: pytest.MonkeyPatch) -> Start:
    (node.tree / saved.FOLDER[1:]).chmod(0o777)
    return node.start(by_environment("1"))


@pytest.mark.parametrize(
    "start", [unlinked, of_driver_container, of_engine, without_inventory, with_unused_gpu] + [where_others_may_write]
)
def test_a_start_whose_answer_would_not_stay_true_keeps_none(
    node: Node, monkeypatch: pytest.MonkeyPatch, start: Callable[[Node, pytest.MonkeyPatch], Start]
) -> None:
    made, anew = start(node, monkeypatch)
    assert made.driver_version == hosts.VERSION and anew
    assert node.kept() == []


def test_what_cannot_be_met_is_not_kept(node: Node) -> None:
    hosts.plant(node.tree, "proc/devices", "Character devices:\n195 nvidia\n\nBlock devices:\n")
    with pytest.raises(DriverError, match="nvidia-uvm is not loaded"):
        node.start(by_environment("1"))
    assert node.kept() == []


@pytest.mark.parametrize("tenth", range(11))
def test_an_answer_that_was_cut_off_or_spoilt_is_none(node: Node, tenth: int) -> None:
    request = by_environment("1")
    first = node.start(request).plan
    (name,) = node.kept()
    file = node.tree / saved.FOLDER[1:] / name
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * tenth // 10] if tenth < 10 else b"N")
    assert node.start(request) == (first, True)
    assert node.start(request) == (first, False)


def test_they_are_not_more_than_there_may_be(node: Node) -> None:
    for number in range(drivers.MOST + 5):
        node.start(by_environment("1", "utility", NVIDIA_REQUIRE_CUDA=f"cuda>={number % 9}.{number}"))
        assert len(node.kept()) == number % drivers.MOST + 1


class Narrow:
    """A host's root that has only those methods that a RecordingRoot records."""

    def __init__(self, root: HostRoot) -> None:
        self.stat, self.read, self.names = root.stat, root.read, root.names
        self.source = root.source


def test_nodes_are_found_by_what_is_recorded(node: Node) -> None:
    """Else an answer would outlive what it came from."""
    narrow: Any = Narrow(node.root)
    found = survey.survey(node.root)
    assert inventory.with_nodes(narrow, found, nodes.FAMILIES, ("3",)) == inventory.with_nodes(
        node.root, found, nodes.FAMILIES, ("3",)
    )


def test_an_answer_that_nobody_would_read_is_not_saved_and_deletes_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "MOST", 1)
    node.start(by_environment("0"))
    (kept,) = node.kept()
    size = os.stat(f"{node.tree}{saved.FOLDER}/{kept}").st_size
    monkeypatch.setattr(saved, "LARGEST", size + 8_000)
    # Names of an image's folder of newer CUDA libraries are a part of the question.
    for number in range(100):
        hosts.plant(node.bundle, f"rootfs{COMPAT_FOLDER}/{'x' * 200}{number}", "")
    assert node.start(by_environment("0")).anew
    assert node.start(by_environment("0")).anew
    assert node.kept() == [kept]
