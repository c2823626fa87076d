# SPDX-License-Identifier: Apache-2.0
"""jupyterhub_config.py of the tests' hubs.

Each user has a file of pasted lines, which that user's spawner takes as if they stood here: so one hub shows all ways.
In the environment: PASTED, the folder of these files; SPAWNER; NETWORK, that of the containers; HUB_ADDRESS, where
they reach the hub.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from traitlets.config import Config, get_config

c = get_config()
pasted = Path(os.environ["PASTED"])

c.JupyterHub.db_url = "sqlite:///:memory:"
c.JupyterHub.cookie_secret_file = "/run/hub/cookie_secret"
c.JupyterHub.hub_ip = "0.0.0.0"
c.JupyterHub.hub_connect_ip = os.environ["HUB_ADDRESS"]
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allowed_users = {file.name for file in pasted.iterdir()}
c.DummyAuthenticator.password = "any"
c.JupyterHub.spawner_class = os.environ["SPAWNER"]
# The servers end with the node.
c.JupyterHub.cleanup_servers = False
# A loaded machine is no fault.
c.Spawner.start_timeout = c.Spawner.http_timeout = 600
c.DockerSpawner.client_kwargs = {"timeout": 600}
c.Spawner.args = ["--allow-root"]
c.DockerSpawner.network_name = os.environ["NETWORK"]
c.DockerSpawner.use_internal_ip = True
c.DockerSpawner.image = "notebook"
# This kernel has no IPVS, which a service's own address needs: its name leads to its task's.
c.SwarmSpawner.extra_endpoint_spec = {"mode": "dnsrr"}


def paste(spawner: Any) -> None:
    """Add the user's lines to this file's."""
    added = Config()
    file = pasted / spawner.user.name
    exec(compile(file.read_text(), file, "exec"), {"c": added})
    spawner.update_config(added)


c.Spawner.pre_spawn_hook = paste
