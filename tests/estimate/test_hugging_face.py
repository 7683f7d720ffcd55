"""The peak of a whole step on the Hugging Face path agrees with the storages that torch really allocates."""

from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.estimate.estimate import estimate_memory
from backend.estimate.memory.eager_activations import EagerForm, eager_bytes
from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.reserved import RESERVED_PER_ALLOCATED, reserved_bytes
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.terms import STATIC_BYTES
from backend.estimate.memory.tuning import Tuning, form_of
from backend.estimate.model.layers import LayerKind
from backend.estimate.model.model_layers import model_layers
from backend.estimate.plan import Plan, plan_of_model
from backend.job.attention import attention_kind
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.model.operators import Activation
from backend.job.presets import gpus, resolve_model
from backend.job.traits import TRAITS
from benchmarks.small_models import SMALL_MODELS
from tests.estimate.cases import job

DDP = TRAITS["llamafactory-ddp"].memory
SMALL = {
    "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "num_hidden_layers": 4,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
VISION = model_layers(resolve_model(Model(preset="qwen3-vl-2b")))

# MiB at the peak of an optimizer step of two sequences of 256 tokens, by benchmarks/step_peak.py:
# torch 2.13.0 on CPU, transformers 5.6.0, peft 0.18.1. (model type, vocabulary, accumulation, checkpointing, LoRA)
MEASURED = {
    ("llama", 4096, 2, True, False): 111.9,
    ("llama", 4096, 1, True, False): 91.9,
    ("llama", 4096, 2, False, False): 141.5,
    ("llama", 4096, 2, True, True): 37.9,
    ("llama", 512, 2, False, True): 38.0,
    ("llama", 512, 2, True, False): 64.7,
    ("qwen3", 4096, 2, True, False): 111.9,
    ("qwen3", 512, 2, False, False): 95.3,
    ("qwen3_moe", 4096, 2, True, False): 169.5,
    ("qwen3_moe", 512, 2, False, False): 162.1,
}


@pytest.mark.parametrize("case", list(MEASURED), ids=lambda case: " ".join(map(str, case)))
def test_the_peak_of_a_step_is_within_two_percent_of_torchs(case):
    model_type, vocabulary, accumulation, checkpointing, lora = case
    experts = EXPERTS if model_type == "qwen3_moe" else {}
    config = {"model_type": model_type, **SMALL, **experts, "vocab_size": vocabulary}
    plan = Plan(
        sequence_length=256,
        micro_batch=2,
        micro_batches=accumulation,
        recompute="full" if checkpointing else "none",
    )
    tuning = Tuning(trained=Trained(), method="lora" if lora else "full")
    memory = data_parallel_memory(model_layers(parse_model(config)), plan, DDP, tuning)
    assert (memory.peak - STATIC_BYTES) / 2**20 == pytest.approx(MEASURED[case], rel=0.02)


# MiB of two micro-batches of a model of benchmarks/small_models.py, measured as above.
# (model type, checkpointing, LoRA). Mixtral and Phi with checkpoints were measured with the tracker's hooks on modules,
# which add about 0.56 MiB.
LAYER_PEAKS = {
    ("llama", True, True): 20.1,
    ("cohere", True, True): 19.8,
    ("cohere", False, True): 37.2,
    ("qwen2_moe", False, True): 54.0,
    ("gemma3n_text", True, False): 99.9,
    ("gemma3n_text", False, False): 165.2,
    ("gemma4_text", True, True): 26.4,
    ("mixtral", True, True): 25.4,
    ("mixtral", False, True): 37.7,
    ("phi", True, True): 18.1,
    ("phi", False, False): 73.8,
    ("gpt2", False, False): 82.8,
    ("bloom", False, False): 92.3,
}


@pytest.mark.parametrize("case", list(LAYER_PEAKS), ids=lambda case: " ".join(map(str, case)))
def test_the_peak_in_a_layer_is_within_three_percent_of_torchs(case):
    model_type, checkpointing, lora = case
    plan = Plan(sequence_length=256, micro_batch=2, micro_batches=2, recompute="full" if checkpointing else "none")
    tuning = Tuning(trained=Trained(), method="lora" if lora else "full")
    memory = data_parallel_memory(model_layers(parse_model(SMALL_MODELS[model_type])), plan, DDP, tuning)
    assert (memory.peak - STATIC_BYTES) / 2**20 == pytest.approx(LAYER_PEAKS[case], rel=0.03)


SEEING = {
    "model_type": "qwen3_vl",
    "text_config": {**SMALL, "vocab_size": 4096},
    "vision_config": {
        "depth": 4, "hidden_size": 256, "intermediate_size": 1024, "num_heads": 4, "out_hidden_size": 256,
        "deepstack_visual_indexes": [1], "num_position_embeddings": 256, "patch_size": 16, "spatial_merge_size": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize(("recompute", "measured"), [("full", 227.9), ("none", 281.0)])
def test_the_peak_of_a_vision_language_step_is_within_three_percent_of_torchs(recompute, measured):
    plan = Plan(
        sequence_length=256, micro_batch=2, micro_batches=2, recompute=recompute, images=2, patches=256
    )  # measured as above, one image of 16 x 16 patches a sequence
    memory = data_parallel_memory(model_layers(parse_model(SEEING)), plan, DDP, Tuning(trained=Trained()))
    assert (memory.peak - STATIC_BYTES) / 2**20 == pytest.approx(measured, rel=0.03)


# The same with one micro-batch, a vocabulary of 512 and attn_implementation="eager".
EAGER = {(512, True): 85.5, (1024, True): 171.8, (512, False): 160.1, (1024, False): 386.3}


@pytest.mark.parametrize("case", list(EAGER), ids=lambda case: " ".join(map(str, case)))
def test_attention_that_is_not_fused_stores_its_scores(case):
    length, checkpointing = case
    recompute = "full" if checkpointing else "none"
    plan = Plan(sequence_length=length, micro_batch=2, micro_batches=1, recompute=recompute, attention="scores")
    tuning = Tuning(trained=Trained())
    layers = model_layers(parse_model({"model_type": "llama", **SMALL, "vocab_size": 512}))
    memory = data_parallel_memory(layers, plan, DDP, tuning)
    # On CPU the softmax also needs a copy of its input in fp32.
    assert (memory.peak - STATIC_BYTES) / 2**20 == pytest.approx(EAGER[case], rel=0.07)


def test_only_a_job_that_disables_it_has_no_fused_attention():
    fused, disabled = (
        estimate(job(engine="llamafactory-zero3", extra={"flash_attn": name}, training__cutoff_len=16_384))
        for name in ("auto", "disabled")
    )
    scores_gib = 6 * 32 * 16_384**2 / 2**30
    assert disabled.peak_gib > scores_gib > fused.stages[0].activations_gib
    assert disabled.iteration_s > fused.iteration_s


def test_ms_swift_stores_the_scores_of_gemma_3_and_of_its_tower():
    gemma = {"model.preset": "gemma-3-4b", "engine": "swift-zero3", "parallel.recompute": "none"}
    text, with_tower = {"training.images_per_sample": 0}, {"training.images_per_sample": 1}
    eager, fused = (
        [estimate(job(gemma, images, extra=extra, training__cutoff_len=4096)) for images in (text, with_tower)]
        for extra in ({}, {"attn_impl": "sdpa"})
    )
    more = [
        each.stages[0].activations_gib - other.stages[0].activations_gib
        for each, other in zip(eager, fused, strict=True)
    ]
    # 34 layers with 8 heads; 27 blocks with 16 heads and 64 x 64 patches. With SDPA, the 29 layers with a window save a
    # mask and repeat 4 heads of keys and of values.
    masks = 29 * 4096 * 2 * (4096 + 4 * (256 + 256))
    assert more[0] == pytest.approx((34 * 6 * 8 * 4096**2 - masks) / 2**30)
    assert more[1] - more[0] == pytest.approx(27 * 6 * 16 * 4096**2 / 2**30)
    assert eager[0].iteration_s > fused[0].iteration_s


LARGE_VOCABULARY = {**SMALL_MODELS["llama"], "vocab_size": 2**16}


def peak(keys, **tuning):
    plan = Plan(sequence_length=256, micro_batch=2, micro_batches=1, recompute="full")
    return data_parallel_memory(model_layers(parse_model(keys)), plan, DDP, Tuning(trained=Trained(), **tuning)).peak


def test_bounded_logits_are_kept_beside_the_others():
    # benchmarks/step_peak.py with this vocabulary: 1.99 bytes a logit for LoRA on small Gemma 2
    bounded = {**LARGE_VOCABULARY, "final_logit_softcapping": 30.0}
    for method in ("full", "lora"):
        assert peak(bounded, method=method) - peak(LARGE_VOCABULARY, method=method) == 2 * 512 * 2**16


def test_the_output_layers_copy_stays_until_its_backward_pass():
    # torch's MemTracker: 785.7 MiB with 65,536 words and 128 tokens, one accumulated micro-batch
    plan = Plan(sequence_length=128, micro_batch=2, micro_batches=2, recompute="full")
    memory = data_parallel_memory(model_layers(parse_model(LARGE_VOCABULARY)), plan, DDP, Tuning(trained=Trained()))
    assert (memory.peak - STATIC_BYTES) / 2**20 == pytest.approx(785.7, rel=0.001)


def test_experts_with_clamped_inputs_save_three_tensors_more():
    # transformers 5.6.0 modeling_gpt_oss.py _apply_gate
    clamped, plain = (
        LayerKind(name="", hidden=64, operators=(Activation(width=256, gated=True, module="moe", clamped=flag),))
        for flag in (True, False)
    )
    assert eager_bytes(clamped, EagerForm()) - eager_bytes(plain, EagerForm()) == 3 * 2 * 256


def test_bloom_stores_its_scores_whatever_a_job_asks_for():
    bloom = {"model.preset": None, "model.hf_config": {**SMALL_MODELS["bloom"], "num_hidden_layers": 4}}
    short, long = (estimate(job(bloom, engine="llamafactory-ddp", training__cutoff_len=n, parallel__recompute="none"))
                   for n in (2048, 8192))  # fmt: skip
    scores_gib = 4 * 6 * 4 * 8192**2 / 2**30
    assert long.stages[0].activations_gib > scores_gib
    assert long.stages[0].activations_gib > 12 * short.stages[0].activations_gib


def test_buckets_are_there_only_where_replicas_talk():
    alone = Plan(sequence_length=256, micro_batches=2)
    first_one, two = (
        data_parallel_memory(VISION, replace(alone, data=copies), DDP, Tuning(trained=Trained())) for copies in (1, 2)
    )
    assert two.gradients - first_one.gradients == 4 * two.parameters.trained_dense


def test_checkpointing_passes_by_a_frozen_decoder_which_then_keeps_everything():
    plan = Plan(sequence_length=4096, micro_batches=2, recompute="full", images=1, patches=1764)
    trained, frozen = (
        data_parallel_memory(VISION, plan, DDP, Tuning(trained=Trained(language=language)))
        for language in (True, False)
    )
    assert frozen.activations > 3 * trained.activations
    assert frozen.weights < trained.weights


def test_last_layers_alone_keep_only_their_own_activations():
    layers = model_layers(resolve_model(Model(preset="llama-3.1-8b")))
    plan = Plan(sequence_length=4096, micro_batches=2, recompute="none")
    two, four = (
        data_parallel_memory(layers, plan, DDP, Tuning(trained=Trained(), method="partial", last_layers=count))
        for count in (2, 4)
    )
    assert four.parameters.trained_dense == 2 * two.parameters.trained_dense == 4 * 218112000
    assert two.activations < four.activations < 2.1 * two.activations


def test_adapters_reach_only_parts_that_are_not_frozen():
    plan = Plan(sequence_length=4096, micro_batches=2, recompute="full")

    def adapters(**parts):
        tuning = Tuning(trained=Trained(**parts), method="lora")
        return data_parallel_memory(VISION, plan, DDP, tuning).parameters.trained_dense

    everything, tower_frozen = adapters(), adapters(tower=False)
    assert 0 < tower_frozen < everything
    assert adapters(language=False) == everything - tower_frozen


def test_fsdp_1_keeps_each_layers_input_and_its_gradient_until_backward_ends_where_checkpoints_are_reentrant():
    def peak(*edits):
        return estimate(job({"engine": "llamafactory-fsdp", "training.images_per_sample": 0}, *edits)).peak_gib

    first, reentrant = {"parallel.fsdp.version": 1}, {"extra": {"use_reentrant_gc": False}}
    large = {"model.preset": "llama-3.1-70b", "training.method": "lora", "training.micro_batch_size": 2}
    inputs_gib = 80 * 2 * 8192 * 2 * 4096 / 2**30
    frees = peak(large, first, reentrant)
    assert 0 < peak(large, first) - frees < inputs_gib
    assert peak(large, first, {"parallel.recompute": "none"}) == peak(
        large, first, reentrant, {"parallel.recompute": "none"}
    )
    trained = {**large, "training.method": "full"}
    assert peak(trained, first) == peak(trained, first, reentrant)
    # FSDP 2 shards weights one by one; its hooks hold no inputs, and LLaMA-Factory's checkpoints are not reentrant.
    assert peak(large) == peak(large, reentrant)


def test_adamw_of_many_kernels_holds_roots_of_all_moments_while_it_steps():
    short = {
        "training.images_per_sample": 0,
        "training.cutoff_len": 64,
        "model.preset": "llama-3.1-8b",
        "training.gradient_accumulation_steps": 1,
        "cluster.nodes": 1,
        "cluster.gpus_per_node": 2,
    }
    many = {"extra": {"optim": "adamw_torch"}}
    for engine, copies in (("llamafactory-ddp", 1), ("llamafactory-fsdp", 2)):
        fused, unfused = (estimate(job(short, edits, engine=engine)).stages[0] for edits in ({}, many))
        roots = 4 * fused.trainable_parameters / copies / 2**30
        assert fused.peak_gib < unfused.peak_gib <= fused.peak_gib + roots
        assert unfused.workspace_gib == pytest.approx(roots + 0.1)
    zero = [estimate(job(short, edits, engine="llamafactory-zero2")).peak_gib for edits in ({}, many)]
    assert zero[0] == zero[1]


def test_a_frozen_fp32_model_also_keeps_a_16_bit_copy_of_every_projection_until_backward():
    """Autocast caches no frozen weight, and each product saves the copy that it made: torch's saved tensors of a layer
    of a small Llama with adapters hold them, and those of a 16-bit model do not."""
    layers = model_layers(resolve_model(Model(preset="qwen3-8b")))
    tuning = Tuning(trained=Trained(), method="lora", upcasts_rest=True)
    kept, checkpointed = (
        data_parallel_memory(layers, Plan(sequence_length=2048, micro_batches=1, recompute=recompute), DDP, tuning)
        for recompute in ("none", "full")
    )
    projections = 8190735360 - 2 * layers.embedding - 36 * (2 * 4096 + 2 * 128) - 4096
    assert kept.weights == pytest.approx(4 * 8190735360, rel=0.01)
    assert kept.workspace - checkpointed.workspace == pytest.approx(2 * projections, rel=0.01)


@pytest.mark.parametrize(("targets", "saved"), [("q_proj,v_proj", 29800), ("all", 38152)])
def test_adapters_in_fp32_keep_no_input_of_a_frozen_projection(targets, saved):
    """Bytes per token of the tensors that autograd saves in a layer of a small Llama in fp32 with peft's adapters
    (torch 2.13 on CPU, transformers 5.6.0, peft 0.18.1, counted as benchmarks/saved_tensors.py counts)."""
    keys = {**SMALL_MODELS["llama"], "hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8,
            "num_key_value_heads": 2, "head_dim": 64}  # fmt: skip
    [layer] = model_layers(parse_model(keys)).kinds
    tuning = Tuning(trained=Trained(), method="lora", lora_targets=targets, single_precision=True)
    assert eager_bytes(layer, form_of(tuning, DDP, part_trained=True)) == pytest.approx(saved, rel=0.01)


def test_without_autocast_the_fp32_output_layer_has_no_16_bit_copy():
    layers = model_layers(resolve_model(Model(preset="qwen3-8b")))
    plan = Plan(sequence_length=2048, micro_batches=1, recompute="full")
    cast, plain = (
        data_parallel_memory(
            layers, plan, DDP, Tuning(trained=Trained(), method="qlora", upcasts_rest=True, single_precision=single)
        )
        for single in (False, True)
    )
    assert cast.weights == plain.weights
    assert cast.logits - plain.logits == 2 * layers.embedding


def test_pefts_preparation_for_4_bits_doubles_what_is_not_packed():
    """Its source casts every parameter but those in 4 bits to fp32 (peft 0.18.1 utils/other.py)."""
    layers = model_layers(resolve_model(Model(preset="qwen3-8b")))
    plan = Plan(sequence_length=2048, micro_batches=1, recompute="full")
    plain, cast = (
        data_parallel_memory(layers, plan, DDP, Tuning(trained=Trained(), method="qlora", upcasts_rest=upcasts))
        for upcasts in (False, True)
    )
    rest = 2 * layers.embedding
    assert cast.weights - plain.weights == pytest.approx(2 * rest, rel=0.001), "two bytes more; norms are small"
    assert cast.peak - plain.peak > 2 * rest


@pytest.mark.parametrize(
    ("model", "values", "layers"),
    [
        # Five of six layers of Gemma 3 have a window of 1,024 tokens.
        ("gemma-3-12b", {}, 40),
        ("gemma-3-12b", {"training.cutoff_len": 512}, 0),
        ("gemma-3-12b", {"extra": {"flash_attn": "fa2"}}, 0),
        # 22 of 26 layers. A single head of keys is not repeated.
        ("gemma-3-1b", {}, 22),
        ("qwen3-8b", {}, 0),
        ("qwen3-8b", {"training.micro_batch_size": 2, "training.sample_tokens": 1e9}, 36),
    ],
)
def test_sdpa_saves_a_mask_and_repeated_keys_in_every_layer_that_needs_a_mask(model, values, layers):
    """Small Gemma 3 models with 1, 2 and 4 heads of keys saved exactly this much more with a window or with padding
    (transformers 5.6.0, torch 2.13 on CPU; the sum of the storages that autograd saves)."""
    base = {"model.preset": model, "engine": "llamafactory-ddp", "parallel.recompute": "none"}
    asked = job(base, {"training.method": "lora", "training.cutoff_len": 2048, **values})
    shape, gpu = resolve_model(asked.model), gpus()["h100-80g"]
    plain = plan_of_model(asked, shape)
    kind = attention_kind(asked, shape, gpu)
    fused, sdpa = (estimate_memory(asked, shape, gpu, replace(plain, attention=each)) for each in ("fused", kind))
    core = shape.kinds[0].attention
    repeated = (core.heads - core.kv_heads) * 2 * core.head_dim * (core.kv_heads > 1)
    tokens = plain.micro_batch * plain.sequence_length
    more = layers * tokens * 2 * (repeated + plain.sequence_length)
    assert sdpa.stages[0].activations - fused.stages[0].activations == pytest.approx(more)


def test_shared_keys_store_their_scores_on_gpus_without_flash_attention():
    llama = {"model.preset": "qwen3-8b", "engine": "llamafactory-ddp", "training.method": "lora"}
    settings = {"training.precision": "fp16", "parallel.recompute": "none", "training.cutoff_len": 2048}
    volta, ampere, masked = (
        estimate(job(llama, settings, cluster__gpu=gpu, extra=extra)).stages[0].activations_gib
        for gpu, extra in (("v100-32g", {}), ("a100-80g", {}), ("v100-32g", {"neat_packing": True}))
    )
    # 36 layers, 32 heads: the softmax, and queries, keys and values, in fp32 instead of 16 bits with 8 heads of keys
    micro_batch_tokens = 2048
    more = 36 * micro_batch_tokens * (4 * 32 * 2048 + 4 * 3 * 32 * 128 - 2 * (32 + 2 * 8) * 128)
    assert volta - ampere == pytest.approx(more / 2**30)
    assert masked < volta


def test_fsdp_reserves_the_shards_of_gradients_beside_the_loss():
    """FSDP allocates them in its own stream, so the logits of the next step cannot use their memory (torch 2.13
    _fsdp_collectives.py foreach_reduce)."""
    layers = model_layers(resolve_model(Model(preset="qwen3-8b")))
    fsdp, zero = (
        data_parallel_memory(
            layers,
            Plan(data=8, sequence_length=8192, micro_batches=1, recompute="full"),
            TRAITS[f"llamafactory-{engine}"].memory,
            Tuning(trained=Trained()),
        )
        for engine in ("fsdp", "zero3")
    )
    assert fsdp.gradients == 0, "the loss needs most, before there are gradients"
    assert fsdp.apart == pytest.approx(4 * 8190735360 / 8, rel=0.001)
    assert reserved_bytes(fsdp) == RESERVED_PER_ALLOCATED * (fsdp.peak + fsdp.apart)
    assert zero.apart == 0


def test_shards_of_gradients_that_are_there_at_the_peak_are_counted_once():
    layers = model_layers(resolve_model(Model(preset="qwen3-8b")))
    plan = Plan(data=2, sequence_length=512, micro_batches=1, recompute="full")
    memory = data_parallel_memory(layers, plan, TRAITS["llamafactory-fsdp"].memory, Tuning(trained=Trained()))
    assert memory.gradients >= 4 * 8190735360 / 2
    assert 0 <= memory.apart < memory.gradients / 2
