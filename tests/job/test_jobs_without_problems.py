"""Jobs that people use break no rule."""

import pytest

from tests.job.page import check
from tests.job.rule_jobs import (
    DENSE,
    EVALUATES,
    FALCON_H1,
    FROZEN,
    GEMMA_4,
    GPT_OSS,
    MIMO,
    MLLAMA,
    MOE,
    PACKS,
    PLAIN_GRANITE,
    STREAMS,
    TEXT,
    TWO_SETS,
    VISION,
    ZERO3_OFFLOAD,
    job_of,
)


@pytest.mark.parametrize(
    ("base", "values"),
    [
        (TEXT, {"parallel.tensor": 4}),
        (TEXT, {"parallel.tensor": 8, "training.micro_batch_size": 2}),
        (VISION, {"parallel.pipeline": 2, "parallel.virtual_pipeline": 3, "training.gradient_accumulation_steps": 4}),
        (MOE, {"parallel.pipeline": 4, "parallel.expert": 8}),
        (DENSE, {"engine": "llamafactory-ddp", "training.method": "lora"}),
        (MOE, {"engine": "llamafactory-zero3"}),
        (DENSE, {"parallel.pipeline": 8, "parallel.pipeline_layout": "Et*3|(t*5|)*6t*3L"}),
        (VISION, {"parallel.pipeline": 2, "parallel.pipeline_layout": "E,t*16|t*20,L"}),
        (DENSE, {"engine": "llamafactory-zero2", "parallel.pipeline_layout": "nonsense"}),
        (VISION, {"engine": "llamafactory-zero3", "training.freeze.vision_tower": True}),
        (DENSE, {**ZERO3_OFFLOAD, "environment": {"OMP_NUM_THREADS": "12"}}),
        (VISION, {"engine": "swift-megatron", "parallel.pipeline": 12, "cluster.nodes": 12}),
        (DENSE, {"engine": "llamafactory-zero2", "training.method": "qlora"}),
        (DENSE, {"engine": "llamafactory-fsdp", "extra": {"pissa_init": True}, "training.method": "lora"}),
        (DENSE, {"engine": "swift-megatron", "parallel.context": 2, "training.packing": True}),
        (DENSE, {"engine": "swift-megatron", "training.report_to": ("wandb",), "training.max_steps": 1}),
        (DENSE, {**STREAMS, "training.workers.data_loader": 1}),
        (MIMO, {"engine": "llamafactory-ddp", "parallel.recompute": "none"}),
        (MIMO, {"engine": "swift-ddp", "training.method": "lora", "extra": {}}),
        (GEMMA_4, {"engine": "swift-zero3"}),
        (GPT_OSS, {"engine": "llamafactory-ddp", "training.method": "lora", "training.precision": "fp16"}),
        (FALCON_H1, {"engine": "swift-ddp", "training.method": "lora"}),
        (DENSE, {"engine": "llamafactory-zero3", **PACKS, "extra": {"neat_packing": True, "flash_attn": "fa2"}}),
        (
            DENSE,
            {"engine": "llamafactory-zero3", **PACKS, "training.micro_batch_size": 2, "extra": {"neat_packing": True}},
        ),
        (
            MOE,
            {
                "engine": "llamafactory-zero3",
                **PACKS,
                "extra": {"neat_packing": True, "flash_attn": "fa2", "moe_aux_loss_coef": 0.01},
            },
        ),
        (
            VISION,
            {"engine": "llamafactory-zero3", **PACKS, "training.cutoff_len": 4095, "extra": {"neat_packing": True}},
        ),
        (DENSE, {"engine": "swift-megatron", "extra": {"attention_backend": "fused"}}),
        (DENSE, {"engine": "swift-megatron", "cluster.gpu": "b200-180g", "extra": {"attention_backend": "fused"}}),
        (
            DENSE,
            {
                "engine": "swift-megatron",
                "cluster.gpu": "a100-80g",
                "extra": {"attention_backend": "fused", "padding_free": False},
            },
        ),
        (MIMO, {"engine": "llamafactory-zero2"}),
        (MIMO, {"engine": "llamafactory-ddp", "cluster.nodes": 1, "cluster.gpus_per_node": 1}),
        (MLLAMA, {"engine": "llamafactory-zero3", **FROZEN}),
        (MLLAMA, {"engine": "llamafactory-fsdp"}),
        (DENSE, {"engine": "llamafactory-zero3", "training.liger": True}),
        (VISION, {"engine": "swift-zero3", "training.liger": True}),
        (PLAIN_GRANITE, {"engine": "llamafactory-zero3", "training.liger": True, "training.stage": "dpo"}),
        (DENSE, {"engine": "swift-zero3", "training.liger": True, "training.stage": "dpo"}),
        (DENSE, {"engine": "llamafactory-zero3", "training.liger": True, "training.stage": "kto"}),
        (MLLAMA, {"engine": "llamafactory-zero2", "training.method": "qlora", **FROZEN}),
        (MLLAMA, {"engine": "llamafactory-ddp", "training.method": "lora", "parallel.recompute": "none"}),
    ],
    ids=[
        "tp4",
        "tp8",
        "pp2 vpp3",
        "moe",
        "ddp lora",
        "moe zero3",
        "unequal stages",
        "a smaller first stage",
        "a layout that nobody reads",
        "vision zero3",
        "offload",
        "swift deep stack",
        "zero2 qlora",
        "fsdp pissa",
        "swift packs with CP",
        "swift reports to wandb and trains one step",
        "swift streams with one loader process",
        "idle layers without recompute",
        "idle layers under swift with LoRA",
        "wide heads",
        "sinks stay bf16 in an fp16 job of LoRA",
        "ms-swift gives Mamba's out_proj no adapter",
        "neat packs with FlashAttention 2",
        "two neat packs with a mask",
        "balance loss of neat packs with FlashAttention 2",
        "neat packs of a type that numbers positions anew",
        "fused attention on Hopper",
        "fused attention on Blackwell",
        "fused attention of padded samples on Ampere",
        "idle layers under zero2",
        "idle layers on one GPU",
        "images with a frozen tower",
        "images under fsdp 2",
        "Liger",
        "Liger on a model with a tower under ms-swift",
        "Liger in DPO for a type without its loss",
        "Liger in DPO of ms-swift",
        "Liger in KTO of LLaMA-Factory",
        "images with qlora",
        "images without recompute",
    ],
)
def test_plans_people_use_have_no_problem(base, values):
    assert check(job_of(base, values)) == []


