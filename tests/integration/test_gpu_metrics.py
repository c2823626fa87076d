# SPDX-License-Identifier: Apache-2.0
"""``metrics --gpus`` by the installed command, who holds what and what is healthy; and the alerts and the dashboard.

Real pynvml reads the node's library, a real container holds a GPU, and the distribution's promtool checks the text, the
alerts and the dashboard on what the command writes of a node's faults.  The kernel's log is a file of the node's own.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import manual
from tests.gpunode import description
from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, in_turn, on_node
from tests.integration.test_validate import line_of

FILE = "/run/collector/gpus.prom"
SETTINGS = f"gpu-metrics = {FILE}\n"
# Of the node: nothing is ever written to this machine's log.
LOG = "rm /dev/kmsg; : >/dev/kmsg\n"
VALIDATION = (
    '{"time":5,"driver_version":"590.48.01","steps":[{"name":"driver","outcome":"failed","why":"it has no root"}]}'
)


def series(lines: list[str]) -> dict[str, float]:
    pairs = [line.rpartition(" ") for line in lines if line.startswith("oci_gpu_hook_")]
    return {key.replace("oci_gpu_hook_", ""): float(value) for key, _, value in pairs}


def xid(sequence: int, bus: str, number: int, level: int = 4) -> str:
    return f"echo '{level},{sequence},1,-;NVRM: Xid (PCI:{bus[:-2]}): {number}, pid=1' >>/dev/kmsg\n"


def test_who_holds_what_and_what_is_healthy_are_told(bundle: Maker) -> None:
    """And promtool has nothing to say about it.  The log's second record is a user's."""
    holder = bundle("debian").asks("1").runs("/bin/sh", "-c", "echo up; sleep 1000")
    node = description.load("h100x8")
    # What the service has: without it no command knows what the cgroup lets the container open.
    unit = (REPOSITORY / "packaging/systemd/oci-gpu-hook-gpu-metrics.service").read_text()
    (names,) = re.findall("^CapabilityBoundingSet=CAP_(.*)", unit, re.MULTILINE)
    bounded = f"setpriv --bounding-set=-all,+{names.lower().replace(' cap_', ',+')}"
    script = f"""{LOG}{xid(5, node.gpus[2].bus_id, 79)}{xid(6, node.gpus[3].bus_id, 48, 12)}
