"""Clusters that users save under a name: chosen, saved and deleted on the Hardware step."""

from pathlib import Path
from typing import Any

import pytest

from app.calibration import keep_in_cluster
from app.home import named_cluster
from app.services import Services
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.hardware import own_clusters
from app.wizard.sources import FetchResult, fetch
from backend.job.cluster import Calibration
from backend.job.job import Job


@pytest.fixture
def services(tmp_path: Path):
    opened = Services.open(tmp_path)
    opened.draft.edit_all({"cluster.nodes": 2, "cluster.hosts": [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}]})
    yield opened
    opened.close()


def ask(services: Services, kind: str, name: str, **more: Any) -> FetchResult:
    result = fetch(services, {"kind": kind, "name": name, **more})
    assert change(services, result.edits) == ()
    return result


def codes(problems: FetchResult) -> list[str]:
    return [problem.code for problem in problems.problems]


def test_a_cluster_whose_container_has_a_secret_is_not_saved(services: Services, tmp_path: Path) -> None:
    container = {"image": "train:1", "options": ["--env=HF_TOKEN=of-mine"]}
    environments = {"llamafactory": {"python": "/opt/bin/python", "container": container}}
    services.draft.edit("cluster.environments", environments)
    assert codes(ask(services, "cluster_save", "lab")) == ["container_secret"]
    assert not (tmp_path / "clusters").exists()


def job(services: Services) -> Job:
    result = read(services.draft.job_mapping(), services.home).job
    assert result is not None
    return result


def test_a_saved_cluster_is_the_draft_s_and_can_be_chosen_after_others(services: Services) -> None:
    assert ask(services, "cluster_save", "lab").problems == ()
    assert (services.home / "clusters" / "lab.yaml").stat().st_mode & 0o777 == 0o600
    assert own_clusters(services) == [{"name": "lab", "on": True}]
    services.draft.edit("cluster.nodes", 4)
    assert own_clusters(services) == [{"name": "lab", "on": False}], "an edit makes it another cluster"
    assert named_cluster(services.home, "lab")[1]["nodes"] == 2
    ask(services, "cluster", "lab")
    assert (job(services).cluster.nodes, [host.address for host in job(services).cluster.hosts]) == (
        2,
        ["10.0.0.1", "10.0.0.2"],
    )


def test_a_calibration_of_a_saved_cluster_is_loaded_with_it(services: Services) -> None:
    ask(services, "cluster_save", "lab")
    keep_in_cluster(services.home, "lab", Calibration(gpu="h100-80g", matmul_tflops=612.0))
    services.draft.edit("cluster.nodes", 4)
    ask(services, "cluster", "lab")
    assert job(services).cluster.calibration.matmul_tflops == 612.0


def test_a_taken_name_is_replaced_only_after_confirmation(services: Services) -> None:
    ask(services, "cluster_save", "lab")
    services.draft.edit("cluster.nodes", 4)
    refused = ask(services, "cluster_save", "lab")
    assert codes(refused) == ["cluster_exists"]
    assert named_cluster(services.home, "lab")[1]["nodes"] == 2
    assert services.draft.job_mapping()["cluster"] != "lab"
    ask(services, "cluster_save", "lab", replace=True)
    assert named_cluster(services.home, "lab")[1]["nodes"] == 4


def test_a_deleted_cluster_stays_in_the_job_that_had_it(services: Services) -> None:
    ask(services, "cluster_save", "lab")
    ask(services, "cluster_delete", "lab")
    assert own_clusters(services) == []
    assert job(services).cluster.nodes == 2
    assert codes(ask(services, "cluster", "lab")) == ["unknown_cluster"]


@pytest.mark.parametrize("name", ["", "../lab", "a/b", "lab;rm", ".lab", "x" * 65, "集群"])
def test_a_name_that_could_be_a_path_is_refused(services: Services, name: str) -> None:
    assert codes(ask(services, "cluster_save", name)) == ["bad_cluster_name"]
    assert codes(ask(services, "cluster_delete", name)) == ["bad_cluster_name"]
    assert not list(services.home.glob("**/*.yaml"))


def test_machines_that_cannot_be_read_are_not_saved(services: Services) -> None:
    services.draft.edit("cluster.nodes", "many")
    assert "wrong_type" in codes(ask(services, "cluster_save", "lab"))
    assert own_clusters(services) == []


def test_every_action_is_in_the_audit_log(services: Services) -> None:
    ask(services, "cluster_save", "lab")
    ask(services, "cluster_delete", "lab")
    log = (services.home / "audit.jsonl").read_text()
    assert '"save_cluster"' in log
    assert '"delete_cluster"' in log
