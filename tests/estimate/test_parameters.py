"""Parameters are exact: of whole models as published, and on each rank as Megatron-Core builds it."""

from dataclasses import replace

import pytest

from backend.estimate.memory.stage import Trained, rank_parameters, stages
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters, padded_vocabulary, vision_parameters
from backend.estimate.plan import Plan
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.presets import models, resolve_model

# (dense, expert) parameters on the first rank of each stage, world size 32, counted on megatron-core 0.16.1 modules
# built on the meta device under a fake process group.
MEGATRON_CORE = {
    ("llama-3.1-8b", 1, 1, 1, 1): [(8030261248, 0)],
    ("llama-3.1-8b", 2, 1, 1, 1): [(4015263744, 0)],
    ("llama-3.1-8b", 4, 1, 1, 1): [(2007764992, 0)],
    ("llama-3.1-8b", 8, 1, 1, 1): [(1004015616, 0)],
    ("llama-3.1-8b", 1, 2, 1, 1): [(4015128576, 0), (4015132672, 0)],
    ("llama-3.1-8b", 1, 4, 2, 1): [(2270232576, 0), (1744896000, 0), (1744896000, 0), (2270236672, 0)],
    ("llama-3.1-8b", 2, 4, 1, 1): [(1135149056, 0), (872480768, 0), (872480768, 0), (1135153152, 0)],
    ("llama-3.1-70b", 8, 4, 1, 1): [(2270756864, 0), (2139422720, 0), (2139422720, 0), (2270765056, 0)],
    ("llama-3.1-70b", 4, 8, 5, 1): [(2401927168, 0), *[(2139258880, 0)] * 6, (2401935360, 0)],
    ("llama-3.1-70b", 4, 4, 1, 1): [(4541186048, 0), (4278517760, 0), (4278517760, 0), (4541194240, 0)],
    ("qwen3-8b", 1, 1, 1, 1): [(8190735360, 0)],
    ("qwen3-8b", 4, 1, 1, 1): [(2047915008, 0)],
    ("qwen3-8b", 8, 1, 1, 1): [(1024111616, 0)],
    ("qwen3-8b", 2, 2, 1, 1): [(2047758848, 0), (2047762944, 0)],
    ("qwen3-30b-a3b", 1, 1, 1, 8): [(1541093376, 3623878656)],
    ("qwen3-30b-a3b", 4, 2, 1, 4): [(197433344, 3623878656), (197435392, 3623878656)],
    ("qwen3-30b-a3b", 1, 4, 1, 8): [
        (540855296, 905969664),
        (229690368, 905969664),
        (229690368, 905969664),
        (540857344, 905969664),
    ],
    ("mixtral-8x7b", 2, 4, 1, 4): [
        (233635840, 2818572288),
        (168099840, 2818572288),
        (168099840, 2818572288),
        (233639936, 2818572288),
    ],
}


@pytest.mark.parametrize("preset", list(models()))
def test_every_preset_has_its_published_number_of_parameters(preset):
    assert model_parameters(model_layers(resolve_model(Model(preset=preset)))) == models()[preset].parameters


@pytest.mark.parametrize(
    ("config", "published"),
    [
        # keras-hub presets and quoted checkpoint totals, one for each family without a preset
        (
            {
                "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
                "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
                "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_attention_heads": 128,
                "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
            },
            671026419200,
        ),
        (
            {
                "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632,
                "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts": 60,
                "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 151936,
            },
            14315784192,
        ),
        (
            {
                "model_type": "qwen2", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
                "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936,
                "tie_word_embeddings": True,
            },
            3085938688,
        ),
    ],
    ids=["mla", "shared expert", "biased and tied"],
)  # fmt: skip
def test_other_families_have_their_published_number_of_parameters(config, published):
    assert model_parameters(model_layers(parse_model(config))) == published


@pytest.mark.parametrize("case", list(MEGATRON_CORE), ids=lambda case: "{} tp{} pp{} vpp{} ep{}".format(*case))
def test_each_rank_holds_what_megatron_core_builds(case):
    preset, tensor, pipeline, virtual, expert = case
    layers = model_layers(resolve_model(Model(preset=preset)))
    plan = Plan(
        tensor=tensor,
        pipeline=pipeline,
        virtual_pipeline=virtual,
        expert=expert,
        data=32 // (tensor * pipeline),
        sequence_length=4096,
        micro_batches=8,
    )
    result = [rank_parameters(layers, plan, stage, Trained()) for stage in stages(layers, plan)]
    assert [(item.dense, item.expert) for item in result] == MEGATRON_CORE[case]


def test_tied_weights_are_held_once_on_one_stage_and_twice_on_two():
    layers = model_layers(resolve_model(Model(preset="qwen3-0.6b")))
    plan = Plan(sequence_length=4096, micro_batches=8)
    two = replace(plan, pipeline=2)
    held = sum(rank_parameters(layers, two, stage, Trained()).dense for stage in stages(layers, two))
    [single] = [rank_parameters(layers, plan, stage, Trained()) for stage in stages(layers, plan)]
    assert single.dense == model_parameters(layers)
    assert held == single.dense + layers.embedding


def test_the_vision_tower_is_whole_on_every_tensor_parallel_rank_of_the_first_stage():
    layers = model_layers(resolve_model(Model(preset="qwen3-vl-8b")))
    plan = Plan(tensor=4, pipeline=2, sequence_length=4096, micro_batches=8)
    text = model_layers(resolve_model(Model(preset="qwen3-8b")))
    first, last = (rank_parameters(layers, plan, stage, Trained()) for stage in stages(layers, plan))
    text_first, text_last = (rank_parameters(text, plan, stage, Trained()) for stage in stages(text, plan))
    assert first.dense - text_first.dense == sum(vision_parameters(layers.vision)) == 576388336
    assert last.dense == text_last.dense


def test_a_frozen_part_is_held_but_not_trained():
    layers = model_layers(resolve_model(Model(preset="qwen3-vl-8b")))
    plan = Plan(sequence_length=4096, micro_batches=8)
    [stage] = stages(layers, plan)
    tower, merger, deep_stack = vision_parameters(layers.vision)
    everything = rank_parameters(layers, plan, stage, Trained())
    frozen = rank_parameters(layers, plan, stage, Trained(tower=False, merger=False, deep_stack=False))
    assert everything.trained_dense == everything.dense == frozen.dense
    assert frozen.trained_dense == everything.dense - tower - merger - deep_stack
    assert rank_parameters(layers, plan, stage, Trained(language=False)).trained_dense == tower + merger + deep_stack


def test_a_vocabulary_is_padded_to_a_multiple_of_the_ranks():
    assert padded_vocabulary(128256, 8, 128) == 129024
    assert padded_vocabulary(128256, 8, 1) == 128256
