# SPDX-License-Identifier: Apache-2.0
"""CUDA forward compatibility: what an image's libcuda says of itself, which drivers and GPUs that suits, and lies."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pynvml
import pytest

from oci_gpu_hook.container import compat as compats
from oci_gpu_hook.container.compat import Compat, Note
from oci_gpu_hook.container.layout import COMPAT_FOLDER
from oci_gpu_hook.driver.inventory import Library
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.formats.ldcache import Entry
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.operations import Cover, Mount, Symlink
from oci_gpu_hook.planning import compatibility, provision, vendorshare
from oci_gpu_hook.planning.plan import Provision, Share
from oci_gpu_hook.planning.selection import select
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.words import VISIBLE_DEVICES
from oci_gpu_hook.vendors.vendorhost import VendorState
from oci_gpu_hook.vendors.vendorinventory import Vendor
from tests.unit.bounded import is_linear
from tests.unit.libcudas import ORIN, R575, library, note, said
from tests.vocabulary.host import LAYOUT, everything

COMPUTE = Request("env", ("1",), ("utility", "compute"))
NEWER = "libcuda.so.575.57.08"
NAMES = ("libcuda.so", "libcuda.so.1", NEWER)
FOLDER = f"{provision.FOLDER}/lib64"
GPUS = everything().gpus[:2]
LIBRARIES = everything().libraries


def look(tmp_path: Path, data: bytes | None = None, *names: str) -> Compat | None:
    """What a root has to offer whose folder holds NEWER with `data`, and files of other names."""
    folder = tmp_path / COMPAT_FOLDER[1:]
    folder.mkdir(parents=True, exist_ok=True)
    if data is not None:
        (folder / NEWER).write_bytes(data)
    for name in names:
        (folder / name).touch()
    with closing(os.open(tmp_path, os.O_PATH)) as fd:
        return compats.compat_of(fd, COMPAT_FOLDER, tuple(sorted(os.listdir(folder))))


def offered(note: Note | None = None, names: tuple[str, ...] = NAMES) -> Compat:
    return Compat(COMPAT_FOLDER, names, NEWER, (575, 57, 8), note)


def newer(
    compat: Compat, versions: tuple[str, str], gpus: tuple[Gpu, ...], libraries: tuple[Library, ...] = LIBRARIES
) -> tuple[tuple[Entry, ...], str]:
    """What a driver's share has more, which is links in its folder and their entries, and what is said."""
    found = compatibility.with_newer(Share("a driver", provision.FOLDER, (), (), ()), compat, versions, gpus, libraries)
    for link, entry in zip(found.operations, found.entries):
        path = entry.path.decode()
        assert link == Symlink(path, f"{compat.folder}/{entry.soname.decode()}", True, link.reason)
    assert len(found.operations) == len(found.entries)
    return found.entries, "".join(found.notes)


def decide(compat: Compat, driver: str = "535.1.1", brand: str = "Tesla", cuda: str = "12.2") -> tuple[list[str], str]:
    """The names that go into the loader's cache, and what is said."""
    gpus = tuple([gpu._replace(brand=brand) for gpu in GPUS])
    entries, sentence = newer(compat, (driver, cuda), gpus)
    for entry in entries:
        assert entry.path == f"{FOLDER}/".encode() + entry.soname
    return [entry.soname.decode() for entry in entries], sentence


def test_a_real_note_is_read(tmp_path: Path) -> None:
    found = look(tmp_path, library(said(R575)))
    assert found is not None and not found.fault
    assert found.note == Note((12, 9), tuple(R575["driver"]), tuple(R575["device"]))  # type: ignore[arg-type]
    assert (found.library, found.version) == (NEWER, (575, 57, 8))
    for left_out in ("CUDA version", "driver"):
        found = look(tmp_path, library(said({key: it for key, it in R575.items() if key != left_out})))
        assert found is not None and found.note is not None


