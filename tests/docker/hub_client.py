# SPDX-License-Identifier: Apache-2.0
"""A hub and its users, all at the same time: each logs in, spawns a server, starts a kernel and runs one cell in it.

    JUPYTERHUB'S-PYTHON hub_client.py USER... [--refused USER]
                                         what each cell printed, a line of JSON for each user; at last what one reads
                                         who comes when all others have their servers

The hub is started with hub_config.py, which takes what it is to be from the environment.  The users speak as browsers
do: the hub's REST API, the server's through the proxy, and the kernel's websocket.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

PROXY = "127.0.0.1:8000"
PATIENCE = 600
CELL = Path(__file__).with_name("cell.py")
CONFIGURATION = Path(__file__).with_name("hub_config.py")


class HubError(Exception):
    """The hub, a server or a kernel did not do as it should."""


async def ask(method: str, path: str, token: str = "", body: Any = None) -> Any:
    """One request to the hub, or to a server behind its proxy; what it answers."""
    headers = {"Authorization": f"token {token}"} if token else {}
    request = HTTPRequest(
        f"http://{PROXY}{path}",
        method,
        headers,
        None if body is None else json.dumps(body),
        request_timeout=PATIENCE,
        allow_nonstandard_methods=True,
    )
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


async def spawn(user: str, token: str) -> None:
    """The user's server; what the hub says where there will be none."""
    await ask("POST", f"/hub/api/users/{user}/server", token, {})
    while True:
        server = (await ask("GET", f"/hub/api/users/{user}", token))["servers"].get("", {})
        if server.get("ready"):
            return
        if not server.get("pending"):
            raise HubError(f"{user} has no server: the hub's log says why")
        await asyncio.sleep(0.2)


async def run_cell(user: str, token: str, code: str) -> str:
    """What a cell prints in a new kernel of the user's server."""
    kernel = (await ask("POST", f"/user/{user}/api/kernels", token, {"name": "python3"}))["id"]
    request = HTTPRequest(
        f"ws://{PROXY}/user/{user}/api/kernels/{kernel}/channels",
        headers={"Authorization": f"token {token}"},
        request_timeout=PATIENCE,
    )
    socket = await websocket_connect(request)
    name = uuid.uuid4().hex
    header = {"msg_id": name, "msg_type": "execute_request", "session": name, "username": user}
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
    await socket.write_message(json.dumps({**message, "channel": "shell"}))
    printed = ""
    while True:
        text = await socket.read_message()
        if text is None:
            raise HubError(f"the kernel of {user} has closed its socket, after: {printed}")
        told = json.loads(text)
        if told["parent_header"].get("msg_id") != name:
            continue
        kind, content = told["msg_type"], told["content"]
        if kind == "stream":
            printed += content["text"]
        elif kind == "error":
            raise HubError(f"{user}: {content['ename']}: {content['evalue']}")
        elif kind == "status" and content["execution_state"] == "idle":
            return printed


async def work(user: str) -> str:
    """A user's day; what the cell printed."""
    login = {"auth": {"username": user, "password": "any"}}
    token = (await ask("POST", f"/hub/api/users/{user}/tokens", body=login))["token"]
    await spawn(user, token)
    return await run_cell(user, token, CELL.read_text())


async def refused(user: str) -> str:
    """What a user reads whose server does not start."""
    login = {"auth": {"username": user, "password": "any"}}
    token = (await ask("POST", f"/hub/api/users/{user}/tokens", body=login))["token"]
    try:
        await spawn(user, token)
    except HubError as err:
        return str(err)
    raise HubError(f"{user} has a server")


async def main(users: list[str], last: list[str]) -> None:
    """One hub, from its start to its end."""
    with tempfile.TemporaryFile() as log:
        line = ["jupyterhub", "--config", str(CONFIGURATION)]
        with subprocess.Popen(line, cwd="/run/hub", stdout=log, stderr=log) as hub:
            try:
                await is_up(hub)
                cells = await asyncio.gather(*[work(user) for user in users])
                said = [await refused(user) for user in last]
            except BaseException:
                log.seek(0)
                sys.stderr.write(log.read().decode(errors="replace"))
                raise
            finally:
                hub.terminate()
    for user, printed in zip(users, cells):
        print(json.dumps({"user": user, **json.loads(printed)}))
    for user, read in zip(last, said):
        print(json.dumps({"user": user, "said": read}))


names, _, late = " ".join(sys.argv[1:]).partition(" --refused ")
asyncio.run(main(names.split(), late.split()))
