"""Failures of data parallel training, DeepSpeed, FSDP, Megatron, checkpoints and numbers."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.diagnosis.provoke.gang import PROOF, Cause, Gang, run_node_python
from tests.diagnosis.provoke.model_and_data import edit, with_model
from tests.diagnosis.provoke.nodes import many_rows
from tools.tiny_data import PREFERENCE

ZERO = {"TORCH_EXTENSIONS_DIR": "$WORK/extensions"}
MEGATRON: Mapping[str, Any] = {
    "engine": "llamafactory-megatron",
    "paths": (str(PROOF), "packages/mcore_adapter"),
    "environment": {"MEGATRON_ON_CPU": "1", "TORCHDYNAMO_DISABLE": "1"},
    "packages": ("torch", "megatron-core", "llamafactory"),
}
MEGATRON_VALUES = {"training.precision": "bf16", "parallel.distributed_optimizer": False}

_DDP = """
import datetime

import torch
from torch.nn.parallel import DistributedDataParallel


def train(folder, rank):
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    torch.manual_seed(0)
"""


def _ddp(lines: str) -> str:
    return _DDP + lines.lstrip("\n")


def trained_first(change: Callable[[Gang], None], **fields: Any) -> Callable[[Gang], None]:
    """Return a preparation: the same job trains to a checkpoint first, with other fields where given."""

    def prepare(gang: Gang) -> None:
        folder = gang.path("out")
        cause = replace(gang.cause, **{"prepare": None, "keys": {"output_dir": str(folder)}, **fields})
        first = Gang(gang.work, f"{gang.name}-first", cause)
        shutil.rmtree(first.run, ignore_errors=True)
        first.start()
        exits = first.finish()
        if any(exits.values()):
            raise RuntimeError(f"the first training failed: {exits}")
        change(gang)

    return prepare


def _numpy_in_optimizer(gang: Gang) -> None:
    script = gang.path("change.py")
    script.write_text(
        "import sys, numpy, torch\n"
        "state = torch.load(sys.argv[1], weights_only=False)\n"
        "state['param_groups'][0]['lr'] = numpy.float64(state['param_groups'][0]['lr'])\n"
        "torch.save(state, sys.argv[1])\n"
    )
    run_node_python(script, gang.path("out", "checkpoint-3", "optimizer.pt"))


def _only_on_node_0(gang: Gang) -> None:
    gang.configs[1]["resume_from_checkpoint"] = "/local/out/checkpoint-3"


def _without_state(gang: Gang) -> None:
    gang.path("out", "checkpoint-3", "trainer_state.json").unlink()


def _without_weights(gang: Gang) -> None:
    for file in gang.path("out", "checkpoint-3").glob("model*"):
        file.unlink()


def _one_zero_part_less(gang: Gang) -> None:
    for file in gang.path("out", "checkpoint-3").glob("global_step*/*zero_pp_rank_1_*"):
        file.unlink()


def keep_all(gang: Gang) -> None:
    pass


def _other_batch(gang: Gang) -> None:
    for folder in gang.folders:
        edit(folder / "deepspeed.json", train_micro_batch_size_per_gpu=4)


def _quantised(folder: Any) -> None:
    edit(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128})


RESUME = {"resume_from_checkpoint": "$RUN/out/checkpoint-3", "output_dir": "$RUN/out2"}

PARALLEL: Mapping[str, Cause] = {
    "ddp-unused": Cause(
        category="ddp_unused",
        how="A layer of the model takes no part in the loss.",
        program=_ddp("""
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(4, 4), "spare": torch.nn.Linear(4, 4)})
    model.forward = lambda x: model["used"](x)
    parallel = DistributedDataParallel(model)
    for _ in range(3):
        parallel(torch.ones(2, 4)).sum().backward()
"""),
        packages=("torch",),
    ),
    "ddp-ready-twice": Cause(
        category=None,
        how="Reward training under DDP with re-entrant checkpointing, which LLaMA-Factory turns on by default.",
        values={"training.dataset": PREFERENCE},
        keys={"stage": "rm"},
    ),
    "uneven-data": Cause(
        category="uneven_data",
        how="Rank 0 has one batch more than rank 1. The timeout is 20 s.",
        program=_ddp("""
    parallel = DistributedDataParallel(torch.nn.Linear(4, 4))
    for batch in range(6 - rank):
        parallel(torch.ones(2, 4)).sum().backward()
        print(f"rank {rank}: batch {batch} done", flush=True)
    torch.distributed.monitored_barrier()
