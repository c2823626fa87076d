# SPDX-License-Identifier: Apache-2.0
"""All vendors of a host: what of each is here, what is saved of it, and what `info` and `inventory` say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oci_gpu_hook import cli
from oci_gpu_hook.cli import accelerators, features
from oci_gpu_hook.cli import inventory as cli_inventory
from oci_gpu_hook.driver import nodes
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import systemcheck
from oci_gpu_hook.node.gpus import hardware
from oci_gpu_hook.node.machine import libselinux
from oci_gpu_hook.vendors import vendorinventory
from tests.unit import hosts
from tests.unit.containers import write_bundle
from tests.unit.hosts import plant, plant_library
from tests.unit.program import Program

FOLDER = "/usr/share/oci-gpu-hook/vendors"
ACME = f"{FOLDER}/acme.json"
OTHER = ("acme.com/card", 1, "2.5")
NOTHING = "this host has no NVIDIA driver"
# A GPU of NVIDIA's, beside ACME's card.
NVIDIAS = ("0x030200", "0x10de", 7)


def described(flag: str = "OCI_ACME", **more: Any) -> str:
    group = {
        "devices": [{"path": "/dev/acme*", "major": "acme", "pci": "1de5", "each": True}],
        "libraries": ["/usr/lib64/libacme.so*", "/usr/lib64/libabsent.so*"],
    }
    said = {
        **{"activation_flag": flag, "kind": f"{flag[4:].lower()}.com/card", "version": {"module": "acme"}},
        **{"inventory": {"compute": {**group, **more}}, "driver_feature": ["compute"]},
        "requires": {"modules": ["acme"]},
    }
    return json.dumps(said)


def plant_card(tree: Path, kind: str = "0x120000", vendor: str = "0x1de5", bus: int = 5) -> None:
    for name, text in (("vendor", vendor), ("device", "0x0001"), ("class", kind)):
        plant(tree, f"/sys/bus/pci/devices/0000:{bus:02}:00.0/{name}", f"{text}\n")


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    """A host without NVIDIA's driver, with a card of ACME's, its library and its file."""
    tmp_path.chmod(0o755)
    (tmp_path / "dev").mkdir()
    plant(tmp_path, ACME, described())
    plant(tmp_path, "/proc/devices", "Character devices:\n240 acme\n")
    plant(tmp_path, "/sys/module/acme/version", "2.5\n")
    plant_library(tmp_path, "/usr/lib64/libacme.so.1", "libacme.so.1")
    plant_card(tmp_path)
    (tmp_path / statefile.FOLDER[1:]).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "vendor", "pci", "is_here"),
    [
        # Also one that no driver serves; but no bridge, and no other's card.
        ("0x120000", "0x1de5", "1de5", True),
        ("0x030000", "0x1de5", "1de5", True),
        ("0x060400", "0x1de5", "1de5", False),
        ("0x120000", "0x8086", "1de5", False),
        # One that is named counts whatever its class.
        ("0x060400", "0x1de5", "1de5:0001", True),
    ],
)
def test_which_cards_are_hardware(tree: Path, kind: str, vendor: str, pci: str, is_here: bool) -> None:
    plant_card(tree, kind, vendor)
    plant(tree, ACME, described(devices=[{"path": "/dev/acme*", "major": "acme", "pci": pci}]))
    root = HostRoot(str(tree))
    (found,) = hardware.find_vendors(root).vendors
    assert hardware.proof(root, found) == ("PCI 0000:05:00.0" if is_here else "")


@pytest.mark.parametrize(("unmatched", "shows"), [((), "/dev/cm"), (("/dev/verbs*",), "")])
def test_a_node_that_may_be_missing_is_hardware_beside_another_only(
    tree: Path, unmatched: tuple[str, ...], shows: str
) -> None:
    """The kernel makes /dev/infiniband/rdma_cm where there is no adapter."""
    patterns = [{"path": "/dev/verbs*", "major": "verbs"}, {"path": "/dev/cm", "major": "cm", "required": False}]
    plant(tree, ACME, described(devices=patterns))
    root = HostRoot(str(tree))
    (found,) = hardware.find_vendors(root).vendors
    node = nodes.DeviceNode("/dev/cm", 10, 258, 0o666, 0, 0, True)
    assert hardware.proof(root, found._replace(common=((node, "compute"),), unmatched=unmatched)) == shows


def test_one_wrong_file_hides_no_other(tree: Path) -> None:
    plant(tree, f"{FOLDER}/broken.json", '{"activation_flag": 1}')
    plant(tree, f"{FOLDER}/one.json", described("OCI_SAME"))
    plant(tree, f"{FOLDER}/two.json", described("OCI_SAME"))
    plant(tree, f"{FOLDER}/open.json", described("OCI_OPEN"))
    (tree / FOLDER[1:] / "open.json").chmod(0o666)
    found = hardware.find_vendors(HostRoot(str(tree)))
    assert [item.inventory.flag for item in found.vendors] == ["OCI_ACME"]
    assert [(item.file.rpartition("/")[2], item.is_open) for item in found.wrong] == [
        *[("broken.json", False), ("open.json", True)],
        *[("one.json", False), ("two.json", False)],
    ]
    assert "one.json and of" in found.wrong[2].fault


def test_too_many_files_are_one_fault(tree: Path) -> None:
    for number in range(257):
        plant(tree, f"{FOLDER}/{number}.json", described(f"OCI_{number}"))
    root = HostRoot(str(tree))
    assert ["more than 256" in item.fault for item in hardware.find_vendors(root).wrong] == [True]
    hardware.refresh(root)
    assert hardware.is_saved(root)


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: plant_library(tree, "/usr/lib64/libacme.so.2", "libacme.so.2"),
        lambda tree: plant(tree, ACME, described("OCI_OTHER")),
        lambda tree: plant(tree, f"{FOLDER}/new.json", described("OCI_NEW")),
        lambda tree: (tree / statefile.FOLDER[1:] / f"{vendorinventory.PREFIX}OCI_ACME").unlink(),
        lambda tree: plant(tree, "/sys/module/acme/version", "3"),
    ],
)
def test_what_is_saved_is_true_until_something_changes(tree: Path, change: Any) -> None:
    root = HostRoot(str(tree))
    assert not hardware.is_saved(root)
    hardware.refresh(root)
    assert hardware.is_saved(root)
    change(tree)
    assert not hardware.is_saved(root)
    hardware.refresh(root)
    assert hardware.is_saved(root)


# --- info


def test_info_shows_vendors_where_there_is_no_driver_of_nvidias(tree: Path, program: Program) -> None:
    text = program("info", "--host-root", tree)
    assert text.startswith(f"no driver of NVIDIA's: {NOTHING}")
    assert f"OCI_ACME (acme.com/card), version 2.5, by {ACME}" in text
    assert "required: /dev/acme* of driver acme of PCI 1de5 is missing" in text
    assert "may be missing, and is: /usr/lib64/libabsent.so*" in text
    document = program.document("info", "--host-root", tree)
    assert (document["gpus"], document["driver_version"]) == ([], "")
    assert document["platform"] == {"kind": "", "proof": ""}
    (row,) = document["vendors"]
    assert (row["flag"], row["version"], row["hardware"]) == ("OCI_ACME", "2.5", "PCI 0000:05:00.0")
    assert [item["path"] for item in row["libraries"]] == ["/usr/lib64/libacme.so.1"]
    assert row["lacking"] == ["/dev/acme* of driver acme of PCI 1de5 is missing"]
    assert document["wrong"] == []
    plant(tree, f"{FOLDER}/broken.json", '{"activation_flag": 1}')
    text = program("info", "--host-root", tree)
    assert f"vendors' files that cannot be served\n  {FOLDER}/broken.json: " in text
    (wrong,) = program.document("info", "--host-root", tree)["wrong"]
    assert wrong["file"] == f"{FOLDER}/broken.json"


def test_info_shows_them_beside_nvidias_driver(tree: Path, program: Program) -> None:
    hosts.host(tree)
    document = program.document("info", "--host-root", tree)
    assert (len(document["gpus"]), len(document["vendors"])) == (2, 1)
    text = program("info", "--host-root", tree)
    assert text.startswith(f"driver {hosts.VERSION}") and "OCI_ACME" in text
    # Files without hardware are one line, and of one that fits nothing there is none.
    plant_card(tree, "0x060400")
    text = program("info", "--all", "--host-root", tree)
    assert text.endswith("files of vendors without hardware here\n  OCI_ACME 2.5: 1 library\n")
    (tree / "usr/lib64/libacme.so.1").unlink()
    assert "OCI_ACME" not in program("info", "--host-root", tree)


def test_a_host_with_nothing_at_all_says_so(tree: Path, program: Program) -> None:
    plant_card(tree, "0x060400")
    assert NOTHING in program.mistake(6, "info", "--host-root", tree)
    assert NOTHING in program.mistake(6, "inventory", "refresh", "--host-root", tree)


# --- plan


def test_plan_says_what_the_host_lacks_of_a_vendors(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, program: Program
) -> None:
    bundle = write_bundle(tmp_path_factory.mktemp("c"), "OCI_ACME=none")
    plant(bundle, "rootfs/etc/debian_version", "12\n")
    found = program.document("plan", "--bundle", bundle, "--host-root", tree)
    assert [item["flag"] for item in found["request"]["vendors"]] == ["OCI_ACME"]
    assert found["left_out"] == ["OCI_ACME: this host has no /usr/lib64/libabsent.so*"]
    assert not hardware.is_saved(HostRoot(str(tree)))


# --- info --vendors


def test_list_shows_what_of_each_vendor_is_here_and_counts_devices(tree: Path, program: Program) -> None:
    words = ("info", "--vendors", "--host-root", tree)
    (row,) = program.document(*words)["vendors"]
    assert row["here"] == {"hardware": "PCI 0000:05:00.0", "version": "2.5", "devices": []}
    heading, line = program(*words).splitlines()
    assert heading.split() == ["FLAG", "KIND", "DEVICES", "VERSION", "GROUPS", "FILE"]
    assert line.split() == ["OCI_ACME", "acme.com/card", "none", "2.5", "compute", ACME]
    plant_card(tree, "0x060400")
    assert program(*words).splitlines()[1].split()[2] == "-"
    plant(tree, ACME, described(devices=[{"path": "/dev/acme*", "major": "acme", "each": True}]))
    for number in range(2):
        os.mknod(tree / f"dev/acme{number}", 0o20666, os.makedev(240, number))
    (row,) = program.document(*words)["vendors"]
    assert row["here"]["devices"] == [["0", "acme0"], ["1", "acme1"]]
    assert program(*words).splitlines()[1].split()[2] == "2"
    plant(tree, ACME, described(devices=[{"path": "/dev/acme0", "major": "acme"}]))
    assert program(*words).splitlines()[1].split()[2] == "all"


# --- inventory refresh, inventory watch


def test_show_has_what_refresh_has_saved_and_nothing_else(tree: Path, program: Program) -> None:
    words = ("info", "--saved", "--host-root", tree)
    assert "no saved inventory" in program.mistake(6, *words)
    said = program("inventory", "refresh", "--host-root", tree)
    assert said == f"saved {statefile.FOLDER}/{vendorinventory.PREFIX}OCI_ACME: OCI_ACME 2.5: 1 library\n"
    assert f"version 2.5, by {ACME}" in program(*words)
    document = program.document("inventory", "refresh", "--host-root", tree)
    assert (document["saved"], document["vendors"][0]["flag"]) == ("", "OCI_ACME")
    plant_library(tree, "/usr/lib64/libacme.so.2", "libacme.so.2")
    assert "no saved inventory" in program.mistake(6, *words)


def test_refresh_saves_them_beside_nvidias_and_tells_a_wrong_file(tree: Path, program: Program) -> None:
    hosts.host(tree)
    plant(tree, f"{FOLDER}/broken.json", "{")
    refresh = ["inventory", "refresh", "--nvml-timeout", 0, "--host-root", tree]
    lines = program(*refresh).splitlines()
    assert "2 GPUs" in lines[0]
    assert lines[-4].endswith("OCI_ACME 2.5: 1 library")
    assert f"{FOLDER}/broken.json: " in lines[-1]


def test_refresh_fails_where_a_gpu_of_nvidias_has_no_driver_or_half_of_one(tree: Path, program: Program) -> None:
    """A host with both, in the middle of an upgrade: the other vendor's inventory is saved all the same."""
    plant_card(tree, *NVIDIAS)
    assert "OCI_ACME" in program("inventory", "refresh", "--host-root", tree, code=6)
    assert NOTHING in program.err
    assert hardware.is_saved(HostRoot(str(tree)))
    assert "OCI_ACME" in program("info", "--host-root", tree)
    plant(tree, "/proc/driver/nvidia/version", "nonsense\n")
    assert "OCI_ACME" in program("inventory", "refresh", "--nvml-timeout", 0, "--host-root", tree, code=6)


