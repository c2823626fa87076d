# SPDX-License-Identifier: Apache-2.0
"""What drivers give to a container, looked up on the host and decided anew: no saved answer has it.

An answer is saved for `answers`, with all that it depends on.  Must not change anything but what is saved, and must not
stop a start for that: an answer that cannot be saved only makes the next start slower.
"""

from __future__ import annotations

import marshal
import posix

from oci_gpu_hook.container import layout
from oci_gpu_hook.driver import inventory, proc
from oci_gpu_hook.driver.inventory import with_nodes
from oci_gpu_hook.host import saved
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations.vocabulary import name_of
from oci_gpu_hook.planning import provision, selection
from oci_gpu_hook.planning.answers import PREFIX, fact
from oci_gpu_hook.planning.plan import Found
from oci_gpu_hook.vendors import platform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from oci_gpu_hook.container.layout import Layout
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.planning.answers import Question
    from oci_gpu_hook.planning.plan import Provision, Share
    from oci_gpu_hook.request.parse import Request
    from oci_gpu_hook.request.settings import Settings

    Answer = TypeVar("Answer")

# Of some 10 KiB each.  On a node with more kinds of containers all answers are deleted, and needed ones saved again.
MOST = 64


def provide(
    host: HostRoot, laid_out: Layout, request: Request, settings: Settings, question: Question | None, label: str
) -> tuple[Provision, Found]:
    """What the container gets, and what of the host was looked at for it.

    question: the one to save the answer for; label: of the container's process, "" without SELinux.
    """
    recording = RecordingRoot(host) if question else None
    root = recording or host
    known, is_settled, is_by_lists = None, False, False
    if request.devices or not request.vendors:
        known, is_settled = known_inventory(host, settings.driver_root)
        # A Jetson's containers get what its lists say, also where NVIDIA's module has GPUs.
        is_by_lists = known is None or bool(root.stat(proc.CSV_FOLDER) and platform.look(root) == platform.TEGRA)
    module = None if is_by_lists else known
    if request.is_by_spec():
        # Made before any container, a CDI spec puts libraries where the host has them.
        folder = module.library_folder if module else layout.library_folder(host.fd)[0]
        folder_32 = layout.library_folder_32(folder, layout.GLIBC)
        laid_out = laid_out._replace(library_folder=folder, library_folder_32=folder_32)
    shares, version = [], ""
    if module is not None:
        share, module = _of_gpus(root, laid_out, request, settings, module)
        shares, version = [share], module.driver_version
    elif is_by_lists:
        from oci_gpu_hook.planning import platforms

        share, version = platforms.share(root, laid_out, request, known)
        shares = [share]
    on_host = []
    if request.vendors:
        from oci_gpu_hook.planning import vendorshare
        from oci_gpu_hook.vendors import folders, vendorhost

        on_host = [vendorhost.look(host, folders.vendor_inventory(host, it.flag, it.file)) for it in request.vendors]
        process_type = "".join(label.split(":")[2:3])
        shares += [vendorshare.share(laid_out, *pair, process_type) for pair in zip(request.vendors, on_host)]
    provided = provision.join(laid_out, version, tuple(shares))
    if question and recording and is_settled and module and all([gpu.uuid for gpu in module.gpus]):
        _keep(question, recording, provided)
    return provided, Found(module, tuple(on_host))


def _of_gpus(
    host: HostRoot, laid_out: Layout, request: Request, settings: Settings, known: DriverInventory
) -> tuple[Share, DriverInventory]:
    """What NVIDIA's kernel module gives, and its inventory with the nodes that were looked up."""
    selected = selection.select(request, known)
    gpus = tuple([gpu for gpu, _ in selected.gpus])
    families, mps = selection.families(request), (settings.mps_pipe_folder, settings.mps_pipe_owner)
    found = with_nodes(host, known, families, request.imex_channels, settings.driver_root, gpus, mps)
    if request.requirements:
        from oci_gpu_hook.planning import requirements

        kinds = tuple([(gpu.compute_capability, gpu.brand) for gpu in gpus])
        requirements.check(request.requirements, found.driver_version, found.cuda_version, kinds)
    return provision.of_nvidia(laid_out, request, selected, found), found


def known_inventory(host: HostRoot, driver_root: str) -> tuple[DriverInventory | None, bool]:
    """The saved inventory while it is true, else a new one; and whether it is settled: saved, and without a doubt.

    None on a Jetson and under WSL 2, which have no GPU in it: see `platforms`.
    """
    known = inventory.read_saved(host, proc.stamp(host, driver_root))
    if known is not None and known.gpus:
        if host.remember and any([device.uuid is None for device in known.mig_devices]):
            saved.want_refresh(host)
        return known, inventory.MAY_BE_MADE_ANEW not in known.unknown
    if not host.names(proc.GPUS) and platform.look(host) in (platform.TEGRA, platform.WSL):
        return None, False
    if known is not None:
        return known, True
    from oci_gpu_hook.driver import survey

    look = survey.survey_and_save if host.remember else survey.survey
    return look(host, driver_root), False


class RecordingRoot(HostRoot):
    """The host's root, which records the facts that are read from it: method, arguments and what it gave."""

    def __init__(self, root: HostRoot) -> None:
        self.__dict__.update(root.__dict__)
        self.facts: list[tuple[str, tuple[Any, ...], Any]] = []

    def stat(self, path: str) -> posix.stat_result | None:
        return self._recorded(super().stat(path), "stat", path)

    def source(self, path: str, owner: int = 0) -> tuple[bool, str] | None:
        return self._recorded(super().source(path, owner), "source", path, owner)

    def read(self, path: str) -> bytes | None:
        return self._recorded(super().read(path), "read", path)

    def names(self, path: str) -> list[str]:
        return self._recorded(super().names(path), "names", path)

    def _recorded(self, found: Answer, method: str, *arguments: object) -> Answer:
        self.facts.append((method, arguments, fact(found)))
        return found


def _keep(question: Question, root: RecordingRoot, provided: Provision) -> None:
    """Save the answer to a question, if that is possible."""
    runs: list[tuple[str, list[Any]]] = []
    for operation in provided.operations:
        name = name_of(operation)
        if not runs or runs[-1][0] != name:
            runs.append((name, []))
        runs[-1][1].append(saved.plain(operation))
    answer = (provided.driver_version, provided.devices, runs, provided.notes, provided.holds)
    # Before `root` records what the next lines read.
    data = marshal.dumps((saved.plain(question.values), root.facts, answer))
    if len(data) > saved.LARGEST:
        return  # it would never be read
    try:
        _delete_too_many(root)
        saved.write(root, question.name, data)
    except OSError:
        pass


def _delete_too_many(root: HostRoot) -> None:
    """Delete all answers if there are too many: the next starts save those that are needed again."""
    folder = saved.open_folder(root)
    try:
        names = [name for name in root.names(saved.FOLDER) if name.startswith(PREFIX)]
        for name in names if len(names) >= MOST else ():
            posix.unlink(name, dir_fd=folder)
    finally:
        posix.close(folder)
