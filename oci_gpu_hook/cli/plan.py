# SPDX-License-Identifier: Apache-2.0
"""``plan``: show what the hook would do for a bundle, and why.  Changes nothing."""

from __future__ import annotations

import os

import click

from oci_gpu_hook.asking import Options, Question
from oci_gpu_hook.cli import argumentfile, plantext
from oci_gpu_hook.cli.options import config_and_host, output_format, show
from oci_gpu_hook.container import layout, rootfs
from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.container.process import Process
from oci_gpu_hook.errors import ConfigError, RequestError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines import cdispecs
from oci_gpu_hook.planning.decide import decide
from oci_gpu_hook.planning.plan import Container, Plan
from oci_gpu_hook.request.annotations import folder_of
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.state import State

_FOLDER = click.Path(exists=True, file_okay=False, readable=False)
# Of a container that the hook leaves alone: its root need not be there.
_NOT_LOOKED_AT = layout.Layout("", "", None, "", user_namespace=False, dev_is_hosts=False)


@click.command()
@click.option("--bundle", metavar="DIR", help="The container's bundle (the folder of its config.json).")
@click.option("--image-root", metavar="DIR", type=_FOLDER, help="An image's root, before there is a container.")
@click.option("--env", metavar="NAME=VALUE", multiple=True, help="A variable of that container; as often as needed.")
@click.option("--pid", metavar="N", type=click.IntRange(min=1), help="The container's process, if it exists already.")
@click.option("--id", "container_id", metavar="ID", default="", help="The container's id, if it exists already.")
@output_format
@config_and_host
def plan(
    bundle: str | None,
    image_root: str | None,
    env: tuple[str, ...],
    pid: int | None,
    container_id: str,
    is_json: bool,
    config: str | None,
    host: HostRoot,
) -> None:
    """Show what the hook would do for a bundle, or for an image and an environment, and why.

    Nothing is changed.  Without --pid, what depends on the container's process (its namespaces and its cgroup) is taken
    from config.json, or is not decided, and a note says so.
    """
    if (bundle is None) == (image_root is None) or (bundle and env) or (image_root and pid):
        raise UsageError("give --bundle, or --image-root and --env for a container that does not exist yet")
    found = argumentfile.bundle(os.path.abspath(bundle)) if bundle is not None else _of_image(str(image_root), env)
    path = found.rootfs()
    question = Question(found, State(container_id or folder_of(found.path)[1]), Options(config, host.path))
    # Of several, of which each is a start of its own, the first.
    specs = cdispecs.in_bundle(found)
    spec, others = specs[0] if specs else None, [it.vendor or cdispecs.GPU for it in specs[1:]]
    beside = tuple([f"{it} by its CDI spec: a start of its own, which is not shown" for it in others])
    settings, request = None, None
    try:
        settings = question.settings()
        request, notes = question.request(settings, spec)
    except (ConfigError, RequestError) as err:
        # Wrong settings stop only a container that asks for something.
        if settings or spec or question.may_ask():
            raise
        notes = (str(err),)
    if settings is None or (request is None and settings.ipc_labels != "all"):
        made = Plan(Container(container_id, found.path, path, DeviceCgroup()), _NOT_LOOKED_AT, None, (), ())
    else:
        process = Process(pid) if pid else None
        inside = rootfs.of_process(path, found.tmpfs(), process) if process else rootfs.of_folder(path)
        made = decide(found, request, settings, host, inside, id=container_id, process=process, spec=spec)
    made = made._replace(notes=(*notes, *beside, *made.notes))
    left_out = plantext.missing(made)
    show(is_json, plantext.plan_document(made, left_out), plantext.plan_text(made, left_out))


def _of_image(root: str, env: tuple[str, ...]) -> Bundle:
    if wrong := next((item for item in env if item.find("=") < 1), None):
        raise UsageError(f"--env is {quoted(wrong)}, which is not NAME=VALUE")
    path = os.path.abspath(root)
    return Bundle(path, {"process": {"env": list(env)}, "root": {"path": path}})