@pytest.mark.parametrize(
    ("base", "values"),
    [
        (MOE, {"extra": {"moe_pad_expert_input_to_capacity": True, "moe_expert_capacity_factor": 1.0}}),
        (DENSE, {"extra": {"fp8": "hybrid", "fp8_param": True}}),
        (DENSE, {"extra": {"neat_packing": True, "val_size": 0.1}}),
        (DENSE, {"training.max_steps": 9, "extra": {"streaming": True, "val_size": 100}}),
        (DENSE, {"extra": {"interleave_probs": "0.5,0.5", "mix_strategy": "interleave_under"}}),
        (DENSE, {"extra": {"interleave_probs": "0.5,0.5"}, **TWO_SETS}),
        (DENSE, {"engine": "llamafactory-ddp", "extra": {"flash_attn": "fa2", "moe_layer_recompute": True}}),
        (
            DENSE,
            {
                "engine": "llamafactory-zero3",
                **EVALUATES,
                "training.save_steps": 200,
                "extra": {"load_best_model_at_end": True, "early_stopping_steps": 3},
            },
        ),
        (
            DENSE,
            {
                "engine": "llamafactory-ddp",
                "training.method": "lora",
                "extra": {"use_dora": True, "loraplus_lr_ratio": 16.0, "adapter_name_or_path": "/a"},
            },
        ),
        (DENSE, {"engine": "llamafactory-ddp", "extra": {"use_galore": True, "infer_backend": "huggingface"}}),
        (DENSE, {"engine": "llamafactory-zero3", "extra": {"use_badam": True, "badam_mode": "layer"}}),
        (DENSE, {"engine": "llamafactory-ddp", "extra": {"galore_layerwise": True, "apollo_layerwise": True}}),
        (DENSE, {"engine": "llamafactory-ddp", "training.precision": "fp16", "extra": {"bf16_full_eval": True}}),
        (DENSE, {"engine": "llamafactory-ddp", "extra": {"image_min_pixels": 768 * 768}}),
        (DENSE, {"engine": "swift-zero3", "training.stage": "dpo", "extra": {"ref_model": "/r"}}),
        (DENSE, {"engine": "swift-zero3", "extra": {"padding_free": True, "attn_impl": "flash_attn"}}),
        (DENSE, {"engine": "swift-zero3", "extra": {"rope_scaling": "yarn", "max_model_len": 65_536}}),
        (DENSE, {"engine": "swift-zero3", "extra": {"rope_scaling": '{"rope_type": "yarn", "factor": 2.0}'}}),
        *(
            (
                DENSE,
                {
                    "engine": "swift-zero3",
                    "training.stage": stage,
                    "extra": {"padding_free": True, "attn_impl": "flash_attn"},
                },
            )
            for stage in ("dpo", "kto")
        ),
    ],
)
def test_keys_of_extra_that_go_together_pass(base, values):
    assert not {problem.code for problem in check(job_of(base, values))} & {
        "extra_clash", "extra_ignored", "extra_owned", "extra_refused", "extra_wrong_type",
    }  # fmt: skip
