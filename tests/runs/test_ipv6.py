"""A whole run on nodes with only IPv6 addresses: SSH, host keys, the master's port, names and locks."""

import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.demo import local_nodes
from backend.job.mapping import parse_job
from backend.runs.controller import Controller
from backend.runs.states import RunState
from tests.nodes import ssh_nodes
from tests.runs.gangs import ENGINE, NODES, marked, stand_in_job, with_mode
from tests.waiting import WITHIN_S

pytestmark = [pytest.mark.contract, pytest.mark.e2e]


@pytest.fixture(autouse=True)
def _needs_ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")


def test_a_run_on_ipv6_addresses_from_host_key_to_finish(
    open_controller: Callable[..., Controller], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_nodes, "CONFIGURATION", local_nodes.CONFIGURATION + "ListenAddress [::1]:{port}\n")
    with ssh_nodes(tmp_path, nodes=NODES) as nodes:
        mapping = stand_in_job(tmp_path, f'PYTHONPATH={ENGINE} exec {sys.executable} -S -B "$@"')
        job, problems = parse_job({**mapping, "cluster": nodes.cluster_mapping(f"{tmp_path}/python")})
        assert job is not None, problems
        hosts = tuple(replace(host, address="::1") for host in job.cluster.hosts)
        job = with_mode(replace(job, cluster=replace(job.cluster, hosts=hosts)), "ok")
        controller = open_controller()
        first = controller.preflight(job)
        assert {problem.code for problem in first.problems} == {"host_key_unknown"}
        controller.accept_host_keys(first.unknown_host_keys)
        ports = sorted(host.port for host in hosts)
        known = [line.split()[0] for line in (home / "known_hosts").read_text().splitlines()]
        assert sorted(known[NODES:]) == [f"[::1]:{port}" for port in ports]
        report = controller.preflight(job)
        assert report.problems == ()
        run = controller.launch(job)
        assert controller.wait(run, WITHIN_S) is RunState.FINISHED
        shown = controller.snapshot(run)
        assert sorted(node.address for node in shown.nodes) == [f"[::1]:{port}" for port in ports]
        assert marked(home, run) == 0
