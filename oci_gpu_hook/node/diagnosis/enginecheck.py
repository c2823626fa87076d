# SPDX-License-Identifier: Apache-2.0
"""Findings about the engines: each must start our hook once, and no other hook that gives GPUs as well.

oci-hooks(5): a file masks those of the same name in folders of lower precedence.  A file that an engine cannot read
stops every container of that engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.kernel.filetypes import is_open_to_others
from oci_gpu_hook.node.diagnosis import FAIL, PASS, WARN, Finding, first_fault
from oci_gpu_hook.node.diagnosis.remedy import Remedy, command, reinstall, roots_alone, then
from oci_gpu_hook.node.diagnosis.systemcheck import python
from oci_gpu_hook.node.engines.installed import find_program, of_containerd
from oci_gpu_hook.node.engines.registrations import NVIDIAS, OURS, REGISTRATION
from oci_gpu_hook.node.machine import text, toml

if TYPE_CHECKING:
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.node.engines.installed import Engine, Shim
    from oci_gpu_hook.node.engines.registrations import Registration

    Registered = tuple[Registration, ...]

CONTAINERDS = ("containerd", "k3s", "rke2")
_SERVED = ("prestart", "createRuntime")
_EXECUTABLE = 0o111
# The engines that read hooks.d, and what makes them read their settings again.
_RESTART: dict[str, tuple[Remedy, ...]] = {"podman": (), "CRI-O": (command("systemctl", "restart", "crio"),)}
_BINARY_NAME = 'BinaryName = "/usr/bin/oci-gpu-runtime"'
_DEFAULT_KEYS = {"podman": "runtime", "CRI-O": "default_runtime", "containerd": "default_runtime_name"}
# Those who call nvidia-container-cli, by a file that each of them brings.
_CALLERS = {
    "LXC": "/usr/share/lxc/hooks/nvidia",
    "enroot": "/etc/enroot/hooks.d/98-nvidia.sh",
    "Apptainer": "/usr/bin/apptainer",
    "Charliecloud": "/usr/bin/ch-fromhost",
}


def seen_by(engine: Engine, registered: Registered, tool: str) -> Finding:
    """How one engine sees our hook; registered: the hooks of all folders."""
    check = f"hook in {engine.name}"
    read = [item for folder in engine.folders for item in registered if item.folder == folder]
    effective = {item.file: item for item in read}
    broken = next((item for item in effective.values() if item.fault), None)
    if broken:
        masks = [other for other in read if other.file == broken.file and other != broken]
        remedy = command("rm", broken.path) if masks or broken.file != REGISTRATION else reinstall(tool)
        return Finding(check, FAIL, f"{broken.path} stops every container: {broken.fault}", remedy)
    ours = [item for item in effective.values() if item.kind == OURS]
    if len(ours) > 1:
        extra = next((item for item in ours if item.file != REGISTRATION), ours[0])
        paths = " and ".join([item.path for item in ours])
        return Finding(check, FAIL, f"registered twice, by {paths}: it runs twice", command("rm", extra.path))
    if ours:
        return _fit(check, ours[0], tool)
    masked = [item for item in read if item.kind == OURS]
    if masked:
        mask = effective[masked[-1].file]
        return Finding(check, FAIL, f"{mask.path} masks {masked[-1].path}", command("rm", mask.path))
    elsewhere = next((item for item in registered if item.kind == OURS), None)
    if elsewhere is None:
        return Finding(check, FAIL, "it is not registered", reinstall(tool))
    by_file = f" ({engine.folders_file})" if engine.folders_file else ""
    folders = ", ".join(engine.folders) or "no folder"
    seen = f"registered in {elsewhere.folder}, and {engine.name} looks in {folders}{by_file}"
    if not engine.folders:
        return Finding(check, FAIL, seen, then(command("vi", engine.folders_file), *_RESTART[engine.name]))
    # An engine passes over a link that leads nowhere, as after a removal of the package.
    link = command("ln", "-s", elsewhere.path, engine.folders[-1])
    return Finding(check, FAIL, seen, then(command("mkdir", "-p", engine.folders[-1]), link))


def _fit(check: str, item: Registration, tool: str) -> Finding:
    """Whether the registration that the engine sees is for one stage that the hook serves, and for every container."""
    wrong = ", ".join([stage for stage in item.stages if stage not in _SERVED])
    words = " ".join(item.words) or "nothing"
    rows = (
        (wrong or not item.stages, FAIL, f"registers it for {wrong or 'no stage'}"),
        (len(item.stages) > 1, FAIL, f"registers it for {' and '.join(item.stages)}: it runs twice"),
        (
            item.words[1:2] not in [(stage,) for stage in _SERVED],
            FAIL,
            f"starts it with {words}, which is no stage that it serves: it stops every container",
        ),
        (
            item.timeout is not None and item.timeout <= 0,
            FAIL,
            f"gives it {item.timeout} seconds: it stops every container",
        ),
        (
            item.timeout is not None,
            WARN,
            "gives it a timeout: if other hooks run before it, crun fails some containers",
        ),
        (not item.always, WARN, "registers it for some containers only"),
    )
    remedy = reinstall(tool)
    whole = [(holds, level, f"{item.path} {seen}", remedy) for holds, level, seen in rows]
    return first_fault(check, whole, f"registered by {item.path}")


def other_hooks(
    engines: tuple[Engine, ...], registered: Registered, shims: tuple[Shim, ...], by_link: bool = False
) -> list[Finding]:
    """Other programs that would also give GPUs to a container; by_link: whether dockerd starts our hook for --gpus."""
    check = "other hooks"
    read = {folder for engine in engines for folder in engine.folders}
    findings = [
        Finding(check, FAIL, f"{item.path} starts NVIDIA's hook: GPUs are given twice", command("rm", item.path))
        for item in registered
        if item.kind == NVIDIAS and item.folder in read
    ]
    for shim in shims:
        level, default = WARN, ", the default" if shim.is_default else ""
        if shim.engine == "Docker" and by_link:
            # By its mode it leaves the entry that dockerd makes for --gpus, or takes it away.
            why = "it may keep --gpus from our hook"
        elif shim.engine in _RESTART and shim.is_default:
            level, why = FAIL, "GPUs are given twice"
        elif shim.engine in _RESTART:
            why = "containers that name it are given their GPUs twice"
        elif shim.is_default:
            why = f"{shim.engine} gives GPUs by it, and does not start our hook"
        else:
            continue  # Docker and containerd start no hook of hooks.d: nothing is done twice
        seen = f"{shim.file} has NVIDIA's runtime as {shim.runtime}{default}: {why}"
        findings.append(Finding(check, level, seen, _without(shim)))
    return findings or [Finding(check, PASS, "none that would give GPUs as well")]


def _without(shim: Shim) -> Remedy:
    """Take NVIDIA's runtime out of an engine's settings; of a default one only that it is the default."""
    restart = _RESTART.get(shim.engine, (command("systemctl", "restart", "containerd"),))
    if shim.engine == "Docker":
        words = ("runtime", "configure", "--runtime=docker", "--nvidia-set-as-default=false")
        return command("nvidia-ctk", *words) if shim.is_default else command("vi", shim.file)
    if shim.is_default:
        return then(command("sed", "-i", f"/^ *{_DEFAULT_KEYS[shim.engine]} *=/d", shim.file), *restart)
    if shim.engine == "podman":
        return command("sed", "-i", "/nvidia-container-runtime/d", shim.file)
    return then(command("rm", shim.file), *restart)


def unread(files: list[tuple[str, str, Exception]], tool: str) -> list[Finding]:
    """The engines' files that could not be read, as `installed.unread` gives them."""
    install = command(tool, "install", "python3-tomli")
    return [
        Finding(
            "engines",
            WARN,
            f"{path} was not read: {err}",
            install if isinstance(err, toml.NoParser) else command("vi", path),
        )
        for _, path, err in files
    ]


