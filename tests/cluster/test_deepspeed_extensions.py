"""DeepSpeed's C++ extensions: those that a job needs, those on a node, and the resulting check."""

from pathlib import Path

import pytest

from app.text import LANGUAGES, render_problem, t
from backend.cluster.preflight.deepspeed_extensions import needed_parts
from backend.cluster.preflight.results import CheckResult
from backend.node.checks.software import find_parts
from tests.cluster.gang import PATHS, Gang
from tests.cluster.jobs import make_job

OFFLOAD = "llamafactory-zero3-offload"


@pytest.mark.parametrize(
    ("engine", "gpu", "parallel", "parts"),
    [
        ("llamafactory-ddp", "cpu", {}, []),
        ("llamafactory-zero3", "h100-80g", {}, []),
        ("llamafactory-zero3", "cpu", {}, ["deepspeed_shm_comm"]),
        ("llamafactory-zero2-offload", "h100-80g", {}, ["cpu_adam"]),
        (OFFLOAD, "h100-80g", {"offload_device": "nvme", "offload_folder": "/nvme"}, ["cpu_adam", "async_io"]),
    ],
)
def test_each_engine_names_what_it_loads(engine: str, gpu: str, parallel: dict[str, str], parts: list[str]) -> None:
    assert needed_parts(make_job(engine=engine, cluster={"gpu": gpu}, parallel=parallel)) == parts


def check(engine: str = OFFLOAD, **parts: object) -> list[CheckResult]:
    gang = Gang(nodes=1, engine=engine)
    gang.first.on("paths", reply={**PATHS, "parts": {**PATHS["parts"], **parts}})
    return [result for result in gang.check() if result.name == "deepspeed"]


def test_a_job_without_extensions_is_not_checked() -> None:
    assert check("llamafactory-ddp") == []


def test_extensions_that_are_built_or_can_be_built_pass() -> None:
    assert [result.status for result in check() + check(unbuilt=["cpu_adam"])] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("parts", "status", "code"),
    [
        ({"unbuilt": ["cpu_adam"], "compiler": False}, "failure", "deepspeed_needs_compiler"),
        ({"unbuilt": ["cpu_adam"], "locks": ["/x/cpu_adam/lock"]}, "warning", "deepspeed_locked"),
    ],
)
def test_what_would_stop_or_hang_the_ranks_is_reported(parts: dict[str, object], status: str, code: str) -> None:
    (result,) = check(**parts)
    assert result.problem
    assert (result.name, result.status, result.problem.code) == ("deepspeed", status, code)
    for language in LANGUAGES:
        assert t(language, "check.deepspeed")
        assert "10.0.0.1" in render_problem(language, result.problem)["message"]
        assert render_problem(language, result.problem)["fix"]


def test_a_node_says_what_is_built_and_which_locks_are_left(tmp_path: Path) -> None:
    for name, file in (("cpu_adam", "cpu_adam.so"), ("async_io", "lock")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    parts = find_parts(["cpu_adam", "async_io", "deepspeed_shm_comm"], str(tmp_path))
    assert parts["unbuilt"] == ["async_io", "deepspeed_shm_comm"]
    assert parts["locks"] == [str(tmp_path / "async_io" / "lock")]


def test_a_lock_beside_a_built_part_hangs_the_ranks_too(tmp_path: Path) -> None:
    (tmp_path / "cpu_adam").mkdir()
    for file in ("cpu_adam.so", "lock"):
        (tmp_path / "cpu_adam" / file).touch()
    assert find_parts(["cpu_adam"], str(tmp_path))["locks"] == [str(tmp_path / "cpu_adam" / "lock")]
