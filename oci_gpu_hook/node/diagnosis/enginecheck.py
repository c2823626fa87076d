# SPDX-License-Identifier: Apache-2.0
"""Findings about the engines: each must start our hook once, and no other hook that gives GPUs as well.  Pure.

oci-hooks(5): a file masks those of the same name in folders of lower precedence.  A file that an engine cannot read
stops every container of that engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.node.diagnosis import FAIL, PASS, WARN, Finding
from oci_gpu_hook.node.diagnosis.remedy import Remedy, command, then
from oci_gpu_hook.node.diagnosis.systemcheck import roots_alone
from oci_gpu_hook.node.engines.registrations import NVIDIAS, OURS

if TYPE_CHECKING:
    from oci_gpu_hook.node.engines.installed import Containerd, Engine, Shim, Unread
    from oci_gpu_hook.node.engines.registrations import Installation, Registration

_SERVED = {"prestart", "createRuntime"}
REINSTALL = {tool: command(tool, "reinstall", "oci-gpu-hook") for tool in ("dnf", "apt")}
# The engines that read hooks.d, and what makes them read their settings again.
_RESTART: dict[str, tuple[Remedy, ...]] = {"podman": (), "CRI-O": (command("systemctl", "restart", "crio"),)}
_CONTAINERD = "/etc/containerd/config.toml"
_BINARY_NAME = 'BinaryName = "/usr/bin/oci-gpu-runtime"'
_DEFAULT_KEYS = {"podman": "runtime", "CRI-O": "default_runtime", "containerd": "default_runtime_name"}


def seen_by(engine: Engine, registrations: tuple[Registration, ...], our_file: str, tool: str) -> list[Finding]:
    """How one engine sees our hook; `registrations`: those of all folders, `our_file`: the file name of ours."""
    check = f"hook in {engine.name}"
    read = [item for folder in engine.folders for item in registrations if _folder(item) == folder]
    effective = {item.file: item for item in read}
    broken = [item for item in effective.values() if item.fault]
    if broken:
        item = broken[0]
        seen = f"{item.path} stops every container: {item.fault}"
        masks = [other for other in read if other.file == item.file and other != item]
        remedy = REINSTALL[tool]
        if masks or item.file != our_file:
            remedy = command("rm", item.path)
        return [Finding(check, FAIL, seen, remedy)]
    ours = [item for item in effective.values() if item.kind == OURS]
    if not ours:
        return [_unseen(check, engine, read, effective, registrations, tool)]
    if len(ours) > 1:
        extra = next((item for item in ours if item.file != our_file), ours[0])
        paths = " and ".join([item.path for item in ours])
        return [Finding(check, FAIL, f"registered twice, by {paths}: it runs twice", command("rm", extra.path))]
    return [_fit(check, ours[0], tool)]


def other_hooks(
    engines: tuple[Engine, ...], registrations: tuple[Registration, ...], shims: tuple[Shim, ...], by_link: bool = False
) -> list[Finding]:
    """Other programs that would also give GPUs to a container; by_link: whether dockerd starts our hook for --gpus."""
    check = "other hooks"
    read = {folder for engine in engines for folder in engine.folders}
    findings = [
        Finding(check, FAIL, f"{item.path} starts NVIDIA's hook: GPUs are given twice", command("rm", item.path))
        for item in registrations
        if item.kind == NVIDIAS and _folder(item) in read
    ]
    for shim in shims:
        if shim.engine == "Docker" and by_link:
            findings.append(_beside_link(check, shim))
            continue
        if not shim.is_default and shim.engine not in _RESTART:
            continue  # Docker and containerd start no hook of hooks.d: nothing is done twice
        seen = f"{shim.file} has NVIDIA's runtime as {shim.runtime}"
        if not shim.is_default:
            seen += ": containers that name it are given their GPUs twice"
            findings.append(Finding(check, WARN, seen, _without_runtime(shim)))
        elif shim.engine in _RESTART:
            seen += ", the default: GPUs are given twice"
            findings.append(Finding(check, FAIL, seen, _without_default(shim)))
        else:
            seen += f", the default: {shim.engine} gives GPUs by it, and does not start our hook"
            findings.append(Finding(check, WARN, seen, _without_default(shim)))
    return findings or [Finding(check, PASS, "none that would give GPUs as well")]


def _beside_link(check: str, shim: Shim) -> Finding:
    """NVIDIA's runtime, by its mode, leaves the entry that dockerd makes for --gpus or takes it away."""
    default = ", the default" if shim.is_default else ""
    seen = f"{shim.file} has NVIDIA's runtime as {shim.runtime}{default}: it may keep --gpus from our hook"
    return Finding(check, WARN, seen, _without_default(shim) if shim.is_default else command("vi", shim.file))


