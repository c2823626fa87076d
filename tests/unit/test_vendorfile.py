# SPDX-License-Identifier: Apache-2.0
"""Vendors' files: what is read from them, and what is said of wrong ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.vendors import vendorfile
from oci_gpu_hook.vendors.vendorinventory import LARGEST_FILE, DevicePattern, Group, Item, Vendor
from tests import manual

PUBLISHED = Path(__file__).resolve().parents[1] / "data/vendors"


def read(document: dict[str, Any]) -> Vendor:
    return vendorfile.parse_vendor(json.dumps(document).encode(), "x.json")


def small(**keys: Any) -> dict[str, Any]:
    return {"activation_flag": "OCI_X", "inventory": {"a": {}}, **keys}


def group(**lists: Any) -> Group:
    return read(small(inventory={"a": lists})).groups[0]


def test_all_keys() -> None:
    """Of the manual's example, and those that it does without."""
    (example,) = [text for text in manual.blocks("oci-gpu-hook-vendors.5", "EXAMPLE") if text.startswith("{")]
    document = json.loads(example)
    document |= {"$schema": "file:///x", "log_level": "info", "selinux": {"type": "x_t", "boolean": "x_use"}}
    document["environment"]["EMPTY"] = ""
    control, each = document["inventory"]["compute"]["devices"]
    each.update(pci=["10EE", "1d0f:5000"], udev={"ID_X": "1"}, name="xdev", required=False)
    document["inventory"]["compute"]["devices"] = ["kfd", control, each]
    document["inventory"]["compute"]["directories"].append("/opt/x/share/")
    pci, udev = ("10ee", "1d0f:5000"), (("ID_X", "1"),)
    icd = Item("/etc/OpenCL/vendors/xcard.icd")
    assert read(document) == Vendor(
        file="x.json",
        flag="OCI_XCARD",
        groups=(
            Group(
                "compute",
                devices=(
                    *(DevicePattern("/dev/kfd"), DevicePattern("/dev/xcard_ctl", "xcard")),
                    DevicePattern("/dev/xcard[0-9]*", "xcard", pci, udev, True, "xdev", False),
                ),
                libraries=(
                    Item("/usr/lib64/libxcard.so.{version}", required=True),
                    Item("/usr/lib/x86_64-linux-gnu/libxcard*.so*"),
                ),
                files=(Item("/usr/bin/xcard-smi"), Item("/opt/xcard-{version}", "/opt"), Item("/opt/x/share"), icd),
                sockets=("/run/xcard/xcardd.sock",),
            ),
        ),
        kind="example.com/card",
        source=("module", "xcard"),
        environment=(("XCARD_HOME", "/opt/xcard"), ("EMPTY", "")),
        kernel="5.14",
        modules=("xcard",),
        selinux_type="x_t",
        selinux_boolean="x_use",
    )


def test_a_library_among_the_programs() -> None:
    names = ("libx.so", "libx.so.1", "libx.so*", "x.sock", "x.some", "x")
    found = [bool(group(binaries=[f"/usr/bin/{name}"]).libraries) for name in names]
    assert found == [True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "line 1: expecting value"),
        (b'\n\n{"a": }', "line 3: expecting value"),
        (b'{"a": "\n"}', "line 1: invalid control character"),
        (b"{}\n{}", "line 2: extra data (it must be one JSON object, each name once)"),
        (b'{"a": 1,\n"b": [{"c": 1}, {"c": 1,\n"d": "{",\n"c": 2}]}', "it has the key 'c' twice"),
        (b'{"NaN": 1,\n"a":\nNaN}', "NaN is not a JSON value"),
        (b'{"a":\n"\xff"}', "it is not UTF-8 text"),
        (b"[" * 200_000, "it is nested too deeply"),
    ],
)
def test_the_key_or_the_line_is_said(text: bytes, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        vendorfile.parse_vendor(text, "x.json")
    assert str(caught.value).startswith(f"x.json: {says}") and caught.value.hint


def test_bounds() -> None:
    most = [f"/opt/x/{number}" for number in range(vendorfile.MAX_ITEMS)]
    assert len(group(miscellaneous=most).files) == len(most)
    with pytest.raises(ConfigError, match="more than 4096 things"):
        group(miscellaneous=most, sockets=["/run/x"])
    assert len(group(devices=["kfd"] * 256).devices) == 256
    with pytest.raises(ConfigError, match="more than 256 devices"):
        group(devices=["kfd"] * 257)
    with pytest.raises(ConfigError, match=r"x\.json: it is larger than 1 MiB"):
        vendorfile.parse_vendor(b" " * (LARGEST_FILE + 1), "x.json")


# Those of tests/data/vendors/wrong.txt are the others: test_vendors.py.
@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"activation_flag": "OCI_x"}, "not a flag"),
        ({"kind": "amd.com/-gpu"}, "not a CDI kind"),
        ({"version": "1/2"}, "letters, digits"),
        ({"environment": {"A": "a\0"}}, "cannot be printed"),
        ({"inventory": {"": {}}}, "is empty"),
        *[
            ({"inventory": {"a": {key: [item]}}}, says)
            for key, item, says in (
                ("devices", {"path": "x*", "pci": "8086", "udev": {"SUBSYSTEM": "x"}}, "whose device it is"),
                ("devices", {"pci": []}, "empty"),
                ("devices", {"path": "kvm", "major": "misc"}, "the host's own"),
                ("devices", {"path": "kfd", "name": "../x"}, "not a name"),
                ("libraries", {"target": "/opt"}, "no path"),
                ("libraries", {"path": "/opt/x", "target": "/"}, "empty name"),
                ("sockets", "/run/{version}.sock", "one path"),
                ("sockets", {"path": "/run/x.sock"}, "not a string"),
            )
        ],
    ],
)
def test_what_is_bad_is_said(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        read(small(**keys))


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b'"a",' * 250_000 + b"NaN]",
        b'{"a": [' + b"1," * 400_000 + b'1], "a": 1}',
        b"[" * LARGEST_FILE,
        json.dumps({f"k{number}": 1 for number in range(60_000)}).encode(),
        json.dumps(
            small(
                driver_feature=[f"g{number}" for number in range(60_000)],
                inventory={f"g{number}": {} for number in range(30_000)},
            )
        ).encode(),
        json.dumps(
            small(inventory={"a": {"devices": ["dri/" + "*a" * 100] * 256, "libraries": ["/usr/l*"]}}, kind="wrong")
        ).encode(),
    ],
    ids=["strings", "a name at the end", "deep", "keys", "groups", "stars"],
)
def test_a_hostile_file_takes_no_time(data: bytes) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError):
        vendorfile.parse_vendor(data, "x.json")
    # What is quadratic takes minutes.
    assert time.process_time() - began < 20


def test_a_good_file_loads_nothing_that_a_start_does_without() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from oci_gpu_hook.vendors import folders, vendorfile\n"
        "vendorfile.parse_vendor(open(sys.argv[2], 'rb').read(), 'x.json')\n"
        "print(*[name for name in ('os', 're', 'json', 'typing', 'fnmatch',\n"
        "    'oci_gpu_hook.request.settingsfile') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-ISc", script, PUBLISHED.parents[2], PUBLISHED / "oci-onload.json"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "\n"
