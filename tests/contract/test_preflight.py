"""The preflight on real nodes: faults are found and named, and nothing is left behind."""

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.inventory.hardware import read_all_hardware, read_hardware
from backend.cluster.inventory.software import NodeFacts, read_all_software
from backend.cluster.node import Node
from backend.cluster.node_group import on_all
from backend.cluster.preflight import master_port
from backend.cluster.preflight.master_port import choose_port
from backend.cluster.preflight.registry import run_checks
from backend.cluster.preflight.results import CheckResult
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.node import connect
from backend.job.job import Job
from tests.cluster.jobs import make_job
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.contract, pytest.mark.e2e]

NODES = 2


@pytest.fixture(scope="module")
def nodes(cluster: LocalNodes, known_hosts: KnownHosts) -> Iterator[dict[int, Node]]:
    connected = on_all(cluster.hosts()[:NODES], lambda rank, host: connect(host, known_hosts), 30)
    yield dict(connected)
    for node in connected.values():
        node.close()


@pytest.fixture
def make(cluster: LocalNodes, tmp_path: Path) -> Callable[..., Job]:
    """Return a job for the nodes. They have separate home folders on one shared disk."""
    for rank in range(NODES):
        home = tmp_path / f"node{rank}"
        (home / "model").mkdir(parents=True)
        (home / "model" / "config.json").write_text("{}")
        (home / "data").mkdir()
        (home / "data" / "dataset_info.json").write_text(json.dumps({"d": {"file_name": "d.json"}}))
        (home / "data" / "d.json").write_text("[]")
    (tmp_path / "setup.sh").write_text(f"export HOME={tmp_path}/$MEGABOARD_NODE; echo noise\n")

    def make(python: str = sys.executable) -> Job:
        mapping: dict[str, Any] = cluster.cluster_mapping(python)
        mapping |= {"nodes": NODES, "hosts": mapping["hosts"][:NODES], "run_root": "~/runs"}
        mapping["environments"]["llamafactory"]["setup"] = str(tmp_path / "setup.sh")
        training = {"dataset": "d", "dataset_dir": "~/data", "output_dir": "~/out"}
        return make_job(nodes=NODES, cluster=mapping, model={"path": "~/model"}, training=training)

    return make


def check(job: Job, nodes: dict[int, Node], port: int | None = None) -> list[CheckResult]:
    chosen = port or choose_port(job, nodes[0], range(job.cluster.port_range[0], job.cluster.port_range[1] + 1))
    return run_checks(job, nodes, read_all_software(job, nodes), read_all_hardware(job, nodes), chosen)


def failures(results: list[CheckResult]) -> list[tuple[str, int, str]]:
    return [(r.name, r.rank, r.problem.code) for r in results if r.status == "failure" and r.problem]


def test_a_python_without_the_engine_is_found_on_every_node_and_all_else_passes(
    nodes: dict[int, Node], make: Callable[..., Job], tmp_path: Path
) -> None:
    results = check(make(), nodes)
    assert failures(results) == [("engine", 0, "engine_missing"), ("engine", 1, "engine_missing")]
    assert {r.status for r in results if r.name != "engine"} == {"ok"}
    assert sorted(path.name for path in (tmp_path / "node0").iterdir()) == ["data", "model"]


@needs_node_environment
def test_the_real_environment_passes(nodes: dict[int, Node], make: Callable[..., Job]) -> None:
    assert failures(check(make(str(NODE_PYTHON)), nodes)) == []


def test_facts_are_each_nodes_own(nodes: dict[int, Node], make: Callable[..., Job], tmp_path: Path) -> None:
    facts = read_all_software(make(), nodes)
    for rank, named in facts.items():
        assert isinstance(named, NodeFacts)
        assert (named.home, named.interface) == (str(tmp_path / f"node{rank}"), "lo")
        assert abs(named.clock_offset_s) <= named.clock_error_s


def test_what_is_missing_on_one_node_only_is_found_there(
    nodes: dict[int, Node], make: Callable[..., Job], tmp_path: Path
) -> None:
    (tmp_path / "node1" / "model" / "config.json").unlink()
    (tmp_path / "node0" / "data" / "d.json").unlink()
    (tmp_path / "node0" / "runs").write_text("a file where the folder should be")
    result = [failure for failure in failures(check(make(), nodes)) if failure[0] != "engine"]
    assert result == [
        ("dataset", 0, "dataset_file_missing"),
        ("run_root", 0, "not_writable"),
        ("model", 1, "model_missing"),
    ]


def test_a_python_that_is_not_there_is_found(nodes: dict[int, Node], make: Callable[..., Job]) -> None:
    job = make("/nowhere/python")
    facts = read_all_software(job, nodes)
    assert failures(run_checks(job, nodes, facts, read_all_hardware(job, nodes), 29500)) == [
        ("python", 0, "no_python"),
        ("python", 1, "no_python"),
    ]


def test_a_port_that_is_taken_is_found_and_another_is_chosen(nodes: dict[int, Node], make: Callable[..., Job]) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=_hang_up_on_everyone, args=(server,), daemon=True).start()
        assert ("master_port", 0, "port_taken") in failures(check(make(), nodes, port))
        assert choose_port(make(), nodes[0], [port, 0]) == 0


def _hang_up_on_everyone(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            server.accept()[0].close()


@pytest.mark.parametrize(
    ("address", "code"),
    [
        # TEST-NET-1 of RFC 5737: nobody answers there, as on the wrong network.
        ("192.0.2.1", "master_not_reached"),
        # RFC 6761: no name below it is ever given to a machine.
        ("master.invalid", "master_not_resolved"),
    ],
)
def test_a_master_that_cannot_be_dialled_is_found(
    nodes: dict[int, Node], make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, address: str, code: str
) -> None:
    monkeypatch.setattr(master_port, "DIAL_S", 0.1)
    job = make()
    first = replace(job.cluster.hosts[0], fabric_address=address)
    job = replace(job, cluster=replace(job.cluster, hosts=(first, *job.cluster.hosts[1:])))
    result = [failure for failure in failures(check(job, nodes)) if failure[0] == "master_port"]
    assert result == [("master_port", 0, code), ("master_port", 1, code)]


def test_a_model_that_differs_and_an_output_folder_that_is_not_shared_are_found_and_nothing_is_left(
    nodes: dict[int, Node], make: Callable[..., Job], tmp_path: Path
) -> None:
    (tmp_path / "node1" / "model" / "config.json").write_text("{ }")
    job = replace(make(), engine="llamafactory-megatron")
    results = check(job, nodes)
    assert ("model_equal", 1, "model_differs") in failures(results)
    warnings = [(r.name, r.rank) for r in results if r.status == "warning"]
    assert warnings == [("output_shared", 1)]
    left = sorted(path.name for path in (tmp_path / "node0").iterdir())
    assert left == ["data", "model"]
    shared = replace(job, training=replace(job.training, output_dir=str(tmp_path / "out")))
    assert "output_shared" not in [r.name for r in check(shared, nodes) if r.status != "ok"]


def test_the_hardware_of_real_nodes_is_that_of_this_machine(nodes: dict[int, Node]) -> None:
    hardware = read_hardware(nodes[0], None, ["/tmp/not/yet"])
    assert hardware.cpus == len(os.sched_getaffinity(0))
    assert hardware.disks["/tmp/not/yet"].total == os.statvfs("/tmp").f_blocks * os.statvfs("/tmp").f_frsize
    assert hardware.gpus.is_nvidia == (shutil.which("nvidia-smi") is not None)
    assert "lo" not in [interface.name for interface in hardware.fabric.interfaces]
