"""LLaMA-Factory under DeepSpeed ZeRO: its configuration of the job."""

import json
from typing import Any

import pytest
import yaml

from backend.engines import export, render
from backend.job.job import Job
from tests.engines.cases import SHARDED
from tests.engines.jobs import place, sharded

ENGINES = ("zero2", "zero2-offload", "zero3", "zero3-offload")


def zero_of(the_job: Job) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(render(the_job, place(the_job)).files["deepspeed.json"])
    return config["zero_optimization"]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_configuration_names_the_file_that_lies_beside_it(engine: str) -> None:
    the_job = sharded(engine)
    files = render(the_job, place(the_job)).files
    assert set(files) == {"config.yaml", "deepspeed.json"}
    assert yaml.safe_load(files["config.yaml"])["deepspeed"] == "deepspeed.json"


def test_the_plain_scripts_carry_the_file_too() -> None:
    exported = export(sharded("zero3"))
    assert exported["deepspeed.json"] == render(sharded("zero3"), place(sharded("zero3"))).files["deepspeed.json"]
    assert "for file in config.yaml deepspeed.json attached.sh" in exported["launch.sh"]


def test_the_stage_and_what_is_offloaded_follow_from_the_engine() -> None:
    devices = {
        engine: (zero["stage"], "offload_optimizer" in zero, "offload_param" in zero)
        for engine in ENGINES
        for zero in [zero_of(sharded(engine))]
    }
    assert devices == {
        "zero2": (2, False, False),
        "zero2-offload": (2, True, False),
        "zero3": (3, False, False),
        "zero3-offload": (3, True, True),
    }


def test_a_checkpoint_of_stage_3_holds_whole_weights() -> None:
    assert zero_of(sharded("zero3"))["stage3_gather_16bit_weights_on_model_save"] is True


def test_offloading_to_a_disk_names_the_folder() -> None:
    zero = zero_of(SHARDED["zero3 nvme"])
    assert zero["offload_param"] == zero["offload_optimizer"]
    assert zero["offload_param"] == {"device": "nvme", "pin_memory": True, "nvme_path": "/local/nvme/offload"}
    assert "nvme_path" not in zero_of(sharded("zero3-offload"))["offload_param"]


def test_cpu_ranks_are_not_told_use_cpu_as_accelerate_would_leave_deepspeed_out() -> None:
    config = yaml.safe_load(render(SHARDED["zero3 cpu"], place(SHARDED["zero3 cpu"])).files["config.yaml"])
    assert "use_cpu" not in config
    assert config["ddp_backend"] == "gloo"


def test_what_the_trainer_knows_is_left_to_it() -> None:
    config = json.loads(render(sharded("zero2"), place(sharded("zero2"))).files["deepspeed.json"])
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    assert {config[name] for name in names} | {config[kind]["enabled"] for kind in ("bf16", "fp16")} == {"auto"}
