"""Step 3: method, data, schedule and output folder of the training."""

from typing import Any

from app.services import Services
from app.text.intervals import time_error
from app.wizard.draft_state import DraftState
from app.wizard.fields import Form
from app.wizard.layout import card, grid, more, place, section
from backend.job.batch import keeps_last_step, sequences, steps_per_epoch, total_steps

STEP = "training"


def build(form: Form) -> None:
    """Build the step's widgets."""
    form.start(STEP)
    with section(form.lang, "method"):
        with grid():
            form.fields("training.stage", "training.method", "training.precision")
        with grid():
            form.fields(*_under("training.freeze", "vision_tower", "projector", "language_model"))
            form.fields("training.trainable_layers", *_under("training.lora", "rank", "alpha", "targets"))
            form.fields(*_under("training.dpo", "beta", "loss"))
            form.field("training.grpo.rewards", placeholder="accuracy,format")
            form.field("training.grpo.plugin", placeholder="/shared/rewards.py")
            form.fields(*_under("training.grpo", "group_size", "completion_len", "temperature", "beta", "epsilon"))
            form.fields(*_under("training.grpo", "rollout", "vllm_memory", "vllm_sleep"))
    with section(form.lang, "data"):
        with grid():
            _data_fields(form)
        place("dataset_info")
        place("fetch_samples")
        place("data_preview")
    with section(form.lang, "schedule"):
        with grid():
            form.fields(*_under("training", "num_train_epochs", "max_steps", "learning_rate", "lr_scheduler",
                                "warmup_ratio", "weight_decay"))  # fmt: skip
        place("steps")
    with section(form.lang, "output"), grid():
        form.field("name")
        form.field("training.output_dir", placeholder="/shared/runs")
        form.fields(*_under("training", "save_steps", "save_total_limit", "logging_steps"))
    with card(), more(form.lang, "training.more"):
        with grid():
            form.fields(*_under("training", "seed", "report_to", "ddp_timeout_s", "stall_s", "liger"))
            form.fields(*_under("training.workers", "preprocessing", "data_loader"))
        form.field("environment", lines=3, placeholder="NCCL_DEBUG=WARN")
        form.field("extra", lines=3, placeholder="max_grad_norm: 1.0")


def data(state: DraftState, form: Form, services: Services) -> dict[str, Any]:
    """Return the figures from samples to steps and hours, with their inputs."""
    job, figures = state.job, state.estimate
    if job is None or not job.global_batch:
        return {"steps": None}
    training = job.training
    return {
        "steps": {
            "samples": training.samples,
            "from": training.samples_from,
            "sequences": sequences(job) if training.packing and training.sample_tokens else None,
            "bound": None if training.sample_tokens else "packed" if training.packing else "padded",
            "cutoff": training.cutoff_len,
            "micro_batch": training.micro_batch_size,
            "accumulation": job.accumulation,
            "data_parallel": job.data_parallel,
            "batch": job.global_batch,
            "epochs": training.num_train_epochs,
            "by_steps": training.max_steps is not None,
            "each": steps_per_epoch(job),
            "keeps_rest": keeps_last_step(job),
            "group": training.grpo.group_size if training.stage == "grpo" else None,
            "steps": total_steps(job),
            "step_s": figures.iteration_s if figures else None,
            "hours": figures.hours if figures else None,
            "error": time_error(job, figures),
        }
    }


def _data_fields(form: Form) -> None:
    form.field("training.dataset", placeholder="my_data")
    form.field("training.dataset_dir", placeholder="/shared/data")
    form.field("training.mix_strategy")
    form.field("training.interleave_probs", placeholder="0.7,0.3")
    form.field("training.template", placeholder="qwen3_vl_nothink")
    form.fields("training.cutoff_len", "training.samples", "training.sample_tokens")
    form.fields(*_under("training", "image_max_pixels", "video_max_pixels", "images_per_sample"))
    form.fields(*_under("training", "packing", "prepare.tokenize", "prepare.shuffle"))
    form.field("training.eval_size", placeholder="0.01")
    form.field("training.eval_dataset", placeholder="my_eval_data")
    form.field("training.eval_steps")


def _under(owner: str, *names: str) -> list[str]:
    return [f"{owner}.{name}" for name in names]
