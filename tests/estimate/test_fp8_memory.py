"""A job in FP8 keeps 8-bit copies of its weights, and saves inputs of projections in 8 bits."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from backend.estimate import estimate
from backend.estimate.memory.fp8 import fp8_of_job, fp8_of_recipe, fp8_pieces
from backend.estimate.memory.stage import Trained, rank_parameters, stages
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import layer_counts
from backend.estimate.plan import Plan
from backend.job.job import Model
from backend.job.memory_traits import MEGATRON_LM_MEMORY
from backend.job.presets import gpus, resolve_model
from benchmarks.golden import Replay, replay
from benchmarks.measured import measured_results
from benchmarks.shapes import DATA
from tests.estimate.cases import NO_IMAGES, job

MIB = 2**20
DENSE = {"model.preset": "llama-3.1-8b", **NO_IMAGES}
TENSORWISE = {"extra": {"fp8": "hybrid", "fp8_recipe": "tensorwise"}}
STORED = {"extra": {**TENSORWISE["extra"], "fp8_param": True}}
B200 = {"cluster.gpu": "b200-180g"}
WEIGHTS = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
"""Weights of the projections of Llama 3.1 8B."""
GIB = 2**30


def readings(case: str) -> dict[str, dict[str, Any]]:
    """Return the readings of a case of Megatron-LM's CI by environment."""
    rows = json.loads((DATA / "megatron_golden.json").read_text())
    rows = rows["rows"] if isinstance(rows, dict) else rows
    return {row["env"]: row for row in rows if row["case"] == case}


def in_16_bits(row: dict[str, Any]) -> Replay:
    """Return the replay of a row as if it were without FP8 and without what else a replay refuses."""
    refused = ("--fp8-format", "--mtp-num-layers")
    found = replay({**row, "args": {key: value for key, value in row["args"].items() if key not in refused}})
    assert isinstance(found, Replay)
    return found


def copies_mib(found: Replay, *, replaces_weights: bool, one_copy: bool) -> float:
    """Return the MiB that tensorwise copies add on the last stage of a replay."""
    fp8 = fp8_of_recipe("tensorwise", replaces_weights=replaces_weights, one_copy=one_copy)
    stage = stages(found.layers, found.plan)[-1]
    memory = replace(found.memory, fp8=fp8)
    return float(sum(part.bytes for part in fp8_pieces(found.plan, stage, memory, reference=False))) / MIB


def test_the_copies_are_what_fp8_adds_to_a_run_of_megatrons_ci_between_two_steps():
    plain = readings("gpt3_mcore_te_tp2_pp2_ep4_etp1_memory_speed")["dev_dgx_h100"]
    row = readings("gpt3_mcore_te_tp2_pp2_ep4_etp1_mtp_resume_torch_dist_fp8")["dev_dgx_h100"]
    read = (row["mem_allocated_bytes"] - plain["mem_allocated_bytes"]) / MIB
    found = in_16_bits(row)
    # Both runs predict a second token: one more layer, and a projection from 2 x hidden to hidden, which TP splits.
    layers, hidden = sum(stages(found.layers, found.plan)[-1].counts), found.layers.output.hidden
    every_layer = copies_mib(found, replaces_weights=False, one_copy=False) * (layers + 1) / layers
    assert every_layer + 2 * 2 * hidden**2 / found.plan.tensor / MIB == pytest.approx(read, rel=0.015)


@pytest.mark.parametrize(
    "plan", ["tp2_pp2_current_scaling_native_fp8_tp_pp_sp", "tp4_cp2_current_scaling_native_fp8_tp_sp_cp"]
)
def test_only_a_gpu_that_needs_transposed_matrices_keeps_a_second_copy_in_megatrons_ci(plan):
    rows = readings(f"gpt3_weekly_mcore_{plan}_tp_overlap")
    read = (rows["dev_dgx_h100"]["mem_allocated_bytes"] - rows["dev_dgx_gb200"]["mem_allocated_bytes"]) / MIB
    found = in_16_bits(rows["dev_dgx_h100"])
    on_hopper, on_blackwell = (copies_mib(found, replaces_weights=True, one_copy=one) for one in (False, True))
    assert on_hopper - on_blackwell == pytest.approx(read, abs=1.1)


