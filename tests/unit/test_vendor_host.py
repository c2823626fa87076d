# SPDX-License-Identifier: Apache-2.0
"""What of a vendor's file is on a host: files by patterns, versions, devices; and that a saved answer stays true."""

from __future__ import annotations

import json
import os
import posix
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from oci_gpu_hook.driver import elf
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.planning import placement
from oci_gpu_hook.request.selectors import AnyOf, Request
from oci_gpu_hook.request.sources import Inputs
from oci_gpu_hook.vendors import folders, vendorhost, vendorinventory, vendorsurvey
from oci_gpu_hook.vendors.vendorinventory import DevicePattern, Group, Item, Vendor
from tests.unit.asking import annotated
from tests.unit.hosts import MACHINES, elf_file, link, plant, plant_cache, plant_library

FILE = "/usr/share/oci-gpu-hook/vendors/acme.json"


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    plant(tmp_path, FILE, "{}")
    plant(tmp_path, "/proc/devices", "Character devices:\n240 acme\n")
    (tmp_path / statefile.FOLDER[1:]).mkdir(parents=True)
    return tmp_path


def vendor(*libraries: str, files: tuple[str, ...] = (), **more: object) -> Vendor:
    group = Group("compute", libraries=tuple(map(Item, libraries)), files=tuple(map(Item, files)))
    return Vendor(FILE, "OCI_ACME", (group,))._replace(**more)  # type: ignore[arg-type]


def found(tree: Path, said: Vendor) -> Vendor:
    return vendorsurvey.Survey(HostRoot(str(tree)), said, {}).found


def test_a_library_is_taken_once_by_its_file_with_all_its_names(tree: Path) -> None:
    plant_library(tree, "/usr/lib64/libacme.so.1.2.3", "libacme.so.1")
    (tree / "usr/lib64/libacme.so.1").symlink_to("libacme.so.1.2.3")
    (tree / "usr/lib64/libacme.so").symlink_to("libacme.so.1")
    (library,) = found(tree, vendor("/usr/lib64/libacme.so*")).libraries
    assert library.path == "/usr/lib64/libacme.so.1.2.3"
    assert sorted(library.names) == ["libacme.so", "libacme.so.1", "libacme.so.1.2.3"]
    assert library.names[0] == "libacme.so.1.2.3"


def test_what_is_no_library_is_a_file_and_one_of_another_machine_is_nothing(tree: Path) -> None:
    plant(tree, "/usr/lib64/libacme.a", "!<arch>")
    other = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
    plant_library(tree, "/usr/lib64/libacme.so.1", "libacme.so.1", other)
    seen = found(tree, vendor("/usr/lib64/libacme*"))
    assert (seen.libraries, [file.path for file in seen.files]) == ((), ["/usr/lib64/libacme.a"])


@pytest.mark.parametrize("kind", ["text", "module", "file"])
def test_a_version_stands_for_itself_in_paths(tree: Path, kind: str) -> None:
    plant(tree, "/sys/module/acme/version", "2.5\n")
    plant(tree, "/opt/acme/version", "2.5 beta\n")
    plant(tree, "/opt/acme-2.5/acme.cfg", "")
    plant(tree, "/opt/acme-2.4/acme.cfg", "")
    said = {"text": "2.5", "module": "acme", "file": "/opt/acme/version"}[kind]
    seen = found(tree, vendor(files=("/opt/acme-{version}/*.cfg",), source=(kind, said)))
    assert (seen.version, [file.path for file in seen.files]) == ("2.5", ["/opt/acme-2.5/acme.cfg"])


def test_a_version_that_is_none_leads_nowhere(tree: Path) -> None:
    plant(tree, "/opt/version", "../..")
    said = vendor(files=("/opt/acme-{version}",), source=("file", "/opt/version"))
    seen = found(tree, said)
    assert (seen.version, seen.files, seen.absent) == ("", (), ("/opt/acme-{version}",))


