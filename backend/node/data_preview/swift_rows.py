"""ms-swift's data sets: files, read by its own preprocessors and encoded by its own template.

ms-swift 4.6.0: swift/dataset/{loader.py,preprocessor/core.py}, swift/template/base.py, swift/megatron/arguments/*.py.
Megatron's arguments need Transformer Engine; the base class of its data and template needs neither that nor a GPU.
"""

from __future__ import annotations

import os
import re
from typing import Any

from backend.node.samples.drawn import Drawn
from backend.node.samples.rows import rows_of_file

from .encoding import Encoder, RowRefused, Sequence, sequences_of

OF_COMMAND: dict[str, dict[str, Any]] = {
    "pt": {"use_chat_template": False, "loss_scale": "all"},
    "sft": {},
    "rlhf": {"loss_scale": "last_round"},
}
"""Command -> its defaults (megatron/arguments/pretrain_args.py, rlhf_args.py)."""
MODES = {"kto": "kto", "dpo": "rlhf", "rm": "rlhf", "grpo": "transformers"}
"""Stage -> mode of the template (pipelines/train/rlhf.py). GRPO: that of the rollout, which reads prompts."""
MEDIA_COLUMNS = ("images", "image", "videos", "video", "audios", "audio")
NO_PATH = ("http://", "https://", "data:")
SHORTEST_DATA = 1000
"""Characters from which a text is an image in base64."""


class Columns:
    """The columns of a table, as far as the preprocessors rename them."""

    def __init__(self, features: dict[str, str]) -> None:
        self.features = features
        """Column of the preprocessor -> column of the file."""

    def rename_columns(self, names: dict[str, str]) -> Columns:
        """Return the columns under new names."""
        return Columns({names.get(name, name): column for name, column in self.features.items()})


class SwiftRows(Encoder):
    """Encodes the rows of a file with ms-swift's preprocessor and template."""

    def __init__(self, data: SwiftData, path: str, columns: set[str]) -> None:
        from swift.dataset.dataset_syntax import DatasetSyntax
        from swift.dataset.preprocessor import AutoPreprocessor, RowPreprocessor

        arguments, self.template, self.prompt_only = data.arguments, data.template, data.prompt_only
        super().__init__(self.template.tokenizer, arguments.max_length)
        self.media_folder = data.media_folder
        self.drops_long = arguments.truncation_strategy == "delete"
        table = RowPreprocessor.safe_rename_columns(Columns({name: name for name in columns}), arguments.columns or {})
        kind = DatasetSyntax.parse(path).get_dataset_meta(use_hf=False).preprocess_func
        if isinstance(kind, AutoPreprocessor):
            table = RowPreprocessor.safe_rename_columns(table, kind.columns)
            kind = kind._get_preprocessor(table)
        table = RowPreprocessor.safe_rename_columns(table, kind.origin_columns)
        if not arguments.disable_auto_column_mapping:
            table = RowPreprocessor.safe_rename_columns(table, kind.columns)
        self.preprocessor, self.columns = kind, table.features
        self.names = RowPreprocessor.standard_keys if arguments.remove_unused_columns else None

    def encode(self, row: dict[str, Any], cutoff: int) -> tuple[list[Sequence], list[Any]]:
        from swift.template import MaxLengthError
        from swift.utils import remove_response

        try:
            converted = self.converted(row)
            if self.prompt_only:
                remove_response(converted["messages"])  # rlhf_trainers/rollout_mixin.py _preprocess_inputs
            self.template.max_length = cutoff
            encoded = self.template.encode(converted)
        except MaxLengthError as error:
            raise RowRefused("row_too_long", "") from error
        except RowRefused:
            raise
        except Exception as error:  # the engine's own message says what is wrong
            # Without the addresses of objects, rows with the same fault are one fault.
            words = re.sub(r" at 0x[0-9a-f]+", "", f"{type(error).__name__}: {error}")
            raise RowRefused("row_left_out", words) from error
        finally:
            self.template.max_length = self.cutoff
        columns = {name: [value] for name, value in encoded.items()} if isinstance(encoded, dict) else {}
        return sequences_of(columns, prompt_only=self.prompt_only), list(converted.get("images") or [])

    def converted(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row as the preprocessor makes it. Raises RowRefused if it makes none."""
        renamed = {name: [row.get(column)] for name, column in self.columns.items()}
        made = self.preprocessor.batched_preprocess(renamed, strict=True, ignore_max_length_error=True)
        rows = self.preprocessor.batched_to_rows(made)
        if not rows:
            raise RowRefused("row_left_out", "no messages")
        return {name: value for name, value in rows[0].items() if self.names is None or name in self.names}


class SwiftData:
    """The data files of a configuration."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.arguments = arguments_of(request["config"], request["stage"])
        self.template = self.arguments.get_template()
        self.prompt_only = request["stage"] == "grpo"
        self.template.set_mode(MODES.get(request["stage"], "train"))
        self.cutoff: int = self.arguments.max_length
        self.names: list[str] = request["names"]
        self.folder = os.path.abspath(os.path.expanduser(request["folder"] or "/"))
        # Ranks start in the folder of their run, where a relative path names nothing.
        os.chdir("/")
        self.media_folder = request["images_root"] or "/"
        if request["images_root"]:
            os.environ["ROOT_IMAGE_DIR"] = request["images_root"]

    def media(self, name: str) -> list[str]:
        """Return the columns with paths of images, videos and audio."""
        return list(MEDIA_COLUMNS) if self.arguments.model_meta.is_multimodal else []

    def is_path(self, text: str) -> bool:
        """Return whether ms-swift opens a text as a file: no address, and no base64 (template/vision_utils.py)."""
        return len(text) < SHORTEST_DATA and not text.startswith(NO_PATH)

    def read(self, name: str, kept: Drawn) -> int:
        """Read the rows of a file, and return how many ms-swift takes."""
        return rows_of_file(self.folder, name, {}, kept)

    def encoder(self, name: str, columns: set[str]) -> Encoder:
        """Return what encodes the rows of a file."""
        return SwiftRows(self, os.path.join(self.folder, name), columns)

    def packs(self, lengths: list[int]) -> int:
        """Return 0: ms-swift packs while it trains, and the fill of its packs is not known before."""
        return 0


def arguments_of(config: dict[str, Any], stage: str) -> Any:
    """Return ms-swift's arguments for the data and the template of a configuration."""
    from dataclasses import fields

    from swift.arguments import BaseArguments

    names = {field.name for field in fields(BaseArguments)} - {"dataset", "val_dataset", "packing", "streaming"}
    command = stage if stage in OF_COMMAND else "rlhf"
    kept = {key: value for key, value in config.items() if key in names}
    task = {"task_type": "seq_cls", "num_labels": 1} if stage == "rm" else {}
    return BaseArguments(**{**OF_COMMAND[command], **task, **kept})
