# SPDX-License-Identifier: Apache-2.0
"""``validate`` on the simulated node: all steps pass, then planted faults fail the step that they are of.

Each row has a mount namespace of its own, so that one node serves them all, four at a time; every GPU has a fault of
its own.  A new procfs shows no simulated driver: the runtime here puts it into containers, and becomes runc or crun.
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.gpunode import description
from tests.gpunode.faults import FAULTS
from tests.integration.engines import SIMULATED, in_turn, on_node

NODE = description.load("h100x8")
FIRST = NODE.gpus[0]
# The first one's, as a fault tells it.
LIED = f"GPU-{'1' if FIRST.uuid[4] == '0' else '0'}{FIRST.uuid[5:]}"
OTHERS = f"{FIRST.uuid[:-2]}{int(FIRST.uuid[-2:], 16) ^ 1:02x}"

TOOLS = """
DESCRIPTION=/proc/driver/gpunode/description
NVIDIA=/proc/driver/nvidia
LIBCUDA=$(ls /usr/lib*/libcuda.so.[0-9]*.* /usr/lib*/*/libcuda.so.[0-9]*.* 2>/dev/null | grep -v i386 | head -n 1)
PYNVML=$(/usr/bin/python3 -Ic 'import sys; sys.path.append("/usr/lib/oci-gpu-hook/vendor")
import pynvml; print(pynvml.__file__)')
REGISTRATION=/usr/share/containers/oci/hooks.d/oci-gpu-hook.json
ENTRY=/usr/libexec/oci/hooks.d/oci-gpu-hook
# Puts a file of this text in the place of another, and makes a program of it.
instead() { set -- $1 $(mktemp -p /run/made); cat >$2; chmod 0755 $2; mount --bind $2 $1; }
program() { cat >/usr/bin/$1; chmod 0755 /usr/bin/$1; }
# What is in /run as this row's own: validations wait for one another.
own() { cp -a /run/oci-gpu-hook /run/made/own-$$; mount --bind /run/made/own-$$ /run/oci-gpu-hook; }
oci() { oci-gpu-hook "$@"; }
edited() { sed "$1" $2 | instead $2; }
# What is left of containers in the state's folder and in cgroups.
left() { ls -d /run/oci-gpu-hook-validate-* /sys/fs/cgroup/*oci-gpu-hook-validate-* 2>/dev/null || true; }
validate() {
    code=0
    said=$(oci validate --json "$@") || code=$?
    echo "$code $said" | tr -d '\\n'
}
"""
SET_UP = f"""
for name in runc crun; do install -m 0755 {SIMULATED} /usr/bin/simulated-$name; done
mkdir -p /run/made/none
printf 'runtime = /usr/bin/simulated-runc\\n' >/etc/oci-gpu-hook.conf
cat >/run/made/tools <<'TOOLS'
{TOOLS}
TOOLS
. /run/made/tools
oci-gpu-hook inventory refresh >/dev/null
"""


class Planted(NamedTuple):
    """Faults: what plants them, the command's words, the step that fails, the exit code, pieces of what it says."""

    plant: str
    words: str
    step: str
    code: int
    said: tuple[str, ...]


def described(*lines: str) -> str:
    return f"{{ cat $DESCRIPTION; printf '%s\\n' {' '.join(repr(line) for line in lines)}; }} | instead $DESCRIPTION"


def line_of(fault: str, node: description.Description = NODE) -> str:
    """What one of the node's own faults adds to the description."""
    content: Any = SimpleNamespace(proc={"gpunode/description": ""}, node=node)
    FAULTS[fault].plant(content)
    return str(content.proc["gpunode/description"]).strip()


# In seconds, for what hangs: beside it others must be through, on a machine that is busy with other things, too.
SECONDS = 15


def nvml(fault: str, said: str) -> Planted:
    return driver(described(line_of(fault)), said)


def cuda(said: dict[str, str]) -> Planted:
    """A fault of libcuda on each GPU, in turn."""
    lines = [line_of(fault).replace(" 0 ", f" {gpu} ") for gpu, fault in enumerate(said)]
    pieces = [f"GPU {gpu}: {piece}" for gpu, piece in enumerate(said.values())]
    words = f"workload --timeout {SECONDS}"
    return Planted(described(*lines), words, "workload", 1, tuple(pieces))


def driver(plant: str, *said: str) -> Planted:
    seconds = SECONDS if "hangs" in plant else 600
    return Planted(plant, f"driver --timeout {seconds}", "driver", 6, said)


def hook(plant: str, said: str, words: str = "", code: int = 1) -> Planted:
    return Planted(plant, f"hook {words}", "hook", code, (said,))


def program(name: str, **does: str) -> str:
    cases = " ".join(f'*" {word} "*) {line} ;;' for word, line in does.items())
    text = f'#!/bin/sh\ncase "$*" in {cases} esac\nexec simulated-runc "$@"\n'
    return f"program {name} <<'END'\n{text}END\n"


# fmt: off
PLANTED = {
    "NVML hangs": nvml("nvml-hangs", f"NVML: NVML did not answer within {SECONDS} seconds"),
    "NVML fails": nvml("nvml-errors", "NVML: NVML cannot be asked: NVMLError_Unknown"),
    "NVML goes away": nvml("nvml-goes", "NVML: NVML cannot be asked: NVMLError_Unknown"),
    "NVML lies": nvml("nvml-lies", f"is {LIED} for NVML, {FIRST.uuid} for the kernel"),
    "no module": Planted("mount --bind /run/made/none $NVIDIA", "", "driver", 6,
        ("driver: NVIDIA device nodes are there, but /proc/driver/nvidia is not: the kernel module is not loaded",)),
    "no module for one step": Planted("mount --bind /run/made/none $NVIDIA", "workload", "workload", 6,
        ("the kernel module is not loaded",)),
    "no GPU": driver("mount --bind /run/made/none $NVIDIA/gpus", "GPUs: the driver is loaded and drives no GPU"),
    "another module": driver("edited s/580.65.06/580.99.09/ $NVIDIA/version",
        "libraries: libcuda is of version 580.65.06, the kernel module of 580.99.09", "NVML: NVML cannot be asked"),
    "much": driver(
        f"edited /nvidia-uvm/d /proc/devices; mount --bind /dev/full /dev/nvidia{FIRST.minor}; "
        "instead $LIBCUDA </dev/null; " + described(line_of("gpu-lost")),
        "nodes: nvidia-uvm is not loaded",
        f"nodes: /dev/nvidia{FIRST.minor} is device 1:7, the driver's is 195:{FIRST.minor}",
        "libraries: libcuda of version 580.65.06 is cut off",
        f"NVML: NVML lacks 0000{FIRST.bus_id}, which the kernel has"),
    "calls of CUDA": cuda({
        "cuda-crashes": "the process was killed in cu",
        "cuda-not-ready": "cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY (system not yet initialized)",
        "cuda-busy": "cuDevicePrimaryCtxRetain failed: CUDA_ERROR_DEVICE_UNAVAILABLE",
        "cuda-no-memory": "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (out of memory)",
        "cuda-no-jit": "cuModuleLoadData failed: CUDA_ERROR_JIT_COMPILER_NOT_FOUND (PTX JIT compiler",
        "cuda-no-launch": "cuLaunchKernel failed: CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)",
        "cuda-hangs": f"no answer within {SECONDS} seconds: cuInit does not return"}),
    "answers of CUDA": cuda({
        "cuda-other": f"CUDA gave {OTHERS} in the place of {FIRST.uuid}",
        "cuda-lost": "cuCtxSynchronize failed: CUDA_ERROR_UNKNOWN (unknown error)",
        "cuda-wrong": "5 of 50000 sums differ: the first is element 4711, 7066.75 was expected and 7067.75 came",
        "cuda-stuck": f"no answer within {SECONDS} seconds: cuCtxSynchronize does not return"}),
    "a registration that is cut off": hook("instead $REGISTRATION </dev/null",
        "oci-gpu-hook.json stops every container: it is not JSON"),
    "an unregistered hook": hook(
        """echo '{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": true}, "stages": ["""
        """"poststop"]}' | instead $REGISTRATION""",
        "container: the hook is not registered with any engine"),
    "a hook that does nothing": hook("printf '#!/bin/sh\\nexit 0\\n' | instead $ENTRY",
        "nodes is there: the hook did not run"),
    "a hook that fails": hook("printf '#!/bin/sh\\necho broken >&2; exit 5\\n' | instead $ENTRY", "broken"),
    "a node of no GPU": hook(
        """sed 's/^    with open.path, "w".*/    config["linux"]["devices"] = [{"type": "c", """
        """"path": "\\/dev\\/nvidia9", "major": 195, "minor": 9}]\\n&/' /usr/bin/simulated-runc | """
        "instead /usr/bin/simulated-runc",
        "GPUs: the container has /dev/nvidia9, which is not a GPU's"),
    "no runtime": hook("", "the runtime /opt/none is not a program", "--runtime /opt/none", 4),
    "another pid namespace": hook("oci() { unshare --pid --fork oci-gpu-hook \"$@\"; }",
        "/proc is of another pid namespace: a pod that does this needs hostPID"),
    "sections that are refused": hook("printf '%s\\n' 'unmatched-sections = refuse' '[namespace a]' "
        "'records = no' >/run/made/refuse.conf", "unmatched-sections = refuse, and its container has no namespace",
        "--config /run/made/refuse.conf"),
    "a runtime that fails": hook("", "container: false create failed: it ended with 1", "--runtime /bin/false"),
    "a runtime that does nothing": hook("", "container: it cannot be made: No such file", "--runtime /bin/true"),
    "a runtime that hangs": hook("printf '#!/bin/sh\\nsleep 1000\\n' | program slow",
        "slow create did not end within 1 seconds", "--runtime slow --timeout 1"),
    "a start that hangs": hook(program("late", start="sleep 1000"),
        f"late start did not end within {SECONDS} seconds", f"--runtime late --timeout {SECONDS}"),
    "a start that starts nothing, and no deletion": hook(program("idle", start="exit 0", delete="exit 1"),
        f"its program did not end within {SECONDS} seconds", f"--runtime idle --timeout {SECONDS}"),
}
# fmt: on


