"""A shell script, or ms-swift's YAML, becomes the job that it trains. The report names what is lost."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engines import ENGINES
from backend.engines.engine import target_of
from backend.engines.importing import Imported, import_source, read_source
from backend.engines.importing.shell import commands, is_open
from backend.engines.yaml_text import to_yaml
from backend.job.job import Job
from backend.job.mapping import get_value, parse_job, with_values
from backend.job.problems import ProblemsError
from tests.engines.test_importing import job_of
from tests.engines.test_swift_megatron import CASES
from tests.engines.test_swift_trainer import CASES as TRAINER_CASES

CLUSTER = {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8}


def imported(text: str) -> tuple[Job, dict[str, str | None]]:
    """Return the job of a text, and the code of the reason of every key."""
    result = import_source(read_source(text), CLUSTER)
    return job_of(result), {line.key: line.reason.code if line.reason else None for line in result.lines}


def words_of(text: str) -> list[tuple[str, ...]]:
    return [command.words for command in commands(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a --b 'c d' \"e'f\" # g\nh", [("a", "--b", "c d", "e'f"), ("h",)]),
        ("a \\\n  --b c#d \\\n  e\n", [("a", "--b", "c#d", "e")]),
        ("X=1\nY=${X}2; a $X ${Y} \"$X\" '$X' ${Z:-3} $Z", [("a", "1", "12", "1", "$X", "3", "$Z")]),
        ("nohup a b > out.log 2>&1 &\nc <in && d | e", [("a", "b"), ("c",), ("d",), ("e",)]),
        ("a $(date +%s) `hostname`", [("a", "$(date +%s)", "`hostname`")]),
        ("a \\\n", [("a",)]),
        ("a 'open", [("a", "open")]),
        ("", []),
    ],
)
def test_words_are_split_as_a_shell_splits_them(text: str, words: list[tuple[str, ...]]) -> None:
    assert words_of(text) == words


def test_variables_before_a_command_and_exported_ones_belong_to_it() -> None:
    text = "export A=1 B=2\nC=3\nA=4\nD=5 run --x $C\nrun"
    assert [dict(command.variables) for command in commands(text)] == [
        {"A": "4", "B": "2", "D": "5"},
        {"A": "4", "B": "2"},
    ]


@settings(max_examples=100)
@given(text=st.text(alphabet="ab=$'\"\\{}()`;|&<># \n-", max_size=40))
def test_any_text_is_split_and_ends(text: str) -> None:
    assert all(command.words for command in commands(text))


SCRIPT = """
# 8 * 80GiB
MODEL=/models/Qwen3-30B-A3B
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \\
NNODES=2 NODE_RANK=0 MASTER_ADDR=$MASTER_ADDR NPROC_PER_NODE=4 MAX_PIXELS=1003520 \\
megatron sft \\
    --model $MODEL \\
    --save_safetensors true \\
    --dataset '/data/chat/a.jsonl' /data/chat/more/b.jsonl \\
    --tuner_type lora --lora_rank 16 --lora_alpha 32 --target_modules all-linear \\
    --tensor_model_parallel_size 2 --expert_model_parallel_size 4 --sequence_parallel true \\
    --micro_batch_size 2 \\
    --global_batch_size 32 \\
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 \\
    --max_epochs 1 --lr 1e-4 --lr_warmup_fraction 0.05 --min_lr 1e-5 \\
    --save /runs/lora-run --save_interval 200 --max_length 8192 --packing true \\
    --moe_aux_loss_coeff 1e-3 --attention_backend flash --finetune true --deepspeed zero3
