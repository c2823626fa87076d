# SPDX-License-Identifier: Apache-2.0
"""The bundle's config.json: every shape that the runtime-spec allows is read, and any other is one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.request import state
from oci_gpu_hook.request.bundle import Bundle, is_gpu, read_bundle
from oci_gpu_hook.request.state import State
from tests.unit.bounded import MIB, MOST, peak


def bundle(document: Any) -> Bundle:
    return Bundle("/b", document)


def test_the_environment_is_a_mapping_and_the_last_of_two_counts() -> None:
    env = ["A=1", "B=x=y", "A=2", "EMPTY=", "NOEQUALS"]
    expected = {"A": "2", "B": "x=y", "EMPTY": "", "NOEQUALS": ""}
    assert bundle({"process": {"env": env}}).environment() == expected
    documents: list[Any] = [{}, {"process": None}, {"process": {}}, {"process": {"env": None}}]
    assert [bundle(document).environment() for document in documents] == [{}] * 4


def test_only_what_the_kernel_makes_for_a_container_is_its_own() -> None:
    mounts: list[dict[str, object]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/data", "type": "bind", "source": "/srv"},
        {"destination": "/more", "type": "none", "source": "/srv", "options": ["rbind", "ro"]},
        {"destination": "/sly", "type": "tmpfs", "source": "/srv", "options": ["bind"]},
        {"destination": "/disk", "type": "ext4", "source": "/dev/sda1"},
        {"destination": "/share", "type": "nfs", "source": "server:/srv"},
        {"destination": "/layers", "type": "overlay", "options": ["lowerdir=/srv"]},
        {"destination": "/a/../b", "type": "tmpfs"},
        {"destination": "/dev", "type": "tmpfs", "options": ["nosuid"]},
    ]
    assert bundle({"mounts": mounts}).tmpfs() == ("/dev",)


def test_device_rules_keep_their_order_and_any_is_none() -> None:
    devices = [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"},
        {"allow": True, "type": "c", "major": 136, "minor": -1},
    ]
    rules = bundle({"linux": {"resources": {"devices": devices}}}).device_rules()
    assert rules == (
        DeviceRule("a", None, None, "rwm", allow=False),
        DeviceRule("c", 1, 3, "rw"),
        DeviceRule("c", 136, None, "rwm"),
    )


WRONG: list[tuple[Callable[[Bundle], object], list[Any]]] = [
    (Bundle.environment, [{"process": {"env": "A=1"}}, {"process": {"env": ["A=1", 2]}}, {"process": []}]),
    (Bundle.rootfs, [{}, {"root": None}, {"root": {}}, {"root": {"path": 3}}, {"root": []}]),
    (Bundle.tmpfs, [{"mounts": "x"}, {"mounts": [1]}, {"mounts": [{}]}, {"mounts": [{"destination": 3}]}]),
    (Bundle.device_rules, [{"linux": []}, {"linux": {"resources": []}}]),
    (Bundle.device_rules, [{"linux": {"resources": {"devices": devices}}}
                           for devices in ({"a": 1}, [1], [{"major": "1"}], [{"type": 1}])]),
]  # fmt: skip


@pytest.mark.parametrize(("read", "document"), [(read, it) for read, documents in WRONG for it in documents])
def test_a_document_of_the_wrong_shape_is_a_bundle_error(read: Callable[[Bundle], object], document: Any) -> None:
    with pytest.raises(BundleError):
        read(bundle(document))


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"]}, True),
        ({"bounding": ["CAP_CHOWN"], "effective": ["CAP_SYS_ADMIN"]}, False),
        ({"bounding": "CAP_SYS_ADMIN"}, False),
        (["CAP_SYS_ADMIN"], False),
    ],
)
def test_only_the_bounding_set_makes_a_container_privileged(capabilities: object, expected: bool) -> None:
    """Who may ask for what only privileged containers may have."""
    assert bundle({"process": {"capabilities": capabilities}}).is_privileged() is expected


def test_of_several_mounts_at_one_place_the_last_is_there() -> None:
    shm = {"destination": "/dev/shm"}
    mounts = [{**shm, "type": "bind", "source": "/a"}, {**shm, "options": ["rbind"], "source": "/b"}]
    assert bundle({"mounts": mounts}).mount_source("/dev/shm") == "/b"
    assert bundle({"mounts": [*mounts, {**shm, "type": "tmpfs"}]}).mount_source("/dev/shm") is None
    assert bundle({"mounts": mounts}).mount_source("/dev") is None


def test_what_buildah_without_root_has_bound_is_made_by_a_spec() -> None:
    """buildah 1.43 binds a spec's nodes from a folder of its own, and leaves no ``linux.devices``."""
    mounts = [{"destination": path, "source": "/tmp/target", "type": "bind"} for path in ("/dev/nvidia2", "/data")]
    assert bundle({"mounts": mounts}).made() == (("/dev/nvidia2", None, None),)
    device = {"path": "/dev/nvidia1", "major": 195, "minor": 1}
    assert bundle({"mounts": mounts, "linux": {"devices": [device]}}).made() == (("/dev/nvidia1", 195, 1),)


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_a_config_that_cannot_be_read_is_a_bundle_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(BundleError):
        read_bundle(str(tmp_path))
    (tmp_path / "config.json").unlink(missing_ok=True)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(BundleError):
        read_bundle(str(tmp_path))


def test_no_engine_writes_so_many_items() -> None:
    """Each costs a start some microseconds, and a hundred bytes."""
    mount = {"destination": "/a"}
    process = {"env": ["A=1"] * ((1 << 16) + 1)}
    rules: dict[str, object] = {"resources": {"devices": [{}] * 4097}}
    found = bundle({"process": process, "mounts": [mount] * 8193, "linux": rules})
    for part in (found.environment, found.tmpfs, found.device_rules):
        with pytest.raises(BundleError, match=r"has more than \d+ items"):
            part()