def test_a_library_without_a_note_has_none(tmp_path: Path) -> None:
    for data in (library(None), library(said(R575), name=".note.cuda.other"), library(said(R575), type=1)):
        found = look(tmp_path, data)
        assert found is not None and (found.note, found.fault) == (None, "")


def test_a_folder_without_a_libcuda_offers_nothing(tmp_path: Path) -> None:
    assert look(tmp_path, None, "libcuda.so.1", "README") is None


WELL = library(said(R575))
DAMAGED = {
    "sections of another size": WELL[:58] + b"\x41\0" + WELL[60:],
    "names of none of the sections": WELL[:62] + b"\xff\0" + WELL[64:],
    "too many sections": WELL[:60] + b"\x01\x02" + WELL[62:],
    "32 bits": b"\x7fELF\x01\x01" + bytes(100),
    "table beyond the end": library(said(R575))[:-1],
    "a note of 1 GiB": library(said(R575), size=1 << 30),
    "a note beyond the end": library(said(R575), size=1 << 15),
    "a name beyond the end": WELL[:-64] + b"\xff" * 4 + WELL[-60:],
    "compressed": library(said(R575), flags=0x800),
    "a list": library(said([1])),
    "says nothing": library(said({"format": 1})),
    "drivers are true": library(said({**R575, "driver": [True]})),
    "a negative driver": library(said({**R575, "driver": [-1]})),
    "brands are words": library(said({**R575, "device": ["Tesla"]})),
    "another owner": library(note(b'{"CUDA version": "12.9"}', b"Someone else\0")),
    "an owner of 4 GiB": library(struct.pack("<III", 0xFFFFFFF0, 8, 1) + bytes(64)),
}


@pytest.mark.parametrize("data", [*DAMAGED.values()], ids=[*DAMAGED])
def test_a_library_that_cannot_be_right_is_left_out_with_a_sentence(tmp_path: Path, data: bytes) -> None:
    found = look(tmp_path, data)
    assert found is not None and found.fault.startswith(f"{NEWER} cannot be used: ")
    names, sentence = decide(found)
    assert names == []
    assert sentence == f"CUDA forward compatibility: the image's {COMPAT_FOLDER} is left out: {found.fault}"


def test_a_link_within_the_image_is_followed_and_none_out_of_it(tmp_path: Path) -> None:
    """tests/hostile/test_images.py has what is no file."""
    (tmp_path / "host").write_bytes(library(said(R575)))
    folder = tmp_path / "root" / COMPAT_FOLDER[1:]
    folder.mkdir(parents=True)
    (tmp_path / "root/real").write_bytes(library(said(R575)))
    for to in ("/real", str(tmp_path / "host")):
        (folder / NEWER).symlink_to(to)
        found = look(tmp_path / "root")
        assert found is not None and bool(found.fault) == (to != "/real")
        (folder / NEWER).unlink()


@pytest.mark.parametrize("names", [(NEWER, "libcuda.so.570.1.1"), (NEWER, "libcuda.so.1.old")])
def test_of_two_nobody_knows_which_the_others_belong_to(tmp_path: Path, names: tuple[str, ...]) -> None:
    found = look(tmp_path, None, *names)
    assert found is not None and found.fault == "it has more than one libcuda.so"


@pytest.mark.parametrize(
    "version", ["-999.1", "٩٩٩.1", "²99.1", "999999.1", "9" * 5_000 + ".1", "1..2", "580.", "5.\n1"]
)
def test_a_version_is_of_ascii_digits(version: str) -> None:
    assert compats.version_of(version) == ()