def unread(files: tuple[Unread, ...], tool: str) -> list[Finding]:
    """The engines' files that could not be read."""
    return [
        Finding(
            "engines",
            WARN,
            f"{file.path} was not read: {file.why}",
            command(tool, "install", "python3-tomli") if file.no_parser else command("vi", file.path),
        )
        for file in files
    ]


def none_installed(tool: str) -> list[Finding]:
    """The finding on a host without an engine: runc and crun take hooks only from a bundle."""
    seen = "neither podman, CRI-O, Docker nor containerd is installed: a bundle must name the hook itself"
    return [Finding("engines", WARN, seen, command(tool, "install", "podman"))]


def callers(here: list[str], program: str, entry: str, tool: str) -> list[Finding]:
    """Whether those who call nvidia-container-cli find our entry script by that name; program, entry: without links."""
    if not here:
        return []
    who = f"{', '.join(here)} call{'' if len(here) > 1 else 's'} nvidia-container-cli"
    if program and program != entry:
        seen = f"{who}, which is {program}, not this hook"
        return [Finding("callers", WARN, seen, command(tool, "install", "oci-gpu-hook-cli"))]
    # A host where they give no GPUs needs no such program.
    is_what = "which is this hook" if program else "which is not there: with oci-gpu-hook-cli they give GPUs"
    return [Finding("callers", PASS, f"{who}, {is_what}")]


def containerd(found: Containerd, tool: str, *, is_alone: bool) -> list[Finding]:
    """Which of containerd's runtimes are ours, and which are not there; is_alone: whether there is no other engine."""
    check = "containerd"
    findings = []
    for item in found.runtimes:
        named = f"{item.file} has {item.program} as the runtime {item.name}"
        named += ", the default" if item.is_default else ""
        if not item.is_there:
            seen = f"{named}, and it is not there: pods with it do not start"
            remedy = REINSTALL[tool] if item.is_ours else command("vi", item.file)
            findings.append(Finding(check, FAIL, seen, remedy))
        elif item.is_ours:
            findings.append(Finding(check, PASS, named))
    if not any([item.is_ours for item in found.runtimes]):
        if found.injector:
            seen = f"{found.injector} reads hooks.d, for pods, while it runs"
            findings.append(Finding(check, PASS, seen))
        elif found.has_pods or is_alone:
            seen = "no runtime of containerd's is oci-gpu-runtime: its containers have GPUs by CDI alone"
            remedy = command("vi", _CONTAINERD, note=_BINARY_NAME)
            findings.append(Finding(check, WARN, seen, remedy))
    return findings


def installation(found: Installation, tool: str) -> list[Finding]:
    """What an engine starts: it must be ours and complete, and only root may write it."""
    check, reinstall = "installation", REINSTALL[tool]
    if not found.is_there:
        return [Finding(check, FAIL, f"{found.entry} is not there or cannot be run", reinstall)]
    if found.missing_shell:
        seen = f"{found.missing_shell} is not there, and {found.entry} is written for it"
        return [Finding(check, FAIL, seen, command(tool, "install", "bash"))]
    if not found.library:
        seen = f"{found.entry} is another's file in our place"
        away = command("mv", found.entry, f"{found.entry}.other")
        return [Finding(check, FAIL, seen, then(away, reinstall))]
    if not found.is_whole:
        return [Finding(check, FAIL, f"{found.library} is not whole", reinstall)]
    if found.open_to_others:
        path = found.open_to_others[0]
        seen = f"others than root may write {path}, which runs as root"
        return [Finding(check, FAIL, seen, roots_alone(path))]
    if not found.is_linked:
        seen = f"{found.library} was not made for {found.python}: each start compiles it again"
        return [Finding(check, WARN, seen, reinstall)]
    if found.leftovers:
        seen = f"{found.leftovers[0]} is left from an installation that did not end"
        return [Finding(check, WARN, seen, then(reinstall, command("rm", "-rf", *found.leftovers)))]
    return [Finding(check, PASS, f"{found.entry} leads to {found.library}")]