def test_what_lies_in_a_mounted_folder_is_not_mounted_again(tree: Path) -> None:
    plant(tree, "/opt/acme/bin/tool", "")
    plant_library(tree, "/opt/acme/lib/libacme.so.1", "libacme.so.1")
    item = Item("/opt/acme/lib/*.so*", "/opt/acme/lib")
    group = Group("compute", libraries=(item,), files=(Item("/opt/acme"), Item("/opt/acme/bin/tool")))
    seen = found(tree, Vendor(FILE, "OCI_ACME", (group,)))
    assert [file.target for file in seen.files] == ["/opt/acme"]
    assert seen.libraries == ()
    assert [library.folder for library in seen.cached] == ["/opt/acme/lib"]


LEFT_OUT: dict[str, tuple[Callable[[Path], object], str]] = {
    "in anybody's folder": (lambda tree: (tree / "opt/acme").chmod(0o777), "others"),
    "of anybody's": (lambda tree: (tree / "opt/acme/a.cfg").chmod(0o666), "others"),
    "closed": (lambda tree: (tree / "opt/acme/a.cfg").chmod(0o640), "not everybody may read it"),
    "a link to a user's": (lambda tree: linked(tree, "/srv/key"), "outside of"),
    "a link to root's alone": (lambda tree: linked(tree, "/etc/shadow"), "for the host's root alone"),
}


def linked(tree: Path, place: str) -> None:
    plant(tree, place, "")
    (tree / "opt/acme/a.cfg").unlink()
    (tree / "opt/acme/a.cfg").symlink_to(place)


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_may_not_be_given_is_left_out_and_told(tree: Path, kind: str) -> None:
    plant(tree, "/opt/acme/a.cfg", "")
    said = vendor(files=("/opt/acme/a.cfg",))
    assert len(found(tree, said).files) == 1
    change, why = LEFT_OUT[kind]
    change(tree)
    seen = found(tree, said)
    assert seen.files == ()
    assert "/opt/acme/a.cfg is left out" in seen.faults[0] and why in seen.faults[0]


@pytest.mark.parametrize(
    ("place", "fault"),
    [("/run/acme.sock", ""), ("/run/docker.sock", "for the host's root alone"), ("/var/x.sock", "outside of")]
    + [("", "not a socket")],
)
def test_a_socket_is_what_its_path_leads_to(tree: Path, place: str, fault: str) -> None:
    if place:
        (tree / place[1:]).parent.mkdir(exist_ok=True)
        os.mknod(tree / place[1:], stat.S_IFSOCK | 0o666)
        (tree / "run/x.sock").symlink_to(place)
    else:
        plant(tree, "/run/x.sock", "")
    said = Vendor(FILE, "OCI_ACME", sockets=(("/run/x.sock", "g"), ("/run/none.sock", "g")))
    seen = vendorhost.vendor_state(HostRoot(str(tree)), said)
    assert seen.sockets == (() if fault else (("/run/x.sock", "g"),))
    assert [fault in said for said in seen.faults] == [True] * bool(fault)


def test_a_link_on_the_way_that_is_led_elsewhere_is_noticed(tree: Path) -> None:
    """As those of alternatives, which lie in a folder of their own."""
    for number in (1, 2):
        plant_library(tree, f"/opt/v/libx.so.{number}", f"libx.so.{number}")
    link(tree, "/etc/alternatives/libx", "/opt/v/libx.so.1")
    link(tree, "/usr/lib64/libx.so", "/etc/alternatives/libx")
    said = vendor("/usr/lib64/libx.so")
    seen = again(tree, said)
    assert seen is not None and seen.libraries[0].file == "libx.so.1"
    (tree / "etc/alternatives/libx").unlink()
    (tree / "etc/alternatives/libx").symlink_to("/opt/v/libx.so.2")
    assert vendorinventory.read_saved(HostRoot(str(tree)), "OCI_ACME", FILE) is None