@pytest.mark.parametrize(
    ("driver", "brand", "taken", "words"),
    [
        ("535.183.06", "Tesla", True, "is used, newer than the host's driver 535.183.06"),
        ("575.57.07", "Tesla", True, "is used"),  # the same branch: its own word counts
        ("575.57.08", "Tesla", False, ""),
        ("575.9.1", "Tesla", True, "is used"),
        ("580.1.1", "Tesla", False, ""),
        ("545.23.08", "Tesla", False, "is not used: it is not made for the host's driver 545.23.08"),
        ("535.183.06", "GeForceRTX", False, "not made for GPUs of the brand GeForceRTX, as GPU 0 is"),
        ("535.183.06", "Nvidia", True, "is used"),
        ("535.183.06", "", True, "is used"),
        ("535.183.06", "TomorrowsBrand", True, "is used"),
    ],
)
def test_its_own_word_decides(driver: str, brand: str, taken: bool, words: str) -> None:
    names, told = decide(offered(Note((12, 9), (535, 550, 575), (1, 2, 7, 8, 9, 10, 11, 12, 13, 14))), driver, brand)
    assert (names == ["libcuda.so.1"]) == taken
    assert words in told and bool(told) == bool(words)


@pytest.mark.parametrize(
    ("driver", "brand", "taken"),
    [("570.1.1", "Tesla", True), ("575.1.1", "Tesla", False), ("570.1.1", "GeForce", False), ("570.1.1", "", True)],
)
def test_without_a_word_a_later_branch_serves_brands_every_note_lists(driver: str, brand: str, taken: bool) -> None:
    assert bool(decide(offered(), driver, brand)[0]) == taken


def test_every_note_lists_the_brands_for_data_centres() -> None:
    """By nvml.h's numbers: Quadro, Tesla, the virtual ones, and those of the professional series since."""
    taken = {brand for brand in compatibility.BRANDS if decide(offered(), "570.1.1", brand)[0]}
    assert compatibility.BRANDS.keys() - taken == {"NVS", "GRID", "GeForce", "TITAN", "GeForceRTX", "TitanRTX"}


@pytest.mark.parametrize(
    ("host", "taken"), [("13.1", True), ("13.2", False), ("12.10", True), ("13.10", False), ("", False)]
)
def test_a_note_without_drivers_goes_by_cudas_version(host: str, taken: bool) -> None:
    assert bool(decide(offered(Note((13, 2), None, None)), "540.4.0", "", host)[0]) == taken
    assert ORIN["CUDA version"] == "13.2"


def test_one_gpu_that_is_not_listed_is_enough() -> None:
    first, second = GPUS
    gpus = (first._replace(brand="Tesla"), second._replace(brand="GeForce"))
    entries, sentence = newer(offered(), ("535.1.1", "12.2"), gpus)
    assert entries == () and "as GPU 1 is" in sentence


def test_a_host_without_native_libraries_gets_none() -> None:
    assert newer(offered(), ("535.1.1", "12.2"), (), ()) == ((), "")


def test_a_companion_without_a_short_name_comes_by_its_version() -> None:
    """As NVIDIA's packages for CUDA 13 have them: libcuda opens them by that name."""
    short = ["libcuda.so.1", "libnvidia-ptxjitcompiler.so.1"]
    for more in ("gpucomp.so.575.57.08", "ptxjitcompiler.so.575.57.08", "gpucomp.so.575.57.07", "x y.so.575.57.08"):
        names = (*short, NEWER, f"libnvidia-{more}")
        assert decide(offered(names=names), "570.1.1")[0] == [*short, *names[3:] * (more == "gpucomp.so.575.57.08")]


@pytest.mark.parametrize(
    "name",
    ["libcuda.so.1\n", "libcuda\x1b[2J.so.1", "libcuda\x00.so.1", "libcuda/../x.so.1", "libcuda x.so.1",
     "libcudа.so.1", "libcuda\udcff.so.1", "libcuda.so.١", "libcuda.so.²", "libcuda.so.", "libcuda.so.1.so.1",
     "libcuda.so.-1", "../libcuda.so.1", "LIBCUDA.so.1", "libnvidiax.so.1"],
)  # fmt: skip
def test_a_hostile_name_is_never_named(name: str) -> None:
    assert decide(offered(None, (name, *NAMES)))[0] in (["libcuda.so.1"], [])


