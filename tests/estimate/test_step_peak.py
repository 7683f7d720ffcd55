"""The Hugging Face path's peak agrees with torch's own count in real steps of small models.

Cheaper tests (test_hugging_face.py) have stored counts. They cannot detect that an upgrade of torch or transformers
saves other tensors.
"""

import statistics
from dataclasses import replace

import pytest

from backend.estimate.memory.engine_memory import memory_traits
from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.reserved import LOGITS_GAP
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.terms import STATIC_BYTES
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import layer_counts
from backend.estimate.plan import Plan
from backend.job.memory_traits import MemoryTraits
from backend.job.model import parse_model
from backend.job.presets import gpus, resolve_model
from backend.job.traits import TRAITS
from benchmarks.small_models import SEEING, SMALL_MODELS
from tests.estimate.cases import job
from tests.estimate.printed import printed_by
from tests.nodes import needs_node_environment

pytestmark = [pytest.mark.e2e, pytest.mark.engines, needs_node_environment]


STATE_SPACES = {"bamba", "falcon_h1", "granitemoehybrid", "jamba", "nemotron_h"}
NO_CHECKPOINTS = ("nemotron_h",)
"""Families whose class has no gradient checkpointing, so that there is one case."""


@pytest.mark.parametrize(
    ("model", "cases"), [("qwen3_moe", 2), ("llama", 6), ("qwen3", 6), ("qwen3_vl", 3), ("mllama", 6)]
)
def test_the_peak_of_a_small_model_is_within_five_percent_of_torchs_tracker(model: str, cases: int) -> None:
    peaks = printed_by("benchmarks.step_peak", "--model", model, "--json")
    assert len(peaks) == cases
    off = {case: ours / torchs - 1 for case, (torchs, ours) in peaks.items()}
    assert {case: error for case, error in off.items() if abs(error) > 0.05} == {}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", [(), ("--lora",)])
def test_the_peaks_of_small_models_of_25_families_are_within_ten_percent(options: tuple[str, ...]) -> None:
    peaks = printed_by("benchmarks.step_peak", "--families", *options, "--json")
    assert len(SMALL_MODELS) >= 25
    assert len(peaks) == 2 * len(SMALL_MODELS) - len(NO_CHECKPOINTS)
    errors = {case: ours / torchs - 1 for case, (torchs, ours) in peaks.items()}
    assert {case: error for case, error in errors.items() if abs(error) > 0.1} == {}
    assert statistics.median(map(abs, errors.values())) < 0.02


@pytest.mark.parametrize("options", [(), ("--lora",)])
def test_the_peak_with_a_large_vocabulary_is_within_two_percent(options: tuple[str, ...]) -> None:
    names = ("llama", "gemma2")
    peaks = printed_by("benchmarks.step_peak", "--families", *names, *options, "--vocabulary", "16384", "--json")
    errors = {case: ours / torchs - 1 for case, (torchs, ours) in peaks.items()}
    assert len(errors) == 2 * len(names)
    assert {case: error for case, error in errors.items() if abs(error) > 0.02} == {}


def test_the_forward_operations_of_small_models_are_those_that_torch_counts() -> None:
    counted = printed_by("benchmarks.flops_counted", "--json")
    assert counted.keys() == SMALL_MODELS.keys() | SEEING.keys()
    errors = {name: ours / torchs - 1 for name, (torchs, ours) in counted.items()}
    # For the counter the scan of a state space is no product.
    assert {name for name, error in errors.items() if abs(error) > 0.01} <= STATE_SPACES
    assert max(map(abs, errors.values())) < 0.04


def test_fsdp_1_alone_keeps_each_layers_input_and_its_gradient_and_where_checkpoints_are_reentrant_alone() -> None:
    alive = printed_by("benchmarks.kept_inputs")
    assert alive.pop("FSDP 1, reentrant") >= 2 * 8
    assert max(alive.values()) <= 4


def test_fsdp_2_keeps_whole_gradients_while_accelerates_no_sync_is_on_and_needs_four_units_more() -> None:
    counted = printed_by("benchmarks.fsdp_step")
    fsdp = job(engine="llamafactory-fsdp")
    traits = memory_traits(fsdp, resolve_model(fsdp.model), gpus()["h100-80g"])
    each_batch = replace(traits, accumulates_whole=False)
    ours = {"no_sync": _units(traits), "sync_each_batch": _units(each_batch)}
    assert {case: units["peak"] for case, units in counted.items()} == pytest.approx(ours, rel=0.05)
    assert counted["no_sync"]["held"] == pytest.approx(6, rel=0.01)
    assert counted["sync_each_batch"]["held"] < 0.1


def _units(memory: MemoryTraits) -> float:
    """Return our peak of two micro-batches of six layers on many ranks, in weights of a layer in 16 bits."""
    config = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8}
    layers = model_layers(parse_model({**config, "num_hidden_layers": 6, "vocab_size": 8}))
    plan = Plan(data=1024, sequence_length=2, micro_batches=2, recompute="full")
    peak = data_parallel_memory(layers, plan, memory, Tuning(trained=Trained())).peak
    return float(peak - STATIC_BYTES) / (2 * layer_counts(layers.kinds[0]).total)


def test_the_loss_leaves_a_gap_in_reserved_memory_that_holds_no_other_tensor() -> None:
    gaps = printed_by("benchmarks.reserved_gap", "--tokens", "256", "--json")
    assert len(gaps) == 4
    assert {name: gap for name, gap in gaps.items() if not LOGITS_GAP <= gap <= 2 * LOGITS_GAP} == {}


def test_dpos_log_probabilities_hold_what_torchs_allocator_hands_out_for_them() -> None:
    printed = printed_by("benchmarks.pair_logits")
    memory = TRAITS["llamafactory-zero3"].memory
    assert memory is not None
    of_kto = job(engine="llamafactory-zero3", training__stage="kto")
    kto = memory_traits(of_kto, resolve_model(of_kto.model), gpus()["h100-80g"])
    ours = {"forward": memory.pairs_forward_bytes, "kept": memory.pairs_kept_bytes}
    ours |= {"reference": memory.pairs_forward_bytes, "backward": memory.logits_backward_bytes}
    ours |= {"kto": kto.pairs_forward_bytes + kto.pairs_kept_bytes}
    assert printed == pytest.approx(ours, rel=0.01)
