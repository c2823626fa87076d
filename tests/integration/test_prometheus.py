# SPDX-License-Identifier: Apache-2.0
"""Alerts and dashboard by the distribution's real promtool, on what the installed command writes of a node's faults."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests import manual
from tests.gpunode import description
from tests.integration.engines import REPOSITORY, in_turn

FOLDER = REPOSITORY / "packaging/prometheus"
RULES = FOLDER / "oci-gpu-hook.rules.yaml"
ALERTS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
# Grafana's own variables and those of the dashboard, as Grafana fills them in.
VARIABLES = {"$__rate_interval": "5m", "$__range": "6h", "${datasource}": "", "$job": ".*", "$instance": ".*"}


def promtool(*words: str, folder: Path = FOLDER) -> None:
    done = subprocess.run(["promtool", *words], check=False, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> dict[str, str]:
    found = {}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            found[f"{panel['title']} {target['refId']}"] = text
    return found


def test_each_alert_fires_on_its_series_and_on_nothing_else() -> None:
    promtool("test", "rules", "oci-gpu-hook.rules.test.yaml")
    tests = yaml.safe_load((FOLDER / "oci-gpu-hook.rules.test.yaml").read_text())["tests"]
    tried = [rule for test in tests for rule in test["alert_rule_test"]]
    for kind in (True, False):
        names = {rule["alertname"] for rule in tried if bool(rule["exp_alerts"]) is kind}
        assert names == {rule["alert"] for rule in ALERTS}


def test_they_do_the_same_with_a_clusters_labels(tmp_path: Path) -> None:
    """The operator's targets have namespace and pod as well: an alert that is summed up has neither."""
    kept = {rule["alert"] for rule in ALERTS if " by (" not in rule["expr"]}
    document = yaml.safe_load((FOLDER / "oci-gpu-hook.rules.test.yaml").read_text())
    for test in document["tests"]:
        for item in test["input_series"]:
            if "pod=" not in item["series"]:
                item["series"] = item["series"].replace("{", '{namespace="m", pod="e", ', 1)
        for case in test["alert_rule_test"]:
            for alert in case["exp_alerts"] if case["alertname"] in kept else ():
                alert["exp_labels"].update(namespace="m", pod="e")
    (tmp_path / RULES.name).write_text(RULES.read_text())
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", "tests.yaml", folder=tmp_path)


def test_the_manifest_has_the_same_alerts() -> None:
    manifest = yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text())
    assert manifest["kind"] == "PrometheusRule"
    assert manifest["spec"] == yaml.safe_load(RULES.read_text())


