"""The wizard without a browser: edits are stored, and the values that depend on them are correct."""

import itertools
import json
import re
from typing import Any, cast

import gradio as gr
import pytest

import app.wizard.page
from app.services import Services
from app.text import LANGUAGES
from app.text.plans import all_plans, count_words, explain, need_gib, plan_name, plan_sizes
from app.wizard import plan
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.fields import Form, choices_of, table
from app.wizard.payload import SECTIONS, initial_value, payload_json
from app.wizard.plans import KEYS, plans_of, row_edits
from app.wizard.why_not import why_not_of
from backend.job.mapping import parameters, with_values
from backend.job.presets import accuracy, intervals
from backend.job.problems import ProblemsError
from backend.job.rules.vision import TRAINED_WRONGLY
from backend.planning import recommended
from backend.planning.space import SIZES

EXPLAINED = {
    "TP2 PP2": {"parallel.tensor": 2, "parallel.pipeline": 2},
    "full recompute": {"parallel.recompute": "full", "parallel.pipeline": 4},
    "experts": {"model.preset": "qwen3-30b-a3b", "parallel.pipeline": 2, "parallel.expert": 8},
    "LoRA": {"engine": "llamafactory-ddp", "training.method": "lora"},
    "offload": {"parallel.optimizer_offload_fraction": 0.5},
    "ZeRO-3": {"engine": "llamafactory-zero3", "model.preset": "qwen3-30b-a3b"},
}


def shown(form: Form, services: Services, step: str = "training") -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(payload_json(form, services, step)))


class TestFields:
    def test_every_parameter_of_the_job_file_has_a_widget(self, form: Form) -> None:
        instead = {"version": None, "cluster.hosts": "cluster.hosts.lines",
                   "cluster.environments": "cluster.environments.swift.python"}  # fmt: skip
        missing = {path for path in parameters() if instead.get(path, path) not in {*form.components, None}}
        # Measured or noted by the page, never typed.
        noted = {"model.profile", "training.learning_rate_batch", "training.samples_from"}
        # The wizard keeps these keys of an imported job file, and has no fields for them yet.
        without = ("cluster.calibration.", "cluster.install.")
        assert {path for path in missing - noted if not path.startswith(without)} == set()

    def test_no_parameter_has_two_widgets(self, form: Form) -> None:
        with gr.Blocks(analytics_enabled=False), pytest.raises(ValueError, match="widget already"):
            form.field("name")

    def test_no_widget_shows_the_progress_of_an_event(self, services: Services) -> None:
        """Gradio would notify every such widget of every event."""
        with gr.Blocks(analytics_enabled=False) as page:
            app.wizard.page.build("en", services)
        drawn = {number for number, block in page.blocks.items() if getattr(block, "visible", False)}
        events = [event for event in page.config["dependencies"] if event["backend_fn"]]
        assert len(events) > 100
        assert all(event["show_progress_on"] and not drawn & {*event["show_progress_on"]} for event in events)

    def test_a_number_box_shows_nothing_for_what_is_no_number_and_the_draft_keeps_it(
        self, form: Form, services: Services
    ) -> None:
        change(services, {"cluster.nodes": "four"})
        assert form.shown(services.draft.job_mapping())["cluster.nodes"] is None
        problem = next(p for p in shown(form, services)["problems"] if p["at"] == "cluster.nodes")
        assert (problem["message"], problem["fix"]) == ("Nodes cannot be four.", "Enter a whole number.")
        assert services.draft.job_mapping()["cluster"]["nodes"] == "four"
        change(services, {"cluster.nodes": None})
        problem = next(p for p in shown(form, services)["problems"] if p["at"] == "cluster.nodes")
        assert problem["message"] == "Nodes cannot be empty."

    @pytest.mark.parametrize(("typed", "stored"), [("2e-5", 2e-5), ("0.001", 0.001), ("fast", "fast")])
    def test_a_learning_rate_is_typed_as_people_write_it(self, form: Form, typed: str, stored: object) -> None:
        assert form.value("training.learning_rate", typed) == stored

    def test_an_emptied_optional_field_takes_its_default(self, form: Form) -> None:
        assert form.value("training.dataset", " ") is None

    def test_a_named_cluster_that_cannot_be_read_gives_way_to_what_is_typed(
        self, form: Form, services: Services
    ) -> None:
        services.draft.replace({**services.draft.job_mapping(), "cluster": "gone"})
        assert "unknown_cluster" in {problem["code"] for problem in shown(form, services)["problems"]}
        assert change(services, {"cluster.gpu": "h100-80g", "cluster.nodes": 4, "cluster.gpus_per_node": 8}) == ()
        assert shown(form, services)["summary"]["sound"]

    def test_an_edit_that_is_not_taken_is_reported(self, form: Form, services: Services) -> None:
        before = services.draft.job_mapping()
        refused = change(services, {"environment": "A=" + "x" * 300_000})
        assert services.draft.job_mapping() == before
        data = json.loads(payload_json(form, services, "training", refused))
        assert "file_too_large" in {problem["code"] for problem in data["problems"]}

    def test_a_gpu_of_ones_own_starts_from_the_figures_of_the_last(self, form: Form, services: Services) -> None:
        change(services, {"cluster.gpu": ""})
        assert services.draft.job_mapping()["cluster"]["gpu"]["memory_gib"] == 79.11
        assert shown(form, services)["summary"]["sound"]


