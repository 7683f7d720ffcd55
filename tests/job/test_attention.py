"""Which attention runs: each engine's own choice, from what the model has and what the job asks for."""

from dataclasses import replace

import pytest

from backend.job.attention import stores_scores
from backend.job.job import Model
from backend.job.mapping import with_values
from backend.job.presets import resolve_model
from benchmarks.small_models import NEWER_MODELS, SMALL_MODELS
from tests.estimate.cases import job

GEMMA_2, GEMMA_4, GPT_OSS, QWEN = "gemma-2-9b", "gemma-4-12b", "gpt-oss-20b", "qwen3-8b"


@pytest.mark.parametrize(
    ("preset", "engine", "extra", "stores"),
    [
        (QWEN, "llamafactory-zero3", {}, False),
        (QWEN, "llamafactory-zero3", {"flash_attn": "disabled"}, True),
        (QWEN, "llamafactory-zero3", {"attn_impl": "eager"}, False),
        (GEMMA_2, "llamafactory-ddp", {}, True),
        (GEMMA_2, "llamafactory-ddp", {"flash_attn": "fa2"}, False),
        (GPT_OSS, "llamafactory-ddp", {}, False),
        (GPT_OSS, "llamafactory-ddp", {"flash_attn": "disabled"}, False),
        (QWEN, "swift-zero3", {}, False),
        (QWEN, "swift-zero3", {"attn_impl": "eager"}, True),
        (GEMMA_2, "swift-zero3", {}, False),
        (GPT_OSS, "swift-zero3", {}, True),
        (GPT_OSS, "swift-zero3", {"attn_impl": "kernels-community/vllm-flash-attn3"}, False),
        ("gemma-3-4b", "swift-zero3", {}, True),
        ("gemma-3-1b", "swift-zero3", {}, True),
        ("gemma-3-4b", "swift-zero3", {"attn_impl": "sdpa"}, False),
        ("gemma-3-4b", "llamafactory-zero3", {}, False),
        (QWEN, "swift-megatron", {}, False),
        (QWEN, "swift-megatron", {"attention_backend": "unfused"}, True),
        (GPT_OSS, "swift-megatron", {}, True),
        (GPT_OSS, "swift-megatron", {"attention_backend": "fused"}, False),
        (GEMMA_4, "swift-megatron", {}, True),
        (QWEN, "llamafactory-megatron", {"flash_attn": "disabled"}, False),
        (QWEN, "llamafactory-megatron", {"attention_backend": "unfused"}, False),
        (GPT_OSS, "swift-zero3", {"attn_impl": None}, True),
    ],
)
def test_an_engine_stores_scores_where_its_attention_is_not_fused(preset, engine, extra, stores):
    asked = with_values(job(), {"model.preset": preset, "engine": engine, "extra": extra})
    assert stores_scores(asked, resolve_model(asked.model)) is stores


def test_llamafactory_chooses_by_the_type_of_the_whole_model():
    youtu = {"model_type": "youtu", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 512}
    vault_gemma = {**SMALL_MODELS["gemma2"], "model_type": "vaultgemma"}
    for keys, stores in ((youtu, True), (NEWER_MODELS["granite_swa"], True), (vault_gemma, False)):
        asked = replace(job(engine="llamafactory-zero3"), model=Model(hf_config=keys))
        assert stores_scores(asked, resolve_model(asked.model)) is stores, keys