"""


def test_a_script_of_ms_swift_s_megatron_keeps_its_plan() -> None:
    source = read_source(SCRIPT)
    assert (source.kind, source.command, dict(source.machines)) == (
        "swift",
        "megatron sft",
        {"nodes": 2, "gpus_per_node": 4},
    )
    job, reasons = imported(SCRIPT)
    values = {
        "engine": "swift-megatron",
        "model.preset": "qwen3-30b-a3b",
        "model.path": "/models/Qwen3-30B-A3B",
        "training.stage": "sft",
        "training.method": "lora",
        "training.lora.rank": 16,
        "training.lora.targets": "all",
        "training.dataset_dir": "/data/chat",
        "training.dataset": "a.jsonl,more/b.jsonl",
        "training.global_batch_size": 32,
        "training.micro_batch_size": 2,
        "training.num_train_epochs": 1.0,
        "training.max_steps": None,
        "training.lr_scheduler": "cosine_with_min_lr",
        "training.warmup_ratio": 0.05,
        "training.save_steps": 200,
        "training.output_dir": "/runs",
        "training.precision": "bf16",
        "training.image_max_pixels": 1003520,
        "parallel.tensor": 2,
        "parallel.expert": 4,
        "parallel.recompute": "full",
        "name": "lora-run",
        "extra": {"save_safetensors": True, "moe_aux_loss_coeff": "1e-3", "attention_backend": "flash"},
    }
    assert {path: get_value(job, path) for path in values} == values
    assert reasons["max_epochs"] == reasons["save_interval"] == "import_renamed"
    assert reasons["NODE_RANK"] == reasons["MASTER_ADDR"] == "import_launcher"
    assert reasons["finetune"] is None


def test_what_a_script_leaves_out_is_what_ms_swift_takes_then() -> None:
    job, _ = imported("megatron sft --model /m/Qwen3-8B --dataset /d/a.jsonl --train_iters 9")
    values = {
        "training.global_batch_size": 16,
        "training.learning_rate": 1e-5,
        "training.warmup_ratio": 0.0,
        "training.weight_decay": 0.1,
        "training.max_steps": 9,
        "training.save_total_limit": None,
        "parallel.sequence": False,
        "parallel.recompute": "selective",
        "parallel.bias_activation_fusion": True,
        "parallel.rope_fusion": False,
    }
    assert {path: get_value(job, path) for path in values} == values


@pytest.mark.parametrize(
    ("words", "workers", "reason"),
    [
        ("--streaming true --dataloader_num_workers 4", 1, "import_swift_stream"),
        ("--streaming true --dataloader_num_workers 0", 0, None),
        ("--streaming true", 1, None),
        ("--dataloader_num_workers 8", 8, None),
        ("", 4, None),
    ],
)
def test_megatron_of_ms_swift_streams_with_one_loader_process(words: str, workers: int, reason: str | None) -> None:
    job, reasons = imported(f"megatron pt --model /m/Qwen3-8B --dataset /d/a.jsonl --train_iters 9 {words}")
    assert job.training.workers.data_loader == workers
    assert "dataloader_num_workers" not in words or reasons["dataloader_num_workers"] == reason


@pytest.mark.parametrize("case", CASES)
def test_what_is_rendered_for_ms_swift_is_imported_as_the_same_configuration(case: str) -> None:
    job = CASES[case]
    target = target_of(job)
    config = ENGINES[job.engine].config(target, "/runs/base/it")
    verb = {"sft": "sft", "pt": "pt"}.get(job.training.stage, "rlhf")
    words = [
        f"--{key} {' '.join(map(str, value)) if isinstance(value, list) else value}" for key, value in config.items()
    ]
    back, _ = imported(f"megatron {verb} {' '.join(words)}")
    back = with_values(back, {"model.preset": job.model.preset})
    again = ENGINES[back.engine].config(target_of(back), "/runs/base/it")
    # Data for evaluation are in the job's `extra`, which is not rendered here.
    config.pop("eval_steps", None)
    assert again == config


TRAINER = """
NPROC_PER_NODE=8 NNODES=2 swift rlhf --rlhf_type orpo --model Qwen/Qwen3-8B --train_type full --dataset /d/a.jsonl \\
    --torch_dtype bfloat16 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --learning_rate 1e-5 \\
    --warmup_ratio 0.05 --deepspeed zero3_offload --num_train_epochs 2 --save_steps 50 --max_length 2048 \\
    --output_dir /runs/it --system 'You are a helper.' --template qwen3_thinking --loss_scale default
