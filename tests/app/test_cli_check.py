"""`megaboard check` prints the hardware of the nodes in the page's words, and proposes lines for the job file."""

import json
import subprocess
import sys
from typing import Any

import pytest
import yaml

from app.cli.check import print_report, report_json
from app.text import LANGUAGES, t
from app.text.detected import COLUMNS
from backend.cluster.inventory.hardware import Hardware, parse_hardware
from backend.job.job import Job
from backend.job.mapping import parse_job, to_mapping
from backend.runs.launch.preflight import PreflightReport
from tests.app.test_detected_hardware import GIDS, interface, port
from tests.cluster.gang import hardware_answer, make_facts, smi
from tests.cluster.jobs import make_job


def roce(last: int, **more: Any) -> Hardware:
    ways = [interface("eth0", f"10.0.0.{last}/24", "1000"), interface("eth9", f"192.168.9.{last}/24", "200000")]
    ports = [port("mlx5_0", link_layer="Ethernet", gids=GIDS), port("mlx5_9", rate="25 Gb/sec (1X EDR)")]
    return parse_hardware(hardware_answer(interfaces=ways, rdma=ports, **more))


def report(**second: Any) -> PreflightReport:
    facts = {rank: make_facts() for rank in (0, 1)}
    return PreflightReport(facts=facts, hardware={0: roce(1), 1: roce(2, **second)})


@pytest.fixture
def job() -> Job:
    return make_job(nodes=2)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_fact_of_the_page_s_table_is_printed_once_for_equal_nodes(
    job: Job, lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(report(smi=None), job, lang)
    out = capsys.readouterr().out
    lines = out.splitlines()
    for name in COLUMNS[1:]:
        assert any(line.startswith(t(lang, f"wizard.found.{name}")) for line in lines), name
    gpus = [line for line in lines if "1 × NVIDIA H100" in line]
    assert ["10.0.0.1" in gpus[0], "10.0.0.2" in gpus[0]] == [True, False]
    (software,) = [line for line in lines if "torch 2.11.0" in line]
    assert t(lang, "cli.check.all") in software
    assert "eth0 10.0.0.1 1 Gbit/s (NCCL_SOCKET_IFNAME)" in out


@pytest.mark.parametrize("lang", LANGUAGES)
def test_proposed_lines_can_be_pasted_into_the_job_file(
    job: Job, lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(report(), job, lang)
    printed = capsys.readouterr()
    text = printed.out.partition(t(lang, "cli.check.proposed"))[2].rpartition(t(lang, "cli.check.green"))[0]
    lines = yaml.safe_load(text)
    assert lines["environment"]["NCCL_IB_GID_INDEX"] == "3"
    assert "192.168.9.2" in printed.err
    mapping = to_mapping(job)
    mapping["cluster"] |= lines["cluster"]
    pasted, problems = parse_job(mapping | {"environment": lines["environment"]})
    assert pasted is not None, problems
    assert [host.fabric_address for host in pasted.cluster.hosts] == ["192.168.9.1", "192.168.9.2"]
    assert [host.address for host in pasted.cluster.hosts] == [host.address for host in job.cluster.hosts]
    print_report(report(), pasted, lang)
    assert t(lang, "cli.check.proposed") not in capsys.readouterr().out


def test_json_has_the_inventory_of_the_nodes_and_the_same_lines(job: Job) -> None:
    data = json.loads(json.dumps(report_json(report(smi=smi("")), job, "en"), allow_nan=False))
    first, second = data["nodes"]
    assert (first["node"], first["rank"], first["survey"]["gpus"]["gpus"][0]["memory_mib"]) == ("10.0.0.1", 0, 81559)
    assert first["facts"]["modules"]["torch"] == "2.11.0"
    assert second["survey"]["gpus"]["gpus"] == []
    assert [host["fabric_address"] for host in data["proposed"]["cluster"]["hosts"]] == ["192.168.9.1", "192.168.9.2"]
    assert data["proposed"]["environment"]["NCCL_IB_GID_INDEX"] == "3"


def test_commands_without_the_page_do_not_import_gradio() -> None:
    modules = "app.cli.launch, app.cli.notify, app.notifications.sender"
    script = f"import sys, {modules}; print(sorted({{'gradio', 'plotly', 'fastapi'}} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"