oci-gpu-hook inventory refresh >&2
runc run --bundle {holder.path} holder >/run/said & container=$!
until grep -q up /run/said; do sleep 0.1; done
oci-gpu-hook metrics --gpus --write
{bounded} oci-gpu-hook metrics --gpus >/run/bounded
setpriv --bounding-set=-all,+dac_override,+sys_ptrace oci-gpu-hook metrics --gpus >/run/less
runc kill holder KILL; wait $container || :
cat {FILE}; stat -c 'mode %a' {FILE}
promtool check metrics <{FILE} >&2
for file in {FILE} /run/bounded /run/less; do echo "held $(grep -c 'container="holder"' $file)"; done
"""
    out = on_node(script, settings=SETTINGS).printed()
    assert "mode 644" in out
    found = series(out.splitlines())
    healthy = {f'gpu_healthy{{device="GPU {number}"}}': float(number != 2) for number in range(len(node.gpus))}
    assert {key: found[key] for key in found if key.startswith("gpu_healthy")} == healthy
    assert (found["nvml_up"], found["kernel_log_readable"], found["gpus"]) == (1, 1, len(node.gpus))
    (held,) = [key for key in found if 'container="holder"' in key]
    assert held.startswith("gpu_container_info{")
    assert f'uuid="{node.gpus[1].uuid}"' in held
    assert out.splitlines()[-3:] == ["held 1", "held 1", "held 0"]
    assert 0 < found["collection_duration_seconds"] < 60
    assert found["inventory_fresh"] == 1


DIVIDED = description.load("h100mig")
# What hangs: nothing else is cut off, however slow the machine is; beside a GPU that hangs the other one answers.
SECONDS = {"gpu-hangs": 5, "nvml-hangs": 1}


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:

    def says(fault: str) -> str:
        return (
            f"echo '{line_of(fault, DIVIDED)}' >>/proc/driver/gpunode/description\n"
            f"oci-gpu-hook metrics --gpus --write --timeout {SECONDS.get(fault, 600)} 2>&1\n"
            f"cat /run/whole >/proc/driver/gpunode/description; cat {FILE}"
        )

    scripts = {
        "whole": "cp /proc/driver/gpunode/description /run/whole; oci-gpu-hook metrics --gpus --write; cat " + FILE,
        "hangs": says("gpu-hangs"),
        "falls": says("gpu-falls"),
        "lost": says("gpu-lost"),
        "leaves": says("nvml-leaves"),
        "silent": says("nvml-hangs"),
        "errors": says("nvml-errors"),
        "again": f"oci-gpu-hook metrics --gpus --write; cat {FILE}",
        "lies": says("gpu-lies"),
        "no driver root": "printf 'driver-root = /nowhere\\n' >/run/conf\n"
        f"printf '{VALIDATION}' >/run/oci-gpu-hook/validation.json\n"
        "oci-gpu-hook metrics --gpus --config /run/conf 2>&1",
        "gone": "rm /run/oci-gpu-hook/validation.json\n"
        "mkdir /tmp/none; mount --bind /tmp/none /proc/driver/nvidia; oci-gpu-hook metrics --gpus --write; cat " + FILE,
        "unset": "rm /etc/oci-gpu-hook.conf; oci-gpu-hook metrics --gpus --write",
    }
    return in_turn(scripts, LOG, description="h100mig", settings=SETTINGS)


def test_a_gpu_that_is_lost_takes_no_other_with_it(said: dict[str, list[str]]) -> None:
    """One that hangs, or is lost while it is asked; NVML that goes away."""
    found = {name: series(lines) for name, lines in said.items()}
    healthy = {name: [value for key, value in it.items() if "gpu_healthy" in key] for name, it in found.items()}
    # The first GPU is divided: its devices are as it is.
    parts = len(DIVIDED.gpus[0].mig)
    for name in ("hangs", "falls", "lost"):
        assert healthy[name] == [1.0, *[0.0] * parts], name
    assert {*healthy["leaves"]} == {0}
    assert healthy["whole"] == healthy["again"] == healthy["lies"] == [1.0] * (parts + 1)
    assert found["leaves"]["nvml_up"] == 1


@pytest.mark.parametrize(
    ("name", "sentence", "told"),
    [
        ("silent", "NVML did not answer within 1 seconds", {"nvml_up": 0, "gpus": 2}),
        ("errors", "NVMLError_Unknown", {"nvml_up": 0, "gpus": 2}),
        (
            "no driver root",
            "the driver root /nowhere is not there",
            {"driver_up": 1, "nvml_up": 0, "gpus": 2, 'validation_passed{step="driver"}': 0},
        ),
        ("unset", "no setting 'gpu-metrics': nothing written", {}),
    ],
)
def test_what_goes_wrong_is_told(said: dict[str, list[str]], name: str, sentence: str, told: dict[str, float]) -> None:
    found = series(said[name])
    assert sentence in "\n".join(said[name])
    assert {key: found[key] for key in told} == told


def test_of_a_driver_that_has_gone_its_absence_is_told(said: dict[str, list[str]]) -> None:
    found = series(said["gone"])
    assert {key.partition("_seconds")[0] for key in found} > {"driver_up", "collection_duration"}
    assert (len(found), found["driver_up"]) == (3, 0)


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
    others = ("gpus", "starts_total", "refusals_total", "failures_total", "start_duration_seconds")
    assert told - named == {f"oci_gpu_hook_{name}" for name in others}


HOOKS, GPUS = "/run/oci-gpu-hook/hook.prom", "/run/gpus.prom"
BOTH_SETTINGS = f"metrics = {HOOKS}\ngpu-metrics = {GPUS}\n"
COLLECT = f"oci-gpu-hook metrics --gpus --write; oci-gpu-hook metrics --write; cat {GPUS} {HOOKS}"
# Of a container that is not there: the hook refuses the start for its bundle.
STATE = '{"ociVersion":"1.0.2","id":"no","status":"creating","pid":4194304,"bundle":"/nowhere"}'
STEP = {"name": "hook", "outcome": "failed", "why": "it"}
FAILED = {"time": 1_700_000_000, "driver_version": "580.65.06", "steps": [STEP]}
# In minutes: how long a step's values last, and when in it they are judged.
LASTS, JUDGED = 12, 10


def scraped(steps: list[list[str]]) -> list[dict[str, str]]:
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
        f"echo '{json.dumps(FAILED)}' >/run/oci-gpu-hook/validation.json",
        "for start in 1 2 3 4; do",
        f"! echo '{STATE}' | /usr/libexec/oci/hooks.d/oci-gpu-hook createRuntime; done",
    ]
    scripts = {
        "whole": f"oci-gpu-hook inventory refresh >/dev/null; {COLLECT}",
        "broken": "\n".join([*broken, COLLECT]),
        "gone": f"mkdir /tmp/none; mount --bind /tmp/none /proc/driver/nvidia; {COLLECT}",
    }
    done = in_turn(scripts, "rm /dev/kmsg; : >/dev/kmsg\n", settings=BOTH_SETTINGS)
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
    tests: list[dict[str, Any]] = []
    for number, text, labels in cases:
        samples = [{"labels": it, "value": 1} for it in labels]
        tests.append({"expr": text, "eval_time": f"{number * LASTS + JUDGED}m", "exp_samples": samples})
    document = {"interval": "1m", "input_series": scraped([*done.values()]), "promql_expr_test": tests}
    (tmp_path / RULES.name).write_text(RULES.read_text())
    text = yaml.safe_dump({"rule_files": [RULES.name], "evaluation_interval": "1m", "tests": [document]})
    (tmp_path / "tests.yaml").write_text(text)
    promtool("test", "rules", "tests.yaml", folder=tmp_path)
