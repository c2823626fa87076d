# SPDX-License-Identifier: Apache-2.0
"""Findings about the engines: each must start our hook once, and no other hook that gives GPUs as well.

oci-hooks(5): a file masks those of the same name in folders of lower precedence.  A file that an engine cannot read
stops every container of that engine.
"""

from __future__ import annotations

import re

from oci_gpu_hook.formats.decimal import beginning
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_open_to_others
from oci_gpu_hook.node.diagnosis import PASS, Finding, failed, passed, warned
from oci_gpu_hook.node.diagnosis.remedy import NOTHING, Remedy, command, install, reread, roots_alone, then
from oci_gpu_hook.node.diagnosis.systemcheck import python
from oci_gpu_hook.node.engines import installed
from oci_gpu_hook.node.engines.enginekinds import BY_NAME, CONTAINERD, DOCKER, ENGINES, PODMAN, EngineKind
from oci_gpu_hook.node.engines.installed import OURS, START, Engine, NoParser, Registration, Runtime, find_program
from oci_gpu_hook.node.machine import childprocess

Engines = tuple[Engine, ...]
Registered = tuple[Registration, ...]

_SERVED = ("prestart", "createRuntime")
# The first that keeps the annotations of an image's manifest to itself (containers/podman, change 18542).
_KEEPS_ANNOTATIONS = (4, 6)
_PODMAN, _PODMANS_SECONDS = "/usr/bin/podman", 5
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LC_ALL": "C"}


def seen_by(engine: Engine, registered: Registered, tool: str) -> Finding:
    check = f"hook in {engine.name}"
    read = [item for item in registered if item.folder in engine.folders]
    effective = installed.effective(engine, registered)
    broken = next((item for item in effective if item.fault), None)
    if broken:
        masks = [other for other in read if other.file == broken.file and other != broken]
        remedy = command("rm", broken.path) if masks or broken.file != installed.REGISTRATION else install(tool)
        return failed(check, f"{broken.path} stops every container: {broken.fault}", remedy)
    ours = [item for item in effective if item.kind == OURS]
    if len(ours) > 1:
        extra = next((item for item in ours if item.file != installed.REGISTRATION), ours[0])
        paths = " and ".join([item.path for item in ours])
        return failed(check, f"registered twice, by {paths}: it runs twice", "rm", extra.path)
    if ours:
        found = _fit(check, ours[0], tool)
        if engine.name == PODMAN.name and found.level == PASS:
            seen = f"{found.seen}; without root, builds need 'podman build --hooks-dir {ours[0].folder}'"
            found = passed(check, seen)
        return found
    masked = [item for item in read if item.kind == OURS]
    if masked:
        mask = next(item for item in effective if item.file == masked[-1].file)
        return failed(check, f"{mask.path} masks {masked[-1].path}", "rm", mask.path)
    elsewhere = next((item for item in registered if item.kind == OURS), None)
    if elsewhere is None:
        return failed(check, "it is not registered", install(tool))
    by_file = f" ({engine.folders_file})" if engine.folders_file else ""
    folders = ", ".join(engine.folders) or "no folder"
    seen = f"registered in {elsewhere.folder}, and {engine.name} looks in {folders}{by_file}"
    if not engine.folders:
        return failed(check, seen, then(command("vi", engine.folders_file), reread(BY_NAME[engine.name])))
    # An engine passes over a link that leads nowhere, as after a removal of the package.
    link = command("ln", "-s", elsewhere.path, engine.folders[-1])
    return failed(check, seen, then(command("mkdir", "-p", engine.folders[-1]), link))


def _fit(check: str, item: Registration, tool: str) -> Finding:
    wrong = ", ".join([stage for stage in item.stages if stage not in _SERVED])
    is_served = item.words[1:2] in [(stage,) for stage in _SERVED]
    starts = f"starts it with {' '.join(item.words) or 'nothing'}, a stage that it does not serve"
    has_timeout, is_too_short = item.timeout is not None, item.timeout is not None and item.timeout <= 0
    for found, is_fault, seen in (
        (failed, wrong or not item.stages, f"registers it for {wrong or 'no stage'}"),
        (failed, len(item.stages) > 1, f"registers it for {' and '.join(item.stages)}: it runs twice"),
        (failed, not is_served, f"{starts}: it stops every container"),
        (failed, is_too_short, f"gives it {item.timeout} seconds: it stops every container"),
        (warned, has_timeout, "gives it a timeout: if other hooks run before it, crun fails some containers"),
        (warned, not item.always, "registers it for some containers only"),
    ):
        if is_fault:
            return found(check, f"{item.path} {seen}", install(tool))
    return passed(check, f"registered by {item.path}")


