# SPDX-License-Identifier: Apache-2.0
"""``doctor`` on the simulated node: all is well, then one planted fault at a time, each named with its remedy."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.integration.engines import Installed, on_node

# What the node lacks of a host that is set up: ranges of ids, and the inventory that the service would save.
SET_UP = """
for file in /etc/subuid /etc/subgid; do echo user:100000:65536 >$file; done
oci-gpu-hook inventory refresh >/dev/null
HOOKS=/usr/share/containers/oci/hooks.d
ETC=/etc/containers/oci/hooks.d
mkdir -p $ETC /etc/containers/containers.conf.d /etc/crio/crio.conf.d /etc/cdi
"""
ASK = "\noci-gpu-hook doctor --format json || echo $? >&2\n"

CRIO = "install -m 0755 /bin/true /usr/bin/crio\n"
BOTH_FOLDERS = (
    'printf \'[engine]\\nhooks_dir = [\\n"%s", # ours\\n"%s"]\\n\' $HOOKS $ETC '
    ">/etc/containers/containers.conf.d/10-hooks.conf\n"
)


class Planted(NamedTuple):
    """A fault: how it is planted, on which node, and what doctor must say of it."""

    name: str
    script: str
    check: str
    level: str
    seen: str
    remedy: str
    faults: tuple[str, ...] = ()


PLANTED = [
    Planted(
        "driver-not-loaded",
        "",
        "driver",
        "fail",
        "the kernel module is not loaded",
        "modprobe nvidia",
        ("no-proc-driver",),
    ),
    Planted(
        "no-driver-at-all",
        "",
        "driver",
        "fail",
        "this host has no NVIDIA driver",
        "apt install nvidia-driver nvidia-smi",
        ("no-proc-driver", "no-nodes"),
    ),
    Planted(
        "upgraded-without-reboot",
        "",
        "libraries",
        "fail",
        "libcuda is of version 580.65.07, the kernel module of 580.65.06",
        "systemctl reboot",
        ("library-version",),
    ),
    Planted(
        "libraries-behind-the-module",
        "",
        "libraries",
        "fail",
        "libcuda is of version 580.65.06, the kernel module of 580.65.07",
        "apt install --only-upgrade 'libnvidia-*' libcuda1",
        ("driver-version",),
    ),
    Planted(
        "half-a-driver",
        "",
        "libraries",
        "fail",
        "libcuda of version 580.65.06 is missing: compute is not served",
        "apt install nvidia-driver nvidia-smi",
        ("no-libcuda",),
    ),
    Planted(
        "no-firmware",
        "",
        "firmware",
        "warn",
        "none of version 580.65.06 is there",
        "apt install nvidia-driver nvidia-smi",
        ("no-firmware",),
    ),
    Planted(
        "stale-ld.so.cache",
        "",
        "ld.so.cache",
        "warn",
        "does not name libcuda.so.1",
        "ldconfig",
        ("stale-cache",),
    ),
    Planted(
        "no-gpus",
        "",
        "GPUs",
        "fail",
        "the driver is loaded and drives no GPU",
        "dmesg | grep NVRM",
        ("no-gpus",),
    ),
    Planted(
        "uvm-not-loaded",
        "",
        "nodes",
        "fail",
        "nvidia-uvm is not loaded",
        "modprobe nvidia-uvm",
        ("no-uvm",),
    ),
    Planted(
        "nodes-not-made",
        "",
        "nodes",
        "warn",
        "/dev/nvidia-uvm and 1 more missing",
        "nvidia-modprobe -u -c",
        ("no-uvm-nodes",),
    ),
    Planted(
        "another-device-at-the-node",
        "",
        "nodes",
        "fail",
        "is device 1:7, the driver's is 195:",
        "rm /dev/nvidia",
        ("wrong-node",),
    ),
    Planted(
        "narrow-nodes",
        "chmod 0600 /dev/nvidiactl",
        "nodes",
        "warn",
        "/dev/nvidiactl of mode 0600",
        "chmod 0666 /dev/nvidiactl",
    ),
    Planted(
        "inventory-not-saved",
        "rm /run/oci-gpu-hook/inventory",
        "inventory",
        "warn",
        "none is saved",
        "oci-gpu-hook inventory refresh",
    ),
    Planted(
        "inventory-stale",
        "touch /etc/ld.so.cache",
        "inventory",
        "warn",
        "what is saved is no longer true",
        "oci-gpu-hook inventory refresh",
    ),
    Planted(
        "not-registered",
        "rm $HOOKS/oci-gpu-hook.json",
        "hook in podman",
        "fail",
        "it is not registered",
        "make install",
    ),
    Planted(
        "masked-by-a-file-of-its-name",
        BOTH_FOLDERS
        + """echo '{"version":"1.0.0","hook":{"path":"/bin/true"},"when":{"always":true},'"""
        """'"stages":["prestart"]}' >$ETC/oci-gpu-hook.json""",
        "hook in podman",
        "fail",
        "/etc/containers/oci/hooks.d/oci-gpu-hook.json masks /usr/share/",
        "rm /etc/containers/oci/hooks.d/oci-gpu-hook.json",
    ),
    Planted(
        "masked-by-an-empty-file",
        BOTH_FOLDERS + ": >$ETC/oci-gpu-hook.json",
        "hook in podman",
        "fail",
        "/etc/containers/oci/hooks.d/oci-gpu-hook.json stops every container: it is no JSON",
        "rm /etc/containers/oci/hooks.d/oci-gpu-hook.json",
    ),
    Planted(
        "another-hook-that-is-no-json",
        ": >$HOOKS/other.json",
        "hook in podman",
        "fail",
        "/other.json stops every container",
        "rm /usr/share/containers/oci/hooks.d/other.json",
    ),
    Planted(
        "two-versions-of-ours",
        "sed s/createRuntime/prestart/ $HOOKS/oci-gpu-hook.json >$HOOKS/00-gpu.json",
        "hook in podman",
        "fail",
        "registered twice",
        "rm /usr/share/containers/oci/hooks.d/00-gpu.json",
    ),
    Planted(
        "a-stage-within-the-container",
        "sed -i s/createRuntime/createContainer/ $HOOKS/oci-gpu-hook.json",
        "hook in podman",
        "fail",
        "registers it for createContainer",
        "make install",
    ),
    Planted(
        "CRI-O-looks-elsewhere",
        CRIO
        + """printf '[crio]\\n[crio.runtime]\\nhooks_dir = ["/opt/hooks.d"]\\n' >/etc/crio/crio.conf""",
        "hook in CRI-O",
        "fail",
        "CRI-O looks in /opt/hooks.d (/etc/crio/crio.conf)",
        """hooks_dir = ["/opt/hooks.d", "/usr/share/containers/oci/hooks.d"]""",
    ),
    Planted(
        "NVIDIAs-own-hook",
        "sed 's|[^\"]*libexec/oci/hooks.d/oci-gpu-hook|/usr/bin/nvidia-container-runtime-hook|' "
        "$HOOKS/oci-gpu-hook.json >$HOOKS/oci-nvidia-hook.json",
        "other hooks",
        "fail",
        "GPUs are given twice",
        "rm /usr/share/containers/oci/hooks.d/oci-nvidia-hook.json",
    ),
    Planted(
        "NVIDIAs-runtime-is-the-default",
        CRIO + """printf '[crio.runtime]\\ndefault_runtime = "nvidia"\\n"""
        """[crio.runtime.runtimes.nvidia]\\nruntime_path = "/usr/bin/nvidia-container-runtime"\\n' """
        ">/etc/crio/crio.conf.d/99-nvidia.conf",
        "other hooks",
        "fail",
        "/etc/crio/crio.conf.d/99-nvidia.conf has NVIDIA's runtime as nvidia, the default",
        "sed -i '/^ *default_runtime *=/d' /etc/crio/crio.conf.d/99-nvidia.conf && systemctl restart crio",
    ),
    Planted(
        "CDI-spec-older-than-the-driver",
        "oci-gpu-hook cdi generate --output /etc/cdi/gpu.yaml; sed -i s/580.65.06/570.1.2/ /etc/cdi/gpu.yaml",
        "CDI",
        "fail",
        "/etc/cdi/gpu.yaml is for driver 570.1.2, the host has 580.65.06",
        "oci-gpu-hook cdi generate --output /etc/cdi/gpu.yaml",
    ),
    Planted(
        "CDI-spec-of-another-program",
        "printf 'cdiVersion: 0.5.0\\nkind: nvidia.com/gpu\\n- hostPath: /lib/libcuda.so.580.65.06\\n' "
        ">/etc/cdi/nvidia.yaml",
        "CDI",
        "warn",
        "/etc/cdi/nvidia.yaml was made by another program",
        "rm /etc/cdi/nvidia.yaml",
    ),
    Planted(
        "unknown-key",
        "printf '# ours\\ndevcie-cgroup = on\\n' >/etc/oci-gpu-hook.conf",
        "settings",
        "fail",
        "unknown key 'devcie-cgroup', did you mean 'device-cgroup'?",
        "vi +2 /etc/oci-gpu-hook.conf",
    ),
    Planted(
        "settings-that-cannot-be-read",
        "mkdir /etc/oci-gpu-hook.conf",
        "settings",
        "fail",
        "cannot read /etc/oci-gpu-hook.conf: Is a directory",
        "mv /etc/oci-gpu-hook.conf /etc/oci-gpu-hook.conf.broken",
    ),
    Planted(
        "settings-for-others-to-write",
        ": >/etc/oci-gpu-hook.conf; chmod 0666 /etc/oci-gpu-hook.conf",
        "settings",
        "fail",
        "others than root may write /etc/oci-gpu-hook.conf",
        "chown root: /etc/oci-gpu-hook.conf && chmod go-w /etc/oci-gpu-hook.conf",
    ),
    Planted(
        "door-is-gone",
        "rm /usr/libexec/oci/hooks.d/oci-gpu-hook",
        "installation",
        "fail",
        "/usr/libexec/oci/hooks.d/oci-gpu-hook is not there",
        "make install",
    ),
    Planted(
        "anothers-file-in-our-place",
        "printf '#!/bin/sh\\n' >/usr/libexec/oci/hooks.d/oci-gpu-hook",
        "installation",
        "fail",
        "is another's file in our place",
        "mv /usr/libexec/oci/hooks.d/oci-gpu-hook /usr/libexec/oci/hooks.d/oci-gpu-hook.other",
    ),
    Planted(
        "half-finished-installation",
        "mkdir /usr/lib/oci-gpu-hook/.new",
        "installation",
        "warn",
        "/usr/lib/oci-gpu-hook/.new is left from an installation that did not end",
        "rm -rf /usr/lib/oci-gpu-hook/.new",
    ),
    Planted(
        "interpreter-is-gone",
        "sed -i 's|exec /usr/bin/python3 |exec /usr/bin/python3.99 |' /usr/libexec/oci/hooks.d/oci-gpu-hook",
        "Python",
        "fail",
        "/usr/bin/python3.99 is not there",
        "apt install python3",
    ),
    Planted(
        "shell-is-gone",
        "mv /usr/bin/bash /usr/bin/bash.away",
        "installation",
        "fail",
        "/bin/bash is not there",
        "apt install bash",
    ),
    Planted(
        "made-for-another-python",
        "cd /usr/lib/oci-gpu-hook/oci_gpu_hook/__linked__; for f in *; do mv $f ${f%.*}.cpython-39; done",
        "installation",
        "warn",
        "/usr/lib/oci-gpu-hook was not made for /usr/bin/python3.",
        "make install",
    ),
    Planted(
        "registration-for-others-to-write",
        "chmod 0666 $HOOKS/oci-gpu-hook.json",
        "installation",
        "fail",
        "others than root may write /usr/share/containers/oci/hooks.d/oci-gpu-hook.json",
        "chmod go-w /usr/share/containers/oci/hooks.d/oci-gpu-hook.json",
    ),
    Planted(
        "hooks-folder-for-others-to-write",
        "chmod 0777 $HOOKS",
        "installation",
        "fail",
        "others than root may write /usr/share/containers/oci/hooks.d,",
        "chmod go-w /usr/share/containers/oci/hooks.d",
    ),
    Planted(
        "linked-file-for-others-to-write",
        "chmod 0666 /usr/lib/oci-gpu-hook/oci_gpu_hook/__linked__/rooms.*",
        "installation",
        "fail",
        "others than root may write /usr/lib/oci-gpu-hook/oci_gpu_hook/__linked__/rooms.",
        "chmod go-w /usr/lib/oci-gpu-hook/oci_gpu_hook/__linked__/rooms.",
    ),
    Planted(
        "drop-in-for-others-to-write",
        "mkdir -p /etc/oci-gpu-hook.conf.d; : >/etc/oci-gpu-hook.conf.d/1.conf; "
        "chmod 0666 /etc/oci-gpu-hook.conf.d/1.conf",
        "settings",
        "fail",
        "others than root may write /etc/oci-gpu-hook.conf.d/1.conf",
        "chmod go-w /etc/oci-gpu-hook.conf.d/1.conf",
    ),
    Planted(
        "registered-without-a-stage-in-its-words",
        """sed -i 's/"oci-gpu-hook", "createRuntime"/"oci-gpu-hook"/' $HOOKS/oci-gpu-hook.json""",
        "hook in podman",
        "fail",
        "starts it with oci-gpu-hook, which is no stage that it serves: it stops every container",
        "make install",
    ),
    Planted(
        "no-time-to-run",
        """sed -i 's/"timeout": 30/"timeout": 0/' $HOOKS/oci-gpu-hook.json""",
        "hook in podman",
        "fail",
        "gives it 0 seconds: it stops every container",
        "make install",
    ),
    Planted(
        "a-version-that-engines-do-not-know",
        "sed 's/1[.]0[.]0/9.0.0/' $HOOKS/oci-gpu-hook.json >$HOOKS/other.json",
        "hook in podman",
        "fail",
        "/other.json stops every container: its version 9.0.0 is none that engines know",
        "rm /usr/share/containers/oci/hooks.d/other.json",
    ),
    Planted(
        "a-stage-that-engines-do-not-know",
        'sed \'s/."createRuntime".$/["prestrat"]/\' $HOOKS/oci-gpu-hook.json >$HOOKS/other.json',
        "hook in podman",
        "fail",
        "/other.json stops every container: its stage prestrat is none that engines know",
        "rm /usr/share/containers/oci/hooks.d/other.json",
    ),
    Planted(
        "a-driver-root-that-is-not-there",
        "echo 'driver-root = /run/nvidia/driver' >/etc/oci-gpu-hook.conf",
        "driver",
        "fail",
        "the driver root /run/nvidia/driver is not there",
        "oci-gpu-hook config show | grep driver-root",
    ),
    Planted(
        "state-for-others-to-write",
        "chmod 0777 /run/oci-gpu-hook",
        "inventory",
        "warn",
        "others than root may write /run/oci-gpu-hook: nothing in it is trusted",
        "chmod go-w /run/oci-gpu-hook && oci-gpu-hook inventory refresh",
    ),
    Planted(
        "a-file-where-the-state-goes",
        "rm -r /run/oci-gpu-hook; : >/run/oci-gpu-hook",
        "inventory",
        "warn",
        "/run/oci-gpu-hook is no folder: nothing can be saved",
        "rm /run/oci-gpu-hook && oci-gpu-hook inventory refresh",
    ),
    Planted(
        "a-library-that-a-full-disk-left-empty",
        ": >$(find /usr/lib/x86_64-linux-gnu /usr/lib64 -name 'libcuda.so.[0-9]*.*' -type f 2>/dev/null | head -n 1)",
        "libraries",
        "fail",
        "libcuda of version 580.65.06 is cut off or no library",
        "apt install --reinstall ",
    ),
    Planted(
        "old-kernel",
        "echo 5.4.0-42-generic >/run/release; mount --bind /run/release /proc/sys/kernel/osrelease",
        "kernel",
        "fail",
        "5.4.0-42-generic, and the hook needs 5.14 or newer",
        "apt full-upgrade && systemctl reboot",
    ),
    Planted(
        "no-cgroups",
        "mount -t tmpfs none /sys/fs/cgroup",
        "cgroups",
        "fail",
        "is neither v2 nor has it the devices controller",
        "mount -t cgroup2 none /sys/fs/cgroup",
    ),
    Planted(
        "systemd-that-does-not-run",
        "mount -t tmpfs none /run/systemd 2>/dev/null || true\n"
        "printf '[engine]\\ncgroup_manager = \"systemd\"\\n' >/etc/containers/containers.conf",
        "cgroups",
        "fail",
        "podman is told to use systemd's cgroups",
        "sed -i '/^ *cgroup_manager *=/s/systemd/cgroupfs/' /etc/containers/containers.conf",
    ),
    Planted(
        "no-ranges-of-ids",
        ": >/etc/subuid",
        "rootless",
        "warn",
        "/etc/subuid or /etc/subgid names nobody",
        "usermod --add-subuids",
    ),
]


