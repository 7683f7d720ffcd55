"""What the reader of published memory takes from the words and fields of a row."""

import pytest

from backend.estimate.memory.reserved import RESERVED_PER_ALLOCATED
from benchmarks.measured import measured_results

SHAPE = {"hidden": 4096, "ffn": 12288, "layers": 36, "heads": 32, "kv": 8, "vocab": 151936}
PARAMETERS = 8.19e9
ROW = {
    "source": "A stranger", "model": "8B", "model_arch": SHAPE, "hardware": "B300 288GB", "gpus": 8, "tp": 1, "pp": 1,
    "dp": 8, "mbs": 1, "gbs": 8, "seq": 4096, "recompute": "full", "precision": "bf16", "method": "full",
    "framework": "transformers", "notes": "2026, one length (packing)", "measured_mem_gb": 50.0,
    "mem_kind": "GiB max_memory_allocated",
}  # fmt: skip
SWIFT = {
    "source": "A stranger, ms-swift", "source_ref": "megatron/sft", "framework": None, "tp": 2, "dp": 4,
    "method": "full packing=true",
}  # fmt: skip


def gib(**fields: object) -> float:
    [result], [] = measured_results([{**ROW, **fields}])
    return result.ours


def test_ms_swift_4_before_4_4_accumulates_in_16_bits_and_has_transformer_engines_loss():
    fixed, early = (gib(**SWIFT, notes=f"ms-swift {version}, packing") for version in ("4.6.0", "4.1.2"))
    logits_gib = 4096 * SHAPE["vocab"] / 2 / 2**30
    less = 2 * PARAMETERS / 2 / 2**30 + (10 - 2) * logits_gib
    assert fixed - early == pytest.approx(less, rel=0.02)


def test_a_row_that_names_an_engine_has_fp32_weights_unless_it_says_otherwise():
    masters, pure = gib(engine="llamafactory-ddp"), gib(engine="llamafactory-ddp", pure_bf16=True)
    assert pure == gib()
    # Weights, gradients, DDP's buckets and two moments, each with 2 bytes more.
    assert masters - pure > 5 * 2 * PARAMETERS / 2**30


def test_shard_grad_op_keeps_all_parameters_gathered():
    whole, shards = gib(fsdp=8, zero=2, pure_bf16=True), gib(fsdp=8, zero=3, pure_bf16=True)
    assert whole - shards > 0.7 * 2 * PARAMETERS / 2**30


def test_liger_stores_no_logits_unless_the_row_has_their_bytes():
    long = {"seq": 65536, "mbs": 1, "fsdp": 8, "zero": 3, "pure_bf16": True, "liger": True}
    logits_gib = 65536 * SHAPE["vocab"] / 2**30
    assert gib(**long, logits_bytes=[6, 6]) - gib(**long) > 4 * logits_gib


def test_state_bytes_are_those_of_weights_gradients_and_optimizer():
    less, more = (gib(gpus=1, dp=1, gbs=1, state_bytes=[2, 2, optimizer]) for optimizer in (4, 8))
    assert more - less == pytest.approx(4 * PARAMETERS / 2**30, rel=0.01)


def test_a_row_with_expandable_segments_reserves_no_gaps():
    run = {"seq": 65536, "zero": 3, "pure_bf16": True, "liger": True}
    reserved = {**run, "mem_kind": "GiB max_memory_reserved"}
    expandable = gib(**reserved, notes="2026, packing, expandable segments")
    assert expandable == pytest.approx(RESERVED_PER_ALLOCATED * gib(**run))
    assert gib(**reserved) > 1.1 * expandable


@pytest.mark.parametrize("fields", [{"fsdp": 8, "ep": 8}, {"fsdp": 8, "notes": "packing, one FSDP unit"}])
def test_sharding_that_no_engine_here_launches_is_refused(fields):
    [], [skip] = measured_results([{**ROW, **fields}])
    assert skip.reason.endswith("which no engine here launches")


def test_fsdp_shards_the_states_over_the_ranks_of_context_parallelism_too():
    sharded = {"fsdp": 8, "zero": 3, "engine": "llamafactory-fsdp"}
    half = gib(**sharded, dp=4, cp=2, gbs=4, seq=8192)
    assert half == pytest.approx(gib(**sharded, dp=8, cp=1, gbs=8, seq=4096), rel=0.001)


def test_a_row_of_qlora_without_autocast_has_no_16_bit_copy_of_the_output_layer():
    run = {
        "method": "qlora lora_rank=16 target_modules=all",
        "engine": "llamafactory-ddp",
        "gpus": 1,
        "dp": 1,
        "gbs": 1,
    }
    embedding_gib = SHAPE["vocab"] * SHAPE["hidden"] / 2**30
    assert gib(**run) - gib(**run, autocast=False) == pytest.approx(2 * embedding_gib, rel=0.05)


def test_a_compiled_run_of_torchtitan_saves_no_output_of_a_norm_or_function():
    run = {"source": "runs of torchtitan", "framework": None, "fsdp": 8, "zero": 3, "recompute": "none"}
    eager, compiled = (gib(**run, notes=f"2024-02, packing{more}") for more in ("", ", compile"))
    function_gib = 36 * 4096 * 2 * SHAPE["ffn"] / 2**30
    assert eager - compiled > function_gib