def test_every_expression_of_the_dashboard_is_one(tmp_path: Path) -> None:
    rules = [{"record": "a:b", "expr": text} for text in expressions().values()]
    groups = [{"name": str(number), "rules": [rule]} for number, rule in enumerate(rules)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    promtool("check", "rules", "rules.yaml", folder=tmp_path)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len({*ids})
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["noValue"] == "no data"


def test_the_manual_names_every_metric_and_no_other_is_used() -> None:
    """What is exported, and what the alerts, the dashboard and the README name."""
    section = manual.sections("oci-gpu-hook-kubernetes.7")["METRICS"]
    told = {f"oci_gpu_hook_{name}" for name in re.findall(r"^\*(\w+)\*$", section, re.MULTILINE)}
    texts = [*expressions().values(), RULES.read_text(), (FOLDER / "README.md").read_text()]
    used = set(re.findall(r"oci_gpu_hook_\w+", " ".join(texts)))
    assert {name.replace("_bucket", "") for name in used} <= told
    sources = (REPOSITORY / "oci_gpu_hook/node/exporters/exposition.py").read_text()
    named = {f"oci_gpu_hook_{it}" for it in re.findall(r'"((?:gpu_|driver_|nvml_|inv|val|coll|kernel_l)\w+)"', sources)}
    assert told - named == {
        "oci_gpu_hook_gpus",
        *(f"oci_gpu_hook_{name}_total" for name in ("starts", "refusals", "failures")),
        "oci_gpu_hook_start_duration_seconds",
    }


HOOKS, GPUS = "/run/oci-gpu-hook/hook.prom", "/run/gpus.prom"
SETTINGS = f"metrics = {HOOKS}\ngpu-metrics = {GPUS}\n"
COLLECT = f"oci-gpu-hook metrics --gpus --write; oci-gpu-hook metrics --write; cat {GPUS} {HOOKS}"
# Of a container that is not there: the hook refuses the start for its bundle.
STATE = '{"ociVersion":"1.0.2","id":"no","status":"creating","pid":4194304,"bundle":"/nowhere"}'
VALIDATION = {
    "time": 1_700_000_000,
    "driver_version": "580.65.06",
    "steps": [{"name": "hook", "outcome": "failed", "why": "it"}],
}
# In minutes: how long a step's values last, and when in it they are judged.
LASTS, JUDGED = 12, 10


def series(steps: list[list[str]]) -> list[dict[str, str]]:
    """What Prometheus has after it scraped the text of each step once a minute, by its own clock."""
    found: dict[str, list[str]] = {}
    for number, lines in enumerate(steps):
        for name, _, value in [line.rpartition(" ") for line in lines if line.startswith("oci_gpu_hook_")]:
            before, brace, labels = name.rstrip("}").partition("{")
            key = f'{before}{{{labels}{brace and ","}instance="n1", job="node"}}'
            found.setdefault(key, ["_"] * LASTS * len(steps))[number * LASTS : (number + 1) * LASTS] = [value] * LASTS
    clock = f"0+60x{LASTS * len(steps)}"
    return [
        {"series": key, "values": clock if "collected_timestamp" in key else " ".join(it)} for key, it in found.items()
    ]


def test_exactly_the_alerts_of_the_faults_fire(tmp_path: Path) -> None:
    """None before, and once the driver has gone nothing of what was told of it; each panel has data, or nothing."""
    node = description.load("h100x8")
    says = ("fault 0 lost", "fault 2 ecc_uncorrected 1")
    broken = [f"echo '{line}' >>/proc/driver/gpunode/description" for line in says]
    broken += [
        f"echo '4,9,1,-;NVRM: Xid (PCI:{node.gpus[1].bus_id[:-2]}): 79, GPU has fallen off the bus.' >>/dev/kmsg",
        f"echo '{json.dumps(VALIDATION)}' >/run/oci-gpu-hook/validation.json",
        "for start in 1 2 3 4; do",
        f"! echo '{STATE}' | /usr/libexec/oci/hooks.d/oci-gpu-hook createRuntime; done",
    ]
    scripts = {
        "whole": f"oci-gpu-hook inventory refresh >/dev/null; {COLLECT}",
        "broken": "\n".join([*broken, COLLECT]),
        "gone": f"mkdir /tmp/none; mount --bind /tmp/none /proc/driver/nvidia; {COLLECT}",
    }
    done = in_turn(scripts, "rm /dev/kmsg; : >/dev/kmsg\n", settings=SETTINGS)
    unhealthy = [f'{{alertname="GPUUnhealthy", device="GPU {number}"}}' for number in range(3)]
    wanted = [
        [],
        [f'{{alertname="{name}"}}' for name in ("GPUHookRefused", "GPUValidationFailed")] + unhealthy,
        ['{alertname="GPUDriverDown"}'],
    ]
    firing = 'max by (alertname, device) (ALERTS{alertstate="firing"})'
    cases = [(number, firing, labels) for number, labels in enumerate(wanted)]
    # The machine may have containers of its own.
    panels = {name: text for name, text in expressions().items() if name != "Containers A"}
    empty = {"Validations failed A", "Validation A"}
    cases += [(0, f"count({text}) > bool 0", [] if name in empty else ["{}"]) for name, text in panels.items()]
    tests = [
        {
            "expr": text,
            "eval_time": f"{number * LASTS + JUDGED}m",
            "exp_samples": [{"labels": it, "value": 1} for it in labels],
        }
        for number, text, labels in cases
    ]
    document = {"interval": "1m", "input_series": series([*done.values()]), "promql_expr_test": tests}
    (tmp_path / RULES.name).write_text(RULES.read_text())
    text = yaml.safe_dump({"rule_files": [RULES.name], "evaluation_interval": "1m", "tests": [document]})
    (tmp_path / "tests.yaml").write_text(text)
    promtool("test", "rules", "tests.yaml", folder=tmp_path)