def test_what_a_mounted_folder_does_not_hold_is_mounted_over_it(tree: Path) -> None:
    plant(tree, "/opt/big/y", "")
    plant(tree, "/usr/share/y.conf", "")
    plant_library(tree, "/opt/v/libx.so.1", "libx.so.1")
    missing = (Item("/opt/a", required=True), Item("/opt/b"))
    group = Group(
        "g",
        libraries=(Item("/opt/v/libx.so.1", "/opt/big/lib", required=True),),
        files=(Item("/opt/big"), Item("/usr/share/y.conf", "/opt/big", required=True), *missing),
    )
    seen = found(tree, Vendor(FILE, "OCI_ACME", (group,)))
    assert [file.target for file in seen.files] == ["/opt/big", "/opt/big/y.conf"]
    assert (len(seen.libraries), seen.cached) == (1, ())
    # What is required and missing is told apart.
    assert (seen.lacking, seen.absent) == (("/opt/a is missing",), ("/opt/b",))


def test_names_that_no_cache_can_hold_are_left_out(tree: Path) -> None:
    plant_library(tree, "/usr/lib64/libx.so.1", "libx.so.1")
    os.symlink("libx.so.1", os.fsencode(tree) + b"/usr/lib64/libo\xff.so.1")
    seen = found(tree, vendor("/usr/lib64/lib*.so.*"))
    assert [library.names for library in seen.libraries] == [("libx.so.1",)]
    assert "cannot be printed" in seen.faults[0] and seen.faults[0].isprintable()


def plant_needing(tree: Path, path: str, *needed: str) -> None:
    """A library without a SONAME that needs others."""
    strings, tags = b"\0", [(5, 0x11000)]
    for name in needed:
        tags.append((1, len(strings)))
        strings += name.encode() + b"\0"
    plant(tree, path, elf_file(strings, MACHINES[os.uname().machine], tags=tuple(tags)))


def test_what_libraries_and_programs_need_of_the_host_is_found_and_what_that_needs(tree: Path) -> None:
    plant_needing(tree, "/opt/acme/lib/libacme.so.1", "libllvm.so.1", "libc.so.6", "libown.so", "libacme2.so.1")
    plant_needing(tree, "/opt/acme/lib/libacme2.so.1", "libacme.so.1")
    plant_needing(tree, "/opt/acme/lib/libown.so")
    plant_needing(tree, "/usr/bin/acme-smi", "libedit.so.2", "libstdc++.so.6")
    plant_needing(tree, "/usr/lib/llvm/libllvm.so.1", "libedit.so.2", "libgone.so.1")
    plant_needing(tree, "/usr/lib64/libedit.so.2", "libllvm.so.1")
    # For some processors alone.
    variant = "/usr/lib64/glibc-hwcaps/v3/libedit.so.2"
    plant_needing(tree, variant)
    plant_cache(tree, "/usr/lib/llvm/libllvm.so.1", variant, "/usr/lib64/libedit.so.2", "/usr/lib64/libstdc++.so.6")
    said = vendor("/opt/acme/lib/libacme*", files=("/usr/bin/acme-smi",))
    seen = again(tree, said)
    assert seen is not None
    # A vendor's own library lies beside its others, and no cache has it.
    needed = {"/usr/lib/llvm/libllvm.so.1", "/usr/lib64/libedit.so.2", "/opt/acme/lib/libown.so"}
    assert {it.path for it in seen.needed} == needed
    assert [it.file for it in seen.libraries] == ["libacme.so.1", "libacme2.so.1"]
    assert seen.faults == ("the host's /usr/lib/llvm/libllvm.so.1 needs libgone.so.1, which the host does not have",)
    plant_cache(tree, "/usr/lib64/libedit.so.2")
    assert vendorinventory.read_saved(HostRoot(str(tree)), "OCI_ACME", FILE) is None
    # A Jetson's lists are whole.
    assert found(tree, said._replace(flag="NVIDIA_VISIBLE_DEVICES")).needed == ()


