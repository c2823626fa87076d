# SPDX-License-Identifier: Apache-2.0
"""The words of nvidia-container-cli: what they ask for, which are refused, and where the debug log may lie."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oci_gpu_hook.cli import VERSION
from oci_gpu_hook.errors import RequestError, UsageError
from oci_gpu_hook.host import debuglog
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import mountinfo
from oci_gpu_hook.node.diagnosis import PASS, WARN, enginecheck
from oci_gpu_hook.request import containercli, parse
from oci_gpu_hook.request.settings import Settings
from tests import manual

ROOT = Path(__file__).resolve().parents[2]
# Each caller's, as its own sources have them.
LXC = "--debug=/var/lib/lxc/c/hook/nvidia.log --user configure --no-cgroups --ldconfig=@/sbin/ldconfig --device=0,2 "
LXC += "--compute --utility --require=cuda>=11.0 /usr/lib/lxc/rootfs"
ENROOT = "--user --debug=/dev/stderr configure --no-cgroups --ldconfig=@/sbin/ldconfig --device=all --utility /run/root"
APPTAINER = "configure --no-cgroups --device=GPU-3f1c7a52-9d04-4e6b-8a17-52c0b9e46d21 --compute --utility "
APPTAINER += "--require=cuda>=11 --require=driver>=450 --ldconfig=@/sbin/ldconfig /var/apptainer/session/final"
CTR = "--load-kmods configure --pid=42 --device=1 --compute --compat32 --graphics --utility --video --display /b/rootfs"


DEFAULTS = Settings()


def request(words: str, settings: Settings = DEFAULTS) -> parse.Request | None:
    return parse.parse_request(containercli.parse_call(words.split()).inputs(), settings)[0]


@pytest.mark.parametrize(
    ("words", "devices", "capabilities", "requirements"),
    [
        (LXC, ("0", "2"), ("utility", "compute"), ("cuda>=11.0",)),
        (ENROOT, ("all",), ("utility",), ()),
        (APPTAINER, ("GPU-3f1c7a52-9d04-4e6b-8a17-52c0b9e46d21",), ("utility", "compute"), ("cuda>=11", "driver>=450")),
        (CTR, ("1",), ("utility", "compute", "video", "graphics", "display", "compat32"), ()),
        ("configure -d 0 -d1 -cu R", ("0", "1"), ("utility", "compute"), ()),
        ("configure --utility R", ("none",), ("utility",), ()),
        ("configure --device= --utility R", ("none",), ("utility",), ()),
        ("configure R --device 0:1 --ngx", ("0:1",), ("ngx",), ()),
        ("configure --device=0 R", ("0",), ("utility", "compute"), ()),
    ],
)
def test_each_callers_words(
    words: str, devices: tuple[str, ...], capabilities: tuple[str, ...], requirements: tuple[str, ...]
) -> None:
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
        "",
        "configure",
        "configure a b",
        "configure --unknown R",
        "configure --device",
        "list R",
        "info --device=0",
        "configure --pid= R",
        "configure --pid=-1 R",
        "configure --pid=0 R",
        "configure --pid=99999999999 R",
        "--root=/opt/driver configure R",
        "frobnicate",
    ],
)
def test_unknown_words_are_usage(words: str) -> None:
    with pytest.raises(UsageError):
        containercli.parse_call(words.split()).pid()


def test_words_of_any_length_are_refused() -> None:
    with pytest.raises(RequestError, match="longer than 128 KiB"):
        request(f"configure --device={'0,' * 70_000} R")
    with pytest.raises(RequestError, match="longer than 128 KiB"):
        request(f"configure --device=0 --require={'x' * 140_000} R")


def test_the_settings_hold_for_words_but_for_the_engines_own() -> None:
    """Without --pid it is not known whose words they are."""
    strict = Settings(accept_environment="privileged")
    assert request("configure --device=void --utility R") is request("configure --device=0 R", strict) is None
    found = request("configure --pid=1 --device=0 R", strict)
    assert found is not None and found.devices == ("0",)
    with pytest.raises(RequestError, match="CAP_SYS_ADMIN"):
        request("configure --device=0 --mig-config=all R")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys\nfrom oci_gpu_hook.__main__ import main\nmain()"
    command = [sys.executable, "-c", code, "nvidia-container-cli", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


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


def test_the_usage_names_a_page_of_the_manual() -> None:
    name, _, section = containercli.USAGE.splitlines()[-1].split(" ")[0].rstrip(")").partition("(")
    assert f"{name}.{section}" in manual.PAGES


# Where the log may not lie: what is there, and why.


def _linked(log: Path) -> None:
    other = log.with_name("other")
    other.write_text("")
    os.link(other, log)


SPOILT: dict[str, Callable[[Path], object]] = {
    "a link": lambda log: log.symlink_to(log.with_name("other")),
    "a fifo": os.mkfifo,
    "a second name": _linked,
    "others may write to its folder": lambda log: log.parent.chmod(0o777),
    "a folder": Path.mkdir,
}


def test_a_log_grows_in_the_callers_own_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    log = tmp_path / "log"
    for line in ("one", "two"):
        debuglog.write(str(log), [line])
    assert (log.read_text(), log.stat().st_mode & 0o777) == ("one\ntwo\n", 0o600)


@pytest.mark.parametrize("how", SPOILT)
def test_nothing_is_written_elsewhere(tmp_path: Path, how: str) -> None:
    tmp_path.chmod(0o755)
    SPOILT[how](tmp_path / "log")
    with pytest.raises(OSError):
        debuglog.write(f"{tmp_path}/log", ["one"])
    assert [path for path in tmp_path.iterdir() if path.is_file() and path.stat().st_size] == []


@pytest.mark.parametrize("path", ["log", "/", "/tmp/..", "/nowhere/log"])
def test_a_log_has_an_absolute_path(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError):
        debuglog.write(path, ["one"])
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize(
    ("program", "level", "says"),
    [
        ("../libexec/oci/hooks.d/oci-gpu-hook", PASS, "which is this hook"),
        ("", PASS, "which is not there"),
        ("nvidia-cli.real", WARN, "which is /usr/bin/nvidia-cli.real, not this hook"),
    ],
)
def test_doctor_says_what_the_callers_find(tmp_path: Path, program: str, level: str, says: str) -> None:
    for name in ("usr/share/lxc/hooks/nvidia", "usr/libexec/oci/hooks.d/oci-gpu-hook", "usr/bin/nvidia-cli.real"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    if program:
        (tmp_path / "usr/bin/nvidia-container-cli").symlink_to(program)
    root, entry = HostRoot(str(tmp_path)), "/usr/libexec/oci/hooks.d/oci-gpu-hook"
    (finding,) = enginecheck.callers(root, entry, "apt")
    assert (finding.level, says in finding.seen) == (level, True), finding
    (tmp_path / "usr/share/lxc/hooks/nvidia").unlink()
    assert enginecheck.callers(root, entry, "apt") == []
