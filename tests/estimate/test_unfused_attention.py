"""Memory and time on ms-swift's Megatron where attention stores its scores."""

from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.job.cluster import Cluster
from backend.job.job import Model
from benchmarks.small_models import SMALL_MODELS
from tests.estimate.cases import job

UNFUSED = {"extra": {"attention_backend": "unfused"}}
MEGATRON = {"engine": "swift-megatron", "parallel.recompute": "full", "parallel.recompute_num_layers": 1}


def test_unfused_attention_stores_a_score_for_every_head_and_pair_of_tokens():
    text = {**MEGATRON, "model.preset": "qwen3-8b", "parallel.recompute": "none", "training.images_per_sample": 0}
    unfused, fused = (estimate(job(text, extra, training__cutoff_len=8192)) for extra in (UNFUSED, {}))
    more = unfused.stages[0].activations_gib - fused.stages[0].activations_gib
    assert more == pytest.approx(36 * 6 * 32 * 8192**2 / 2**30, rel=0.01)
    assert unfused.iteration_s > fused.iteration_s


def test_sinks_and_wide_heads_are_unfused_before_the_job_says_so():
    for preset in ("gpt-oss-20b", "gemma-4-12b"):
        silent, said = (estimate(job(MEGATRON, extra, model__preset=preset)) for extra in ({}, UNFUSED))
        assert silent.peak_gib == said.peak_gib


def test_stored_scores_of_joined_sequences_count_as_those_of_the_longest():
    """Only `unfused` pads them, but the scores of `local` must not look smaller for it."""
    known = {**MEGATRON, "training.micro_batch_size": 4, "training.samples": 10_000, "training.sample_tokens": 800.0}
    local, unfused = (estimate(job(known, extra={"attention_backend": name})) for name in ("local", "unfused"))
    assert local.peak_gib == unfused.peak_gib


def test_unfused_attention_computes_the_scores_outside_its_windows_too():
    short, long = (
        estimate(job(MEGATRON, UNFUSED, model__preset="gpt-oss-20b", training__cutoff_len=length)).stages[0]
        for length in (8192, 16_384)
    )
    assert long.activations_gib + long.workspace_gib > 3 * (short.activations_gib + short.workspace_gib)


def test_the_published_run_of_gemma_4_lies_between_its_weights_and_full_batches():
    # github.com/modelscope/ms-swift examples/models/gemma4/gemma4_unified.sh: "4 * 65GiB"; most samples are short.
    published = job(
        MEGATRON,
        UNFUSED,
        model__preset="gemma-4-12b",
        cluster=Cluster(gpu="a100-80g", nodes=1, gpus_per_node=4),
        parallel__tensor=4,
        training__micro_batch_size=16,
        training__gradient_accumulation_steps=1,
        training__freeze__vision_tower=True,
        training__freeze__projector=True,
    )
    full, short = (estimate(replace_cutoff(published, length)) for length in (4096, 512))
    stage = full.stages[0]
    assert 45 < stage.weights_gib + stage.gradients_gib + stage.optimizer_gib < 65 < full.peak_gib
    assert 52 < short.peak_gib + short.outside_gib < 65


def replace_cutoff(made, length):
    return replace(made, training=replace(made.training, cutoff_len=length))


def test_bounded_logits_are_kept_on_megatron_too():
    small = {**SMALL_MODELS["gemma4_text"], "vocab_size": 2**18, "hidden_size_per_layer_input": 0}
    for each in ({"cross_entropy_fusion": False}, {"cross_entropy_fusion": True}):
        edits = {f"parallel.{name}": value for name, value in each.items()}
        bounded, plain = (
            estimate(replace(job(MEGATRON, edits), model=Model(hf_config={**small, "final_logit_softcapping": bound})))
            for bound in (30.0, None)
        )
        assert bounded.stages[-1].logits_gib - plain.stages[-1].logits_gib == pytest.approx(2 * 4096 * 2**18 / 2**30)
