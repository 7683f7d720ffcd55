"""Each rule names the wrong value and offers an edit that removes the problem."""

from contextlib import suppress

import pytest

from backend.job.cluster import Calibration, Host
from backend.job.launch_rules import check_launch
from backend.job.mapping import parameters, parse_job, with_values
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import ProblemsError, errors
from backend.job.rules import RULES, check
from backend.job.traits import TRAITS
from benchmarks.small_models import NEWER_MODELS, SEEING, SMALL_MODELS, TOWER_MODELS
from tests.job.test_grpo_rules import BASE as GRPO
from tests.job.test_grpo_rules import REFUSED
from tools.write_models import read_own_code

VISION = {"cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8}, "model": {"preset": "qwen3-vl-8b"}}
TEXT = {**VISION, "training": {"images_per_sample": 0}}
QWEN25_VL = {**VISION, "model": {"preset": "qwen2.5-vl-7b"}}
MOE = {**VISION, "model": {"preset": "qwen3-30b-a3b"}}
DENSE = {**VISION, "model": {"preset": "qwen3-8b"}}
PACKS = {"training.packing": True}
TWO_SETS = {"training.dataset": "a,b", "training.mix_strategy": "interleave_under"}
STREAMS = {"engine": "swift-megatron", "training.max_steps": 9, "extra": {"streaming": True}}

ZERO3_OFFLOAD = {"engine": "llamafactory-zero3-offload"}
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
FALCON_H1 = {**DENSE, "model": {"hf_config": SMALL_MODELS["falcon_h1"]}}
JAMBA = {**DENSE, "model": {"hf_config": SMALL_MODELS["jamba"]}}
BAMBA = {**DENSE, "model": {"hf_config": SMALL_MODELS["bamba"]}}
GRANITE = {**DENSE, "model": {"hf_config": SMALL_MODELS["granitemoehybrid"]}}
GLM, PLAIN_GRANITE = ({**DENSE, "model": {"hf_config": SMALL_MODELS[name]}} for name in ("glm", "granite"))
KIMI_LINEAR = {**DENSE, "model": {"hf_config": NEWER_MODELS["kimi_linear"]}}
OLMO_HYBRID = {**DENSE, "model": {"hf_config": {**SHAPE, "model_type": "olmo_hybrid"}}}
GLM_4V = {
    **VISION,
    "model": {
        "hf_config": {
            "model_type": "glm4v",
            "text_config": {**SHAPE, "model_type": "glm4v_text", "num_key_value_heads": 4},
            "vision_config": {
                "model_type": "glm4v_vision", "hidden_size": 64, "depth": 2, "num_heads": 4, "patch_size": 14,
                "out_hidden_size": 64, "intermediate_size": 128, "image_size": 56,
            },
        }
    },
}  # fmt: skip
EXAONE_4_5 = {**VISION, "model": {"hf_config": TOWER_MODELS["exaone4_5"]}}
GPT_NEOX = {**DENSE, "model": {"hf_config": SMALL_MODELS["gpt_neox"]}}
GPT2 = {**DENSE, "model": {"hf_config": SMALL_MODELS["gpt2"]}}
GEMMA_3N = {**DENSE, "model": {"hf_config": SMALL_MODELS["gemma3n_text"]}}
GLM_5 = {**DENSE, "model": {"hf_config": SMALL_MODELS["glm_moe_dsa"]}}
GLM_SHARED = {
    **DENSE,
    "model": {
        "hf_config": {
            **SMALL_MODELS["glm_moe_dsa"],
            "indexer_types": None,
            "index_topk_freq": 4,
            "index_skip_topk_offset": 2,
        }
    },
}
GLM_LISTED = {
    **DENSE,
    "model": {"hf_config": {**SMALL_MODELS["glm_moe_dsa"], "indexer_types": ["full", "shared", "full", "shared"]}},
}
HY_V4, COMPRESSED = ({**DENSE, "model": {"hf_config": NEWER_MODELS[name]}} for name in ("hy_v4", "deepseek_v4"))
AXK2 = {**DENSE, "model": {"hf_config": NEWER_MODELS["axk2"]}}
MIMO_V2 = {**DENSE, "model": {"hf_config": NEWER_MODELS["mimo_v2_flash"]}}
MLLAMA = {**DENSE, "model": {"hf_config": SEEING["mllama"]}}
GEMMA_4 = {**DENSE, "model": {"preset": "gemma-4-12b"}}
GEMMA_2 = {**DENSE, "model": {"preset": "gemma-2-9b"}}
VAULT_GEMMA = {**DENSE, "model": {"hf_config": {**SMALL_MODELS["gemma2"], "model_type": "vaultgemma"}}}
GEMMA_3 = {**DENSE, "model": {"preset": "gemma-3-1b"}}
GPT_OSS = {**DENSE, "model": {"preset": "gpt-oss-20b"}}
INTERNVL_CHAT, INTERNLM_CHAT = (
    {**DENSE, "model": {"hf_config": read_own_code()[name]["config"]}} for name in ("InternVL3.5-8B", "InternVL2.5-8B")
)
MIMO = {**DENSE, "model": {"hf_config": read_own_code()["MiMo-7B"]["config"]}, "extra": {"trust_remote_code": True}}
LING = {**DENSE, "model": {"hf_config": read_own_code()["Ling-lite-1.5"]["config"]}}
LING_2_5 = {**DENSE, "model": {"hf_config": read_own_code()["Ling 2.5, defaults"]["config"]}}
LING_3 = {**DENSE, "model": {"hf_config": read_own_code()["Ling-3.0-tiny"]["config"]}}
DEEPSEEK_V4 = {
    **DENSE,
    "model": {"hf_config": {"model_type": "deepseek_v4", "hidden_size": 64, "num_hidden_layers": 2}},
}
FROZEN = {"training.freeze.vision_tower": True, "training.freeze.projector": True}
QUANTISED = {
    **DENSE,
    "model": {"hf_config": {**SHAPE, "model_type": "qwen3", "quantization_config": {"quant_method": "gptq"}}},
}

QWEN2_MOE = {
    **SHAPE,
    "model_type": "qwen2_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
GROUPS = {
    **DENSE,
    "model": {"hf_config": {**SHAPE, "hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 6}},
}


def job_of(base, values):
    job, problems = parse_job(base)
    assert not problems
    return with_values(job, values)


EVALUATES = {"training.eval_size": 0.1, "training.eval_steps": 100}
REFUSED_BY_THE_PARSER = [
    *(({}, {key: value}) for key, value in {"use_dora": True, "use_rslora": True, "loraplus_lr_ratio": 16.0,
      "pissa_init": True, "adapter_name_or_path": "/a", "use_llama_pro": True, "quantization_device_map": "auto",
      "infer_backend": "vllm", "load_best_model_at_end": True, "early_stopping_steps": 3}.items()),
    *(({"training.method": "lora"}, {key: True}) for key in ("use_galore", "use_apollo", "use_badam")),
    ({"engine": "llamafactory-ddp"}, {"use_galore": True, "use_apollo": True}),
    ({}, {"use_badam": True, "badam_mode": "ratio"}),
    ({"training.stage": "dpo", "training.dpo.loss": "ipo"}, {"dpo_label_smoothing": 0.1}),
    ({"engine": "llamafactory-ddp", "training.method": "qlora"},
     {"adapter_name_or_path": "/a", "create_new_adapter": True}),
    ({"engine": "llamafactory-ddp", "training.method": "qlora"}, {"adapter_name_or_path": "/a,/b"}),
    ({"model.preset": "qwen3-vl-8b"}, {"image_min_pixels": 10**9}),
    ({"model.preset": "qwen3-vl-8b"}, {"video_min_pixels": 10**9}),
    ({**EVALUATES, "training.save_steps": 250}, {"load_best_model_at_end": True}),
    (EVALUATES, {"early_stopping_steps": 3}),
]  # fmt: skip
"""Values that LLaMA-Factory's get_train_args refuses; tests/engines/test_real_parser.py asks it."""
CASES = [
    (VISION, {"parallel.tensor": 3}, "ranks_not_divisible"),
    (VISION, {"parallel.tensor": 16, "cluster.nodes": 16}, "tensor_across_nodes"),
    (VISION, {"parallel.tensor": 8, "parallel.pipeline": 3}, "ranks_not_divisible"),
    (VISION, {"parallel.tensor": 3, "parallel.pipeline": 5, "parallel.context": 3}, "ranks_not_divisible"),
    (DENSE, {"parallel.tensor": 5, "cluster.gpus_per_node": 5}, "heads_not_divisible"),
    (DENSE, {"parallel.tensor": 32, "cluster.gpus_per_node": 32, "model.preset": "qwen2.5-7b"}, "heads_not_divisible"),
    (GROUPS, {"parallel.tensor": 4}, "groups_not_divisible"),
    (GROUPS, {"parallel.tensor": 12, "cluster.gpus_per_node": 12}, "width_not_divisible"),
    (DENSE, {"parallel.tensor": 16, "cluster.gpus_per_node": 12}, "tensor_across_nodes"),
    (VISION, {"parallel.pipeline": 8}, "layers_not_divisible"),
    (VISION, {"parallel.pipeline": 4, "parallel.virtual_pipeline": 2}, "layers_not_divisible"),
    (DENSE, {"parallel.pipeline": 4, "parallel.account_for_loss": True}, "layers_not_divisible"),
    (DENSE, {"parallel.pipeline": 8, "parallel.pipeline_layout": "Et*9|nonsense"}, "pipeline_layout_letters"),
    (DENSE, {"parallel.pipeline": 8, "parallel.pipeline_layout": "t*36"}, "pipeline_layout_ends"),
    (DENSE, {"parallel.pipeline": 8, "parallel.pipeline_layout": "E(t*999|)*999L"}, "pipeline_layout_long"),
    (DENSE, {"parallel.pipeline": 2, "parallel.pipeline_layout": "Et*9|t*9L"}, "pipeline_layout_layers"),
    (DENSE, {"parallel.pipeline": 4, "parallel.pipeline_layout": "Et*18|t*18L"}, "pipeline_layout_chunks"),
    (DENSE, {"parallel.pipeline": 1, "parallel.pipeline_layout": "Et*18|t*18L"}, "pipeline_layout_chunks"),
    (DENSE, {"parallel.pipeline": 2, "parallel.pipeline_layout": "Et*16|t*20L", "parallel.account_for_loss": True},
     "pipeline_layout_accounts"),
    (VISION, {"parallel.pipeline": 2, "parallel.pipeline_layout": "Et*3|t*33L"}, "deep_stack_beyond_first_stage"),
    (VISION, {"parallel.pipeline": 8, "parallel.pipeline_layout": "Et*3|(t*5|)*6t*3L"},
     "deep_stack_beyond_first_stage"),
    (DENSE, {"parallel.tensor": 3, "parallel.pipeline": 2, "parallel.pipeline_layout": "Et*16|t*20L"},
     "ranks_not_divisible"),
    (DENSE, {"parallel.pipeline": 8}, "layers_not_divisible"),
    (VISION, {"parallel.virtual_pipeline": 2}, "virtual_without_pipeline"),
    (VISION, {"parallel.pipeline": 2, "parallel.virtual_pipeline": 18}, "deep_stack_beyond_first_stage"),
    (VISION, {"parallel.pipeline": 12}, "deep_stack_beyond_first_stage"),
    (VISION, {"parallel.overlap_grad_reduce": True}, "overlap_with_vision"),
    (VISION, {"parallel.tensor": 4}, "vision_gradients_wrong"),
    (VISION, {"parallel.tensor": 2, "parallel.context": 2}, "vision_gradients_wrong"),
    (QWEN25_VL, {"parallel.tensor": 2, "training.freeze.vision_tower": True}, "vision_gradients_wrong"),
    (VISION, {"parallel.tensor": 4, "parallel.sequence": False}, "vision_replicas_drift"),
    (QWEN25_VL, {"parallel.tensor": 4, "parallel.sequence": False}, "vision_replicas_drift"),
    (VISION, {"engine": "swift-megatron", "parallel.tensor": 4}, "deep_stack_gradients_wrong"),
    (VISION, {"parallel.expert": 2}, "expert_parallel_without_experts"),
    (VISION, {"training.method": "lora"}, "method_not_supported"),
    (VISION, {"cluster.gpu": "v100-32g"}, "no_bf16"),
    (VISION, {"cluster.gpu": "abacus"}, "unknown_gpu"),
    (VISION, {"model.preset": "gpt-9"}, "unknown_model"),
    (VISION, {"training.global_batch_size": 100}, "global_batch_not_divisible"),
    (VISION, {"training.ddp_timeout_s": 100_000}, "timeout_too_long"),
    (VISION, {"training.seed": 0}, "seed_not_positive"),
    (VISION, {"training.lr_scheduler": "polynomial"}, "scheduler_not_supported"),
    (VISION, {"training.stage": "dpo", "training.dpo.loss": "ipo"}, "preference_loss_not_supported"),
    (VISION, {"parallel.recompute_num_layers": 1}, "recompute_layers_without_full"),
    (DENSE, {"parallel.recompute": "selective", "parallel.recompute_modules": ("mla_up_proj",)}, "recompute_needs"),
    (MOE, {"parallel.recompute": "selective", "parallel.recompute_modules": ("moe_act",),
           "parallel.moe_grouped_gemm": False}, "recompute_needs"),
    *((DENSE, {"parallel.recompute": "selective", "parallel.recompute_modules": ("core_attn", module)},
       "recompute_needs") for module in ("moe", "moe_act", "shared_experts")),
    (VISION, {"parallel.recompute_modules": ("mlp",)}, "recompute_modules_without_selective"),
    (DENSE, {"parallel.overlap_param_gather": True}, "param_gather_needs_more"),
    (DENSE, {"training.freeze.vision_tower": True}, "freeze_without_vision"),
    (DENSE, {"parallel.pipeline": 4, "parallel.virtual_pipeline": 3, "training.gradient_accumulation_steps": 6},
     "too_few_micro_batches"),
    (DENSE, {"parallel.context": 8, "training.stage": "pt"}, "sequence_not_divisible"),
    (DENSE, {"parallel.context": 2, "training.packing": True}, "packing_with_context"),
    (DENSE, {"engine": "llamafactory-ddp", "parallel.tensor": 4}, "parallel_ignored"),
    (DENSE, {"engine": "llamafactory-ddp", "parallel.recompute": "selective"}, "selective_is_megatrons"),
    (DENSE, {"engine": "llamafactory-ddp", "cluster.gpu": "cpu"}, "precision_on_cpu"),
    (DENSE, {"cluster.calibration": Calibration(gpu="a100-80g", time_ratio=1.1)}, "calibration_other_gpu"),
    (DENSE, {"cluster.calibration": Calibration(engine="llamafactory-ddp", memory_ratio=1.1)},
     "calibration_other_engine"),
    (DENSE, {"cluster.calibration": Calibration(time_ratio=1.1, training="8030261248 lora 512")},
     "calibration_other_training"),
    (DENSE, {"cluster.calibration": Calibration(run="r", time_ratio=1.1, constants="2020-01-01-0123abcd")},
     "calibration_outdated"),
    (DENSE, {"cluster.hosts": (Host(address="a"), Host(address="b", gpu_memory_gib=40.0))}, "gpu_memory_mixed"),
    (DENSE, {"cluster.hosts": (Host(address="a", gpu_memory_gib=40.0),)}, "gpu_memory_smaller"),
    (DENSE, {"engine": "llamafactory-ddp", "training.method": "partial", "training.trainable_layers": 99},
     "too_many_trainable_layers"),
    (VISION, {"training.stage": "pt", "training.freeze.vision_tower": True}, "freeze_ignored_in_pt"),
    (DENSE, {"parallel.gradient_dtype": "bf16"}, "gradients_stay_fp32"),
    (DENSE, {"engine": "swift-megatron", "parallel.gradient_dtype": "bf16"}, "gradients_stay_fp32"),
    (DENSE, {"training.precision": "fp32"}, "megatron_needs_16_bits"),
    (DENSE, {"training.precision": "fp32", "cluster.gpu": "v100-32g"}, "megatron_needs_16_bits"),
    *((DENSE, {"training.warmup_ratio": 1.0, "engine": engine}, "warmup_is_all")
      for engine in ("llamafactory-megatron", "llamafactory-ddp", "swift-megatron")),
    (DENSE, {"training.max_steps": 1}, "warmup_without_rest"),
    (DENSE, {"training.max_steps": 10, "training.warmup_ratio": 0.91}, "warmup_without_rest"),
    (DENSE, {"training.samples": 40, "training.num_train_epochs": 1.0}, "warmup_without_rest"),
    (DENSE, {"training.lr_scheduler": "constant"}, "constant_warms_up"),
    (DENSE, {"training.lr_scheduler": "constant", "engine": "llamafactory-zero3"}, "constant_without_warmup"),
    (DENSE, {"training.learning_rate_batch": 1}, "learning_rate_batch"),
    ({**DENSE, "model": {"hf_config": QWEN2_MOE}}, {}, "model_type_not_supported"),
    ({**DENSE, "model": {"preset": "mixtral-8x7b"}}, {"engine": "swift-megatron"}, "model_type_not_supported"),
    ({**DENSE, "model": {"preset": "qwen3-next-80b-a3b"}}, {}, "model_type_not_supported"),
    (MLLAMA, FROZEN, "model_type_not_supported"),
    (MLLAMA, {**FROZEN, "engine": "swift-megatron"}, "model_type_not_supported"),
    (MLLAMA, {"engine": "llamafactory-ddp"}, "image_layers_reentrant"),
    (MIMO, {"engine": "llamafactory-ddp"}, "idle_layers"),
    (MIMO, {"engine": "llamafactory-ddp", "training.method": "lora", "parallel.recompute": "none"}, "idle_layers"),
    (MIMO, {"engine": "llamafactory-ddp", "extra": {"trust_remote_code": True, "ddp_find_unused_parameters": True}},
     "idle_layers"),
    (MIMO, {"engine": "swift-ddp"}, "idle_layers"),
    (GEMMA_4, {"engine": "swift-megatron"}, "heads_too_wide"),
    (GEMMA_4, {"engine": "swift-zero3", "training.packing": True}, "heads_too_wide"),
    (GEMMA_4, {"engine": "llamafactory-zero3", "extra": {"flash_attn": "fa2"}}, "heads_too_wide"),
    (GPT_OSS, {"engine": "swift-megatron"}, "sinks_without_flash"),
    (GPT_OSS, {"engine": "swift-megatron", "extra": {"attention_backend": "flash_3"}}, "sinks_without_flash"),
    (GPT_OSS, {"engine": "swift-zero3", "training.packing": True}, "sinks_without_flash"),
    (GPT_OSS, {"engine": "swift-zero3", "extra": {"attn_impl": "flash_attn"}}, "sinks_without_flash"),
    *((base, {"engine": "llamafactory-zero3", "extra": {"flash_attn": asked}}, "sinks_without_flash")
      for base in (HY_V4, COMPRESSED) for asked in ("sdpa", "fa2")),
    (DENSE, {"engine": "swift-zero3", "training.packing": True, "extra": {"attn_impl": "sdpa"}},
     "packing_without_flash"),
    (GPT_OSS, {"engine": "llamafactory-zero3", "cluster.gpu": "a100-80g"}, "sinks_need_hopper"),
    (GPT_OSS, {"engine": "llamafactory-zero3", "cluster.gpu": "a100-80g", "training.packing": True},
     "sinks_need_hopper"),
    (GPT_OSS, {"engine": "swift-zero3", "cluster.gpu": "l40s-48g", "training.packing": True,
               "extra": {"attn_impl": "kernels-community/vllm-flash-attn3"}}, "sinks_need_hopper"),
    (GPT_OSS, {"engine": "llamafactory-ddp", "cluster.gpu": "b200-180g", "training.method": "partial"},
     "sinks_need_hopper"),
    (GPT_OSS, {"engine": "swift-zero3", "cluster.gpu": "l40s-48g",
               "extra": {"attn_impl": "kernels-community/vllm-flash-attn3"}}, "sinks_need_hopper"),
    (GPT_OSS, {"engine": "swift-megatron", "cluster.gpu": "a100-80g", "extra": {"attention_backend": "fused"}},
     "fused_needs_hopper"),
    (DENSE, {"engine": "swift-megatron", "cluster.gpu": "l40s-48g", "extra": {"attention_backend": "fused"}},
     "fused_needs_hopper"),
    (GPT_OSS, {"engine": "swift-megatron", "cluster.gpu": "a100-80g", "parallel.context": 2,
               "extra": {"attention_backend": "fused"}}, "fused_needs_hopper"),
    (GPT_OSS, {"engine": "swift-megatron", "parallel.context": 2}, "sinks_without_flash"),
    (GPT_OSS, {"engine": "llamafactory-zero3", "training.method": "lora", "training.precision": "fp16"},
     "sinks_need_bf16"),
    (GPT_OSS, {"engine": "llamafactory-fsdp", "training.method": "lora", "training.precision": "fp16"},
     "sinks_need_bf16"),
    *((GPT_OSS, {"engine": "llamafactory-ddp", "training.method": "partial", "training.precision": precision},
       "sinks_need_bf16") for precision in ("bf16", "fp16")),
    (GPT_OSS, {"engine": "swift-zero3", "training.precision": "fp16",
               "extra": {"attn_impl": "kernels-community/vllm-flash-attn3"}}, "sinks_need_bf16"),
    (GPT_OSS, {"engine": "llamafactory-zero3"}, "sinks_not_trained"),
    (GPT_OSS, {"engine": "llamafactory-ddp", "training.method": "partial"}, "sinks_not_trained"),
    (DENSE, {"engine": "swift-megatron", "parallel.context": 2, "extra": {"attention_backend": "unfused"}},
     "unfused_without_context"),
    (DENSE, {"engine": "swift-megatron", "training.packing": True, "extra": {"attention_backend": "unfused"}},
     "unfused_packs_nothing"),
    (GEMMA_3, {"engine": "swift-zero3"}, "swift_stores_scores"),
    (GEMMA_2, {"engine": "swift-zero3"}, "softcap_lost"),
    (GEMMA_2, {"engine": "swift-fsdp", "extra": {"attn_impl": None}}, "softcap_lost"),
    (VAULT_GEMMA, {"engine": "llamafactory-zero3"}, "softcap_lost"),
    (GEMMA_2, {"engine": "llamafactory-zero3", "extra": {"flash_attn": "sdpa"}}, "softcap_lost"),
    (GEMMA_2, {"engine": "llamafactory-zero3"}, "softcap_stores_scores"),
    (DENSE, {"engine": "llamafactory-zero3", "extra": {"flash_attn": "fa3"}}, "flash_attention_3_unknown"),
    (GEMMA_2, {"engine": "llamafactory-zero3", "extra": {"flash_attn": "fa3"}}, "flash_attention_3_unknown"),
    (VAULT_GEMMA, {"engine": "llamafactory-zero3", "extra": {"flash_attn": "fa3"}}, "flash_attention_3_unknown"),
    (DENSE, {"engine": "llamafactory-zero3", "cluster.gpu": "b200-180g", "extra": {"flash_attn": "fa3"}},
     "flash_attention_3_needs_hopper"),
    (DENSE, {"engine": "swift-zero3", "cluster.gpu": "b200-180g", "extra": {"attn_impl": "flash_attention_3"}},
     "flash_attention_3_needs_hopper"),
    *((DENSE, {"engine": engine, "cluster.gpu": "v100-32g", "training.precision": "fp16", **more},
       "flash_attention_not_on_gpu") for engine, more in (
        ("llamafactory-zero3", {"extra": {"flash_attn": "fa2"}}), ("swift-zero3", PACKS),
        ("swift-zero3", {"extra": {"attn_impl": "flash_attention_2"}}))),
    *((DENSE, {"engine": "swift-megatron", "cluster.gpu": gpu, "extra": {"attention_backend": backend}},
       "flash_attention_not_on_gpu")
      for gpu, backend in (("b200-180g", "flash_3"), ("a100-80g", "flash_3"), ("a100-80g", "flash_4"))),
    *((DENSE, {"engine": "swift-megatron", "cluster.gpu": "v100-32g", "training.precision": "fp16", "extra": extra},
       "flash_attention_not_on_gpu")
      for extra in ({}, {"attention_backend": "flash_2"}, {"attention_backend": "flash_3"})),
    (DENSE, {"engine": "swift-megatron", "cluster.gpu": "v100-32g", "training.precision": "fp16",
             "extra": {"attention_backend": "fused"}}, "fused_needs_hopper"),
    (DENSE, {"engine": "llamafactory-megatron", "cluster.gpu": "v100-32g", "training.precision": "fp16",
             "parallel.context": 2}, "unfused_without_context"),
    *((DENSE, {"engine": "llamafactory-zero3", "training.cutoff_len": 99, **PACKS, "extra": extra}, "packs_are_padded")
      for extra in ({}, {"neat_packing": True}, {"neat_packing": True, "flash_attn": "fa2"})),
    *((base, {"engine": "llamafactory-zero3", **PACKS, "training.micro_batch_size": 2, **batch,
              "extra": {"neat_packing": True, "flash_attn": asked}}, "neat_packs_are_single")
      for base, asked in ((DENSE, "fa2"), (GEMMA_2, "auto"))
      for batch in ({"training.global_batch_size": 64}, {"training.gradient_accumulation_steps": 2})),
    (DENSE, {"engine": "llamafactory-zero3", **PACKS, "extra": {"neat_packing": True, "flash_attn": "fa3"}},
     "neat_packing_with_kernel"),
    (GPT_OSS, {"engine": "llamafactory-zero3", "training.method": "lora", **PACKS, "extra": {"neat_packing": True}},
     "neat_packing_with_kernel"),
    (JAMBA, {"engine": "llamafactory-zero3", **PACKS, "extra": {"neat_packing": True}}, "neat_packing_refused"),
    (MOE, {"engine": "llamafactory-zero3", **PACKS, "extra": {"neat_packing": True, "moe_aux_loss_coef": 0.01}},
     "neat_packing_with_balance"),
    (FALCON_H1, {"engine": "llamafactory-zero3", **PACKS, "extra": {"neat_packing": True}}, "neat_packing_leaks"),
    (GEMMA_3, {"engine": "llamafactory-zero3", **PACKS, "training.cutoff_len": 4096, "extra": {"neat_packing": True}},
     "neat_packing_without_windows"),
    (GEMMA_3N, {"engine": "llamafactory-ddp"}, "shared_keys_reentrant"),
    (GEMMA_3N, {"engine": "llamafactory-fsdp", "parallel.fsdp.version": 1}, "shared_keys_reentrant"),
    (GEMMA_3N, {"engine": "swift-zero3"}, "shared_keys_reentrant"),
    (MLLAMA, {"engine": "llamafactory-zero3", **FROZEN, "training.method": "lora"}, "image_layers_reentrant"),
    (MLLAMA, {"engine": "llamafactory-fsdp", "parallel.fsdp.version": 1}, "image_layers_reentrant"),
    (VISION, {f"training.freeze.{part}": True for part in ("vision_tower", "projector", "language_model")},
     "nothing_trained"),
    (DENSE, {"training.liger": True}, "liger_ignored"),
    *((GLM, {"engine": engine, "training.liger": True}, "liger_has_no_effect")
      for engine in ("llamafactory-zero3", "swift-zero3")),
    (VISION, {"engine": "llamafactory-zero3", "training.liger": True, "training.stage": "dpo"}, "liger_has_no_effect"),
    (MLLAMA, {"engine": "llamafactory-zero3", **FROZEN, "training.liger": True}, "liger_keeps_logits"),
    (PLAIN_GRANITE, {"engine": "swift-zero3", "training.liger": True}, "liger_keeps_logits"),
    (DENSE, {"engine": "llamafactory-zero3", "training.liger": True, "extra": {"use_dft_loss": True}},
     "liger_loss_replaced"),
    (DENSE, {"training.dataset": "d"}, "no_shuffling"),
    (DENSE, {"training.samples": 1_000_000}, "tokenise_first"),
    (DENSE, {"training.prepare.shuffle": True, "extra": {"tokenized_path": "/t"}}, "extra_clash"),
    (DENSE, {"training.prepare.tokenize": True, "training.max_steps": 9, "extra": {"streaming": True}}, "extra_clash"),
    (DENSE, {"engine": "swift-megatron", "training.prepare.shuffle": True}, "prepare_ignored"),
    (DENSE, {"engine": "llamafactory-ddp", "training.prepare.shuffle": True}, "shuffle_not_needed"),
    (DENSE, {"training.report_to": ("wandb",)}, "wandb_dropped"),
    (DENSE, {"cluster.gpu": "cpu", "parallel.pipeline": 2, "parallel.virtual_pipeline": 2}, "virtual_on_cpu"),
    (DENSE, {**ZERO3_OFFLOAD, "parallel.offload_device": "nvme"}, "offload_folder_missing"),
    (DENSE, {"engine": "llamafactory-zero2-offload", "parallel.offload_device": "nvme",
             "parallel.offload_folder": "/nvme"}, "nvme_needs_stage_3"),
    (DENSE, {"engine": "llamafactory-zero2", "parallel.optimizer_offload_fraction": 0.5}, "offload_fraction_ignored"),
    (DENSE, {"engine": "llamafactory-fsdp", "cluster.gpu": "cpu", "training.precision": "fp32"}, "fsdp_on_cpu"),
    (DENSE, {"engine": "llamafactory-zero3", "cluster.gpu": "cpu", "training.precision": "fp32"}, "zero3_on_cpu"),
    (DENSE, {"engine": "swift-zero3-offload", "cluster.gpu": "cpu", "training.precision": "fp32"}, "zero3_on_cpu"),
    (DENSE, {"engine": "llamafactory-fsdp", "training.method": "qlora"}, "qlora_needs_fsdp1"),
    (DENSE, ZERO3_OFFLOAD, "offload_on_one_thread"),
    (DENSE, {"engine": "llamafactory-fsdp", "parallel.fsdp.offload": True}, "offload_on_one_thread"),
    (QUANTISED, {"engine": "llamafactory-zero3", "training.method": "lora"}, "quantised_model_not_sharded"),
    (QUANTISED, {"engine": "llamafactory-fsdp", "training.method": "lora"}, "quantised_model_not_sharded"),
    (QUANTISED, {"engine": "llamafactory-ddp"}, "quantised_model_needs_lora"),
    (FALCON_H1, {"training.method": "lora", "engine": "llamafactory-ddp"}, "adapters_on_mamba"),
    (
        FALCON_H1,
        {"training.method": "lora", "training.lora.targets": "q_proj,out_proj", "engine": "llamafactory-ddp"},
        "adapters_on_mamba",
    ),
    (BAMBA, {"training.method": "lora", "engine": "llamafactory-ddp"}, "adapters_not_trained"),
    (
        BAMBA,
        {"training.method": "lora", "training.lora.targets": "in_proj,out_proj", "engine": "llamafactory-zero2"},
        "adapters_not_trained",
    ),
    (GLM_5, {"engine": "llamafactory-ddp"}, "sees_later_tokens"),
    (GLM_5, {"engine": "swift-zero3"}, "indexer_not_trained"),
    (GLM_5, {"training.method": "lora", "engine": "swift-zero3"}, "adapters_on_indexer"),
    (GLM_5, {"training.method": "lora", "training.lora.targets": "o_proj,wk", "engine": "llamafactory-zero2"},
     "adapters_on_indexer"),
    (GLM_5, {"engine": "swift-megatron"}, "chosen_keys_megatron_core"),
    (GLM_5, {"engine": "swift-megatron"}, "chosen_keys_rope"),
    (GLM_5, {"engine": "swift-megatron", "parallel.context": 2, "extra": {"cp_comm_type": "p2p"}},
     "chosen_keys_context"),
    (GLM_5, {"engine": "swift-megatron", "training.precision": "fp16"}, "chosen_keys_precision"),
    (GLM_LISTED, {"engine": "swift-megatron"}, "chosen_keys_pattern"),
    (GLM_SHARED, {"engine": "swift-megatron", "parallel.pipeline": 2}, "chosen_keys_stage"),
    (GLM_SHARED, {"engine": "swift-megatron", "parallel.pipeline": 2, "parallel.pipeline_layout": "Et*3|tL"},
     "chosen_keys_stage"),
    (GLM_SHARED, {"engine": "swift-megatron", "parallel.pipeline": 4, "parallel.pipeline_layout": "E|t*3|t|L"},
     "chosen_keys_stage"),
    (GLM_5, {"engine": "swift-megatron", "training.method": "lora"}, "chosen_keys_adapters"),
    (GLM_5, {"engine": "swift-megatron", "training.method": "lora", "training.lora.targets": "linear_proj,linear_wk"},
     "chosen_keys_adapters"),
    (DEEPSEEK_V4, {"engine": "swift-megatron"}, "megatron_core_dev"),
    (LING_3, {"engine": "swift-megatron"}, "linear_attention_differs"),
    *((LING, {"engine": engine, "extra": {"trust_remote_code": True}}, "experts_under_autocast")
      for engine in ("llamafactory-ddp", "swift-ddp")),
    (LING_2_5, {"engine": "swift-megatron", "parallel.context": 2}, "lightning_with_context"),
    (AXK2, {"engine": "swift-zero3"}, "indexer_not_trained"),
    (AXK2, {"training.method": "lora", "engine": "swift-zero3"}, "adapters_on_indexer"),
    (DEEPSEEK_V4, {"training.method": "lora", "engine": "swift-zero3"}, "adapters_on_grouped_rows"),
    (MIMO_V2, {"engine": "swift-zero3", "training.packing": True}, "sinks_without_flash"),
    (DENSE, {"engine": "llamafactory-zero3", "training.method": "qlora"}, "method_not_supported"),
    (DENSE, {"parallel.moe_token_dispatcher": "allgather", "extra": {"variable_seq_lengths": True}}, "extra_clash"),
    (DENSE, {"engine": "llamafactory-zero2", "extra": {"use_galore": True}}, "extra_clash"),
    (DENSE, {"engine": "llamafactory-fsdp", "extra": {"use_badam": True}}, "extra_clash"),
    (DENSE, {"engine": "llamafactory-zero3", "extra": {"pissa_init": True}}, "extra_clash"),
    (DENSE, {"training.stage": "dpo", "extra": {"neat_packing": True}}, "extra_clash"),
    *((DENSE, {"engine": "llamafactory-zero3", **values, "extra": extra}, "extra_clash")
      for values, extra in REFUSED_BY_THE_PARSER),
    (DENSE, {"engine": "llamafactory-zero2-offload", "training.gradient_accumulation_steps": 3},
     "offload_needs_new_deepspeed"),
    (DENSE, {"training.stage": "kto"}, "stage_not_supported"),
    (DENSE, {"training.stage": "rm"}, "stage_not_supported"),
    (DENSE, {"training.stage": "rm", "engine": "llamafactory-fsdp"}, "stage_not_supported"),
    (DENSE, {"training.stage": "rm", "engine": "llamafactory-zero2"}, "reward_model_starts_over"),
    (DENSE, {"training.stage": "rm", "engine": "llamafactory-ddp"}, "reward_model_reentrant"),
    (DENSE, {"training.stage": "kto", "training.packing": True, "engine": "llamafactory-ddp"}, "pairs_not_packed"),
    (DENSE, {"training.stage": "kto", "engine": "llamafactory-ddp", "extra": {"pissa_init": True}}, "extra_clash"),
    (DENSE, {"training.stage": "rm", "engine": "llamafactory-ddp", "extra": {"load_best_model_at_end": True}},
     "extra_clash"),
    (DENSE, {"engine": "llamafactory-ddp", "extra": {"streaming": True}}, "extra_clash"),
    (MOE, {"parallel.recompute": "full", "extra": {"moe_layer_recompute": True}}, "extra_clash"),
    (MOE, {"extra": {"moe_pad_expert_input_to_capacity": True}}, "extra_clash"),
    (MOE, {"parallel.moe_token_dispatcher": "allgather", "extra": {"moe_shared_expert_overlap": True}}, "extra_clash"),
    (DENSE, {"extra": {"fp8_param": True}}, "extra_clash"),
    (DENSE, {"parallel.context": 2, "extra": {"neat_packing": True}}, "extra_clash"),
    (DENSE, {"parallel.context": 2, "extra": {"sequence_packing": True}}, "extra_clash"),
    (DENSE, {"cluster.gpu": "cpu", "extra": {"sequence_packing": True}}, "extra_clash"),
    (DENSE, {"training.stage": "dpo", "extra": {"sequence_packing": True}}, "extra_clash"),
    (DENSE, {"training.stage": "dpo", "extra": {"calculate_per_token_loss": True}}, "extra_clash"),
    (DENSE, {"extra": {"val_size": 0.1, "eval_dataset": "other"}}, "extra_clash"),
    (DENSE, {"training.max_steps": 9, "extra": {"streaming": True, "max_samples": 10}}, "extra_clash"),
    (DENSE, {"training.max_steps": 9, "extra": {"streaming": True, "val_size": 0.1}}, "extra_clash"),
    (DENSE, {"extra": {"mask_history": True, "train_on_prompt": True}}, "extra_clash"),
    (DENSE, {"extra": {"interleave_probs": "0.5,0.5"}}, "extra_clash"),
    (DENSE, {"training.interleave_probs": "0.5,0.5"}, "mix_without_strategy"),
    (DENSE, {**TWO_SETS, "training.interleave_probs": "0.5,0.25,0.25"}, "mix_count"),
    (DENSE, {**TWO_SETS, "training.interleave_probs": "1,0"}, "mix_not_positive"),
    (DENSE, {**TWO_SETS, "training.interleave_probs": "70,30"}, "mix_sum"),
    (DENSE, {**TWO_SETS, "training.dataset": "a,b,c", "training.interleave_probs": "0.33,0.33,0.33"}, "mix_sum"),
    (DENSE, {**TWO_SETS, "training.interleave_probs": "0.5,0.5", "training.eval_dataset": "c"},
     "mix_count_of_evaluation"),
    (DENSE, {"training.dataset": "a,b", "training.mix_strategy": "interleave_once"}, "mix_once"),
    (DENSE, {**TWO_SETS, "engine": "swift-megatron", "training.mix_strategy": "interleave_once"}, "mix_once_of_swift"),
    (DENSE, {**TWO_SETS, "engine": "swift-megatron"}, "mix_shares_of_swift"),
    (DENSE, {**TWO_SETS, "engine": "swift-megatron", "training.interleave_probs": "2,2"}, "mix_sum"),
    (DENSE, {"extra": {"flash_attn": "fa2", "max_grad_norm": 0.5}}, "extra_ignored"),
    (DENSE, {"extra": {"gradient_checkpointing": True}}, "extra_ignored"),
    (DENSE, {"engine": "llamafactory-fsdp", "extra": {"fp8": True, "fp8_backend": "te"}}, "fp8_has_no_effect"),
    (VISION, {"model.path": "/m/Qwen3-VL-8B-Instruct/", "training.template": "qwen3_vl"}, "thinking_template"),
    (MOE, {"parallel.expert": 2, "training.dataset": "d"}, "padded_to_cutoff"),
    (DENSE, {"training.stage": "pt"}, "pretraining_not_packed"),
    (DENSE, {"training.stage": "dpo", "training.packing": True, "engine": "llamafactory-ddp"}, "pairs_not_packed"),
    (MOE, {"parallel.expert": 2, "parallel.tensor": 2, "parallel.sequence": False}, "sequence_forced"),
    (MOE, {"parallel.tensor": 2, "parallel.sequence": False}, "moe_needs_sequence"),
    (MOE, {"engine": "swift-megatron", "parallel.expert": 2, "parallel.tensor": 2, "parallel.sequence": False},
     "moe_needs_sequence"),
    (MOE, {"cluster.gpu": "cpu", "parallel.tensor": 2, "parallel.expert": 2}, "moe_tensor_on_cpu"),
    (DENSE, {"engine": "swift-megatron", "cluster.gpu": "cpu"}, "swift_on_cpu"),
    (DENSE, STREAMS, "swift_streams_with_one"),
    (INTERNVL_CHAT, {"engine": "llamafactory-zero3"}, "internvl_own_form"),
    (INTERNLM_CHAT, {"engine": "swift-megatron"}, "internvl_language_model"),
    (DENSE, {"engine": "swift-fsdp", "parallel.fsdp.version": 1}, "fsdp_version_not_supported"),
    (DENSE, {"engine": "swift-ddp", "training.packing": True, "training.precision": "fp32", "cluster.gpu": "cpu"},
     "packing_on_cpu"),
    (MOE, {"parallel.expert": 6}, "experts_not_divisible"),
    (MOE, {"parallel.expert": 32, "parallel.pipeline": 2}, "expert_ranks_not_divisible"),
    (MOE, {"parallel.expert": 8, "parallel.pipeline": 3}, "expert_ranks_not_divisible"),
    (MOE, {"parallel.expert": 8, "parallel.expert_tensor": 8}, "expert_ranks_not_divisible"),
    (MOE, {"parallel.expert_tensor": 5, "cluster.gpus_per_node": 5}, "width_not_divisible"),
    (MOE, {"parallel.expert": 8, "parallel.moe_token_dispatcher": "allgather"}, "allgather_with_experts"),
    *((GRPO, values, code) for values, code in REFUSED),
    (GRPO, {}, "grpo_assumed"),
    (GRPO, {"training.method": "partial"}, "method_not_with_stage"),
    (GRANITE, {"engine": "llamafactory-ddp", "training.method": "lora"}, "adapters_on_experts"),
    (GEMMA_3N, {"engine": "llamafactory-ddp", "training.method": "lora"}, "adapters_on_layers"),
    (GEMMA_3N, {"engine": "llamafactory-ddp", "training.method": "qlora"}, "altup_in_4_bits"),
    (DENSE, {"engine": "llamafactory-zero2", "extra": {"use_muon": True}}, "extra_not_estimated"),
    (MOE, {"engine": "swift-megatron", "training.stage": "dpo", "extra": {"mtp_num_layers": 1}}, "extra_not_estimated"),
    (MOE, {"extra": {"mtp_num_layers": 1}}, "mtp_not_loaded"),
    (MOE, {"engine": "swift-megatron", "extra": {"mtp_num_layers": 1}, "parallel.recompute": "full",
           "parallel.recompute_num_layers": 2}, "mtp_recompute_layers"),
    (MOE, {"extra": {"mtp_num_layers": 1}, "training.stage": "dpo"}, "extra_clash"),
    (MOE, {"extra": {"mtp_num_layers": 1, "neat_packing": True}, "training.packing": True}, "extra_clash"),
    *((GPT2, {"engine": engine, "training.method": "lora"}, "adapters_find_nothing")
      for engine in ("llamafactory-ddp", "swift-ddp")),
    *((base, {"engine": engine, "training.method": "lora"}, "adapters_on_whole_layers")
      for base in (KIMI_LINEAR, OLMO_HYBRID) for engine in ("llamafactory-zero2", "swift-ddp")),
    *((GPT_NEOX, {"engine": engine, "training.method": "qlora"}, "adapters_on_output")
      for engine in ("llamafactory-ddp", "swift-ddp")),
    (GEMMA_3N, {"engine": "swift-ddp", "training.method": "lora"}, "adapters_on_altup"),
    (GLM_4V, {"engine": "llamafactory-ddp", "training.method": "lora"}, "adapters_on_norm"),
    (QWEN25_VL, {"engine": "swift-ddp", "training.method": "lora", "training.lora.targets": "q_proj,gate_proj",
                 "training.freeze.vision_tower": True}, "adapters_in_frozen_part"),
    *((EXAONE_4_5, {"engine": "llamafactory-zero3", "training.method": method, "training.freeze.vision_tower": True},
       "freeze_ignored_for_type") for method in ("full", "lora")),
    (GRPO, {"training.method": "partial", "engine": "llamafactory-zero3"}, "method_not_with_stage"),
    ({**DENSE, "model": {"preset": "qwen3-omni-30b-a3b"}},
     {"engine": "llamafactory-zero3", "training.freeze.language_model": True}, "freeze_misses_language"),
    *(({**DENSE, "model": {"preset": preset}},
       {"engine": "llamafactory-ddp", "training.method": "lora", "training.lora.targets": targets},
       "lora_targets_unknown")
      for preset, targets in (("qwen3-8b", "q_proj,c_attn"), ("qwen3-8b", "c_attn"), ("gemma-3n-e2b", "c_attn"))),
]  # fmt: skip

ONLY_THE_USER_KNOWS = {
    "megatron_core_dev", "chosen_keys_megatron_core", "offload_needs_new_deepspeed", "chosen_keys_pattern",
    "unknown_gpu", "unknown_model", "gpu_memory_mixed", "gpu_memory_smaller", "calibration_other_engine",
    "calibration_other_training", "calibration_outdated", "reward_model_starts_over", "mix_not_positive",
    "grpo_reward_unknown", "grpo_cached_data", "grpo_assumed", "extra_not_estimated", "liger_keeps_logits",
    "liger_loss_replaced",
}  # fmt: skip
"""Which GPU or model was meant, whether to measure anew, whether a restart from step 0 is acceptable, shares, where
rewards and prompts are, keys of the model's config.json, and nothing where a note only informs."""


@pytest.mark.parametrize(("base", "values", "code"), CASES, ids=[code for _, _, code in CASES])
def test_a_rule_names_what_is_out_and_its_buttons_remove_it(base, values, code):
    job = job_of(base, values)
    before = check(job)
    result = {problem.code: problem for problem in before}
    assert code in result
    buttons = [edit for edit in (result[code].edit, *result[code].choices.values()) if edit]
    assert bool(buttons) == (code not in ONLY_THE_USER_KNOWS)
    for edit in buttons:
        after = check(with_values(job, edit))
        assert code not in {problem.code for problem in after}
        assert {problem.code for problem in errors(after)} <= {problem.code for problem in errors(before)}


@pytest.mark.parametrize(
    ("layers", "layout", "suggested"), [(4, "E|t*3|t|L", "E|(t*2|)*2L"), (8, None, "Et|t|t*4|t*2L")]
)
def test_stages_are_cut_anew_where_indexers_are_and_not_given_up(layers, layout, suggested):
    """Eight layers have four indexers, in the first three and the seventh: one for each stage."""
    keys = {**GLM_SHARED["model"]["hf_config"], "num_hidden_layers": layers, "index_skip_topk_offset": 3}
    keys["mlp_layer_types"] = ["dense"] + ["sparse"] * (layers - 1)
    sizes = {"engine": "swift-megatron", "parallel.pipeline": 4, "parallel.pipeline_layout": layout}
    [found] = [
        problem for problem in check(job_of({**GLM_SHARED, "model": {"hf_config": keys}}, sizes))
        if problem.code == "chosen_keys_stage"
    ]  # fmt: skip
    assert found.edit == {"parallel.pipeline_layout": suggested}


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
        (
            MIMO,
            {
                "engine": "llamafactory-ddp",
                "extra": {"trust_remote_code": True, "disable_gradient_checkpointing": True},
            },
        ),
        (MIMO, {"engine": "swift-ddp", "training.method": "lora"}),
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
        "idle layers without the engine's checkpoints",
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
    ],
)
def test_keys_of_extra_that_go_together_pass(base, values):
    assert not {problem.code for problem in check(job_of(base, values))} & {"extra_clash", "extra_ignored"}


@pytest.mark.parametrize("engine", TRAITS)
def test_every_stage_with_every_method_has_an_answer(engine):
    choices = parameters()
    for stage in choices["training.stage"].choices:
        for method in choices["training.method"].choices:
            job = job_of(DENSE, {"engine": engine, "training.stage": stage, "training.method": method})
            has_both = stage in job.traits.stages and method in job.traits.methods
            codes = {problem.code for problem in check(job)}
            assert has_both != bool(codes & {"stage_not_supported", "method_not_supported", "method_not_with_stage",
                                             "grpo_needs_swift", "grpo_on_megatron", "grpo_under_fsdp"})  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "method", "offered"),
    [("llamafactory-megatron", "lora", "swift-megatron"), ("llamafactory-zero3", "qlora", "llamafactory-ddp")],
)
def test_a_method_that_the_engine_lacks_comes_with_an_engine_that_has_it(engine, method, offered):
    job = job_of(DENSE, {"engine": engine, "training.method": method})
    (result,) = (problem for problem in check(job) if problem.code == "method_not_supported")
    assert result.choices["engine"] == {"engine": offered}
    for edit in result.choices.values():
        assert "method_not_supported" not in {problem.code for problem in check(with_values(job, edit))}


