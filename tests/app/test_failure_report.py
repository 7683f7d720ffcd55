"""The report of a failed run holds what helps, and nothing that names machines, people or secrets."""

import io
import json
import re
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

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
    "host:fd12:3456::9ab addr:[fd12:3456::9ab]:22 tcp:fd12:3456::9ab:29500\n"
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
    assert "host:<address> addr:[<address>]:22 tcp:<address>:29500" in log
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


def test_names_of_hosts_that_are_words_of_the_report_leave_it_readable(services: Services, tmp_path: Path) -> None:
    store = Store(tmp_path / "megaboard.db")
    names = {0: "run", 1: "loss", 2: "model.corp.example.com", 3: "alice"}
    run = StoredRun(store, RUN, now=time.time() - 600, addresses=list(names.values()), hostnames=names)
    run.start()
    log = "{'loss': 1.5} run step 3\nssh train@loss: refused, host: run, model.corp.example.com, alice\n"
    run.log(1, "rank1.log", log.encode())
    run.add_event(EventKind.FAILING, 1, problem=problem("training_failed", "loss", rank=1, lines=log))
    store.close()
    files = _report(services)
    facts = json.loads(files[f"{RUN}/run.json"])
    assert {"id", "state", "nodes", "events"} <= facts.keys()
    assert [node["address"] for node in facts["nodes"]] == ["node0", "node1", "node2", "node3"]
    problems = [event["detail"]["problem"] for event in facts["events"] if "problem" in event["detail"]]
    assert [found["node"] for found in problems] == ["node1"]
    text = "{'loss': 1.5} run step 3\nssh train@node1: refused, host: node0, node2, node3\n"
    assert files[f"{RUN}/logs/node1/rank1.log"] == text
    job = yaml.safe_load(files[f"{RUN}/job.yaml"])
    assert {"model", "cluster"} <= job.keys()
    assert "alice" not in "".join(files.values())


def test_names_of_slurm_s_compute_nodes_are_replaced(services: Services, tmp_path: Path) -> None:
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, RUN, now=time.time() - 600, addresses=["gpu-a07", "gpu-a08"])
    run.start()
    run.add_event(EventKind.SCHEDULER, job="77", state="RUNNING", nodes="gpu-a[07-08],big-r[1-2]n[09,11]", reason="")
    run.log(0, "rank0.log", b"gpu-a07 reaches gpu-a08, big-r2n11.cluster.site.org and not big-r3n11\n")
    run.add_event(EventKind.FAILING, 1, problem=problem("training_failed", "gpu-a08", rank=1, lines="big-r1n09 died"))
    store.close()
    files = _report(services)
    everything = "".join(files.values())
    assert "node0 reaches node1, compute5 and not big-r3n11" in everything
    assert "compute2 died" in everything
    for name in ("gpu-a", "r[1-2]", "n09", "r2n11"):
        assert name not in everything


def test_no_name_of_a_log_leads_out_of_the_folder_of_the_report(services: Services, tmp_path: Path) -> None:
    """A node names the logs of a watched training. Programs that unpack may follow `..`."""
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, RUN, now=time.time() - 600)
    run.start()
    names = ("../../../.bashrc.log", "/etc/x.log", "a/../../b.log", "..\\c.log", "C:\\d.log", "e\n.log", "训练 1.log")
    for name in names:
        run.log(2, name, name.encode())
    store.close()
    logs = {name: text for name, text in _report(services).items() if "/logs/" in name}
    assert sorted(logs.values()) == sorted(names)
    assert all(re.fullmatch(rf"{RUN}/logs/node2/(?!\.)[^/\\:\n]+", name) for name in logs), logs
    assert f"{RUN}/logs/node2/训练 1.log" in logs


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
