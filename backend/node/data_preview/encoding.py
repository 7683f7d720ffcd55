"""Rows for the page: the sequences that an engine's own code makes of a row, one row at a time.

So a row that the engine refuses or drops has its number.
"""

from __future__ import annotations

import base64
import io
import os
from typing import Any, NamedTuple

UNCUT = 1 << 30
IGNORED = -100
"""Label of a token that is not trained (llamafactory.extras.constants.IGNORE_INDEX)."""
REPEATED = 4
"""From so many equal tokens on, such as those of an image, a text has their number instead."""
MOST_TOKENS = 6000
"""Tokens of one sequence that are written as text."""
THUMBNAILS = 4
THUMBNAIL_PIXELS = 160
PARTS = ("", "chosen_", "rejected_")
"""Prefixes of the columns of an encoded row. A pair has two sequences."""


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
    """Encodes the rows of one data set. Each engine has its own `encode`."""

    drops_long = False
    """Whether a row with more than `cutoff` tokens is not trained on. Otherwise its end is cut off."""
    media_folder = "/"
    """The folder of images with a relative path."""

    def __init__(self, tokenizer: Any, cutoff: int) -> None:
        self.tokenizer = tokenizer
        self.cutoff = cutoff

    def encode(self, row: dict[str, Any], cutoff: int) -> tuple[list[Sequence], list[Any]]:
        """Return the sequences of a row, cut to `cutoff` tokens, and its images. Raises RowRefused."""
        raise NotImplementedError

    def example(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row for the page: its sequences as the model sees them, and thumbnails. Raises RowRefused."""
        whole, images = self.encode(row, UNCUT)
        cut, _ = self.encode(row, self.cutoff)
        return {
            "sequences": [self.shown(part, uncut) for part, uncut in zip(cut, whole)],
            "thumbnails": [thumbnail(image, self.media_folder) for image in images[:THUMBNAILS]],
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
        texts: list[str] = []
        waiting: list[int] = []
        begin = 0
        while begin < len(ids):
            end = begin + 1
            while end < len(ids) and ids[end] == ids[begin]:
                end += 1
            if end - begin >= REPEATED:
                texts += [self.tokenizer.decode(waiting), f"{self.tokenizer.decode([ids[begin]])}×{end - begin}"]
                waiting = []
            else:
                waiting += ids[begin:end]
            begin = end
        return "".join([*texts, self.tokenizer.decode(waiting)])


def sequences_of(columns: Any, *, prompt_only: bool = False) -> list[Sequence]:
    """Return the sequences of one encoded row. Raises RowRefused if there is nothing to train.

    `prompt_only`: the row is a prompt, and the training trains what the model answers to it.
    """
    sequences = [
        Sequence(part.rstrip("_"), list(columns[f"{part}input_ids"][0]), labels_of(columns, part))
        for part in PARTS
        if columns.get(f"{part}input_ids")
    ]
    if not sequences:
        raise RowRefused("row_dropped", "")
    if prompt_only:
        return [Sequence(sequence.part, sequence.ids, [IGNORED] * len(sequence.ids)) for sequence in sequences]
    if all(label == IGNORED for sequence in sequences for label in sequence.labels):
        raise RowRefused("nothing_trained", "")
    return sequences


def labels_of(columns: Any, part: str) -> list[int]:
    """Return the labels of a processor's columns. Pre-training has none: it trains every token."""
    labels = columns.get(f"{part}labels")
    return list(labels[0]) if labels else list(columns[f"{part}input_ids"][0])


def thumbnail(image: Any, folder: str) -> str:
    """Return a small JPEG in base64; empty for an image that cannot be read."""
    from PIL import Image

    try:
        if isinstance(image, dict):
            image = io.BytesIO(image["bytes"]) if image.get("bytes") else image["path"]
        if isinstance(image, str):
            image = os.path.join(folder, image)
        picture = image if isinstance(image, Image.Image) else Image.open(image)
        picture = picture.convert("RGB")
        picture.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
        data = io.BytesIO()
        picture.save(data, "JPEG", quality=70)
    except Exception:  # PIL raises errors of many types. The page says that the image cannot be read.
        return ""
    return base64.b64encode(data.getvalue()).decode()