def test_time_grows_with_an_images_folder_and_no_faster() -> None:
    folders = {entries: (*NAMES, *[f"libcuda-{number}.so.1" for number in range(entries)]) for entries in (100, 1_000)}
    assert is_linear(lambda entries: decide(offered(None, folders[entries])))


def with_offered(compat: Compat, *, has_driver: bool = False) -> Provision:
    """What an image with newer libraries gets on a host with an older driver."""
    inventory = everything()._replace(driver_version="535.1.1")
    layout = LAYOUT._replace(compat=compat, has_driver=has_driver)
    share = provision.of_nvidia(layout, COMPUTE, select(COMPUTE, inventory), inventory)
    return provision.join(layout, inventory.driver_version, (share,))


def test_each_newer_name_has_its_link_and_the_host_keeps_all_others() -> None:
    names = ("libcuda.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-no-hosts.so.7")
    made = with_offered(offered(names=(NEWER, *names)))
    links = {it.path: it.to for it in made.operations if isinstance(it, Symlink) and COMPAT_FOLDER in it.to}
    assert links.items() >= {f"{FOLDER}/{name}": f"{COMPAT_FOLDER}/{name}" for name in names}.items()
    # Its own libcuda.so, which no cache names, may lead anywhere.
    assert links[f"{FOLDER}/libcuda.so"] == f"{COMPAT_FOLDER}/libcuda.so.1"
    assert not [it for it in made.operations if isinstance(it, Mount) and COMPAT_FOLDER in it.source + it.target]
    without, given = [
        {path for it in found.operations if isinstance(it, Mount) for path in it.paths()}
        for found in (with_offered(offered(names=(NEWER,))), made)
    ]
    assert without - given == {*links} & without == {*links} - {f"{FOLDER}/libnvidia-no-hosts.so.7"}
    assert given < without


def test_what_the_images_own_are_in_the_place_of_covers_no_driver_in_the_image() -> None:
    without, given = [
        {file for it in with_offered(compat, has_driver=True).operations if isinstance(it, Cover) for file in it.files}
        for compat in (offered(names=(NEWER,)), offered())
    ]
    assert without - given == {f"{FOLDER}/libcuda.so.1", f"{FOLDER}/libcuda.so"}
    assert given < without


def test_a_jetsons_own_keep_their_folder_and_come_after_the_images() -> None:
    """Its libraries lie in a folder of their own, each by all its names: the loader takes the first."""
    own = "/usr/lib/aarch64-linux-gnu/nvidia"
    names = ("libcuda.so.1.1", "libcuda.so.1")
    cuda = Library(f"{own}/{names[0]}", names[0], names[1], names, 0xA03, 64, "", ("drivers",), own)
    state = VendorState(Vendor("/lists", VISIBLE_DEVICES, libraries=(cuda,)))
    share = vendorshare.share(LAYOUT, Request("env", ("all",), flag=VISIBLE_DEVICES, file="/lists"), state)
    compat = offered(Note((13, 2), None, None))
    found = compatibility.with_newer(share, compat, ("", "12.6"), (), (cuda,))
    first, second = [entry.path.decode() for entry in found.entries if entry.soname == b"libcuda.so.1"]
    assert (first, second) == (f"{FOLDER}/libcuda.so.1", f"{own}/libcuda.so.1")
    assert {*share.operations} < {*found.operations}
    (link,) = {*found.operations} - {*share.operations}
    assert isinstance(link, Symlink) and (link.path, link.to) == (first, f"{COMPAT_FOLDER}/libcuda.so.1")


def test_brands_have_nvmls_numbers_and_the_names_that_images_require() -> None:
    """As pynvml has them, in capitals; of vGPUs' names CUDA 13.3's images leave the vendor out: brand=vws."""
    known = {re.sub("^NVML_BRAND_(NVIDIA_(?=[VC]))?|_", "", name): number for name, number in vars(pynvml).items()}
    assert {name.upper(): number for name, number in compatibility.BRANDS.items()}.items() <= known.items()
