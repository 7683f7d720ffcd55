"""Engine keys of the job's parameters, from the parameter table (backend.job.parameters)."""

from collections.abc import Mapping
from functools import cache

from backend.job.job import Job
from backend.job.mapping import get_value, parameters
from backend.job.mtp import requested_layers
from backend.job.parameters import Reader
from backend.job.pipeline_layout import with_mtp

EXPERTS = ("parallel.expert", "parallel.expert_tensor", "parallel.moe_token_dispatcher", "parallel.moe_grouped_gemm")
"""Paths of the expert parameters of Megatron-Core, for any engine."""
DTYPES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""training.precision -> the name of the dtype in torch, LLaMA-Factory (`infer_dtype`) and ms-swift (`torch_dtype`)."""


@cache
def owned_keys(*readers: Reader) -> Mapping[str, str]:
    """Return key -> the job path that decides it. If several stages have a key, the first one's path stands for it."""
    paths: dict[str, str] = {}
    for item in parameters().values():
        for key in (key for reader in readers for key in item.keys.get(reader, ())):
            paths.setdefault(key, item.path)
    return paths


def key_of(path: str, reader: Reader) -> str:
    """Return the key that carries a parameter's value unchanged. Raises KeyError if the reader has none."""
    return parameters()[path].keys[reader][0]


def carried(job: Job, reader: Reader, *paths: str) -> dict[str, object]:
    """Return the keys of these parameters with the job's values unchanged, without those that have no value."""
    values = {key_of(path, reader): get_value(job, path) for path in paths}
    return {key: value for key, value in values.items() if value is not None}


def layout_key(job: Job, reader: Reader) -> dict[str, object]:
    """Return the key of the pipeline layout, with the layers for multi-token prediction; nothing without a layout."""
    if not job.parallel.pipeline_layout:
        return {}
    return {
        key_of("parallel.pipeline_layout", reader): with_mtp(job.parallel.pipeline_layout, requested_layers(job)),
    }