"""),
        packages=("torch",),
    ),
    "collective-not-joined-node1": Cause(
        category="collective_not_joined",
        how="Rank 1 waits for a stream of data that nobody writes. The timeout of collectives is 20 s.",
        node=1,
        rank=1,
        prepare=lambda gang: os.mkfifo(gang.folders[1] / "stream"),
        program=_ddp("""
    parallel = DistributedDataParallel(torch.nn.Linear(4, 4))
    for batch in range(6):
        if rank == 1 and batch == 3:
            open(f"{folder}/stream").read()
        parallel(torch.ones(2, 4)).sum().backward()
        print(f"rank {rank}: batch {batch} done", flush=True)
"""),
        packages=("torch",),
    ),
    "collective-shapes": Cause(
        category="collective_shapes",
        how="Rank 1 dropped a bad sample, so its batch is smaller in an all-gather.",
        node=1,
        rank=1,
        program=_ddp("""
    batch = torch.ones(4 - rank, 8)
    gathered = [torch.empty_like(batch) for _ in range(2)]
    torch.distributed.all_gather(gathered, batch)
    torch.distributed.all_reduce(batch)
"""),
        packages=("torch",),
    ),
    "no-grad": Cause(
        category="no_grad",
        how="Re-entrant checkpointing over a frozen embedding: no input needs a gradient.",
        program="""
def train(folder, rank):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
    import torch, yaml

    torch.distributed.init_process_group("gloo")
    path = yaml.safe_load(open(f"{folder}/config.yaml"))["model_name_or_path"]
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(path), LoraConfig(target_modules=["q_proj"]))
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.disable_input_require_grads() if hasattr(model, "_require_grads_hook") else None
    model.train()
    ids = AutoTokenizer.from_pretrained(path)("What is 1 plus 2?", return_tensors="pt").input_ids
    model(ids, labels=ids).loss.backward()
""",
        packages=("torch", "transformers", "peft"),
    ),
    "recompute-mismatch": Cause(
        category="recompute_mismatch",
        how="A checkpointed block computes something else when it is recomputed.",
        program="""
def train(folder, rank):
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.distributed.init_process_group("gloo")
    layer, calls = torch.nn.Linear(4, 4), []

    def block(x):
        calls.append(1)
        return layer(x).relu() if len(calls) == 1 else layer(x)

    checkpoint(block, torch.ones(2, 4, requires_grad=True), use_reentrant=False).sum().backward()
""",
        packages=("torch",),
    ),
    "fsdp-dtype": Cause(
        category="fsdp_dtype",
        how="FSDP1 wraps a module with bfloat16 and float32 parameters.",
        program="""
def train(folder, rank):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.distributed.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, dtype=torch.bfloat16), torch.nn.LayerNorm(8))
    FullyShardedDataParallel(model, device_id=torch.device("cpu"))
""",
        packages=("torch",),
    ),
    "zero3-device-map": Cause(
        category="zero3_device_map",
        how="A script loads the model with device_map under ZeRO-3.",
        program="""
def train(folder, rank):
    import torch, yaml
    from transformers import AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    torch.distributed.init_process_group("gloo")
    path = yaml.safe_load(open(f"{folder}/config.yaml"))["model_name_or_path"]
    settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    kept = HfDeepSpeedConfig(settings)
    AutoModelForCausalLM.from_pretrained(path, device_map="cpu")
""",
        packages=("torch", "transformers", "deepspeed"),
    ),
    "zero3-quantised": Cause(
        category="zero3_quantised",
        how="The model has GPTQ weights, and the engine is ZeRO-3.",
        engine="llamafactory-zero3",
        environment=ZERO,
        values={"training.method": "lora"},
        prepare=with_model(_quantised),
    ),
    "ds-batch-train-batch-size": Cause(
        category="ds_batch_mismatch",
        how="DeepSpeed's train_batch_size is 7, with 2 ranks of 2 samples.",
        environment=ZERO,
        program="""