def test_what_is_needed_and_others_could_have_made_is_left_out(tree: Path) -> None:
    plant_needing(tree, "/opt/acme/libacme.so.1", "libx.so.1")
    plant_needing(tree, "/srv/lib/libx.so.1")
    plant_cache(tree, "/srv/lib/libx.so.1")
    seen = found(tree, vendor("/opt/acme/libacme.so.1"))
    assert seen.needed == () and "/srv/lib/libx.so.1 is left out" in seen.faults[0]


def test_a_users_library_is_not_opened_and_hides_none_of_roots(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_needing(tree, "/opt/acme/libacme.so.1", "libx.so.1", "libhome.so.1")
    theirs = ("/opt/user/libx.so.1", f"/{'home'}/user/libx.so.1", "/srv/lib/libhome.so.1")
    for path in (*theirs, "/usr/lib64/libx.so.1", "/usr/lib64/libhome.so.1"):
        plant_needing(tree, path)
    os.chown(tree / "opt/user", 1000, 1000)
    # It may lead to any device.
    (tree / "opt/user/libx.so.1").unlink()
    (tree / "opt/user/libx.so.1").symlink_to("/dev/watchdog")
    plant(tree, "/dev/watchdog", "")
    plant_cache(tree, *theirs, "/usr/lib64/libx.so.1", "/usr/lib64/libhome.so.1")
    identity_of = mock.Mock(wraps=elf.identity_of)
    monkeypatch.setattr(elf, "identity_of", identity_of)
    seen = found(tree, vendor("/opt/acme/libacme.so.1"))
    assert {it.path for it in seen.needed} == {"/usr/lib64/libx.so.1", "/usr/lib64/libhome.so.1"}
    opened = {path for (_, path), _ in identity_of.call_args_list}
    assert seen.faults == () and opened and not {*theirs} & opened


def test_what_needs_very_many_ends_with_a_sentence(tree: Path) -> None:
    names = [f"lib{number}.so" for number in range(400)]
    for name, following in zip(names, names[1:]):
        plant_needing(tree, f"/opt/acme/{name}", following)
    seen = found(tree, vendor(f"/opt/acme/{names[0]}"))
    assert len(seen.needed) == 256
    assert seen.faults == (f"{FILE}: more than 256 libraries of the host's are needed, and the rest is left out",)


def again(tree: Path, said: Vendor) -> Vendor | None:
    root = HostRoot(str(tree))
    survey = vendorsurvey.Survey(root, said, {FILE: vendorinventory.identity(root, FILE)})
    survey.save("OCI_ACME")
    assert vendorinventory.read_saved(root, "OCI_ACME", FILE) == survey.found
    return vendorinventory.read_saved(root, "OCI_ACME", FILE)


def test_a_saved_inventory_is_the_one_that_was_found(tree: Path) -> None:
    plant_library(tree, "/usr/lib64/libacme.so.1", "libacme.so.1")
    plant(tree, "/opt/acme/bin/tool", "")
    pattern = DevicePattern("/dev/acme*", pci=("1002",), udev=(("A", "b"),), each=True)
    said = vendor("/usr/lib64/libacme.so*", files=("/opt/acme",), kernel="5.14", modules=("acme",))
    said = said._replace(groups=(said.groups[0]._replace(devices=(pattern,)),))
    assert again(tree, said) is not None
    # Of another file it is none.
    assert vendorinventory.read_saved(HostRoot(str(tree)), "OCI_ACME", "/etc/other.json") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: plant_library(tree, "/usr/lib64/libacme.so.2", "libacme.so.2"),
        lambda tree: (tree / "usr/lib64/libacme.so.1").unlink(),
        lambda tree: (tree / "opt/acme").rmdir(),
        lambda tree: (tree / "opt/late").mkdir(),
        lambda tree: plant(tree, "/usr/share/acme-2/x.cfg", ""),
        lambda tree: (tree / "usr/lib64").chmod(0o777),
        lambda tree: (tree / "usr").chmod(0o777),
        lambda tree: (tree / "usr/lib64/libacme.so.1").chmod(0o666),
        lambda tree: (tree / "opt/acme").chmod(0o777),
        lambda tree: plant(tree, "/sys/module/acme/version", "3"),
        lambda tree: plant(tree, FILE, "{} "),
    ],
)
def test_whatever_would_be_found_otherwise_makes_it_untrue(tree: Path, change: object) -> None:
    plant_library(tree, "/usr/lib64/libacme.so.1", "libacme.so.1")
    plant(tree, "/sys/module/acme/version", "2")
    (tree / "opt/acme").mkdir(parents=True)
    said = vendor("/usr/lib64/libacme.so*", files=("/opt/acme", "/opt/late/x.cfg", "/usr/share/acme-*/x.cfg"))
    said = said._replace(source=("module", "acme"))
    assert again(tree, said) is not None
    change(tree)  # type: ignore[operator]
    assert vendorinventory.read_saved(HostRoot(str(tree)), "OCI_ACME", FILE) is None


