"""The run that the draft continues, without a browser: it is stored, checked at every edit by the launch's rule, and
shown."""

import io
import zipfile
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from app.services import Draft, Services
from app.wizard import continuing
from app.wizard.difference import difference_of
from app.wizard.draft_state import DraftState, read
from app.wizard.events import change
from app.wizard.plans import KEYS, plans_of
from app.wizard.review import archive
from app.wizard.strategies import strategies_of
from backend.engines.resharding import check_source
from backend.job.mapping import dump_job, with_values
from backend.runs.records import StartCheckpoint
from backend.runs.store import run_store
from tests.app.conftest import READY

SIZES = ("parallel.tensor", "parallel.pipeline", "parallel.virtual_pipeline")
MARK = StartCheckpoint(run="before", step=40, folder="/runs/before/checkpoint-40", bound=SIZES)


@pytest.fixture
def services(services: Services) -> Services:
    """Return services with a draft, and with a run of the same job with TP 2."""
    source: Any = SimpleNamespace(find_source=lambda run, step: MARK)
    services = replace(services, controller=source)
    change(services, {**READY, "parallel.tensor": 2})
    job = reading(services).job
    assert job is not None
    text = dump_job(with_values(job, {"name": "job", "training.learning_rate": 3e-6}))
    create = {"name": "job", "engine": job.engine, "job": text, "addresses": [], "time": 1.0}
    services.database.store.write(lambda connection: run_store.create_run(connection, "before", **create))
    return services


def reading(services: Services) -> DraftState:
    return read(services.draft.job_mapping(), services.home)


def test_the_runs_job_replaces_the_draft_and_the_mark_survives_a_restart(services: Services) -> None:
    change(services, {"name": "mine", "parallel.tensor": 8, "extra": "optim: adamw_torch"})
    change(services, continuing.continue_run(services, "before", 40).edits)
    job = reading(services).job
    assert job is not None
    assert (job.name, job.parallel.tensor, job.training.learning_rate, dict(job.extra)) == ("job", 2, 3e-6, {})
    assert continuing.launch_source(services) == ("before", 40)
    assert Draft(services.database.store, services.home).source == MARK
    continuing.continue_run(services, "before", 0)
    assert continuing.launch_source(services) is None, "from the beginning"
    assert Draft(services.database.store, services.home).source is None


def test_what_the_checkpoint_cannot_be_loaded_into_is_reported_with_the_edit_that_mends_it(services: Services) -> None:
    change(services, {"parallel.tensor": 4})
    assert continuing.load_problems(services, reading(services).job) == []
    services.draft.set_source(MARK)
    (problem,) = continuing.load_problems(services, reading(services).job)
    assert (problem.code, problem.field, problem.severity) == ("checkpoint_bound_to_plan", "parallel.tensor", "error")
    assert change(services, problem.edit) == ()
    assert continuing.load_problems(services, reading(services).job) == []
    services.draft.set_source(StartCheckpoint(run="gone", step=1, folder="/x"))
    assert [item.code for item in continuing.load_problems(services, reading(services).job)] == ["unknown_run"]


def test_plans_are_marked_by_the_rule_that_the_launch_asks(services: Services) -> None:
    services.draft.set_source(MARK)
    result = reading(services)
    assert result.job is not None
    shown = plans_of(result, "en", continuing.load_check(services, result.job))
    with services.database.read() as reader:
        before = reader.job("before")
    marked = set()
    for row in (dict(zip(KEYS, values, strict=True)) for values in shown["rows"]):
        plan = {"engine": row["engine"], **{path: row[path.removeprefix("parallel.")] for path in SIZES}}
        plan["parallel.distributed_optimizer"] = row["distributed_optimizer"]
        assert ("x" in row["marks"]) == bool(check_source(before, with_values(result.job, plan), MARK.bound))
        marked.add("x" in row["marks"])
    assert marked == {True, False}
    assert "TP2" in shown["loads"]
    assert plans_of(result, "en")["loads"] is None


def test_strategies_are_marked_by_the_same_rule(services: Services) -> None:
    result = reading(services)
    can_load = partial(continuing.can_load, services)
    assert not any(row["is_unfit"] for row in strategies_of(result, "en", can_load)["rows"])
    services.draft.set_source(MARK)
    unfit = {row["name"] for row in strategies_of(result, "en", can_load)["rows"] if row["is_unfit"]}
    assert {"DDP", "LoRA with DDP"} <= unfit


def test_the_difference_is_that_to_the_run_it_goes_on_from(services: Services) -> None:
    change(services, {"name": "another", "parallel.tensor": 4})
    services.draft.set_source(MARK)
    difference = difference_of(services, reading(services), None, "en")
    assert difference["base"] == "before"
    assert "parallel.tensor" in {row[0] for row in difference["fields"]}


def test_what_is_downloaded_begins_with_the_checkpoint(services: Services) -> None:
    job = reading(services).job
    assert job is not None
    with zipfile.ZipFile(io.BytesIO(archive(job, MARK.folder))) as packed:
        assert f"resume_from_checkpoint: {MARK.folder}" in packed.read(f"{job.name}/config.yaml").decode()
