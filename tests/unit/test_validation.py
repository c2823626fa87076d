# SPDX-License-Identifier: Apache-2.0
"""The parts of a validation: what is judged of NVML's answer and of a GPU's process; files, config.json, the record."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.cli import validate
from oci_gpu_hook.driver import survey
from oci_gpu_hook.driver.inventory import MigDevice
from oci_gpu_hook.errors import ApplyError, ConfigError, UsageError
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import FAIL, PASS, WARN, drivercheck
from oci_gpu_hook.node.gpus import nvml
from oci_gpu_hook.node.gpus.nvml import Facts, GpuFacts
from oci_gpu_hook.node.machine import childprocess, validationrecord
from oci_gpu_hook.node.machine.childprocess import PythonOutput
from oci_gpu_hook.node.machine.validationrecord import FAILED, PASSED, StepResult, Validation
from oci_gpu_hook.node.validation import containerstep, vectoradd, workload
from oci_gpu_hook.request.settings import Settings, read_settings
from tests.unit import hosts

pytestmark = pytest.mark.pythons

GPU = workload.CudaDevice("GPU 3", "GPU-12345678-1234-1234-1234-123456789abc")
WELL = {"device": "H100", "uuid": GPU.word[4:], "differs": None}


def said(*lines: object, status: int | None = 0) -> PythonOutput:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return PythonOutput("".join(f"{text}\n" for text in texts).encode(), status)


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (said("cuInit", WELL), "Test PASSED: 50000 elements on H100"),
        (said("cuInit", WELL, status=None), "no answer within 5 seconds: exit does not return"),
        (said("cuInit", WELL, status=-11), "the process was killed in exit: Segmentation fault"),
        (said(status=None), "no answer within 5 seconds: the start of its process does not return"),
        (said("cuInit", '{"device": ', status=1), 'the process ended in {"device":  with status 1'),
        (said("cuInit", {}), "the process ended in {} with status 0"),
        (said({"missing": "libcuda.so.1: no\x1b[31m"}), "libcuda cannot be loaded: libcuda.so.1: no\\x1b[31m"),
    ],
)  # fmt: skip
def test_what_a_process_says_is_judged(answer: PythonOutput, seen: str) -> None:
    found = workload.judge(GPU, answer, 5)
    assert (found.check, found.seen) == ("GPU 3", seen)
    assert found.level == (PASS if seen.startswith("Test PASSED") else FAIL)
    assert bool(found.remedy) == (found.level == FAIL)


def test_the_sums_are_exact_in_32_bits_and_what_differs_is_found() -> None:
    first, second = vectoradd.vectors()
    sums = [a + b for a, b in zip(first, second)]
    for values in (first, second, sums):
        packed = struct.pack(f"{len(values)}f", *values)
        assert list(struct.unpack(f"{len(values)}f", packed)) == values
    assert vectoradd.compare(sums) == []
    sums[4], sums[9] = float("nan"), 0.0
    assert vectoradd.compare(sums) == ["2", "4", str(first[4] + second[4]), "nan"]


def test_the_kernel_is_one_that_old_drivers_compile() -> None:
    lines = vectoradd.PTX.split("\n")
    assert lines[1:4] == [".version 6.0", ".target sm_50", ".address_size 64"]
    declared = set(re.findall(r"%\w+", " ".join(it for it in lines if ".reg" in it)))
    special = {"%ctaid", "%ntid", "%tid"}
    assert set(re.findall(r"%\w+", vectoradd.PTX)) == declared | special


@pytest.fixture()
def root(tmp_path: Path) -> HostRoot:
    return hosts.host(tmp_path)


def facts_of(root: HostRoot) -> Facts:
    found = survey.survey(root)
    gpus = [GpuFacts(it.uuid or "", it.bus_id, "9.0", "Nvidia", ()) for it in found.gpus]
    return Facts(found.driver_version, "13.0", tuple(gpus))


def test_nvml_must_agree_with_the_kernel(root: HostRoot) -> None:
    found, facts = survey.survey(root), facts_of(root)

    def told(other: Facts) -> list[str]:
        return [item.seen for item in drivercheck.nvml(found, other)]

    assert told(facts) == ["CUDA 13.0; it knows what the kernel knows: 2 GPUs"]
    first, second = facts.gpus
    [version] = told(facts._replace(driver_version="1.2"))
    assert version.startswith("NVML is of version 1.2, the kernel module of ")
    stranger = second._replace(bus_id="00000000:ff:00.0")
    [stays] = told(facts._replace(gpus=(first, second, stranger)))
    assert stays == "NVML lists 00000000:ff:00.0, which the kernel does not"


def test_what_has_no_uuid_is_computed_on_by_its_number_or_not_at_all(root: HostRoot) -> None:
    found = survey.survey(root)
    mig = MigDevice(1, 0, None, "1g.10gb", 3, 0, 30, 31)
    half = found._replace(gpus=(found.gpus[0]._replace(uuid=None), found.gpus[1]), mig_devices=(mig,))
    wanted, wrong = workload.devices(half)
    assert wanted == [workload.CudaDevice("GPU 0", "0")]
    assert [item.seen for item in wrong] == ["GPU instance 3, compute instance 0 has no UUID without NVML"]
    assert drivercheck.nvml(half, facts_of(root))[-1].seen == "NVML lacks 1 of the kernel's MIG devices"


def test_a_gpu_in_mig_mode_without_a_mig_device_is_left_out(root: HostRoot) -> None:
    found, facts = survey.survey(root), facts_of(root)
    first, second = facts.gpus
    facts = facts._replace(gpus=(first, second._replace(in_mig_mode=True)))
    wanted, left_out = workload.devices(nvml.with_facts(found, facts))
    assert [item.check for item in wanted] == ["GPU 0"]
    assert [(item.check, item.level) for item in left_out] == [("GPU 1", WARN)]


def test_the_drivers_file_is_for_a_shell(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text(validate.of_driver("/run/my driver"))
    line = f'. {tmp_path}/ready; echo "$IS_HOST_DRIVER $NVIDIA_DRIVER_ROOT $DRIVER_ROOT_CTR_PATH"'
    told = subprocess.run(["sh", "-c", line], check=True, capture_output=True, text=True).stdout
    assert told == "false /run/my driver /driver-root\n"


def test_the_runtime_is_runc_then_crun_or_the_named_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="neither runc nor crun is in PATH"):
        containerstep.runtime("")
    for name in ("crun", "runc"):
        shutil.copy("/bin/true", tmp_path / name)
        assert containerstep.runtime("") == str(tmp_path / name)
    assert containerstep.runtime("crun") == str(tmp_path / "crun")


def test_the_registration_is_that_which_the_engine_takes(tmp_path: Path) -> None:
    host, ours = HostRoot(str(tmp_path)), {"version": "1.0.0", "hook": {"path": "/x/oci-gpu-hook", "args": ["x"]}}
    ours |= {"when": {"always": True}, "stages": ["createRuntime"]}
    folders = [f"/{place}/containers/oci/hooks.d" for place in ("usr/share", "etc")]
    for folder in folders:
        hosts.plant(tmp_path, f"{folder}/oci-gpu-hook.json", json.dumps(ours))
    assert containerstep._registration(host) == f"{folders[0]}/oci-gpu-hook.json"
    hosts.plant(tmp_path, "usr/bin/crio", "")
    for order in (folders, folders[::-1]):
        hosts.plant(tmp_path, "etc/crio/crio.conf", f"[crio.runtime]\nhooks_dir = {json.dumps(order)}\n")
        assert containerstep._registration(host) == f"{order[-1]}/oci-gpu-hook.json"
    hosts.plant(tmp_path, f"{folders[0]}/oci-gpu-hook.json", json.dumps({**ours, "stages": ["never"]}))
    with pytest.raises(ApplyError, match=f"^{folders[0]}/oci-gpu-hook.json stops every container"):
        containerstep._registration(host)


def test_the_request_is_for_what_may_be_had() -> None:
    def asked(settings: Settings, label: str = "") -> Any:
        return containerstep.configuration("name", settings, "/lib/ld.so", label)

    for allowed, wanted in ((("video", "utility", "compute"), "compute,utility"), (("video", "ngx"), "video")):
        document = asked(Settings(allowed_capabilities=allowed))
        assert f"NVIDIA_DRIVER_CAPABILITIES={wanted}" in document["process"]["env"]
        assert document["process"]["capabilities"]["bounding"] == []
        assert "mountLabel" not in document["linux"]
    strict = asked(Settings(accept_environment="privileged"), "a:b:c:s0")
    assert strict["process"]["capabilities"]["bounding"] == ["CAP_SYS_ADMIN"]
    assert strict["linux"]["mountLabel"] == "a:b:c:s0"


def test_its_hook_has_the_settings_and_counts_nothing(tmp_path: Path) -> None:
    """A node whose GPUs are leased works; and no validation could clear a GPU that is refused to it."""
    own = Settings(allowed_vendors=(), mps_pipe_owner=1, allowed_capabilities=("video", "utility"))
    strict = own._replace(gpu_holders=1, gpu_memory="share", unhealthy="refuse")
    (tmp_path / "settings").write_text(containerstep.uncounted(strict))
    assert read_settings(str(tmp_path / "settings"), None) == own


SAYS = """
import os
from oci_gpu_hook.node.gpus import nvml
os.write(1, b'{"error": "not ours"}\\n7\\n{"index": 0}\\n' + b"[" * 100000 + b"\\n")
nvml._say({"driver_version": "580.1", "cuda": 13000, "count": 2})
os.write(1, b'{"a": 1}\\n')
nvml._say({"index": 1, "uuid": "b"})
nvml._say({"index": 0, "uuid": "a"})
os.write(1, nvml._OURS + b'{"index": 2, "uu')
"""


def test_only_whole_lines_of_ours_are_an_answer(root: HostRoot) -> None:
    """The driver's library may write lines of its own."""
    found = nvml.ask_nvml(SAYS, root, hosts.surveyed(root)._replace(libraries=()), 60, whole=False)
    first = {"driver_version": "580.1", "cuda": 13000, "count": 2}
    assert found == (first, [{"index": 0, "uuid": "a"}, {"index": 1, "uuid": "b"}])


