"""The shipped CPU set is really installed on two sshd nodes, and the real LLaMA-Factory there reads the job's files."""

import os
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.ssh.host_keys import KnownHosts
from backend.job.cluster import Install
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.runs.api import with_python
from backend.runs.controller import Controller
from backend.runs.store.store import Store
from tests.nodes import ssh_nodes
from tests.runs.gangs import stand_in_job

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WHEELS = os.environ.get("PIP_FIND_LINKS", "")
"""Where this machine keeps the CPU build of torch, if it does not reach PyTorch's index."""


def job_of(cluster: LocalNodes) -> Job:
    mapping = stand_in_job(cluster.folder, "exit 1")
    parsed, problems = parse_job({**mapping, "cluster": cluster.cluster_mapping("/none/python")})
    assert parsed is not None, problems
    install = Install(find_links=WHEELS if WHEELS.startswith("/") else None)
    return with_values(parsed, {"cluster.environments": {}, "cluster.install": install})


def test_the_cpu_set_is_installed_and_its_engine_reads_the_job(tmp_path: Path) -> None:
    with ssh_nodes(tmp_path / "cluster", nodes=2) as cluster:
        job = job_of(cluster)
        (tmp_path / "known_hosts").write_text((cluster.folder / "known_hosts").read_text())
        store = Store(tmp_path / "megaboard.db")
        controller = Controller(tmp_path, store, KnownHosts(tmp_path / "known_hosts"))
        try:
            installed = controller.install(job, lambda done, total, lines: None)
            assert (installed.name, installed.problems) == ("llamafactory-cpu", ())
            checks = controller.preflight(with_python(job, installed)).checks
        finally:
            controller.close()
            store.close()
        status = {(check.name, check.rank): check.status for check in checks}
        assert [status["python", rank] for rank in (0, 1)] == ["ok", "ok"]
        assert [status["engine", rank] for rank in (0, 1)] == ["ok", "ok"]
        parsed = [check for check in checks if check.name == "configuration"]
        assert parsed
        assert {check.status for check in parsed} == {"ok"}, [check.problem for check in parsed]
