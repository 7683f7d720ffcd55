"""The report of a failed run holds what helps, and nothing that names machines, people or secrets."""

import io
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.failure_report import failure_report
from app.services import Services
from app.text import t
from app.text.causes import evidence_lines
from backend.job.problems import Problem, ProblemsError
from backend.runs.states import EventKind
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun, problem

RUN = "20260101-000000-fails-aaaa"
LOG = (
    "loading /home/alice/models and /Users/bob/x from 10.1.2.3\n"
    "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345 password: hunter2hunter2\n"
    "ValueError: real\n"
    "{'api_key': 'hunter3hunter3'} --token hunter3hunter3\n"
    "[Gloo] connectFullMesh failed with [fd12:3456::9ab]:29500, 2001:db8:0:0:1:0:0:17 and ::ffff:10.1.2.3\n"
    "2001:db8::1: refused; 2001:db8::1:29500 refused\n"
    "  host      : gpu-17.corp.example.com, peer gpu-17, not gpu-171 (local_rank: 0)\n"
    "12:30:45 std::vector at::Tensor [::]:29500 [::1]:29501 trainer.train.py\n"
)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    services = Services.open(tmp_path)
    yield services
    services.close()


def _report(services: Services) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(failure_report(services, RUN))) as packed:
        return {name: packed.read(name).decode() for name in packed.namelist()}


def test_a_report_has_job_events_and_logs_without_names_and_secrets(services: Services, tmp_path: Path) -> None:
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, RUN, now=time.time() - 600, hostnames={1: "gpu-17", 3: "head.corp.example.com"})
    run.start()
    run.log(2, "rank2.log", LOG.encode())
    run.add_event(EventKind.FAILING, 2, problem=problem("training_failed", run.addresses[2], rank=2, lines=LOG))
    store.close()
    files = _report(services)
    assert {name.removeprefix(f"{RUN}/") for name in files} == {"run.json", "job.yaml", "logs/node2/rank2.log"}
    log = files[f"{RUN}/logs/node2/rank2.log"]
    assert "ValueError: real" in log
    assert "<address>: refused; <address>:29500 refused" in log
    assert "  host      : node1, peer node1, not gpu-171 (local_rank: 0)" in log
    assert "12:30:45 std::vector at::Tensor [::]:29500 [::1]:29501 trainer.train.py" in log
    everything = "".join(files.values())
    for name in (
        "alice",
        "bob",
        "10.1.2.3",
        "hf_abcdef",
        "hunter2",
        "hunter3",
        "3456",
        "2001",
        "example",
        *run.addresses,
    ):
        assert name not in everything, name
    assert "node2" in everything


def test_a_report_of_an_unknown_run_is_refused(services: Services) -> None:
    with pytest.raises(ProblemsError):
        failure_report(services, "nothing")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_evidence_names_the_line_and_other_causes_that_fit(lang: str) -> None:
    values = {"node": "a", "file": "rank5.log", "line": "CUBLAS", "detail": "CUBLAS", "others": ["index_out_of_range"]}
    evidence, sign, other = evidence_lines(Problem(code="gpu_memory_hidden", node="a", values=values), lang)
    assert ("rank5.log" in evidence, evidence.endswith(" CUBLAS")) == (True, True)
    assert t(lang, "problem.index_out_of_range", node="a") in other
    assert sign == t(lang, "causes.sign.gpu_memory_hidden")
    assert t(lang, "causes.sign.index_out_of_range") in other
