"""Batch arithmetic: steps from samples and the global batch, and the learning rate for another global batch."""

from math import ceil, floor, sqrt

from backend.job.attention import swift_backend
from backend.job.job import Job
from backend.job.lengths import cut_mean
from backend.job.traits import Padding


def planned_batch(job: Job) -> int:
    """Return the global batch of all plans: the one that the job sets, or that of its present plan.

    A plan whose sizes do not divide the ranks has no global batch. Then the result is the batch that the learning rate
    was chosen for, or else micro-batch x accumulation x DP, with DP rounded down.
    """
    training = job.training
    approximate = training.micro_batch_size * job.accumulation * max(1, job.world_size // job.model_parallel)
    return training.global_batch_size or job.global_batch or training.learning_rate_batch or approximate


def sequences(job: Job) -> int | None:
    """Return the samples of one epoch, or the full sequences that they are packed into.

    None if their number is not known. Packed samples of unknown length count as full sequences. In GRPO each prompt has
    a group of completions.
    """
    training = job.training
    if training.samples and training.stage == "grpo":
        return training.samples * training.grpo.group_size
    if not training.samples or not training.packing or training.sample_tokens is None:
        return training.samples
    return ceil(training.samples * cut_mean(training.sample_tokens, training.cutoff_len) / training.cutoff_len)


def padding(job: Job) -> Padding:
    """Return the scope to whose longest sequence the others are padded.

    ms-swift's Megatron pads the samples of a micro-batch if padding_free is off (4.6.0 template/base.py
    _data_collator). Packing switches it on (megatron/arguments/megatron_base_args.py). Later, unfused attention
    switches it off (megatron/model/utils.py _check_padding_free).
    """
    if job.traits.pads != "nothing":
        return job.traits.pads
    is_off = str(job.extra.get("padding_free")).lower() == "false" and not job.training.packing
    return "micro_batch" if is_off or swift_backend(job) == "unfused" else "nothing"


def can_pack(job: Job) -> bool:
    """Return whether packing helps: there is no preference data, no mcore_adapter with CP (rules/sizes.py), and no
    ms-swift with unfused attention (rules/attention.py)."""
    is_mcore_adapter = job.traits.is_mcore_adapter
    is_cut = is_mcore_adapter and job.parallel.context > 1
    is_unfused = job.traits.pads == "nothing" and swift_backend(job) == "unfused"
    return job.training.stage in ("pt", "sft") and not is_cut and not is_unfused


def steps_per_epoch(job: Job, global_batch: int | None = None) -> int | None:
    """Return the optimizer steps of one epoch; None if the number of samples is not known.

    `global_batch` replaces the job's own. traits.py says which engines keep the last, incomplete step.
    """
    epoch_sequences = sequences(job)
    if not epoch_sequences:
        return None
    batch = global_batch or job.global_batch
    if not batch:
        return None
    return max(1, ceil(epoch_sequences / batch) if keeps_last_step(job) else epoch_sequences // batch)


def keeps_last_step(job: Job) -> bool:
    """Return whether an epoch ends with the samples that do not fill a global batch.

    GRPO drops them (ms-swift 4.6.0 rlhf_trainers/arguments.py, dataloader_drop_last).
    """
    return job.traits.last_step == "kept" and job.training.stage != "grpo"


def total_steps(job: Job, global_batch: int | None = None) -> int | None:
    """Return the optimizer steps of the whole run: the job's own number, or that of its epochs; None if not known."""
    training, epoch_sequences = job.training, sequences(job)
    if training.max_steps:
        return training.max_steps
    if not epoch_sequences:
        return None
    batch = global_batch or job.global_batch
    epoch_steps = steps_per_epoch(job, batch)
    if not epoch_steps:
        return None
    if job.traits.last_step == "dropped_at_the_end":
        return max(1, floor(epoch_sequences * ceil(training.num_train_epochs) / batch))
    return ceil(training.num_train_epochs * epoch_steps)


def scaled_rates(rate: float, growth: float) -> dict[str, float]:
    """Return the learning rate for a global batch `growth` times as large.

    The rules are `linear`, known for SGD, and `root`, derived for Adam. Source of both:
    https://arxiv.org/abs/2205.10287. The result has three significant figures: the rules are not more exact.
    """
    return {"linear": float(f"{rate * growth:.3g}"), "root": float(f"{rate * sqrt(growth):.3g}")}


SMALL = 1e-3
"""Numbers below it are written with an exponent; the scripts of the page do the same."""


def written(value: float, figures: int = 3) -> str:
    """Return a number as people write it: 2.83e-5, 1.6e-4, 0.001, 128."""
    rounded = float(f"{value:.{figures}g}")
    text = f"{value:.{figures - 1}e}" if 0 < abs(rounded) < SMALL else f"{value:.{figures}g}"
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
