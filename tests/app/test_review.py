"""The Review step shows exactly the files and commands of the launch, and offers them for download."""

import io
import json
import zipfile
from typing import Any

import pytest

from app.services import Services
from app.wizard import review
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.fields import Form
from app.wizard.payload import payload_json
from backend.job.mapping import parse_job
from backend.job.problems import ProblemsError
from tests.app.conftest import READY


def shown(services: Services) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(payload_json(Form("en"), services, "review"))["data"]["review"]
    return result


def test_a_ready_job_shows_files_and_one_command_a_node(services: Services) -> None:
    change(services, READY)
    got = shown(services)
    assert got["complete"]
    assert [file["name"] for file in got["files"]] == ["config.yaml"]
    assert len(got["commands"]) == 4
    assert "--node_rank 3" in got["commands"][3]["text"]


def test_an_unready_job_still_shows_its_file(services: Services) -> None:
    got = shown(services)
    assert not got["complete"]
    assert "preset: qwen3-vl-8b" in got["job"]


def test_the_job_is_shown_as_json_too(services: Services) -> None:
    change(services, {**READY, "extra": "max_samples: 10\nsince: 2026-01-02"})
    got = shown(services)
    job, _ = parse_job(json.loads(got["json"]))
    assert job is not None
    assert (job.extra["since"], job.parallel.tensor) == ("2026-01-02", 4)


def test_the_archive_holds_the_job_and_a_script(services: Services) -> None:
    change(services, READY)
    job = read(services.draft.job_mapping(), services.home).job
    assert job is not None
    with zipfile.ZipFile(io.BytesIO(review.archive(job))) as packed:
        assert {"my-run/job.yaml", "my-run/config.yaml", "my-run/launch.sh"} <= set(packed.namelist())
        assert packed.getinfo("my-run/launch.sh").external_attr >> 16 & 0o111


def test_an_unready_job_has_no_archive(services: Services) -> None:
    job = read(services.draft.job_mapping(), services.home).job
    assert job is not None
    with pytest.raises(ProblemsError):
        review.archive(job)
