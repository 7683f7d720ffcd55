"""Part of the program engine_args.py: ms-swift's argument classes, without their side effects."""

from __future__ import annotations

import os
from typing import Any


def swift_trainer_class(command: str) -> Any:
    """Return the argument class of `swift sft`, `pt` or `rlhf`."""
    from swift import arguments

    return getattr(arguments, {"sft": "SftArguments", "pt": "PretrainArguments", "rlhf": "RLHFArguments"}[command])


def prevent_results() -> None:
    """Prevent ms-swift's arguments from creating the output folder."""
    from swift.arguments import SftArguments

    SftArguments._add_version = lambda self: None


def swift_class(command: str) -> Any:
    """Return the argument class of `megatron sft`, `pt` or `rlhf`."""
    from swift.megatron import arguments

    names = {"sft": "MegatronSftArguments", "pt": "MegatronPretrainArguments", "rlhf": "MegatronRLHFArguments"}
    return getattr(arguments, names[command])


def prevent_process_groups() -> None:
    """Prevent ms-swift's arguments from starting process groups and creating the output folder."""
    from swift.megatron.arguments import megatron_args, sft_args

    def set_sizes(args: Any) -> None:
        args.world_size, args.rank = int(os.environ["MEGABOARD_WORLD_SIZE"]), 0

    sft_args.MegatronSftArguments._init_output_dir = lambda self: None
    megatron_args.initialize_megatron = set_sizes
