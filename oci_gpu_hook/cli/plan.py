# SPDX-License-Identifier: Apache-2.0
"""``plan``: what the hook would do for a bundle, and why.  Changes nothing."""

from __future__ import annotations

import os

import click

from oci_gpu_hook import hook, oci, render, request, rootfs
from oci_gpu_hook.cli.options import config_file, host_root, output_format, show
from oci_gpu_hook.host.root import HostRoot


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
    asked = request.parse(oci.environment(found))
    path = oci.rootfs(found)
    if asked is None and not hook.labels_every_container():
        text = (
            f"bundle     {found.path}\nrequest    none: the hook would leave this container alone"
        )
        show(form, render.no_request_document(container_id, found.path, path), text)
        return
    host = HostRoot(host_root)
    root_fd = rootfs.open_root(path, pid)
    decided = hook.decide(found, asked, host, root_fd, config, id=container_id, pid=pid)
    show(form, render.plan_document(decided), render.plan_text(decided))