def parsed(line: str) -> tuple[int, dict[str, Any]]:
    code, _, rest = line.partition(" ")
    return int(code), json.loads(rest)


def test_a_planted_fault_fails_its_step_and_leaves_nothing() -> None:
    before, rows = SET_UP, {}
    for number, (name, it) in enumerate(PLANTED.items()):
        script = f". /run/made/tools\nown\n{it.plant or 'true'}\nvalidate {it.words}"
        before += f"cat >/run/made/row-{number} <<'ROW'\n{script}\nROW\n"
        rows[name] = f"cat /run/made/said-{number}"
    line = "unshare --mount sh -eu /run/made/row-$0 >/run/made/said-$0"
    before += f"seq 0 {len(PLANTED) - 1} | xargs -P 8 -n 1 sh -c '{line}'\n"
    rows["end"] = "left; pgrep -f -- '--root /run/oci-gpu-hook-[v]alidate-' || echo nobody"
    found = in_turn(rows, before)
    assert found.pop("end") == ["nobody"]
    for name, planted in PLANTED.items():
        print(f"planted: {name}: {found[name]}")
        code, document = parsed(found[name][-1])
        assert code == planted.code
        steps = {it["name"]: it for it in document["steps"]}
        step = steps[planted.step]
        said = [f"{it['check']}: {it['seen']}" for it in step["findings"] if it["level"] == "fail"]
        for piece in planted.said:
            assert any(piece in sentence for sentence in [*said, step["why"]])
        assert [it["outcome"] for it in steps.values() if it != step] in ([], ["skipped"] * 2)
    answers = parsed(found["answers of CUDA"][-1])[1]["steps"][0]["findings"]
    assert [it["level"] for it in answers] == ["fail"] * 4 + ["pass"] * 4


