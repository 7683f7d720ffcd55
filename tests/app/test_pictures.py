"""The diagrams of the Plan step agree with the estimate at every size."""

from pathlib import Path
from typing import Any

import pytest

from app.text import LANGUAGES, t
from app.text.intervals import memory_error_words
from app.text.plans import need_words
from app.wizard.draft_state import DraftState, read
from app.wizard.plans import plans_of
from app.wizard.strategies import strategies_of
from app.wizard.summary import summarise
from app.wizard.time_breakdown import time_breakdown
from app.wizard.timeline import drawn_micro_batches, timeline
from backend.estimate import to_json
from backend.job.mapping import to_mapping, with_values

QWEN = {"cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8}, "model": {"preset": "qwen3-vl-8b"}}


@pytest.fixture
def reading(tmp_path: Path) -> Any:
    def make(accumulation: int = 8, engine: str = "llamafactory-megatron", **parallel: Any) -> DraftState:
        training = {"gradient_accumulation_steps": accumulation}
        return read({"version": 1, **QWEN, "engine": engine, "parallel": parallel, "training": training}, tmp_path)

    return make


def test_the_timeline_holds_every_pass_and_the_bubble_of_the_estimate(reading: Any) -> None:
    result = reading(tensor=2, pipeline=2, virtual_pipeline=2)
    drawn = timeline(result)
    assert drawn is not None
    assert result.estimate is not None
    assert [len(stage) for stage in drawn["passes"]] == [2 * 2 * 2 * 8] * 2
    assert drawn["bubble"] == result.estimate.bubble_fraction
    waits = [1 - busy / drawn["total_s"] for busy in drawn["busy_s"]]
    assert sum(waits) / 2 == pytest.approx(drawn["bubble"])
    assert drawn["total_s"] == pytest.approx(drawn["drawn_s"])
    assert drawn["has_tower"]


def test_a_long_iteration_is_cut_and_says_how_much_is_left_out(reading: Any) -> None:
    drawn = timeline(reading(accumulation=512, tensor=2, pipeline=4, virtual_pipeline=1))
    assert drawn is not None
    shown = drawn_micro_batches(4, 1)
    assert drawn["left_out"] == 512 - shown
    assert shown % 4 == 0
    assert [len(stage) for stage in drawn["passes"]] == [2 * 2 * shown] * 4
    assert drawn["total_s"] > drawn["drawn_s"]
    assert 0 < drawn["warm_s"] < drawn["cool_s"] < drawn["drawn_s"]


@pytest.mark.parametrize(("engine", "has_stages"), [("llamafactory-megatron", True), ("llamafactory-zero3", False)])
def test_without_a_pipeline_there_is_none_to_draw(reading: Any, engine: str, has_stages: bool) -> None:
    assert timeline(reading(engine=engine)) == {"stages": 1, "has_stages": has_stages, "is_known": True}


def test_the_parts_of_an_iteration_add_up_to_it(reading: Any) -> None:
    time = time_breakdown(reading(tensor=2, pipeline=2, virtual_pipeline=2))
    assert time is not None
    assert sum(value for _, value in time["parts"]) == pytest.approx(time["iteration_s"])
    assert next(name for name, _ in time["parts"]) == "compute"


def test_the_speed_up_over_one_node_stands_beside_the_speed(reading: Any) -> None:
    time = time_breakdown(reading(tensor=4))
    assert time is not None
    assert time["nodes"] == 4
    assert 3 < time["speed_up"] < 4
    assert time["exchange"] == "ring"


@pytest.mark.parametrize(("known", "expected"), [({"time_ratio": 1.2}, "run-1"), ({"memory_ratio": 1.1}, None)])
def test_times_are_called_calibrated_only_where_a_run_corrects_times(
    tmp_path: Path, known: dict[str, float], expected: str | None
) -> None:
    calibration = {"gpu": "h100-80g", "run": "run-1", "engine": "llamafactory-megatron", **known}
    cluster = {**QWEN["cluster"], "calibration": calibration}
    result = read({"version": 1, **QWEN, "cluster": cluster, "engine": "llamafactory-megatron"}, tmp_path)
    assert result.estimate is not None
    assert result.estimate.calibrated_on == "run-1"
    time = time_breakdown(result)
    assert time is not None
    assert time["calibrated_on"] == expected


def test_an_unsound_draft_has_no_pictures(reading: Any) -> None:
    wrong = reading(tensor=3)
    assert timeline(wrong) is None
    assert time_breakdown(wrong) is None


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_strategy_has_its_words_and_one_is_recommended(reading: Any, lang: str) -> None:
    table = strategies_of(reading(tensor=2), lang)
    assert len(table["rows"]) == 9
    assert sum(row["recommended"] for row in table["rows"]) == 1
    assert all(row["why"] and row["name"] for row in table["rows"])
    meant = [row["name"] for row in table["rows"] if row["rule"] and row["rule"]["meant"]]
    assert len(meant) == 1
    assert meant[0].startswith("Megatron")
    assert not any(row["is_unfit"] for row in table["rows"])


def test_a_strategy_is_called_chosen_where_its_plan_is_the_drafts(reading: Any, tmp_path: Path) -> None:
    result = reading(tensor=2)
    (best,) = (row for row in strategies_of(result, "en")["rows"] if row["recommended"])
    assert best["edits"]["engine"] == result.job.engine
    assert not best["is_own"], "another plan of the same engine"
    taken = read(to_mapping(with_values(result.job, best["edits"])), tmp_path)
    assert [row["name"] for row in strategies_of(taken, "en")["rows"] if row["is_own"]] == [best["name"]]


def test_strategies_of_another_global_batch_than_the_drafts_say_so_and_none_is_called_chosen(reading: Any) -> None:
    at_own = strategies_of(reading(accumulation=8, tensor=4), "en")
    assert at_own["batch"] is None
    result = strategies_of(reading(accumulation=2, tensor=4), "en")
    assert result["batch"] is not None
    compared, choose = result["batch"]
    assert "global batch of 32, not at the job's 16" in compared
    assert "32" in choose
    assert all(row["plan"] for row in result["rows"])
    assert not any(row["is_own"] for row in result["rows"])


GRPO: dict[str, Any] = {
    "version": 1,
    "cluster": {"gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8},
    "model": {"preset": "qwen3-4b"},
    "engine": "swift-zero3",
    "training": {"stage": "grpo", "samples": 1000, "grpo": {"rewards": "format", "completion_len": 1024}},
}


@pytest.mark.parametrize("lang", LANGUAGES)
def test_page_and_command_line_call_the_memory_of_grpo_assumed_and_show_no_interval(tmp_path: Path, lang: str) -> None:
    state = read(GRPO, tmp_path)
    job, estimate = state.job, state.estimate
    assert job is not None
    assert estimate is not None
    assert summarise(state)["memory_error"] is None
    assert summarise(state)["accuracy"]["expected"] is None
    assert plans_of(state, lang)["intervals"]["swift-zero3"]["memory"] is None
    assert {row["need_gib_low"] for row in strategies_of(state, lang)["rows"]} == {None}
    need = f"{estimate.reserved_gib + estimate.outside_gib:,.1f}"
    assert need_words(estimate, lang) == t(lang, "accuracy.assumed", gib=need)
    assert list(memory_error_words(job, estimate, lang)) == [t(lang, "accuracy.memory.assumed")]
    assert to_json(estimate, [])["need_gib_high"] is None


def test_the_reason_of_a_missing_time_is_that_of_the_job(tmp_path: Path) -> None:
    grpo = time_breakdown(read(GRPO, tmp_path))
    gpu = {"memory_gib": 80.0, "bf16_tflops": 989.0, "hbm_gb_per_s": 3350.0}
    single = {**GRPO, "training": {"precision": "fp32"}, "cluster": {**GRPO["cluster"], "gpu": gpu}}
    unknown = time_breakdown(read(single, tmp_path))
    assert grpo == {"is_known": False, "why": "wizard.untimed.grpo"}
    assert unknown == {"is_known": False, "why": "wizard.untimed.speed"}
    assert t("en", "wizard.untimed.grpo") in plans_of(read(GRPO, tmp_path), "en")["why"]