# Devices.  Real nodes, of numbers that no driver here has.


def node(tree: Path, path: str, major: int, minor: int, device: str = "", **files: str) -> None:
    place = tree / path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(place, stat.S_IFCHR | 0o660, os.makedev(major, minor))
    if device:
        for name, text in files.items():
            plant(tree, f"/sys/devices/{device}/{name}", f"{text}\n")
        link(tree, f"/sys/dev/char/{major}:{minor}", f"../../devices/{device}")


def pci(tree: Path, address: str, vendor: str, device: str) -> None:
    plant(tree, f"/sys/bus/pci/devices/{address}/vendor", f"0x{vendor}\n")
    plant(tree, f"/sys/bus/pci/devices/{address}/device", f"0x{device}\n")


def look(tree: Path, *patterns: DevicePattern) -> vendorhost.VendorState:
    rows = tuple([pattern._replace(group="compute") for pattern in patterns])
    return vendorhost.vendor_state(HostRoot(str(tree)), Vendor(FILE, "OCI_ACME", patterns=rows))


def test_devices_without_an_address_go_by_their_number(tree: Path) -> None:
    for number in (0, 2, 10):
        node(tree, f"/dev/acme{number}", 240, number)
        node(tree, f"/dev/acme_control{number}", 240, 100 + number)
    seen = look(tree, DevicePattern("/dev/acme*", major="acme", each=True))
    assert [device.names for device in seen.devices][2] == ("2", "acme10", "acme_control10")
    assert {node.mode for node in seen.nodes()} == {0o640}
    assert look(tree, DevicePattern("/dev/acme*", major="other", each=True)).devices == ()
    # Without a number, and in other folders, each node is a device of its own.
    paths = ("/dev/x/c0/ctl", "/dev/x/c0/q1", "/dev/x/c1/ctl", "/dev/x/c1/q1")
    for minor, path in enumerate(paths):
        node(tree, path, 240, 200 + minor)
    apart = look(tree, DevicePattern("/dev/x/*/*", each=True)).devices
    assert sorted([[item.path for item, _ in device.nodes] for device in apart]) == [[path] for path in paths]


def test_devices_of_one_function_are_told_apart_by_what_sysfs_calls_them(tree: Path) -> None:
    """As a subfunction of an adapter's, which has an adapter of its own."""
    place = "pci0000:00/0000:01:00.0"
    below = {"0": f"{place}/infiniband_verbs", "1": f"{place}/mlx5_core.sf.4/infiniband_verbs"}
    for number, folder in below.items():
        path = f"/dev/infiniband/uverbs{number}"
        node(tree, path, 231, 192 + int(number), f"{folder}/uverbs{number}", ibdev=f"mlx5_{number}")
    seen = look(tree, DevicePattern("/dev/infiniband/uverbs*", each=True, name="ibdev"))
    assert [device.names[2] for device in seen.devices] == ["mlx5_0", "mlx5_1"]
    assert [len(device.nodes) for device in seen.devices] == [1, 1]


