# SPDX-License-Identifier: Apache-2.0
"""What a hub does to start its users' servers, without the hub: real spawners, configured by lines of its file.

    JUPYTERHUB'S-PYTHON spawn.py CLASS FOLDER

In the folder each user has a file, jupyterhub_config.py as the hub reads it; CLASS is of dockerspawner.  A server is a
container that sleeps; what is said of one that does not start is printed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import dockerspawner  # type: ignore[import-not-found]
from tornado.web import HTTPError
from traitlets.config import Config

HUB = SimpleNamespace(public_host="", api_url="http://192.0.2.1/hub/api", base_url="/hub/")


async def spawn(file: Path) -> None:
    """Start the server of the user who has this file."""
    lines = Config()
    exec(compile(file.read_text(), "jupyterhub_config.py", "exec"), {"c": lines})
    spawner = lines.JupyterHub.get("spawner_class", getattr(dockerspawner, sys.argv[1]))
    lines.Spawner.cmd = ["/bin/sleep", "100000"]
    lines.DockerSpawner.image = lines.DockerSpawner.get("image", "image")
    lines.DockerSpawner.use_internal_ip = True
    user = SimpleNamespace(name=file.name, url=f"/user/{file.name}/")
    try:
        await spawner(config=lines, user=user, hub=HUB).start()
    except HTTPError as err:
        print(file.name, err.status_code, err.log_message)


async def spawn_all(folder: Path) -> None:
    """All users come at the same time."""
    await asyncio.gather(*[spawn(file) for file in folder.iterdir()])


asyncio.run(spawn_all(Path(sys.argv[2])))