def _unseen(
    check: str,
    engine: Engine,
    read: list[Registration],
    effective: dict[str, Registration],
    registrations: tuple[Registration, ...],
    tool: str,
) -> Finding:
    """Why an engine does not see our hook: it is masked, not registered, or registered in another folder."""
    masked = [item for item in read if item.kind == OURS]
    if masked:
        mask = effective[masked[-1].file]
        return Finding(check, FAIL, f"{mask.path} masks {masked[-1].path}", command("rm", mask.path))
    elsewhere = [item for item in registrations if item.kind == OURS]
    if not elsewhere:
        return Finding(check, FAIL, "it is not registered", REINSTALL[tool])
    folder = _folder(elsewhere[0])
    by_file = f" ({engine.folders_file})" if engine.folders_file else ""
    folders = ", ".join(engine.folders) or "no folder"
    seen = f"registered in {folder}, and {engine.name} looks in {folders}{by_file}"
    return Finding(check, FAIL, seen, _with_folder(engine, elsewhere[0].path))


def _fit(check: str, item: Registration, tool: str) -> Finding:
    """Whether the registration that the engine sees is for one stage that the hook serves, and for every container."""
    wrong = [stage for stage in item.stages if stage not in _SERVED]
    if wrong or not item.stages:
        seen = f"{item.path} registers it for {', '.join(wrong) or 'no stage'}"
        return Finding(check, FAIL, seen, REINSTALL[tool])
    if len(item.stages) > 1:
        seen = f"{item.path} registers it for {' and '.join(item.stages)}: it runs twice"
        return Finding(check, FAIL, seen, REINSTALL[tool])
    if item.words[1:2] not in [(stage,) for stage in _SERVED]:
        words = " ".join(item.words) or "nothing"
        seen = f"{item.path} starts it with {words}, which is no stage that it serves: it stops every container"
        return Finding(check, FAIL, seen, REINSTALL[tool])
    if item.timeout is not None and item.timeout <= 0:
        seen = f"{item.path} gives it {item.timeout} seconds: it stops every container"
        return Finding(check, FAIL, seen, REINSTALL[tool])
    if item.timeout is not None:
        seen = f"{item.path} gives it a timeout: if other hooks run before it, crun fails some containers"
        return Finding(check, WARN, seen, REINSTALL[tool])
    if not item.always:
        seen = f"{item.path} registers it for some containers only"
        return Finding(check, WARN, seen, REINSTALL[tool])
    return Finding(check, PASS, f"registered by {item.path}")


def _folder(item: Registration) -> str:
    return item.path.rpartition("/")[0]


def _with_folder(engine: Engine, registration: str) -> Remedy:
    """Bring our registration into a folder that the engine reads, or the engine to read a folder."""
    if not engine.folders:
        return then(command("vi", engine.folders_file), *_RESTART[engine.name])
    folder = engine.folders[-1]
    # An engine passes over a link that leads nowhere, as after a removal of the package.
    link = command("ln", "-s", registration, folder)
    return then(command("mkdir", "-p", folder), link)


def _without_default(shim: Shim) -> Remedy:
    if shim.engine == "Docker":
        words = ("runtime", "configure", "--runtime=docker", "--nvidia-set-as-default=false")
        return command("nvidia-ctk", *words)
    restart = _RESTART.get(shim.engine, (command("systemctl", "restart", "containerd"),))
    script = f"/^ *{_DEFAULT_KEYS[shim.engine]} *=/d"
    return then(command("sed", "-i", script, shim.file), *restart)


def _without_runtime(shim: Shim) -> Remedy:
    if shim.engine == "podman":
        return command("sed", "-i", "/nvidia-container-runtime/d", shim.file)
    return then(command("rm", shim.file), *_RESTART[shim.engine])
