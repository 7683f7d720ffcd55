"""Mllama (Llama 3.2 Vision): some layers attend to images, which have one token each in the sequence."""

from dataclasses import replace

import pytest

from backend.cluster.inventory.dataset_size import _image_tokens
from backend.estimate import estimate
from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.terms import STATIC_BYTES
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.adapters import adapter_parameters, quantised_parameters
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters, vision_parameters
from backend.estimate.model.work import flops_per_token
from backend.estimate.plan import Plan, plan_of
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.problems import ProblemsError
from backend.job.traits import TRAITS
from benchmarks.small_models import CROSS_ATTENTION_TOWER, SEEING
from tests.estimate.cases import job

# transformers 5.6.0 has these sizes as defaults, but for the 560 pixels of an image in Llama-3.2-11B-Vision.
TEXT = {
    "model_type": "mllama_text_model", "hidden_size": 4096, "num_hidden_layers": 40, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
LARGE = {
    "model_type": "mllama",
    "text_config": TEXT,
    "vision_config": {"model_type": "mllama_vision_model", "image_size": 560},
}
FROZEN = Trained(tower=False, merger=False, deep_stack=False)


def job_of(**values):
    values = {"engine": "llamafactory-zero3", "training__freeze__vision_tower": True, **values}
    made = job(training__freeze__projector=True, **values)
    return replace(made, model=Model(hf_config=LARGE))


def test_the_parameters_of_11b_are_those_that_transformers_builds() -> None:
    # Counted on MllamaForConditionalGeneration, its vision_model and its multi_modal_projector.
    layers = model_layers(parse_model(LARGE))
    assert model_parameters(layers) == 10_670_220_835
    assert layers.vision is not None
    assert vision_parameters(layers.vision) == (863_567_379, 31_461_376, 0)


def test_a_frozen_tower_and_projector_leave_the_language_model_to_be_trained() -> None:
    [stage] = estimate(job_of()).stages
    assert stage.trainable_parameters == 10_670_220_835 - 863_567_379 - 31_461_376
    [whole] = estimate(job_of(training__freeze__vision_tower=False)).stages
    assert whole.trainable_parameters == 10_670_220_835 - 31_461_376


def test_the_output_layer_is_never_tied_to_the_larger_embedding() -> None:
    tied = {**LARGE, "tie_word_embeddings": True, "text_config": {**TEXT, "tie_word_embeddings": True}}
    assert parse_model(tied) == parse_model(LARGE)


def test_layers_with_cross_attention_have_adapters_and_4_bit_weights_like_the_others() -> None:
    layers = model_layers(parse_model(LARGE))
    # q_proj, k_proj, v_proj, o_proj; gate_proj, up_proj, down_proj
    each = (4096 + 4096) * 2 + (4096 + 1024) * 2 + (4096 + 14336) * 3
    assert adapter_parameters(layers, 8, "all", FROZEN) == 40 * 8 * each
    assert adapter_parameters(layers, 8, "k_proj", FROZEN) == 40 * 8 * (4096 + 1024)
    matrices = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    tower = 40 * (4 * 1280**2 + 2 * 1280 * 5120) + 7680 * 4096
    assert quantised_parameters(layers) == 40 * matrices + tower


def test_an_image_is_one_token_and_four_tiles_of_whole_groups_of_eight_patches() -> None:
    vision = parse_model(LARGE).vision
    assert vision is not None
    assert (vision.image_patches, vision.keys) == (4 * 1608, 4 * 1601)
    assert _image_tokens(job_of(training__images_per_sample=3)) == 3


def test_a_batch_without_images_has_the_picture_that_llamafactory_adds() -> None:
    vision = parse_model(LARGE).vision
    plans = [plan_of(job_of(training__images_per_sample=count), vision) for count in (0, 1, 2)]
    assert [plan.images for plan in plans] == [1, 1, 2]
    assert [plan.cross_attention_length for plan in plans] == [6404, 6404, 2 * 6404]


def test_flops_count_keys_and_values_once_and_the_attention_to_them_for_every_token() -> None:
    layers = model_layers(parse_model(LARGE))

    def flops(images: int) -> float:
        plan = Plan(sequence_length=1000, micro_batches=1, images=images, patches=0, image_keys=6404)
        return 1000 * flops_per_token(layers, plan, FROZEN)

    # Forward and the gradients of the weights of keys and values; three times both products of the attention. The
    # projector, which is frozen, has only its forward pass, but runs for patches, of which there are none here.
    keys = 6404 * 2 * 2 * 4096 * 2048
    attention = 1000 * 6404 * 3 * 2 * 2 * 4096
    assert flops(2) - flops(1) == pytest.approx(8 * (keys + attention))


@pytest.mark.parametrize("engine", [f"llamafactory-{name}" for name in ("ddp", "zero2", "zero3", "fsdp")])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_more_images_take_more_memory_and_time_on_every_engine(engine: str, method: str) -> None:
    few, many = (
        estimate(job_of(engine=engine, training__method=method, training__images_per_sample=count)) for count in (1, 4)
    )
    assert many.stages[0].activations_gib > few.stages[0].activations_gib
    assert many.iteration_s is not None
    assert few.iteration_s is not None
    assert many.iteration_s > few.iteration_s


# MiB at the peak of two sequences of 256 tokens with an image each, by benchmarks/step_peak.py: torch 2.13.0 on CPU,
# transformers 5.6.0, peft 0.18.1. (vocabulary, checkpointing, what is trained)
MEASURED = {
    (4096, True, "all"): 205.3,
    (4096, False, "all"): 238.1,
    (4096, True, "language"): 120.1,
    (512, False, "language"): 103.7,
    (512, True, "LoRA"): 41.7,
    (512, False, "LoRA"): 49.2,
}


@pytest.mark.parametrize("case", list(MEASURED), ids=lambda case: " ".join(map(str, case)))
def test_the_peak_of_a_step_with_images_is_within_three_percent_of_torchs(case: tuple[int, bool, str]) -> None:
    vocabulary, checkpointing, trained = case
    text = {**SEEING["mllama"]["text_config"], "vocab_size": vocabulary}
    shape = parse_model({"model_type": "mllama", "text_config": text, "vision_config": CROSS_ATTENTION_TOWER})
    assert shape.vision is not None
    plan = Plan(
        sequence_length=256,
        micro_batch=2,
        micro_batches=2,
        recompute="full" if checkpointing else "none",
        images=2,
        patches=shape.vision.image_patches,
        image_keys=shape.vision.keys,
    )
    tuning = Tuning(trained=Trained() if trained == "all" else FROZEN, method="lora" if trained == "LoRA" else "full")
    memory = TRAITS["llamafactory-ddp"].memory
    assert memory is not None
    peak = data_parallel_memory(model_layers(shape), plan, memory, tuning).peak
    assert float(peak - STATIC_BYTES) / 2**20 == pytest.approx(MEASURED[case], rel=0.03)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("vision_config", "supported_aspect_ratios", 4),
        ("vision_config", "max_num_tiles", 0),
        ("text_config", "cross_attention_layers", "3"),
    ],
)
def test_a_broken_key_is_refused_by_its_name(part: str, key: str, value: object) -> None:
    with pytest.raises(ProblemsError) as raised:
        parse_model({**LARGE, part: {**LARGE[part], key: value}})
    [problem] = raised.value.problems
    assert (problem.code, problem.values["key"]) == ("bad_model_key", key)
