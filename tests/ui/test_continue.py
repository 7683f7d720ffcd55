"""A run is continued with changes in a real browser: the wizard gets its job, and shows at once what the checkpoint
does not fit."""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from app.demo.local_nodes import LocalNodes
from app.text import t
from backend.job.mapping import dump_mapping
from backend.runs.records import NodeRecord
from backend.runs.states import EventKind
from backend.runs.store import attempts, metrics, run_store
from backend.runs.store.store import Store
from tests.nodes import ssh_nodes
from tests.ui.browser import box, expect, go, needs_chromium, problems
from tools.browser import Server, logged_in, served
from tools.stored_runs import problem

pytestmark = [pytest.mark.ui, needs_chromium]

RUN = "20260101-000000-before-aaaa"
PLAIN = ("trainer_state.json", "scheduler.pt", "mca_config.json", "latest_checkpointed_iteration.txt",
         *(f"rng_state_{rank}.pth" for rank in range(8)))  # fmt: skip
DIVIDED = ("mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt", "dist_optimizer/.metadata")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[LocalNodes]:
    with ssh_nodes(tmp_path_factory.mktemp("cluster"), nodes=1) as demo:
        yield demo


@pytest.fixture(scope="module")
def server(tmp_path_factory, cluster: LocalNodes) -> Iterator[Server]:
    """Yield a server with a failed Megatron run with TP 2, and its checkpoint of step 40 on a real node."""
    home = tmp_path_factory.mktemp("home")
    (home / "known_hosts").write_text((cluster.folder / "known_hosts").read_text())
    store = Store(home / "megaboard.db")
    store.write(lambda connection: _failed_run(connection, cluster))
    store.close()
    results = cluster.folder / "out" / RUN / "checkpoint-40"
    for file in (*PLAIN, *(f"iter_0000001/{item}" for item in DIVIDED)):
        (results / file).parent.mkdir(parents=True, exist_ok=True)
        (results / file).write_bytes(json.dumps({"global_step": 40}).encode() if file.endswith("json") else b".")
    with served(home) as server:
        yield server