def callers(root: HostRoot, entry: str, tool: str) -> list[Finding]:
    """Whether those who call nvidia-container-cli find our entry script by that name; entry: without links.

    LXC's hook looks in the usual folders as well, whatever its PATH.
    """
    here = [name for name, path in _CALLERS.items() if root.stat(path) is not None]
    if not here:
        return []
    path = find_program(root, "nvidia-container-cli")
    who = f"{', '.join(here)} call{'' if len(here) > 1 else 's'} nvidia-container-cli"
    if path and root.real(path) != entry:
        seen = f"{who}, which is {root.real(path)}, not this hook"
        return [Finding("callers", WARN, seen, command(tool, "install", "oci-gpu-hook-cli"))]
    # A host where they give no GPUs needs no such program.
    is_what = "which is this hook" if path else "which is not there: with oci-gpu-hook-cli they give GPUs"
    return [Finding("callers", PASS, f"{who}, {is_what}")]


def containerd(root: HostRoot, tool: str, *, is_alone: bool) -> list[Finding]:
    """Which of containerd's runtimes are ours, and which are not there; is_alone: whether there is no other engine."""
    check, findings, runtimes = "containerd", [], of_containerd(root)
    for item in runtimes:
        seen = f"{item.file} has {item.program} as the runtime {item.name}{', the default' if item.is_default else ''}"
        if not item.is_there:
            remedy = reinstall(tool) if item.is_ours else command("vi", item.file)
            findings.append(Finding(check, FAIL, f"{seen}, and it is not there: pods with it do not start", remedy))
        elif item.is_ours:
            findings.append(Finding(check, PASS, seen))
    if any([item.is_ours for item in runtimes]):
        return findings
    plugins = [f"/opt/nri/plugins/{name}" for name in root.names("/opt/nri/plugins") if name.endswith("-hook-injector")]
    has_pods = runtimes or any([find_program(root, name) for name in ("kubelet", "k3s", "rke2")])
    if plugins:
        findings.append(Finding(check, PASS, f"{plugins[0]} reads hooks.d, for pods, while it runs"))
    elif has_pods or is_alone:
        seen = "no runtime of containerd's is oci-gpu-runtime: its containers have GPUs by CDI alone"
        remedy = command("vi", "/etc/containerd/config.toml", note=_BINARY_NAME)
        findings.append(Finding(check, WARN, seen, remedy))
    return findings