def weights_gib(*edits: dict[str, Any]) -> float:
    [stage] = estimate(job(DENSE, *edits)).stages
    return stage.weights_gib


@pytest.mark.parametrize(
    ("edits", "added"),
    [
        (TENSORWISE, 2),
        ({**TENSORWISE, **B200}, 1),
        (STORED, 0),
        ({**STORED, **B200}, -1),
        ({"extra": {"fp8": "e4m3", "fp8_recipe": "mxfp8"}, **B200}, 2 * (1 + 1 / 32)),
        ({"engine": "swift-megatron", "extra": {"fp8_format": "hybrid"}}, 2),
        ({"engine": "swift-megatron", "training.method": "lora", "extra": {"fp8_format": "hybrid"}}, 2),
    ],
)
def test_fp8_adds_bytes_to_each_weight_of_a_layer(edits, added):
    plain = {key: value for key, value in edits.items() if key != "extra"}
    assert (weights_gib(edits) - weights_gib(plain)) * GIB == pytest.approx(added * WEIGHTS, abs=1)


def test_a_reference_model_keeps_the_copy_that_forward_reads():
    dpo = {"engine": "swift-megatron", "training.stage": "dpo"}
    fp8 = {**dpo, "extra": {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"}}
    assert (weights_gib(fp8) - weights_gib(dpo)) * GIB == pytest.approx(3 * WEIGHTS, abs=1)


def activations_gib(*edits: dict[str, Any]) -> float:
    [stage] = estimate(job(DENSE, *edits)).stages
    return stage.activations_gib


def test_inputs_of_projections_are_saved_in_one_byte_and_delayed_scaling_copies_the_output_of_attention():
    delayed = {"extra": {"fp8": "hybrid"}}
    tokens, layers = 4096, 32
    saved = tokens * layers * (2 * 4096 + 14336) / GIB
    plain = activations_gib()
    assert plain - activations_gib(TENSORWISE) == pytest.approx(saved)
    assert activations_gib(delayed) - activations_gib(TENSORWISE) == pytest.approx(tokens * layers * 4096 / GIB)


def test_hugging_face_engines_keep_no_copies():
    fsdp = job(DENSE, {"engine": "llamafactory-fsdp", "extra": {"fp8": True}})
    assert fp8_of_job(fsdp, gpus()["h100-80g"]) is None


def test_the_router_the_norms_and_the_output_layer_stay_in_16_bits():
    layers, plan = (
        model_layers(resolve_model(Model(preset="qwen3-30b-a3b"))),
        Plan(sequence_length=4096, micro_batches=1),
    )
    [stage] = stages(layers, plan)
    memory = replace(MEGATRON_LM_MEMORY, fp8=fp8_of_recipe("tensorwise", replaces_weights=False, one_copy=True))
    counted = float(sum(part.bytes for part in fp8_pieces(plan, stage, memory, reference=False)))
    parameters = rank_parameters(layers, plan, stage, Trained())
    hidden, count, experts = layers.output.hidden, 48, 128
    norms = 2 * hidden + 2 * 128
    ends = layers.embedding + layer_counts(layers.output).total
    assert parameters.dense + parameters.expert - counted == ends + count * (norms + hidden * experts)


def published() -> Iterator[dict[str, Any]]:
    rows = json.loads((DATA / "published_memory.json").read_text())
    yield from (
        row for row in (rows["rows"] if isinstance(rows, dict) else rows) if "fp8" in str(row["precision"]).lower()
    )


def test_published_runs_in_fp8_are_estimated_within_a_tenth():
    results, _ = measured_results(published())
    assert len(results) >= 5
    assert max(abs(result.error) for result in results) < 0.10
