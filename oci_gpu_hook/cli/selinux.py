# SPDX-License-Identifier: Apache-2.0
"""``selinux``: the state of SELinux on this host, our policy modules, and denials explained."""

from __future__ import annotations

import os
from contextlib import suppress

import click

from oci_gpu_hook.cli import argumentfile, denials, limit
from oci_gpu_hook.cli.options import LONGEST_SECONDS, host_root, output_format, section, show
from oci_gpu_hook.errors import ApplyError, ConfigError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import childprocess, filecontext, kernelconfig, libselinux
from oci_gpu_hook.request.settings import read_settings

# An administrator's own modules have 400, and so win; distributions use 200 for theirs.
_PRIORITY = "200"
_AUDIT_LOG = "/var/log/audit/audit.log"
# Programs that print others: the output is empty if the journal is not stored, or we may not read it.
_LOGS = ("journalctl --quiet --no-pager -o cat -b --lines=20000 _TRANSPORT=audit + _TRANSPORT=kernel", "dmesg")
# To build a policy takes half a minute, on a slow machine several.
_POLICY_SECONDS = 600
# What auditd keeps in one file, unless it was told otherwise.
_LARGEST = 8 << 20

# By a part of semodule's error: what it means here, and who can fix it.  Other errors are shown as they are.
_SEMODULE = {
    "Re-declaration of type nvidia_container_t": (
        "another module declares nvidia_container_t too",
        "remove that one: 'semodule -r nvidia-container', if it is NVIDIA's for DGX",
    ),
    "Failed to resolve": ("the policy has no types for containers", "install container-selinux, on Debian container"),
    "Could not connect to policy handler": ("there is no policy store that we may write", "run it as root"),
}


@click.group("selinux")
def selinux() -> None:
    """Show SELinux's state, install the policy modules, explain denials.

    The hook needs none of the modules to serve plain containers (container_t).
    """


@selinux.command()
@output_format
@host_root
def status(is_json: bool, host: HostRoot) -> None:
    """Show the mode, our modules, booleans and labels, and which containers can use GPUs now."""
    found = libselinux.status(host)
    modules = [{**item._asdict(), "state": item.state} for item in found.modules]
    show(is_json, {**found._asdict(), "modules": modules}, _status_text(found))


def _status_text(found: libselinux.Status) -> list[str]:
    if not found.enabled:
        return ["SELinux is disabled: nothing is labelled, and nothing here is needed"]
    mode = "enforcing" if found.enforcing else "permissive"
    priorities = {item.name: f", priority {item.priorities[0]}" for item in found.modules if item.priorities}
    void = {name: f"forbids nothing: {other} is on, for all containers" for name, other in found.void.items()}
    booleans = [(name, "on" if on else "off", void.get(name, "")) for name, on in found.booleans.items()]
    uses = [(it.type, f"nodes {it.nodes}", "yes" if it.can else "no", it.why) for it in found.uses]
    labels = [(it.path, it.have, "" if it.is_right else f"expected {it.expected}") for it in found.labels]
    return [
        f"SELinux  {mode}, policy {found.policy} (version {found.version})",
        *section("modules", [(it.name, it.state + priorities.get(it.name, "")) for it in found.modules]),
        *section("booleans", booleans),
        *section("containers that can use GPUs", uses),
        *section("labels", labels),
    ]


@selinux.command()
@host_root
def install(host: HostRoot) -> None:
    """Install both policy modules, and label the files that they name.

    They are installed at priority 200, in one transaction: both or none.  A module of the same name that you installed
    by hand (priority 400) stays and is the one in force.  Only files that the modules name are relabelled, never a
    container's.  The boolean oci_gpu_hook_use_cgroup_v1 is turned on if this host has cgroup v1, and off if it has v2.
    With --host-root nothing is loaded, labelled or turned on or off.
    """
    files = [f"{policy_folder()}/{name}.cil" for name in libselinux.MODULES]
    for file in [it for it in files if not os.path.exists(it)]:
        raise ConfigError(f"the policy module {file} is missing", "install oci-gpu-hook-selinux, or this again")
    _semodule(host, [word for file in files for word in ("-i", file)])
    click.echo(f"installed {', '.join(libselinux.MODULES)}")
    name, version = libselinux.CGROUP_V1_BOOLEAN, kernelconfig.cgroup_version(host) if host.path == "/" else ""
    if version and libselinux.boolean(host, name) not in (None, version == "v1"):
        # The hook must write the files of v1, and of no other.
        value = "on" if version == "v1" else "off"
        _run(["setsebool", "-P", name, value])
        click.echo(f"turned {name} {value}: this host has cgroup {version}")
    _restore_labels(host)
    _say_who_wins(host)


@selinux.command()
@host_root
def remove(host: HostRoot) -> None:
    """Remove both policy modules, and give their files the labels that they had before."""
    # Without access to the store, semodule is run all the same: its error says why there is none.
    is_read = libselinux.is_store_readable(host)
    ours = [name for name in libselinux.MODULES if not is_read or _PRIORITY in libselinux.priorities(host, name)]
    if ours:
        _semodule(host, [word for name in ours for word in ("-r", name)])
    click.echo(f"removed {', '.join(ours)}" if ours else "neither module is installed")
    _restore_labels(host)
    _say_who_wins(host)


@selinux.command()
@host_root
def relabel(host: HostRoot) -> None:
    """Give the files that the modules name the labels that they have with the modules that are in force.

    'selinux install' and 'selinux remove' do so as well.  In folders that others than root may write to no path is
    followed: what lies there is found and labelled by descriptor.
    """
    _restore_labels(host)


