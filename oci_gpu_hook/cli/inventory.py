# SPDX-License-Identifier: Apache-2.0
"""``info`` and ``inventory``: what this host has, and the saved copy of it that hooks load."""

from __future__ import annotations

import click

from oci_gpu_hook import render
from oci_gpu_hook.cli.options import host_root, output_format, show
from oci_gpu_hook.errors import ApplyError, DriverError
from oci_gpu_hook.host import inventory as host_inventory
from oci_gpu_hook.host.root import HostRoot


@click.command()
@output_format
@host_root
def info(form: str, host_root: str) -> None:
    """Show the driver, the GPUs and the files by capability, as they are now."""
    root = HostRoot(host_root)
    found = host_inventory.with_nodes(root, host_inventory.survey(root))
    show(form, render.inventory_document(found), render.inventory_text(found))


@click.group()
def inventory() -> None:
    """Prepare or show the saved inventory that hooks load at a container's start."""


@inventory.command()
@output_format
@host_root
def refresh(form: str, host_root: str) -> None:
    """Survey the host and save the result for the hooks.

    A hook that finds no saved inventory, or one that is no longer true, surveys by itself: correctly, only slower.
    """
    root = HostRoot(host_root)
    try:
        found, path = host_inventory.refresh(root)
    except OSError as err:
        raise ApplyError(f"cannot save the inventory: {err}", "run it as root") from err
    gpus = len(found.gpus)
    text = f"saved {path}: driver {found.driver_version}, {gpus} GPU{'' if gpus == 1 else 's'}"
    show(form, {"saved": path, **render.inventory_document(found)}, text)


@inventory.command("show")
@output_format
@host_root
def show_saved(form: str, host_root: str) -> None:
    """Show the saved inventory, if it is still true."""
    root = HostRoot(host_root)
    saved = host_inventory.read_saved(root, host_inventory.stamp(root))
    if saved is None:
        raise DriverError(
            "there is no saved inventory, or it is no longer true",
            "run 'oci-gpu-hook inventory refresh'",
        )
    found = host_inventory.with_nodes(root, saved)
    show(form, render.inventory_document(found), render.inventory_text(found))