def _failed_run(connection: Any, cluster: LocalNodes) -> None:
    machines = {"gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8}
    job = {
        "version": 1,
        "name": "before",
        "cluster": {**cluster.cluster_mapping(sys.executable), **machines},
        "model": {"preset": "qwen3-8b", "path": "/models/qwen3-8b"},
        "training": {"dataset": "mine", "dataset_dir": "/data", "template": "qwen3", "learning_rate": 3e-6,
                     "output_dir": str(cluster.folder / "out")},
        "engine": "llamafactory-megatron",
        "parallel": {"tensor": 2},
    }  # fmt: skip
    now = time.time()
    create = {"name": "before", "engine": "llamafactory-megatron", "job": dump_mapping(job), "time": now}
    run_store.create_run(connection, RUN, addresses=[], **create)
    record = NodeRecord(rank=0, address="a", folder=f"/r/{RUN}", python="/p", mark="m.0", stop={"left": []})
    attempts.create(connection, RUN, 1, master=("a", 1), rendered={}, nodes=[record], time=now)
    for kind in (EventKind.PREFLIGHT, EventKind.STARTING, EventKind.STARTED, EventKind.FAILING):
        run_store.append(connection, RUN, kind, time=now)
    rows = [{"step": step, "time": now, "step_s": 30.0, "tokens": 32_768} for step in range(1, 31)]
    metrics.add_points(connection, RUN, 1, 0, rows)
    detail = {"figure": "time", "side": "high", "step": 20, "measured": 30.0, "low": 0.8, "high": 1.2}
    detail["problem"] = {"code": "steps_slow_software"}
    run_store.append(connection, RUN, EventKind.OUTSIDE_INTERVAL, time=now, rank=0, detail=detail)
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 17.37 GiB."
    cause = problem(
        "gpu_out_of_memory", "a", rank=0, of_rank=5, file="rank5.log", line=line, lines=line, wanted="17 GiB"
    )
    run_store.append(connection, RUN, EventKind.FAILED, time=now, detail={"problem": cause})


@pytest.fixture(scope="module")
def page(server: Server) -> Iterator[Any]:
    with logged_in(server) as page:
        yield page


def _open_marked(page: Any, server: Server) -> Any:
    """Open the wizard with the run's job and return its banner."""
    page.goto(f"{server.url}/en/#runs/{RUN}")
    page.get_by_role("button", name="Continue with changes").click()
    dialog = page.locator("dialog.mbm-continue")
    expect(dialog.locator("input:checked")).to_have_value("40")
    dialog.locator(".mb-primary").click()
    page.wait_for_function("() => document.documentElement.dataset.step === 'plan'")
    return page.locator(".mb-continuing")


def test_a_run_opens_in_the_wizard_with_a_mark_that_stays_until_it_is_taken_off(page, server) -> None:
    banner = _open_marked(page, server)
    expect(banner).to_contain_text(RUN)
    expect(banner).to_contain_text("step 40")
    expect(box(page, "parallel.tensor")).to_have_value("2")
    go(page, server, "training", "zh")
    expect(banner).to_contain_text("第 40 步")
    expect(box(page, "training.learning_rate")).to_have_value("3e-6")
    banner.locator('[data-do="begin_anew"]').click()
    expect(banner).to_have_count(0)
    page.click('.mb-steps a[data-step="hardware"]')
    expect(box(page, "cluster.gpus_per_node")).to_have_value("8")


def test_a_plan_that_the_checkpoint_does_not_fit_is_reported_while_it_is_chosen_and_not_launched(page, server) -> None:
    banner = _open_marked(page, server)
    expect(banner).to_have_attribute("data-state", "fits")
    expect(banner).to_contain_text("Tensor parallel")
    expect(page.locator(".mb-plans-loads")).to_contain_text("TP2")
    expect(page.locator(".mb-plans tr.mb-unfit").first).to_be_visible()
    page.get_by_label(t("en", "wizard.plan.only.loads")).check()
    expect(page.locator(".mb-plans tr.mb-unfit")).to_have_count(0)
    page.get_by_label(t("en", "wizard.plan.only.loads")).uncheck()
    page.locator(".mb-plans tr.mb-unfit").first.click()
    expect(banner).to_have_attribute("data-state", "unfit")
    expect(banner.locator('[data-code="checkpoint_bound_to_plan"]').last).to_contain_text(
        "distrib_optim_fully_reshardable: true"
    )
    page.click('.mb-steps a[data-step="launch"]')
    expect(page.locator('[data-act="check"]')).to_be_disabled()
    expect(page.locator('[data-act="queue"]')).to_be_disabled()
    banner.locator('[data-do="restore"]').click()
    expect(banner).to_have_attribute("data-state", "fits")
    page.click('.mb-steps a[data-step="plan"]')
    page.locator('[data-more="wizard-strategy-more"]').click()
    box(page, "parallel.tensor").fill("4")
    expect(problems(page, "parallel.tensor")).to_contain_text("4")
    problems(page, "parallel.tensor").locator(".mb-apply").click()
    expect(box(page, "parallel.tensor")).to_have_value("2")
    expect(banner).to_have_attribute("data-state", "fits")


def test_a_fix_of_the_cause_opens_the_wizard_with_the_change_and_the_checkpoint(page, server):
    page.goto(f"{server.url}/en/#runs/{RUN}")
    cause = page.locator(".mbm-cause:visible")
    expect(cause.locator(".mbm-evidence")).to_contain_text("Tried to allocate 17.37 GiB")
    recompute = cause.locator(".mbm-fixes button", has_text="Full")
    expect(recompute).to_contain_text("Estimated GPU memory")
    recompute.click()
    dialog = page.locator("dialog.mbm-continue")
    expect(dialog.locator("input:checked")).to_have_value("40")
    dialog.locator(".mb-primary").click()
    page.wait_for_function("() => document.documentElement.dataset.step === 'plan'")
    expect(box(page, "parallel.recompute")).to_have_value("Full")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_run_outside_its_interval_is_planned_again_with_what_it_measured(page, server, lang):
    page.goto(f"{server.url}/{lang}/#runs/{RUN}")
    words = t(lang, "monitor.event.outside_interval", measured="30", low="0.8", high="1.2")
    expect(page.locator(".mbm-events")).to_contain_text(words)
    card = page.locator(".mbm-compare:visible", has_text=t(lang, "monitor.compare.again"))
    expect(card).to_contain_text(t(lang, "problem.steps_slow_software"))
    card.get_by_role("button", name=t(lang, "monitor.compare.again")).click()
    page.wait_for_function("() => document.documentElement.dataset.step === 'plan'")
    expect(page.locator("main, body").first).to_contain_text(RUN)
    expect(page.locator(".mb-continuing")).to_have_count(0)
