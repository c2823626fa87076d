# SPDX-License-Identifier: Apache-2.0
"""What ``doctor`` says of other vendors, on planted hosts: each fault with the command that fixes it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oci_gpu_hook import cli
from oci_gpu_hook.node.diagnosis import systemcheck
from oci_gpu_hook.node.machine import libselinux
from tests.unit import hosts
from tests.unit.hosts import plant
from tests.unit.program import Program
from tests.unit.test_hardware import ACME, FOLDER, described, plant_card
from tests.unit.test_hardware import tree as tree


def said(capsys: pytest.CaptureFixture[str], tree: Path) -> list[tuple[str, str, str, str]]:
    cli.main(["doctor", "--json", "--host-root", str(tree)])
    found = json.loads(capsys.readouterr().out)["findings"]
    return [
        tuple(item.values())
        for item in found
        if item["check"] in ("driver", "inventory", "vendors") or item["check"].startswith("OCI_")
    ]


def written(**more: Any) -> str:
    """ACME's file, without a node: only root can make one."""
    devices = [{"path": "/dev/acme*", "major": "acme", "pci": "1de5", "each": True, "required": False}]
    return json.dumps({**json.loads(described(devices=devices)), **more})


def test_another_vendors_host_is_whole(tree: Path, program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    plant(tree, ACME, written())
    program("inventory", "refresh", "--host-root", tree)
    assert said(capsys, tree) == [
        ("driver", "pass", "no GPU of NVIDIA's: other vendors' hardware is here", ""),
        ("OCI_ACME", "pass", f"version 2.5, by {ACME}", ""),
    ]


def test_a_gpu_of_nvidias_without_its_driver_is_still_a_fault(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        plant(tree, f"/sys/bus/pci/devices/0000:07:00.0/{name}", f"{text}\n")
    assert ("driver", "fail") in [item[:2] for item in said(capsys, tree)]


def test_files_without_hardware_are_no_fault(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.host(tree)
    plant_card(tree, "0x060400")
    assert said(capsys, tree)[-1] == ("vendors", "pass", "1 file of theirs, and no hardware", "")
    (tree / ACME[1:]).unlink()
    assert said(capsys, tree)[-1] == ("vendors", "pass", "nothing of theirs, and no hardware", "")


# By what is planted: what is said, and the remedy.
PLANTED: dict[str, tuple[Any, tuple[str, str, str, str]]] = {
    "too many": (
        lambda tree: [(tree / f"{FOLDER[1:]}/{number}.json").touch() for number in range(256)],
        ("vendors", "fail", "more than 256", "ls /etc/oci-gpu-hook/vendors"),
    ),
    "kernel": (
        lambda tree: plant(tree, ACME, written(requires={"kernel": "99.0"})),
        ("OCI_ACME", "warn", "kernel 99.0 (this is ", "systemctl reboot"),
    ),
    "library": (
        lambda tree: plant(tree, ACME, described(libraries=[{"path": "/usr/lib64/libgone.so", "required": True}])),
        ("OCI_ACME", "warn", "/usr/lib64/libgone.so is missing", "oci-gpu-hook info"),
    ),
    "node": (
        lambda tree: plant(tree, ACME, described()),
        ("OCI_ACME", "warn", "not here: /dev/acme* of driver acme of PCI 1de5", "journalctl --dmesg --grep=acme"),
    ),
    "untrusted": (
        lambda tree: (tree / "usr/lib64").chmod(0o777),
        ("OCI_ACME", "warn", "/usr/lib64/libacme.so.1 is left out", "oci-gpu-hook info"),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_named(tree: Path, program: Program, capsys: pytest.CaptureFixture[str], name: str) -> None:
    change, (check, level, seen, remedy) = PLANTED[name]
    plant(tree, ACME, written())
    program("inventory", "refresh", "--host-root", tree)
    change(tree)
    found = said(capsys, tree)
    assert any(item[:2] == (check, level) and seen in item[2] and remedy in item[3] for item in found), found


def test_what_a_file_says_of_selinux_is_held_to_the_policy(
    tree: Path, program: Program, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ["system_u:system_r:acme_t:s0"]

    def check(context: str) -> int:
        if context not in known:
            raise OSError(22, "Invalid argument")
        return 0

    def warned() -> list[tuple[str, str]]:
        return [item[2:] for item in said(capsys, tree) if item[:2] == ("OCI_ACME", "warn")]

    monkeypatch.setattr(libselinux, "imported", lambda: SimpleNamespace(security_check_context=check))
    monkeypatch.setattr(systemcheck, "selinux", lambda *_: [])
    plant(tree, ACME, written(selinux={"type": "acme_t", "boolean": "acme_use"}))
    plant(tree, "/sys/fs/selinux/enforce", "1")
    program("inventory", "refresh", "--host-root", tree)
    ((seen, remedy),) = warned()
    assert "boolean acme_use, which the policy lacks" in seen and remedy == "semanage boolean -l"
    plant(tree, "/sys/fs/selinux/booleans/acme_use", "0 0")
    ((seen, remedy),) = warned()
    assert "is off" in seen and remedy == "setsebool -P acme_use on"
    plant(tree, "/sys/fs/selinux/booleans/acme_use", "1 1")
    assert warned() == []
    known.clear()
    ((seen, remedy),) = warned()
    assert "type acme_t, which the policy lacks" in seen and remedy == "semodule -l"
