# SPDX-License-Identifier: Apache-2.0
"""A hub and its users, all at the same time: each logs in and spawns a server, which is still there afterwards.

    JUPYTERHUB'S-PYTHON hub_client.py USER...

The hub is started with hub_config.py, which takes what it is to be from the environment.  The users speak as browsers
do, by the hub's REST API; that a server answers through the proxy says the hub, which calls it ready then.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

PROXY = "127.0.0.1:8000"
PATIENCE = 600
CONFIGURATION = Path(__file__).with_name("hub_config.py")


class HubError(Exception):
    """The hub or a server did not do as it should."""


async def ask(method: str, path: str, token: str = "", body: Any = None) -> Any:
    """One request to the hub, or to a server behind its proxy; what it answers."""
    headers = {"Authorization": f"token {token}"} if token else {}
    text = None if body is None else json.dumps(body)
    options = {"request_timeout": PATIENCE, "allow_nonstandard_methods": True}
    request = HTTPRequest(f"http://{PROXY}{path}", method, headers, text, **options)
    answer = await AsyncHTTPClient().fetch(request, raise_error=False)
    if answer.code >= 300:
        raise HubError(f"{method} {path}: {answer.code} {answer.body.decode()}")
    return json.loads(answer.body or b"null")


async def is_up(hub: subprocess.Popen[bytes]) -> None:
    """The proxy knows the hub, and the hub answers."""
    until = time.monotonic() + PATIENCE
    while hub.poll() is None and time.monotonic() < until:
        try:
            await AsyncHTTPClient().fetch(f"http://{PROXY}/hub/api/")
            return
        except (HTTPClientError, OSError):
            await asyncio.sleep(0.1)
    raise HubError("the hub does not answer")


async def spawn(user: str) -> None:
    """The user's server."""
    login = {"auth": {"username": user, "password": "any"}}
    token = (await ask("POST", f"/hub/api/users/{user}/tokens", body=login))["token"]
    await ask("POST", f"/hub/api/users/{user}/server", token, {})
    while True:
        server = (await ask("GET", f"/hub/api/users/{user}", token))["servers"].get("", {})
        if server.get("ready"):
            return
        if not server.get("pending"):
            raise HubError(f"{user} has no server: the hub's log says why")
        await asyncio.sleep(0.2)


async def main(users: list[str]) -> None:
    """One hub, from its start to its end."""
    with tempfile.TemporaryFile() as log:
        line = ["jupyterhub", "--config", str(CONFIGURATION)]
        with subprocess.Popen(line, cwd="/run/hub", stdout=log, stderr=log) as hub:
            try:
                await is_up(hub)
                await asyncio.gather(*[spawn(user) for user in users])
            except BaseException:
                log.seek(0)
                sys.stderr.write(log.read().decode(errors="replace"))
                raise
            finally:
                hub.terminate()


asyncio.run(main(sys.argv[1:]))
