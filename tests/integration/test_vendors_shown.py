# SPDX-License-Identifier: Apache-2.0
"""What the commands say of other vendors' hardware on a host without NVIDIA's driver, and what they save of it."""

from __future__ import annotations

import json

from tests.integration.engines import Installed, on_node

FOLDER = "/run/oci-gpu-hook"
WATCH = f"""
rm {FOLDER}/vendor.*
oci-gpu-hook inventory watch --interval 0.2 >/run/told 2>&1 & watch=$!
trap 'kill $watch' EXIT
until_told() {{ for i in $(seq 6000); do ! grep -q "$1" /run/told || return 0; sleep 0.1; done; return 1; }}
until_told vendor.OCI_RDMA
echo 6.3.0 >/opt/rocm/.info/version
until_told 'OCI_AMD 6.3.0'
echo '{{}}' >/usr/share/oci-gpu-hook/vendors/rdma.json
until_told 'rdma.json: '
kill $watch
trap - EXIT
cat /run/told
"""


def test_what_is_here_is_saved_and_shown(installed: Installed) -> None:
    script = f"""
oci-gpu-hook inventory refresh
echo ==
oci-gpu-hook info --json
echo ==
oci-gpu-hook info --vendors
echo ==
stat -c '%n %a' {FOLDER}/vendor*
echo ==
{WATCH}
"""
    done = on_node(installed, script, description="none", vendors=("amd", "rdma"))
    assert done.code == 0, done.out + done.err
    saved, info, listed, files, told = [part.strip() for part in done.out.split("==\n")]
    amd, rdma = saved.splitlines()
    assert amd.startswith(f"saved {FOLDER}/vendor.OCI_AMD: OCI_AMD 6.2.0-66: 2 devices, 1 node of")
    assert rdma.startswith(f"saved {FOLDER}/vendor.OCI_RDMA: OCI_RDMA: 2 devices, 1 node of every")
    found = {item["flag"]: item for item in json.loads(info)["vendors"] if item["hardware"]}
    assert set(found) == {"OCI_AMD", "OCI_RDMA"}
    # In the order of PCI addresses, which is not that of the numbers.
    first, second = found["OCI_AMD"]["devices"]
    assert first["names"] == ["0", "0000:23:00.0", "renderD129"]
    assert [node["path"] for node in second["nodes"]] == ["/dev/dri/renderD128"]
    assert [node["path"] for node in found["OCI_AMD"]["common"]] == ["/dev/kfd"]
    assert found["OCI_RDMA"]["devices"][1]["names"][:3] == ["1", "0000:ca:00.0", "mlx5_1"]
    rows = [line.split() for line in listed.splitlines()]
    assert ["OCI_AMD", "amd.com/gpu", "2", "6.2.0-66"] in [row[:4] for row in rows]
    assert ["OCI_NEURON", "aws.amazon.com/neuron", "-", "-"] in [row[:4] for row in rows]
    assert f"{FOLDER}/vendors 644" in files and f"{FOLDER}/vendor.OCI_AMD 644" in files
    assert "waiting for the driver" not in told
