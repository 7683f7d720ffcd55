"""States that ranks of ZeRO and FSDP share, offloaded states, and the memory of a reference model."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.estimate import estimate, over_host_memory
from backend.estimate.estimate import GIB
from backend.estimate.memory.sharding import sharded_states
from backend.estimate.memory.stage import RankParameters
from backend.estimate.memory.terms import STATIC_BYTES
from backend.estimate.model.model_layers import model_layers
from backend.estimate.plan import Plan
from backend.job.job import Model
from backend.job.memory_traits import SCALES_BYTES
from backend.job.presets import resolve_model
from backend.job.traits import TRAITS
from tests.estimate.cases import job

PARAMETERS = 8190735360
"""Of Qwen3-8B."""


WIDE = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32}
"""The sizes of Qwen3-8B."""


def of(engine, **values):
    return estimate(job(engine=f"llamafactory-{engine}", model__preset="qwen3-8b", **values))


@pytest.mark.parametrize(
    ("engine", "weights", "gradients", "optimizer"),
    [
        ("ddp", 4, 8, 8),
        ("zero2", 2, 2 / 32, 12 / 32),
        ("zero3", 2 / 32, 2 / 32, 12 / 32),
        ("fsdp", 4 / 32, 2, 8 / 32),
    ],
)
def test_each_engine_holds_its_share_of_the_states(engine, weights, gradients, optimizer):
    [stage] = of(engine).stages
    bucket = 2 * 5e8 / GIB if engine == "zero2" else 0
    assert stage.weights_gib == pytest.approx(weights * PARAMETERS / GIB)
    assert stage.gradients_gib == pytest.approx(gradients * PARAMETERS / GIB + bucket)
    assert stage.optimizer_gib == pytest.approx(optimizer * PARAMETERS / GIB)


def test_deepspeed_flattens_gradients_before_it_casts_them():
    [stage] = of("zero2", cluster__nodes=1, cluster__gpus_per_node=2, training__cutoff_len=512).stages
    held = stage.weights_gib + stage.gradients_gib + stage.optimizer_gib
    assert (stage.peak_gib - held) * GIB - STATIC_BYTES == pytest.approx((2 + 4) * PARAMETERS / 2)


def test_zero3_gathers_a_module_beside_its_live_parameters_and_nothing_while_it_steps():
    """The largest module is the output layer."""
    running, stepping = (
        of("zero3", cluster__nodes=1, cluster__gpus_per_node=count, training__cutoff_len=length).stages[0]
        for count, length in ((8, 16384), (2, 128))
    )
    assert running.workspace_gib * GIB - STATIC_BYTES == pytest.approx(2 * (1e9 + 151936 * 4096))
    assert stepping.workspace_gib * GIB - STATIC_BYTES == pytest.approx(6 * 1e9)


@pytest.mark.parametrize(("engine", "held_bytes"), [("zero2", 0), ("zero3", 2 / 32)])
def test_zero3_has_its_gradients_buffer_from_the_start(engine, held_bytes):
    [stage] = of(engine, training__gradient_accumulation_steps=1, training__cutoff_len=16384).stages
    bucket = 2 * 5e8 if engine == "zero2" else 0
    assert stage.gradients_gib * GIB - bucket == pytest.approx(held_bytes * PARAMETERS)


def test_zero2_offload_keeps_a_buffer_for_the_largest_weight():
    buffers = {
        method: of("zero2-offload", training__method=method).stages[0].gradients_gib * GIB - 2 * 5e8
        for method in ("full", "lora")
    }
    assert buffers["full"] == pytest.approx(2 * 151936 * 4096)
    assert buffers["lora"] < 1e8


def test_more_sharding_never_needs_more():
    ddp, zero2, zero3 = (of(engine).peak_gib for engine in ("ddp", "zero2", "zero3"))
    assert zero3 < zero2 < ddp


@pytest.mark.parametrize(("engine", "host_bytes"), [("zero2-offload", 12 + 4), ("zero3-offload", 12 + 4 + 2)])
def test_offloaded_states_leave_the_gpu_and_are_counted_on_each_node(engine, host_bytes):
    offloaded, resident = of(engine), of(engine.removesuffix("-offload"))
    assert offloaded.stages[0].optimizer_gib == 0
    assert offloaded.peak_gib < resident.peak_gib
    assert resident.host_memory_gib == 0
    assert offloaded.host_memory_gib == pytest.approx(8 * host_bytes * PARAMETERS / 32 / GIB)


@pytest.mark.parametrize("engine", ["llamafactory-zero2-offload", "llamafactory-megatron"])
def test_offloading_more_than_a_nodes_ram_is_warned_about_where_that_is_known(engine):
    def codes(host_memory_gib):
        tried = job(engine=engine, model__preset="qwen3-8b", cluster__host_memory_gib=host_memory_gib,
                    parallel__optimizer_offload_fraction=1.0)  # fmt: skip
        return [(problem.code, problem.severity) for problem in over_host_memory(tried, estimate(tried))]

    needed = of("zero2-offload").host_memory_gib
    assert codes(None) == []
    assert codes(needed * 10) == []
    assert codes(needed / 10) == [("host_memory_exceeded", "warning")]


def test_weights_that_are_not_offloaded_stay_on_the_gpus():
    everything, optimizer = of("zero3-offload"), of("zero3-offload", parallel__offload_parameters=False)
    whole = of("zero3")
    assert optimizer.host_memory_gib < everything.host_memory_gib
    assert everything.stages[0].weights_gib < optimizer.stages[0].weights_gib == whole.stages[0].weights_gib
    assert optimizer.stages[0].optimizer_gib == everything.stages[0].optimizer_gib == 0


def test_what_goes_to_nvme_is_no_host_memory():
    assert of("zero3-offload", parallel__offload_device="nvme").host_memory_gib == 0
    assert of("zero2-offload", parallel__offload_device="nvme").host_memory_gib > 0, "DeepSpeed takes the RAM there"


def test_fsdp_keeps_all_parameters_gathered_when_it_does_not_reshard():
    resharded, resident = of("fsdp"), of("fsdp", parallel__fsdp__reshard_after_forward=False)
    assert resident.peak_gib - resharded.peak_gib > 8
    assert resident.stages[0].workspace_gib > 2 * PARAMETERS / GIB


@pytest.mark.parametrize(("engine", "more_bytes"), [("fsdp", 2), ("zero3", 0)])
def test_fsdp_keeps_whole_gradients_while_micro_batches_are_accumulated(engine, more_bytes):
    once, often = (of(engine, training__gradient_accumulation_steps=count) for count in (1, 8))
    assert often.peak_gib - once.peak_gib == pytest.approx(more_bytes * PARAMETERS / GIB, rel=0.03)


def test_fsdp_divides_and_gathers_packed_weights_as_they_are_and_their_scales_not_at_all():
    def stage(method, **values):
        tried = of("fsdp", training__method=method, parallel__fsdp__version=1, **values)
        return tried.stages[0]

    packed, plain = stage("qlora"), stage("lora")
    layer = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 12288)
    assert plain.workspace_gib - packed.workspace_gib == pytest.approx(2 * 1.5 * layer / GIB, rel=0.01)
    scales = SCALES_BYTES * 36 * layer
    assert plain.weights_gib - packed.weights_gib == pytest.approx((1.5 * 36 * layer / 32 - scales) / GIB, rel=0.01)
    assert stage("qlora", parallel__fsdp__offload=True).weights_gib == pytest.approx(scales / GIB)


def test_fsdp_offload_moves_the_shards_to_the_host():
    offloaded = of("fsdp", parallel__fsdp__offload=True)
    assert offloaded.stages[0].weights_gib == offloaded.stages[0].optimizer_gib == 0
    assert offloaded.host_memory_gib == pytest.approx(8 * 16 * PARAMETERS / 32 / GIB)


def test_fsdp_offload_has_the_shards_of_a_unit_on_their_way():
    few, many = (of("fsdp", parallel__fsdp__offload=True, cluster__nodes=nodes) for nodes in (1, 4))
    unit = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 12288)
    expected = 12 * unit * (1 / 8 - 1 / 32) / GIB
    assert few.stages[0].workspace_gib - many.stages[0].workspace_gib == pytest.approx(expected, rel=0.01)


def test_scales_without_double_quantisation_are_fp32():
    double, single = (
        of("ddp", training__method="qlora", extra={"double_quantization": doubled}) for doubled in (True, False)
    )
    packed = 36 * 4096 * (4096 + 2 * 1024 + 4096 + 3 * 12288)
    expected = (4 / 64 - SCALES_BYTES) * packed / GIB
    assert single.stages[0].weights_gib - double.stages[0].weights_gib == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("optimizer", ["adamw_8bit", "paged_adamw_8bit"])
def test_moments_of_adapters_are_a_byte_in_an_8_bit_optimizer(optimizer):
    plain, narrow = (of("ddp", training__method="lora", extra=extra) for extra in ({}, {"optim": optimizer}))
    shares = narrow.stages[0].optimizer_gib / plain.stages[0].optimizer_gib
    assert shares == pytest.approx(2 * (1 + 4 / 256) / 8)


def test_modules_that_are_trained_whole_beside_adapters_are_there_twice():
    alone, beside = (
        of("ddp", training__method="lora", extra=extra) for extra in ({}, {"additional_target": "embed_tokens,lm_head"})
    )
    copies = 2 * 151_936 * 4096
    trained = [tried.stages[0].trainable_parameters for tried in (alone, beside)]
    assert trained[1] - trained[0] == copies
    assert beside.stages[0].weights_gib - alone.stages[0].weights_gib == pytest.approx(4 * copies / GIB)
    resized = of("ddp", training__method="lora", extra={"resize_vocab": True})
    assert resized.peak_gib == beside.peak_gib


@pytest.mark.parametrize(("engine", "copy_bytes"), [("zero2", 2), ("zero3", 2 / 32), ("fsdp", 4 / 32)])
def test_dpo_holds_a_reference_model_beside_the_trained_one(engine, copy_bytes):
    sft, dpo = of(engine), of(engine, training__stage="dpo")
    assert dpo.stages[0].weights_gib - sft.stages[0].weights_gib == pytest.approx(copy_bytes * PARAMETERS / GIB)
    assert dpo.stages[0].activations_gib >= sft.stages[0].activations_gib


@pytest.mark.parametrize("engine", ["llamafactory-zero2", "llamafactory-zero3", "llamafactory-megatron"])
def test_orpo_and_simpo_need_no_reference_model(engine):
    sft, orpo, sigmoid = (
        estimate(job(engine=engine, model__preset="qwen3-8b", training__stage=stage, training__dpo__loss=loss))
        for stage, loss in (("sft", "sigmoid"), ("dpo", "orpo"), ("dpo", "sigmoid"))
    )
    assert orpo.stages[0].weights_gib == sft.stages[0].weights_gib < sigmoid.stages[0].weights_gib


@pytest.mark.parametrize(("loss", "bytes_each"), [("sigmoid", 20), ("orpo", 12)])
def test_pairs_hold_logits_and_log_probabilities_of_the_policy_beside_those_of_the_reference(loss, bytes_each):
    pairs = {"training__stage": "dpo", "training__dpo__loss": loss, "training__cutoff_len": 16384}
    [stage] = of("zero3", **pairs).stages
    assert stage.logits_gib * GIB == pytest.approx(bytes_each * 2 * 16384 * 151936)


def test_kto_keeps_a_reference_model_whatever_the_dpo_loss_is():
    sft, kto = (of("zero2", training__stage=stage, training__dpo__loss="orpo") for stage in ("sft", "kto"))
    assert kto.stages[0].weights_gib - sft.stages[0].weights_gib == pytest.approx(2 * PARAMETERS / GIB)


@pytest.mark.parametrize(("precision", "bytes_each"), [("bf16", 6), ("fp32", 4)])
def test_a_reward_model_has_logits_in_forward_alone_and_no_reference(precision, bytes_each):
    long = {"training__cutoff_len": 32768, "training__precision": precision}
    # Each query head has keys of its own: in fp32, attention over shared keys would store its scores.
    own_keys = Model(hf_config={"model_type": "llama", "vocab_size": 151936, **WIDE, "num_key_value_heads": 32})
    sft, reward = (
        estimate(replace(job(engine="llamafactory-zero3", training__stage=stage, **long), model=own_keys))
        for stage in ("sft", "rm")
    )
    assert reward.stages[0].weights_gib == sft.stages[0].weights_gib
    assert reward.stages[0].logits_gib * GIB == pytest.approx(bytes_each * 2 * 32768 * 151936)


def test_kto_runs_four_forward_passes_and_a_reward_model_one_over_two_sequences():
    sft, dpo, kto, reward = (
        of("zero3", training__stage=stage, training__method="lora", parallel__recompute="none").iteration_s
        for stage in ("sft", "dpo", "kto", "rm")
    )
    assert sft < kto < dpo
    assert sft < reward < dpo


@pytest.mark.parametrize(("engine", "element_bytes"), [("zero2", 2 + 2 + 4), ("zero3", 2 + 2 + 4), ("ddp", 4)])
def test_liger_sums_the_gradient_of_a_trained_output_layer_in_the_forward_pass_of_the_loss(engine, element_bytes):
    """The 16-bit sum takes the product of a chunk in 16 bits and in fp32, an fp32 sum takes it as it is."""
    full, lora = (
        of(engine, training__liger=True, training__method=method, training__cutoff_len=4096).stages[0].workspace_gib
        for method in ("full", "lora")
    )
    kept = {"zero2": 0, "zero3": 2 * (1e9 + 151936 * 4096), "ddp": 2 * (PARAMETERS - 151936 * 4096)}[engine]
    assert full * GIB - STATIC_BYTES == pytest.approx(kept + element_bytes * 151936 * 4096)
    assert lora < full


def test_zero3_gathers_weights_in_4_bits_packed():
    """LLaMA-Factory has no QLoRA on ZeRO-3, but published runs have."""
    layers, packed = model_layers(resolve_model(Model(preset="qwen3-8b"))), 6_945_767_424
    parameters = RankParameters(dense=PARAMETERS, expert=0, trained_dense=0, trained_expert=0)
    memory = TRAITS["llamafactory-zero3"].memory
    assert memory is not None
    states = sharded_states(layers, Plan(data=8, sequence_length=4096, micro_batches=1), memory, parameters, 2, packed)
    live = 1e9 + 151936 * 4096
    assert states.gathered == pytest.approx(live * (2 - 1.5 * packed / PARAMETERS))


def test_liger_spares_no_logits_in_dpo_whose_loss_is_made_of_them():
    sft, fused, dpo, both = (
        of("zero3", training__stage=stage, training__liger=liger, training__cutoff_len=16384).stages[0].logits_gib
        for stage, liger in (("sft", False), ("sft", True), ("dpo", False), ("dpo", True))
    )
    assert fused < sft < dpo == both


def test_fsdp_of_the_second_version_keeps_frozen_weights_in_fp32_and_the_first_does_not():
    second, first = (
        of("fsdp", training__method="lora", parallel__fsdp__version=version).stages[0].weights_gib for version in (2, 1)
    )
    assert second - first == pytest.approx(2 * PARAMETERS / 32 / GIB)


def test_adapters_are_their_own_reference():
    sft, dpo = (of("zero2", training__stage=stage, training__method="lora") for stage in ("sft", "dpo"))
    assert dpo.stages[0].weights_gib == sft.stages[0].weights_gib


def test_lora_on_megatron_trains_adapters_alone():
    swift = {"engine": "swift-megatron", "model__preset": "qwen3-8b", "parallel__tensor": 2}
    full, lora = (estimate(job(training__method=method, **swift)).stages[0] for method in ("full", "lora"))
    hidden, ffn, heads, layers = 4096, 12288, 4096, 36
    whole = 8 * (hidden + hidden + hidden + hidden)  # A of qkv and fc1, B of proj and fc2
    split = 8 * (heads + 2 * 1024 + 2 * ffn + heads + ffn)
    assert lora.trainable_parameters == layers * (whole + split // 2)
    assert lora.parameters == full.parameters + lora.trainable_parameters
    assert lora.peak_gib < full.peak_gib
    assert lora.gradients_gib < 0.1


@pytest.mark.parametrize("tensor", [1, 2])
def test_lora_on_megatron_keeps_dropouts_masks_and_the_copies_that_adapters_read(tensor):
    plain = {"engine": "swift-megatron", "model__preset": "qwen3-8b", "parallel__tensor": tensor}
    full, lora = (estimate(job(training__method=method, **plain)).stages[0] for method in ("full", "lora"))
    hidden, ffn, heads = 4096, 12288, 4096
    outputs, gathered = 4 * 2 * 8, 2 * 2 * hidden * (1 - 1 / tensor)
    masks = 2 * hidden + (heads + ffn) / tensor
    copy = 2 * heads / tensor  # The attention's output, which the attention saves, too.
    a_layer = 4096 * (outputs + gathered + masks + copy)
    assert lora.activations_gib - full.activations_gib == pytest.approx(36 * a_layer / GIB, rel=0.01)


def test_a_dropout_before_hugging_face_s_adapters_keeps_masks_and_no_more_copies_than_fp32_adapters_make():
    lora = {"model__preset": "qwen3-8b", "training__method": "lora", "parallel__recompute": "none"}
    kept = [estimate(job(engine=engine, **lora)).stages[0].activations_gib
            for engine in ("llamafactory-ddp", "swift-ddp")]  # fmt: skip
    masks = (3 + 2 + 1) * 4096 + 12288  # query, key and value; gate and up; output; down
    assert (kept[1] - kept[0]) * GIB == pytest.approx(36 * 4096 * masks, rel=0.01)


def test_full_training_by_ms_swift_holds_frozen_parts_in_fp32_too():
    frozen = {"model__preset": "qwen3-vl-8b", "training__freeze__vision_tower": True}
    theirs, ours = (estimate(job(engine=engine, **frozen)).stages[0].weights_gib
                    for engine in ("llamafactory-ddp", "swift-ddp"))  # fmt: skip
    assert ours > theirs


@pytest.mark.parametrize(("method", "expert", "copies"), [("full", 8, 4), ("full", 1, 3), ("lora", 8, 5)])
def test_a_layer_of_experts_holds_copies_of_its_tokens_on_their_way_there_and_back(method, expert, copies):
    swift = {"engine": "swift-megatron", "model__preset": "qwen3-30b-a3b", "training__method": method}
    whole = {"parallel__pipeline": 4, "parallel__recompute": "full", "parallel__expert": expert}
    first = estimate(job(**swift, **whole)).stages[0]
    wide = estimate(job(**swift, **whole, training__cutoff_len=8192)).stages[0]
    routed = 8 * 2 * 2048
    assert (wide.workspace_gib - first.workspace_gib) * GIB == pytest.approx(4096 * copies * routed)


def test_an_adapter_scales_its_output_and_so_its_gradient_is_there_twice():
    swift = {"engine": "swift-megatron", "model__preset": "qwen3-8b", "training__method": "lora"}
    piped = {"parallel__pipeline": 2, "training__cutoff_len": 4096}
    both, attention = (
        estimate(job(**swift, **piped, training__lora__targets=targets)).stages[0].workspace_gib * GIB
        for targets in ("all", "linear_qkv,linear_proj")
    )
    assert both - attention == pytest.approx(4096 * 2 * 2 * 12288)


def test_experts_have_adapters_of_their_own_on_megatron():
    swift = {"engine": "swift-megatron", "model__preset": "qwen3-30b-a3b", "training__method": "lora"}
    wide, narrow = (estimate(job(parallel__expert=size, **swift)).stages[0] for size in (8, 1))
    assert narrow.trainable_parameters > 5 * wide.trainable_parameters


def test_fp32_on_megatron_doubles_the_weights_and_has_no_flash_attention():
    bf16, fp32 = (estimate(job(parallel__tensor=4, training__precision=kind)).stages[0] for kind in ("bf16", "fp32"))
    assert fp32.weights_gib == pytest.approx(2 * bf16.weights_gib)
    assert fp32.activations_gib > 2 * bf16.activations_gib


def test_swift_freezes_deep_stack_mergers_with_the_projector():
    def trained(**freeze):
        edits = {f"training__freeze__{part}": value for part, value in freeze.items()}
        return estimate(job(engine="swift-megatron", parallel__tensor=4, **edits)).stages[0].trainable_parameters

    assert trained(vision_tower=True, projector=True) < trained(vision_tower=True)


HUGGING_FACE = ("ddp", "zero2", "zero2-offload", "zero3", "zero3-offload", "fsdp")
models = st.sampled_from(["qwen3-8b", "qwen3-30b-a3b", "qwen3-vl-8b"])


@settings(max_examples=60)
@given(
    engine=st.sampled_from(HUGGING_FACE),
    model=models,
    stage=st.sampled_from(["sft", "dpo"]),
    recompute=st.sampled_from(["none", "full"]),
    tower=st.booleans(),
    method=st.sampled_from(["lora", "partial"]),
)
def test_frozen_parts_adapters_and_last_layers_never_exceed_full(engine, model, stage, recompute, tower, method):
    def peak(**edits):
        common = {"training__stage": stage, "parallel__recompute": recompute}
        return estimate(job(engine=f"llamafactory-{engine}", model__preset=model, **common, **edits)).peak_gib

    # Where the states of full training are in host memory, adapters and the inputs they keep come on top.
    full = peak() * (1.05 if engine.endswith("offload") and method == "lora" else 1)
    assert peak(training__freeze__vision_tower=tower) <= full
    assert peak(training__method=method, training__freeze__vision_tower=tower) <= full


@settings(max_examples=30)
@given(engine=st.sampled_from(HUGGING_FACE), model=models, nodes=st.sampled_from([1, 2, 4]))
def test_more_ranks_never_raise_the_states_of_a_rank(engine, model, nodes):
    def states(count):
        [stage] = estimate(job(engine=f"llamafactory-{engine}", model__preset=model, cluster__nodes=count)).stages
        return stage.weights_gib + stage.gradients_gib + stage.optimizer_gib

    assert states(2 * nodes) <= states(nodes) * 1.0001


@settings(max_examples=30)
@given(tensor=st.sampled_from([1, 2, 4]), pipeline=st.sampled_from([1, 2, 4]), model=models)
def test_lora_on_megatron_never_exceeds_full(tensor, pipeline, model):
    def peak(method):
        sizes = {"parallel__tensor": tensor, "parallel__pipeline": pipeline}
        return estimate(job(engine="swift-megatron", model__preset=model, training__method=method, **sizes)).peak_gib

    assert peak("lora") <= peak("full")


@pytest.mark.parametrize(("engine", "tensor", "more"), [
    ("llamafactory-megatron", 1, True), ("llamafactory-megatron", 2, False), ("swift-megatron", 2, True),
])  # fmt: skip
def test_the_fused_loss_keeps_more_where_it_takes_effect(engine, tensor, more):
    plain, fused = (
        estimate(job(engine=engine, parallel__tensor=tensor, parallel__cross_entropy_fusion=on)) for on in (False, True)
    )
    assert (fused.peak_gib > plain.peak_gib) is more


def test_weights_that_stay_gathered_are_exchanged_once_in_a_micro_batch():
    """FSDP gathers them in forward and, if they were freed, in backward."""
    edits = {"engine": "llamafactory-fsdp", "training.gradient_accumulation_steps": 1, "training.micro_batch_size": 1}
    freed, kept = (
        estimate(job({**edits, "training.cutoff_len": 64, "parallel.fsdp.reshard_after_forward": free})).time_s
        for free in (True, False)
    )
    assert freed is not None
    assert kept is not None
    # Version 2 copies what it gathered; with recompute the second copy counts there.
    assert kept["compute"] < freed["compute"]
    # With so few tokens nearly nothing hides the exchange: two gathers and a reduction, or one and a reduction, and
    # the copy of gradients.
    assert kept["data"] / freed["data"] == pytest.approx(2 / 3, abs=0.06)
