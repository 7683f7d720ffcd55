"""Layers for multi-token prediction are in every figure, and only where an engine trains them."""

import pytest

from app.text import render_problem
from backend.estimate import estimate_resolved
from backend.estimate.estimate import layers_of_job
from backend.estimate.memory.megatron import SOFTMAX_BYTES
from backend.estimate.memory.saved_activations import fused_bytes
from backend.estimate.memory.stage import Trained, rank_parameters, stages
from backend.estimate.model.flops import layer_flops
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import layer_counts, model_parameters
from backend.estimate.model.work import pipeline_work
from backend.estimate.plan import Plan
from backend.job.model import parse_model
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.rules import check
from benchmarks.small_models import SMALL_MODELS
from tests.estimate.cases import job
from tests.estimate.printed import printed_by
from tests.nodes import needs_node_environment

MTP = {"extra": {"mtp_num_layers": 1}}
SPLIT = {"parallel.pipeline": 4, "parallel.tensor": 2, "parallel.expert": 8}
SWIFT = {"engine": "swift-megatron", "model.preset": "glm-4.5-air", **SPLIT}


def estimated(**values):
    made = job(**values)
    return estimate_resolved(made, resolve_model(made.model), resolve_gpu(made.cluster))


def with_and_without(**values):
    return estimated(**values, **MTP), estimated(**values)


def test_deepseek_v3_has_one_more_layer_of_experts_a_projection_and_three_norms():
    shape = resolve_model(job(**{"model.preset": "deepseek-v3"}).model)
    plain, more = model_layers(shape), model_layers(shape, mtp=1)
    added = model_parameters(more) - model_parameters(plain)
    # huggingface.co/deepseek-ai/DeepSeek-V3-Base README_WEIGHTS.md says 11.5 B.
    assert added == layer_counts(plain.kinds[-1]).total + plain.kinds[-1].buffer + 2 * 7168**2 + 3 * 7168
    assert added == pytest.approx(11.5e9, rel=0.01)
    assert more.order == plain.order


def test_only_the_last_stage_grows_by_the_layer_and_an_embedding_of_its_own():
    more, plain = with_and_without(**SWIFT)
    assert [stage.layers for stage in more.stages] == [stage.layers for stage in plain.stages]
    assert [stage.parameters for stage in more.stages[:-1]] == [stage.parameters for stage in plain.stages[:-1]]
    last, before = more.stages[-1], plain.stages[-1]
    assert last.parameters - before.parameters > last.expert_parameters - before.expert_parameters > 0
    for term in ("weights_gib", "optimizer_gib", "activations_gib", "logits_gib"):
        assert getattr(last, term) > getattr(before, term), term
    assert more.flops_per_token > plain.flops_per_token
    assert more.iteration_s > plain.iteration_s
    assert more.bubble_fraction > plain.bubble_fraction


def test_the_work_added_is_that_of_the_layer_and_of_one_more_output_layer():
    made = job(**SWIFT, **MTP)
    shape = resolve_model(made.model)
    more, plain = with_and_without(**SWIFT)
    layers, length = layers_of_job(made, shape), made.sequence_tokens
    forward = layer_flops(layers.kinds[-1]).forward(length) + layer_flops(layers.output).forward(length)
    assert more.flops_per_token - plain.flops_per_token == pytest.approx(3 * forward, rel=1e-9)


def test_a_tied_model_has_a_second_table_on_the_last_stage():
    """gpt_model.py skips the output layer's weight on the first stage only."""
    shape = resolve_model(job(**{"model.preset": "qwen3-0.6b"}).model)
    plan = Plan(pipeline=2, sequence_length=4096, micro_batches=2)

    def last(mtp):
        layers = model_layers(shape, mtp=mtp)
        return rank_parameters(layers, plan, stages(layers, plan)[-1], Trained()).dense

    layer = layer_counts(model_layers(shape, mtp=1).kinds[-1]).total
    assert last(1) - last(0) == layer + shape.vocab * shape.hidden


@pytest.mark.parametrize(
    "values",
    [
        {"engine": "swift-ddp"},
        {**SPLIT, "engine": "swift-megatron", "training.stage": "dpo"},
        {**SPLIT, "engine": "swift-megatron", "model.preset": None, "model.hf_config": SMALL_MODELS["nemotron_h"]},
    ],
    ids=["Hugging Face", "no MTP loss", "hybrid"],
)
def test_layers_that_no_engine_trains_so_are_not_counted(values):
    made = job(**{"model.preset": "glm-4.5-air", **values, **MTP})
    assert layers_of_job(made, resolve_model(made.model)).mtp == 0


def test_a_model_with_images_passes_the_embedding_on_through_its_stages():
    split = {"engine": "swift-megatron", "model.preset": "qwen3.5-9b", "parallel.pipeline": 4}
    more, plain = with_and_without(**split)
    assert more.stages[0].activations_gib == plain.stages[0].activations_gib
    assert more.stages[1].activations_gib > plain.stages[1].activations_gib
    text = {**SWIFT, "model.preset": "glm-4.5-air"}
    more, plain = with_and_without(**text)
    assert more.stages[1].activations_gib == plain.stages[1].activations_gib


@pytest.mark.parametrize(
    ("preset", "severity", "fix"),
    [
        ("glm-4.5-air", "warning", "before 7f9d4d38"),
        ("qwen3.5-35b-a3b", "warning", "a later Megatron-Core"),
        ("qwen3-30b-a3b", "error", "Remove `mtp_num_layers`"),
    ],
)
def test_the_fix_for_weights_that_do_not_load_depends_on_the_model(preset, severity, fix):
    problems = check(job(**{"model.preset": preset, "engine": "llamafactory-megatron", **MTP}))
    [found] = [each for each in problems if each.code == "mtp_not_loaded"]
    assert found.severity == severity
    assert fix in render_problem("en", found)["fix"]


@pytest.mark.engines
@needs_node_environment
def test_real_layers_save_and_compute_what_the_formula_says():
    printed = printed_by("benchmarks.mtp_saved")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"model_type": "llama", "vocab_size": 1024, **sizes}
    layers = model_layers(parse_model(config), mtp=1)
    decoder, predictor = map(fused_bytes, layers.kinds)
    for row in printed:
        share = 1 / row["tensor"] if row["sequence_parallel"] else 1.0
        per_token = (predictor.whole - decoder.whole) * share + predictor.gathered * (1 - share)
        per_token += SOFTMAX_BYTES * 1024 / row["tensor"]
        assert row["bytes"] == 64 * row["mtp"] * per_token, row
        plan = Plan(sequence_length=64, micro_batches=1, tensor=row["tensor"])
        more, less = (
            pipeline_work(model_layers(parse_model({**config, "num_hidden_layers": count}), mtp=mtp), plan, Trained())
            for count, mtp in ((2, row["mtp"]), (2 + row["mtp"], 0))
        )
        assert row["operations"] == more[0].forward - less[0].forward, row
