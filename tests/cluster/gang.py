"""A gang of fake nodes with prepared answers, for the tests of single checks. Each test runs the whole preflight."""

from collections.abc import Mapping
from typing import Any

from app.text import LANGUAGES, render_problem, t
from backend.cluster.inventory.hardware import read_all_hardware
from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import Node, NodeError
from backend.cluster.preflight.registry import run_checks
from backend.cluster.preflight.results import CheckResult
from backend.job.cluster import Environment
from backend.job.problems import Problem
from tests.cluster.jobs import make_job
from tests.fakes import FakeNode

PORT = 29500
MODULES = {"torch": "2.11.0", "transformers": "5.6.0", "llamafactory": "0.9.5"}
PYTHON = Environment(python="/opt/swift/bin/python")
PATHS: dict[str, Any] = {
    "model": True,
    "dataset": {"info": True, "unknown": [], "missing": [], "columns": {}},
    "not_writable": {},
    "parts": {"unbuilt": [], "locks": [], "compiler": True},
}


PRINTS = {"model": {"config.json": "10 aa", "model.safetensors": "99 bb"}, "data": {"/data/a.json": "5 cc"}}
H100 = "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 4, 570.124.06\n"
DISK = {"free": 1 << 50, "total": 1 << 50, "source": "nas:/out", "kind": "nfs4"}


def smi(query: str, **more: str) -> dict[str, Any]:
    """Return nvidia-smi's answer with `query` for the question of that name, `more` for others, and nothing for the
    rest."""
    none = dict.fromkeys(("more", "errors", "power", "rows", "apps", "list", "topo", "table"), "")
    texts = {"query": query, **none, **more}
    return {name: {"code": 0, "out": text, "err": ""} for name, text in texts.items()}


def hardware_answer(**more: Any) -> dict[str, Any]:
    """Return the answer of hardware.py on a node without faults, with the changes `more`."""
    return {"smi": smi(H100), "owners": {}, "rdma": [], "interfaces": [], "default_routes": [], "quota": "",
            "shm": {**DISK, "kind": "tmpfs"}, "memlock": -1, "nofile": 65536, "cpus": 8,
            "memory_mib": 1000, "ends_at_logout": False, "disks": {"/out": DISK}, **more}  # fmt: skip


def own_gpu(name: str) -> str:
    """Return nvidia-smi's lines of H100s with UUIDs that no other machine has."""
    return H100.replace("GPU-aaaa", f"GPU-{name}")


def make_facts(modules: Mapping[str, str | None] = MODULES, **more: Any) -> NodeFacts:
    values = {"home": "/home/train", "hostname": "n", "python": "3.11.2", **more}
    return NodeFacts(modules=modules, interface="eth0", **values)


def good_node(name: str) -> FakeNode:
    node = FakeNode(name).on("paths", reply=PATHS).on("holder", reply={"holder": None})
    node.on("hardware", reply=hardware_answer(smi=smi(own_gpu(name)))).on("prints", reply=PRINTS)
    node.on("write", reply={"written": True}).on("read", reply={"seen": True}).on("remove", reply={})
    return node.on("listen", reply={"bound": True, "dialled": {"reached": True}}).on("dial", reply={"reached": True})


class Gang:
    """Two nodes without faults. A test adds the fault."""

    def __init__(self, nodes: int = 2, **job: Any) -> None:
        self.job = make_job(nodes=nodes, **job)
        self.fakes = [good_node(f"10.0.0.{rank + 1}") for rank in range(nodes)]
        self.first, self.second = self.fakes[0], self.fakes[-1]
        self.nodes: dict[int, Node | NodeError] = dict(enumerate(self.fakes))
        self.facts: dict[int, NodeFacts | NodeError] = {rank: make_facts() for rank in range(nodes)}

        self.secret_names: frozenset[str] = frozenset()

    def check(self) -> list[CheckResult]:
        reached = {rank: node for rank, node in self.nodes.items() if not isinstance(node, NodeError)}
        hardware = read_all_hardware(self.job, reached)
        return run_checks(self.job, self.nodes, self.facts, hardware, PORT, secret_names=self.secret_names)

    def only_failure(self) -> tuple[CheckResult, Problem]:
        """Return the one failed check and its problem, which must have a text in every language."""
        return self.only("failure")

    def only_warning(self) -> tuple[CheckResult, Problem]:
        """Return the one check with a warning, if no check failed."""
        assert not [result for result in self.check() if result.status == "failure"]
        return self.only("warning")

    def only(self, status: str) -> tuple[CheckResult, Problem]:
        (failure,) = [result for result in self.check() if result.status == status]
        assert failure.problem
        assert failure.problem.node == failure.node
        for lang in LANGUAGES:
            assert "{" not in t(lang, f"check.{failure.name}")
            words = render_problem(lang, failure.problem)
            assert failure.node in words["message"]
            assert words["fix"]
            assert "{" not in words["message"] + words["fix"]
            if failure.problem.code != "bad_answer":  # Its command is the one that was run.
                assert str(failure.problem.values.get("command", "")) in words["fix"]
        return failure, failure.problem
