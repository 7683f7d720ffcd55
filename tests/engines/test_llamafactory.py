"""The keys that LLaMA-Factory's trainers share, and those of its Hugging Face trainer."""

import pytest

from backend.engines import ENGINES
from backend.engines.engine import target_of
from backend.engines.known_keys import keys_of
from backend.job.job import Job
from tests.engines.cases import HUGGING_FACE, MEGATRON, SHARDED
from tests.engines.jobs import ddp, job


def config_of(the_job: Job) -> dict[str, object]:
    return ENGINES[the_job.engine].config(target_of(the_job), "/runs/it")


@pytest.mark.parametrize(
    "the_job",
    [*HUGGING_FACE.values(), *SHARDED.values(), *MEGATRON.values()],
    ids=[*HUGGING_FACE, *SHARDED, *MEGATRON],
)
def test_the_engine_knows_every_key_which_names_the_job_path_that_decides_it(the_job: Job) -> None:
    keys = config_of(the_job).keys()
    assert keys <= keys_of(the_job.engine).keys()
    assert keys - ENGINES[the_job.engine].owned.keys() <= {"lr_scheduler_kwargs"}


def test_the_method_is_always_written_because_the_default_is_lora() -> None:
    methods = {name: config_of(created)["finetuning_type"] for name, created in HUGGING_FACE.items()}
    assert methods["full"] == "full"
    assert methods["partial"] == "freeze"
    assert methods["lora"] == methods["qlora"] == "lora"
    assert all(config_of(created)["finetuning_type"] == "full" for created in MEGATRON.values())


def test_partial_training_names_the_last_layers() -> None:
    assert config_of(HUGGING_FACE["partial"])["freeze_trainable_layers"] == 3


def test_lora_keys_come_with_lora_only() -> None:
    lora = config_of(HUGGING_FACE["lora"])
    assert (lora["lora_rank"], lora["lora_alpha"], lora["lora_target"]) == (8, 16, "q_proj,v_proj")
    assert not [key for key in config_of(HUGGING_FACE["full"]) if "lora" in key]
    assert config_of(HUGGING_FACE["qlora"])["quantization_bit"] == 4


def test_vision_keys_come_with_a_vision_tower_only() -> None:
    vision = config_of(HUGGING_FACE["vision"])
    assert vision["freeze_vision_tower"] is True
    assert vision["freeze_multi_modal_projector"] is False
    assert "image_max_pixels" not in config_of(HUGGING_FACE["full"])


def test_accumulation_follows_from_the_wanted_global_batch() -> None:
    the_job = job(nodes=2, ranks=4, parallel__tensor=2, training__global_batch_size=32, training__micro_batch_size=2)
    assert config_of(the_job)["gradient_accumulation_steps"] == 4


def test_steps_take_the_place_of_epochs() -> None:
    assert "num_train_epochs" not in config_of(ddp(training__max_steps=5))
    assert "max_steps" not in config_of(ddp())


def test_pretraining_packs_only_when_the_job_says_so() -> None:
    assert config_of(ddp(training__stage="pt", training__template=None))["packing"] is False
    assert "template" not in config_of(ddp(training__stage="pt", training__template=None))


def test_gradient_checkpointing_is_left_on_or_turned_off() -> None:
    assert "disable_gradient_checkpointing" not in config_of(ddp(parallel__recompute="full"))
    assert config_of(ddp(parallel__recompute="none"))["disable_gradient_checkpointing"] is True


def test_a_lowest_rate_comes_with_the_scheduler_that_needs_one() -> None:
    the_job = ddp(training__lr_scheduler="cosine_with_min_lr", training__learning_rate=1e-4)
    assert config_of(the_job)["lr_scheduler_kwargs"] == {"min_lr": 1e-5}


def test_nan_losses_and_tokens_are_reported() -> None:
    config = config_of(ddp())
    assert config["logging_nan_inf_filter"] is False
    assert config["include_num_input_tokens_seen"] is True