EVERYTHING = """
oci-gpu-hook validate --runtime simulated-crun
find /run/nvidia /run/oci-gpu-hook/validation.json -type f -printf '%p %m %u\\n' | sort
cat /run/nvidia/validations/driver-ready; left
"""


@pytest.mark.parametrize(("name", "cgroup"), [("h100mig", "v2"), ("v100", "v1")])
def test_all_steps_pass_and_their_files_are_made(name: str, cgroup: str) -> None:
    settings = "settings=/etc/oci-gpu-hook.conf\n"
    settings += "echo 'validation-folder = /run/nvidia/validations' >>$settings\n"
    settings += "echo 'accept-environment = privileged' >>$settings\n"
    # Its container is not counted, and gets a GPU that is not healthy, for this clears it.
    settings += "printf 'gpu-holders = 1\\nunhealthy = refuse\\ngpu-metrics = /run/gpus.prom\\n' >>$settings\n"
    bus = description.load(name).gpus[0].bus_id[:-2]
    settings += f"rm /dev/kmsg; echo '4,5,1,-;NVRM: Xid (PCI:{bus}): 79, pid=1' >/dev/kmsg\n"
    settings += "oci-gpu-hook metrics --gpus --write; ls /run/oci-gpu-hook/unhealthy\n"
    out = on_node(SET_UP + settings + EVERYTHING, description=name, cgroup=cgroup).printed()
    assert "\ndriver: passed\nhook: passed\nworkload: passed\n" in out
    waits = re.findall("^wait  ([^ ]+)", out, re.MULTILINE)
    assert waits == ["NVML", "container", "GPUs"]
    node = description.load(name)
    for gpu in node.gpus:
        checks = [f"MIG {gpu.nvml_index}:{number}" for number in range(len(gpu.mig))]
        for check in checks or [f"GPU {gpu.nvml_index}"]:
            line = next(line for line in out.splitlines() if f"pass  {check} " in line)
            assert f"Test PASSED: 50000 elements on {gpu.model}" in line
    files = ["cuda-ready", "driver-ready", "toolkit-ready"]
    listed = [f"/run/nvidia/validations/{file} 644 root" for file in files]
    assert "\n".join([*listed, "/run/oci-gpu-hook/validation.json 644 root"]) in out
    assert out.endswith(
        "IS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=/\nDRIVER_ROOT_CTR_PATH=/host\n"
        "NVIDIA_DEV_ROOT=/\nDEV_ROOT_CTR_PATH=/host\n"
    )