def test_hooks_of_another_shape_are_passed_over() -> None:
    """They are the runtime's to complain of."""
    good: list[object] = [{"path": "/a", "args": ["a", "b"]}, {"path": "/c"}, {"path": "/d", "args": None}]
    bad: list[object] = [{"path": "/a", "args": "ab"}, {"path": 1}, {}, None, "x"]
    assert bundle({"hooks": {"prestart": good + bad}}).hooks("prestart") == (("/a", ("a", "b")), ("/c", ()), ("/d", ()))
    others: list[object] = [{"prestart": {"path": "/a"}}, {"poststop": good}, [], None]
    for other in others:
        assert bundle({"hooks": other}).hooks("prestart") == ()


def test_a_gpus_node_has_one_of_the_numbers_that_the_kernel_gives_to_gpus() -> None:
    """254 is /dev/nvidia-modeset's, 255 /dev/nvidiactl's (Documentation/admin-guide/devices.txt)."""
    assert [number for number in range(300) if is_gpu(f"/dev/nvidia{number}")] == [*range(254)]
    assert not any(map(is_gpu, ("/dev/nvidia", "/dev/nvidiactl", "/dev/nvidia0/x", "/dev/nvme0")))


# --- the container's state, and what is too large

GOOD = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": 42, "bundle": "/b"}


def read(text: str | bytes, head: bytes = b"") -> State:
    reading, writing = os.pipe()
    try:
        os.write(writing, text if isinstance(text, bytes) else text.encode())
        os.close(writing)
        return state.read_state(reading, head)
    finally:
        os.close(reading)


def test_a_state_is_read_behind_what_the_entry_script_has_read_of_it() -> None:
    data = json.dumps({**GOOD, "annotations": {"a": "b"}}).encode()
    for at in range(len(data) + 1):
        assert read(data[at:], data[:at]) == State("c1", 42, "/b", {"a": "b"}, status="creating")


WRONG_STATES: dict[str, tuple[object, ...]] = {
    "pid": (None, 0, -4, "42", True, 1.5),
    "bundle": (None, "relative", 7, "/a\0b", "/\ud800"),
    "id": (7,),
    "annotations": (["a"], {"a": 1}),
}
SPOILT = [json.dumps({**GOOD, key: value}) for key, values in WRONG_STATES.items() for value in values]


@pytest.mark.parametrize("text", ["", "no json", "[]", "{", b"\xff\xfe", *SPOILT])
def test_a_state_of_the_wrong_shape_is_one_sentence(text: str | bytes) -> None:
    with pytest.raises(BundleError) as caught:
        read(text)
    assert "\n" not in str(caught.value)


# The largest documents of each kind; `X` is where they are the largest.
DOCUMENTS = {
    "objects": ("{},", "{}"),
    "objects of one": ('{"a":0},', "0"),
    "lists": ("[0],", "0"),
    "numbers": ("0,", "0"),
    "names": ('"\U0001f600",', "0"),
    "wide text": ('"\U0001f600' + "x" * 4000 + '",', "0"),
    "escapes": ('"' + "a\\n" * 1000 + '\U0001f600",', "0"),
    "long names": ('"\U0001f600xxxxxxxxxxx",', "0"),
}


def largest(kind: str, size: int) -> bytes:
    """A document of this kind, of about so many bytes, whose values are the container's variables."""
    item, last = DOCUMENTS[kind]
    count = (size - 200) // len(item.encode())
    return f'{{"process":{{"env":[{item * count}{last}]}}}}'.encode()


@pytest.mark.parametrize("size", [37 * MIB, 4 * MIB])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_no_document_takes_more_memory_than_a_start_may(tmp_path: Path, kind: str, size: int) -> None:
    (tmp_path / "config.json").write_bytes(largest(kind, size))

    def act() -> None:
        try:
            bundle = read_bundle(str(tmp_path))
            bundle.bindings()
            bundle.environment()
        except BundleError as err:
            assert len(str(err)) < 400

    assert peak(act) < MOST * 3 // 4


def test_a_document_that_is_too_large_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text, sentence in (
        (b"{" + b" " * (4 * MIB), "is larger than 4 MiB"),
        (b"[" + b"0," * 250_000 + b"0]", "has more than 209715 values"),
        (b"[" + b"{}," * 150_000 + b"0]", "has more than 209715 values"),
    ):
        file.write_bytes(text)
        with pytest.raises(BundleError, match=sentence):
            read_bundle(str(tmp_path))
    # What looks like values in a string is none.
    file.write_text(json.dumps({"process": {"env": ["A=" + '{"a": [1,2]},' * 100_000]}}))
    assert len(read_bundle(str(tmp_path)).environment()["A"]) == 1_300_000
    # The largest environment that Kubernetes is known to make, for five thousand services, has a third of it.
    env = [f"SERVICE_{number}_PORT_443_TCP=tcp://10.0.0.1:443" for number in range(35_000)]
    file.write_text(json.dumps({"process": {"env": env}}))
    assert len(read_bundle(str(tmp_path)).environment()) == 35_000


def test_a_state_that_is_too_large_is_one_sentence(tmp_path: Path) -> None:
    for more, sentence in (
        ({"x": " " * (2 * MIB)}, "is larger than 2 MiB"),
        ({"x": [0] * 104_900}, "has more than 104857 values"),
        ({"id": "c" * 1025}, "is not a string of 1024 characters"),
    ):
        file = tmp_path / "state"
        file.write_text(json.dumps({**GOOD, **more}))
        with file.open("rb") as opened, pytest.raises(BundleError, match=sentence):
            state.read_state(opened.fileno())
