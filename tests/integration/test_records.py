# SPDX-License-Identifier: Apache-2.0
"""Records and counters of real starts: in a real journal, in none, in a full one, and on a disk that takes nothing.

journald runs in the node's private /run, as systemd starts it, and journalctl reads what it wrote.
"""

from __future__ import annotations

import json
import shlex

from oci_gpu_hook.report.records import MESSAGE_ID
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, in_turn, on_node, start

PRIVATE_RUN = """
mkdir -p /run/systemd /run/log
mount -t tmpfs none /run/systemd && mkdir /run/systemd/journal
mount -t tmpfs none /run/log
"""
IDENTIFIED = f"""{PRIVATE_RUN}
echo 0123456789abcdef0123456789abcdef >/run/log/id
[ -e /etc/machine-id ] || touch /etc/machine-id
mount --bind /run/log/id /etc/machine-id
"""
JOURNALD = f"""{IDENTIFIED}
printf '[Journal]\\nStorage=volatile\\nReadKMsg=no\\nAudit=no\\nForwardToSyslog=no\\n' >/run/log/conf
[ ! -e /etc/systemd/journald.conf ] || mount --bind /run/log/conf /etc/systemd/journald.conf
/usr/lib/systemd/systemd-journald >/dev/null 2>&1 &
journald=$!
trap 'kill $journald' EXIT
for try in $(seq 6000); do [ -S /run/systemd/journal/socket ] && break; sleep 0.1; done
"""
FULL = """
import socket, time
receiver, sender = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
receiver.bind("/run/systemd/journal/socket")
sender.setblocking(False)
try:
    while True:
        sender.sendto(b"MESSAGE=x\\n", "/run/systemd/journal/socket")
except BlockingIOError:
    open("/run/log/full", "w").close()
time.sleep(1000)
"""


def records(lines: str) -> str:
    """Until the journal has so many of ours, for it writes when it likes."""
    count = f"journalctl -q --no-pager -o json MESSAGE_ID={MESSAGE_ID}"
    return f"for try in $(seq 6000); do [ $({count} | wc -l) -ge {lines} ] && break; sleep 0.1; done\n"


def asking(made: Bundle, devices: str | None) -> Bundle:
    made.config["process"]["env"] += ["TOKEN=hunter2"]
    return made.asks(devices).runs("/bin/sh", "-c", "exit 0")


# A user may write to the journal, with any field but those that journald writes.
FORGE = f"""
import os, socket
os.setgroups([]); os.setgid(64123); os.setuid(64123)
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
entry = "MESSAGE=forged\\nMESSAGE_ID={MESSAGE_ID}\\nSYSLOG_IDENTIFIER=oci-gpu-hook\\n_UID=0\\n"
sender.sendto((entry + "OCI_GPU_HOOK_CONTAINER=forged\\n").encode(), "/run/systemd/journal/socket")
"""


def test_each_start_with_a_request_leaves_one_record(bundle: Maker) -> None:
    pod = {"io.kubernetes.pod.name": "training", "io.kubernetes.container.name": "main"}
    given = bundle("debian").of_crio(namespace="team", image="registry/cuda:12\nMESSAGE=forged", **pod)
    asking(given, "1,5")
    refused = asking(bundle("debian"), "99")
    without = asking(bundle("debian"), None)
    script = f"""{JOURNALD}
{start("runc", given)}
! {start("runc", refused, "refused")} 2>/dev/null
{start("runc", without, "without")}
python3 -c {shlex.quote(FORGE)}
{records("3")}
journalctl -q --no-pager --all -o json SYSLOG_IDENTIFIER=oci-gpu-hook _UID=0 >/run/log/out
journalctl -q --no-pager -o cat OCI_GPU_HOOK_CONTAINER=refused >&2
echo ---- >&2
journalctl -q --no-pager -o cat OCI_GPU_HOOK_DEVICE=/dev/nvidiactl >&2
echo ---- >&2
oci-gpu-hook log --failed --container ref >&2
echo ---- >&2
oci-gpu-hook log --pod team/training --json >&2
echo ---- >&2
oci-gpu-hook log --json >&2
cat /run/log/out
"""
    done = on_node(script)
    assert done.code == 0, done.err
    first, second = [json.loads(line) for line in done.out.splitlines()]
    assert first["MESSAGE"].startswith(f"container {given.id} (team/training/main) got GPU 1, 5: ")
    image = "registry/cuda:12\nMESSAGE=forged"
    fields = {"CONTAINER": given.id, "POD": "training", "NAME": "main", "REQUEST": "1,5", "SOURCE": "env"}
    fields["IMAGE"] = image
    assert {name: first[f"OCI_GPU_HOOK_{name}"] for name in fields} == fields
    assert "/dev/nvidiactl" in first["OCI_GPU_HOOK_DEVICE"]
    assert len(first["OCI_GPU_HOOK_DEVICE"]) == int(first["OCI_GPU_HOOK_DEVICES"])
    assert int(first["OCI_GPU_HOOK_FILES"]) > 10
    steps = [int(first[f"OCI_GPU_HOOK_{step}_USEC"]) for step in ("START", "READ", "PLAN", "APPLY")]
    assert min(steps) > 0, steps
    assert int(first["OCI_GPU_HOOK_TOTAL_USEC"]) == sum(steps)
    assert int(first["OCI_GPU_HOOK_CPU_USEC"]) > 0
    assert (first["OCI_GPU_HOOK_OUTCOME"], second["OCI_GPU_HOOK_OUTCOME"]) == ("started", "refused")
    assert (second["PRIORITY"], second["OCI_GPU_HOOK_EXIT_CODE"]) == ("4", "5")
    assert second["OCI_GPU_HOOK_REASON"] == "request"
    assert "hunter2" not in done.out
    by_container, by_device, log, of_pod, document = done.err.split("----\n")
    assert by_container == f"container refused does not start: {second['OCI_GPU_HOOK_SENTENCE']}\n"
    assert by_device == f"{first['MESSAGE']}\n"
    assert by_container.strip() in log
    assert given.id not in log
    assert [record["container"] for record in json.loads(of_pod)["records"]] == [given.id]
    read = json.loads(document)["records"]
    assert [record["container"] for record in read] == [given.id, "refused"]
    assert (read[0]["total_usec"], read[0]["image"]) == (sum(steps), image)
    assert read[0]["device"] == first["OCI_GPU_HOOK_DEVICE"]


