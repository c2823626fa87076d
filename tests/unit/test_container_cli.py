# SPDX-License-Identifier: Apache-2.0
"""The words of nvidia-container-cli: what they ask for, and which are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from oci_gpu_hook import apply, asking
from oci_gpu_hook.cli import VERSION
from oci_gpu_hook.container import rootfs
from oci_gpu_hook.container.process import Process
from oci_gpu_hook.errors import ApplyError, UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import mountinfo
from oci_gpu_hook.node.diagnosis import PASS, WARN, enginecheck
from oci_gpu_hook.node.gpus import driverlist
from oci_gpu_hook.operations import Device, Mount, OpenCgroup, Service
from oci_gpu_hook.planning.plan import Plan
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request import containercli, parse
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.runtime import configure
from tests.unit import cdi_engine, hosts
from tests.unit.containers import CONTAINER, DEBIAN
from tests.vocabulary.host import FACTS, plant

if TYPE_CHECKING:
    from oci_gpu_hook.operations import Operation

ROOT = Path(__file__).resolve().parents[2]

DEFAULTS = Settings()


def request(words: str, settings: Settings = DEFAULTS) -> Request | None:
    return parse.parse_request(containercli.parse_call(words.split()).inputs(), settings)[0]


@pytest.mark.parametrize(
    ("words", "devices", "capabilities", "requirements"),
    [
        # What LXC, enroot, apptainer and ctr say is said by them in tests/integration and tests/docker.
        ("configure --utility --require=a --require=b R", ("none",), ("utility",), ("a", "b")),
        ("configure -d 0 -d1 -cu R", ("0", "1"), ("utility", "compute"), ()),
        ("configure --device= --utility R", ("none",), ("utility",), ()),
        ("configure R --device 0:1 --ngx", ("0:1",), ("ngx",), ()),
        ("configure --device=0 R", ("0",), ("utility", "compute"), ()),
    ],
)
def test_callers_words(words: str, devices: Any, capabilities: Any, requirements: Any) -> None:
    found = request(words)
    assert found is not None
    assert (found.devices, found.capabilities, found.requirements) == (devices, capabilities, requirements)


def test_channels_add_up() -> None:
    found = request("configure --device=0 --imex-channel=3 --imex-channel=7 R")
    assert found is not None and found.imex_channels == ("3", "7")


def test_options_have_their_place() -> None:
    """-u is --user before the command, and --utility behind it; --user may have a value."""
    call = containercli.parse_call(["-u", "--user=1000:1000", "-r", "/", "configure", "-u", "-p", "7", "R"])
    assert (call.has("user"), call.has("utility"), call.pid(), call.root) == (True, True, 7, "R")
    assert containercli.parse_call(["info", "--csv"]).has("csv")
    assert containercli.parse_call(["list", "--libraries", "--binaries"]).options.keys() == {"libraries", "binaries"}


@pytest.mark.parametrize(
    "words",
    [
        *("", "frobnicate", "configure", "configure a b", "configure --unknown R", "configure --device", "list R"),
        *("info --device=0", "configure --pid= R", "configure --pid=-1 R", "configure --pid=0 R"),
        *("configure --pid=99999999999 R", "--root=/opt/driver configure R"),
    ],
)
def test_unknown_words_are_usage(words: str) -> None:
    with pytest.raises(UsageError):
        containercli.parse_call(words.split()).pid()


def test_the_settings_hold_for_words_but_for_the_engines_own() -> None:
    """Without --pid it is not known whose words they are."""
    strict = Settings(accept_environment="privileged")
    assert request("configure --device=void --utility R") is request("configure --device=0 R", strict) is None
    found = request("configure --pid=1 --device=0 R", strict)
    assert found is not None and found.devices == ("0",)


def test_a_list_needs_no_privilege(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path)
    cdi_engine.node(tmp_path, tmp_path, FACTS)
    monkeypatch.setattr(driverlist, "HostRoot", lambda: HostRoot(str(tmp_path)))

    def listed(*words: str) -> set[str]:
        return {*driverlist.paths(containercli.parse_call(["list", *words]))}

    assert {"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1"} <= listed("--mig-config=all", "--device=all")
    # As in NVIDIA's src/cli/list.c: a channel goes with everything, and with any part.
    channel = "/dev/nvidia-caps-imex-channels/channel0"
    assert listed("--compat32") == listed("--mig-config=all") == set()
    assert listed("--imex-channel=0") - listed() == {channel} and "/dev/nvidia0" in listed("--imex-channel=0")
    assert listed("--imex-channel=0", "--ipcs") == {channel, *listed("--ipcs")}


def mount(path: str) -> Mount:
    return Mount(path, path, (), True, "")


def service(path: str) -> Service:
    return Service(path, path, 0, True, "")


# What goes with a word; and what goes with none, though its path has some of their names in it.
GOES: dict[str, Operation] = {
    "no-devbind": Device("/dev/nvidia0", "c", 195, 0, "rw", 0o666, 0, 0, "/dev/nvidia0", True, ""),
    "no-persistenced": service("/run/nvidia-persistenced/socket"),
    "no-fabricmanager": service("/run/nvidia-fabricmanager/socket"),
    "no-gsp-firmware": mount("/lib/firmware/nvidia/580.65.06/gsp_ga10x.bin"),
}
CGROUP = "/sys/fs/cgroup/dev/firmware/nvidia-fabricmanager"
STAYS = (mount("/usr/lib64/libcuda.so.580.65.06"), OpenCgroup("v2", CGROUP, CGROUP, (), (), True, ""))


@pytest.mark.parametrize("word", ["cuda-compat-mode=disabled", "cuda-compat-mode=mount", *GOES])
def test_what_a_caller_does_not_want_is_left_out(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    seen: list[Any] = []

    def decide(_bundle: object, request: Request, allowed: Settings, *_: object, **_more: object) -> Plan:
        seen.append(allowed.cuda_forward_compatibility)
        return Plan(CONTAINER, DEBIAN, request, (*GOES.values(), *STAYS), ())

    def run_plan(plan: Plan, *_: object, **_more: object) -> tuple[str, ...]:
        seen.append(plan.operations)
        return ()

    monkeypatch.setattr(configure, "decide", decide)
    monkeypatch.setattr(apply, "run", run_plan)
    monkeypatch.setattr(Process, "caller", lambda: SimpleNamespace(pid=1, is_caller=False))
    monkeypatch.setattr(rootfs, "of_caller", lambda *_: SimpleNamespace(fd=-1))
    monkeypatch.setattr(asking.Question, "settings", lambda _: DEFAULTS)
    configure._configure(Progress(), containercli.parse_call(["configure", "--device=0", f"--{word}", "/r"]))
    assert seen == [not word.endswith("disabled"), (*[GOES[it] for it in GOES if it != word], *STAYS)]


def run(*words: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    code = "import sys\nfrom oci_gpu_hook.__main__ import main\nmain()"
    command = [sys.executable, "-c", code, "nvidia-container-cli", *words]
    return subprocess.run(command, cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def test_the_program_says_how_it_is_used() -> None:
    done = run("list", "x")
    first, second, *_ = done.stderr.splitlines()
    assert done.returncode == 2 and first == "oci-gpu-hook: list takes options only"
    assert second.startswith("usage: nvidia-container-cli ")
    for word in ("--help", "-h"):
        done = run("--user", word)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("usage: nvidia-container-cli ")
    for word in ("--version", "-V"):
        done = run(word, "info")
        assert (done.returncode, done.stderr, done.stdout) == (0, "", f"oci-gpu-hook {VERSION}\n")
    reader, unread = os.pipe()
    os.close(reader)
    full = "oci-gpu-hook: cannot go on: No space left on device\n"
    for output, said in ((unread, (0, "")), (os.open("/dev/full", os.O_WRONLY), (ApplyError.exit_code, full))):
        done = run("--help", stdout=output)
        assert (done.returncode, done.stderr) == said
        os.close(output)


def test_only_what_is_mounted_elsewhere_too_is_the_hosts() -> None:
    """The kernel writes a space in a mount point as an octal number; a name that only begins so lies elsewhere."""
    lines = [
        b"1 0 0:1 / / rw - ext4 /dev/a rw",
        b"2 1 0:2 / /my\\040root/dev rw - tmpfs none rw",
        b"3 1 0:3 / /my\\040rooted/dev rw - tmpfs none rw",
        b"4 1 0:4 / /my\\040root/run rw - tmpfs none rw",
        b"5 1 0:4 / /run rw - tmpfs none rw",
    ]
    text = [b"\n".join([*lines, b""])]
    asked = ["0:2", "0:3", "0:4", "0:5"]
    assert mountinfo.mounted(text, asked, "/my root") == {"0:3", "0:4"}
    assert mountinfo.mounted(text, asked) == {"0:2", "0:3", "0:4"}


OURS = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
SET = "singularity config global --set 'nvidia-container-cli path' /usr/bin/nvidia-container-cli"


@pytest.mark.parametrize(
    ("program", "line", "level", "says"),
    [
        ("", "", PASS, "is not there"),
        ("/usr/bin/nvidia-cli.real", "", WARN, "is /usr/bin/nvidia-cli.real, not this hook"),
        (OURS, "nvidia-container-cli path = /usr/bin/nvidia-container-cli", PASS, f"is {OURS}"),
        (OURS, "# nvidia-container-cli path =", WARN, "singularity.conf names none, so"),
        (OURS, "nvidia-container-cli path = /usr/bin/nvidia-cli.real", WARN, "singularity.conf names another, so"),
    ],
)
def test_doctor_says_what_the_callers_find(tmp_path: Path, program: str, line: str, level: str, says: str) -> None:
    files = ("usr/share/lxc/hooks/nvidia", "etc/singularity/singularity.conf")
    for name, text in (*zip(files, ("", line)), (OURS, ""), ("usr/bin/nvidia-cli.real", "")):
        hosts.plant(tmp_path, name, text)
    (tmp_path / OURS[1:]).chmod(0o755)
    if program:
        (tmp_path / "usr/bin/nvidia-container-cli").symlink_to(program)
    root = HostRoot(str(tmp_path))
    (finding,) = enginecheck.callers(root, OURS, "apt")
    assert (finding.level, says in finding.seen) == (level, True), finding
    assert (finding.remedy == SET) == ("singularity.conf" in says)
    (tmp_path / files[1]).unlink()
    (without,) = enginecheck.callers(root, OURS, "apt")
    assert without.level == (PASS if program in ("", OURS) else WARN)
    (tmp_path / files[0]).unlink()
    assert enginecheck.callers(root, OURS, "apt") == []
