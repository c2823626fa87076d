# SPDX-License-Identifier: Apache-2.0
"""``plan``: what the hook would do for a bundle, and why.  Changes nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from oci_gpu_hook import config as settings_of
from oci_gpu_hook import decision, hook, leftout, oci, render, request, rootfs, sources
from oci_gpu_hook.cli.options import config_file, host_root, output_format, show
from oci_gpu_hook.errors import ConfigError, RequestError
from oci_gpu_hook.host.root import HostRoot

if TYPE_CHECKING:
    from oci_gpu_hook.config import Config


@click.command()
@click.option(
    "--bundle",
    metavar="DIR",
    required=True,
    help="The container's bundle (its config.json lies in it).",
)
@click.option(
    "--pid",
    metavar="N",
    type=click.IntRange(min=1),
    help="The container's process, if it exists already.",
)
@click.option(
    "--id",
    "container_id",
    metavar="ID",
    default="",
    help="The container's id, if it exists already.",
)
@output_format
@config_file
@host_root
def plan(
    bundle: str, pid: int | None, container_id: str, form: str, config: str | None, host_root: str
) -> None:
    """Show what the hook would do for a bundle, and why.

    Nothing is changed.  Without --pid, what only the container's process tells (its namespaces and its cgroup) is
    taken from config.json, or left open and said so.
    """
    found = oci.read_bundle(os.path.abspath(bundle))
    inputs = hook.inputs_of(found, {})
    path = oci.rootfs(found)
    settings, asked, notes = _asked(inputs, config)
    if settings is None or (asked is None and settings.ipc_labels != "all"):
        why = "".join([f"\n           {note}" for note in notes])
        text = f"bundle     {found.path}\nrequest    none: the hook would leave this container alone{why}"
        show(form, render.no_request_document(container_id, found.path, path, notes), text)
        return
    host = HostRoot(host_root)
    root_fd = rootfs.open_root(path, pid)
    decided, have = decision.decide(found, asked, settings, host, root_fd, id=container_id, pid=pid)
    decided = decided._replace(notes=(*notes, *decided.notes))
    left_out = leftout.sentences(decided, have) if have else ()
    show(form, render.plan_document(decided, left_out), render.plan_text(decided, left_out))


def _asked(
    inputs: sources.Inputs, file: str | None
) -> tuple[Config | None, request.Request | None, tuple[str, ...]]:
    """The settings, the request, and what is left out; a mistake in a file stops only who asks for something."""
    try:
        settings = settings_of.read(*hook.settings_file(file), inputs.annotations)
    except (ConfigError, RequestError) as err:
        if sources.may_ask(inputs):
            raise
        return None, None, (str(err),)
    return (settings, *request.parse(inputs, settings))
