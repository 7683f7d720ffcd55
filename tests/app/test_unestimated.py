"""A model without an estimate, on the page and on the command line: the reason is shown, and nothing is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from app.main import main
from app.services import Services
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.fields import Form
from app.wizard.payload import payload_json
from app.wizard.strategies import strategies_of
from app.wizard.why_not import why_not_of

NEW = {"model_type": "brand_new", "hidden_size": 64, "num_local_experts": 4}
JOB = {
    "name": "new",
    "cluster": {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8},
    "model": {"hf_config": NEW, "path": "/m"},
    "engine": "llamafactory-zero3",
}


@pytest.fixture
def draft(services: Services) -> Services:
    edits = {"model.preset": None, "model.hf_config": json.dumps(NEW), "engine": "llamafactory-zero3"}
    assert change(services, edits) == ()
    return services


def shown(form: Form, services: Services, step: str) -> dict[str, Any]:
    return dict(json.loads(payload_json(form, services, step)))


@pytest.fixture
def run(tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "home"))

    def run(command: str, *options: str, **changes: Any) -> tuple[int, Any, str]:
        (tmp_path / "job.yaml").write_text(yaml.safe_dump({**JOB, **changes}))
        status = main(["--lang", "en", command, str(tmp_path / "job.yaml"), *options])
        printed = capsys.readouterr()
        return status, json.loads(printed.out) if "--json" in options else printed.out, printed.err

    return run


def test_a_presets_card_has_what_its_profile_counts(form: Form, services: Services) -> None:
    assert change(services, {"model.preset": "qwen3-vl-8b"}) == ()
    facts = dict(shown(form, services, "model")["data"]["model"]["facts"])
    assert (facts["vision_parameters"], facts["projector_parameters"]) == (536269296, 40119040)
    assert facts["linears"].startswith("qkv, proj, linear_fc1, linear_fc2, q_proj")
    assert facts["profiled_by"] == "transformers 5.6.0, torch 2.13.0+cpu"


def test_the_draft_is_sound_and_the_summary_has_no_figures(form: Form, draft: Services) -> None:
    payload = shown(form, draft, "model")
    summary = payload["summary"]
    assert (summary["sound"], summary["plan"]) == (True, "DP32")
    assert {summary[name] for name in ("fits", "need_gib", "parameters", "bubble", "speed", "hours")} == {None}
    (problem,) = (item for item in payload["problems"] if item["code"] == "model_not_estimated")
    assert (problem["severity"], problem["at"], problem["step"]) == ("warning", "model.hf_config", "model")
    assert problem["reason"] == "unsupported_model_type"
    assert "brand_new" in problem["message"]
    assert payload["data"]["model"] == {"name": "", "type": "brand_new", "parameters": None, "facts": []}


def test_a_profile_that_gives_no_estimate_is_the_reason_beside_the_configuration(form: Form, draft: Services) -> None:
    change(draft, {"model.profile": {"profile": 1, "digest": "of another file"}})
    (problem,) = (one for one in shown(form, draft, "model")["problems"] if one["code"] == "model_not_estimated")
    assert (problem["reason"], problem["at"]) == ("profile_of_other_config", "model.hf_config")


def test_every_part_of_the_plan_step_says_why(form: Form, draft: Services) -> None:
    data = shown(form, draft, "plan")["data"]
    assert data["plans"]["rows"] == []
    assert "brand_new" in data["plans"]["why"]
    assert (data["memory"], data["time"], data["schedule"]) == (None, None, None)
    assert data["ranks"]["per_node"] == 8
    reading = read(draft.draft.job_mapping(), draft.home)
    assert "brand_new" in strategies_of(reading, "en")["why"]
    assert "brand_new" in why_not_of(reading, "TP2", "en")["words"]


def test_the_sizes_are_chosen_by_hand_and_judged(form: Form, draft: Services) -> None:
    assert change(draft, {"engine": "swift-megatron", "parallel.tensor": 2}) == ()
    assert shown(form, draft, "plan")["summary"]["plan"] == "TP2 PP1 DP16"
    change(draft, {"parallel.tensor": 3})
    assert "ranks_not_divisible" in [problem["code"] for problem in shown(form, draft, "plan")["problems"]]


def test_with_an_error_the_plans_wait_for_its_correction(form: Form, draft: Services) -> None:
    change(draft, {"cluster.nodes": "four"})
    assert "brand_new" not in shown(form, draft, "plan")["data"]["plans"]["why"]


def test_an_estimate_has_no_figures_and_the_reason(run: Callable[..., Any]) -> None:
    status, answer, _ = run("estimate", "--json")
    assert (status, answer.keys(), answer["name"]) == (1, {"name", "problems"}, "new")
    (problem,) = answer["problems"]
    assert (problem["code"], problem["reason"]) == ("model_not_estimated", "unsupported_model_type")
    status, out, err = run("estimate")
    assert (status, out) == (1, "")
    assert "brand_new" in err


def test_an_estimate_says_what_else_is_wrong(run: Callable[..., Any]) -> None:
    job = {"engine": "swift-megatron", "parallel": {"tensor": 3}}
    status, answer, _ = run("estimate", "--json", **job)
    assert status == 2
    assert {problem["code"] for problem in answer["problems"]} > {"model_not_estimated", "ranks_not_divisible"}


@pytest.mark.parametrize("option", ["--top=1", "--strategies", "--why-not=TP2"])
def test_plans_are_refused_with_the_reason_and_without_an_error(run: Callable[..., Any], option: str) -> None:
    status, answer, _ = run("plan", option, "--json")
    assert (status, [problem["code"] for problem in answer["problems"]]) == (1, ["model_not_estimated"])
    assert run("plan", option)[:2] == (1, "")


def test_the_engine_files_are_written(run: Callable[..., Any], tmp_path: Any) -> None:
    status, _, err = run("render", f"--out={tmp_path / 'out'}")
    assert status == 0
    assert "brand_new" in err
    assert "model_name_or_path: /m" in (tmp_path / "out" / "config.yaml").read_text()
