"""The runs that benchmarks/gpu.py measures: models, engines, methods and settings, for one machine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["text", "vision"]

STEPS = 15
"""Optimizer steps of a run; the first three do not count (backend/runs/tasks/calibration.py)."""
TINY: Mapping[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 528,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
TINY_VISION: Mapping[str, Any] = {
    "model_type": "qwen3_vl",
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "text_config": {
        **{key: value for key, value in TINY.items() if key not in ("model_type", "architectures")},
        "model_type": "qwen3_vl_text",
        "rope_scaling": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "model_type": "qwen3_vl",
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [1],
    },
    "tie_word_embeddings": False,
}
"""Qwen3-VL in small, as tools/tiny_data.py has it."""
TINIES: Mapping[str, Mapping[str, Any]] = {"tiny": TINY, "tiny-vl": TINY_VISION}
SIDE, TINY_SIDE = 672, 64
"""Pixels of a side of every picture, for real and for tiny models."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One run."""

    name: str
    model: str
    """A preset of presets/models.yaml, or a key of TINIES."""
    engine: str
    values: Mapping[str, object] = field(default_factory=dict)
    """Job path -> value, besides those that all runs share."""
    least_ranks: int = 1
    kind: Kind = "text"


def cases(ranks: int, *, on_cpu: bool) -> list[Case]:
    """Return the runs for a machine with so many GPUs, or processes on a CPU. Names are distinct."""
    every = _cpu() if on_cpu else _gpu()
    return [case for case in every if case.least_ranks <= ranks]


def _case(engine: str, model: str, variant: str, least_ranks: int = 1, **values: object) -> Case:
    kind: Kind = "vision" if "-vl" in model else "text"
    paths = {path.replace("__", "."): value for path, value in values.items()}
    name = "-".join(part for part in (engine.removeprefix("llamafactory-"), model, variant) if part)
    return Case(name=name, model=model, engine=engine, values=paths, least_ranks=least_ranks, kind=kind)


def _cpu() -> Iterator[Case]:
    small: dict[str, object] = {"training__cutoff_len": 64, "training__precision": "fp32"}
    for variant, values in _VARIANTS.items():
        yield _case("llamafactory-ddp", "tiny", variant, **{**small, **values})
    yield _case("llamafactory-zero3", "tiny", "full", 2, **small)
    # LLaMA-Factory cuts a question that is longer than half of cutoff_len, with its picture.
    yield _case("llamafactory-ddp", "tiny-vl", "full", **{**small, "training__cutoff_len": 256})


_VARIANTS: Mapping[str, Mapping[str, object]] = {
    "full": {},
    "lora": {"training__method": "lora"},
    "no-recompute": {"parallel__recompute": "none"},
    "packed": {"training__packing": True},
    "accumulated": {"training__gradient_accumulation_steps": 4},
}


def _gpu() -> Iterator[Case]:
    ddp, sharded = "llamafactory-ddp", ("llamafactory-zero2", "llamafactory-zero3", "llamafactory-fsdp")
    for variant, values in (*_VARIANTS.items(), *_MORE.items()):
        yield _case(ddp, "qwen3-0.6b", variant, **values)
    for model in ("qwen3-1.7b", "qwen3-4b", "qwen3-8b"):
        yield _case(ddp, model, "lora", training__method="lora")
        yield _case(ddp, model, "qlora", training__method="qlora")
        yield _case(ddp, model, "qlora-long", training__method="qlora", training__cutoff_len=8192)
    lora: dict[str, object] = {"training__method": "lora"}
    yield _case(ddp, "qwen3-1.7b", "full")
    yield _case(ddp, "qwen3-4b", "lora-no-recompute", **lora, parallel__recompute="none")
    yield _case(ddp, "qwen3-4b", "lora-long", **lora, training__cutoff_len=8192)
    yield _case(ddp, "qwen3-8b", "lora-batch-4", **lora, training__micro_batch_size=4)
    for model in ("llama-3.2-1b", "phi-4-mini", "qwen1.5-moe-a2.7b", "deepseek-v2-lite"):
        yield _case(ddp, model, "lora", **lora)
    for engine in sharded:
        for model, least in (("qwen3-1.7b", 1), ("qwen3-4b", 2), ("qwen3-8b", 2)):
            yield _case(engine, model, "full", least)
            yield _case(engine, model, "accumulated", 2, training__gradient_accumulation_steps=4)
        yield _case(engine, "qwen3-8b", "lora", 2, training__method="lora")
    yield _case("llamafactory-zero3-offload", "qwen3-4b", "full")
    yield _case("llamafactory-zero2-offload", "qwen3-1.7b", "full")
    for method in ("full", "lora"):
        yield _case(ddp, "qwen3-vl-2b", method, training__method=method)
        yield _case("llamafactory-zero3", "qwen3-vl-4b", method, 2, training__method=method)
    megatron = "llamafactory-megatron"
    yield _case(megatron, "qwen3-0.6b", "full")
    yield _case(megatron, "qwen3-4b", "tp2", 2, parallel__tensor=2)
    yield _case(megatron, "qwen3-4b", "pp2", 2, parallel__pipeline=2, training__gradient_accumulation_steps=8)
    yield _case(megatron, "qwen3-8b", "tp4", 4, parallel__tensor=4)
    yield _case(megatron, "qwen3-8b", "tp2-pp2", 4, parallel__tensor=2, parallel__pipeline=2)


_MORE: Mapping[str, Mapping[str, object]] = {
    "batch-4": {"training__micro_batch_size": 4},
    "long": {"training__cutoff_len": 8192},
    "liger": {"training__liger": True},
    "segments": {"environment": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}},
}


def shared_values(case: Case) -> Mapping[str, object]:
    """Return the values that every run has, if the case has no others."""
    return {
        "training.cutoff_len": 2048,
        "training.precision": "bf16",
        "training.micro_batch_size": 1,
        "training.gradient_accumulation_steps": 1,
        "training.max_steps": STEPS,
        "training.save_steps": 1_000_000,
        "training.logging_steps": 1,
        "training.report_to": (),
        "training.image_max_pixels": (TINY_SIDE if case.model in TINIES else SIDE) ** 2,
        **case.values,
    }


def chosen(every: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """Return the cases whose name holds one of the words; all without words."""
    return [case for case in every if not names or any(name in case.name for name in names)]
