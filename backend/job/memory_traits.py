"""Memory traits of the engines: how each holds parameters, gradients and logits on a GPU.

Sources are files of the versions that traits.py names.
"""

from dataclasses import dataclass, replace
from typing import Literal

Sharding = Literal["none", "optimizer", "gradients", "parameters"]
Offload = Literal["none", "optimizer", "everything"]

SCALES_BYTES = 1 / 64 + 4 / (64 * 256)
"""Scales of a 4-bit weight with double quantisation: an 8-bit scale for 64 weights, an fp32 scale for 256 scales
(QLoRA, arXiv 2305.14314, section 3). bitsandbytes keeps them in the module (Linear4bit.quant_state), where FSDP divides
nothing."""
SINGLE_SCALES_BYTES = 4 / 64
"""The same without double quantisation: an fp32 scale for 64 weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fp8:
    """How Transformer Engine keeps weights and inputs of linear layers in 8 bits."""

    copies_bytes: float
    """Bytes of the copies of a weight, with their scales."""
    rows_bytes: float
    """Bytes of the copy that a forward pass reads."""
    input_bytes: float
    """Bytes of an element of an input that is saved for the gradient of a weight."""
    replaces_weights: bool
    """Whether there are no 16-bit weights beside the copies."""
    copies_attention: bool
    """Whether the projection after attention saves a copy of its own of the output that attention saves: delayed
    scaling cannot repeat it from the 16-bit output (megatron-core 0.16.1 transformer/attention.py
    set_save_original_input)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryTraits:
    """How an engine holds parameters, gradients and logits on a GPU in mixed precision. Bytes are per parameter."""

    weight_bytes: float
    """Bytes of a trainable weight."""
    gradient_bytes: float
    """Bytes of its accumulated gradient."""
    bucket_bytes: float = 0.0
    """Communication buckets that stay allocated besides the gradients (torch DDP without gradient_as_bucket_view)."""
    autocast_bytes: float = 0.0
    """Low-precision copies that autocast keeps until the end of a forward pass."""
    optimizer_bytes: float = 8.0
    """Adam's two moments, and the fp32 master copy if the weight itself is not fp32."""
    cached_weight_gradients: bool = False
    """Whether Transformer Engine keeps one dummy gradient per weight shape (gradient_accumulation_fusion)."""
    logits_forward_bytes: float
    """Bytes per token and vocabulary entry at the peak of the loss in forward."""
    logits_backward_bytes: float
    """The same in backward."""
    pairs_forward_bytes: float = 0.0
    """logits_forward_bytes of DPO on Hugging Face engines."""
    pairs_kept_bytes: float = 0.0
    """Part of them that the policy keeps during the reference model's forward."""
    unfused_saved_bytes: float = 2.0
    """Bytes of an entry of the score matrix that Megatron-Core saves if attention is not fused: the softmax."""
    unfused_work_bytes: float = 2.0
    """The same of its gradients in backward, beside what is saved."""
    vocabulary_padding: int = 1
    """The vocabulary is padded to a multiple of this times TP."""
    fused_logits_bytes: float | None = None
    """The same with the fused cross entropy switched on; None if there is none."""
    loss_forward_moved: float
    """Bytes per token and vocabulary entry that the loss reads and writes in forward."""
    loss_backward_moved: float
    """The same in backward."""
    scale_bytes: float = SCALES_BYTES
    """Bytes of the scales of a 4-bit weight."""
    frozen_bytes: float = 2.0
    """Bytes of a weight that is not trained, and of one of DPO's reference model."""
    frozen_beside_full_bytes: float | None = None
    """The same in full training; None: frozen_bytes."""
    shards: Sharding = "none"
    """What data-parallel ranks shard on Hugging Face engines; each value includes those before it."""
    passing_gradient_bytes: float | None = None
    """Bytes of a weight's new gradient besides its 16-bit form, before it is added or reduced; None: gradient_bytes."""
    reduce_bucket_elements: float = 0.0
    """Size of a buffer that stays allocated for 16-bit gradients in communication."""
    live_elements: float = 0.0
    """Gathered 16-bit parameters that stay alive (DeepSpeed's stage3_max_live_parameters). 0: two layers and the
    embeddings, as FSDP gathers them."""
    step_gradient_bytes: float = 0.0
    """Bytes of a gradient's copies at the start of the optimizer step, or of temporaries of a weight's moments in it.
    """
    step_elements: float = float("inf")
    """Parameters that the optimizer steps at a time (DeepSpeed's sub_group_size)."""
    step_moved_bytes: float = 0.0
    """Bytes of a weight that the optimizer step reads and writes beside Adam's, its gradient's norm, and zeroing."""
    keeps_gradients: bool = False
    """Whether the buffer of accumulated gradients is allocated from the start."""
    accumulates_whole: bool = False
    """Whether each rank keeps whole 16-bit gradients while the micro-batches of a step accumulate, because gradients
    are reduced only in the last one."""
    reduces_layers: bool = False
    """Whether a layer's gradients are reduced together (FSDP)."""
    keeps_inputs: bool = False
    """Whether, with adapters, a checkpointed layer's input and that input's gradient stay until backward ends. A unit
    without trained weights hooks its input, and the hook holds it (torch 2.13 distributed/fsdp/_runtime_utils.py
    _register_post_backward_reshard_only_hook, autograd/graph.py register_multi_grad_hook; counted by
    benchmarks/kept_inputs.py)."""
    offloads: Offload = "none"
    """What is always in host memory."""
    fp8: Fp8 | None = None
    """8-bit copies of Megatron jobs in FP8."""


