"""LLaMA-Factory's data sets: entries of dataset_info.json, encoded by its own converter, template and processor.

LLaMA-Factory 0.9.5: src/llamafactory/data/converter.py, processor/*.py.
"""

from __future__ import annotations

import os
from typing import Any

from backend.node.samples.drawn import Drawn
from backend.node.samples.rows import read_table, rows_of_entry
from backend.node.training.engine_data import EngineData, read_engine

from .encoding import Encoder, RowRefused, Sequence, sequences_of
from .reading import fault_of_key, media_columns


class LlamaFactoryRows(Encoder):
    """Encodes the rows of an entry of dataset_info.json with LLaMA-Factory's converter, template and processor."""

    def __init__(self, engine: EngineData, attributes: Any) -> None:
        from llamafactory.data import processor as processors
        from llamafactory.data.converter import get_dataset_converter

        kinds = {
            "pt": processors.PretrainDatasetProcessor,
            "rm": processors.PairwiseDatasetProcessor,
            "kto": processors.FeedbackDatasetProcessor,
        }
        super().__init__(engine.tokenizer["tokenizer"], engine.data.cutoff_len)
        kind = kinds.get(engine.stage, processors.SupervisedDatasetProcessor)
        self.engine = engine
        self.attributes = attributes
        self.convert = get_dataset_converter(attributes.formatting, attributes, engine.data)
        self.processor = kind(template=engine.template, data_args=engine.data, **engine.tokenizer)

    def encode(self, row: dict[str, Any], cutoff: int) -> tuple[list[Sequence], list[Any]]:
        """Return the sequences of a row, cut to `cutoff` tokens, and its images. Raises RowRefused."""
        try:
            aligned = self.convert(row)
            self.engine.data.cutoff_len = cutoff
            columns = self.processor.preprocess_dataset({name: [value] for name, value in aligned.items()})
        except KeyError as error:
            raise RowRefused(*fault_of_key(error, self.attributes)) from error
        except OSError as error:
            raise RowRefused("media_unreadable", str(error.filename or error)) from error
        except Exception as error:  # the engine's own message says what is wrong
            raise RowRefused("row_refused", f"{type(error).__name__}: {error}") from error
        finally:
            self.engine.data.cutoff_len = self.cutoff
        return sequences_of(columns), list(aligned.get("_images") or [])


class LlamaFactoryData:
    """The data sets of a configuration. Raises Refused without dataset_info.json."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.engine = read_engine(of_data(request["config"]), request["megatron"])
        data = self.engine.data
        self.cutoff: int = data.cutoff_len
        self.names: list[str] = data.dataset
        self.folder = os.path.abspath(os.path.expanduser(data.dataset_dir))
        self.media_folder = os.path.abspath(os.path.expanduser(data.media_dir or self.folder))
        data.packing = data.neat_packing = False
        self.table = read_table(self.folder)

    def media(self, name: str) -> list[str]:
        """Return the columns with paths of images, videos and audio."""
        return list(media_columns(self.table.get(name)).values())

    def is_path(self, text: str) -> bool:
        """Return True: LLaMA-Factory opens every text as a file."""
        return True

    def read(self, name: str, kept: Drawn) -> int:
        """Read the rows of a data set, and return how many the engine takes."""
        return rows_of_entry(self.folder, name, self.table, kept)

    def encoder(self, name: str, columns: set[str]) -> Encoder:
        """Return what encodes the rows of a data set."""
        from llamafactory.data.parser import get_dataset_list

        return LlamaFactoryRows(self.engine, get_dataset_list([name], self.engine.data.dataset_dir)[0])

    def packs(self, lengths: list[int]) -> int:
        """Return into how many sequences of the cut-off length the engine would pack the sample."""
        from llamafactory.data.processor.processor_utils import greedy_knapsack

        return len(greedy_knapsack([min(length, self.cutoff) for length in lengths], self.cutoff))


def of_data(config: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that the data code reads. The engine's other keys may need its GPUs."""
    from dataclasses import fields

    from llamafactory.hparams import DataArguments, ModelArguments

    names = {field.name for arguments in (DataArguments, ModelArguments) for field in fields(arguments)}
    kept = {key: value for key, value in config.items() if key in names or key == "stage"}
    return {**kept, "do_train": True, "finetuning_type": "full", "output_dir": "unused"}
