# SPDX-License-Identifier: Apache-2.0
"""``cdi``: a CDI spec of this host, for engines that inject devices by themselves."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import click

from oci_gpu_hook import asking
from oci_gpu_hook.cli import accelerators, argumentfile
from oci_gpu_hook.cli.options import config_and_host
from oci_gpu_hook.container import layout
from oci_gpu_hook.driver import proc
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.driver.nodes import CAPS_FOLDER, of_families
from oci_gpu_hook.errors import ConfigError, DriverError, HookError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.node.diagnosis import counted, dockercheck
from oci_gpu_hook.node.diagnosis.speccheck import AGAIN, BY_OURS, REMOVE
from oci_gpu_hook.node.engines import cdispecs, installed
from oci_gpu_hook.node.gpus import hardware
from oci_gpu_hook.node.machine import outputfile
from oci_gpu_hook.node.setup import cdispec as spec_of
from oci_gpu_hook.operations import Mount
from oci_gpu_hook.planning import meanings, platforms, provision, selection, vendorshare
from oci_gpu_hook.planning.plan import some
from oci_gpu_hook.request.bundle import objects
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings, read_settings
from oci_gpu_hook.request.words import ADMINISTRATOR, ALL, CAPABILITIES, FEATURES, NONE, items
from oci_gpu_hook.vendors import folders, platform, vendorhost

GPU, MANAGEMENT, IMEX = "gpu", "management", "imex"
# What is beside GPUs, each by the name of its nodes' family.
FAMILIES = (IMEX, *[feature.name for feature in FEATURES])
_KINDS = (GPU, MANAGEMENT, *FAMILIES)

_CHOICE = f"choose from {', '.join(CAPABILITIES)} or all"
_OWN = "a vendor's file says in driver_feature what containers get"


@click.group()
def cdi() -> None:
    """Write a Container Device Interface spec of this host's devices."""


@cdi.command()
@click.option("--vendor", "flag", metavar="FLAG", help="The devices of this vendor's file, such as OCI_AMD.")
@click.option("--kind", type=click.Choice(_KINDS), help="Which of NVIDIA's devices.  [default: gpu]")
@click.option("--output", metavar="FILE", help="Write to FILE, whole or not at all.  [default: -, stdout]")
@click.option(
    "--capabilities",
    metavar="LIST",
    help="NVIDIA's driver capabilities: by CDI no container can ask for its own.  [default: all]",
)
@click.option("--hook", "entry", metavar="PATH", default=installed.START, show_default=True, help="The hook's program.")
@config_and_host
def generate(
    flag: str | None,
    kind: str | None,
    output: str | None,
    capabilities: str | None,
    entry: str,
    config: str | None,
    host: HostRoot,
) -> None:
    """Write a spec of kind nvidia.com/gpu: devices by index, UUID and MIG name, 'all', and 'none' (the driver's files).

    With --vendor it is of the kind that the vendor's file names: devices by index, PCI address, the names of their
    nodes and further names, and 'all'.  With --kind management it is of management.nvidia.com/gpu, with one device,
    'all'; with imex of nvidia.com/imex-channel, by number; with another WORD of nvidia.com/WORD, with 'all' alone.

    Engines look for specs in /etc/cdi and /var/run/cdi.  All containers that use the spec have its capabilities: with
    CDI, none can ask for its own.  The spec has the device nodes, and starts the hook, which
    gives all else; one of --kind imex, gds, mofed, gdrcopy or nvswitch starts no hook, and has the files.  Write it
    again after a change of GPUs, MIG devices or a vendor's devices: 'inventory watch' does that with --cdi-spec for
    NVIDIA's GPUs.
    """
    outputfile.check_name("--output", output)
    settings = read_settings(config, None, host.path)
    if flag == "":
        raise UsageError("--vendor is empty", "give the flag of a vendor's file, such as OCI_AMD")
    if flag is not None and kind is not None:
        raise UsageError("--kind cannot be given with --vendor", "give one of the two")
    if capabilities is not None and (flag is not None or kind in FAMILIES):
        option, hint = (f"--kind {kind}", "leave it out") if flag is None else ("--vendor", _OWN)
        raise UsageError(f"--capabilities does not apply to {option}", hint)
    is_nvidias = flag is None and kind not in FAMILIES
    words = granted(ALL if capabilities is None else capabilities, settings) if is_nvidias else ()
    if not entry.startswith("/") or not entry.isprintable():
        raise UsageError(f"--hook is {quoted(entry)}, which is not an absolute path")
    # The hook must read the same settings as this command.
    file = os.path.abspath(config) if config else ""
    hook = spec_of.Hook(entry, words, file, flag or "", settings.device_group == "container")
    document, nameless = spec_now(host, settings, hook, kind or GPU)
    if output is None or output == "-":
        click.echo(spec_of.text(document), nl=False)
    else:
        write(output, document)
        click.echo(f"wrote {output}: {counted((len(document['devices']), 'device', 'devices'))}")
    if nameless:
        click.echo(f"{cdispecs.PROGRAM}: {nameless}", err=True)


