"""Towers that only a later transformers has: operations and peaks that torch counted (benchmarks/newer_towers.py)."""

from dataclasses import replace

import pytest

from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.terms import STATIC_BYTES
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.adapters import adapter_parameters
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import vision_parameters
from backend.estimate.model.work import pipeline_work
from backend.estimate.plan import Plan
from backend.job.model import parse_model
from backend.job.traits import TRAITS
from benchmarks.small_models import TOWER_IMAGES, TOWER_MODELS

COUNTED = {
    "cohere_compass": 4_737_466_368,
    "step3p7": 4_532_994_048,
    "exaone4_5": 5_207_228_416,
    "gemma4_unified": 268_435_456,
    # Two tiles of an image, whose patches attend to their tile alone.
    "granite4_vision": 15_707_668_480,
    "kimi_k25": 4_247_781_376,
    # The patches of both images see each other.
    "minimax_m3_vl": 5_039_456_256,
    "muse_glimmer": 4_301_258_752,
    "qwen3_asr": 1_791_033_344,
}
"""Operations that two images add to a forward pass."""
PEAKS = {
    ("granite4_vision", "full"): 407.2,
    ("granite4_vision", "none"): 517.3,
    ("minimax_m3_vl", "full"): 247.6,
    ("minimax_m3_vl", "none"): 330.0,
}
"""Type and recompute -> MiB of the peak of a step of full training."""


@pytest.mark.parametrize("name", COUNTED)
def test_the_operations_of_a_tower_are_those_that_torch_counts(name):
    layers, patches = model_layers(parse_model(TOWER_MODELS[name])), TOWER_IMAGES[name][0]
    plans = [Plan(sequence_length=256, micro_batch=2, micro_batches=1, images=each, patches=patches) for each in (2, 0)]
    with_images, without = (pipeline_work(layers, plan, Trained())[0].forward for plan in plans)
    assert with_images - without == COUNTED[name]


@pytest.mark.parametrize(("name", "recompute"), PEAKS)
def test_the_peak_of_a_step_with_images_is_near_that_of_torchs_tracker(name, recompute):
    layers, patches = model_layers(parse_model(TOWER_MODELS[name])), TOWER_IMAGES[name][0]
    plan = Plan(
        sequence_length=256, micro_batch=2, micro_batches=2, images=2, patches=patches, recompute=recompute
    )  # fmt: skip
    memory = data_parallel_memory(layers, plan, TRAITS["llamafactory-ddp"].memory, Tuning(trained=Trained()))
    assert (memory.peak - STATIC_BYTES) / 2**20 == pytest.approx(PEAKS[name, recompute], rel=0.03)


def test_a_trained_q_former_is_computed_again_with_the_blocks_of_its_tower():
    layers = model_layers(parse_model(TOWER_MODELS["granite4_vision"]))
    plan = Plan(sequence_length=256, micro_batch=2, micro_batches=1, images=2, patches=512, recompute="full")
    whole, frozen = (
        pipeline_work(layers, plan, Trained(language=False, tower=False, merger=each))[0].recomputed
        for each in (True, False)
    )
    assert whole > frozen


def test_patches_see_those_of_other_images_only_in_a_tower_that_joins_images():
    plan = Plan(sequence_length=256, micro_batches=1, images=3, patches=64)
    assert plan.patches_seen(joins_images=False) == 64
    assert plan.patches_seen(joins_images=True) == 3 * 64
    assert replace(plan, images=0).patches_seen(joins_images=True) == 64


@pytest.mark.parametrize("name", TOWER_MODELS)
def test_an_image_becomes_the_tokens_that_transformers_makes(name):
    patches, tokens = TOWER_IMAGES[name]
    assert parse_model(TOWER_MODELS[name]).vision.image_tokens(patches) == tokens


def test_minicpm_v_joins_patches_between_its_blocks():
    blocks = model_layers(parse_model(TOWER_MODELS["minicpmv4_6"])).vision.blocks
    assert [(part.count, part.joined, part.checkpointed) for part in blocks] == [
        (2, 1, True),
        (1, 1, False),
        (1, 4, False),
        (2, 4, True),
    ]


def test_gemma_4_unified_is_a_projector_without_a_tower():
    layers = model_layers(parse_model(TOWER_MODELS["gemma4_unified"]))
    assert vision_parameters(layers.vision) == (0, 593_920, 0)
    frozen, trained = (Trained(tower=tower, merger=True) for tower in (False, True))
    assert adapter_parameters(layers, 8, "all", frozen) == adapter_parameters(layers, 8, "all", trained)


def test_the_matrices_between_the_blocks_of_minicpm_v_have_adapters_and_so_has_its_projector():
    layers = model_layers(parse_model(TOWER_MODELS["minicpmv4_6"]))
    tower = Trained(language=False, tower=True, merger=False)
    # linear_1: 1024 to 4096, linear_2: 4096 to 256 in the tower; 1024 to 1024 and 1024 to 256 in the projector.
    assert adapter_parameters(layers, 8, "linear_1,linear_2", tower) == 8 * (1024 + 4096 + 4096 + 256)
    assert adapter_parameters(layers, 8, "all", tower._replace(merger=True)) > adapter_parameters(
        layers, 8, "all", tower
    )
