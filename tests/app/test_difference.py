"""The differences of the draft to an earlier run or the recommended plan: keys, files, memory and speed."""

from types import SimpleNamespace

import pytest

from app.services import Draft
from app.wizard.difference import RECOMMENDED, difference_of
from app.wizard.draft_state import read
from app.wizard.events import change
from backend.job.mapping import dump_job, with_values
from backend.runs.database import Database
from backend.runs.store import run_store
from backend.runs.store.store import Store
from tests.app.conftest import DRAFT


class DraftServices(SimpleNamespace):
    def job(self):
        return read(self.draft.job_mapping(), self.home).job

    def ran(self, run, name, **values):
        """Store a run of the draft's job with other values. A later call stores a newer run."""
        job = with_values(
            self.job(), {"name": name, **{path.replace("__", "."): each for path, each in values.items()}}
        )
        self.time += 1
        self.database.store.write(
            lambda c: run_store.create_run(
                c, run, name=name, engine=job.engine, job=dump_job(job), addresses=[run], time=self.time
            )
        )

    def difference(self, base=None):
        return difference_of(self, read(self.draft.job_mapping(), self.home), base, "en")


@pytest.fixture
def services(tmp_path, monkeypatch):
    monkeypatch.setattr("app.services.FIRST_DRAFT", DRAFT)
    store = Store(tmp_path / "megaboard.db")
    services = DraftServices(home=tmp_path, database=Database(store), draft=Draft(store, tmp_path), time=0.0)
    change(services, {"name": "mine", "cluster.nodes": 1, "cluster.gpus_per_node": 4})
    yield services
    store.close()


def test_the_last_run_of_this_job_comes_first_then_others_then_the_recommended_plan(services):
    for run, name in {"r1": "mine", "r2": "mine", "r3": "other"}.items():
        services.ran(run, name)
    difference = services.difference()
    assert (difference["bases"], difference["base"], difference["same_name"]) == (
        ["r2", "r1", "r3", RECOMMENDED],
        "r2",
        2,
    )
    assert services.difference("r1")["base"] == "r1"
    assert services.difference("no-such-run")["base"] == "r2"


def test_every_key_that_differs_has_both_values_defaults_and_parts_of_mappings_too(services):
    services.ran("r1", "mine", environment={"NCCL_DEBUG": "WARN"}, training__learning_rate=1e-5)
    change(services, {"environment": "NCCL_DEBUG=INFO", "parallel.tensor": 2})
    rows = {path: (label, before, after) for path, label, before, after in services.difference()["fields"]}
    assert rows == {
        "training.learning_rate": ("Learning rate", "1e-5", "2e-5"),
        "parallel.tensor": ("Tensor parallel (TP)", "4", "2"),
        "environment.NCCL_DEBUG": ("Environment variables", "WARN", "INFO"),
    }


def test_files_are_those_of_the_engine_and_hold_only_what_differs(services):
    services.ran("r1", "mine", training__learning_rate=1e-5)
    files = {file["name"]: file["lines"] for file in services.difference()["files"]}
    assert list(files) == ["job.yaml", "config.yaml"]
    assert "-learning_rate: 1.0e-05" in files["config.yaml"]
    assert "+learning_rate: 2.0e-05" in files["config.yaml"]


def test_the_recommended_plan_shows_what_the_own_choice_costs(services):
    difference = services.difference()
    assert difference["base"] == RECOMMENDED
    before, after = difference["figures"]["before"], difference["figures"]["after"]
    assert before["fits"]
    assert before["speed"] > after["speed"]
    assert {path.partition(".")[0] for path, *_ in difference["fields"]} <= {"training", "parallel", "engine"}
    assert before["batch"] == after["batch"]


def test_the_same_job_differs_in_nothing(services):
    services.ran("r1", "mine")
    difference = services.difference()
    assert (difference["fields"], difference["files"]) == ([], [])


def test_a_draft_or_a_run_that_cannot_be_read_says_so(services):
    services.ran("r1", "mine", engine="no-such-engine")
    assert "no-such-engine" in services.difference()["why"]
    change(services, {"cluster.nodes": "four"})
    assert services.difference()["bases"] == []


def test_times_with_unknown_lengths_are_upper_bounds_and_other_figures_have_both_ends(services):
    change(services, {"training.max_steps": 1000})
    services.ran("r1", "mine", training__sample_tokens=3000, training__packing=True)
    change(services, {"training.sample_tokens": None, "training.packing": False})
    figures = services.difference()["figures"]
    known, unknown = figures["before"], figures["after"]
    for name in ("need_gib", "speed", "iteration_s", "hours"):
        assert known[f"{name}_low"] < known[name] < known[f"{name}_high"], name
    assert [name for name, value in unknown.items() if value is None] == ["iteration_s_low", "hours_low"]