def installation(root: HostRoot, entry: str, registered: Registered, tool: str) -> list[Finding]:
    """What an engine starts: it must be ours and complete, and only root may write it; and its Python.

    entry: the entry script.  It is bash, and packaging/install.sh writes two paths into it: the interpreter's, and that
    of the folder from which it imports.
    """
    status, script = root.stat(entry), text(root, entry)
    shell = script.partition("\n")[0].partition("#!")[2].partition(" ")[0]
    interpreter = script.partition(" exec ")[2].partition(" ")[0]
    file = root.real(interpreter) if interpreter and root.stat(interpreter) else ""
    library = script.partition('sys.path.insert(0, "')[2].partition("/oci_gpu_hook/startup")[0]
    package = f"{library}/oci_gpu_hook"
    # packaging/link.py writes a file for this Python; without a version in the Python's name nobody can tell.
    major, dot, minor = file.rpartition("/python")[2].partition(".")
    is_linked = not dot or f"modules.cpython-{major}{minor}" in root.names(f"{package}/__linked__")
    ours = {item.path for item in registered if item.kind == OURS}
    run_as_root = [entry, entry.rpartition("/")[0], *sorted(ours | {path.rpartition("/")[0] for path in ours})]
    run_as_root += _below(root, library) if library else []
    opened = next((path for path in run_as_root if (at := root.stat(path)) and is_open_to_others(at)), "")
    # What packaging/install.sh leaves if it was interrupted before it could move the files into place.
    left = [f"{entry}.new", *[f"{library}/{name}" for name in (".new", ".old") if library]]
    left = [path for path in left if root.stat(path) is not None]
    first = left[0] if left else ""
    again = reinstall(tool)
    away = then(command("mv", entry, f"{entry}.other"), again)
    rows = (
        (not status or not status.st_mode & _EXECUTABLE, FAIL, f"{entry} is not there or cannot be run", again),
        (
            shell and root.stat(shell) is None,
            FAIL,
            f"{shell} is not there, and {entry} is written for it",
            command(tool, "install", "bash"),
        ),
        (not library, FAIL, f"{entry} is another's file in our place", away),
        (root.stat(f"{package}/__main__.py") is None, FAIL, f"{library} is not whole", again),
        (opened, FAIL, f"others than root may write {opened}, which runs as root", roots_alone(opened)),
        (not is_linked, WARN, f"{library} was not made for {file}: each start compiles it again", again),
        (
            first,
            WARN,
            f"{first} is left from an installation that did not end",
            then(again, command("rm", "-rf", *left)),
        ),
    )
    found = first_fault("installation", rows, f"{entry} leads to {library}")
    return [found, python(interpreter, file, tool)] if library else [found]


def _below(root: HostRoot, path: str) -> list[str]:
    """A folder and everything in it."""
    if root.link(path) is not None:
        return []
    return [path, *[found for name in root.names(path) for found in _below(root, f"{path}/{name}")]]