def test_watch_keeps_the_features_of_vendors_without_nvidias_driver(
    tree: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tree / "etc/f"
    plant(tree, "hook.conf", "features = /etc/f\n")
    plant(tree, "etc/f", "of before\n")
    counts: list[bool | str] = []
    found: list[features.Others] = [(), (OTHER,), (OTHER,), ()]

    def moments(interval: float) -> Any:
        for step in found:
            monkeypatch.setattr(features, "others", lambda root, step=step: step)
            yield ""
            counts.append(file.exists() and file.read_text())

    monkeypatch.setattr(cli_inventory, "_moments", moments)
    said = program("inventory", "watch", "--host-root", tree, "--config", tree / "hook.conf")
    nothing, one, same, gone = counts
    assert (nothing, gone) == (False, False)
    assert one == same and "acme.com/oci-gpu-hook.card.count=1\n" in str(one)
    # It is written where it changes, and not at each moment.
    assert said.count(f"wrote {file}") == 1


def test_watch_saves_vendors_anew_once_something_changes(
    tree: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moments(interval: float) -> Any:
        yield ""
        yield "add lo"
        plant_library(tree, "/usr/lib64/libacme.so.2", "libacme.so.2")
        yield "add acme"
        plant(tree, ACME, "{")
        yield ""

    monkeypatch.setattr(cli_inventory, "_moments", moments)
    said = program("inventory", "watch", "--nvml-timeout", 0, "--host-root", tree)
    lines = (said + program.err).splitlines()
    path = f"{statefile.FOLDER}/{vendorinventory.PREFIX}OCI_ACME"
    assert lines[0] == f"saved {path}: OCI_ACME 2.5: 1 library"
    assert lines[1] == f"saved {path}: OCI_ACME 2.5: 2 libraries"
    assert lines[2] == "vendors' files that cannot be served"
    assert lines[3].startswith(f"  {ACME}: ")
    assert lines[4].startswith(f"waiting for the driver: {NOTHING}")


def test_watch_writes_the_spec_where_something_changes(
    tree: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's driver, or what a Jetson has in its place; and not at each moment."""
    hosts.host(tree)
    find, jetsons = accelerators.find_accelerators, {"driver_version": "36.4"}
    found: list[Any] = [None, None, (jetsons, [], []), (jetsons, [], [])]
    monkeypatch.setattr(accelerators, "find_accelerators", lambda *it: find(*it)._replace(instead=found.pop(0)))
    monkeypatch.setattr(cli_inventory, "_moments", lambda _: [*found])
    monkeypatch.setattr(hardware, "is_saved", lambda _: False)
    words = ("inventory", "watch", "--nvml-timeout", 0, "--host-root", tree, "--cdi-spec")
    assert program(*words, tree / "spec.json").count(f"wrote {tree}/spec.json") == 2


# --- what `doctor` says of them: each fault with the command that fixes it


def said(capsys: pytest.CaptureFixture[str], tree: Path, *words: str) -> list[tuple[str, str, str, str]]:
    cli.main(["doctor", "--json", "--host-root", str(tree), *words])
    found = json.loads(capsys.readouterr().out)["findings"]
    checks = ("driver", "inventory", "vendors", "OCI_", "GPU memory")
    return [tuple(item.values()) for item in found if item["check"].startswith(checks)]


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
    plant_card(tree, *NVIDIAS)
    assert ("driver", "fail") in [item[:2] for item in said(capsys, tree)]


def test_files_without_hardware_are_no_fault(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.host(tree)
    plant_card(tree, "0x060400")
    assert said(capsys, tree)[-1] == ("vendors", "pass", "1 file of theirs, and no hardware", "")
    (tree / ACME[1:]).unlink()
    assert said(capsys, tree)[-1] == ("vendors", "pass", "nothing of theirs, and no hardware", "")


def test_memory_is_to_be_limited_of_each_device(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(tree, "hook.conf", "gpu-memory = 4G\n")
    plant(tree, ACME, described(devices=[{"path": "/dev/acme*", "major": "acme", "each": True}]))
    os.mknod(tree / "dev/acme0", 0o20666, os.makedev(240, 0))
    for name in ("OCI_ACME device 0", "GPU 0"):
        *_, last = [item for item in said(capsys, tree, "--config", f"{tree}/hook.conf") if item[0] == "GPU memory"]
        assert last[1] == "fail" and last[2].startswith(f"the memory of {name} cannot be limited: ")
        hosts.host(tree)


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
