"""The keys of LLaMA-Factory's configuration that change the tokenised data.

Source: LLaMA-Factory 0.9.5 hparams/data_args.py, and the part of model_args.py that tokenizer and processor read. Every
key of the job's `extra` counts: extra keys are rare, and it is cheaper to tokenise once too often than to train on the
wrong data.
"""

from collections.abc import Mapping
from typing import Any

DATA_KEYS = (
    *("model_name_or_path", "stage", "dataset", "dataset_dir", "template", "cutoff_len", "packing", "seed"),
    *("mix_strategy", "interleave_probs"),
    *("image_max_pixels", "video_max_pixels"),
)


def data_part(config: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that the data depends on."""
    return {key: config[key] for key in sorted({*DATA_KEYS, *extra}) if key in config}