def test_the_record_is_read_as_it_was_written_and_a_damaged_one_is_none(root: HostRoot) -> None:
    steps = (StepResult("driver", PASSED, ""), StepResult("hook", FAILED, "runc does not start"))
    record = Validation(1_700_000_000, "580.65.06", steps)
    assert validationrecord.read_validation(root) is None
    validationrecord.write(root, record)
    assert validationrecord.read_validation(root) == record
    step = b'{"time": 1, "driver_version": "", "steps": [{"name": "x", "outcome": "passed", "why": ""}]}'
    for data in (b"{", b"[]", b"\xff", step):
        statefile.write(root, "validation.json", data)
        assert validationrecord.read_validation(root) is None


# --- what is done in a child process, and what a Python of its own says: answers, errors, and its end before either


def test_the_answer_of_several_steps_and_an_error_for_people_are_the_same_here() -> None:
    def work(done: object) -> list[str]:
        done()  # type: ignore[operator]
        return ["a\nb", "\udcff"]

    def refuse(done: object) -> None:
        raise UsageError("it has ended", "try again")

    assert childprocess.ask(work, (9, 9)) == ["a\nb", "\udcff"]
    with pytest.raises(UsageError) as caught:
        childprocess.ask(refuse, (9,))
    assert (caught.value.message, caught.value.hint) == ("it has ended", "try again")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        childprocess.ask(lambda done: 1 // 0, (9,))


def test_one_that_is_killed_or_does_not_end_its_answer_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(childprocess, "_LARGEST_ANSWER", 1 << 10)
    for work in (lambda done: os.kill(os.getpid(), signal.SIGKILL), lambda done: "x" * (1 << 20)):
        with pytest.raises(childprocess.Ended):
            childprocess.ask(work, (9,))


def test_one_that_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        childprocess.ask(lambda done: time.sleep(99), (0.1,))
    assert time.monotonic() - began < 50


SAY = "import os, time; os.write(1, b'said'); "


@pytest.mark.parametrize(("act", "status"), [("pass", 0), ("raise SystemExit(3)", 3), ("os.abort()", -6), ("1 / 0", 1)])
def test_what_it_said_comes_back_with_its_status(act: str, status: int) -> None:
    assert childprocess.python(SAY + act, 30) == [childprocess.PythonOutput(b"said", status)]


def test_it_finds_the_package_and_has_no_variables_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    program = "import os, oci_gpu_hook.errors; print(sorted(set(os.environ) - {'LC_CTYPE'}))"
    said = childprocess.python(program, 30, environments=[{"ONE": "1"}])
    assert said == [childprocess.PythonOutput(b"['ONE', 'PATH']\n", 0)]


def test_an_endless_answer_is_cut() -> None:
    (said,) = childprocess.python("import os\nwhile True: os.write(1, b'x' * 65536)", 30)
    assert said.status is None
    assert len(said.output) < 4 << 20


@pytest.mark.parametrize("first", ["", "os.close(1); "])
def test_several_that_hang_take_the_time_of_one_and_none_loses_what_it_said(first: str) -> None:
    program = f"{SAY}{first}time.sleep(60 * (os.environ['HANGS'] == '1'))"
    begin = time.monotonic()
    said = childprocess.python(program, 4, "", [{"HANGS": word} for word in "1101"])
    assert said == [childprocess.PythonOutput(b"said", 0 if word == "0" else None) for word in "1101"]
    # One after another they take three times four seconds.
    assert time.monotonic() - begin < 12


def test_its_container_has_a_path_without_which_youki_starts_no_program() -> None:
    assert "PATH=/" in containerstep.configuration("c", Settings(), "/p", "")["process"]["env"]
