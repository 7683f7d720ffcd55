"""Any answer of a node program: a check reports the fault or NodeError is raised, and nothing else."""

import json
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from app.text import LANGUAGES, render_problem
from backend.cluster.inventory import checkpoints
from backend.cluster.inventory.dataset_size import data_size_on
from backend.cluster.inventory.fabric import common_network
from backend.cluster.inventory.hardware import read_all_hardware
from backend.cluster.inventory.software import read_software
from backend.cluster.node import NodeError, Result
from backend.cluster.node_group import GroupError
from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.cluster.preflight.engine_args import check_configuration
from backend.cluster.preflight.master_port import choose_port
from backend.cluster.preflight.registry import run_checks
from backend.cluster.preflight.results import Checks
from backend.cluster.program_answers.hardware import Measured
from backend.cluster.program_answers.transfers import Copied, Progress
from backend.cluster.typed_json import answer_of
from backend.engines import Rendered
from backend.job.mapping import with_values
from backend.runs.tasks.one_off_task import read_answer
from tests.cluster.gang import H100, MODULES, PORT, PRINTS, PYTHON, Gang, hardware_answer, make_facts, smi
from tests.cluster.jobs import make_job
from tests.fakes import FakeNode
from tests.hostile_json import mutations

pytestmark = pytest.mark.slow

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 1e300, 10**30, math.nan, math.inf, "", "text", "x" * 100_000, "9" * 5000, "\ud800\x00\x1b[31m",
    [], [None], ["a", ["b"]], {}, {"run": []}, list(range(10_000)), json.loads("[" * 500 + "]" * 500),
)  # fmt: skip

FACTS = {"home": "/home/me", "hostname": "n", "python": "3.11.2", "modules": {"torch": "2.9"}, "origins": {"torch": {
         "version": "2.9", "url": "", "commit": "", "subdirectory": "", "folder": ""}}, "cuda": "12.8", "nccl": "2.27",
         "interface": "eth0", "machine": "b", "time": 1e9}  # fmt: skip
PORTS = [{"device": "mlx5_0", "port": "1", "gids": {"0": ["fe80::1", "RoCE v2"], "3": ["::ffff:10.0.0.1", "RoCE v2"]},
          "state": "4: ACTIVE", "rate": "400 Gb/sec", "link_layer": "Ethernet", "interfaces": ["eth0"]}]  # fmt: skip
WAYS = [{"name": "eth0", "state": "up", "speed": "1000", "tunnel": False, "bonded": False,
         "networks": ["10.0.0.1/24"]}]  # fmt: skip
HARDWARE = hardware_answer(
    rdma=PORTS, interfaces=WAYS, default_routes=["eth0"],
    smi=smi(H100, apps="GPU-aaaa, 7, python, 10\n", topo="GPU0 X\n", table="CUDA Version: 12.8\n",
            more="0, Disabled, 5, 16, 16\n"))  # fmt: skip
PATHS = {"model": True, "dataset": {"info": True, "unknown": [], "missing": [], "columns": {"a": ["output"]}},
         "not_writable": {"/out": "full"},
         "parts": {"unbuilt": [], "locks": [], "compiler": True}}  # fmt: skip
COUNTED = {"samples": 10, "rows": {"a": 10}, "tokens": 5, "unmeasured": ""}
REFUSED = {"code": "dataset_unknown", "values": {"path": "/data", "names": "a"}}
CHECKPOINTS = {"folder": "/out", "checkpoints": {"10": {"files": ["a"], "damaged": []}}}
PARSED = {"error": None, "message": "", "programs": {"transformers": {"version": "5", "keys": {
          "lr": {"type": "float", "default": 1.0, "choices": [1]}}}}}  # fmt: skip
MEASURED = {"rank": 0, "node": 0, "local_rank": 0, "device": "CPU", "precision": "fp32", "matmul_tflops": 1.0,
            "intra": {"1": 1.0}, "inter": {"1": 1.0}, "pairs": {"1": 1.0}}  # fmt: skip


def _mutations(record: Any, count: int) -> list[Any]:
    """Return some mutations of the record, and some hostile values alone."""
    result = [*HOSTILE, *mutations(record, HOSTILE)]
    return random.Random(14).sample(result, min(count, len(result)))


def _says(answer: Any) -> Callable[[Any, bytes], Result]:
    """Return what a node prints after the token, an object or not."""

    def reply(argv: Any, stdin: bytes) -> Result:
        token = argv[list(argv).index("--token") + 1]
        return Result(code=0, out=token + json.dumps(answer) + "\n", err="")

    return reply


CHECKED: Mapping[str, Any] = {
    "paths": PATHS, "holder": {"holder": {"run": "r"}}, "hardware": HARDWARE, "prints": PRINTS,
    "write": {"written": True}, "read": {"seen": True}, "remove": {},
    "listen": {"bound": True, "dialled": {"reached": True}},
    "dial": {"reached": False, "detail": "no", "is_named": False},
}  # fmt: skip