@selinux.command()
@click.argument("file", metavar="[FILE]", required=False)
@output_format
def explain(file: str | None, is_json: bool) -> None:
    """Explain the denials that concern containers and GPUs.

    They are read from FILE ("-" is standard input), else from the audit log, the journal or the kernel's log.  Denials
    of a wrong level are hidden by default: 'semodule -DB' makes them show, 'semodule -B' hides them again.
    """
    found = denials.explain(denials.parse_denials(_log() if file is None else _named(file)))
    show(is_json, {"denials": found}, _explained(found))


def _explained(found: tuple[denials.Denial, ...]) -> list[str]:
    if not found:
        hidden = "those of a wrong level are hidden by default: 'semodule -DB' makes them show"
        return ["no denial concerns containers and GPUs", hidden]
    lines = []
    for denial in found:
        times = f" ({denial.times} times)" if denial.times > 1 else ""
        # Names come from a container, and may hold control characters.
        who = quoted(denial.command) if denial.command else "a process"
        name = f" {quoted(denial.name)}" if denial.name else ""
        what = f"{who} may not {'/'.join(denial.permissions)} the {denial.tclass}{name}"
        lines += ["", f"{what}{times}", f"  cause   {denial.cause}", f"  remedy  {denial.remedy}"]
    return lines[1:]


def policy_folder() -> str:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "../../../share/selinux/packages/oci-gpu-hook")
    return os.path.normpath(installed if os.path.isdir(installed) else os.path.join(package, "../policy"))


def _semodule(host: HostRoot, words: list[str]) -> None:
    if not libselinux.has_store(host):
        hint = "install selinux-policy-targeted, on Debian selinux-policy-default"
        raise ConfigError("this host has no SELinux policy that modules could go into", hint)
    # For another root its policy must be named: semodule would look for the name in this host's settings.
    there = [] if host.path == "/" else ["-p", host.path, "-s", libselinux.policy_name(host), "-n"]
    _run(["semodule", *there, "-X", _PRIORITY, *words])


def _restore_labels(host: HostRoot) -> None:
    if host.path != "/" or not libselinux.is_there(host):
        return
    roots = [path for path in libselinux.paths(host) if path not in filecontext.SHARED]
    # Its warnings are about files without a label in the file contexts: see below.
    said = _run(["restorecon", "-R", "-v", *roots]).splitlines() if roots else []
    for line in [line for line in said if line.startswith("Relabeled")]:
        click.echo(line)
    owner = 0
    with suppress(ConfigError):
        owner = read_settings(None, None).mps_pipe_owner
    # What has no label in the file contexts has lost its own with the module: on Debian all below /run and /tmp.
    lost = [path for path in roots if filecontext.is_unknown(path)]
    for path in (*lost, *filecontext.SHARED):
        for line in filecontext.restore(host, path, owner):
            click.echo(line)


def _say_who_wins(host: HostRoot) -> None:
    for name in libselinux.MODULES:
        higher = [at for at in libselinux.priorities(host, name) if int(at) > int(_PRIORITY)]
        if higher:
            remedy = f"'semodule -X {higher[0]} -r {name}' removes it"
            click.echo(f"a module {name} at priority {higher[0]} is not ours, stays and is in force: {remedy}")


def _run(words: list[str]) -> str:
    limit.allow(_POLICY_SECONDS)
    try:
        done = childprocess.program(words)
    except OSError as err:
        raise ConfigError(f"cannot run {words[0]}: {err.strerror}", "install policycoreutils") from err
    said = done.stdout + done.stderr
    if done.returncode == 0:
        return said
    for part, (why, hint) in _SEMODULE.items():
        if part in said:
            raise ApplyError(f"{words[0]} failed: {why}", hint)
    # Its last line says only that it failed.
    lines = [line for line in said.splitlines() if line and "Failed!" not in line]
    why = quoted(lines[-1]) if lines else "it did not say why"
    raise ApplyError(f"{words[0]} failed: {why}", f"the administrator must look: {' '.join(words[:5])} ...")


def _named(file: str) -> str:
    if file == "-":
        limit.allow(LONGEST_SECONDS)
        return click.get_text_stream("stdin", errors="replace").read()
    try:
        return argumentfile.content(file, _LARGEST).decode("utf-8", "replace")
    except OSError as err:
        hint = "if it is not a regular file, or too large, use standard input: oci-gpu-hook selinux explain -"
        raise UsageError(f"cannot read {quoted(file)}: {err.strerror}", hint) from err


def _log() -> str:
    try:
        with open(_AUDIT_LOG, "rb") as file:
            # Its end: a user can fill it.
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LARGEST))
            told = file.read(_LARGEST).decode("utf-8", "replace")
    except FileNotFoundError:
        told = ""
    except OSError as err:
        raise ApplyError(f"cannot read {_AUDIT_LOG}: {err.strerror}", "run it as root") from err
    # It is empty where auditd has ended, or has just begun a new one.
    if "avc:" in told:
        return told
    for words in _LOGS:
        with suppress(OSError):
            done = childprocess.program(words.split())
            if done.returncode == 0 and done.stdout:
                return done.stdout
    if told:
        return told
    why = f"there is no {_AUDIT_LOG}, and neither the journal nor the kernel's log can be read"
    hint = "run it as root, or name a file with denials, or pipe one in: oci-gpu-hook selinux explain -"
    raise UsageError(why, hint)