def doctor(installed: Installed, script: str, **node: Any) -> tuple[int, dict[str, Any]]:
    """What doctor says on a node on which `script` has run, and its exit code."""
    done = on_node(
        installed, SET_UP.replace(">/dev/null", ">/dev/null 2>&1 || true") + script + ASK, **node
    )
    codes = [line for line in done.err.splitlines() if line.isdigit()]
    assert "Traceback" not in done.err, done.err
    start = done.out.find("{\n")
    assert start >= 0, done.out + done.err
    return int(codes[-1]) if codes else 0, json.loads(done.out[start:])


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
@pytest.mark.parametrize("description", ["v100", "h100x8", "h100mig"])
def test_all_passes_on_a_node_that_is_set_up(
    installed: Installed, description: str, cgroup: str
) -> None:
    code, said = doctor(installed, CRIO, description=description, cgroup=cgroup)
    assert [item for item in said["findings"] if item["level"] != "pass"] == []
    assert (code, said["failed"], said["warned"]) == (0, 0, 0)
    checks = {item["check"] for item in said["findings"]}
    assert {"hook in podman", "hook in CRI-O", "eBPF", "nodes", "rootless"} <= checks


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_fault_is_named_with_its_remedy(installed: Installed, planted: Planted) -> None:
    code, said = doctor(installed, planted.script, faults=planted.faults)
    found = [item for item in said["findings"] if item["level"] != "pass"]
    matching = [item for item in found if item["check"] == planted.check]
    assert any(
        item["level"] == planted.level
        and planted.seen in item["seen"]
        and planted.remedy in item["remedy"]
        for item in matching
    ), found
    assert code == (1 if any(item["level"] == "fail" for item in found) else 0)
    assert said["failed"] == len([item for item in found if item["level"] == "fail"])
    if planted.level == "fail":
        assert code == 1