@cdi.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
def remove(files: tuple[str, ...]) -> None:
    """Remove CDI specs that 'generate' has written: these files, else all where an installed engine looks for specs.

    Without the hook, a container that asks for their devices does not start: remove them before the hook.
    """
    host = HostRoot()
    docker = dockercheck.find_docker(host)
    readers = installed.find_readers(host, docker.settings if docker else None, "")
    for path in files or [spec.path for spec in cdispecs.specs(host, readers) if spec.is_ours]:
        if _own(path):
            outputfile.remove(path)
            click.echo(f"removed {path}")
        else:
            click.echo(f"there is no spec in {path}")


def granted(capabilities: str, settings: Settings) -> tuple[str, ...]:
    """Those of the named capabilities that the administrator allows; UsageError if there is none."""
    words = items(capabilities)
    if unknown := [word for word in words if word not in (*CAPABILITIES, ALL)]:
        raise UsageError(f"unknown capability {quoted(unknown[0])} in --capabilities", _CHOICE)
    named = [name for name in CAPABILITIES if name in words or ALL in words]
    if not named:
        raise UsageError("--capabilities names no capability", _CHOICE)
    granted = tuple([name for name in named if name in settings.allowed_capabilities])
    if not granted:
        raise UsageError(f"none of the capabilities {', '.join(named)} is allowed", ADMINISTRATOR)
    return granted


def spec_now(host: HostRoot, settings: Settings, hook: spec_of.Hook, kind: str = GPU) -> tuple[dict[str, Any], str]:
    """Of a host as it is now, with a sentence on nameless devices, "" for none.  kind: a word of --kind."""
    if kind in FAMILIES:
        return _beside_gpus(host, settings, kind), ""
    if hook.vendor:
        return _of_vendor(host, settings, hook), ""
    if platform.platform_of(host) in accelerators.PLATFORMS and kind == GPU:
        return _of_platform(host, settings, hook), ""
    asked = Request("cdi-spec", (ALL,), hook.capabilities)
    accelerators.check_is_server(host)
    if kind == MANAGEMENT:
        found = hardware.nvidia(host, settings.driver_root)
        # MIG's management if there is MIG; all IMEX channels bring a sentence if there are none.
        configures, monitors = found.mig_config_minor is not None, found.mig_monitor_minor is not None
        asked = asked._replace(mig_config=configures, mig_monitor=monitors, imex_channels=(ALL,))
    found = accelerators.of_server(host, settings.driver_root, selection.families(asked))
    provision.check_driver(asked, found)
    hook = hook._replace(means=_means(meanings.of_nvidia(found)))
    common = _nodes(found, asked._replace(devices=(NONE,), mig_config=False, mig_monitor=False, imex_channels=()))
    if kind == MANAGEMENT:
        # That of IMEX's management too, whose minor only a node tells.
        names = [name.removeprefix("nvidia-cap") for name in host.names(CAPS_FOLDER)]
        minors = tuple(sorted([int(name) for name in names if name.isdecimal()]))
        caps = [node for node in of_families(host, ("caps",), (), minors, ()) if node.present]
        everything = tuple(dict.fromkeys([*_nodes(found, asked), *caps]))
        return spec_of.document(common, ((ALL, everything),), hook, cdispecs.MANAGEMENT), ""
    devices = [(name, _nodes(found, asked._replace(devices=(name,)))) for name in spec_of.names(found)]
    return spec_of.document(common, tuple(devices), hook), spec_of.nameless(found)