def other_hooks(engines: Engines, registered: Registered, shims: list[Runtime], by_link: bool = False) -> list[Finding]:
    """Other programs that would also give GPUs to a container; by_link: whether dockerd starts our hook for --gpus."""
    check = "other hooks"
    read = {folder for engine in engines for folder in engine.folders}
    theirs = [item.path for item in registered if item.kind == installed.NVIDIAS and item.folder in read]
    findings = [failed(check, f"{it} starts NVIDIA's hook: GPUs are given twice", "rm", it) for it in theirs]
    for shim in shims:
        found, default = warned, ", the default" if shim.is_default else ""
        if shim.engine == DOCKER.name and by_link:
            # By its mode it leaves the entry that dockerd makes for --gpus, or takes it away.
            why = "it may keep --gpus from our hook"
        elif BY_NAME[shim.engine].table:
            found, why = failed if shim.is_default else warned, "containers that it starts are given their GPUs twice"
        elif shim.is_default:
            why = f"{shim.engine} gives GPUs by it, and does not start our hook"
        else:
            continue  # Docker and containerd start no hook of hooks.d: nothing is done twice
        seen = f"{shim.file} has NVIDIA's runtime as {shim.name}{default}: {why}"
        findings.append(found(check, seen, _without(shim)))
    return findings or [passed(check, "none that would give GPUs as well")]


def _rancher(file: str) -> str:
    """Which of k3s and RKE2 reads this file, "" for neither; what is in `CONTAINERD.files` it writes at each start."""
    return file.partition("/var/lib/rancher/")[2].partition("/")[0]


def _again(file: str, kind: EngineKind) -> Remedy:
    """What makes an engine read this file of its settings again; k0s looks for drop-ins."""
    unit = _rancher(file) or ("k0s" if "/etc/k0s/" in file else "")
    if "/k0s/containerd.d/" in file:
        return NOTHING
    return command("systemctl", "restart", f"{unit}*") if unit else reread(kind)


def _without(shim: Runtime) -> Remedy:
    """Take NVIDIA's runtime out of an engine's settings; of a default one only that it is the default."""
    kind, rancher = BY_NAME[shim.engine], _rancher(shim.file)
    again = _again(shim.file, kind)
    # No program takes "default-runtime" out of a daemon.json: nvidia-ctk leaves it.
    if not shim.is_default or kind == DOCKER:
        return then(command("vi", shim.file), again)
    if rancher and shim.file in kind.files:
        return then(command("sed", "-i", "/^default-runtime:/d", f"/etc/rancher/{rancher}/config.yaml"), again)
    return then(command("sed", "-i", f"/^ *{kind.default} *=/d", shim.file), again)


def images_in_podman(host: HostRoot, engine: Engine) -> list[Finding]:
    """If an image can name a file for crun to write to: run.oci.hooks.stderr, for which any hook is enough."""
    # podman takes crun before runc.  No file tells its version: it is asked, if it is this host's and root's alone.
    runtime = engine.runtime.rpartition("/")[2] or ("crun" if find_program(host, "crun") else "")
    if runtime != "crun" or host.path != "/" or host.stat(_PODMAN) is None or host.openness(_PODMAN):
        return []
    try:
        said = childprocess.program([_PODMAN, "--version"], _PODMANS_SECONDS, _ENVIRONMENT).stdout
    except OSError:
        return []
    version = said.partition("podman version ")[2].strip()
    numbers = beginning(version)
    if len(numbers) < 2 or numbers >= _KEEPS_ANNOTATIONS:
        return []
    seen = f"podman {version} hands an image's annotations on to crun, which as root writes to the host's file that"
    seen += " run.oci.hooks.stderr names: use podman 4.6 or later, or runc"
    remedy = command("vi", "/etc/containers/containers.conf", note='[engine] runtime = "runc"')
    return [warned("images in podman", seen, remedy)]


def unread(files: list[tuple[str, str, Exception]], tool: str) -> list[Finding]:
    fixes = [(tool, "install", "python3-tomli") if isinstance(it, NoParser) else ("vi", at) for _, at, it in files]
    return [warned("engines", f"{path} was not read: {err}", *fix) for (_, path, err), fix in zip(files, fixes)]


