"""Encodes raw rows with LLaMA-Factory's own converter, template and processor, one row at a time.

So a row that the engine refuses or drops has its number. LLaMA-Factory 0.9.5: src/llamafactory/data/converter.py,
processor/*.py.
"""

from __future__ import annotations

import base64
import io
from typing import Any, NamedTuple

from backend.node.training.engine_data import EngineData

from .reading import fault_of_key

UNCUT = 1 << 30
IGNORED = -100
"""Label of a token that is not trained (llamafactory.extras.constants.IGNORE_INDEX)."""
REPEATED = 4
"""From so many equal tokens on, such as those of an image, a text has their number instead."""
MOST_TOKENS = 6000
"""Tokens of one sequence that are written as text."""
THUMBNAILS = 4
THUMBNAIL_PIXELS = 160
PARTS = ("", "chosen_", "rejected_", "kl_")
"""Prefixes of the processors' columns. A pair has two sequences."""


class RowRefused(Exception):
    """The engine cannot use a row. `code` and `detail` say why."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail


class Sequence(NamedTuple):
    """One sequence of tokens and labels that a row becomes."""

    part: str
    """Empty, `chosen` or `rejected`."""
    ids: list[int]
    labels: list[int]


class Encoder:
    """Encodes the rows of one data set, an entry of dataset_info.json."""

    def __init__(self, engine: EngineData, attributes: Any) -> None:
        from llamafactory.data import processor as processors
        from llamafactory.data.converter import get_dataset_converter

        kinds = {
            "pt": processors.PretrainDatasetProcessor,
            "rm": processors.PairwiseDatasetProcessor,
            "kto": processors.FeedbackDatasetProcessor,
        }
        kind = kinds.get(engine.stage, processors.SupervisedDatasetProcessor)
        self.engine = engine
        self.attributes = attributes
        self.cutoff = engine.data.cutoff_len
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
        sequences = [
            Sequence(part.rstrip("_"), list(columns[f"{part}input_ids"][0]), labels_of(columns, part))
            for part in PARTS
            if columns.get(f"{part}input_ids") and part != "kl_"
        ]
        if not sequences:
            raise RowRefused("row_dropped", "")
        if all(label == IGNORED for sequence in sequences for label in sequence.labels):
            raise RowRefused("nothing_trained", "")
        return sequences, list(aligned.get("_images") or [])

    def example(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row for the page: its sequences as the model sees them, and thumbnails. Raises RowRefused."""
        whole, images = self.encode(row, UNCUT)
        cut, _ = self.encode(row, self.cutoff)
        return {
            "sequences": [self.shown(part, uncut) for part, uncut in zip(cut, whole)],
            "thumbnails": [thumbnail(image) for image in images[:THUMBNAILS]],
            "images": len(images),
        }

    def shown(self, sequence: Sequence, uncut: Sequence) -> dict[str, Any]:
        """Return the text of a sequence in stretches that are trained or masked. `uncut`: before it was cut."""
        return {
            "part": sequence.part,
            "tokens": len(sequence.ids),
            "uncut_tokens": len(uncut.ids),
            "trained_tokens": sum(label != IGNORED for label in sequence.labels),
            "stretches": self.stretches(sequence),
            "uncut": self.stretches(uncut) if len(uncut.ids) > len(sequence.ids) else [],
        }

    def stretches(self, sequence: Sequence) -> list[list[Any]]:
        """Return [text, number of tokens, trained] of each stretch, up to MOST_TOKENS tokens."""
        trained = [label != IGNORED for label in sequence.labels[:MOST_TOKENS]]
        stretches: list[list[Any]] = []
        begin = 0
        for end in range(1, len(trained) + 1):
            if end == len(trained) or trained[end] != trained[begin]:
                stretches.append([self.text(sequence.ids[begin:end]), end - begin, trained[begin]])
                begin = end
        return stretches

    def text(self, ids: list[int]) -> str:
        """Return the text of tokens. A long run of one token, such as an image, is written once with its number."""
        tokenizer = self.engine.tokenizer["tokenizer"]
        texts: list[str] = []
        waiting: list[int] = []
        begin = 0
        while begin < len(ids):
            end = begin + 1
            while end < len(ids) and ids[end] == ids[begin]:
                end += 1
            if end - begin >= REPEATED:
                texts += [tokenizer.decode(waiting), f"{tokenizer.decode([ids[begin]])}×{end - begin}"]
                waiting = []
            else:
                waiting += ids[begin:end]
            begin = end
        return "".join([*texts, tokenizer.decode(waiting)])


def labels_of(columns: Any, part: str) -> list[int]:
    """Return the labels of a processor's columns. Pre-training has none: it trains every token."""
    labels = columns.get(f"{part}labels")
    return list(labels[0]) if labels else list(columns[f"{part}input_ids"][0])


def thumbnail(image: Any) -> str:
    """Return a small JPEG in base64; empty for an image that cannot be read."""
    from PIL import Image

    try:
        if isinstance(image, dict):
            image = io.BytesIO(image["bytes"]) if image.get("bytes") else image["path"]
        picture = image if isinstance(image, Image.Image) else Image.open(image)
        picture = picture.convert("RGB")
        picture.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
        data = io.BytesIO()
        picture.save(data, "JPEG", quality=70)
    except Exception:
        return ""
    return base64.b64encode(data.getvalue()).decode()