FOLDER = "/run/nvidia/validations"
STATUS = """
settings() { printf '%s\\n' "$@" >>/etc/oci-gpu-hook.conf; }
settings "validation-folder = /run/nvidia/validations"
mkdir -p /run/nvidia/validations
said() { code=0; oci-gpu-hook validate "$@" 2>&1 || code=$?; echo "code $code"; ls $FOLDER || true; }
"""
# What is planted, the command's words, the exit code, what is said, and the files that are there then.
FILES = {
    "a read-only folder": (
        "mount -t tmpfs -o ro,mode=755 none $FOLDER", "driver", 7,
        "cannot remove /run/nvidia/validations/driver-ready: Read-only file system", ""),
    "a read-only folder, and no driver": (
        "mount -t tmpfs -o ro,mode=755 none $FOLDER; mount --bind /run/made/none $NVIDIA", "driver", 6,
        "cannot remove /run/nvidia/validations/driver-ready: Read-only file system", ""),
    "a way of others": (
        "mount -t tmpfs -o mode=777 none /run/nvidia; mkdir $FOLDER", "driver", 4,
        "validation-folder /run/nvidia/validations is not root's alone: 'validations' lies in a folder", ""),
    "a umask of 0": (
        "mount -t tmpfs -o mode=755 none /run/nvidia; umask 0", "driver", 0, "driver: passed", "driver-ready"),
    "no folder, and none to be made": (
        "mount -t tmpfs -o ro,mode=755 none /run/nvidia", "driver", 4,
        "cannot make validation-folder /run/nvidia/validations: Read-only file system", None),
    "a file for a folder": (
        "mount -t tmpfs -o mode=755 none /run/nvidia; : >$FOLDER", "driver", 4,
        "cannot make validation-folder /run/nvidia/validations: Not a directory", None),
    "a folder of others": (
        "mount -t tmpfs -o mode=777 none $FOLDER", "driver", 4,
        "others than root may write validation-folder /run/nvidia/validations", ""),
    "a folder for a file": (
        "mount -t tmpfs -o mode=755 none $FOLDER; mkdir $FOLDER/driver-ready", "driver", 7,
        "cannot remove /run/nvidia/validations/driver-ready: Is a directory", "driver-ready"),
    "a result of before": (
        "touch $FOLDER/driver-ready $FOLDER/toolkit-ready", "hook --runtime /bin/false", 1,
        "hook: failed, container: false create failed: it ended with 1", "driver-ready"),
    "no pynvml": (
        "echo 'raise ImportError' | instead $PYNVML", "", 0,
        "driver: passed\nhook: passed\nworkload: passed", "cuda-ready driver-ready toolkit-ready"),
}  # fmt: skip


