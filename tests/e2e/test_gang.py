"""Runs from Python on two demo nodes: real sshd, real supervisor, real torchrun, real LLaMA-Factory on CPU."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.cluster import demo_model
from backend.cluster.demo import DemoCluster
from backend.cluster.supervisor.processes import members
from backend.job.job import Job
from backend.job.mapping import parse_job, to_mapping, with_values
from backend.jobs import ledger
from backend.jobs.controller import Controller
from backend.jobs.records import Point
from backend.jobs.states import RunState
from backend.jobs.store import Store
from tests.nodes import NODE_PYTHON
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NODES = 2
STEPS = 24
RESUMED_STEPS = 250
WARMUP_STEPS = 8
FIRST_STEP_S = 240.0
"""Two interpreters import torch and LLaMA-Factory at once, on what may be two busy cores."""


@pytest.fixture(scope="module")
def job(cluster: DemoCluster) -> Job:
    subprocess.run([NODE_PYTHON, demo_model.__file__, cluster.folder], check=True, timeout=300)
    folder = cluster.folder
    model = folder / demo_model.MODEL_FOLDER
    made, problems = parse_job(
        {
            "name": "gang",
            "cluster": cluster.cluster_mapping(str(NODE_PYTHON)),
            "model": {"hf_config": json.loads((model / "config.json").read_text()), "path": str(model)},
            "training": {
                "dataset": demo_model.DATASET,
                "dataset_dir": str(folder / demo_model.DATA_FOLDER),
                "template": demo_model.TEMPLATE,
                "output_dir": str(folder / "out"),
                "precision": "fp32",
                "cutoff_len": 64,
                "micro_batch_size": 4,
                "gradient_accumulation_steps": 1,
                "learning_rate": 5.0e-3,
                "max_steps": STEPS,
                "warmup_ratio": WARMUP_STEPS / RESUMED_STEPS,
                "workers": {"preprocessing": 1, "data_loader": 0},
                "report_to": [],
            },
            "engine": "llamafactory-ddp",
        }
    )
    assert made is not None, problems
    return made


def test_a_killed_server_finds_its_run_again_and_every_point(
    controller: Controller, job: Job, home: Path, record_property: Callable[[str, object], None]
) -> None:
    job_file = home / "job.json"
    job_file.write_text(json.dumps(dict(to_mapping(job))))
    began = time.monotonic()
    server = subprocess.Popen([sys.executable, "-c", SERVER, home, job_file], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    run = server.stdout.readline().strip()
    record_property("launch_s", round(time.monotonic() - began, 1))
    wait_for(lambda: len(controller.points(run)) >= 3, FIRST_STEP_S)
    record_property("first_steps_s", round(time.monotonic() - began, 1))
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    server.stdout.close()
    controller.start()
    assert controller.wait(run, FIRST_STEP_S) is RunState.FINISHED, controller.snapshot(run).cause
    record_property("finished_s", round(time.monotonic() - began, 1))
    points = controller.points(run)
    assert [point.step for point in points] == list(range(1, STEPS + 1))
    losses = [point.loss for point in points if point.loss is not None]
    assert len(losses) == STEPS
    assert sum(losses[-4:]) / 4 < 0.8 * sum(losses[:4]) / 4, losses
    for rank in range(NODES):
        assert _points_on_node(home, run, rank) == [p.step for p in controller.points(run, rank=None) if p.rank == rank]
    assert _marked(home, run) == []
    shown = controller.snapshot(run)
    assert [node.state for node in shown.nodes] == ["finished"] * NODES
    assert shown.tokens_per_s


def test_stop_with_save_ends_both_ranks_after_the_same_step_and_a_resume_goes_on_from_there(
    controller: Controller, job: Job, home: Path, cluster: DemoCluster, record_property: Callable[[str, object], None]
) -> None:
    controller.start()
    run = controller.launch(with_values(job, {"training.max_steps": RESUMED_STEPS}))
    wait_for(lambda: len(controller.points(run)) > WARMUP_STEPS, FIRST_STEP_S)
    began = time.monotonic()
    controller.stop(run, save=True)
    assert controller.wait(run, 120) is RunState.STOPPED
    record_property("save_s", round(time.monotonic() - began, 1))
    last = {max(p.step for p in controller.points(run, rank=rank)) for rank in range(NODES)}
    (saved,) = last
    assert (cluster.folder / "out" / run / f"checkpoint-{saved}").is_dir()
    assert _marked(home, run) == []
    _damage_a_newer_checkpoint(cluster.folder / "out" / run, saved)
    began = time.monotonic()
    controller.resume(run)
    record_property("resume_s", round(time.monotonic() - began, 1))
    assert controller.wait(run, FIRST_STEP_S) is RunState.FINISHED, controller.snapshot(run).cause
    shown = controller.snapshot(run)
    assert (shown.attempt, shown.checkpoint_step, shown.step) == (2, saved, RESUMED_STEPS)
    points = controller.points(run)
    assert [point.step for point in points] == list(range(1, RESUMED_STEPS + 1))
    assert {point.attempt for point in points[saved:]} == {2}
    before, after = (point.learning_rate or 0.0 for point in points[saved - 1 : saved + 1])
    assert after > 0.95 * before, "no second warm-up"
    assert _mean(points[saved : saved + 5]) < 0.5 * (_mean(points[:1]) + _mean(points[saved - 3 : saved]))
    assert _marked(home, run) == []


def _damage_a_newer_checkpoint(results: Path, saved: int) -> None:
    """What a rank killed while it saves leaves: LLaMA-Factory by itself would take it."""
    whole, newer = results / f"checkpoint-{saved}", results / f"checkpoint-{saved + 1}"
    shutil.copytree(whole, newer)
    (newer / "trainer_state.json").unlink()


def _mean(points: list[Point]) -> float:
    losses = [point.loss for point in points if point.loss is not None]
    return sum(losses) / len(losses)


def _records(home: Path, run: str) -> Any:
    store = Store(home / "megaboard.db")
    try:
        with store.read() as connection:
            return ledger.nodes(connection, run, ledger.newest_attempt(connection, run))
    finally:
        store.close()


def _marked(home: Path, run: str) -> list[object]:
    return [process for record in _records(home, run) for process in members(record.mark)]


def _points_on_node(home: Path, run: str, rank: int) -> list[int]:
    file = Path(_records(home, run)[rank].folder) / f"steps.rank{rank}.jsonl"
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


SERVER = """
import json, sys, time
from pathlib import Path
from backend.cluster.hostkeys import KnownHosts
from backend.job.mapping import parse_job
from backend.jobs.controller import Controller
from backend.jobs.store import Store

home = Path(sys.argv[1])
job, _ = parse_job(json.loads(Path(sys.argv[2]).read_text()))
controller = Controller(home, Store(home / "megaboard.db"), KnownHosts(home / "known_hosts"))
controller.start()
print(controller.launch(job), flush=True)
time.sleep(600)
"""
