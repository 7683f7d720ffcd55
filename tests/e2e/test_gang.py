"""A run is saved, stopped and resumed on two demo nodes: real sshd, supervisor, torchrun and LLaMA-Factory, on CPU."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from app.demo import tiny_model
from app.demo.local_nodes import LocalNodes
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.runs.api import calibration_of_run
from backend.runs.controller import Controller
from backend.runs.database import Database
from backend.runs.records import Point
from backend.runs.states import EventKind, RunState
from tests.runs.gangs import marked
from tests.waiting import wait_for
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e]

NODES = 2
STEPS = 120
WARMUP_STEPS = 8
FIRST_STEP_S = 600.0
"""Two interpreters import torch and LLaMA-Factory at once, on what may be two busy cores."""
CPU_SPEED = {"cluster.calibration.matmul_tflops": 2e-4, "cluster.calibration.matmul_precision": "fp32"}
"""A hundredth of a CPU core's speed, so that every step is faster than its interval, also on a busy machine. Without a
speed there would be no interval."""


@pytest.fixture(scope="module")
def job(cluster: LocalNodes, tiny: Path) -> Job:
    shutil.copytree(tiny, cluster.folder, dirs_exist_ok=True)
    folder = cluster.folder
    model = folder / tiny_model.MODEL_FOLDER
    parsed, problems = parse_job(
        {
            "name": "gang",
            "cluster": cluster.cluster_mapping(str(NODE_PYTHON)),
            "model": {"hf_config": json.loads((model / "config.json").read_text()), "path": str(model)},
            "training": {
                "dataset": tiny_model.DATASET,
                "dataset_dir": str(folder / tiny_model.DATA_FOLDER),
                "template": tiny_model.TEMPLATE,
                "output_dir": str(folder / "out"),
                "precision": "fp32",
                "cutoff_len": 64,
                "micro_batch_size": 4,
                "gradient_accumulation_steps": 1,
                "learning_rate": 5.0e-3,
                "max_steps": STEPS,
                "warmup_ratio": WARMUP_STEPS / STEPS,
                "workers": {"preprocessing": 1, "data_loader": 0},
                "report_to": [],
            },
            "engine": "llamafactory-ddp",
        }
    )
    assert parsed is not None, problems
    return parsed


@pytest.mark.engines
def test_a_failed_run_names_its_cause_with_the_line_and_the_rank(
    controller: Controller, job: Job, cluster: LocalNodes
) -> None:
    data = cluster.folder / "other-columns"
    shutil.copytree(cluster.folder / tiny_model.DATA_FOLDER, data)
    info = json.loads((data / "dataset_info.json").read_text())
    info[tiny_model.DATASET]["columns"] = {"prompt": "question", "response": "answer"}
    (data / "dataset_info.json").write_text(json.dumps(info))
    controller.start()
    run = controller.launch(with_values(job, {"training.dataset_dir": str(data)}))
    assert controller.wait(run, FIRST_STEP_S) is RunState.FAILED
    cause = controller.snapshot(run).cause
    assert cause is not None
    assert cause.code == "dataset_keys", cause.values
    assert str(cause.values["line"]).endswith("KeyError: 'question'")
    assert (cause.values["of_rank"], cause.values["is_certain"]) in {(0, True), (1, True)}


def test_stop_with_save_ends_both_ranks_after_the_same_step_and_a_resume_goes_on_from_there(
    controller: Controller, job: Job, home: Path, cluster: LocalNodes, record_property: Callable[[str, object], None]
) -> None:
    controller.start()
    run = controller.launch(with_values(job, CPU_SPEED))
    wait_for(lambda: len(controller.points(run)) > WARMUP_STEPS, FIRST_STEP_S)
    began = time.monotonic()
    controller.stop(run, save=True)
    assert controller.wait(run, 120) is RunState.STOPPED
    record_property("save_s", round(time.monotonic() - began, 1))
    last = {max(p.step for p in controller.points(run, rank=rank)) for rank in range(NODES)}
    (saved,) = last
    assert (cluster.folder / "out" / run / f"checkpoint-{saved}").is_dir()
    assert {"Python", "torch", "transformers", "llamafactory"} <= set(_software(home, run))
    assert marked(home, run) == 0
    _damage_a_newer_checkpoint(cluster.folder / "out" / run, saved)
    began = time.monotonic()
    controller.resume(run)
    record_property("resume_s", round(time.monotonic() - began, 1))
    assert controller.wait(run, FIRST_STEP_S) is RunState.FINISHED, controller.snapshot(run).cause
    shown = controller.snapshot(run)
    assert (shown.attempt, shown.checkpoint_step, shown.step) == (2, saved, STEPS)
    points = controller.points(run)
    assert [point.step for point in points] == list(range(1, STEPS + 1))
    assert {point.attempt for point in points[saved:]} == {2}
    before, after = (point.learning_rate or 0.0 for point in points[saved - 1 : saved + 1])
    assert after > 0.95 * before, "no second warm-up"
    assert _mean(points[saved : saved + 5]) < 0.5 * (_mean(points[:1]) + _mean(points[saved - 3 : saved]))
    assert marked(home, run) == 0
    _check_that_it_can_be_planned_again(controller, run)


def _check_that_it_can_be_planned_again(controller: Controller, run: str) -> None:
    """The first 20 steps of the second attempt were outside of the interval of the estimate. Planned again with what
    was measured, the interval holds the run's step."""
    events = controller.snapshot(run).events
    (event,) = (event for event in events if event.kind is EventKind.OUTSIDE_INTERVAL and event.attempt == 2)
    assert (event.detail["figure"], event.detail["side"]) == ("time", "low")
    assert event.detail["measured"] < event.detail["low"]
    assert event.detail["problem"]["code"] == "steps_faster"
    launched, measured = controller.measured(run)
    assert measured.is_useful
    assert measured.step_s is not None
    calibration = calibration_of_run(launched, measured, "2026-11-26")
    _, again = controller.measured(run, calibration)
    assert again.predicted_step_s_low is not None
    assert again.predicted_step_s_high is not None
    assert again.predicted_step_s_low <= measured.step_s <= again.predicted_step_s_high


def _software(home: Path, run: str) -> Mapping[str, str]:
    """Return the versions that were recorded of node 1."""
    database = Database.open(home / "megaboard.db")
    with database.read() as reader:
        software = reader.versions(run, 1, 1)
    database.close()
    return software


def _damage_a_newer_checkpoint(results: Path, saved: int) -> None:
    """Write the files that a rank leaves when it is killed during a save. LLaMA-Factory would resume from them."""
    whole, newer = results / f"checkpoint-{saved}", results / f"checkpoint-{saved + 1}"
    shutil.copytree(whole, newer)
    (newer / "trainer_state.json").unlink()


def _mean(points: list[Point]) -> float:
    losses = [point.loss for point in points if point.loss is not None]
    return sum(losses) / len(losses)
