"""Which keys of LLaMA-Factory's configuration shape the tokenised data.

Source: LLaMA-Factory 0.9.5 hparams/data_args.py, and model_args.py as far as tokenizer and processor read it. A key of
the job's `extra` counts whatever it is: it is rare, and tokenising once too often costs less than training on the wrong
data.
"""

from collections.abc import Mapping
from typing import Any

DATA_KEYS = (
    *("model_name_or_path", "stage", "dataset", "dataset_dir", "template", "cutoff_len", "packing", "seed"),
    *("image_max_pixels", "video_max_pixels"),
)


def data_part(config: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """What of a configuration the data depends on."""
    return {key: config[key] for key in sorted({*DATA_KEYS, *extra}) if key in config}
