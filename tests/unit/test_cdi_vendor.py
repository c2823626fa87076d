# SPDX-License-Identifier: Apache-2.0
"""CDI specs of other vendors' devices: spec and hook give what the hook alone gives, and each knows what it is for."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.node.setup import cdispec
from oci_gpu_hook.operations import LdCache, Mount, Service, Tmpfs
from oci_gpu_hook.vendors.vendorhost import VendorDevice, VendorState
from oci_gpu_hook.vendors.vendorinventory import Vendor
from tests.unit import cdi_engine, hosts
from tests.unit.cdi_engine import Node, by_hook, by_spec
from tests.unit.program import Program
from tests.unit.test_cdi_generate import DEVICE_NAME, generate, validator

FLAG = "OCI_ACME"
FILE = "/etc/oci-gpu-hook/vendors/acme.json"
ACME: dict[str, Any] = {
    "activation_flag": FLAG,
    "kind": "acme.com/card",
    "version": {"file": "/opt/acme/version"},
    "environment": {"ACME_HOME": "/opt/acme"},
    "inventory": {
        "all": {
            "devices": [{"path": "/dev/acme[0-9]*", "major": "acme", "each": True, "required": False}],
            "libraries": [f"/{hosts.LIBRARY_FOLDER}/libacme*.so.*"],
            "directories": ["/opt/acme"],
            "miscellaneous": [{"path": "/etc/acme.conf", "target": "/etc/acme.d"}],
            "sockets": ["/run/acme/socket"],
        }
    },
}


@pytest.fixture()
def bare(tmp_path: Path) -> Node:
    """A host whose vendor has files and no device; tests/integration/test_cdi.py has devices."""
    tree = tmp_path / "tree"
    tree.mkdir()
    hosts.host(tree)
    made = cdi_engine.node(tree, tmp_path)
    hosts.plant(tree, "proc/devices", hosts.DEVICES.replace("\n\n", "\n240 acme\n\n", 1))
    hosts.plant(tree, FILE, json.dumps(ACME))
    hosts.plant(tree, "/opt/acme/version", "1.5\n")
    hosts.plant(tree, "/etc/acme.conf", "")
    # The host's loader looks where its libc lies.
    hosts.plant(tree, f"{hosts.LIBRARY_FOLDER}/libc.so.6", "")
    os.makedirs(tree / "run/acme")
    os.mknod(tree / "run/acme/socket", stat.S_IFSOCK | 0o666)
    hosts.plant_library(tree, f"{hosts.LIBRARY_FOLDER}/libacme.so.1.5", "libacme.so.1")
    (tree / hosts.LIBRARY_FOLDER / "libacme.so.1").symlink_to("libacme.so.1.5")
    return made


def test_the_document_is_as_the_schema_says_and_the_hook_agrees(bare: Node) -> None:
    spec = bare.vendors_spec(FLAG)
    validator().validate(spec)
    assert spec["kind"] == "acme.com/card"
    assert spec["devices"] == [{"name": "all", "containerEdits": {"env": ["OCI_ACME=void", "ACME_HOME=/opt/acme"]}}]
    assert spec["containerEdits"]["env"] == ["OCI_ACME=void", "ACME_HOME=/opt/acme"]
    (started,) = spec["containerEdits"]["hooks"]
    words = ["oci-gpu-hook", "createRuntime", "--cdi-vendor", FLAG, "--config", str(bare.settings)]
    assert started["args"] == words
    # No file: a container gets those that the host has when it starts.
    assert spec["containerEdits"].keys() == {"env", "hooks"}
    by_cdi = by_spec(bare, {}, spec, "all")
    assert by_cdi == by_hook(bare, {FLAG: "all"})
    assert {type(it) for it in by_cdi} >= {Tmpfs, Mount, LdCache, Service}
    config = cdi_engine.bundle(bare.folder, {})
    plan = cdi_engine.start(config, bare, cdi_engine.inject(config, spec, "all")[2:])
    # A record of it says what was asked for, though the container holds no device.
    assert plan is not None and plan.request is not None and plan.request.vendors[0].devices == ("all",)


@pytest.mark.parametrize("text", [json.dumps({**ACME, "activation_flag": "OCI_OTHER"}), "{"])
def test_a_spec_whose_vendors_file_is_gone_is_refused(bare: Node, text: str) -> None:
    config = cdi_engine.bundle(bare.folder, {})
    words = cdi_engine.inject(config, bare.vendors_spec(FLAG), "all")
    hosts.plant(bare.tree, FILE, text)
    with pytest.raises(ConfigError, match="for 'OCI_ACME', which no vendor's"):
        cdi_engine.start(config, bare, words[2:])


# The names of a spec's devices.

CONTROL = DeviceNode("/dev/acme0", 240, 0, 0o660, 0, 0, True)


def test_only_names_that_cdi_has_are_in_it_each_once() -> None:
    first = ("0", "0000:03:00.0", "mlx5_0", "a/b", "-x", "x-", "", "with space", "ä1")
    second = ("1", "0000:03:00.1", "all", "None", "VOID", "mlx5_0", "0")
    devices = tuple([VendorDevice(it, ((CONTROL, "all"),)) for it in (first, second)])
    names = cdispec.vendors_names(VendorState(Vendor(FILE, FLAG, kind="acme.com/card"), devices))
    assert names == ("0", "0000:03:00.0", "mlx5_0", "1", "0000:03:00.1", "all")
    assert all(DEVICE_NAME.fullmatch(name) for name in names)


def test_a_spec_is_of_the_oldest_version_that_has_what_it_says() -> None:
    """By an older one, engines refuse it."""
    for name, mode, version in (("npu", 0o666, "0.5.0"), ("npu.full", 0o666, "0.6.0"), ("npu.full", 0o660, "0.7.0")):
        node = CONTROL._replace(mode=mode, gid=7)
        assert cdispec.document((node,), (), cdispec.Hook("/x", ()), f"a.b/{name}")["cdiVersion"] == version


# `cdi generate --vendor`.


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--vendor", "\x1b[2J"], "no vendor's file of this host has the flag '\\x1b[2J'"),
        (["--vendor", ""], "--vendor is empty"),
        (["--vendor", FLAG, "--capabilities", "all"], "--capabilities does not apply to --vendor"),
        (["--vendor", FLAG], "OCI_ACME is not allowed"),
    ],
)
def test_mistakes_are_one_sentence(program: Program, bare: Node, words: list[str], sentence: str) -> None:
    bare.settings.write_text("allowed-vendors = OCI_OTHER\n")
    assert sentence in program.mistake(2, *generate(bare, *words))


@pytest.mark.parametrize(
    ("code", "file", "keys", "why"),
    [
        (6, FILE, {"requires": {"modules": ["acme"]}}, "acme is not loaded"),
        (2, FILE, {"kind": ""}, f"{FILE} names no kind of CDI devices"),
        (4, FILE.replace("acme", "other"), {}, "other.json"),
    ],
)
def test_what_it_must_say(program: Program, bare: Node, code: int, file: str, keys: dict[str, Any], why: str) -> None:
    hosts.plant(bare.tree, file, json.dumps({key: it for key, it in {**ACME, **keys}.items() if it}))
    assert why in program.mistake(code, *generate(bare, "--vendor", FLAG))


def test_a_spec_takes_the_place_of_its_own_kind_alone(program: Program, bare: Node, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    nvidias, acmes = (generate(bare, "--output", file), generate(bare, "--vendor", FLAG, "--output", file))
    program(*nvidias)
    assert f"{file} is there and is the CDI spec of 'nvidia.com/gpu'" in program.mistake(2, *acmes)
    management = program.mistake(2, *generate(bare, "--kind", "management", "--output", file))
    assert f"{file} is there and is the CDI spec of 'nvidia.com/gpu'" in management
    program(*nvidias)
    file.unlink()
    assert program(*acmes) == f"wrote {file}: 1 device\n"
    program(*acmes)
    assert f"{file} is there and is the CDI spec of 'OCI_ACME'" in program.mistake(2, *nvidias)


# What doctor says of them.


def _findings(program: Program, host: Node) -> list[tuple[str, str, str]]:
    command = ["doctor", "--host-root", host.tree, "--config", host.settings, "--json"]
    found = json.loads(program(*command, code=1))["findings"]
    return [(item["level"], item["seen"], item["remedy"]) for item in found if item["check"] == "CDI"]


def test_doctor_holds_each_spec_against_its_own_vendor(program: Program, bare: Node) -> None:
    path = "/etc/cdi/acme.yaml"
    # As it was made: with the settings that it has the hook read.
    words = f"--vendor {FLAG} --config {bare.settings} --output {path}"
    again = f"oci-gpu-hook inventory refresh && oci-gpu-hook cdi generate {words}"
    program(*generate(bare, "--output", bare.tree / "etc/cdi/nvidia.yaml"))
    program(*generate(bare, "--vendor", FLAG, "--output", bare.tree / path[1:]))
    seen = "/etc/cdi/nvidia.yaml: it starts '/usr/libexec/oci-gpu-hook-start', which is not there"
    assert ("fail", seen) in [it[:2] for it in _findings(program, bare)]
    hosts.plant(bare.tree, "/usr/libexec/oci-gpu-hook-start", "")
    nvidias = ("pass", "/etc/cdi/nvidia.yaml says what the host has", "")
    assert _findings(program, bare) == [("pass", f"{path} says what the host has", ""), nvidias]
    hosts.plant(bare.tree, FILE, json.dumps({**ACME, "environment": {"ACME_HOME": "/opt/other"}}))
    stale = ("fail", f"{path}: it does not say what the host has now", again)
    assert _findings(program, bare) == [stale, nvidias]
    (bare.tree / FILE[1:]).unlink()
    gone = ("fail", f"{path}: no vendor's file of this host has the flag '{FLAG}'", f"rm {path}")
    assert _findings(program, bare) == [gone, nvidias]


@pytest.mark.parametrize(
    ("change", "why", "fix"),
    [
        ({"path": "/opt/h"}, "it starts '/opt/h', which is not there", "cdi generate --capabilities compute --config"),
        ({"hookName": "prestart"}, "its hook is not for createRuntime", "cdi generate"),
        ({"more": ["--cdi-driver", "580"]}, "unknown option '--cdi-driver'", "cdi generate --capabilities compute"),
        ({"args": ["oci-gpu-hook", "createRuntime", "--cdi", "compute,foo"]}, "it does not say", "compute"),
        ({"config": "/a\0b"}, "its --config is", "rm /etc/cdi/nvidia.yaml"),
    ],
)
def test_doctor_judges_a_specs_hook(program: Program, bare: Node, change: dict[str, Any], why: str, fix: str) -> None:
    """Else each container by it ends with 127, or with 2."""
    hosts.plant(bare.tree, "/usr/libexec/oci-gpu-hook-start", "")
    file = bare.tree / "etc/cdi/nvidia.yaml"
    program(*generate(bare, "--capabilities", "compute", "--output", file))
    document = json.loads(file.read_text())
    (started,) = document["containerEdits"]["hooks"]
    started["args"] += change.pop("more", [])
    if config := change.pop("config", ""):
        started["args"][started["args"].index("--config") + 1] = config
    started.update(change)
    file.write_text(json.dumps(document))
    ((level, seen, remedy),) = _findings(program, bare)
    assert level == "fail" and why in seen and fix in remedy, (seen, remedy)
    # It is written with our own program again.
    assert "--hook" not in remedy
