"""Gemma 3n: its towers, the checkpoints that LLaMA-Factory turns off, its large table of embeddings. And Gemma 4 with
experts."""

import pytest

from backend.estimate import estimate
from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.terms import STATIC_BYTES
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters, vision_parameters
from backend.estimate.plan import Plan
from backend.job.model import parse_model
from backend.job.problems import ProblemsError
from backend.job.rules import check
from backend.job.traits import TRAITS
from benchmarks.small_models import SMALL_MODELS
from tests.estimate.cases import job

TEXT = {"model_type": "gemma3n_text", "hidden_size": 2048, "num_hidden_layers": 35}
WHOLE = {
    "model_type": "gemma3n",
    "text_config": TEXT,
    "vision_config": {"model_type": "gemma3n_vision", "architecture": "mobilenetv5_300m_enc", "hidden_size": 2048},
    "audio_config": {"model_type": "gemma3n_audio", "hidden_size": 1536},
}
TABLE = 262_144 * 35 * 256


def _stage(config, **values):
    [stage] = estimate(job({"model.preset": None, "model.hf_config": config, **values})).stages
    return stage


def test_the_tower_is_the_one_whose_weights_were_counted():
    """timm 1.0.31 counts 294,126,912, and transformers 7,818,517,072 in the whole model of default sizes."""
    layers = model_layers(parse_model(WHOLE))
    assert vision_parameters(layers.vision)[0] == 294_126_912 + 681_348_640
    assert model_parameters(layers) == 7_818_517_072


@pytest.mark.parametrize("values", [{"architecture": "resnet50"}, {"model_args": {"depth": 3}}])
def test_another_tower_of_timm_is_refused(values):
    with pytest.raises(ProblemsError) as raised:
        parse_model({**WHOLE, "vision_config": {**WHOLE["vision_config"], **values}})
    [problem] = raised.value.problems
    assert (problem.code, problem.values["key"]) == ("unsupported_model_key", "vision_config.architecture")


def test_llamafactory_has_no_checkpoints_for_the_whole_model_only():
    def activations(config, recompute, engine="llamafactory-zero3"):
        return _stage(config, engine=engine, **{"parallel.recompute": recompute}).activations_gib

    assert activations(WHOLE, "full") == activations(WHOLE, "none")
    assert activations(TEXT, "full") < activations(TEXT, "none") / 3
    assert activations(WHOLE, "full", "swift-zero3") < activations(WHOLE, "none", "swift-zero3") / 3


def test_the_projectors_are_trained_whatever_the_switch_says():
    switches = {"training.stage": "sft", "training.freeze.projector": True, "training.freeze.vision_tower": True}
    frozen = _stage(WHOLE, engine="llamafactory-zero3", **switches)
    assert frozen.trainable_parameters - _stage(TEXT, engine="llamafactory-zero3").trainable_parameters == (
        4_460_544 + 3_345_408
    )


def test_the_table_of_the_layers_embeddings_is_gathered_whole_and_gets_a_gradient_of_its_size():
    gib = 2 * TABLE / 2**30
    values = {"training.cutoff_len": 64, "training.micro_batch_size": 1}
    for engine in ("llamafactory-zero3", "llamafactory-fsdp"):
        assert _stage(TEXT, engine=engine, **values).workspace_gib > 2 * gib


@pytest.mark.parametrize("engine", ["llamafactory-megatron", "swift-megatron"])
@pytest.mark.parametrize("config", [TEXT, WHOLE], ids=["text", "whole"])
def test_no_megatron_engine_takes_it(engine, config):
    problems = check(job({"model.preset": None, "model.hf_config": config, "engine": engine}))
    assert any(problem.severity == "error" and "model" in problem.code for problem in problems), problems


@pytest.mark.parametrize(
    ("lora", "checkpointing", "torchs"),
    [(False, True, 180.5), (False, False, 243.5), (True, True, 40.7), (True, False, 77.5)],
)
def test_a_step_of_gemma_4_with_experts_needs_what_torch_counts(lora, checkpointing, torchs):
    # MiB by benchmarks/step_peak.py on Gemma4ForCausalLM of transformers 5.6.0.
    keys = {
        **SMALL_MODELS["gemma4_text"], "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
        "moe_intermediate_size": 256, "hidden_size_per_layer_input": 0,
    }  # fmt: skip
    plan = Plan(sequence_length=256, micro_batch=2, micro_batches=2, recompute="full" if checkpointing else "none")
    tuning = Tuning(trained=Trained(), method="lora" if lora else "full", lora_targets="all")
    ours = data_parallel_memory(model_layers(parse_model(keys)), plan, TRAITS["llamafactory-ddp"].memory, tuning)
    assert (ours.peak - STATIC_BYTES) / 2**20 == pytest.approx(torchs, rel=0.03)