def test_heads_that_do_not_divide_are_named():
    config = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 6,
              "num_key_value_heads": 6, "vocab_size": 512}  # fmt: skip
    job = job_of({**VISION, "model": {"hf_config": config}}, {"parallel.tensor": 4})
    assert [p.code for p in check(job)] == ["heads_not_divisible", "groups_not_divisible"]


def test_all_parts_frozen_train_nothing():
    job = job_of(VISION, {f"training.freeze.{part}": True for part in ("vision_tower", "projector", "language_model")})
    assert [p.code for p in errors(check(job))] == ["nothing_trained"]


def test_every_rule_has_its_case():
    shown = set()
    for base, values, _ in CASES:
        job = job_of(base, values)
        with suppress(ProblemsError):
            shape, gpu = resolve_model(job.model), resolve_gpu(job.cluster)
            shown |= {rule.function.__name__ for rule in RULES
                      if rule.binds(job.traits) and rule.function(job, shape, gpu)}  # fmt: skip
    assert {rule.function.__name__ for rule in RULES} == shown


def test_every_rule_says_why_in_its_docstring():
    assert all(rule.function.__doc__ for rule in RULES)
    assert len({rule.function.__name__ for rule in RULES}) == len(RULES)


def test_a_launch_asks_for_what_planning_does_not():
    job, _ = parse_job(VISION)
    assert {p.field for p in check_launch(job)} == {
        "model.path", "training.dataset", "training.dataset_dir", "training.template", "training.output_dir",
        "cluster.hosts",
    }  # fmt: skip