def test_a_kernel_that_takes_no_program_is_named(installed: Installed) -> None:
    """As in a container, or under a supervisor, that has dropped what bpf(2) needs."""
    drop = "setpriv --bounding-set=-sys_admin,-bpf --inh-caps=-sys_admin,-bpf "
    done = on_node(installed, f"{drop} oci-gpu-hook doctor || echo $?")
    line = next(line for line in done.out.splitlines() if "eBPF" in line)
    assert line.startswith("fail"), done.out
    assert "the kernel takes no device program from root: Operation not permitted" in line
    assert done.out.endswith("1\n")


def test_every_remedy_of_a_file_mends_it(installed: Installed) -> None:
    """The remedies are commands: run, they mend what they were named for."""
    chosen = [
        item
        for item in PLANTED
        if item.name
        in {
            "inventory-not-saved",
            "masked-by-a-file-of-its-name",
            "masked-by-an-empty-file",
            "registration-for-others-to-write",
            "linked-file-for-others-to-write",
            "drop-in-for-others-to-write",
            "a-version-that-engines-do-not-know",
            "state-for-others-to-write",
            "a-file-where-the-state-goes",
            "two-versions-of-ours",
            "NVIDIAs-own-hook",
            "narrow-nodes",
            "settings-for-others-to-write",
            "settings-that-cannot-be-read",
            "CDI-spec-older-than-the-driver",
            "stale-ld.so.cache",
        }
    ]
    mend = """
python3 -c '
import json, subprocess, sys
for item in json.loads(subprocess.run(["oci-gpu-hook", "doctor", "--json"], stdout=subprocess.PIPE).stdout)["findings"]:
    if item["remedy"]:
        subprocess.run(item["remedy"], shell=True, stdout=subprocess.DEVNULL)
'
"""
    for planted in chosen:
        # A cache that ldconfig has just written makes the saved inventory stale: mended in a second round.
        code, said = doctor(installed, planted.script + mend + mend, faults=planted.faults)
        left = [item for item in said["findings"] if item["level"] != "pass"]
        assert (code, left) == (0, []), planted.name


def test_text_and_json_say_the_same(installed: Installed) -> None:
    script = "rm /usr/share/containers/oci/hooks.d/oci-gpu-hook.json\n"
    done = on_node(installed, f"{script}oci-gpu-hook doctor || oci-gpu-hook doctor --json || true")
    text, _, rest = done.out.partition("{\n")
    for item in json.loads("{" + rest)["findings"]:
        assert f"{item['level']:6}{item['check']}" in text
        assert item["seen"] in text
        assert item["remedy"] in text
