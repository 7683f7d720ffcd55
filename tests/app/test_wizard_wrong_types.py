"""Whatever a cluster file or a request has put into the draft, the page opens and shows it, to be corrected there."""

from pathlib import Path

import gradio as gr
import orjson
import pytest

from app.services import Services
from app.wizard import hardware, launch, model, plan, review, training
from app.wizard.fields import Form
from app.wizard.panel import bundle


@pytest.fixture(scope="module")
def form():
    form = Form("en")
    with gr.Blocks():
        for step in (hardware, model, training, plan, review, launch):
            form.start(step.STEP)
            step.build(form)
    return form


@pytest.mark.parametrize("value", [True, 7, 1.5, "x", [], [1], ["a"], [[]], {}, {"a": 1}, {"a": {"b": None}}])
@pytest.mark.parametrize(
    "path",
    ["cluster.port_range", "cluster.hosts", "cluster.hosts.kept", "cluster.environments", "environment", "extra",
     "model.hf_config", "training.report_to", "parallel.recompute_modules", "training", "cluster"],
)  # fmt: skip
def test_a_value_of_a_wrong_type_does_not_shut_the_page(form, tmp_path: Path, path, value):
    services = Services.open(tmp_path)
    try:
        services.draft.edit_all({"cluster.hosts": {"lines": "a\nb"}, path: value})
        form.shown(services.draft.job_mapping())
        assert bundle(form, services, review.STEP)
    finally:
        services.close()


@pytest.mark.parametrize("value", [1e39, 10**39, 10**400, -(2**63), 2**64, float("inf"), float("nan")])
def test_a_number_beyond_every_machine_does_not_shut_the_page(form, tmp_path: Path, value):
    services = Services.open(tmp_path)
    try:
        typed = form.value("cluster.nodes", value)
        services.draft.edit_all({"cluster.nodes": typed, "training.samples": value})
        shown = form.shown(services.draft.job_mapping())
        assert orjson.loads(orjson.dumps(list(shown.values())))  # as Gradio sends it
        assert shown["cluster.nodes"] is None or shown["cluster.nodes"] == pytest.approx(float(value), nan_ok=True)
        assert bundle(form, services, review.STEP)
    finally:
        services.close()


def test_blanks_beside_the_commas_of_a_list_of_names_are_not_names(form):
    assert form.value("training.dataset", " identity, alpaca_en_demo ") == "identity,alpaca_en_demo"
    assert form.value("training.output_dir", " /out, put ") == "/out, put"