def test_one_machine_named_twice_is_refused():
    hosts = [{"address": "10.0.0.1"}, {"address": "10.0.0.1"}]
    cluster = {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8, "hosts": hosts,
               "environments": {"llamafactory": {"python": "/opt/lf/bin/python"}}}  # fmt: skip
    job, _ = parse_job({**VISION, "cluster": cluster})
    assert "host_twice" in {p.code for p in check_launch(job)}


@pytest.mark.parametrize(
    ("edits", "is_refused"),
    [
        ({"engine": "llamafactory-zero2"}, True),
        ({"engine": "llamafactory-zero2", "extra": {"use_reentrant_gc": False}}, False),
        ({"engine": "llamafactory-zero2", "parallel.recompute": "none"}, False),
        ({"engine": "llamafactory-fsdp"}, False),
        ({"engine": "llamafactory-zero2", "training.method": "partial", "training.trainable_layers": 2}, False),
        ({"engine": "llamafactory-zero2", "training.method": "partial", "training.trainable_layers": 3}, True),
        ({"engine": "swift-ddp"}, False),
        ({"engine": "swift-zero2", "extra": {"gradient_checkpointing_kwargs": '{"use_reentrant": false}'}}, False),
        ({"engine": "swift-zero2", "extra": {"gradient_checkpointing_kwargs": {"use_reentrant": True}}}, True),
        ({"engine": "swift-zero2", "extra": {"gradient_checkpointing_kwargs": "no JSON"}}, True),
    ],
)
def test_shared_keys_need_checkpoints_that_are_not_reentrant(edits, is_refused):
    codes = {problem.code for problem in check(job_of(GEMMA_3N, edits))}
    assert ("shared_keys_reentrant" in codes) is is_refused


def test_the_indexers_of_glm_are_those_that_the_bridge_finds():
    def refused(**keys):
        config = {**SMALL_MODELS["glm_moe_dsa"], "indexer_types": None, **keys}
        job = job_of({**DENSE, "model": {"hf_config": config}}, {"engine": "swift-megatron"})
        return [problem.values["layer"] for problem in check(job) if problem.code == "chosen_keys_pattern"]

    listed = ["full", "shared", "full", "shared"]
    assert refused(indexer_types=listed) == refused(index_topk_pattern="FSFS") == [2]
    assert refused(indexer_types=listed, index_topk_freq=2, index_skip_topk_offset=1) == []
    assert refused(index_topk_freq=2, index_skip_topk_offset=2) == refused() == []
    assert refused(index_topk_freq=2) == [2], "transformers begins after the second layer, the bridge after the first"
