"""The help beside a field: texts in the page's language, and figures of the draft if there are any."""

from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.services import Services
from app.text import LANGUAGES, t
from app.text.reference import table
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.fields import value_words
from app.wizard.help import help_of
from app.wizard.routes import routes
from backend.job.mapping import parameters


def help_here(services: Services, path: str, lang: str = "en") -> dict[str, Any]:
    return help_of(read(services.draft.job_mapping(), services.home), path, lang)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_field_has_help(services: Services, lang: str) -> None:
    reading = read(services.draft.job_mapping(), services.home)
    for path in (*table(), "cluster.hosts.lines"):
        got = help_of(reading, path, lang)
        assert got["meaning"]
        assert got["values"]


def test_other_values_stand_beside_the_present_one_with_what_guides_say(services: Services) -> None:
    change(services, {"parallel.tensor": 4, "training.images_per_sample": 1})
    got = help_here(services, "parallel.recompute")
    none, _, full = got["rows"]
    assert none["own"]
    assert full["memory"] < none["memory"] - 5
    assert full["speed"] < 0.9 * none["speed"]
    assert full["edits"] == {"parallel.recompute": "full"}
    assert "20–30% slower" in got["guides"]


def test_gpus_stand_by_their_names(services: Services) -> None:
    assert {"A100 80 GB SXM", "H100 80 GB SXM"} <= {row["value"] for row in help_here(services, "cluster.gpu")["rows"]}
    change(services, {"cluster.gpu": ""})
    assert help_here(services, "cluster.gpu")["rows"][0]["own"]


def test_a_free_text_is_shown_as_it_is_and_asks_for_no_words(caplog: pytest.LogCaptureFixture) -> None:
    template = parameters()["training.template"]
    assert value_words("en", template, "qwen3") == "qwen3"
    assert not caplog.records


def test_columns_stand_where_values_differ(services: Services) -> None:
    change(services, {"parallel.tensor": 4})
    assert help_here(services, "parallel.recompute")["columns"] == ["memory", "speed"]
    assert help_here(services, "parallel.pipeline")["columns"] == ["memory", "speed", "bubble", "batch"]
    assert "host" in help_here(services, "parallel.optimizer_offload_fraction")["columns"]


def test_a_refused_value_says_why_in_the_pages_language(services: Services) -> None:
    change(services, {"parallel.tensor": 4, "parallel.pipeline": 3, "cluster.nodes": 6})
    refused = {row["value"]: row["problem"] for row in help_here(services, "parallel.virtual_pipeline", "zh")["rows"]}
    assert "PP = 3" in refused["2"]


def test_what_the_estimate_does_not_depend_on_is_reported(services: Services) -> None:
    unread = help_here(services, "parallel.bias_activation_fusion")
    assert unread["why"] == t("en", "wizard.help.unmoved")
    assert help_here(services, "training.seed")["why"] == help_here(services, "model.path")["why"] == ""


def test_a_job_with_errors_has_words_and_no_figures(services: Services) -> None:
    change(services, {"parallel.tensor": 5})
    got = help_here(services, "parallel.tensor")
    assert (got["rows"], got["why"]) == ([], t("en", "wizard.help.unsound"))
    assert got["facts"]


def test_the_route_knows_parameters_only(services: Services) -> None:
    app = FastAPI()
    app.include_router(routes(services))
    client = TestClient(app)
    got = client.get("/api/help", params={"path": "parallel.tensor", "lang": "zh"}).json()
    assert got["name"] == "张量并行 TP"
    for path in ("", "parallel", "parallel.tensors", "__class__", "<script>"):
        assert client.get("/api/help", params={"path": path}).status_code == 404


def test_keys_and_variables_are_listed_that_the_job_may_say(services: Services) -> None:
    keys = dict(help_here(services, "extra")["names"])
    assert {"fp8_recipe", "val_size"} <= keys.keys()
    assert {"vit_lr", "transformer_impl"} & keys.keys() == set()
    change(services, {"engine": "swift-megatron"})
    assert "vit_lr" in dict(help_here(services, "extra")["names"])
    variables = dict(help_here(services, "environment", "zh")["names"])
    assert "NCCL_DEBUG" in variables
    assert {"USE_MCA", "MASTER_ADDR"} & variables.keys() == set()
    assert help_here(services, "parallel.tensor")["names"] == []


@pytest.mark.parametrize(("lang", "equal"), [("en", "default"), ("zh", "默认")])
def test_the_stages_that_may_be_are_compared(services: Services, lang: str, equal: str) -> None:
    change(services, {"parallel.tensor": 2, "parallel.pipeline": 4})
    own, evened = help_here(services, "parallel.pipeline_layout", lang)["rows"]
    assert own["value"] == equal
    assert evened["speed"] > 1.1 * own["speed"]
    change(services, evened["edits"])
    own, equal_stages = help_here(services, "parallel.pipeline_layout", lang)["rows"]
    assert own["value"] == evened["value"]
    assert equal_stages["edits"] == {"parallel.pipeline_layout": None}
