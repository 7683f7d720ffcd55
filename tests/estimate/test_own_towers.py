"""Towers whose code is in the model's folder: tiles, freezing, recompute, and the two forms of InternVL."""

import pytest

from backend.estimate.estimate import estimate, layers_of_job
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters, vision_parameters
from backend.estimate.plan import Plan, patches_per_image
from backend.job.mapping import parse_job, with_values
from backend.job.model import parse_model
from backend.job.presets import models
from backend.job.trained import Trained, trained_parts
from tools.write_models import read_own_code

OWN = read_own_code()["InternVL3.5-8B"]["config"]
HF = models()["internvl3.5-8b"].hf_config
FROZEN = {"training.freeze.vision_tower": True, "training.freeze.projector": True}
MEGATRON = {"engine": "swift-megatron", "parallel.tensor": 2, "parallel.pipeline": 2}
TILE = 32 * 32


def job_of(config, values):
    job, problems = parse_job(
        {
            "cluster": {"gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8},
            "model": {"hf_config": config},
            "engine": "swift-zero3",
        }
    )
    assert not problems
    return with_values(job, values)


def memory_of(config, values):
    return estimate(job_of(config, values)).reserved_gib


def patches_of(config, values):
    return patches_per_image(job_of(config, values), parse_model(config).vision)


def test_both_forms_of_internvl_have_the_same_parameters():
    own, theirs = (model_layers(parse_model(config)) for config in (OWN, HF))
    assert model_parameters(own) == model_parameters(theirs) == models()["internvl3.5-8b"].parameters
    assert vision_parameters(own.vision) == vision_parameters(theirs.vision)


@pytest.mark.parametrize("frozen", [{}, FROZEN], ids=["all", "language model alone"])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"engine": "swift-ddp", "training.method": "lora"},
        {"parallel.recompute": "none"},
        MEGATRON,
        {**MEGATRON, "parallel.recompute": "full"},
    ],
    ids=str,
)
def test_both_forms_of_internvl_have_the_same_estimate(values, frozen):
    """The tower of its own form projects queries, keys and values in one module, so its passes start fewer kernels."""
    own, theirs = (estimate(job_of(config, {**values, **frozen})) for config in (OWN, HF))
    assert own.reserved_gib == pytest.approx(theirs.reserved_gib, rel=0.001 if frozen else 0.15)
    assert own.iteration_s == pytest.approx(theirs.iteration_s, rel=0.06)


@pytest.mark.parametrize(
    ("config", "values", "tiles"),
    [
        (OWN, {}, 13),
        (HF, {}, 13),
        (OWN, {"environment": {"MAX_NUM": "4"}}, 5),
        (OWN, {"environment": {"MAX_NUM": "1"}}, 1),
        (OWN, {"environment": {"MAX_NUM": "no"}}, 13),
        # The processor of the other form reads no variable.
        (HF, {"environment": {"MAX_NUM": "4"}}, 13),
        (HF, {"engine": "llamafactory-zero3"}, 1),
        (HF, {"engine": "llamafactory-zero3", "extra": {"crop_to_patches": True}}, 13),
    ],
)
def test_an_image_of_internvl_is_cut_into_tiles_as_the_engine_does_it(config, values, tiles):
    assert patches_of(config, values) == tiles * TILE
    assert parse_model(config).vision.image_tokens(tiles * TILE) == tiles * 256


def test_a_tile_of_internvl_attends_to_itself():
    [part] = model_layers(parse_model(OWN)).vision.blocks
    [attention] = [each for each in part.kind.operators if type(each).__name__ == "Attention"]
    assert attention.window == TILE


def test_ms_swift_computes_no_gradients_in_a_tower_that_is_frozen_whole():
    lora = {"engine": "swift-ddp", "training.method": "lora"}
    shape = parse_model(HF)
    assert not layers_of_job(job_of(HF, {**lora, **FROZEN}), shape).vision.patches_need
    assert layers_of_job(job_of(HF, {**lora, **FROZEN, "engine": "llamafactory-ddp"}), shape).vision.patches_need
    # The projector of some towers is a part of them.
    trained = {**FROZEN, "training.freeze.projector": False}
    assert layers_of_job(job_of(HF, {**lora, **trained}), shape).vision.patches_need


def test_megatron_of_ms_swift_recomputes_a_trained_tower_unless_told_otherwise():
    kept = {"extra": {"vit_gradient_checkpointing": False}}
    assert memory_of(OWN, {**MEGATRON, **kept}) > memory_of(OWN, MEGATRON) + 10
    assert memory_of(OWN, {**MEGATRON, **kept, **FROZEN}) == memory_of(OWN, {**MEGATRON, **FROZEN})
    plan = Plan(sequence_length=4096, micro_batches=1, recomputes_tower=True)
    assert (plan.full_recompute, plan.of_tower().full_recompute) == (False, True)


def test_the_tower_is_whole_on_the_first_stage_of_a_pipeline():
    layers = layers_of_job(job_of(OWN, MEGATRON), parse_model(OWN))
    tower, projector, _ = vision_parameters(layers.vision)
    text = {**OWN["llm_config"], "tie_word_embeddings": False}
    whole, alone = ([stage.parameters for stage in estimate(job_of(config, MEGATRON)).stages] for config in (OWN, text))
    assert [with_tower - without for with_tower, without in zip(whole, alone, strict=True)] == [tower + projector, 0]


@pytest.mark.parametrize(
    ("name", "tower", "projector"),
    [
        # The table of visual embeddings counts to the tower, as in ms-swift and mcore-bridge.
        ("Ovis2.5-9B", 413_534_448 + 65_536 * 4096, 65_532 * (4 * 1152 + 2)),
        ("dots.ocr", 1_214_894_592, 47_196_672),
        ("LLaVA-OneVision-1.5-8B", 336_479_264 - 33_564_672, 33_564_672),
    ],
)
def test_a_tower_and_its_projector_are_the_parts_that_the_engine_freezes(name, tower, projector):
    vision = model_layers(parse_model(read_own_code()[name]["config"])).vision
    assert vision_parameters(vision) == (tower, projector, 0)


@pytest.mark.parametrize(("name", "pixels"), [("Ovis2.5-9B", 32), ("LLaVA-OneVision-1.5-8B", 28), ("dots.ocr", 28)])
def test_towers_that_keep_the_size_of_an_image_make_a_token_of_a_square(name, pixels):
    config = read_own_code()[name]["config"]
    patches = patches_of(config, {"training.image_max_pixels": 9 * pixels**2})
    assert parse_model(config).vision.image_tokens(patches) == 9


def test_ms_swift_freezes_no_tower_of_dots_ocr_in_full_training():
    config = read_own_code()["dots.ocr"]["config"]
    shape = parse_model(config)
    assert trained_parts(job_of(config, FROZEN), shape) == Trained()
    assert not trained_parts(job_of(config, {**FROZEN, "training.method": "lora"}), shape).vision
    assert not trained_parts(job_of(config, {**FROZEN, "engine": "llamafactory-zero3"}), shape).tower
