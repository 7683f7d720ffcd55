"""The monitor shows measured beside predicted figures, and one click stores the correction in the draft's cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.home import named_cluster
from app.monitor.compare import COMPARE_S, Compare
from app.services import Services
from app.wizard.continuing import continue_run
from backend.job.mapping import parse_job
from backend.job.problems import ProblemsError
from tests.clock import Clock
from tools.stored_runs import StoredRun

RUN = "20261121-101500-job-0a1b"


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    services = Services.open(tmp_path, Clock())
    yield services
    services.close()


@pytest.fixture
def run(services: Services) -> StoredRun:
    run = StoredRun(services.database.store, RUN, now=1000.0, nodes=2, gpus_per_node=4)
    run.start()
    return run


def work(run: StoredRun, first: int = 1, last: int = 40) -> None:
    run.steps(first, last, step_s=2.0, tokens=8 * 8 * 2048, reserved_gib=60.0)


def test_before_there_are_enough_steps_nothing_is_offered(services: Services, run: StoredRun):
    work(run, last=5)
    result = Compare(services, "en").comparison(RUN)
    assert (result["useful"], result["why"]) == (False, [])
    assert result["predicted_tokens_per_s"] > 0


def test_measured_stands_beside_predicted_and_is_looked_at_again_after_a_while(services: Services, run: StoredRun):
    work(run, last=5)
    compare = Compare(services, "en")
    compare.comparison(RUN)
    work(run, 6, 40)
    assert compare.comparison(RUN)["useful"] is False
    services.clock.now += COMPARE_S  # type: ignore[attr-defined]
    result = compare.comparison(RUN)
    assert result["useful"]
    assert result["step_s"] == pytest.approx(2.0, rel=0.1)
    assert result["predicted_step_s"] > 0
    assert any("the images in the job file" in reason for reason in result["why"])


def test_using_a_run_calibrates_the_drafts_own_cluster(services: Services, run: StoredRun):
    work(run)
    compare = Compare(services, "en")
    assert compare.comparison(RUN)["used"] is False
    compare.calibrate(RUN)
    assert compare.comparison(RUN)["used"] is True
    job, _ = parse_job(services.draft.job_mapping())
    assert job is not None
    assert (job.cluster.calibration.run, job.cluster.calibration.gpu) == (RUN, "h100-80g")
    assert job.cluster.calibration.run_date == "2027-01-15"
    assert "calibrate" in (services.home / "audit.jsonl").read_text()


def test_a_named_clusters_file_is_calibrated_and_the_draft_keeps_its_name(services: Services, run: StoredRun):
    work(run)
    (services.home / "clusters").mkdir()
    (services.home / "clusters" / "lab.yaml").write_text("gpu: h100-80g\nnodes: 4\ngpus_per_node: 8\n")
    services.draft.replace({**services.draft.job_mapping(), "cluster": "lab"})
    Compare(services, "en").calibrate(RUN)
    assert services.draft.job_mapping()["cluster"] == "lab"
    assert named_cluster(services.home, "lab")[1]["calibration"]["run"] == RUN


def test_a_draft_of_another_gpu_is_not_calibrated(services: Services, run: StoredRun):
    work(run)
    services.draft.edit("cluster.gpu", "a100-80g")
    compare = Compare(services, "en")
    assert compare.comparison(RUN)["useful"]
    with pytest.raises(ProblemsError, match="calibration_other_gpu"):
        compare.calibrate(RUN)
    assert "calibration" not in services.draft.job_mapping()["cluster"]  # type: ignore[operator]


def test_planning_again_opens_the_runs_job_with_what_was_measured(services: Services, run: StoredRun):
    work(run)
    edits = continue_run(services, RUN, 0, is_measured=True).edits
    calibration = edits["cluster"]["calibration"]
    assert (calibration["run"], calibration["gpu"]) == (RUN, "h100-80g")
    assert calibration["time_ratio"] > 0
    assert edits["model"]["preset"] == "qwen3-vl-8b"


def test_a_run_with_too_few_steps_cannot_be_planned_again(services: Services, run: StoredRun):
    work(run, last=5)
    with pytest.raises(ProblemsError, match="calibrate_few_steps"):
        continue_run(services, RUN, 0, is_measured=True)