def told(made: Bundle) -> str:
    """The shell lines that start it, and print what our hook says; of a start that succeeds runc shows nothing."""
    made.config["annotations"] = {"run.oci.hooks.stderr": "/run/said"}
    made.write()
    return f">/run/said\n{start('crun', made)} 2>&1\ncat /run/said; echo started\n"


JOURNALS = {
    "absent": "rmdir /run/systemd/journal",
    "full": f"python3 -c {shlex.quote(FULL)} & filler=$!\ntrap 'kill $filler' EXIT\n"
    "while [ ! -e /run/log/full ]; do sleep 0.1; done",
    "no socket": "mkfifo /run/systemd/journal/socket",
    "nobody listens": 'python3 -c "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)'
    ".bind('/run/systemd/journal/socket')\"",
}


def test_no_journal_stops_no_start(bundle: Maker) -> None:
    line = told(asking(bundle("debian"), "0"))
    found = in_turn({name: f"{PRIVATE_RUN}{make}\n{line}" for name, make in JOURNALS.items()})
    assert found == {name: ["started"] for name in JOURNALS}


PROM = "/run/collector/oci-gpu-hook.prom"
COUNTING = f"metrics = {PROM}\n"


def counters(text: str) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_many_starts_at_once_are_all_counted(bundle: Maker) -> None:
    lines = ["oci-gpu-hook metrics --write", f"cat {PROM} >&2"]
    for number in range(16):
        made = asking(bundle("busybox"), "99" if number % 4 == 0 else str(number % 8))
        lines.append(f'{start("runc", made, f"side-{number}")} >/dev/null 2>&1 &\npids="$pids $!"')
    lines += [
        "for pid in $pids; do wait $pid || true; done",
        "oci-gpu-hook metrics --write",
        f"oci-gpu-hook metrics | cmp - {PROM}",
        f"cat {PROM}",
    ]
    done = on_node("pids=\n" + "\n".join(lines), settings=COUNTING)
    assert done.code == 0, done.err
    assert set(counters(done.err).values()) <= {"0", "0.000000"}
    found = counters(done.out)
    assert found['oci_gpu_hook_starts_total{outcome="started"}'] == "12"
    assert found['oci_gpu_hook_refusals_total{reason="request"}'] == "4"
    assert found["oci_gpu_hook_start_duration_seconds_count"] == "16"
    assert float(found["oci_gpu_hook_start_duration_seconds_sum"]) > 0


DISKS = {
    "read-only": "mount --bind /run/oci-gpu-hook /run/oci-gpu-hook\nmount -o remount,bind,ro /run/oci-gpu-hook",
    "full": "head -c 1M /dev/zero >/run/oci-gpu-hook/filler 2>/dev/null || true",
}


def test_a_bad_disk_stops_no_start(bundle: Maker) -> None:
    before = "mount -t tmpfs -o size=256k,mode=0755 none /run/oci-gpu-hook\noci-gpu-hook metrics --write >/dev/null\n"
    line = f"{told(asking(bundle('busybox'), '0'))}oci-gpu-hook metrics --write || :"
    scripts = {name: f"{before}{it}\n{line}" for name, it in DISKS.items()}
    for fault, lines in in_turn(scripts, settings=COUNTING).items():
        assert lines[0] == "started", (fault, lines)


def test_without_a_place_for_the_counters_or_a_journal_it_says_so() -> None:
    scripts = {
        "metrics": "touch /run/collector; oci-gpu-hook metrics --write 2>&1 || echo $?",
        "log": "mkdir /run/bin && ln -s /usr/bin/python3 /run/bin/\n"
        "PATH=/run/bin /usr/bin/oci-gpu-hook log 2>&1 || echo $?",
    }
    metrics, log = in_turn(scripts, settings=COUNTING).values()
    assert metrics[0].startswith(f"oci-gpu-hook: cannot write {PROM}: ")
    assert "there is no journalctl" in log[0]
    assert metrics[1:] == log[1:] == ["7"]
