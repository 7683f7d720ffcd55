"""The Hardware step measures the cluster, and stores or deletes the measured speeds when the user says so."""

from dataclasses import replace

import pytest

from app.services import Services
from app.wizard import speed
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.sources import fetch
from app.wizard.summary import summarise
from backend.cluster.benchmark import Speeds
from backend.cluster.ssh.host_keys import HostKey
from backend.job.problems import Problem, ProblemsError
from backend.runs.tasks.benchmark import Measurement

SPEEDS = Speeds(
    device="NVIDIA H100 80GB HBM3",
    precision="bf16",
    matmul_tflops=701.0,
    intra_node_bus_gb_per_s=360.0,
    inter_node_bus_gb_per_s=39.5,
    sizes={},
    slow=(),
)


class Controller:
    """A controller that answers as the nodes would."""

    def __init__(self):
        self.answers = [Measurement(speeds=SPEEDS)]
        self.accepted = []
        self.tasks = self

    def measure_speed(self, job):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def accept_host_keys(self, keys):
        self.accepted += keys


@pytest.fixture
def services(tmp_path):
    opened = Services.open(tmp_path, lambda: 1_800_000_000.0)
    services = replace(opened, controller=Controller())
    change(services, {"cluster.hosts.lines": "10.0.0.1\n10.0.0.2", "cluster.nodes": 2})
    yield services
    opened.close()


def card(services, lang="en"):
    return speed.card(read(services.draft.job_mapping(), services.home), lang, services)


def calibration(services):
    return read(services.draft.job_mapping(), services.home).job.cluster.calibration


def test_what_was_measured_is_shown_and_waits_for_the_users_word(services):
    result = fetch(services, {"kind": "speed"})
    assert (result.problems, result.note) == ((), {"nodes": 2})
    assert all(figure in card(services)["waiting"] for figure in ("701", "360", "39.5"))
    assert calibration(services).matmul_tflops is None
    fetch(services, {"kind": "keep_speed"})
    assert (calibration(services).matmul_tflops, calibration(services).gpu) == (701.0, "h100-80g")
    assert card(services)["waiting"] == ""
    assert "2027-01-15" in card(services)["lines"][0]
    assert read(services.draft.job_mapping(), services.home).estimate.probed_on == "2027-01-15"


def test_it_waits_for_the_hosts_and_the_gpu_it_was_measured_on(services):
    fetch(services, {"kind": "speed"})
    change(services, {"cluster.hosts.lines": "10.0.0.1\n10.0.0.3"})
    assert card(services)["waiting"] == ""
    change(services, {"cluster.hosts.lines": "10.0.0.1\n10.0.0.2", "cluster.gpu": "a100-80g"})
    assert card(services)["waiting"] == ""


def test_forgotten_it_is_gone_from_the_job(services):
    fetch(services, {"kind": "speed"})
    fetch(services, {"kind": "keep_speed"})
    assert card(services)["is_known"]
    fetch(services, {"kind": "forget_calibration"})
    assert (card(services)["is_known"], calibration(services).gpu) == (False, None)


def test_unknown_host_keys_are_confirmed_first(services):
    key = HostKey(host="10.0.0.1", port=22, key_type="ssh-ed25519", fingerprint="SHA256:x", line="")
    waiting = Measurement(unknown_host_keys=(key,), problems=(Problem(code="host_key_unknown"),))
    services.controller.answers = [waiting, waiting, Measurement(speeds=SPEEDS)]
    assert fetch(services, {"kind": "speed"}).host_keys == (key,)
    assert fetch(services, {"kind": "speed", "accept": ["SHA256:x"]}).note == {"nodes": 2}
    assert services.controller.accepted == [key]


def test_a_failure_is_reported_and_nothing_waits(services):
    services.controller.answers = [ProblemsError([Problem(code="measure_failed", node="10.0.0.2")])]
    result = fetch(services, {"kind": "speed"})
    assert ([problem.code for problem in result.problems], dict(result.note)) == (["measure_failed"], {})
    assert card(services)["waiting"] == ""


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_calibration_of_another_gpu_is_reported_as_unused(services, lang):
    change(services, {"cluster.calibration": {"gpu": "a100-80g", "run": "r-1", "time_ratio": 1.2}})
    lines = card(services, lang)["lines"]
    assert "a100-80g" in lines[0]
    assert "r-1" in lines[1]


def test_memory_that_a_run_corrects_names_the_run(services):
    known = {"gpu": "h100-80g", "run": "r-1", "memory_ratio": 1.02, "engine": "llamafactory-megatron"}
    change(services, {"cluster.calibration": known})
    assert summarise(read(services.draft.job_mapping(), services.home))["accuracy"]["run"] == "r-1"
    change(services, {"engine": "llamafactory-ddp"})
    assert "expected" in summarise(read(services.draft.job_mapping(), services.home))["accuracy"]