def test_a_processor_among_the_gpus_of_the_topology_has_no_node(tree: Path) -> None:
    node(tree, "/dev/dri/card0", 226, 0, "platform/display.0/drm/card0")
    pci(tree, "0000:00:00.0", "1002", "74a1")
    text = f"domain 0\nlocation_id 0\ndrm_render_minor 0\nunique_id {1 << 64}\nodd\nx y\n"
    plant(tree, "/sys/devices/virtual/kfd/kfd/topology/nodes/0/properties", text)
    seen = look(tree, DevicePattern("/dev/dri/*", pci=("1002",), each=True))
    assert (seen.devices, seen.unclaimed) == ((), ("/dev/dri/card0",))


def test_any_device_is_one_that_has_an_index(tree: Path) -> None:
    """Or a request for a GPU could be given a neural processor.  Its lease has its first node, as an index moves."""
    for path, minor in (("drm/1/acme", 1), ("accel/2/acme", 2), ("drm/control", 1)):
        node(tree, f"/dev/{path}", 240, len(path), f"pci0000:00/0000:0{minor}:00.0/{path[:3]}/acme{minor}")
    devices = [{"path": path, "major": "acme", "each": True} for path in ("drm/*/*", "accel/*/*", "drm/control")]
    plant(tree, FILE, json.dumps({"activation_flag": "OCI_ACME", "inventory": {"a": {"devices": devices}}}))
    found = placement._of_vendor(HostRoot(str(tree)), Request("env", (), any_of=AnyOf(1), flag="OCI_ACME", file=FILE))
    assert [it.held for it in found] == [("OCI_ACME=/dev/drm/1/acme", "0", "00000000:01:00.0")]


def test_a_node_that_no_pattern_means_is_told_unless_another_pci_vendor_has_it(tree: Path) -> None:
    node(tree, "/dev/dri/renderD128", 226, 128, "pci0000:00/0000:02:00.0/drm/renderD128")
    pci(tree, "0000:02:00.0", "8086", "56c0")
    for number, major in enumerate((240, 241, 241)):
        node(tree, f"/dev/acme{number}", major, number)
    gpus, others = DevicePattern("/dev/dri/*", pci=("1002",)), DevicePattern("/dev/acme*", major="acme")
    assert look(tree, gpus, others).unclaimed == ("/dev/acme1", "/dev/acme2")
    assert look(tree, gpus, others, DevicePattern("/dev/acme2")).unclaimed == ("/dev/acme1",)


def test_a_driver_alone_says_which_nodes_and_udev_what_a_device_is(tree: Path) -> None:
    for minor, kind in ((1, "npu"), (2, "camera")):
        node(tree, f"/dev/deep/acme{minor}", 240, minor, f"virtual/x/{minor}", uevent=f"DEVNAME=deep/acme{minor}")
        plant(tree, f"/run/udev/data/c240:{minor}", f"I:1\nE:ACME={kind}\n")
    node(tree, "/dev/other", 241, 7, "virtual/x/x", uevent="DEVNAME=other")
    for udev, minors in (((), (1, 2)), ((("ACME", "npu"),), (1,))):
        seen = look(tree, DevicePattern("", major="acme", udev=udev))
        assert {item.path for item, _ in seen.common} == {f"/dev/deep/acme{minor}" for minor in minors}


