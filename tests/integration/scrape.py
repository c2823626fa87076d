# SPDX-License-Identifier: Apache-2.0
"""On a simulated node: the real node exporter and a real Prometheus with our alerts, and what fires step by step.

    scrape.py SCENE    a JSON file: "expressions" by name, "steps" (shell scripts by name), "wanted" (alerts by step)

Prints a line of JSON for each step, and one before all: what each expression gives without data.  Both programs listen
on loopback alone, and end with this one.  Must not know any metric but the time of the last collection.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Callable

RULES = Path("/usr/share/oci-gpu-hook/prometheus/oci-gpu-hook.rules.yaml")
FOLDER = Path("/run/prometheus")
INTERVAL = "300ms"
# In seconds: what takes so long never comes.
PATIENCE = 600
COLLECTED = "max(oci_gpu_hook_collected_timestamp_seconds)"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Server:
    """Both programs, and questions to Prometheus."""

    def __init__(self) -> None:
        (FOLDER / "textfile").mkdir(parents=True)
        # As in a package whose folder root does not write to.
        (FOLDER / "textfile/hook.prom").symlink_to("/run/oci-gpu-hook/hook.prom")
        exporter, self._port = free_port(), free_port()
        lines = RULES.read_text().splitlines()
        at_once = ["    for: 0s" if line.startswith("    for: ") else line for line in lines]
        (FOLDER / "rules.yaml").write_text("\n".join(at_once))
        targets = [{"targets": [f"127.0.0.1:{exporter}"]}]
        settings = {
            "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": [f"{FOLDER}/rules.yaml"],
            "scrape_configs": [{"job_name": "node", "static_configs": targets}],
        }
        (FOLDER / "prometheus.yml").write_text(json.dumps(settings))
        names = ("prometheus-node-exporter", "node_exporter")
        program = next(name for name in names if shutil.which(name))
        self._running = [
            self._start(
                program,
                "--collector.disable-defaults",
                "--collector.textfile",
                f"--collector.textfile.directory={FOLDER}/textfile",
                f"--web.listen-address=127.0.0.1:{exporter}",
            ),
            self._start(
                "prometheus",
                f"--config.file={FOLDER}/prometheus.yml",
                f"--storage.tsdb.path={FOLDER}/data",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ),
        ]

    @staticmethod
    def _start(*words: str) -> subprocess.Popen[bytes]:
        with (FOLDER / f"{words[0]}.log").open("wb") as log:
            return subprocess.Popen(words, stdout=log, stderr=log)

    def ask(self, path: str, **fields: str) -> Any:
        """The data of an answer; an answer that is no success ends the scene."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def sizes(self, expressions: dict[str, str]) -> dict[str, int]:
        """How many series each expression gives."""
        return {name: len(self.query(text)) for name, text in expressions.items()}

    def query(self, text: str) -> Any:
        return self.ask("query", query=text)["result"]

    def firing(self) -> list[list[str]]:
        """Each alert that fires, with the device that it is of."""
        labels = [alert["labels"] for alert in self.ask("alerts")["alerts"]]
        return [list(it) for it in sorted({(it["alertname"], it.get("device", "")) for it in labels})]

    def has_collected(self, since: int) -> bool:
        """Whether a collection after that time has been scraped."""
        found = self.query(COLLECTED)
        return bool(found) and float(found[0]["value"][1]) >= since

    def end(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait()


def until(what: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if what():
                return True
        except OSError:
            pass
        time.sleep(0.1)
    return False


def play(server: Server, scene: dict[str, Any]) -> None:
    assert until(lambda: bool(server.query("vector(1)"))), "Prometheus does not start"
    print(json.dumps({"series": server.sizes(scene["expressions"])}))
    for name, script in scene["steps"].items():
        firing = step(server, script, scene["wanted"][name])
        print(json.dumps({"firing": firing, "series": server.sizes(scene["expressions"])}))


def step(server: Server, script: str, wanted: list[list[str]]) -> list[list[str]]:
    """What fires after the script, once it is what is wanted, or does not become that."""
    # The second before is another collection's.
    time.sleep(1 - time.time() % 1)
    began = int(time.time())
    subprocess.run(["/bin/sh", "-eu", "-c", script], check=True, stdout=sys.stderr)
    assert until(lambda: server.has_collected(began)), "nothing was scraped"
    until(lambda: server.firing() == wanted)
    # Two rounds more: what fires late would be one too many.
    time.sleep(0.7)
    return server.firing()


def main() -> None:
    os.environ["no_proxy"] = "*"
    scene = json.loads(Path(sys.argv[1]).read_text())
    server = Server()
    try:
        play(server, scene)
    finally:
        server.end()


if __name__ == "__main__":
    main()
