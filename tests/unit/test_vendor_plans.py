# SPDX-License-Identifier: Apache-2.0
"""What a container gets of a vendor's, and of several: decided from values alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from oci_gpu_hook.cli import plantext
from oci_gpu_hook.container.layout import GLIBC, MUSL, Layout
from oci_gpu_hook.driver.inventory import DriverFile, Library
from oci_gpu_hook.driver.nodes import DeviceLink, DeviceNode
from oci_gpu_hook.errors import ConfigError, DriverError, RequestError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations import Device as Node
from oci_gpu_hook.operations import LdCache, Mount, Service, Symlink, Tmpfs
from oci_gpu_hook.planning import drivers, provision, vendorshare
from oci_gpu_hook.planning.plan import Plan, Provision, Share
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.words import VISIBLE_DEVICES
from oci_gpu_hook.vendors.vendorhost import VendorDevice, VendorState
from oci_gpu_hook.vendors.vendorinventory import DevicePattern, Vendor

LAYOUT = Layout("/usr/lib64", "", None, GLIBC, user_namespace=False, dev_is_hosts=False)
FILE = "/v/acme.json"
CONTROL = DeviceNode("/dev/acmectl", 240, 255, 0o666, 0, 0, True)


def node(number: int) -> DeviceNode:
    return DeviceNode(f"/dev/acme{number}", 240, number, 0o660, 0, 44, True)


def library(name: str = "libacme", folder: str = "", at: str = "/opt/acme/lib") -> Library:
    names = (f"{name}.so.1.2", f"{name}.so.1")
    return Library(f"{at}/{names[0]}", names[0], names[1], names, 0x303, 64, "", ("g",), folder)


INVENTORY = Vendor(
    FILE,
    "OCI_ACME",
    patterns=(DevicePattern("/dev/acme*", each=True, group="g"),),
    libraries=(library(),),
    files=(DriverFile("/opt/acme/bin/tool", "/usr/bin/tool", ("g",)),),
    links=(("/usr/lib64/libacme.so", "libacme.so.1"),),
)
DEVICES = (
    VendorDevice(("0", "0000:03:00.0", "acme1"), ((node(1), "g"),)),
    VendorDevice(("1", "0000:0a:00.0", "acme0", "x_1"), ((node(0), "g"),)),
)
HOST = VendorState(INVENTORY, DEVICES, ((CONTROL, "g"),), (("/run/acme.sock", "g"),))


def request(*devices: str, source: str = "env") -> Request:
    named, nodes = ((), devices) if source == "cdi" else (devices, ())
    return Request(source, named, nodes=nodes, flag="OCI_ACME", file=FILE)


def share(*devices: str, host: VendorState = HOST, source: str = "env") -> Share:
    return vendorshare.share(LAYOUT, request(*devices, source=source), host)


def paths(given: Share) -> list[str]:
    return [item.path for item, _ in given.nodes]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("1", "0"), ["/dev/acmectl", "/dev/acme1", "/dev/acme0"]),
        (("acme0", "1"), ["/dev/acmectl", "/dev/acme0"]),
        (("00000000:0A:00.0",), ["/dev/acmectl", "/dev/acme0"]),
        (("0:a:0.0",), ["/dev/acmectl", "/dev/acme0"]),
        (("all",), ["/dev/acmectl", "/dev/acme1", "/dev/acme0"]),
        (("none",), []),
    ],
)
def test_a_request_gets_exactly_the_devices_that_it_names(names: tuple[str, ...], expected: list[str]) -> None:
    assert paths(share(*names)) == expected


def test_a_device_is_asked_for_by_cdi_only_with_all_of_its_nodes() -> None:
    assert paths(share("/dev/acmectl", "/dev/acme0", source="cdi")) == ["/dev/acmectl", "/dev/acme0"]
    both = VendorDevice(("0",), ((node(0), "g"), (node(1), "g")))
    host = HOST._replace(devices=(both,))
    assert vendorshare.of_nodes(("/dev/acme0",), host) == ()
    assert vendorshare.of_nodes(("/dev/acme1", "/dev/acme0"), host) == ((both, "/dev/acme0"),)


@pytest.mark.parametrize("name", ["2", "acme7", "0000:04:00.0", "acmectl"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(RequestError, match="this host has 2: acme1, x_1") as caught:
        share(name)
    assert caught.value.message.startswith(f"unknown device '{name}' of OCI_ACME")


def test_a_file_without_single_devices_says_so() -> None:
    host = HOST._replace(inventory=INVENTORY._replace(patterns=()), devices=())
    with pytest.raises(RequestError, match="its file names none"):
        share("0", host=host)
    assert paths(share("all", host=host)) == ["/dev/acmectl"]


def test_libraries_go_to_the_vendors_folder_and_the_rest_to_its_own_place() -> None:
    given = share("all")
    operations = given.operations
    mounts = [(item.source, item.target) for item in operations if isinstance(item, Mount)]
    assert mounts == [
        ("/opt/acme/lib/libacme.so.1.2", "/usr/local/oci-gpu-hook/OCI_ACME/lib64/libacme.so.1.2"),
        ("/opt/acme/bin/tool", "/usr/bin/tool"),
    ]
    assert given.folder == "/usr/local/oci-gpu-hook/OCI_ACME"
    assert [entry.path for entry in given.entries] == [b"/usr/local/oci-gpu-hook/OCI_ACME/lib64/libacme.so.1"]
    assert [item.source for item in operations if isinstance(item, Service)] == ["/run/acme.sock"]
    assert [item.path for item in operations if isinstance(item, Symlink)] == ["/usr/lib64/libacme.so"]
    assert all("OCI_ACME" in item.reason for item in operations)
    # Some files are on some hosts only: a library that a program needs is a library.
    assert [item.required for item in operations if isinstance(item, Mount)] == [True, False]


def test_what_is_needed_of_the_hosts_is_there_for_an_image_that_has_none() -> None:
    host = HOST._replace(inventory=INVENTORY._replace(needed=(library("libllvm", at="/usr/lib64"),)))
    given = share("all", host=host)
    place = "/usr/local/oci-gpu-hook/OCI_ACME/needed/libllvm.so.1.2"
    mounts = {item.source: item.target for item in given.operations if isinstance(item, Mount)}
    assert mounts["/usr/lib64/libllvm.so.1.2"] == f"{place}/libllvm.so.1.2"
    spare = {entry.path.decode(): entry.spare for entry in given.entries}
    assert spare == {"/usr/local/oci-gpu-hook/OCI_ACME/lib64/libacme.so.1": False, f"{place}/libllvm.so.1": True}
    # Nothing of the image's is covered where no cache is read.
    musl = vendorshare.share(LAYOUT._replace(library_folder="/usr/lib", loader=MUSL), request("all"), host)
    targets = [item.target for item in musl.operations if isinstance(item, Mount)]
    assert (musl.folder, targets) == ("", ["/usr/lib/libacme.so.1.2", "/usr/bin/tool"])


def test_nodes_have_the_hosts_names_by_their_places() -> None:
    links = (DeviceLink("/dev/dri/by-path/a", "../acme1", "/dev/acme1"), DeviceLink("/dev/x", "acme0", "/dev/acme0"))
    given = share("0", host=HOST._replace(links=links))
    made = [(it.path, it.to) for it in given.operations if isinstance(it, Symlink)]
    assert ("/dev/dri/by-path/a", "../acme1") in made and ("/dev/x", "acme0") not in made
    hosts_dev = vendorshare.share(LAYOUT._replace(dev_is_hosts=True), request("0"), HOST._replace(links=links))
    assert not [it for it in hosts_dev.operations if isinstance(it, Symlink) and it.path.startswith("/dev/")]


def test_the_folder_is_the_vendors_nvidias_for_its_own_flag_and_none_without_a_library() -> None:
    """On a Jetson and under WSL what NVIDIA's flag brings is a vendor's."""
    given = share("all", host=HOST._replace(inventory=INVENTORY._replace(flag=VISIBLE_DEVICES)))
    assert given.folder == provision.FOLDER
    assert [entry.path for entry in given.entries] == [f"{provision.FOLDER}/lib64/libacme.so.1".encode()]
    without = share("all", host=HOST._replace(inventory=INVENTORY._replace(libraries=())))
    assert (without.folder, without.entries) == ("", ())
    assert not [item for item in joined(without).operations if isinstance(item, (Tmpfs, LdCache))]


def test_what_lies_in_a_mounted_folder_has_a_place_in_the_cache_only() -> None:
    cached = INVENTORY._replace(libraries=(), cached=(library(folder="/opt/acme/lib"),))
    given = share("all", host=HOST._replace(inventory=cached))
    assert [entry.path for entry in given.entries] == [b"/opt/acme/lib/libacme.so.1"]
    # The cache is a file of the folder.
    assert given.folder == f"{vendorshare.FOLDER}/OCI_ACME"
    assert not [item for item in given.operations if isinstance(item, Mount) and ".so" in item.target]


@pytest.mark.parametrize(
    "host",
    [
        HOST._replace(unmet=("the kernel's module acme is not loaded",)),
        HOST._replace(inventory=INVENTORY._replace(lacking=("/opt/acme is missing",))),
        HOST._replace(unmatched=("/dev/acme_x",)),
    ],
)
def test_what_a_file_requires_and_the_host_lacks_is_the_drivers_fault(host: VendorState) -> None:
    with pytest.raises(DriverError, match=f"^{FILE} requires what this host lacks: ") as caught:
        share("all", host=host)
    assert caught.value.exit_code == 6
    if host.unmatched:
        assert paths(share("none", host=host)) == [], "without devices none is required"


def test_nodes_of_an_old_image_are_nvidias_beside_a_vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr(drivers, "known_inventory", looked)
    asked = Request("devices", (), ("utility",), nodes=("/dev/nvidia0",), vendors=(request("0"),))
    with pytest.raises(LookupError):
        drivers.provide(HostRoot(str(tmp_path)), LAYOUT, asked, Settings(), "")


def test_what_is_left_out_is_said() -> None:
    host = HOST._replace(inventory=INVENTORY._replace(absent=("/opt/y",)), absent=("/dev/x",), faults=("one",))
    assert share("all", host=host).notes == ("one", "OCI_ACME: this host has no /dev/x")


def test_a_container_of_another_selinux_type_is_told() -> None:
    host = HOST._replace(inventory=INVENTORY._replace(selinux_type="acme_t"))
    assert vendorshare.share(LAYOUT, request("0"), host, "acme_t").notes == ()
    assert vendorshare.share(LAYOUT, request("0"), host).notes == ()
    (note,) = vendorshare.share(LAYOUT, request("0"), host, "container_t").notes
    assert note.startswith(f"{FILE} says that containers need the SELinux type acme_t")


def joined(*shares: Share, layout: Layout = LAYOUT) -> Provision:
    return provision.join(layout, "", shares)


def other(flag: str, **fields: object) -> Share:
    inventory = Vendor(f"/v/{flag}.json", flag)._replace(**fields)  # type: ignore[arg-type]
    host = VendorState(inventory)
    return vendorshare.share(LAYOUT, Request("env", ("all",), flag=flag, file=inventory.file), host)


def test_two_shares_of_one_folder_make_one_filesystem_with_the_files_of_both() -> None:
    first = share("0")._replace(texts=(("etc/a/x.json", "1"), ("etc/a/y.json", "2")))
    second = share("1")._replace(giver="/v/b.json", texts=(("share/z.icd", "3"),))
    without = other("OCI_C", files=(DriverFile("/opt/c/tool", "/usr/bin/c", ("g",)),))
    made = joined(without, first, second)
    folder, *others = made.operations
    assert isinstance(folder, Tmpfs) and not [item for item in others if isinstance(item, Tmpfs)]
    assert (folder.path, folder.folders) == (f"{vendorshare.FOLDER}/OCI_ACME", ("etc/a", "share"))
    assert folder.files == (("etc/a/x.json", "1", 0o444), ("etc/a/y.json", "2", 0o444), ("share/z.icd", "3", 0o444))
    (cache,) = [item for item in others if isinstance(item, LdCache)]
    assert cache.folders == (folder.path,)


def test_each_folder_is_a_filesystem_of_its_own_and_one_of_them_has_the_cache() -> None:
    made = joined(share("0")._replace(folder=provision.FOLDER), other("OCI_B", libraries=(library("libb"),)))
    for found in (made.operations, made.operations[:2]):
        assert [it.path for it in found if isinstance(it, Tmpfs)] == [provision.FOLDER, f"{vendorshare.FOLDER}/OCI_B"]
    cache = made.operations[-1]
    assert isinstance(cache, LdCache) and cache.folders == (provision.FOLDER, f"{vendorshare.FOLDER}/OCI_B")
    assert [name for name, _ in cache.entries()] == ["libacme.so.1", "libb.so.1"]
    musl = joined(share("0"), layout=LAYOUT._replace(loader=MUSL))
    assert not [item for item in musl.operations if isinstance(item, LdCache)]


def test_what_two_give_alike_is_given_once() -> None:
    again = share("0", "1")._replace(giver="/v/b.json")
    made = joined(share("0"), again)
    nodes = [item.path for item in made.operations if isinstance(item, Node)]
    assert nodes == ["/dev/acmectl", "/dev/acme1", "/dev/acme0"]
    assert made.devices == ((240, 255), (240, 1), (240, 0))
    assert len([item for item in made.operations if isinstance(item, Mount)]) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"files": (DriverFile("/opt/b/tool", "/usr/bin/tool", ("g",)),)},
        {"libraries": (library(at="/opt/b/lib"),)},
        # Of another version, and by the same name for the loader.
        {"libraries": (library(at="/opt/b/lib")._replace(names=("libacme.so.9", "libacme.so.1")),)},
        {"links": (("/usr/lib64/libacme.so", "elsewhere.so"),)},
        {"links": (("/usr/local/oci-gpu-hook/OCI_ACME/lib64/libacme.so.1", "elsewhere.so"),)},
    ],
)
def test_two_that_want_different_things_at_one_path_get_nothing(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"/v/acme\.json and /v/OCI_B\.json both want (/usr|lib64)/") as caught:
        joined(share("0"), other("OCI_B", **fields))
    assert caught.value.exit_code == 4


def test_two_devices_of_one_name_are_no_two_devices() -> None:
    wrong = share("0")._replace(giver="/v/b.json", nodes=((CONTROL._replace(minor=1), ""),), operations=())
    with pytest.raises(ConfigError, match="both want /dev/acmectl"):
        joined(share("0"), wrong)


def test_what_is_not_asked_for_and_what_is_not_here_is_left_out() -> None:
    said = INVENTORY._replace(absent=("/a", "/b", "/c", "/d"), environment=(("ACME", "/opt"),))
    host = HOST._replace(inventory=said)
    given = provision.join(LAYOUT, "", (share("0", host=host),))
    made = Plan(None, LAYOUT, None, given.operations, (), "", Provision(vendors=(host,)))  # type: ignore[arg-type]
    assert plantext.missing(made) == (
        "OCI_ACME=1, x_1: not asked for",
        "OCI_ACME: this host has no /a, /b, /c and 1 more",
        "OCI_ACME: programs may need ACME=/opt, which no hook can set",
    )
    everything = provision.join(LAYOUT, "", (share("all"),))
    assert plantext.missing(made._replace(operations=everything.operations, provision=Provision(vendors=(HOST,)))) == ()
    hosts_dev = made._replace(layout=LAYOUT._replace(dev_is_hosts=True), provision=Provision(vendors=(HOST,)))
    assert plantext.missing(hosts_dev) == ()
