# SPDX-License-Identifier: Apache-2.0
"""Units, udev rule and tmpfiles.d: systemd's own programs read them, and what they start works on a simulated node.

Every test works in a private view of this machine's /usr, with the hook installed in it.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.integration.engines import REPOSITORY, Installed, on_host, on_node

UNITS = REPOSITORY / "packaging/systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
KINDS = (".service", ".path", ".timer")
# systemd-analyze touches files of /run/systemd as PID 1 does; the lane beside this one watches the machine's /run.
ALONE = "mount -t tmpfs none /run/systemd\n"
UNVERIFIED = f"cp {UNITS}/*.service {UNITS}/*.path {UNITS}/*.timer /usr/lib/systemd/system/\n"


def test_systemd_has_nothing_to_say_about_the_units(installed: Installed) -> None:
    units = " ".join(f"/usr/lib/systemd/system/{it.name}" for it in UNITS.iterdir() if it.suffix in KINDS)
    done = on_host(installed, f"{ALONE}{UNVERIFIED}systemd-analyze verify --man=no {units}")
    ours = [line for line in (done.out + done.err).splitlines() if "oci-gpu-hook" in line]
    assert (done.code, ours) == (0, [])


# Of a service that makes a container more is left open.
EXPOSED = {"oci-gpu-hook-validate.service": 46}


def test_a_service_is_shut_in(installed: Installed) -> None:
    """systemd's own measure: 10 is an ordinary service, 3 and below it calls OK."""
    line = "systemd-analyze security --offline=true --no-pager"
    lines = [f"{line} --threshold={EXPOSED.get(it, 30)} {UNITS}/{it} >&2" for it in SERVICES]
    on_host(installed, ALONE + "\n".join(lines)).printed()


# A device that every machine has, in the place of the rule's own.
_NULL = 'SUBSYSTEM=="mem", KERNEL=="null"'


def udev(installed: Installed, device: str, *actions: str) -> list[str]:
    """What udev says of each action on that device, by the rule as installed but for this device."""
    rule = (UNITS / "60-oci-gpu-hook.rules").read_text()
    assert device in rule
    script = f"cat >/usr/lib/udev/rules.d/60-oci-gpu-hook.rules <<'END'\n{rule.replace(device, _NULL)}END\n"
    for action in actions:
        script += f"echo @@ {action}\nudevadm test --action={action} /sys/class/mem/null 2>&1\n"
    return on_host(installed, script).out.split("@@ ")[1:]


WANTS = {
    'SUBSYSTEM=="module", KERNEL=="nvidia_uvm|nvidia_modeset"': (
        "oci-gpu-hook-devices.service oci-gpu-hook-inventory.service"
    ),
    'SUBSYSTEM=="drm", KERNEL=="card[0-9]*|renderD*", ATTRS{vendor}=="0x10de"': "oci-gpu-hook-inventory.service",
}


@pytest.mark.parametrize("device", WANTS)
def test_udev_reads_the_rule_and_asks_systemd_for_the_services(installed: Installed, device: str) -> None:
    [out] = udev(installed, device, "add")
    told = [line for line in out.splitlines() if "60-oci-gpu-hook.rules:" in line]
    assert not [line for line in told if "nvalid" in line or "nknown" in line], told
    assert f"SYSTEMD_WANTS={WANTS[device]}" in out.replace("= ", "="), out


@pytest.mark.parametrize(
    ("device", "actions"),
    [
        ('SUBSYSTEM=="pci", ENV{PCI_ID}=="10DE:*", ENV{PCI_CLASS}=="30[02]00"', {"unbind": True, "change": False}),
        ('SUBSYSTEM=="module", KERNEL=="nvidia"', {"remove": True, "change": False}),
    ],
    ids=["a GPU", "the driver"],
)
def test_udev_starts_the_refresh_when_one_goes(installed: Installed, device: str, actions: dict[str, bool]) -> None:
    line = "systemctl --no-block start oci-gpu-hook-inventory.service"
    assert [line in text for text in udev(installed, device, *actions)] == [*actions.values()]