def test_a_node_of_the_hosts_own_a_disk_and_one_in_a_folder_of_everybodys_are_none(tree: Path) -> None:
    node(tree, "/dev/acme0", 10, 232)
    os.mknod(tree / "dev/sda", stat.S_IFBLK | 0o660, os.makedev(8, 0))
    node(tree, "/dev/shm/acme0", 240, 1)
    absent = DevicePattern("/dev/acme1", required=False)
    seen = look(tree, *map(DevicePattern, ("/dev/acme0", "/dev/sda", "/dev/s*/acme0")), absent)
    assert (seen.common, seen.absent) == ((), ("/dev/acme1",))
    assert seen.unmatched[0].startswith("/dev/acme0 (not given: character device 10:232 is ")
    assert "not a character device" in seen.unmatched[1] and "lies in /dev/shm" in seen.unmatched[2]


def test_a_misc_device_is_its_drivers_by_the_name_in_proc_misc(tree: Path) -> None:
    node(tree, "/dev/acme0", 10, 120, "virtual/misc/acme0", uevent="DEVNAME=acme0")
    node(tree, "/dev/kvm", 10, 232, "virtual/misc/kvm", uevent="DEVNAME=kvm")
    both = DevicePattern("/dev/acme*", "widget"), DevicePattern(major="widget")
    for name, count in (("userfaultfd", 0), ("widget0", 0), ("iommu", 0), ("widget", 1)):
        plant(tree, "/proc/misc", f"120 {name}\n232 kvm\nnonsense\n")
        assert [len(look(tree, it).common) for it in both] == [count, count]
    # By a known path alone, too.
    plant(tree, "/proc/misc", "120 iommu\n")
    assert look(tree, DevicePattern("/dev/acme0")).common == ()
    assert look(tree, DevicePattern(major="kvm")).common == ()


ACME = '{"activation_flag": "OCI_ACME", "driver_feature": ["a"], "inventory": {"a": {}}}'


def known(tree: Path) -> list[tuple[str, str]]:
    found = folders.known(HostRoot(str(tree), remember=True))
    assert folders.known(HostRoot(str(tree), remember=True)) == found, "the saved one says the same"
    return [(item.flag, item.fault) for item in found]


def test_what_the_files_say_is_saved_until_one_of_them_changes(tree: Path) -> None:
    plant(tree, FILE, ACME)
    assert known(tree) == [("OCI_ACME", "")]
    assert (tree / "run/oci-gpu-hook/vendors").exists()
    plant(tree, "/etc/oci-gpu-hook/vendors/b.json", ACME.replace("ACME", "B"))
    assert [flag for flag, _ in known(tree)] == ["OCI_ACME", "OCI_B"]
    plant(tree, "/etc/oci-gpu-hook/vendors/b.json", ACME.replace("ACME", "C"))
    assert [flag for flag, _ in known(tree)] == ["OCI_ACME", "OCI_C"]
    plant(tree, "/etc/oci-gpu-hook/vendors/c.json", ACME.replace("ACME", "C"))
    assert [fault for _, fault in known(tree)][1].startswith("OCI_C is the flag of /etc/")
    (tree / "etc/oci-gpu-hook/vendors/c.json").unlink()
    plant(tree, "/etc/oci-gpu-hook/vendors/acme.json", "{")
    assert known(tree)[1][1].startswith("/etc/oci-gpu-hook/vendors/acme.json: ")
    assert [flag for flag, _ in known(tree)] == ["OCI_C", ""]
    plant(tree, "/etc/oci-gpu-hook/vendors/acme.json", ACME.replace("{", '{"x": 1, ', 1))
    assert known(tree)[1][0] == "OCI_ACME" and "acme.json: " in known(tree)[1][1]


def test_what_is_wrong_is_not_saved_as_it_may_be_mended_elsewhere(tree: Path) -> None:
    plant(tree, FILE, ACME)
    folder = (tree / FILE[1:]).parent
    folder.chmod(0o777)
    assert known(tree)[0][0] == "" and "others than root" in known(tree)[0][1]
    folder.chmod(0o755)
    assert known(tree) == [("OCI_ACME", "")]
    folder.chmod(0o777)
    assert "others than root" in known(tree)[0][1]