def test_files_that_cannot_be_made_are_told_and_one_of_before_goes() -> None:
    before = f"{SET_UP}FOLDER={FOLDER}\nexport FOLDER\n{STATUS}"
    before += f"cat >>/run/made/tools <<'TOOLS'\n{STATUS}TOOLS\n"
    rows = {
        name: f"unshare --mount sh -eu <<'ROW'\n. /run/made/tools\n{plant}\nsaid {words}\nROW"
        for name, (plant, words, *_) in FILES.items()
    }
    rows["a user"] = "setpriv --reuid 65534 --clear-groups oci-gpu-hook validate driver hook || echo $?"
    rows["an end"] = (
        "printf '#!/bin/sh\\necho \"$*\" >>/run/made/words\\nsleep 1000\\n' | program slow\n"
        # A user who runs the tests by nohup ignores SIGHUP, and so would it.
        "env --default-signal=HUP oci-gpu-hook validate hook --runtime slow --timeout 600 >/dev/null & validating=$!\n"
        "until pgrep -x slow >/dev/null; do sleep 0.1; done\n"
        "oci-gpu-hook validate driver --timeout 0.5 2>&1 || echo $?\n"
        # The second comes while the runtime, which hangs at that too, deletes the container.
        "kill -HUP $validating; until grep -q delete /run/made/words; do sleep 0.1; done; kill -TERM $validating\n"
        'wait $validating || echo $?; echo "left:$(left)"'
    )
    rows["lines"] = (
        f"unshare --mount sh -eu <<'ROW'\n. /run/made/tools\nown\n{described(line_of('nvml-hangs'))}\n"
        'oci-gpu-hook validate driver --timeout 3 | while read -r line; do echo "$(date +%s.%N) $line"; done\nROW'
    )
    rows["a reader that goes away"] = "oci-gpu-hook validate driver | true"
    rows["record"] = "cat /run/oci-gpu-hook/validation.json"
    found = in_turn(rows, before, description="v100")
    for name, (_, _, code, said, files) in FILES.items():
        print(f"{name}: {found[name]}")
        at = found[name].index(f"code {code}")
        assert said in "\n".join(found[name][:at])
        assert files is None or " ".join(found[name][at + 1 :]) == files
    at = next(at for at, line in enumerate(found["no pynvml"]) if line.startswith("warn  NVML"))
    assert "fix: apt install python3-pip && " in found["no pynvml"][at + 1]
    assert found["a user"][-3:] == [
        "driver: passed", "hook: skipped, only root can make its container", "1",
    ]  # fmt: skip
    assert found["an end"] == [
        "oci-gpu-hook: another validation has not ended within 0.5 seconds (try again, or give a longer --timeout)",
        "1", "129", "left:",
    ]  # fmt: skip
    moments = {line.split(" ", 1)[1][:10]: float(line.split()[0]) for line in found["lines"]}
    assert moments["fail  NVML"] - moments["wait  NVML"] > 2, "each line comes when its check has ended"
    steps = {step["name"]: step for step in json.loads(found["record"][0])["steps"]}
    # Of the last run of each as root: one that was ended has not passed.
    assert (steps["driver"]["outcome"], steps["hook"]["outcome"]) == ("passed", "failed")
    assert steps["hook"]["why"] == "it did not end"