MEGATRON_LM_MEMORY = MemoryTraits(
    weight_bytes=2,
    gradient_bytes=4,
    optimizer_bytes=12,
    cached_weight_gradients=True,
    logits_forward_bytes=6,
    logits_backward_bytes=6,
    # tensor_parallel/cross_entropy.py: cast, maximum, shifted, exponentials, their sum, divided; scaled, cast back.
    loss_forward_moved=38,
    loss_backward_moved=14,
    vocabulary_padding=128,
    fused_logits_bytes=10,
)
"""Megatron-LM's own training script with Transformer Engine and native cross entropy, as published runs used it. Its
jit-fused cross entropy keeps 16-bit logits, and the shifted logits and their exponentials in fp32 (megatron-core
fusions/fused_cross_entropy.py)."""

FOREACH_ADAM_MOVED = 44
"""step_moved_bytes of AdamW as a sequence of kernels (`adamw_torch`, without weight decay), beside those of the one
kernel of `adamw_torch_fused`.

They read and write 72 bytes of a weight, and the one kernel 28 (torch 2.13 optim/adam.py _multi_tensor_adam: lerp 12,
mul 8, addcmul 12, sqrt 8, div 8, add 8, addcdiv 16).
"""

LIGER_LOSS_MOVED = (4, 0)
"""loss_forward_moved and loss_backward_moved of Liger's kernel, whose gradient overwrites the logits in forward."""

# mcore_adapter never sets gradient_accumulation_fusion, whose default in megatron-core is False.
MCA_MEMORY = replace(MEGATRON_LM_MEMORY, cached_weight_gradients=False, vocabulary_padding=1)

# model/adapter.py upcasts trainable parameters to fp32 unless pure_bf16 or ZeRO-3; DDP keeps its buckets beside the
# gradients. Logits: fp32 log-softmax 4, the gradient of nll 4 and of its input 4; in forward bf16 2, fp32 4, fp32 4.
# DPO (train/trainer_utils.py get_batch_logps): fp32 logits 4, of which train/dpo/trainer.py keeps views, all but
# the last token's copied by log_softmax 4 (torch's native/cuda/SoftMax.cu host_softmax), its result 4.
DDP_MEMORY = MemoryTraits(
    weight_bytes=4,
    gradient_bytes=4,
    bucket_bytes=4,
    autocast_bytes=2,
    optimizer_bytes=8,
    logits_forward_bytes=10,
    logits_backward_bytes=12,
    pairs_forward_bytes=12,
    pairs_kept_bytes=8,
    # transformers' loss/loss_utils.py: cast, log-softmax (reads twice); gradients of nll and log-softmax, cast back.
    loss_forward_moved=18,
    loss_backward_moved=22,
)