def train(folder, rank):
    import deepspeed
    import torch

    settings = {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
    deepspeed.initialize(model=torch.nn.Linear(4, 4), config=settings)
""",
        packages=("torch", "deepspeed"),
    ),
    "ds-batch-micro-batch": Cause(
        category="ds_batch_mismatch",
        how="deepspeed.json has another micro-batch than the trainer.",
        engine="llamafactory-zero2",
        environment=ZERO,
        prepare=_other_batch,
        packages=("torch", "transformers", "deepspeed"),
    ),
    "bf16-unsupported": Cause(
        category="bf16_unsupported",
        how="bf16 on a machine without a GPU, and without the switch for CPUs.",
        keys={"use_cpu": None, "bf16": True},
    ),
    "tokenise-timeout": Cause(
        category="tokenise_timeout",
        how="Rank 0 tokenises 90000 rows. Rank 1 on the same node waits longer than its timeout of 5 s.",
        node=0,
        rank=1,
        nodes=1,
        ranks=2,
        prepare=many_rows,
        program="""
def train(folder, rank):
    import datetime
    import torch

    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    entry._train_with_llamafactory(folder, rank)
""",
    ),
    "resume-weights-only": Cause(
        category="resume_weights_only",
        how="optimizer.pt of the checkpoint has a numpy number, as older versions wrote.",
        keys=RESUME,
        prepare=trained_first(_numpy_in_optimizer),
    ),
    "checkpoint-missing-node1": Cause(
        category="ckpt_file_missing",
        how="The folder of the checkpoint does not exist on node 1.",
        node=1,
        rank=1,
        keys=RESUME,
        prepare=trained_first(_only_on_node_0),
    ),
    "checkpoint-without-state": Cause(
        category="ckpt_incomplete",
        how="The checkpoint has no trainer_state.json.",
        keys=RESUME,
        prepare=trained_first(_without_state),
    ),
    "checkpoint-without-weights": Cause(
        category="ckpt_incomplete",
        how="The checkpoint has no weights.",
        keys=RESUME,
        prepare=trained_first(_without_weights),
    ),
    "zero-part-missing": Cause(
        category="ckpt_file_missing",
        how="ZeRO's part of rank 1 is not in the checkpoint.",
        node=1,
        rank=1,
        engine="llamafactory-zero2",
        environment=ZERO,
        keys=RESUME,
        prepare=trained_first(_one_zero_part_less),
        packages=("torch", "transformers", "deepspeed"),
    ),
    "resume-world-size": Cause(
        category="resume_world_size",
        how="A ZeRO-2 checkpoint of 3 ranks is resumed with 2.",
        engine="llamafactory-zero2",
        environment=ZERO,
        keys=RESUME,
        prepare=trained_first(keep_all, nodes=3),
        packages=("torch", "transformers", "deepspeed"),
    ),
    "megatron-heads": Cause(
        category="megatron_divide",
        how="The model has 4 heads, and TP is 3.",
        nodes=3,
        values=MEGATRON_VALUES,
        keys={"tensor_model_parallel_size": 3},
        **MEGATRON,
    ),
    "megatron-layers": Cause(
        category="megatron_divide",
        how="The model has 3 layers, and PP is 2.",
        values=MEGATRON_VALUES,
        keys={"pipeline_model_parallel_size": 2},
        prepare=with_model(lambda folder: edit(folder / "config.json", num_hidden_layers=3, layer_types=None)),
        **MEGATRON,
    ),
    "megatron-vocabulary": Cause(
        category="megatron_divide",
        how="The model has 511 tokens, and TP is 2.",
        values=MEGATRON_VALUES,
        keys={"tensor_model_parallel_size": 2},
        prepare=with_model(lambda folder: edit(folder / "config.json", vocab_size=511)),
        **MEGATRON,
    ),
    "megatron-world-size": Cause(
        category="megatron_divide",
        how="Two ranks with TP 2 and PP 2.",
        values=MEGATRON_VALUES,
        keys={"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
        **MEGATRON,
    ),
    "megatron-experts": Cause(
        category="megatron_divide",
        how="The model has 4 experts, and EP is 3.",
        nodes=3,
        model="experts",
        values=MEGATRON_VALUES,
        keys={"expert_model_parallel_size": 3},
        **MEGATRON,
    ),
    "megatron-context": Cause(
        category=None,
        how="CP is 2, which needs Transformer Engine.",
        values=MEGATRON_VALUES,
        keys={"context_parallel_size": 2},
        **MEGATRON,
    ),
    "megatron-checkpoint-tp": Cause(
        category="ckpt_parallelism",
        how="A Megatron checkpoint of TP 2 is resumed with PP 2.",
        values=MEGATRON_VALUES,
        keys={**RESUME, "pipeline_model_parallel_size": 2},
        prepare=trained_first(keep_all, values={**MEGATRON_VALUES, "parallel.tensor": 2}),
        **MEGATRON,
    ),
    "megatron-loss-nan": Cause(
        category="loss_nan",
        how="The learning rate is 1e20, so the weights overflow in the first steps.",
        values=MEGATRON_VALUES,
        keys={"learning_rate": 1.0e20},
        **MEGATRON,
    ),
    "loss-nan": Cause(
        category="loss_nan",
        how="The learning rate is 1e30, so the weights overflow in the first steps.",
        keys={"learning_rate": 1.0e30, "max_steps": 12},
        ends_well=True,
    ),
}
