"""In Chromium, models that no preset knows are read from the nodes, planned and launched; broken ones are named.

Everything is real: two sshd nodes, torch and transformers on them, and LLaMA-Factory with DDP on CPU.
"""

import json
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.demo import local_nodes, tiny_model
from app.demo.job import demo_job
from app.demo.local_nodes import LocalNodes
from app.text import LANGUAGES, t
from tests.e2e import unknown_models
from tests.e2e.test_journey import go_to_launch, launch, shown_loss, wait_for_state, wait_for_step
from tests.nodes import skip_without_node_environment, ssh_nodes
from tests.ui.browser import begin_anew, box, expect, go, needs_chromium, problems, until
from tools.browser import Server, logged_in
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(1800), needs_chromium]

NODES = 2
STEPS = 6
LOSS_OF_RANDOM_WEIGHTS = math.log(512)
"""Every token of the tiny tokenizer is as likely as the others."""
ANSWER = "#place-fetch_model .mb-fetch-answer"
CONFIG = json.dumps(unknown_models.PERSIMMON, indent=2)
CUT = CONFIG[:-40]
BROKEN = {
    "truncated": (CUT, "problem.config_truncated", {"line": CUT.count("\n") + 1, "column": len(CUT) - CUT.rfind("\n")}),
    "without-class": ('{"peft_type": "LORA"}', "problem.missing_model_key", {"key": "model_type"}),
}
"""Folder -> its config.json, and the text of the reason with its values."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    """Yield nodes with home folders of their own, as nodes without a shared disk have."""
    skip_without_node_environment()
    folder = tmp_path_factory.mktemp("cluster")
    for rank in range(NODES):
        (folder / f"home{rank}").mkdir()
    home = "{folder}/home{rank}"
    with pytest.MonkeyPatch.context() as patch:
        plain = local_nodes.CONFIGURATION.replace("SHLVL=1", f"SHLVL=1 HOME={home}")
        patch.setattr(local_nodes, "CONFIGURATION", plain.replace("internal-sftp", f"internal-sftp -d {home}"))
        with ssh_nodes(folder, nodes=NODES) as nodes:
            yield nodes


@pytest.fixture(scope="module")
def models(cluster: LocalNodes, tiny: Path) -> Path:
    """Return the folder of the models. Every node has the data, too."""
    shutil.copytree(tiny, cluster.folder, dirs_exist_ok=True)
    root = cluster.folder / "models"
    root.mkdir()
    command = [NODE_PYTHON, "-W", "ignore", unknown_models.__file__, cluster.folder / tiny_model.MODEL_FOLDER, root]
    subprocess.run(command, check=True)
    return root


@pytest.fixture(scope="module")
def page(server: Server) -> Iterator[Any]:
    with logged_in(server) as page:
        page.set_default_timeout(600_000)  # A busy machine builds a model in minutes.
        yield page


def job(cluster: LocalNodes, path: Path | str) -> dict[str, Any]:
    """Return a job with an unknown model in a folder of the nodes."""
    mapping = demo_job(cluster.folder, cluster.cluster_mapping(str(NODE_PYTHON)))
    mapping["model"] = {"path": str(path)}
    mapping["training"] |= {"max_steps": STEPS, "save_steps": 1000}
    return mapping


def names(cluster: LocalNodes) -> list[str]:
    return [f"127.0.0.1:{host.port}" for host in cluster.hosts()]


def check_and_launch(page: Any) -> list[float]:
    """Check the nodes, launch, wait for the end of the run, and return its losses."""
    page.click('[data-act="check"]')
    expect(page.locator('[data-act="launch"]')).to_be_enabled(timeout=600_000)
    launch(page)
    wait_for_step(page, STEPS)
    wait_for_state(page, t("en", "monitor.state.finished"))
    return shown_loss(page)["y"]


def test_a_model_without_a_table_is_planned_from_its_profile_and_trains(
    page: Any, server: Server, cluster: LocalNodes, models: Path, record_property: Callable[[str, object], None]
) -> None:
    go(page, server, "model")
    begin_anew(page, job(cluster, models / unknown_models.PROFILED))
    go(page, server, "model")
    began = time.monotonic()
    page.click('[data-fetch="node"]')
    until(page, "b.fetched?.kind === 'node' && b.summary.parameters > 0 && b.summary.fits")
    expect(page.locator(ANSWER)).to_contain_text("PersimmonForCausalLM")
    go(page, server, "plan")
    until(page, "b.data.plans?.rows.length > 0 && b.summary.need_gib > 0")
    record_property("planned_s", round(time.monotonic() - began, 1))
    go_to_launch(page)
    losses = check_and_launch(page)
    assert len(losses) == STEPS
    assert losses[0] == pytest.approx(LOSS_OF_RANDOM_WEIGHTS, rel=0.3)


def test_a_model_whose_code_is_not_allowed_is_launched_without_figures_once_it_is(
    page: Any, server: Server, cluster: LocalNodes, models: Path
) -> None:
    go(page, server, "model")
    begin_anew(page, job(cluster, models / unknown_models.OWN_CODE))
    go(page, server, "model")
    page.click('[data-fetch="node"]')
    until(page, "b.fetched?.kind === 'node' && b.summary.sound && b.summary.parameters === null")
    declined = page.locator(f'{ANSWER} [data-code="no_model_profile"]')
    expect(declined).to_contain_text(t("en", "problem.profile_remote_code", model_type="mine"))
    expect(declined).to_contain_text(names(cluster)[0])
    go(page, server, "plan")
    until(page, "b.data.plans?.rows.length === 0 && /mine/.test(b.data.plans.why)")
    go_to_launch(page)
    page.click('[data-act="check"]')
    refused = page.locator('#step-launch [data-code="model_code_not_allowed"]').first
    expect(refused).to_contain_text("configuration_mine.MineConfig")
    expect(page.locator('[data-act="launch"]')).to_be_disabled()
    refused.get_by_role("button", name=t("en", "problem.model_code_not_allowed.allow")).click()
    until(page, "Megaboard.draft.isResting()")
    losses = check_and_launch(page)
    assert losses[0] == pytest.approx(LOSS_OF_RANDOM_WEIGHTS, rel=0.3)


def test_a_profile_that_gives_no_estimate_says_why_and_still_does_after_a_reload(
    page: Any, server: Server, cluster: LocalNodes, models: Path
) -> None:
    allowed = {**job(cluster, models / unknown_models.OWN_CODE), "extra": {"trust_remote_code": True}}
    go(page, server, "model")
    begin_anew(page, allowed)
    go(page, server, "model")
    page.click('[data-fetch="node"]')
    until(page, "b.problems.some((one) => one.reason === 'profile_has_towers')")
    expect(page.locator(ANSWER)).to_contain_text("MineForCausalLM")
    go(page, server, "plan")
    expect(page.locator("#step-plan .mb-plans-why")).to_contain_text(t("en", "problem.profile_has_towers", towers=2))


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_configuration_names_file_nodes_and_reason_and_the_draft_stays(
    page: Any, server: Server, cluster: LocalNodes, models: Path, name: str, lang: str
) -> None:
    text, reason, values = BROKEN[name]
    (models / name).mkdir(exist_ok=True)
    (models / name / "config.json").write_text(text)
    before = {**job(cluster, models / name), "model": {"preset": "qwen3-8b", "path": str(models / name)}}
    go(page, server, "model", lang)
    begin_anew(page, before)
    go(page, server, "model", lang)
    version = page.evaluate("Megaboard.wizard.payload().draft")
    page.click('[data-fetch="node"]')
    refused = page.locator(f'{ANSWER} [data-code="bad_model_config"]')
    expect(refused).to_contain_text(t(lang, reason, **values))
    for part in (*names(cluster), str(models / name / "config.json")):
        expect(refused).to_contain_text(part)
    until(page, f"b.draft === {version} && b.data.model.name.startsWith('Qwen3')")
    expect(box(page, "model.path")).to_have_value(str(models / name))


def test_a_model_that_one_node_lacks_is_read_from_the_other_and_the_node_is_named(
    page: Any, server: Server, cluster: LocalNodes, models: Path
) -> None:
    shutil.copytree(models / unknown_models.PROFILED, cluster.folder / "home1" / "mine")
    go(page, server, "model", "zh")
    begin_anew(page, job(cluster, "~/mine"))
    go(page, server, "model", "zh")
    page.click('[data-fetch="node"]')
    lacking = page.locator(f'{ANSWER} [data-code="model_missing"]')
    expect(lacking).to_contain_text(t("zh", "problem.model_missing", node=names(cluster)[0], path="~/mine"))
    until(page, "b.summary.parameters > 0")
    expect(problems(page, "model.hf_config")).to_have_count(0)
