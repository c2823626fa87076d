# SPDX-License-Identifier: Apache-2.0
"""Images as engines pull them: OCI layouts made by hand (image-spec 1.0), with whatever a manifest may say."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

_TYPES = "application/vnd.oci.image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def layout(
    folder: Path, root: Path, *, annotations: dict[str, str], env: tuple[str, ...] = (), volumes: tuple[str, ...] = ()
) -> Path:
    """An image of one layer, which is `root`; annotations: its manifest's; volumes: places where it declares some."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(kind: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"{_TYPES}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    def document(kind: str, value: dict[str, Any]) -> dict[str, Any]:
        return blob(kind, json.dumps(value).encode())

    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        archive.add(root, arcname=".")
    layer = blob("layer.v1.tar", written.getvalue())
    told = {"Env": list(env), "Volumes": {path: {} for path in volumes}}
    rootfs = {"type": "layers", "diff_ids": [layer["digest"]]}
    architecture = {"architecture": _ARCHITECTURES[platform.machine()], "os": "linux"}
    config = document("config.v1+json", {**architecture, "config": told, "rootfs": rootfs})
    holds = {"schemaVersion": 2, "config": config, "layers": [layer], "annotations": annotations}
    manifest = document("manifest.v1+json", holds)
    index = {"schemaVersion": 2, "manifests": [manifest]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder
