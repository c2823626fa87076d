# SPDX-License-Identifier: Apache-2.0
"""``volume``: the driver's files in a folder, for images that look for them in /usr/local/nvidia."""

from __future__ import annotations

import click

from oci_gpu_hook.cli import limit, onhost
from oci_gpu_hook.cli.group import CommandGroup
from oci_gpu_hook.cli.options import config_file, host_root
from oci_gpu_hook.driver import survey
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.setup import drivervolume
from oci_gpu_hook.request.settings import read_settings

# Read-only whatever a container's own mount says: what one could write, the others would run.
_OPTIONS = "--opt type=none --opt o=bind,ro"


@click.group(cls=CommandGroup)
def volume() -> None:
    """Keep the driver's volume of nvidia-docker 1's time: copies of its files, for containers without a hook."""


@volume.command()
@config_file
@host_root
def create(config: str | None, root: HostRoot) -> None:
    """Make the volume, or bring it up to date, and print the command that names it to Docker.

    The folder /var/lib/oci-gpu-hook/volume has 64-bit libraries in lib64, 32-bit ones in lib and programs in bin.  They
    are copies: nothing that a container could do to them reaches the driver.  'inventory refresh', which the services
    run after an upgrade of the driver, exchanges them; containers that run see the new ones.
    """
    limit.allow(600)
    driver_root = read_settings(config, None).driver_root
    onhost.check_is_server(root)
    found = survey.survey(root, driver_root)
    done = "has the files of" if drivervolume.make(root, found) else "has already the files of"
    click.echo(f"{drivervolume.PATH} {done} driver {found.driver_version}", err=True)
    click.echo(f"docker volume create {_OPTIONS} --opt device={drivervolume.PATH} {drivervolume.name(root, found)}")


@volume.command()
@host_root
def remove(root: HostRoot) -> None:
    """Remove the volume's folder: ours alone, and only if it has our mark."""
    click.echo(f"{'removed' if drivervolume.remove(root) else 'there is no'} {drivervolume.PATH}")
