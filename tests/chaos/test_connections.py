"""Connections to nodes that die or lose their cable: the fault is detected in time, and the connection returns.

No run is on these nodes. test_faults.py breaks the nodes and the links of a gang that trains.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.cluster.inventory.hardware import read_all_hardware
from backend.cluster.inventory.software import NodeFacts, read_all_software
from backend.cluster.node import NodeError
from backend.cluster.node_group import on_all
from backend.cluster.preflight.registry import run_checks
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.node import SshNode, connect
from backend.job.cluster import Host
from tests.chaos.lab import Lab, why_not
from tests.cluster.jobs import make_job
from tests.waiting import wait_for, while_it_runs

pytestmark = [pytest.mark.chaos]

NODES = 4
SEEN_WITHIN_S = 50.0
"""Later it would be `timeout`, not `lost`."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    missing = why_not()
    if missing:
        pytest.skip(missing)
    with Lab(tmp_path_factory.mktemp("lab"), NODES) as lab:
        yield lab


def hosts(lab: Lab) -> list[Host]:
    return [Host(address=address, user="root", identity_file=str(lab.identity_file)) for address in lab.addresses]


def reach(lab: Lab, rank: int) -> SshNode:
    return connect(hosts(lab)[rank], KnownHosts(lab.folder / "app", lab.folder / "known_hosts"), timeout_s=5)


def test_every_node_finds_its_interface_and_dials_the_master(lab: Lab) -> None:
    described = [{"address": h.address, "user": h.user, "identity_file": h.identity_file} for h in hosts(lab)]
    environments = {"llamafactory": {"python": "/usr/bin/python3"}}
    job = make_job(nodes=NODES, cluster={"hosts": described, "environments": environments, "run_root": "/run/local"})

    def check() -> None:
        nodes = on_all(range(NODES), lambda rank, _: reach(lab, rank), 30)
        facts = read_all_software(job, nodes)
        results = run_checks(job, nodes, facts, read_all_hardware(job, nodes), 29500)
        for rank, fact in facts.items():
            assert isinstance(fact, NodeFacts)
            assert (fact.interface, fact.hostname) == ("eth0", f"node{rank}")
        assert [result.status for result in results if result.name == "master_port"] == ["ok"] * NODES
        for node in nodes.values():
            node.close()

    lab.inside(check)


@pytest.mark.worst
def test_a_pulled_cable_is_seen_in_time_and_the_node_is_back_when_it_is_plugged_in(lab: Lab, tmp_path: Path) -> None:
    def check() -> None:
        node = reach(lab, 1)
        command = while_it_runs(tmp_path / "runs", lambda: lab.set_link(1, "down"))
        with pytest.raises(NodeError) as caught:
            node.run(command, timeout_s=SEEN_WITHIN_S)
        assert caught.value.code == "lost"
        with pytest.raises(NodeError) as caught:
            node.exists("/tmp")
        assert caught.value.code == "unreachable"
        lab.set_link(1, "up")
        assert node.exists("/tmp")
        node.close()

    try:
        lab.inside(check)
    finally:
        lab.set_link(1, "up")


def test_a_node_that_dies_is_lost_at_once_and_cannot_be_reached_again(lab: Lab, tmp_path: Path) -> None:
    def check() -> None:
        node = reach(lab, 2)
        command = while_it_runs(tmp_path / "runs", lambda: lab.kill_node(2))
        with pytest.raises(NodeError) as caught:
            node.run(command, timeout_s=SEEN_WITHIN_S)
        assert caught.value.code == "lost"
        with pytest.raises(NodeError) as caught:
            node.exists("/tmp")
        assert caught.value.code == "unreachable"
        node.close()

    lab.inside(check)


def test_the_others_are_not_touched(lab: Lab) -> None:
    def check() -> None:
        node = reach(lab, 3)
        assert node.run(["hostname"], timeout_s=10).out == "node3\n"
        node.close()

    lab.inside(check)


def test_nothing_is_left_of_a_lab(tmp_path: Path) -> None:
    missing = why_not()
    if missing:
        pytest.skip(missing)
    with Lab(tmp_path, 1) as lab:
        first = lab.first
        assert lab.inside(lambda: reach(lab, 0).run(["echo", "here"], timeout_s=10).out) == "here\n"
    wait_for(lambda: not any(str(tmp_path) in command for command in _commands()))
    assert not Path(f"/proc/{first}/ns/net").exists() or Path(f"/proc/{first}/stat").read_text().split()[2] == "Z"
    assert "br0" not in Path("/proc/net/dev").read_text()


def _commands() -> list[str]:
    result = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            result.append(path.read_text())
        except OSError:
            continue
    return result