def _means(found: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """What the paths of the spec mean: a name that no option can have is left out, and then its device is refused."""
    return tuple([(path, it) for path, it in found.items() if path.startswith("/dev/") and not {*path} & {*",="}])


def _nodes(found: DriverInventory, request: Request) -> spec_of.Nodes:
    """That of nvidia-modeset only if it is there: an engine refuses a path that is not."""
    wanted = selection.nodes(request, selection.select(request, found), found)
    return tuple(dict.fromkeys([node for node, _ in wanted if node.present or node.family != "modeset"]))


def _of_platform(host: HostRoot, settings: Settings, hook: spec_of.Hook) -> dict[str, Any]:
    """The spec of a Jetson, or of WSL 2: its GPU by index 0 and 'all', and of several each by its index and UUID."""
    gpus = hardware.nvidia(host, settings.driver_root) if host.names(proc.GPUS) else None
    inside = layout.layout_of(host.fd, None, user_namespace=False, compat="", draws=False)

    def provided(selector: str) -> spec_of.Nodes:
        share, _ = platforms.share(host, inside, Request("cdi-spec", (selector,), hook.capabilities), gpus)
        return tuple([node for node, _ in share.nodes])

    listed = gpus.gpus if gpus else ()
    count = 1 + len([gpu for gpu in listed if gpu.bus_id != platforms.INTEGRATED])
    words = [str(number) for number in range(count)] + [gpu.uuid for gpu in listed if gpu.uuid]
    devices = tuple([(word, provided(word)) for word in (*words, ALL, NONE)])
    return spec_of.document(provided(NONE), devices, hook)


def _beside_gpus(host: HostRoot, settings: Settings, family: str) -> dict[str, Any]:
    """The spec of what is beside GPUs on a host as it is now; DriverError if it has none of it."""
    accelerators.check_is_server(host)
    found = hardware.nvidia(host, settings.driver_root)
    nodes = [node for node in of_families(host, (family,), (), (), ()) if node.present]
    if not nodes:
        raise DriverError(f"this host has no devices of {family}", "load the driver that makes them first")
    kind, named = family, [(ALL, tuple(nodes))]
    if family == IMEX:
        kind, named = "imex-channel", [(node.path.rpartition("/channel")[2], (node,)) for node in nodes]
    mounts, _ = provision.file_operations(Request("cdi-spec", (NONE,), (), features=(family,)), found)
    own = tuple([it for it in mounts if isinstance(it, Mount) and family in it.reason])
    return spec_of.of_nodes(f"nvidia.com/{kind}", tuple(named), own, groups=settings.device_group == "container")


def _of_vendor(host: HostRoot, settings: Settings, hook: spec_of.Hook) -> dict[str, Any]:
    flag = hook.vendor
    found = next((vendor for vendor in folders.known(host) if vendor.flag == flag), None)
    if found is None:
        hint = "'oci-gpu-hook info --vendors' shows the files, their flags, and what is wrong with them"
        raise UsageError(f"no vendor's file of this host has the flag {quoted(flag)}", hint)
    if found.fault:
        raise ConfigError(found.fault, ADMINISTRATOR)
    if not found.kind:
        raise UsageError(f"{found.file} names no kind of CDI devices", "add kind to it, such as vendor.com/gpu")
    if ALL not in settings.allowed_vendors and flag not in settings.allowed_vendors:
        raise UsageError(f"{flag} is not allowed", ADMINISTRATOR)
    here = vendorhost.vendor_state(host, folders.vendor_inventory(host, flag, found.file))
    if lacking := here.lacking():
        hint = f"'oci-gpu-hook info' shows what {flag} has here"
        raise DriverError(f"{found.file} requires what this host lacks: {some(lacking)}", hint)
    hook = hook._replace(means=_means(meanings.of_vendor(here)))
    common = tuple([node for node, _ in here.common])
    devices = [
        (name, tuple([node for device, _ in vendorshare.selected((name,), here) for node, _ in device.nodes]))
        for name in spec_of.vendors_names(here)
    ]
    document = spec_of.document(common, tuple(devices), hook, found.kind, here.inventory.environment)
    made = [cdispecs.edits(it).get("deviceNodes", []) for it in (document, *objects(document, "devices"))]
    # Engines refuse a link, such as udev makes.
    for node in [node for nodes in made for node in nodes if host.real(node["path"]) != node["path"]]:
        node["hostPath"] = host.real(node["path"])
    return document


def stale(host: HostRoot, document: dict[str, Any]) -> tuple[str, str]:
    """Why a spec of ours is out of date, "" if it is not; and what ends that: see `speccheck.compared`."""
    made = cdispecs.origin_of(document)
    kind = made.family or (MANAGEMENT if document.get("kind") == cdispecs.MANAGEMENT else GPU)
    holders = (document, *objects(document, "devices"))
    has_groups = any(["additionalGids" in cdispecs.edits(item) for item in holders])
    config = made.config or None
    if config and not config.isprintable():
        return f"its --config is {quoted(config)}", REMOVE
    if kind not in _KINDS:
        return "its kind is unknown", REMOVE
    try:
        settings = read_settings(config, None, host.path)._replace(device_group="container" if has_groups else "host")
        hook = spec_of.Hook("/", tuple(items(made.capabilities)), "", made.vendor, has_groups)
        now, _ = spec_now(host, settings._replace(allowed_vendors=(ALL,)), hook, kind)
    except UsageError as err:
        # Of a vendor whose file is gone.
        return err.message, REMOVE
    except HookError as err:
        return err.message, err.hint
    # How a spec starts the hook depends on who wrote it.
    edits = [{**it["containerEdits"], "hooks": cdispecs.origin_of(it).means} for it in (document, now)]
    if {**document, "containerEdits": edits[0]} != {**now, "containerEdits": edits[1]}:
        return "it does not say what the host has now", AGAIN
    if made.family:
        return "", ""
    # Else no container by the spec starts.
    (started,) = document["containerEdits"]["hooks"]
    if started.get("hookName") != spec_of.STAGE or started["args"][1:2] != [spec_of.STAGE]:
        return f"its hook is not for {spec_of.STAGE}", AGAIN
    if host.stat(made.hook) is None:
        return f"it starts {quoted(made.hook)}, which is not there", BY_OURS
    try:
        asking.options([str(word) for word in started["args"][2:]])
    except UsageError as err:
        return err.message, AGAIN
    return "", ""


def write(path: str, document: dict[str, Any]) -> None:
    """Whole or not at all: engines may read it at any moment.  UsageError if it is not ours, or of other devices."""
    if found := _own(path):
        # A vendor may give its kind another name.
        there, ours = [cdispecs.origin_of(it).vendor or it.get("kind") for it in (found, document)]
        if there != ours:
            raise UsageError(f"{path} is there and is the CDI spec of {quoted(there)}", "give another --output")
    # Engines read only names that end in .yaml or .json, and so not the temporary file.
    outputfile.write(path, spec_of.text(document))


def _own(path: str) -> dict[str, Any]:
    """The spec of ours in a file, {} if there is none or it is empty; UsageError if something else is there."""
    data, found = b"", dict[str, Any]()
    with outputfile.explained(path), suppress(FileNotFoundError):
        if not is_regular(os.lstat(path)):
            raise UsageError(f"{path} is there and is not a regular file", "name another file")
        # Not by its name alone: a user's folder may have a FIFO there meanwhile.
        data = argumentfile.content(path)
    with suppress(ValueError, installed.NoParser):
        found = cdispecs.parsed(data.decode()) if data else {}
    if data and not cdispecs.origin_of(found).is_ours:
        raise UsageError(f"{path} is there and is not a CDI spec of ours", "move it away first")
    return found
