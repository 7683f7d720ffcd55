"""Jobs that together make each engine write every key it knows."""

from collections.abc import Mapping

from backend.job.job import Job
from tests.engines.jobs import ddp, job, sharded

HUGGING_FACE: Mapping[str, Job] = {
    "full": ddp(),
    "cpu": ddp(gpu="cpu", training__precision="fp32", training__report_to=()),
    "partial": ddp(training__method="partial", training__trainable_layers=3),
    "lora": ddp(training__method="lora", training__lora__targets="q_proj,v_proj"),
    "qlora": ddp(training__method="qlora"),
    "pretraining": ddp(training__stage="pt", training__packing=True, training__template=None, training__max_steps=10),
    "preference": ddp(training__stage="dpo", training__dpo__loss="simpo", training__method="lora"),
    "orpo": ddp(training__stage="dpo", training__dpo__loss="orpo"),
    "kto": ddp(training__stage="kto", training__dpo__beta=0.2, extra={"kto_rejected_weight": 1.5}),
    "reward model": ddp(training__stage="rm", extra={"use_reentrant_gc": False}),
    "vision": ddp("qwen3-vl-2b", training__freeze__vision_tower=True, training__precision="fp16"),
    "switches": ddp(
        training__eval_steps=50,
        training__lr_scheduler="cosine_with_min_lr",
        training__warmup_ratio=0.0,
        training__save_total_limit=None,
        parallel__recompute="none",
        extra={"val_size": 0.1, "neftune_noise_alpha": 5.0},
    ),
    "mixed": ddp(
        training__dataset="a,b", training__mix_strategy="interleave_over", training__interleave_probs="0.7,0.3"
    ),
    "mixed once": ddp(training__dataset="a,b", training__mix_strategy="interleave_once"),
    "hostile": ddp(training__dataset="no,1e3,用户;rm -rf $HOME '\"", training__report_to=("tensorboard", "wandb")),
}

SHARDED: Mapping[str, Job] = {
    "zero2": sharded("zero2"),
    "zero2 qlora": sharded("zero2", training__method="qlora"),
    "zero2 partial": sharded("zero2-offload", training__method="partial", training__precision="fp16"),
    "zero3": sharded("zero3", "qwen3-30b-a3b", nodes=4, ranks=8),
    "zero3 lora dpo": sharded("zero3", training__stage="dpo", training__method="lora"),
    "zero3 offload": sharded("zero3-offload", training__stage="pt", training__template=None),
    "zero3 optimizer offload": sharded("zero3-offload", parallel__offload_parameters=False),
    "zero3 nvme": sharded(
        "zero3-offload", parallel__offload_device="nvme", parallel__offload_folder="/local/nvme/offload"
    ),
    "zero3 vision": sharded("zero3", "qwen3-vl-2b", training__freeze__vision_tower=True),
    "zero3 cpu": sharded("zero3", gpu="cpu", training__precision="fp32"),
    "fsdp2": sharded("fsdp"),
    "fsdp2 offload": sharded("fsdp", parallel__fsdp__offload=True, parallel__fsdp__reshard_after_forward=False),
    "fsdp1": sharded("fsdp", parallel__fsdp__version=1, training__stage="dpo"),
    "fsdp2 kto": sharded("fsdp", training__stage="kto"),
    "zero3 reward model": sharded("zero3", training__stage="rm"),
    "fsdp1 qlora": sharded("fsdp", parallel__fsdp__version=1, training__method="qlora"),
    "fsdp1 cpu": sharded("fsdp", gpu="cpu", parallel__fsdp__version=1, training__precision="fp32"),
}

MEGATRON: Mapping[str, Job] = {
    "dense": job(parallel__tensor=2),
    "mixed": job(
        parallel__tensor=2,
        training__dataset="a,b,c",
        training__mix_strategy="interleave_under",
        training__interleave_probs="0.5, 0.25, 0.25",
    ),
    "preference": job(training__stage="dpo", training__dpo__loss="orpo", training__seed=7),
    "pretraining": job(training__stage="pt", training__template=None, parallel__context=2),
    "pipeline": job(
        parallel__tensor=2,
        parallel__pipeline=2,
        parallel__virtual_pipeline=2,
        parallel__overlap_grad_reduce=True,
        parallel__overlap_param_gather=True,
        parallel__recompute="full",
        parallel__recompute_num_layers=3,
    ),
    "accounted": job(
        "qwen3-0.6b",
        nodes=3,
        ranks=2,
        parallel__pipeline=3,
        parallel__account_for_embedding=True,
        parallel__account_for_loss=True,
        training__precision="fp16",
    ),
    "laid out": job(
        "qwen3-0.6b",
        nodes=4,
        ranks=2,
        parallel__pipeline=4,
        parallel__virtual_pipeline=2,
        parallel__pipeline_layout="Et*3|(t*4|)*6tL",
    ),
    "experts": job(
        "qwen3-30b-a3b",
        parallel__expert=4,
        parallel__tensor=2,
        parallel__recompute="selective",
        parallel__recompute_modules=("core_attn", "moe_act"),
    ),
    "vision": job("qwen3-vl-8b", parallel__tensor=4, training__template="qwen3_vl_nothink"),
    "offload": job(
        parallel__optimizer_offload_fraction=0.5,
        parallel__cross_entropy_fusion=True,
        training__eval_steps=10,
        training__lr_scheduler="cosine_with_min_lr",
        extra={"val_size": 0.1, "save_hf_model": True},
    ),
    "cpu": job("qwen3-30b-a3b", gpu="cpu", parallel__pipeline=2, parallel__expert=2),
}
