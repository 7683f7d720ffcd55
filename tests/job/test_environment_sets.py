"""The choice of a set of packages, and the lock files of the shipped sets."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.demo.node_environment import LOCKS
from backend.cluster.inventory.software import needed_modules
from backend.job.cluster import Cluster, Install
from backend.job.data_folder import data_folder
from backend.job.environment_sets import choose_set, environment_sets
from backend.job.job import Job
from backend.job.problems import ProblemsError
from tests.cluster.jobs import make_job

SETS = environment_sets()
GPU_SETS = sorted(name for name, one in SETS.items() if one.cuda)
UV = Path(sys.executable).with_name("uv")


def job_on(gpu: str, engine: Any = "llamafactory-ddp", environment: str | None = None) -> Job:
    cluster = Cluster(gpu=gpu, nodes=2, gpus_per_node=1, install=Install(environment=environment))
    return Job(cluster=cluster, engine=engine)


@pytest.mark.parametrize(
    ("job", "drivers", "name"),
    [
        (job_on("cpu"), [None, None], "llamafactory-cpu"),
        (job_on("h100-80g"), ["12.8", "13.0"], "llamafactory-cu128"),
        (job_on("h100-80g"), ["12.2", "12.2"], "llamafactory-cu128"),
        (job_on("h100-80g", environment="llamafactory-cpu"), ["12.8"], "llamafactory-cpu"),
    ],
)
def test_the_set_fits_the_engine_and_all_drivers(job: Job, drivers: list[str | None], name: str) -> None:
    assert choose_set(job, drivers, SETS).name == name


@pytest.mark.parametrize(
    ("job", "drivers", "code"),
    [
        (job_on("h100-80g"), ["12.8", "11.8"], "no_environment_set"),
        (job_on("h100-80g", "llamafactory-megatron"), ["12.8"], "no_megatron_set"),
        (job_on("cpu", environment="swift-cu128"), [None], "unknown_environment_set"),
    ],
)
def test_a_set_that_does_not_fit_is_refused(job: Job, drivers: list[str | None], code: str) -> None:
    with pytest.raises(ProblemsError) as raised:
        choose_set(job, drivers, SETS)
    assert [problem.code for problem in raised.value.problems] == [code]


def test_the_cpu_set_is_that_of_the_demo() -> None:
    assert tuple(step.lock for step in SETS["llamafactory-cpu"].steps) == LOCKS


@pytest.mark.parametrize("name", sorted(SETS))
def test_the_steps_of_a_set_have_every_pin_once_and_with_hashes(name: str) -> None:
    steps = SETS[name].steps
    pinned = [pin for step in steps for pin in re.findall(r"^[\w.-]+==\S+", step.text(), re.MULTILINE)]
    locked = {
        pin
        for step in steps
        for pin in re.findall(
            r"^[\w.-]+==\S+", (data_folder("requirements") / step.lock).read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert sorted(pinned) == sorted(locked)
    for step in steps:
        pins = re.split(r"\n(?=\S)", step.text().strip())
        assert all("--hash=sha256:" in pin for pin in pins) or not step.hashes


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("name", GPU_SETS)
def test_a_gpu_set_is_what_the_index_resolves_for_its_platform(name: str, tmp_path: Path) -> None:
    """PyPI's index itself answers. The platform of the nodes is given, so no GPU is needed."""
    lock = data_folder("requirements") / "environments" / f"{name}.txt"
    pins = set(re.findall(r"^[\w.-]+==\S+", lock.read_text(encoding="utf-8"), re.MULTILINE))
    (tmp_path / "pins.txt").write_text("\n".join(sorted(pins)))
    options = ["--quiet", "--python-platform", "x86_64-unknown-linux-gnu", "--python-version", SETS[name].pythons[0]]
    command = [str(UV), "pip", "compile", *options, "--no-annotate", "--no-header", "--constraint",
               str(tmp_path / "pins.txt"), str(lock.with_suffix(".in"))]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if "error sending request" in done.stderr:
        pytest.skip("PyPI does not answer")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == pins


VISION = {"model": {"preset": "qwen3-vl-8b", "path": "/m"}}
GRPO = {"training": {"stage": "grpo", "grpo": {"rewards": "accuracy,cosine"}}}


@pytest.mark.parametrize(
    ("name", "engine", "parts"),
    [
        ("llamafactory-cu128", "llamafactory-zero3", {}),
        ("swift-cu128", "swift-zero3", {}),
        ("swift-cu128", "swift-zero3", VISION),
        ("swift-cu128", "swift-zero3", {"training": {"stage": "dpo"}}),
        ("swift-cu128", "swift-zero3", GRPO),
    ],
)
def test_a_set_of_gpu_nodes_has_every_package_that_the_preflight_asks_for(
    name: str, engine: str, parts: dict[str, Any]
) -> None:
    """vLLM is not in a set: its own versions of torch exclude those of the set."""
    locked = {
        pin.partition("==")[0] for step in SETS[name].steps for pin in re.findall(r"^[\w.-]+==", step.text(), re.M)
    }
    job = make_job(engine=engine, cluster={"environments": {"swift": {"python": "/opt/swift/bin/python"}}}, **parts)
    assert set(needed_modules(job).values()) - locked == set()
