"""Bytes that torch's caching allocator reserves, from the bytes that it hands out at the peak.

Weights, gradients and optimizer states are allocated once and stay, so they leave no gaps. Activations, logits and
temporary memory come and go, and gaps remain between them. The allocator cannot use a gap for a longer sample.
"""

from typing import Literal

from backend.estimate.array_ops import Number
from backend.estimate.memory.terms import StageMemory

RESERVED_PER_ALLOCATED = 1.06
"""torch's allocator reserves more than it hands out, here with expandable segments, which leave no gaps. Over the 19
distinct layouts of SimuMax's B200 runs (https://github.com/MooreThreads/SimuMax,
docs/b200/b200_release_v1.2_summary.json) the ratio is 1.03 to 1.09, its mean 1.05; SimuMax itself plans with 1 / 0.94.
"""

LOGITS_GAP = 2
"""Bytes of a gap for each logit of Hugging Face's loss. The model returns logits in 16 bits. The loss makes a copy in
fp32, and more tensors of this size before the first one is freed (transformers 5.6 loss/loss_utils.py ForCausalLMLoss).
Then the gap is too small for each tensor that follows. The allocations of real steps on CPU, laid out as torch's
allocator does with expandable segments, leave 2.1 to 3.6 bytes (benchmarks/reserved_gap.py)."""

Lengths = Literal["fixed", "varied"]

FIXED_LENGTHS = 1.3
"""Reserved over allocated bytes of what comes and goes, without expandable segments, if every micro-batch has the same
length: packed, or padded to one length. The best value on each of these sources alone is 1.3: Qwen's table of
fine-tuning (its finetune.py pads every sample to model_max_length), Answer.AI's fsdp_qlora benchmarks, axolotl's
examples (sample packing)."""
VARIED_LENGTHS = 2.0
"""The same if every micro-batch has its own length. Best on each source alone: 1.6 in PEFT's method comparison, 2.2 in
MiniCPM-V's finetune readme, 2.5 in the benchmark document of SWIFT 2.x."""
SEGMENTED = {"fixed": FIXED_LENGTHS, "varied": VARIED_LENGTHS}


def reserved_bytes(memory: StageMemory, logits_bytes: float = 0) -> Number:
    """Return the bytes that torch reserves with expandable segments.

    `logits_bytes` is what the estimate counts for a logit at the peak, if the loss leaves a gap beside each.
    """
    if not logits_bytes:
        return RESERVED_PER_ALLOCATED * (memory.peak + memory.apart)
    with_gap = 1 + LOGITS_GAP / logits_bytes
    return RESERVED_PER_ALLOCATED * (memory.peak + memory.apart - memory.logits) + with_gap * memory.logits


def segmented_bytes(memory: StageMemory, lengths: Lengths) -> Number:
    """Return the bytes that torch reserves without expandable segments on a GPU of unlimited size."""
    lasting = memory.weights + memory.gradients + memory.optimizer
    return lasting + memory.apart + SEGMENTED[lengths] * (memory.peak - lasting)
