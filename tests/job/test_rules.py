"""Each rule names the wrong value and offers an edit that removes the problem."""

from contextlib import suppress

import pytest

from backend.engines import ENGINES, check_engine
from backend.job import rules
from backend.job.launch_rules import check_launch
from backend.job.mapping import parameters, parse_job, with_values
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import ProblemsError, errors
from backend.job.rules import RULES
from backend.job.rules.clashes import CLASHES, SWIFT_CLASHES
from backend.job.traits import TRAITS
from benchmarks.small_models import SMALL_MODELS
from tests.job.page import check, identities
from tests.job.rule_cases import CASES, ONLY_THE_USER_KNOWS
from tests.job.rule_jobs import DENSE, GEMMA_3N, GLM_SHARED, VISION, job_of

KEYS = [
    (DENSE, {"engine": engine, "training.stage": stage, "extra": {key: 2}}, "")
    for engine in ("swift-zero3", "llamafactory-zero3")
    for stage in ("pt", "sft", "kto")
    for key in {*ENGINES[engine].owned, *(clash.key for clash in (*CLASHES, *SWIFT_CLASHES))}
]


@pytest.mark.parametrize(("base", "values", "code"), CASES, ids=[code for _, _, code in CASES])
def test_a_rule_names_what_is_out_and_its_buttons_remove_it(base, values, code):
    job = job_of(base, values)
    before = check(job)
    result = {problem.code: problem for problem in before}
    assert code in result
    buttons = [edit for edit in (result[code].edit, *result[code].choices.values()) if edit]
    assert bool(buttons) == (code not in ONLY_THE_USER_KNOWS)
    for edit in buttons:
        after = check(with_values(job, edit))
        assert code not in {problem.code for problem in after}
        assert identities(errors(after)) <= identities(errors(before))


def test_no_key_is_refused_by_a_rule_and_by_the_check_of_the_engine():
    """The page would list one mistake twice."""
    twice = {}
    for base, values, _ in [*CASES, *KEYS]:
        job = job_of(base, values)
        refused = {problem.field for problem in check_engine(job) if problem.code in ("extra_owned", "extra_refused")}
        twice |= dict.fromkeys(refused & {problem.field for problem in errors(rules.check(job))}, values)
    assert not twice


@pytest.mark.parametrize(
    ("layers", "layout", "suggested"), [(4, "E|t*3|t|L", "E|(t*2|)*2L"), (8, None, "Et|t|t*4|t*2L")]
)
def test_stages_are_cut_anew_where_indexers_are_and_not_given_up(layers, layout, suggested):
    """Eight layers have four indexers, in the first three and the seventh: one for each stage."""
    keys = {**GLM_SHARED["model"]["hf_config"], "num_hidden_layers": layers, "index_skip_topk_offset": 3}
    keys["mlp_layer_types"] = ["dense"] + ["sparse"] * (layers - 1)
    sizes = {"engine": "swift-megatron", "parallel.pipeline": 4, "parallel.pipeline_layout": layout}
    [found] = [
        problem for problem in check(job_of({**GLM_SHARED, "model": {"hf_config": keys}}, sizes))
        if problem.code == "chosen_keys_stage"
    ]  # fmt: skip
    assert found.edit == {"parallel.pipeline_layout": suggested}


@pytest.mark.parametrize("engine", TRAITS)
def test_every_stage_with_every_method_has_an_answer(engine):
    choices = parameters()
    for stage in choices["training.stage"].choices:
        for method in choices["training.method"].choices:
            job = job_of(DENSE, {"engine": engine, "training.stage": stage, "training.method": method})
            has_both = stage in job.traits.stages and method in job.traits.methods
            codes = {problem.code for problem in check(job)}
            assert has_both != bool(codes & {"stage_not_supported", "method_not_supported", "method_not_with_stage",
                                             "grpo_needs_swift", "grpo_on_megatron", "grpo_under_fsdp"})  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "method", "offered"),
    [("llamafactory-megatron", "lora", "swift-megatron"), ("llamafactory-zero3", "qlora", "llamafactory-ddp")],
)
def test_a_method_that_the_engine_lacks_comes_with_an_engine_that_has_it(engine, method, offered):
    job = job_of(DENSE, {"engine": engine, "training.method": method})
    (result,) = (problem for problem in check(job) if problem.code == "method_not_supported")
    assert result.choices["engine"] == {"engine": offered}
    for edit in result.choices.values():
        assert "method_not_supported" not in {problem.code for problem in check(with_values(job, edit))}


