# SPDX-License-Identifier: Apache-2.0
"""``inventory refresh --nodes``: which nodes a fresh boot lacks, and what is started to have them made."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from oci_gpu_hook.cli import inventory as command
from oci_gpu_hook.driver import proc
from oci_gpu_hook.errors import ApplyError, DriverError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import missingnodes
from oci_gpu_hook.node.machine import childprocess, libselinux
from tests.unit import hosts
from tests.unit.program import Program

# The module's parameters where it says that no program is to make its nodes.
NO_NODES = hosts.PARAMS.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0")


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    hosts.host(tmp_path)
    (tmp_path / "dev").mkdir()
    return tmp_path


def test_mode_and_owner_are_those_of_the_modules_parameters(tree: Path) -> None:
    hosts.plant(tree, proc.PARAMS, hosts.PARAMS.replace("438", "432") + "DeviceFileUID: 0\nDeviceFileGID: 39\n")
    found = missingnodes.missing_nodes(HostRoot(str(tree)))
    assert {(node.mode, node.uid, node.gid) for node in found} == {(0o660, 0, 39)}


def test_what_nobody_may_make_is_not_made(tree: Path) -> None:
    hosts.plant(tree, proc.DEVICES, hosts.DEVICES.replace("505 ", "237 nvidia-caps\n505 "))
    for minor, modify in ((1, 0), (12, 1)):
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: {modify}\n"
        hosts.plant(tree, f"{proc.CAPABILITIES}/gpu0/mig/gi{minor}/access", text)
    hosts.plant(tree, proc.PARAMS, NO_NODES)
    (node,) = missingnodes.missing_nodes(HostRoot(str(tree)))
    assert node[:4] == ("/dev/nvidia-caps/nvidia-cap12", 237, 12, 0o444)


def test_something_else_in_a_nodes_place_is_named_and_stays(tree: Path) -> None:
    hosts.plant(tree, "/dev/nvidia-uvm", "a file")
    with pytest.raises(ApplyError, match="/dev/nvidia-uvm: it is there and is not a character device"):
        missingnodes.missing_nodes(HostRoot(str(tree)))
    assert (tree / "dev/nvidia-uvm").read_text() == "a file"


def test_on_this_host_modules_are_loaded_first(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then their nodes are there to be made; without a driver no module is loaded."""
    hosts.plant(tree, proc.DEVICES, "Character devices:\n195 nvidia\n")
    root, started = HostRoot(str(tree)), list[str]()
    root.path = "/"

    def load(words: list[str], seconds: float) -> NoReturn:
        started.append(" ".join(words))
        hosts.plant(tree, proc.DEVICES, hosts.DEVICES)
        raise OSError("it says that it failed")

    monkeypatch.setattr(childprocess, "program", load)
    monkeypatch.setattr(command, "_make_node", lambda root, node: None)
    monkeypatch.setattr(libselinux, "is_there", lambda root: False)
    made, _ = command._make_nodes(root)
    assert started == ["modprobe -q nvidia-uvm", "modprobe -q nvidia-modeset"]
    assert "/dev/nvidia-uvm" in made["made"]  # type: ignore[operator]
    (tree / proc.VERSION[1:]).unlink()
    with pytest.raises(DriverError):
        command._make_nodes(root)
    assert len(started) == 2


def test_a_node_that_cannot_be_made_is_named_and_where_none_lacks_none_is_made(program: Program, tree: Path) -> None:
    words = ("inventory", "refresh", "--nodes", "--host-root", tree)
    (tree / "dev").rmdir()
    assert "cannot make /dev/nvidiactl: No such file or directory (" in program.mistake(7, *words)
    hosts.plant(tree, proc.PARAMS, NO_NODES)
    assert program.document(*words) == {"made": [], "unloaded": ["nvidia-modeset"]}
