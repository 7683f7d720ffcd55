"""What differs between the programs whose configurations are imported."""

from collections.abc import Mapping
from dataclasses import dataclass

from backend.engines.importing.readers import KEY_READERS, Reader


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How the keys of one program are read."""

    readers: Mapping[str, Reader]
    """Key -> its reader; a key without one carries the value of its job path."""
    renamed: Mapping[str, str]
    """Key of an earlier version -> its current name."""
    always: frozenset[str]
    """Keys that our renderer always writes in one way, whatever a file says."""
    dropped: tuple[tuple[str, str], ...]
    """(pattern of keys, code of the reason)"""
    passed_on: frozenset[str] = frozenset()
    """Keys that our renderer derives, and that go into `extra` where a file has them."""


LLAMAFACTORY = Dialect(
    readers=KEY_READERS,
    renamed={
        # transformers 4.46 removed it (src/transformers/training_args.py)
        "evaluation_strategy": "eval_strategy",
        # LLaMA-Factory until 0.7, and until 0.9.1 (resolution): src/llamafactory/hparams
        "dpo_beta": "pref_beta",
        "dpo_loss": "pref_loss",
        "dpo_ftx": "pref_ftx",
        "num_layer_trainable": "freeze_trainable_layers",
        "name_module_trainable": "freeze_trainable_modules",
        "image_resolution": "image_max_pixels",
        "video_resolution": "video_max_pixels",
    },
    always=frozenset(
        {
            "do_train",
            "use_cpu",
            "ddp_backend",
            "transformer_impl",
            "include_num_input_tokens_seen",
            "logging_nan_inf_filter",
            "upcast_layernorm",
        }
    ),
    dropped=(
        ("overwrite_output_dir", "import_own_folder"),
        ("resume_from_checkpoint", "import_resume"),
        ("do_eval", "import_do_eval"),
        ("do_predict|predict_with_generate|generation_.*", "import_predicts"),
        ("ray_.*|master_addr|master_port|local_rank|nproc_per_node|nnodes|node_rank", "import_launcher"),
        ("use_unsloth|use_kt|kt_.*|use_hyper_parallel|hyper_parallel_(args|cp_size)", "import_other_trainer"),
    ),
)

LAUNCHER = (
    r"NPROC_PER_NODE|NNODES|NODE_RANK|MASTER_ADDR|MASTER_PORT|CUDA_VISIBLE_DEVICES|FORCE_TORCHRUN|USE_RAY|RDZV_ID"
)
"""Variables that say on which machines and GPUs a program starts."""
