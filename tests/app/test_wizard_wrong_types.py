"""With any value that a cluster file or a request has put into the draft, the page opens and shows the value to be
corrected."""

from collections.abc import Iterator

import gradio as gr
import orjson
import pytest

from app.services import FIRST_DRAFT, Services
from app.text import LANGUAGES, render_problem, t
from app.wizard import hardware, launch, model, plan, review, training
from app.wizard.fields import Form
from app.wizard.payload import payload_json
from backend.job.mapping import parse_job
from backend.job.problems import errors


@pytest.fixture(scope="module")
def form():
    form = Form("en")
    with gr.Blocks():
        for step in (hardware, model, training, plan, review, launch):
            form.start(step.STEP)
            step.build(form)
    return form


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> Iterator[Services]:
    services = Services.open(tmp_path_factory.mktemp("home"))
    yield services
    services.close()


@pytest.fixture
def services(opened: Services) -> Services:
    """Return services with a new draft."""
    opened.draft.replace(FIRST_DRAFT)
    return opened


@pytest.mark.parametrize(
    "path",
    ["cluster.port_range", "cluster.hosts", "cluster.hosts.kept", "cluster.environments", "environment", "extra",
     "model.hf_config", "training.report_to", "parallel.recompute_modules", "training", "cluster"],
)  # fmt: skip
def test_a_value_of_a_wrong_type_does_not_shut_the_page(form, services, path):
    for value in (True, 7, 1.5, "x", [], [1], ["a"], [[]], {}, {"a": 1}, {"a": {"b": None}}):
        services.draft.replace(FIRST_DRAFT)
        services.draft.edit_all({"cluster.hosts": {"lines": "a\nb"}, path: value})
        form.shown(services.draft.job_mapping())
        assert payload_json(form, services, review.STEP), value


@pytest.mark.parametrize("value", [1e39, 10**39, 10**400, -(2**63), 2**64, float("inf"), float("nan")])
def test_a_number_beyond_every_machine_does_not_shut_the_page(form, services, value):
    typed = form.value("cluster.nodes", value)
    services.draft.edit_all({"cluster.nodes": typed, "training.samples": value})
    shown = form.shown(services.draft.job_mapping())
    assert orjson.loads(orjson.dumps(list(shown.values())))  # Gradio sends this.
    assert shown["cluster.nodes"] is None or shown["cluster.nodes"] == pytest.approx(float(value), nan_ok=True)
    assert payload_json(form, services, review.STEP)


def test_blanks_beside_the_commas_of_a_list_of_names_are_not_names(form):
    assert form.value("training.dataset", " identity, alpaca_en_demo ") == "identity,alpaca_en_demo"
    assert form.value("training.output_dir", " /out, put ") == "/out, put"


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ({"micro_batch_size": 1.5}, "1.5"),
        ({"micro_batch_size": [3]}, "[3]"),
        ({"learning_rate": "fast"}, "fast"),
        ({"learning_rate": 0}, "0"),
        ({"packing": "maybe"}, "maybe"),
        ({"report_to": "everything"}, "everything"),
        ({"dpo": 7}, "7"),
        ({"output_dir": "/a b"}, "/a b"),
    ],
)
def test_a_refusal_says_what_was_written_and_what_is_meant_in_words(lang, written, shown):
    _, problems = parse_job({"version": 1, "cluster": {"gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8},
                             "model": {"preset": "qwen3-8b"}, "training": written})  # fmt: skip
    words = render_problem(lang, errors(problems)[0])
    assert shown in words["message"]
    assert words["fix"] != t(lang, "problem.wrong_type.fix")
    assert not [sign for sign in ("[^", "(?", "{1,") if sign in words["message"] + words["fix"]]