class TestReading:
    def test_wrong_hosts_and_folders_do_not_stop_a_plan(self, services: Services) -> None:
        change(services, {"cluster.hosts.lines": "bad;host\nuser@", "model.path": "not a path", "name": "a;b"})
        reading = read(services.draft.job_mapping(), services.home)
        assert reading.is_sound
        assert reading.estimate is not None
        assert not reading.can_launch
        assert {"bad_host_line", "bad_format"} <= {problem.code for problem in reading.missing}

    def test_a_config_json_is_read_from_its_text_and_the_text_is_kept(self, form: Form, services: Services) -> None:
        change(services, {"model.preset": None, "model.hf_config": '{"hidden_size": 64,'})
        assert "not_json" in {p["code"] for p in shown(form, services)["problems"]}
        text = json.dumps({"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                           "num_attention_heads": 4, "vocab_size": 512})  # fmt: skip
        change(services, {"model.hf_config": text})
        assert form.shown(services.draft.job_mapping())["model.hf_config"] == text
        assert read(services.draft.job_mapping(), services.home).is_sound

    def test_deep_json_is_refused_not_crashed_on(self, form: Form, services: Services) -> None:
        change(services, {"model.preset": None, "model.hf_config": "[" * 100_000})
        assert "not_json" in {p["code"] for p in shown(form, services)["problems"]}

    def test_variables_and_extra_keys_are_read_from_text(self, services: Services) -> None:
        change(services, {"environment": "NCCL_DEBUG=WARN\n\nA=b=c", "extra": "max_grad_norm: 1.0"})
        job = read(services.draft.job_mapping(), services.home).job
        assert job is not None
        assert job.environment == {"NCCL_DEBUG": "WARN", "A": "b=c"}
        assert job.extra == {"max_grad_norm": 1.0}

    def test_a_plan_that_does_not_fit_is_a_warning(self, services: Services) -> None:
        change(services, {"parallel.tensor": 1})
        problems = read(services.draft.job_mapping(), services.home).problems
        assert [(p.code, p.severity) for p in problems if p.severity != "note"] == [("over_memory", "warning")]


class TestPayload:
    def test_problems_name_the_widget_the_step_and_the_one_click_fix(self, form: Form, services: Services) -> None:
        change(services, {"training.seed": 0})
        got = shown(form, services)
        problem = next(p for p in got["problems"] if p["code"] == "seed_not_positive")
        edits = {"training.seed": 42}
        assert (problem["at"], problem["step"], problem["edits"]) == ("training.seed", "training", edits)
        assert problem["apply"] == "Set to 42"
        assert got["marks"]["training"]["errors"] == 1
        assert got["summary"] == {"sound": False, "errors": 1}

    def test_sizes_that_do_not_go_together_are_reported_beside_the_one_to_change(
        self, form: Form, services: Services
    ) -> None:
        change(services, {"model.preset": "qwen3-30b-a3b", "parallel.expert_tensor": 3})
        values = {p["code"]: p for p in shown(form, services)["problems"] if p["severity"] == "error"}
        assert values["expert_ranks_not_divisible"]["at"] == "parallel.expert_tensor"
        assert values["expert_ranks_not_divisible"]["apply"] == "Set to 2"
        change(services, {"parallel.expert": 3})
        values = {p["code"]: p for p in shown(form, services)["problems"] if p["severity"] == "error"}
        assert values["expert_ranks_not_divisible"]["at"] == "parallel.expert"
        assert values["expert_ranks_not_divisible"]["apply"] == "Set ETP = 2, EP = 2"
        change(services, {"training.dataset": "mine"})
        note = next(p for p in shown(form, services)["problems"] if p["code"] == "no_shuffling")
        assert (note["at"], note["apply"]) == ("training.prepare.shuffle", "Turn on")

    def test_one_press_mends_a_value_beyond_its_range(self, form: Form, services: Services) -> None:
        change(services, {"parallel.tensor": 640, "training.seed": -1})
        for problem in shown(form, services)["problems"]:
            change(services, problem["edits"] or {})
        calls = shown(form, services)
        assert [p["code"] for p in calls["problems"] if p["severity"] == "error"] == []
        assert calls["summary"]["plan"] == "TP8 PP1 DP4"

    def test_what_stands_in_a_line_of_text_has_no_button_that_writes_beside_it(
        self, form: Form, services: Services
    ) -> None:
        change(services, {"cluster.hosts.lines": "a\nb:99999"})
        problem = next(p for p in shown(form, services)["problems"] if p["code"] == "too_large")
        assert problem["edits"] is None
        assert problem["message"] == "99999 is too large: Node 1's SSH port is at most 65535."

    def test_what_only_a_launch_needs_is_counted_apart(self, form: Form, services: Services) -> None:
        marks = shown(form, services)["marks"]
        assert marks["hardware"] == {"errors": 0, "missing": 1}
        assert marks["training"] == {"errors": 0, "missing": 4}

    def test_fields_without_a_say_are_left_out_unless_they_have_a_problem(self, form: Form, services: Services) -> None:
        assert "training.freeze.vision_tower" not in shown(form, services)["hidden"]
        change(services, {"model.preset": "qwen3-8b"})
        assert "training.freeze.vision_tower" in shown(form, services)["hidden"]
        change(services, {"training.freeze.vision_tower": True})
        assert "training.freeze.vision_tower" not in shown(form, services)["hidden"]

    def test_a_wanted_global_batch_takes_the_place_of_the_accumulation(self, form: Form, services: Services) -> None:
        path = "training.gradient_accumulation_steps"
        assert path not in shown(form, services)["hidden"]
        change(services, {"training.global_batch_size": 128})
        got = shown(form, services, "training")
        assert path in got["hidden"]
        assert (got["data"]["steps"]["accumulation"], got["summary"]["global_batch"]) == (16, 128)

    def test_a_later_payload_has_a_higher_stamp(self, form: Form, services: Services) -> None:
        assert shown(form, services)["at"] < shown(form, services)["at"]

    def test_every_plan_of_the_table_can_be_chosen(self, form: Form, services: Services) -> None:
        change(services, {"training.samples": 1000})  # The engines count steps differently.
        plans = shown(form, services, "plan")["data"]["plans"]
        one_an_engine = {values[0]: values for values in plans["rows"]}
        for values in [*plans["rows"][::12], *one_an_engine.values()]:
            row = dict(zip(plans["keys"], values, strict=True))
            change(services, row_edits(row))
            reading = read(services.draft.job_mapping(), services.home)
            assert reading.is_sound
            assert reading.job is not None
            assert reading.job.global_batch == 64
            assert need_gib(reading.estimate) == pytest.approx(row["need_gib"], abs=0.002)
            assert reading.estimate is not None
            assert reading.estimate.hours == pytest.approx(row["hours"])
            assert plans_of(reading, "en")["own"] == row["rank"]

    def test_the_table_holds_the_best_of_every_split_and_the_drafts_plan(self, form: Form, services: Services) -> None:
        text = {"training.images_per_sample": 0}
        change(services, {"parallel.tensor": 8, "parallel.context": 4, "training.global_batch_size": 64, **text})
        plans = shown(form, services, "plan")["data"]["plans"]
        rows = [dict(zip(plans["keys"], values, strict=True)) for values in plans["rows"]]
        assert [row["rank"] for row in rows] == sorted(row["rank"] for row in rows)
        splits = {(row["engine"], *(row[name] for name in SIZES)) for row in rows}
        assert {("llamafactory-megatron", 4, 1, 1, 1, 1, 1), ("llamafactory-megatron", 2, 2, 2, 1, 1, 1)} <= splits
        own = next(row for row in rows if row["rank"] == plans["own"])
        assert (own["tensor"], own["context"]) == (8, 4)
        assert len(rows) < plans["count"]

    @pytest.mark.parametrize("event", [None, 7, "x", [], {}, {"engine": 1}])
    def test_an_event_that_names_no_row_is_refused(self, event: Any) -> None:
        with pytest.raises(ProblemsError, match="not_a_row"):
            row_edits(event)

    @pytest.mark.parametrize("value", [None, {}, [], "x", -1, 10**30])
    def test_a_row_of_wrong_values_is_answered(self, form: Form, services: Services, value: Any) -> None:
        change(services, row_edits(dict.fromkeys(KEYS, value)))
        assert payload_json(form, services, "plan")

    @pytest.mark.parametrize("sequence", [True, False])
    def test_beside_a_plan_that_trains_wrongly_the_one_to_take_is_offered(
        self, services: Services, sequence: bool
    ) -> None:
        observed = {"training.images_per_sample": 1, "parallel.tensor": 4, "parallel.sequence": sequence}
        change(services, observed)
        reading = read(services.draft.job_mapping(), services.home)
        (problem,) = (item for item in reading.problems if item.code in TRAINED_WRONGLY)
        assert reading.job is not None
        assert reading.is_sound == sequence
        assert dict(problem.edit) == {}
        assert list(problem.choices) == ["plan"]
        change(services, problem.choices["plan"])
        after = read(services.draft.job_mapping(), services.home)
        assert after.job is not None
        assert after.estimate is not None
        assert TRAINED_WRONGLY.isdisjoint(item.code for item in after.problems)
        assert after.estimate.fits
        assert after.job.global_batch == reading.job.global_batch
        assert plan_name(plan_sizes(after.job)) == problem.values["plan"] == "TP1 PP2 VPP3 DP16"

    def test_freezing_stands_beside_it_where_that_helps(self, services: Services) -> None:
        change(services, {"training.images_per_sample": 1, "model.preset": "qwen2.5-vl-7b"})
        (problem,) = (item for item in read(services.draft.job_mapping(), services.home).problems
                      if item.code in TRAINED_WRONGLY)  # fmt: skip
        assert list(problem.choices) == ["plan", "freeze"]
        change(services, problem.choices["freeze"])
        after = read(services.draft.job_mapping(), services.home)
        assert TRAINED_WRONGLY.isdisjoint(item.code for item in after.problems)

    @pytest.mark.parametrize("lang", LANGUAGES)
    def test_a_plan_that_trains_wrongly_is_not_in_the_table(self, form: Form, services: Services, lang: str) -> None:
        change(services, {"training.images_per_sample": 1})
        assert shown(form, services, "plan")["data"]["plans"]["own"] is None
        reading = read(services.draft.job_mapping(), services.home)
        assert "encoder_sequence_parallel.py" in why_not_of(reading, "TP=2", lang)["words"]

    @pytest.mark.parametrize("lang", LANGUAGES)
    def test_why_not_is_answered_in_words(self, services: Services, lang: str) -> None:
        change(services, {"training.images_per_sample": 0})
        reading = read(services.draft.job_mapping(), services.home)
        refused, legal = why_not_of(reading, "TP=8 PP=3", lang), why_not_of(reading, "tp8", lang)
        assert "24" in refused["words"]
        assert refused["choose"]["edits"]["parallel.tensor"] == 8
        assert "TP8 PP1" in legal["words"]
        assert "TP8 PP1" in legal["choose"]["words"]
        change(services, legal["choose"]["edits"])
        assert why_not_of(read(services.draft.job_mapping(), services.home), "tp8", lang)["choose"] is None
        assert why_not_of(reading, "everything", lang)["choose"] is None

    def test_the_stages_terms_add_up(self, form: Form, services: Services) -> None:
        change(services, {"parallel.tensor": 2, "parallel.pipeline": 2})
        memory = shown(form, services, "plan")["data"]["memory"]
        for stage in memory["stages"]:
            assert sum(stage[term] for term in memory["terms"]) == pytest.approx(stage["need_gib"], abs=0.01)

    def test_offloaded_memory_stands_beside_the_ram_of_a_node(self, form: Form, services: Services) -> None:
        assert shown(form, services, "plan")["data"]["memory"]["host"] is None
        change(services, {"parallel.optimizer_offload_fraction": 1.0, "cluster.host_memory_gib": 10})
        got = shown(form, services, "plan")
        host = got["data"]["memory"]["host"]
        assert host["node_gib"] == 10 < host["need_gib"]
        assert "host_memory_exceeded" in {problem["code"] for problem in got["problems"]}
        summary, plans = got["summary"], got["data"]["plans"]
        assert (summary["fits"], summary["host"]["node"]) == (False, 10)
        rows = [dict(zip(plans["keys"], values, strict=True)) for values in plans["rows"]]
        assert any(row["over_host"] for row in rows)
        assert not any(row["fits"] for row in rows if row["over_host"])

    def test_unpacked_samples_are_said_to_be_counted_in_full(self, form: Form, services: Services) -> None:
        assert shown(form, services, "plan")["data"]["memory"]["cutoff_len"] == 4096
        change(services, {"training.packing": True})
        assert shown(form, services, "plan")["data"]["memory"]["cutoff_len"] is None

    def test_the_tokens_of_the_largest_micro_batch_are_reported_where_memory_is_counted_by_them(
        self, form: Form, services: Services
    ) -> None:
        known = {"training.samples": 10_000, "training.sample_tokens": 300, "training.micro_batch_size": 8}
        change(services, known)
        assert shown(form, services, "plan")["data"]["memory"]["largest_tokens"] is None
        change(services, known | {"engine": "swift-megatron"})
        assert 4096 < shown(form, services, "plan")["data"]["memory"]["largest_tokens"] < 3 * 4096

    @pytest.mark.parametrize("edits", EXPLAINED.values(), ids=EXPLAINED)
    def test_every_piece_of_a_bar_is_explained_and_its_products_add_up_to_it(
        self, form: Form, services: Services, edits: dict[str, Any]
    ) -> None:
        change(services, edits)
        memory = shown(form, services, "plan")["data"]["memory"]
        for stage in memory["stages"]:
            for term in memory["terms"]:
                parts = [part for part in stage["why"] if part["term"] == term]
                assert bool(parts) == (stage[term] > 0), term
                assert sum(part["gib"] for part in parts) == pytest.approx(stage[term], abs=0.005), term
        named = [part for stage in memory["stages"] for part in stage["why"]]
        request = {f"explain.{part['name']}" for part in named}
        request |= {f"explain.factor.{name}" for part in named for name, _ in part["factors"]}
        for lang in LANGUAGES:
            assert request <= set(json.loads(initial_value(lang))["words"])

    def test_the_figures_come_with_the_error_of_measured_runs(self, form: Form, services: Services) -> None:
        known, expected = accuracy()["megatron"], intervals()
        summary = shown(form, services)["summary"]
        own = {"group": "megatron", "rows": known.rows, "median": known.median, "largest": known.max}
        memory, time = (
            {"low": factors.low, "high": factors.high, "sources": expected.sources, "unknown": unknown}
            for factors, unknown in (
                (expected.memory["unknown_lengths_megatron"], ["lengths"]),
                (expected.time["megatron"], ["lengths", "stack"]),
            )
        )
        assert summary["accuracy"] == {"expected": memory, "own": own}
        assert summary["time_error"] == {**time, "step_low": None, "hours_low": None}

    def test_only_the_plan_step_carries_the_explanation(self, services: Services) -> None:
        form = Form("en")
        assert [step for step in SECTIONS if "memory" in shown(form, services, step)["data"]] == [plan.STEP]

    @pytest.mark.parametrize("lang", LANGUAGES)
    def test_the_recommended_plan_is_explained(self, services: Services, lang: str) -> None:
        reading = read(services.draft.job_mapping(), services.home)
        assert reading.job is not None
        plans = all_plans(reading.job)
        text = explain(plans, lang)
        assert plan_name(plan_sizes(plans[recommended(plans) or 0].job)) in text
        assert "%" in text
        small = with_values(reading.job, {"cluster.gpu": {"memory_gib": 1, "bf16_tflops": 100, "hbm_gb_per_s": 1000}})
        assert plan_name(plan_sizes(all_plans(small)[0].job)) in explain(all_plans(small), lang)
        none = with_values(reading.job, {"training.global_batch_size": 1})
        assert explain(all_plans(none), lang)


class TestNothingTypedBreaksThePage:
    @pytest.mark.slow
    @pytest.mark.parametrize("typed", [None, "", "x", -1, 10**6, [1], {"a": 1}], ids=str)
    def test_any_value_in_any_field_still_gives_a_payload(self, form: Form, services: Services, typed: object) -> None:
        start = services.draft.job_mapping()
        for path in table():
            services.draft.replace(start)
            change(services, {path: typed})
            form.shown(services.draft.job_mapping())
            assert shown(form, services, "review")["at"]


def test_parameters_are_counted_in_the_unit_that_model_names_use() -> None:
    assert [count_words(count) for count in (17_400, 26_214_400, 8_790_000_000)] == ["17.4 K", "26.2 M", "8.79 B"]


def test_models_stand_by_family_and_size() -> None:
    names = [words for words, _ in choices_of("en", parameters()["model.preset"])][:-1]
    dense = [name for name in names if re.fullmatch(r"Qwen3 [\d.]+B", name)]
    assert dense == sorted(dense, key=lambda name: float(name[6:-1]))
    starts = [name.split()[0] for name in names]
    assert len(set(starts)) == len([start for start, _ in itertools.groupby(starts)])
    listed = ["Gemma 3 27B", "gpt-oss 20B", "Qwen2.5 7B", "Qwen2.5-VL 7B", "Qwen3 8B", "Qwen3.5 9B"]
    assert [name for name in names if name in listed] == listed
