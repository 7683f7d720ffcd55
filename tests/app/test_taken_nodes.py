"""If a run of this server uses a node, the problem links to the run's page."""

import time
from dataclasses import replace
from typing import Any, cast

import gradio as gr
import pytest

from app.services import Services
from app.wizard import hardware, launch
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.fields import Form
from app.wizard.launch_session import LaunchSession
from backend.cluster.preflight.results import Checks
from backend.job.problems import Problem
from backend.runs.controller import Controller
from backend.runs.launch.preflight import PreflightReport
from tests.app.conftest import READY
from tests.app.test_launch_session import Nodes, rest
from tools.stored_runs import StoredRun

OURS = "20260101-000000-mine-aaaa"


def shown(services: Services, report: PreflightReport) -> Any:
    """Return what the Launch step shows after a check with this report."""
    nodes = Nodes(report)
    nodes.let.set()
    services = replace(services, launch_session=LaunchSession(cast(Controller, nodes), services.clock))
    change(services, READY)
    form = Form("en")
    with gr.Blocks(analytics_enabled=False):
        hardware.build(form)
        launch.build(form)
    launch.act(services, {"act": "check"})
    rest(services.launch_session)
    return launch.data(read(services.draft.job_mapping(), services.home), form, services)["launch"]


@pytest.mark.parametrize(("run", "known"), [(OURS, OURS), ("20260101-000000-another-servers-bbbb", None)])
def test_the_run_that_holds_a_node_is_a_link_where_it_has_a_page_here(services: Services, run, known) -> None:
    StoredRun(services.database.store, OURS, now=time.time())
    locked = Checks(0, "10.0.0.1").wrong("lock", "node_locked", "cluster.hosts[0].address", run=run)
    taken = Problem(code="node_taken", field="cluster.hosts", node="10.0.0.1", values={"run": run, "node": "10.0.0.1"})
    result = shown(services, PreflightReport(checks=(locked,), problems=(taken,)))
    (finding,) = result["checks"]["findings"]
    assert run in finding["message"]
    assert finding["run"] == known
    assert [(problem["code"], problem["run"]) for problem in result["problems"]] in ([], [("node_taken", known)])
    assert finding["cordoned"] is None, "only a node that is kept out can be allowed again"


def test_a_node_that_is_kept_out_can_be_allowed_again_from_its_finding(services: Services) -> None:
    kept_out = Checks(1, "10.0.0.2").wrong(
        "cordon", "node_cordoned", "cluster.hosts[1].address", run="r", reason_code="node_restarted"
    )
    result = shown(services, PreflightReport(checks=(kept_out,)))
    assert [finding["cordoned"] for finding in result["checks"]["findings"]] == ["10.0.0.2"]