def test_tmpfiles_makes_the_folder_of_the_state_and_what_is_watched_in_it(installed: Installed, tmp_path: Path) -> None:
    file = UNITS / "oci-gpu-hook.tmpfiles.conf"
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    on_host(installed, f"systemd-tmpfiles --create --root={tmp_path} {file}").printed()
    assert (tmp_path / "run/oci-gpu-hook").stat().st_mode & 0o7777 == 0o755
    watched = "refresh-wanted"
    assert f"PathChanged=/run/oci-gpu-hook/{watched}\n" in (UNITS / "oci-gpu-hook-inventory.path").read_text()
    assert (tmp_path / "run/oci-gpu-hook" / watched).stat().st_mode & 0o7777 == 0o644


def test_the_preset_names_every_unit_and_no_other() -> None:
    lines = (UNITS / "90-oci-gpu-hook.preset").read_text().splitlines()
    named = {line.split()[1] for line in lines if not line.startswith("#")}
    assert named == {path.name for path in UNITS.iterdir() if path.suffix in KINDS}


# What systemd finds: it has written a container's kind there itself, and WSL's kernel says it in its release.
FOUND = "echo {0} >/run/systemd/container\n"
WSL = "echo WSL2 >/run/systemd/release\nmount --bind /run/systemd/release /proc/sys/kernel/osrelease\n"


@pytest.mark.parametrize("unit", ["inventory.service", "inventory.path", "cdi.service", "validate.service"])
def test_a_unit_that_serves_wsl_2_is_kept_from_all_other_containers(installed: Installed, unit: str) -> None:
    text = (UNITS / f"oci-gpu-hook-{unit}").read_text()
    conditions = re.findall("^(ConditionVirtualization=.*)$", text, re.MULTILINE)
    look = f"systemd-detect-virt\nsystemd-analyze condition {shlex.join(conditions)} >&2 && echo yes || echo no\n"
    known = on_host(installed, "systemd-detect-virt --list").printed().split()
    # OpenVZ has no such file.
    kinds = [it for it in known[known.index("systemd-nspawn") :] if it not in ("openvz", "wsl")]
    script = ALONE + "".join([FOUND.format(kind) + look for kind in kinds]) + WSL + look
    said = on_host(installed, script).printed().split()
    assert said == [*[word for kind in kinds for word in (kind, "no")], "wsl", "yes"]


def test_no_start_limit_refuses_what_an_event_starts() -> None:
    """A node with many GPUs has that many events within a second."""
    named = {*re.findall(r"oci-gpu-hook-\w+\.service", (UNITS / "60-oci-gpu-hook.rules").read_text())}
    assert named == {"oci-gpu-hook-devices.service", "oci-gpu-hook-inventory.service"}
    for name in named:
        assert "\nStartLimitIntervalSec=0\n" in (UNITS / name).read_text().partition("[Service]")[0], name


def test_a_node_of_before_is_replaced_another_mode_is_left_and_then_nothing_is_done() -> None:
    script = (
        "rm /dev/nvidia-uvm && mknod -m 0600 /dev/nvidia-uvm c 1 7\n"
        "chmod 0640 /dev/nvidiactl\n"
        "/usr/bin/oci-gpu-hook inventory refresh --nodes --json\n"
        "/usr/bin/oci-gpu-hook inventory refresh --nodes >&2\n"
        "stat -c '%t %a' /dev/nvidia-uvm /dev/nvidiactl >&2"
    )
    done = on_node(script, description="h100mig")
    assert done.code == 0, done.err
    assert json.loads(done.out)["made"] == ["/dev/nvidia-uvm"]
    *_, nothing, uvm, control = done.err.splitlines()
    assert nothing == "no node is lacking"
    assert (uvm.startswith("1 "), uvm[-4:], control[-4:]) == (False, " 666", " 640")