# DeepSpeed casts the model to 16 bits and keeps fp32 masters and moments; runtime/zero/stage_1_and_2.py averages
# 16-bit gradients through a bucket of reduce_bucket_size elements (5e8 in examples/deepspeed/ds_z2_config.json).
ZERO2_MEMORY = replace(
    DDP_MEMORY,
    weight_bytes=2,
    gradient_bytes=2,
    bucket_bytes=0,
    autocast_bytes=0,
    optimizer_bytes=12,
    shards="gradients",
    passing_gradient_bytes=0,
    reduce_bucket_elements=5e8,
    # Flattened in 16 bits, then cast: 0.18.4 runtime/zero/stage_1_and_2.py step and stage3.py
    # _prepare_fp32_grad_for_sub_group.
    step_gradient_bytes=6,
    # The same functions: the norm of each gradient is that of its copy in 64 bits (18 bytes read and written, and not
    # 2). The copies of step_gradient_bytes (10) are scaled (8). Adam reads the fp32 copy (2 more), and another copy
    # casts the masters to the weights (4 more).
    step_moved_bytes=38,
)
# runtime/zero/stage3.py with examples/deepspeed/ds_z3_config.json: reduce bucket of hidden^2 (auto), 1e9 live
# parameters, sub-groups of 1e9 parameters whose gradients are fp32 at the step; grad_partitions_flat_buffer.
ZERO3_MEMORY = replace(
    ZERO2_MEMORY,
    shards="parameters",
    reduce_bucket_elements=0,
    keeps_gradients=True,
    live_elements=1e9,
    step_elements=1e9,
)
# examples/accelerate/fsdp_config.yaml: fp32 shards (LLaMA-Factory upcasts what is trained), 16-bit gathered units and
# reduce-scatters (accelerate 1.11.0 utils/dataclasses.py set_mixed_precision). While micro-batches are accumulated,
# transformers 5.6.0 trainer.py asks for no_sync, in which both versions of FSDP keep whole gradients (torch 2.13
# distributed/fsdp/_runtime_utils.py _post_backward_hook, _fully_shard/_fsdp_param_group.py post_backward).
FSDP_MEMORY = replace(
    DDP_MEMORY,
    bucket_bytes=0,
    autocast_bytes=0,
    shards="parameters",
    passing_gradient_bytes=2,
    reduces_layers=True,
    accumulates_whole=True,
)
# mcore-bridge trains with Transformer Engine and gradient accumulation fusion where apex is installed, as its docs ask,
# and with the fused cross entropy by default (swift/megatron/arguments/megatron_args.py).
# Unless a batch's length is a multiple of 8, torch computes the softmax of unfused attention in fp32 (TransformerEngine
# pytorch/attention/dot_product_attention/softmax.py forward_torch_softmax). ms-swift pads to multiples of TP alone.
SWIFT_MEGATRON_MEMORY = replace(
    MEGATRON_LM_MEMORY, vocabulary_padding=1, unfused_saved_bytes=6.0, unfused_work_bytes=10.0
)
# ms-swift 4.6.0 loads all weights in torch_dtype (arguments/base_args/model_args.py). In full training under DDP and
# FSDP we ask for fp32, because torch's AdamW steps the weights themselves; DeepSpeed keeps its own fp32 copies. PEFT
# keeps adapters in fp32 (tuners/peft.py). Losses are those of transformers and trl, as with LLaMA-Factory.
SWIFT_DDP_MEMORY = replace(DDP_MEMORY, frozen_beside_full_bytes=4)