@pytest.mark.parametrize("action", CHECKED)
def test_the_preflight_says_what_it_thinks_of_every_answer(action: str) -> None:
    good = {"engine": "llamafactory-megatron", "nodes": 2}
    for answer in _mutations(CHECKED[action], 60):
        gang = Gang(**good)
        for node in gang.fakes:
            node.on("write", reply={"written": True})
            node.on(action, reply=_says(answer))
        results = gang.check()
        hardware = read_all_hardware(gang.job, gang.nodes)
        common_network({rank: item.fabric for rank, item in hardware.items() if not isinstance(item, NodeError)})
        for result in results:
            for lang in LANGUAGES if result.problem else ():
                words = render_problem(lang, result.problem)
                (words["message"] + words["fix"]).encode()


def _end(act: Callable[[], Any]) -> tuple[Any, list[NodeError]]:
    """Return the result, or the errors of nodes with which it was refused."""
    try:
        return act(), []
    except NodeError as error:
        return None, [error]
    except GroupError as error:
        return None, [*error.failures.values()]


def test_every_misshapen_answer_about_a_nodes_software_is_a_nodes_error() -> None:
    for answer in _mutations(FACTS, 200):
        node = FakeNode("10.0.0.1").on("facts", reply=_says(answer)).on("true", reply=Result(code=0, out="", err=""))
        result, errors = _end(lambda node=node: read_software(node, PYTHON, modules=MODULES))
        assert {error.code for error in errors} <= {"bad_python"}
        if result is not None:
            gang = Gang()
            gang.facts[0] = result
            run_checks(gang.job, gang.nodes, gang.facts, read_all_hardware(gang.job, dict(enumerate(gang.fakes))), PORT)


@pytest.mark.parametrize("good", [COUNTED, REFUSED])
def test_every_misshapen_count_of_samples_is_a_nodes_error(good: Mapping[str, Any]) -> None:
    for answer in _mutations(good, 100):
        node = FakeNode("10.0.0.1").on("count", reply=_says(answer))
        result, errors = _end(lambda node=node: data_size_on(node, make_job(), 0))
        assert result is None or result.samples >= 0
        assert {error.code for error in errors} <= {"bad_answer", "dataset_unknown"}
        assert all("{" not in render_problem("en", error.problem)["fix"] for error in errors)


@pytest.mark.parametrize(("part", "is_measured"), [({}, True), ({"vision_config": {}}, False)])
def test_tokens_of_images_are_not_guessed_for_a_model_without_an_estimate(
    part: dict[str, Any], is_measured: bool
) -> None:
    job = with_values(make_job(), {"model.preset": None, "model.hf_config": {"model_type": "brand_new", **part}})
    node = FakeNode("10.0.0.1").on("count", reply=_says(COUNTED))
    size = data_size_on(node, job, 0)
    assert size.samples == COUNTED["samples"]
    assert (size.tokens is not None, size.unmeasured == "") == (is_measured, is_measured)


def test_every_misshapen_list_of_checkpoints_is_a_nodes_error() -> None:
    job = make_job(nodes=1)
    for answer in _mutations(CHECKPOINTS, 150):
        node = FakeNode("10.0.0.1").on("list", reply=_says(answer)).on("set_aside", reply=_says(answer))
        _, errors = _end(lambda node=node: checkpoints.read_checkpoints(job, {0: node}, "/out"))
        _, more = _end(lambda node=node: checkpoints.set_aside(job, {0: node}, "/out", [1], "x"))
        assert {error.code for error in (*errors, *more)} <= {"bad_answer", "node_io"}


def test_every_misshapen_word_of_an_engine_is_a_check_that_failed() -> None:
    gang = Gang(nodes=1)
    for number, answer in enumerate(_mutations(PARSED, 150)):
        node = FakeNode("10.0.0.1").on("parse", reply=_says(answer))
        facts = {0: make_facts(machine=str(number))}
        command = type("Command", (), {"rank": 0, "environment": {}})()
        rendered = Rendered(files={"config.yaml": str(number)}, commands=(command,))
        checks, accepted = {0: Checks(0, "10.0.0.1")}, AcceptedConfigurations()
        (result,) = check_configuration(gang.job, checks, {0: node}, facts, rendered, accepted)
        assert result.status in ("ok", "failure")


def test_every_misshapen_port_is_a_nodes_error() -> None:
    for answer in _mutations({"port": 29500}, 60):
        node = FakeNode("10.0.0.1").on("free_port", reply=_says(answer))
        result, errors = _end(lambda node=node: choose_port(make_job(), node, [PORT]))
        assert result is None or 0 <= result <= 65535
        assert {error.code for error in errors} <= {"bad_answer", "no_free_port"}


@pytest.mark.parametrize(
    ("shape", "good"),
    [
        (Measured, MEASURED),
        (Progress, {"done": 1, "total": 2}),
        (Copied, {"code": "copy_refused", "status": 403}),
    ],
)
def test_every_misshapen_file_of_an_errand_is_a_nodes_error(shape: Any, good: Mapping[str, Any]) -> None:
    node = FakeNode("10.0.0.1")
    for data in [json.dumps(mutation).encode() for mutation in _mutations(good, 80)] + [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
    ]:
        node.files["/f"] = data
        result, errors = _end(lambda: read_answer(node, "/f", shape))
        assert {error.code for error in errors} <= {"bad_answer"}
        assert result is None or answer_of("n", shape, result) == result
    node.files["/f"] = json.dumps(good).encode()
    assert read_answer(node, "/f", shape) == good
