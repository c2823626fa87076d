# SPDX-License-Identifier: Apache-2.0
"""``doctor`` on the simulated node: all is well, then one planted fault at a time, each named with its remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration import roots
from tests.integration.engines import in_turn, on_node
from tests.integration.migdevices import CAPABILITIES, MADE_ANEW

# What the node lacks of a host that is set up: ranges of ids, a runtime that images have no word with, whichever podman
# there is, and the inventory that the service would save.
SET_UP = """
for file in /etc/subuid /etc/subgid; do echo user:100000:65536 >$file; done
oci-gpu-hook inventory refresh >/dev/null 2>&1 || true
# Remedies are run: this folder is the machine's own otherwise.
mkdir -p /opt /var/lib/lxc; mount -t tmpfs none /opt
HOOKS=/usr/share/containers/oci/hooks.d
ETC=/etc/containers/oci/hooks.d
mkdir -p $ETC /etc/containers/containers.conf.d /etc/crio/crio.conf.d /etc/cdi /etc/docker
printf '[engine]\\nruntime = "runc"\\n' >/etc/containers/containers.conf.d/00-runtime.conf
command -v dockerd >/dev/null || install -m 0755 /bin/true /usr/bin/dockerd
LINK=/usr/bin/nvidia-container-runtime-hook
ln -sf ../libexec/oci/hooks.d/oci-gpu-hook $LINK
JSON=/etc/docker/daemon.json
VENDORS=/etc/oci-gpu-hook/vendors
with_crio() { install -m 0755 /bin/true /usr/bin/crio; }
"""
# Several faults are planted on one node in turn, each on what the first was planted on.
RESTORE = f"""
LIBCUDA=$(find /usr/lib/{roots.MULTIARCH} /usr/lib64 -name 'libcuda.so.[0-9]*.*' -type f 2>/dev/null | head -n 1)
PLACES="usr/share/containers/oci usr/libexec/oci usr/libexec/oci-gpu-hook-start usr/lib/oci-gpu-hook etc/containers
    etc/crio etc/cdi etc/subuid etc/docker ${{LINK#/}} run/oci-gpu-hook dev/nvidiactl ${{LIBCUDA#/}}"
tar -C / -cf /tmp/kept $PLACES
USERS=/sys/fs/cgroup/devices
[ -d $USERS ] || USERS=/sys/fs/cgroup
USERS=$USERS/libpod-$(printf %064d 1).scope
restore() {{
    [ ! -d $USERS ] || {{ kill $(cat $USERS/cgroup.procs); until rmdir $USERS; do sleep 0.1; done 2>/dev/null; }}
    umount /usr/bin/podman 2>/dev/null || :
    umount /var/lib/lxc 2>/dev/null || :
    for it in $PROGRAMS; do [ ! -e $it.away ] || mv $it.away $it; done
    (cd / && rm -rf $PLACES etc/oci-gpu-hook* usr/bin/crio $LINK.other usr/local/*/nvidia* \\
        usr/bin/nvidia-container-* usr/bin/kubelet etc/containerd opt/* && tar -xpf /tmp/kept)
}}
# Programs are moved away, as no package may be.
command -v containerd >/dev/null || install -m 0755 /bin/true /usr/bin/containerd
PROGRAMS="/usr/bin/podman /usr/sbin/dockerd /usr/bin/dockerd /usr/bin/containerd
    /usr/share/lxc/hooks/nvidia /etc/enroot/hooks.d/98-nvidia.sh /usr/bin/apptainer /usr/bin/ch-fromhost
    /etc/singularity/singularity.conf"
without() {{ for it in $PROGRAMS; do case $it in *$1) [ ! -e $it ] || mv $it $it.away ;; esac; done; }}
alone() {{ without podman; without dockerd; }}
runs() {{
    plugin='[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.%s.options]'
    mkdir -p /etc/containerd
    printf "$plugin\\nBinaryName = \\"%s\\"\\n" $1 $2 >/etc/containerd/config.toml
}}
dockers_runtime_is() {{ echo '{{"runtimes": {{"gpu": {{"path": "'$1'"}}}}, "default-runtime": "gpu"}}' >$JSON; }}
crios_runtime_is_nvidias() {{
    printf '[crio.runtime]\\ndefault_runtime = "nvidia"\\n[crio.runtime.runtimes.nvidia]\\n
runtime_path = "/usr/bin/nvidia-container-runtime"\\n' >/etc/crio/crio.conf.d/99-nvidia.conf
}}
reads_both() {{
    printf '[engine]\\nhooks_dir = [\\n"%s", # ours\\n"%s"]\\n' $HOOKS $ETC \\
        >/etc/containers/containers.conf.d/10-hooks.conf
}}
# As podman says its version; crun is what podman takes where no file says another.
podman_is() {{
    rm /etc/containers/containers.conf.d/00-runtime.conf
    printf '#!/bin/sh\\necho podman version %s\\n' $1 >/run/podman
    chmod 0755 /run/podman
    mount --bind /run/podman /usr/bin/podman
}}
"""
DOCTOR = "\n{ oci-gpu-hook doctor --json || echo $?; } | tr -d '\\n' | tee /tmp/said; echo\n"
# The remedies of what was said are commands.
FIX = """python3 -c '
import json, subprocess
said = json.JSONDecoder().raw_decode(open("/tmp/said").read())[0]
for item in said["findings"]:
    if item["remedy"]:
        subprocess.run(item["remedy"], shell=True, stdout=subprocess.DEVNULL)
'"""


class Planted(NamedTuple):
    """What doctor must say of a fault; the remedies of a fixed one are run, and nothing is left to say then.

    Where what is planted passes, there is nothing else to say.
    """

    level: str
    check: str
    seen: str
    remedy: str = ""
    fixed: bool = False


# By the faults that the node has.
BROKEN = {
    "no-proc-driver": Planted("fail", "driver", "the kernel module is not loaded", "modprobe nvidia"),
    "no-proc-driver no-nodes": Planted(
        "fail", "driver", "this host has no NVIDIA driver", "apt install nvidia-driver nvidia-smi"
    ),
    "library-version": Planted(
        "fail", "libraries", "libcuda is of version 580.65.07, the kernel module of 580.65.06", "systemctl reboot"
    ),
    "driver-version": Planted(
        "fail",
        "libraries",
        "libcuda is of version 580.65.06, the kernel module of 580.65.07",
        """apt install --only-upgrade '?and(?installed,?name("^lib(cuda1|nvidia-)"))'""",
    ),
    "no-libcuda": Planted(
        "fail",
        "libraries",
        "libcuda of version 580.65.06 is missing: compute is not served",
        """apt install '?and(?name("^lib(cuda1|nvidia-(.*-)?(cuda1|ml1|compute-580))$"),"""
        """?version("^580[.]65[.]06"))'""",
    ),
    "no-gpus": Planted("fail", "GPUs", "the driver is loaded and drives no GPU", "journalctl --dmesg"),
    "no-uvm": Planted("fail", "nodes", "nvidia-uvm is not loaded", "modprobe nvidia-uvm"),
    "no-uvm-nodes": Planted(
        "warn", "nodes", "/dev/nvidia-uvm and 1 more missing", "oci-gpu-hook inventory refresh --nodes"
    ),
    "wrong-node": Planted("fail", "nodes", "is device 1:7, the driver's is 195:", "rm /dev/nvidia"),
}


def read(row: str) -> tuple[str, Planted]:
    """Commands; then level, check and sentence; then the remedy, which is run and mends it if its word is "fix"."""
    script, said, *remedy = row.split("\n  ")
    (level, what), (verb, _, text) = said.split(" ", 1), (remedy or [""])[0].partition(": ")
    check, seen = what.split(": ", 1)
    return script, Planted(level, check, seen, text, verb == "fix")


ROWS = (Path(__file__).parents[1] / "data/doctor.txt").read_text().strip().split("\n\n")
PLANTED = dict(map(read, ROWS))


def parsed(said: str) -> tuple[int, dict[str, Any]]:
    """The exit code that stands behind doctor's document where it is not 0, and the document."""
    document, end = json.JSONDecoder().raw_decode(said)
    return int(said[end:].strip() or 0), document


def judge(planted: Planted, said: str) -> None:
    code, document = parsed(said)
    found = [item for item in document["findings"] if item["level"] in (planted.level, "warn", "fail")]
    assert planted.level != "pass" or {item["level"] for item in found} == {"pass"}, found
    its = [item for item in found if (item["level"], item["check"]) == (planted.level, planted.check)]
    assert any(planted.seen in item["seen"] and planted.remedy in item["remedy"] for item in its), found
    failed = len([item for item in found if item["level"] == "fail"])
    assert (document["failed"], code) == (failed, 1 if failed else 0)


def passes(said: str) -> None:
    document = json.loads(said)
    assert [item for item in document["findings"] if item["level"] != "pass"] == []
    assert (document["failed"], document["warned"]) == (0, 0)
    checks = {item["check"] for item in document["findings"]}
    assert {"hook in podman", "eBPF", "nodes", "rootless"} <= checks


@pytest.mark.parametrize("faults", BROKEN)
def test_a_broken_node_is_named_with_its_remedy(faults: str) -> None:
    done = on_node(f"{SET_UP}{DOCTOR}", faults=tuple(faults.split()))
    assert "Traceback" not in done.err, done.err
    judge(BROKEN[faults], done.out.strip())


def test_a_planted_fault_is_named_with_its_remedy_which_mends_it() -> None:
    scripts = {"nothing": DOCTOR, "newer podman": f"restore\npodman_is 4.6.0 >&2\n{DOCTOR}"}
    for number, (script, planted) in enumerate(PLANTED.items()):
        then = f"{FIX}{DOCTOR}" if planted.fixed else ""
        scripts[str(number)] = f"restore\n(\n{script}\n) >&2\n{DOCTOR}{then}"
    found = in_turn(scripts, SET_UP + RESTORE)
    for name in ("nothing", "newer podman"):
        passes(found.pop(name)[0])
    for (said, *fixed), (script, planted) in zip(found.values(), PLANTED.items()):
        print(f"planted: {script}")
        judge(planted, said)
        assert len(fixed) == planted.fixed
        for text in fixed:
            passes(text)


@pytest.mark.parametrize(("description", "cgroup"), [("v100", "v1"), ("h100mig", "v2")])
def test_all_passes_on_a_whole_node(description: str, cgroup: str) -> None:
    done = on_node(f"{SET_UP}with_crio\n{DOCTOR}", description=description, cgroup=cgroup)
    passes(done.out)
    assert '"hook in CRI-O"' in done.out


GENERATE = "oci-gpu-hook cdi generate --output /etc/cdi/gpu.yaml"
OLD = "/etc/cdi/gpu.yaml: it does not say what the host has now"
STALE = Planted("fail", "CDI", OLD, f"oci-gpu-hook inventory refresh && {GENERATE}")


def test_a_stale_mig_name_in_a_spec_is_named_with_its_remedy_which_fixes_it() -> None:
    """Of an instance that is gone, and of one that was made again."""
    script = f"""{SET_UP}{GENERATE} >&2
rm -r {CAPABILITIES}/gpu1/mig/gi13; oci-gpu-hook inventory refresh >&2
{DOCTOR}{FIX}{DOCTOR}
({MADE_ANEW}oci-gpu-hook inventory refresh) >&2
{DOCTOR}{FIX}{DOCTOR}"""
    destroyed, fixed, made_again, fixed_again = in_turn({"mig": script}, description="h100mig")["mig"]
    for said in (destroyed, made_again):
        judge(STALE, said)
    for said in (fixed, fixed_again):
        passes(said)
