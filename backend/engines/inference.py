"""LLaMA-Factory's arguments to generate with a model as it was trained: the same template, tokenizer and images.

Keys: LLaMA-Factory 0.9.5 src/llamafactory/hparams/{model_args,data_args,generating_args}.py. get_infer_args of
parser.py refuses the keys of a training.
"""

from backend.engines import data_config
from backend.engines.keys import DTYPES
from backend.job.job import Job

_KEPT = (
    "template", "default_system", "tool_format", "enable_thinking", "preserve_thinking", "mask_history",
    "trust_remote_code",
    "use_fast_tokenizer", "resize_vocab", "split_special_tokens", "add_tokens", "add_special_tokens",
    "new_special_tokens_config", "init_special_tokens", "model_revision", "rope_scaling", "flash_attn",
    "quantization_bit", "quantization_method", "quantization_type", "double_quantization",
    "image_max_pixels", "image_min_pixels", "image_do_pan_and_scan", "crop_to_patches",
    "video_max_pixels", "video_min_pixels", "video_fps", "video_maxlen", "use_audio_in_video", "audio_sampling_rate",
)  # fmt: skip
"""Keys of the training that decide what the model reads, or how its weights are loaded."""


def inference_keys(job: Job) -> dict[str, object]:
    """Return the arguments that all models of a trained job share. Raises ProblemsError for an unknown model."""
    config = data_config(job)
    kept = {key: config[key] for key in _KEPT if config.get(key) is not None}
    return {**kept, "infer_dtype": DTYPES[job.training.precision]}


def model_keys(model: str, adapter: str | None = None) -> dict[str, object]:
    """Return the arguments of one model: its folder, and the folder of an adapter on it."""
    keys: dict[str, object] = {"model_name_or_path": model, "finetuning_type": "lora" if adapter else "full"}
    return {**keys, "adapter_name_or_path": adapter} if adapter else keys


_DATA = (
    "dataset", "dataset_dir", "media_dir", "eval_dataset", "val_size", "max_samples", "mix_strategy",
    "interleave_probs",
    "cutoff_len", "seed", "bf16", "fp16", "use_cpu",
)  # fmt: skip
"""Keys of the training that decide which rows are held out, and the precision."""


def prediction_keys(job: Job, max_new_tokens: int) -> dict[str, object]:
    """Return LLaMA-Factory's arguments to answer the data for evaluation of a job. Raises ProblemsError.

    Without such data, the answers are to the training data.
    """
    config = data_config(job)
    data = {key: config[key] for key in _DATA if config.get(key) is not None}
    if not job.eval_size and not job.eval_dataset:
        data["eval_dataset"] = data["dataset"]
    if not job.eval_size:
        data.pop("dataset")
    shared = {key: value for key, value in inference_keys(job).items() if key != "infer_dtype"}
    return {
        **shared, **data, "stage": "sft", "do_predict": True, "predict_with_generate": True,
        "per_device_eval_batch_size": 1, "max_new_tokens": max_new_tokens, "do_sample": False,
        "preprocessing_num_workers": 1, "overwrite_cache": True, "report_to": "none",
    }  # fmt: skip