def test_heads_that_do_not_divide_are_named():
    config = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 6,
              "num_key_value_heads": 6, "vocab_size": 512}  # fmt: skip
    job = job_of({**VISION, "model": {"hf_config": config}}, {"parallel.tensor": 4})
    assert [p.code for p in check(job)] == ["heads_not_divisible", "groups_not_divisible"]


def test_all_parts_frozen_train_nothing():
    job = job_of(VISION, {f"training.freeze.{part}": True for part in ("vision_tower", "projector", "language_model")})
    assert [p.code for p in errors(check(job))] == ["nothing_trained"]


def test_every_rule_has_its_case():
    shown = set()
    for base, values, _ in CASES:
        job = job_of(base, values)
        with suppress(ProblemsError):
            shape, gpu = resolve_model(job.model), resolve_gpu(job.cluster)
            shown |= {rule.function.__name__ for rule in RULES
                      if rule.binds(job.traits) and rule.function(job, shape, gpu)}  # fmt: skip
    assert {rule.function.__name__ for rule in RULES} == shown


def test_every_rule_says_why_in_its_docstring():
    assert all(rule.function.__doc__ for rule in RULES)
    assert len({rule.function.__name__ for rule in RULES}) == len(RULES)


def test_a_launch_asks_for_what_planning_does_not():
    job, _ = parse_job(VISION)
    assert {p.field for p in check_launch(job)} == {
        "model.path", "training.dataset", "training.dataset_dir", "training.template", "training.output_dir",
        "cluster.hosts",
    }  # fmt: skip


def test_one_machine_named_twice_is_refused():
    hosts = [{"address": "10.0.0.1"}, {"address": "10.0.0.1"}]
    cluster = {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8, "hosts": hosts,
               "environments": {"llamafactory": {"python": "/opt/lf/bin/python"}}}  # fmt: skip
    job, _ = parse_job({**VISION, "cluster": cluster})
    assert "host_twice" in {p.code for p in check_launch(job)}


@pytest.mark.parametrize(
    ("edits", "is_refused"),
    [
        ({"engine": "llamafactory-zero2"}, True),
        ({"engine": "llamafactory-zero2", "extra": {"use_reentrant_gc": False}}, False),
        ({"engine": "llamafactory-zero2", "parallel.recompute": "none"}, False),
        ({"engine": "llamafactory-fsdp"}, False),
        ({"engine": "llamafactory-zero2", "training.method": "partial", "training.trainable_layers": 2}, False),
        ({"engine": "llamafactory-zero2", "training.method": "partial", "training.trainable_layers": 3}, True),
        ({"engine": "swift-ddp"}, False),
        ({"engine": "swift-zero2", "extra": {"gradient_checkpointing_kwargs": '{"use_reentrant": false}'}}, False),
        ({"engine": "swift-zero2", "extra": {"gradient_checkpointing_kwargs": {"use_reentrant": True}}}, True),
        ({"engine": "swift-zero2", "extra": {"gradient_checkpointing_kwargs": "no JSON"}}, True),
    ],
)
def test_shared_keys_need_checkpoints_that_are_not_reentrant(edits, is_refused):
    codes = {problem.code for problem in check(job_of(GEMMA_3N, edits))}
    assert ("shared_keys_reentrant" in codes) is is_refused


def test_the_indexers_of_glm_are_those_that_the_bridge_finds():
    def refused(**keys):
        config = {**SMALL_MODELS["glm_moe_dsa"], "indexer_types": None, **keys}
        job = job_of({**DENSE, "model": {"hf_config": config}}, {"engine": "swift-megatron"})
        return [problem.values["layer"] for problem in check(job) if problem.code == "chosen_keys_pattern"]

    listed = ["full", "shared", "full", "shared"]
    assert refused(indexer_types=listed) == refused(index_topk_pattern="FSFS") == [2]
    assert refused(indexer_types=listed, index_topk_freq=2, index_skip_topk_offset=1) == []
    assert refused(index_topk_freq=2, index_skip_topk_offset=2) == refused() == []
    assert refused(index_topk_freq=2) == [2], "transformers begins after the second layer, the bridge after the first"
