# SPDX-License-Identifier: Apache-2.0
"""``selinux``: the state of SELinux on this host, our policy modules, and denials explained."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import click

from oci_gpu_hook import avc
from oci_gpu_hook.cli.options import host_root, output_format, show
from oci_gpu_hook.errors import ApplyError, UsageError
from oci_gpu_hook.host import libselinux
from oci_gpu_hook.host.root import HostRoot

# Below 400, where an administrator's own modules go and win; 200 is where distributions put theirs.
_PRIORITY = "200"
_AUDIT_LOG = "/var/log/audit/audit.log"
_JOURNAL = (
    "journalctl",
    "--quiet",
    "--no-pager",
    "-o",
    "cat",
    "-b",
    "_TRANSPORT=audit",
    "+",
    "_TRANSPORT=kernel",
)


@click.group("selinux")
def selinux() -> None:
    """Show SELinux's state, install the policy modules, explain denials.

    The hook needs none of the modules to serve plain containers (container_t).
    """


@selinux.command()
@output_format
@host_root
def status(form: str, host_root: str) -> None:
    """Show the mode, our modules, booleans and labels, and which containers can use GPUs now."""
    found = libselinux.status(_library(), HostRoot(host_root))
    document = {
        **found._asdict(),
        "modules": [{**item._asdict(), "state": item.state} for item in found.modules],
        "booleans": dict(found.booleans),
        "labels": [item._asdict() for item in found.labels],
        "uses": [item._asdict() for item in found.uses],
    }
    show(form, document, _status_text(found))


def _status_text(found: libselinux.Status) -> str:
    if not found.enabled:
        return "SELinux is disabled: nothing is labelled, and nothing here is needed"
    mode = "enforcing" if found.enforcing else "permissive"
    lines = [f"SELinux  {mode}, policy {found.policy} (version {found.version})", "", "modules"]
    lines += [f"  {item.name:18}{item.state}" for item in found.modules]
    lines += ["", "booleans"]
    lines += [f"  {name:40}{'on' if on else 'off'}" for name, on in found.booleans]
    lines += ["", "containers that can use GPUs"]
    for use in found.uses:
        answer = "yes" if use.can else "no"
        lines.append(f"  {use.type:20}nodes {use.nodes:22}{answer:5}{use.why}")
    lines += ["", "labels"]
    for label in found.labels:
        wrong = "" if label.have == label.expected else f"  expected {label.expected}"
        lines.append(f"  {label.path:45}{label.have}{wrong}")
    return "\n".join(lines)


@selinux.command()
@host_root
def install(host_root: str) -> None:
    """Install both policy modules, and label the files that they name."""
    folder = policy_folder()
    files = [f"{folder}/{name}.cil" for name, _ in libselinux.MODULES]
    missing = [file for file in files if not os.path.exists(file)]
    if missing:
        raise ApplyError(f"the policy module {missing[0]} is missing", "install this program anew")
    _semodule(host_root, [word for file in files for word in ("-i", file)])
    _restore_labels(host_root)
    click.echo("installed " + ", ".join(name for name, _ in libselinux.MODULES))


@selinux.command()
@host_root
def remove(host_root: str) -> None:
    """Remove both policy modules, and give their files the labels of before."""
    _semodule(host_root, [word for name, _ in libselinux.MODULES for word in ("-r", name)])
    _restore_labels(host_root)
    click.echo("removed " + ", ".join(name for name, _ in libselinux.MODULES))


@selinux.command()
@click.argument("file", type=click.File(errors="replace"), required=False)
@output_format
def explain(file: Any, form: str) -> None:
    """Explain the denials that concern containers and GPUs.

    They are read from FILE ("-" is standard input), else from the audit log, else from the journal.  Denials of a
    wrong level are hidden by default: 'semodule -DB' makes them show, 'semodule -B' hides them again.
    """
    text = file.read() if file is not None else _log()
    found = avc.explain(avc.parse(text))
    document: dict[str, object] = {
        "denials": [
            {**item.denial._asdict(), "cause": item.cause, "remedy": item.remedy} for item in found
        ]
    }
    show(form, document, _explained(found))


def _explained(found: tuple[avc.Explanation, ...]) -> str:
    if not found:
        return (
            "no denial concerns containers and GPUs\n"
            "those of a wrong level are hidden by default: 'semodule -DB' makes them show"
        )
    blocks = []
    for item in found:
        denial = item.denial
        times = f" ({denial.times} times)" if denial.times > 1 else ""
        what = f"{denial.command or 'a process'} may not {'/'.join(denial.permissions)} {denial.name or denial.tclass}"
        blocks.append(f"{what}{times}\n  cause   {item.cause}\n  remedy  {item.remedy}")
    return "\n\n".join(blocks)


def policy_folder() -> str:
    """Where the modules lie: beside the installed package, or in the checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "../../../share/oci-gpu-hook/policy")
    folder = installed if os.path.isdir(installed) else os.path.join(package, "../policy")
    return os.path.normpath(folder)


def _library() -> Any:
    try:
        import selinux as library
    except ImportError as err:
        raise ApplyError(
            "this Python has no package selinux (libselinux)",
            "install python3-libselinux (dnf) or python3-selinux (apt)",
        ) from err
    return library


def _semodule(host_root: str, words: list[str]) -> None:
    """One transaction: both modules or none."""
    root = [] if host_root == "/" else ["-p", host_root, "-s", _store(host_root), "-n"]
    _run(["semodule", *root, "-X", _PRIORITY, *words], "policycoreutils")


def _store(host_root: str) -> str:
    """Which policy another root runs (selinux_config(5)): semodule itself asks this machine's settings."""
    text = (HostRoot(host_root).read("/etc/selinux/config") or b"").decode(errors="replace")
    lines = [line.partition("=") for line in text.splitlines()]
    return next(
        (value.strip() for key, _, value in lines if key.strip() == "SELINUXTYPE"), "targeted"
    )


def _restore_labels(host_root: str) -> None:
    """Of what our file contexts name and what is there; of nothing else, and never of a container's files."""
    if host_root != "/" or not os.path.exists("/sys/fs/selinux/enforce"):
        return
    found = libselinux.paths(HostRoot(host_root))
    if found:
        _run(["restorecon", "-R", *found], "policycoreutils")


def _run(words: list[str], package: str) -> None:
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True)
    except FileNotFoundError as err:
        raise ApplyError(f"there is no {words[0]} here", f"install {package}") from err
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise ApplyError(f"{words[0]} failed: {said[-1]}", "run it as root")


def _log() -> str:
    """The audit log where auditd keeps one, else what the journal has of this boot."""
    try:
        with open(_AUDIT_LOG, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        pass
    except OSError as err:
        raise ApplyError(f"cannot read {_AUDIT_LOG}: {err.strerror}", "run it as root") from err
    try:
        done = subprocess.run(
            _JOURNAL, check=False, capture_output=True, text=True, errors="replace"
        )
    except FileNotFoundError as err:
        raise UsageError(
            f"there is neither {_AUDIT_LOG} nor a journal here",
            "name a file with denials, or pipe one in: oci-gpu-hook selinux explain -",
        ) from err
    return done.stdout