def callers(host: HostRoot, entry: str, tool: str) -> list[Finding]:
    """Whether those who call nvidia-container-cli find our entry script in the usual folders; entry: without links."""
    here = [kind.name for kind in ENGINES if kind.caller and host.stat(kind.caller) is not None]
    if not here:
        return []
    path = find_program(host, "nvidia-container-cli")
    real = host.real(path) if path else ""
    seen = f"nvidia-container-cli, by which {', '.join(here)} can give GPUs, is {real or 'not there'}"
    if real == entry and "SingularityCE" in here:
        # It searches no folder (findFromConfigOnly in its internal/pkg/util/bin).
        file = BY_NAME["SingularityCE"].caller
        named = re.search(r"^\s*nvidia-container-cli path[ \t]*=[ \t]*(/[^\s,]*)", host.text(file), re.MULTILINE)
        if named is None or host.real(named[1]) != entry:
            seen += f", and {file} names {'another' if named else 'none'}, so that --nvccli does not start it"
            words = ("config", "global", "--set", "nvidia-container-cli path", path)
            return [warned("callers", seen, "singularity", *words)]
    # A host where they give none needs no such program.
    if real in ("", entry):
        return [passed("callers", seen)]
    return [warned("callers", f"{seen}, not this hook", install(tool, "oci-gpu-hook-cli"))]


def of_runtimes(check: str, runtimes: list[Runtime], who: str, tool: str) -> list[Finding]:
    """Which of an engine's runtimes are ours, and which are not there; who: what starts by them."""
    findings = []
    for item in runtimes:
        seen = f"{item.file} has {item.program} as the runtime {item.name}{', the default' if item.is_default else ''}"
        if not item.is_there:
            again = _again(item.file, BY_NAME[item.engine])
            is_written = _rancher(item.file) and item.file in CONTAINERD.files
            remedy = again if is_written else then(command("vi", item.file), again)
            remedy = install(tool) if item.is_ours else remedy
            findings.append(failed(check, f"{seen}, and it is not there: {who} with it do not start", remedy))
        elif item.is_ours:
            findings.append(passed(check, seen))
    return findings


def containerd(host: HostRoot, tool: str, *, is_alone: bool) -> list[Finding]:
    """How containerd's pods get GPUs; is_alone: whether there is no other engine."""
    check, runtimes = CONTAINERD.name, installed.of_containerd(host)
    findings = of_runtimes(check, runtimes, "pods", tool)
    if any([item.is_ours for item in runtimes]):
        return findings
    plugins = [f"/opt/nri/plugins/{name}" for name in host.names("/opt/nri/plugins") if name.endswith("-hook-injector")]
    has_pods = runtimes or any([find_program(host, name) for name in ("kubelet", *CONTAINERD.programs[1:])])
    if plugins:
        findings.append(passed(check, f"{plugins[0]} reads hooks.d, for pods, while it runs"))
    elif has_pods or is_alone:
        seen = "no runtime of containerd's is oci-gpu-runtime: its containers have GPUs by CDI alone"
        findings.append(warned(check, seen, "oci-gpu-hook", "configure", "containerd", "--set-as-default"))
    return findings


def installation(host: HostRoot, entry: str, registered: Registered, tool: str) -> list[Finding]:
    # packaging/install.sh writes two paths into it: the interpreter's, and that of the folder from which it imports.
    script = host.text(entry)
    interpreter = script.partition(" exec ")[2].partition(" ")[0]
    file = host.real(interpreter) if interpreter and host.stat(interpreter) else ""
    library = script.partition('sys.path.insert(0, "')[2].partition("/oci_gpu_hook/startup")[0]
    ours = {item.path for item in registered if item.kind == OURS}
    run_as_root = [START, entry, entry.rpartition("/")[0], *sorted(ours | {path.rpartition("/")[0] for path in ours})]
    run_as_root += _below(host, library) if library else []
    found = _installed(host, entry, library, file, run_as_root, tool)
    return [found, python(interpreter, file, tool)] if library else [found]


def _installed(host: HostRoot, entry: str, library: str, python: str, run_as_root: list[str], tool: str) -> Finding:
    check, fix, package = "installation", install(tool), f"{library}/oci_gpu_hook"
    for program in (entry, START):
        status = host.stat(program)
        if status is None or not status.st_mode & 0o111:
            return failed(check, f"{program} is not there or cannot be run", fix)
    if not library:
        away = command("mv", entry, f"{entry}.other")
        return failed(check, f"{entry} is another's file in our place", then(away, fix))
    if host.stat(f"{package}/__main__.py") is None:
        return failed(check, f"{library} is not whole", fix)
    for path in run_as_root:
        at = host.stat(path)
        if at is not None and is_open_to_others(at):
            return failed(check, f"others than root may write {path}, which runs as root", roots_alone(path))
    # packaging/link.py writes a file for this Python; a Python's name without a version does not tell.
    major, dot, minor = python.rpartition("/python")[2].partition(".")
    if dot and f"modules.cpython-{major}{minor}" not in host.names(f"{package}/__linked__"):
        return warned(check, f"{library} was not made for {python}: each start compiles it again", fix)
    return passed(check, f"{entry} leads to {library}")


def _below(host: HostRoot, path: str) -> list[str]:
    if host.link(path) is not None:
        return []
    return [path, *[found for name in host.names(path) for found in _below(host, f"{path}/{name}")]]
