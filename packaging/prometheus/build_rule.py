# SPDX-License-Identifier: Apache-2.0
"""Write the alerts as the PrometheusRule of OpenShift and of the Prometheus operator: `make generated`.

    build_rule.py FOLDER

The rules are those of oci-gpu-hook.rules.yaml, line by line.  Must not know any of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# Made by build_rule.py from oci-gpu-hook.rules.yaml.  OpenShift's own Prometheus, which reads the node exporters, takes
# it from a namespace with a label: oc label namespace oci-gpu-hook openshift.io/cluster-monitoring=true
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: oci-gpu-hook
  namespace: oci-gpu-hook
spec:
"""


def manifest(rules: str) -> str:
    """The manifest of a file of rules."""
    lines = [line for line in rules.splitlines() if not line.startswith("#")]
    return HEAD + "".join([f"  {line}\n" if line else "\n" for line in lines])


def main() -> None:
    """Write the file of that name in the folder that the command line names."""
    rules = (FOLDER / "oci-gpu-hook.rules.yaml").read_text(encoding="utf-8")
    (Path(sys.argv[1]) / "prometheusrule.yaml").write_text(manifest(rules), encoding="utf-8")


if __name__ == "__main__":
    main()