def test_an_engine_that_has_a_spec_of_a_kind_resolves_its_names_itself(tree: Path) -> None:
    text = ACME.replace('"inventory"', '"kind": "acme.com/card", "inventory"')
    plant(tree, FILE, text)
    plant(tree, "/etc/oci-gpu-hook/vendors/b.json", text.replace("ACME", "B"))
    assert {fault.partition(" of ")[0] for _, fault in known(tree)} == {"acme.com/card is the kind"}
    (tree / "etc/oci-gpu-hook/vendors/b.json").unlink()
    root = HostRoot(str(tree))
    inputs = annotated({}, {"cdi.k8s.io/x": "acme.com/card=0"})
    (ours,) = folders.for_container(root, inputs)
    assert ours.kind == "acme.com/card"
    plant(tree, "/etc/cdi/theirs.yaml", "cdiVersion: 0.5.0\nkind: acme.com/card\n")
    (theirs,) = folders.for_container(root, inputs)
    assert (theirs.kind, theirs.flag) == ("", "OCI_ACME")
    (other,) = folders.for_container(root, Inputs({"OCI_ACME": "0"}))
    assert other.kind == "acme.com/card"


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what the old one said would be kept for the new one."""
    plant(tree, FILE, ACME)
    load = folders.load

    def overtaken(root: HostRoot, path: str) -> Vendor:
        found = load(root, path)
        plant(tree, f"{FILE}.new", ACME.replace('"a"', '"b"'))
        (tree / f"{FILE}.new"[1:]).rename(tree / FILE[1:])
        return found

    monkeypatch.setattr(folders, "load", overtaken)
    root = HostRoot(str(tree), remember=True)
    folders.vendor_inventory(root, "OCI_ACME", FILE)
    assert vendorinventory.read_saved(root, "OCI_ACME", FILE) is None


@pytest.mark.parametrize(
    ("release", "wanted", "met"),
    [
        *(("6.8.0+", "6.8.0", True), ("6.12-rc1", "6.12.0", True), ("5.14.0-503.el9", "5.14", True)),
        *(("6.8.0", "6.9", False), ("6.9.0", "6.10", False), ("5.14.0", "5.14.1", False)),
    ],
)
def test_kernels_releases(tree: Path, monkeypatch: pytest.MonkeyPatch, release: str, wanted: str, met: bool) -> None:
    monkeypatch.setattr(posix, "uname", lambda: SimpleNamespace(release=release))
    seen = vendorhost.vendor_state(HostRoot(str(tree)), Vendor(FILE, "OCI_ACME", kernel=wanted))
    assert (seen.unmet == ()) is met


def test_devices_come_in_the_order_of_their_addresses_with_all_their_nodes(tree: Path) -> None:
    for number, address in ((128, "0000:0a:00.0"), (129, "0000:03:00.0"), (130, "0000:04:00.0")):
        place = f"pci0000:00/{address}/drm"
        node(tree, f"/dev/dri/renderD{number}", 226, number, f"{place}/renderD{number}")
        node(tree, f"/dev/dri/card{number - 128}", 226, number - 128, f"{place}/card{number - 128}")
        pci(tree, address, "8086" if number == 130 else "1002", "744c")
    both = [DevicePattern(f"/dev/dri/{name}*", pci=("1002",), each=True) for name in ("renderD", "card")]
    seen = look(tree, *both)
    assert [device.names[:2] for device in seen.devices] == [("0", "0000:03:00.0"), ("1", "0000:0a:00.0")]
    assert [item.path for item, _ in seen.devices[0].nodes] == ["/dev/dri/renderD129", "/dev/dri/card1"]
    assert look(tree, both[0]._replace(pci=("8086:744c",))).devices[0].names[1] == "0000:04:00.0"