"""


def test_a_script_of_ms_swift_s_trainers_keeps_its_plan() -> None:
    source = read_source(TRAINER)
    assert (source.command, dict(source.machines)) == ("swift rlhf", {"nodes": 2, "gpus_per_node": 8})
    job, reasons = imported(TRAINER)
    values = {
        "engine": "swift-zero3-offload",
        "model.preset": "qwen3-8b",
        "training.stage": "dpo",
        "training.dpo.loss": "orpo",
        "training.method": "full",
        "training.micro_batch_size": 2,
        "training.gradient_accumulation_steps": 4,
        "training.num_train_epochs": 2.0,
        "training.learning_rate": 1e-5,
        "training.warmup_ratio": 0.05,
        "training.precision": "bf16",
        "training.cutoff_len": 2048,
        "training.eval_steps": None,
        "parallel.recompute": "full",
        "extra": {"system": "You are a helper.", "template": "qwen3_thinking", "loss_scale": "default"},
    }
    assert {path: get_value(job, path) for path in values} == values
    assert reasons["train_type"] == "import_renamed"
    assert reasons["torch_dtype"] is None


ROLLOUTS = """
swift rlhf --rlhf_type grpo --model /m/Qwen3-8B --tuner_type lora --dataset /d/a.jsonl --torch_dtype bfloat16 \\
    --reward_funcs accuracy format --reward_weights 1 0.5 --external_plugins /d/plugin.py --num_generations 4 \\
    --max_completion_length 2048 --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.6 \\
    --sleep_level 2 --temperature 1.0 --beta 0.001 --loss_type dapo --deepspeed zero2 --output_dir /runs/it
