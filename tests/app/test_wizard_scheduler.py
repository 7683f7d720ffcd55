"""The choice between SSH nodes and Slurm in the wizard, without a browser."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.services import Services
from app.wizard.draft_state import DraftState, read
from app.wizard.events import change
from app.wizard.fields import Form
from app.wizard.payload import payload_json
from app.wizard.relevance import hidden
from app.wizard.start import from_text, save_cluster
from backend.engines.slurm import SCRIPT
from backend.job.job import Job
from backend.job.mapping import dump_job, to_mapping
from backend.job.problems import ProblemsError, errors
from tests.app.conftest import READY

SLURM = {"cluster.scheduler.kind": "slurm", "cluster.scheduler.login.address": "login.cluster"}


def state_after(services: Services, edits: Mapping[str, Any]) -> DraftState:
    assert change(services, edits) == ()
    return read(services.draft.job_mapping(), services.home)


def missing_of(state: DraftState) -> list[tuple[str, str]]:
    return [(problem.code, problem.field) for problem in errors(state.missing)]


def job_of(state: DraftState) -> Job:
    assert state.job is not None, state.problems
    return state.job


def test_slurm_takes_the_place_of_the_hosts_and_back_without_a_loss(services: Services, form: Form) -> None:
    change(services, READY)
    by_slurm = state_after(services, {**SLURM, "cluster.scheduler.partition": "gpu"})
    assert (job_of(by_slurm).cluster.hosts, by_slurm.can_launch) == ((), True)
    by_ssh = state_after(services, {"cluster.scheduler.kind": None})
    assert (job_of(by_ssh).cluster.scheduler, by_ssh.can_launch) == (None, True)
    assert [host.address for host in job_of(by_ssh).cluster.hosts] == [f"10.0.0.{rank}" for rank in range(1, 5)]
    again = job_of(state_after(services, {"cluster.scheduler.kind": "slurm"})).cluster.scheduler
    assert again is not None
    assert (again.login.address, again.partition) == ("login.cluster", "gpu")
    assert form.shown(services.draft.job_mapping())["cluster.hosts.lines"] == READY["cluster.hosts.lines"]


def test_without_the_login_node_only_the_launch_waits(services: Services) -> None:
    state = state_after(services, {**READY, "cluster.scheduler.kind": "slurm"})
    assert state.is_sound
    assert missing_of(state) == [("needed_for_launch", "cluster.scheduler.login.address")]


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [("partition", "a b", "bad_format"), ("time_limit", "tomorrow", "bad_format"), ("signal_s", 1, "too_small")],
)
def test_a_wrong_value_is_reported_at_its_field_and_does_not_stop_a_plan(
    services: Services, field: str, value: object, code: str
) -> None:
    state = state_after(services, {**READY, **SLURM, f"cluster.scheduler.{field}": value})
    assert state.estimate is not None
    assert missing_of(state) == [(code, f"cluster.scheduler.{field}")]


def test_the_fields_of_the_other_choice_are_hidden(services: Services, form: Form) -> None:
    def shown_paths() -> set[str]:
        off = hidden(form, read(services.draft.job_mapping(), services.home))
        assert off is not None
        return {path for path in form.components if path not in off}

    change(services, READY)
    by_ssh = shown_paths()
    change(services, SLURM)
    by_slurm = shown_paths()
    assert "cluster.scheduler.kind" in by_ssh & by_slurm
    assert {"cluster.hosts.lines", "cluster.hosts.user", "cluster.hosts.proxy_jump"} <= by_ssh - by_slurm
    fields = ("login.address", "partition", "account", "qos", "time_limit", "constraint", "container", "signal_s")
    assert {f"cluster.scheduler.{name}" for name in fields} <= by_slurm - by_ssh
    assert {"cluster.nodes", "cluster.gpus_per_node", "cluster.environments.llamafactory.python"} <= by_slurm


def test_a_job_file_with_hosts_and_a_scheduler_is_not_corrected_silently(services: Services) -> None:
    state = state_after(services, {**READY, **SLURM})
    mapping = to_mapping(job_of(state))
    mapping["cluster"]["hosts"] = [{"address": "10.0.0.1"}]
    edits = from_text(services, json.dumps(mapping)).edits
    assert missing_of(state_after(services, edits)) == [("hosts_beside_scheduler", "cluster.hosts")]


def test_an_imported_job_file_of_slurm_shows_slurm(services: Services, form: Form) -> None:
    text = dump_job(job_of(state_after(services, {**READY, **SLURM})))
    assert "kind:" not in text, "the only kind is the default"
    change(services, {"cluster.scheduler.kind": None})
    change(services, from_text(services, text).edits)
    assert form.shown(services.draft.job_mapping())["cluster.scheduler.kind"] == "slurm"


def test_review_shows_the_batch_script_and_one_command_for_every_node(services: Services, form: Form) -> None:
    change(services, {**READY, **SLURM, "cluster.scheduler.qos": "high"})
    shown = json.loads(payload_json(form, services, "review"))["data"]["review"]
    files = {file["name"]: file["text"] for file in shown["files"]}
    assert "#SBATCH --qos=high" in files[SCRIPT]
    assert len(shown["commands"]) == 1
    assert "MEGABOARD_MASTER_ADDRESS" in shown["commands"][0]["text"]


def test_a_named_cluster_keeps_only_the_choice_that_is_used(services: Services) -> None:
    change(services, {**READY, **SLURM})
    change(services, {"cluster.scheduler.kind": None})
    save_cluster(services, "mine", replace=False)
    change(services, {"cluster": "mine"})
    assert job_of(read(services.draft.job_mapping(), services.home)).cluster.scheduler is None


def test_the_engine_is_offered_to_the_login_node(services: Services) -> None:
    job = job_of(state_after(services, {**READY, **SLURM, "cluster.environments.llamafactory.python": None}))
    assert services.launch_session.state().lacks_engine_for(job)
    in_image = job_of(state_after(services, {"cluster.scheduler.container": "train:1"}))
    assert not services.launch_session.state().lacks_engine_for(in_image)


def test_what_needs_the_nodes_themselves_is_refused(services: Services) -> None:
    job = job_of(state_after(services, {**READY, **SLURM}))
    for ask in (services.controller.tasks.memory, services.controller.tasks.measure_speed):
        with pytest.raises(ProblemsError) as refused:
            ask(job)
        assert refused.value.problems[0].code == "nodes_by_scheduler"
