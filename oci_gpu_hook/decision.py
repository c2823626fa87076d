# SPDX-License-Identifier: Apache-2.0
"""Everything that is read for one container, and the plan that comes of it.

What the container is like is looked at, what of the driver it is given is remembered or decided anew, and `plan` joins
the two.  What only some starts need is imported where they do, as in `hook`.  Must not change the container.
"""

from __future__ import annotations

from oci_gpu_hook import oci, plan, rootfs
from oci_gpu_hook.container import cgroup, scope
from oci_gpu_hook.errors import BundleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from oci_gpu_hook.config import Config
    from oci_gpu_hook.container.cgroup import DeviceCgroup
    from oci_gpu_hook.host.inventory import DriverInventory
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.operations import Labels
    from oci_gpu_hook.plan import Plan, Provision
    from oci_gpu_hook.request import Request
    from oci_gpu_hook.rootfs import Container

# selinuxfs is mounted where SELinux runs, and only there (selinux(8)).
SELINUX = "/sys/fs/selinux/enforce"


def decide(
    bundle: oci.Bundle,
    asked: Request | None,
    settings: Config,
    host: HostRoot,
    root_fd: int,
    *,
    id: str,
    pid: int | None,
    memory: ModuleType | None = None,
) -> tuple[Plan, DriverInventory | None]:
    """The plan for a bundle, and the inventory that it was made from: everything is read here, nothing is changed.

    Without a `pid` the container does not exist yet: what only its process tells is taken from config.json.
    memory: the room host.answers, where answers may be taken from and kept; None of an inventory comes with those.
    """
    container = _container(bundle, root_fd, id, pid, asked, settings)
    labels = _labels(bundle, host, root_fd, settings, id=id, pid=pid, required=asked is not None)
    if asked is None:
        return plan.make_labels(container, labels), None
    question = memory and memory.question(host, asked, rootfs.like(container), settings.driver_root)
    known = memory.recall(host, question) if memory and question else None
    have = None
    if known is not None:
        given = plan.Provision(*known)
    else:
        given, have = _provide(host, container, asked, settings, memory, question)
    return plan.make(container, asked, given, settings, labels), have


def _provide(
    host: HostRoot,
    container: Container,
    asked: Request,
    settings: Config,
    memory: ModuleType | None,
    question: object,
) -> tuple[Provision, DriverInventory]:
    """What the container is given, from the inventory."""
    from oci_gpu_hook import provision, selection
    from oci_gpu_hook.host import inventory

    have, is_saved = _inventory(host, settings.driver_root)
    chosen = selection.select(asked, have)
    root = memory.Witness(host) if memory and question else host
    have = inventory.with_nodes(
        root,
        have,
        selection.families(asked),
        asked.imex_channels,
        settings.driver_root,
        tuple([gpu for gpu, _ in chosen.gpus]),
    )
    if asked.source == "cdi":
        # A spec is made before any container: its libraries lie where the host has them, of both word sizes.
        container = _laid_out_like_host(container, have.library_folder)
    if asked.requirements:
        from oci_gpu_hook import requirements

        gpus = tuple([(gpu.compute_capability, gpu.brand) for gpu, _ in chosen.gpus])
        facts = requirements.HostFacts(have.driver_version, have.cuda_version, gpus)
        requirements.check(asked.requirements, facts)
    given = provision.make(rootfs.like(container), asked, chosen, have)
    if memory and question and is_saved and all([gpu.uuid for gpu in have.gpus]):
        memory.keep(host, question, root, given)
    return given, have


def _inventory(host: HostRoot, driver_root: str) -> tuple[DriverInventory, bool]:
    """The saved inventory while it is true, else a new one; and whether it is the saved one."""
    from oci_gpu_hook.host import inventory, stamp

    saved = inventory.read_saved(host, stamp.now(host, driver_root))
    if saved is not None:
        return saved, True
    from oci_gpu_hook.host import survey

    return survey.anew(host, driver_root), False


def _container(
    bundle: oci.Bundle,
    root_fd: int,
    id: str,
    pid: int | None,
    asked: Request | None,
    settings: Config,
) -> Container:
    """What the container is like, from its root, its process and its cgroup."""
    folder, loader = rootfs.library_folder(root_fd)
    device_cgroup = _device_cgroup(id, pid)
    asked_for = oci.has_user_namespace(bundle)
    capabilities = asked.capabilities if asked else ()
    forward = settings.cuda_forward_compatibility and "compute" in capabilities
    return rootfs.Container(
        id=id,
        bundle=bundle.path,
        rootfs=oci.rootfs(bundle),
        library_folder=folder,
        library_folder_32=rootfs.library_folder_32(folder, loader),
        compat_names=rootfs.names(root_fd, rootfs.COMPAT_FOLDER) if forward else (),
        loader=loader,
        user_namespace=asked_for if pid is None else rootfs.in_user_namespace(pid),
        dev_is_hosts=pid is not None and rootfs.dev_is_hosts(root_fd),
        device_cgroup=device_cgroup,
        scope=scope.find(device_cgroup.top),
    )


def container_like_host(library_folder: str) -> Container:
    """A container that is laid out as the host is: for a CDI spec, which is made before any container."""
    container = rootfs.Container(
        id="",
        bundle="",
        rootfs="",
        library_folder="",
        library_folder_32="",
        compat_names=(),
        loader=rootfs.GLIBC,
        user_namespace=False,
        dev_is_hosts=False,
        device_cgroup=_device_cgroup("", None),
    )
    return _laid_out_like_host(container, library_folder)


def _laid_out_like_host(container: Container, library_folder: str) -> Container:
    return container._replace(
        library_folder=library_folder,
        library_folder_32=rootfs.library_folder_32(library_folder, rootfs.GLIBC),
    )


def _device_cgroup(id: str, pid: int | None) -> DeviceCgroup:
    try:
        return cgroup.expected() if pid is None else cgroup.locate(pid, id)
    except OSError as err:
        raise BundleError(
            f"the container's device cgroup cannot be found: {err}",
            "the container engine or runtime must mend it",
        ) from err


def _labels(
    bundle: oci.Bundle,
    host: HostRoot,
    root_fd: int,
    settings: Config,
    *,
    id: str,
    pid: int | None,
    required: bool,
) -> Labels | None:
    """What SELinux needs; None on a host without it, where nothing of ours is even imported."""
    if host.stat(SELINUX) is None:
        return None
    from oci_gpu_hook import ipc, ipclabels

    mounts = () if pid is None else ipc.mounts(bundle, id, root_fd, pid, host)
    mount_label, process_label = oci.mount_label(bundle), oci.process_label(bundle)
    return ipclabels.decide(mounts, mount_label, process_label, settings, required=required)