"""


def test_a_script_of_grpo_keeps_its_rewards_and_rollouts() -> None:
    job, reasons = imported(ROLLOUTS)
    values = {
        "engine": "swift-zero2",
        "training.stage": "grpo",
        "training.gradient_accumulation_steps": 1,
        "training.grpo.rewards": "accuracy,format",
        "training.grpo.plugin": "/d/plugin.py",
        "training.grpo.group_size": 4,
        "training.grpo.completion_len": 2048,
        "training.grpo.temperature": 1.0,
        "training.grpo.beta": 0.001,
        "training.grpo.epsilon": 0.2,
        "training.grpo.rollout": "vllm",
        "training.grpo.vllm_memory": 0.6,
        "training.grpo.vllm_sleep": True,
        "extra": {"reward_weights": [1, 0.5], "loss_type": "dapo"},
    }
    assert {path: get_value(job, path) for path in values} == values
    assert reasons["sleep_level"] == "import_sleep_level"


def test_grpo_without_a_beta_has_that_of_ms_swift_and_dpo_its_own() -> None:
    betas = {
        kind: imported(f"swift rlhf --rlhf_type {kind} --model /m/it --dataset /d/a.jsonl")[0].training
        for kind in ("grpo", "dpo", "simpo")
    }
    assert (betas["grpo"].grpo.beta, betas["dpo"].dpo.beta, betas["simpo"].dpo.beta) == (0.04, 0.1, 2.0)


def test_a_file_of_rewards_with_a_relative_path_is_told() -> None:
    job, reasons = imported("swift rlhf --rlhf_type grpo --model /m/it --dataset /d/a.jsonl --external_plugins a.py")
    assert (job.training.grpo.plugin, reasons["external_plugins"]) == (None, "import_plugin")


def test_weights_of_16_bits_that_become_fp32_are_told() -> None:
    text = "swift sft --model /m/Qwen3-8B --tuner_type full --dataset /d/a.jsonl --torch_dtype bfloat16"
    job, reasons = imported(text)
    assert (job.engine, job.training.precision) == ("swift-ddp", "bf16")
    assert reasons["torch_dtype"] == "import_swift_weights"


def test_a_yaml_of_ms_swift_s_trainers_is_imported_with_what_it_leaves_out() -> None:
    job, _ = imported("tuner_type: lora\nmodel: /m/Qwen3-8B\ndataset: [/d/a.jsonl]\nquant_method: bnb\nquant_bits: 4\n")
    values = {
        "engine": "swift-ddp",
        "training.method": "qlora",
        "training.learning_rate": 1e-4,
        "training.gradient_accumulation_steps": 16,
        "training.weight_decay": 0.1,
        "training.logging_steps": 5,
        "training.save_steps": 500,
        "training.workers.data_loader": 1,
    }
    assert {path: get_value(job, path) for path in values} == values


@pytest.mark.parametrize("case", TRAINER_CASES)
def test_what_is_rendered_for_ms_swift_s_trainers_is_imported_as_the_same_configuration(case: str) -> None:
    job = TRAINER_CASES[case]
    engine, target = ENGINES[job.engine], target_of(job)
    config = engine.config(target, "/runs/base/it")
    files = {name: json.loads(text) for name, text in engine.files(target).items()}
    source = read_source(to_yaml(config))
    if job.training.stage == "pt":
        source = replace(source, command="swift pt")
    back = with_values(job_of(import_source(source, CLUSTER, files.get)), {"model.preset": job.model.preset})
    assert back.engine == job.engine
    again = ENGINES[back.engine].config(target_of(back), "/runs/base/it")
    # These come from the model's name again, or are passed on in `extra`, which is not rendered here.
    derived = {"model_type", "template", "attn_impl", "lr_scheduler_kwargs"}
    assert {key: value for key, value in again.items() if key not in derived} == {
        key: value for key, value in config.items() if key not in derived
    }
    assert engine.files(target) == ENGINES[back.engine].files(target_of(back))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("swift rlhf --rlhf_type gkd --model /m/it --dataset /d/a.jsonl", "import_stage"),
        ("swift rlhf --rlhf_type grpo --model /m/it --use_vllm true --vllm_mode server", "import_vllm_server"),
        ("swift sft --model /m/it --dataset /d/a.jsonl --tuner_type adalora", "import_swift_tuner"),
        ("swift sft --model /m/it --dataset /d/a.jsonl --quant_method hqq", "import_swift_tuner"),
        ("swift sft --model /m/it --dataset /d/a.jsonl --deepspeed mine.json", "import_deepspeed_missing"),
        ("megatron rlhf --rlhf_type grpo --model /m/it", "import_stage"),
        ("megatron sft --model /m/it --task_type seq_cls", "import_swift_task"),
        ("megatron sft --model /m/it --tuner_type lora_llm", "import_swift_tuner"),
        ("megatron sft --mcore_model /m/it", "import_swift_model"),
        ("#!/bin/bash\necho hello", "import_script_without_training"),
        ("swift infer --model x", "import_script_without_training"),
        ("swift rlhf --model /m/it --dataset /d/a.jsonl --loss_type sigmoid bco_pair sft", "import_swift_losses"),
        ("accelerate launch --config_file c.yaml swift/cli/sft.py --model /m/it", "import_file_missing"),
        ("megatron pt --model /m/it\nmegatron sft --model /m/it", "import_script_of_several"),
        ("accelerate launch --config_file c.yaml src/train.py x.yaml", "import_file_missing"),
    ],
)
def test_what_nothing_here_starts_is_refused_by_its_name(text: str, code: str) -> None:
    with pytest.raises(ProblemsError) as raised:
        import_source(read_source(text), CLUSTER)
    assert [problem.code for problem in raised.value.problems] == [code]


def test_flags_of_llamafactory_are_keys() -> None:
    text = (
        "MODEL=/m/Qwen3-8B\nllamafactory-cli train --stage sft --do_train --model_name_or_path ${MODEL} --bf16 "
        "--finetuning_type lora --dataset a,b --learning_rate 1e-4 --output_dir $OUT --template qwen3"
    )
    job, reasons = imported(text)
    assert (job.engine, job.training.method, job.training.precision) == ("llamafactory-ddp", "lora", "bf16")
    assert (job.training.dataset, job.training.learning_rate, job.training.output_dir) == ("a,b", 1e-4, None)
    assert reasons["output_dir"] == "import_open"


def test_the_yaml_of_a_script_is_read_with_its_changes_and_accelerate_s_file() -> None:
    files: dict[str, Any] = {
        "x.yaml": {"model_name_or_path": "/m/it", "do_train": True, "stage": "sft", "finetuning_type": "full"},
        "fsdp.yaml": {
            "distributed_type": "FSDP",
            "fsdp_config": {"fsdp_version": 2},
            "num_machines": 3,
            "num_processes": 6,
        },
    }
    text = "accelerate launch --config_file fsdp.yaml src/train.py x.yaml cutoff_len=99"
    source = read_source(text, files.get)
    assert dict(source.machines) == {"nodes": 3, "gpus_per_node": 2}
    result: Imported = import_source(source, CLUSTER, files.get)
    job = job_of(result)
    assert (job.engine, job.parallel.fsdp.version, job.training.cutoff_len) == ("llamafactory-fsdp", 2, 99)


FSDP: dict[str, Any] = {"distributed_type": "FSDP", "num_machines": 2, "num_processes": 8}
ZERO: dict[str, Any] = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}}


@pytest.mark.parametrize(
    ("settings", "engine", "values", "why"),
    [
        (
            {
                **FSDP,
                "fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": True, "fsdp_activation_checkpointing": True},
            },
            "swift-fsdp",
            (True, True),
            "import_engine",
        ),
        (
            {**FSDP, "fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}},
            "swift-fsdp",
            (False, False),
            "import_fsdp_first",
        ),
        (ZERO, "swift-zero3", (False, True), None),
        ({"distributed_type": "MULTI_GPU"}, "swift-ddp", (False, True), None),
    ],
)
def test_accelerate_s_file_shards_a_script_of_ms_swift(
    settings: dict[str, Any], engine: str, values: tuple[bool, bool], why: str | None
) -> None:
    text = (
        "accelerate launch --config_file a.json swift/cli/sft.py --model /m/it --dataset /d/a.jsonl "
        "--gradient_checkpointing false"
    )
    files: dict[str, Any] = {"a.json": settings}
    source = read_source(text, files.get)
    result = import_source(source, CLUSTER, files.get)
    job = job_of(result)
    assert (job.engine, job.parallel.fsdp.offload, job.parallel.fsdp.reshard_after_forward) == (engine, *values)
    assert job.parallel.fsdp.version == 2
    is_checkpointed = "fsdp_activation_checkpointing" in settings.get("fsdp_config", {})
    assert (job.recompute, dict(job.environment)) == ("full" if is_checkpointed else "none", {})
    lines = {line.key: line.reason.code for line in result.lines if line.reason}
    assert lines.get("fsdp") == why
    if settings is not FSDP and "num_machines" in settings:
        assert dict(source.machines) == {"nodes": 2, "gpus_per_node": 4}


def test_accelerate_s_file_may_be_given_beside_a_yaml_of_ms_swift() -> None:
    text = "model: /m/it\ntuner_type: lora\ndataset: [/d/a.jsonl]\n"
    source = read_source(text, accelerate=ZERO)
    assert job_of(import_source(source, CLUSTER)).engine == "swift-zero3"
    with pytest.raises(ProblemsError) as raised:
        read_source("model: /m/it\ndataset: [/d/a.jsonl]\nlr: 1e-5\ntensor_model_parallel_size: 2\n", accelerate=ZERO)
    assert [problem.code for problem in raised.value.problems] == ["import_accelerate_alone"]


def test_adapters_on_further_layers_than_the_linear_ones_are_reported() -> None:
    job, reasons = imported("swift sft --model /m/it --dataset /d/a.jsonl --target_modules all-linear lm_head")
    assert (job.training.lora.targets, reasons["target_modules"]) == ("all", "import_swift_targets")


def test_a_yaml_of_ms_swift_s_megatron_with_variables_is_imported() -> None:
    text = "ENV:\n  NPROC_PER_NODE: '4'\nmodel: /m/Qwen3-8B\ndataset: [/d/a.jsonl]\nglobal_batch_size: 8\nlr: 1e-5\n"
    assert dict(read_source(text).machines) == {"gpus_per_node": 4}
    job, _ = imported(text)
    assert (job.engine, job.training.global_batch_size, dict(job.environment)) == ("swift-megatron", 8, {})


def test_a_job_file_is_told_from_a_configuration() -> None:
    assert read_source("version: 1\ncluster: {}\n").kind == "job"
    assert parse_job({"cluster": CLUSTER})[0] is not None
    assert is_open("$HOME/x")
    assert not is_open("price: 5 dollars")
