"""Megatron-Core's notation for the layers of each pipeline piece: `Et*3|t*4|t*4|t*3L`.

E is the embedding, t a layer, m a layer for multi-token prediction, L the output layer with the loss. `|` ends a piece,
`*n` and `(...)*n` repeat, commas have no meaning. Pieces are in the order of the model: piece c x PP + r is chunk c of
stage r. A job's layout has no m: the engine's file gets them before L.
https://github.com/NVIDIA/Megatron-LM/blob/00caa53af30912914981c86f39db123961678bbd/megatron/core/transformer/pipeline_parallel_layer_layout.py
"""

import re
from functools import lru_cache
from itertools import groupby

LONGEST = 4096
"""Limit on the letters of a text with all repetitions expanded: far more layers than any model has."""
_PREDICTORS = re.compile(r"(,?m(\*\d{1,4})?){1,64},?L$")
_REPEATED = (re.compile(r"\(([^()]*)\)\*(\d{1,4})"), re.compile(r"([EtL|])\*(\d{1,4})"))


class LayoutError(ValueError):
    """The text is no layout; `reason` is a code that the catalogues explain."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@lru_cache(maxsize=256)
def layers_of(layout: str) -> tuple[int, ...]:
    """Return the layers of each piece. Raises LayoutError unless E begins the first piece and L ends the last."""
    letters = layout.replace(",", "")
    for pattern in _REPEATED:
        if sum(len(inner) * int(times) for inner, times in pattern.findall(letters)) > LONGEST:
            raise LayoutError("long")
        letters = pattern.sub(lambda match: match[1] * int(match[2]), letters)
    if set(letters) - set("EtL|"):
        raise LayoutError("letters")
    if letters.count("E") != 1 or not letters.startswith("E") or letters.count("L") != 1 or not letters.endswith("L"):
        raise LayoutError("ends")
    return tuple(piece.count("t") for piece in letters.split("|"))


def readable_layers(layout: str | None) -> tuple[int, ...] | None:
    """Return the layers of each piece; None if there is no layout, or none that can be read."""
    try:
        return layers_of(layout) if layout else None
    except LayoutError:
        return None


def with_mtp(layout: str, count: int) -> str:
    """Return the layout with `count` layers for multi-token prediction, which Megatron-Core counts in it."""
    return f"{layout.removesuffix('L')}{'m' * count}L" if count else layout


def without_mtp(layout: str) -> str:
    """Return a layout without the layers for multi-token prediction in its last piece."""
    return _PREDICTORS.sub("L", layout)


def layout_of(layers: tuple[int, ...]) -> str:
    """Return the shortest usual text for these numbers of layers."""
    pieces = [f"t*{count}" if count > 1 else "t" * count for count in layers]
    if len(pieces) == 1:
        return f"E{pieces[0]}L"
    inner = []
    for piece, same in groupby(pieces[1:-1]):
        times = len(list(same))
        inner.append(f"({piece}|)*{times}" if times > 1 else f"{piece}|")
    # A repetition inside another is expanded outermost first: `(t*4|)*2` is `t*4|t*4|`.
    return f"E{pieces[0]}|{''.join(inner)}{pieces[-1]}L"


@lru_cache(maxsize=1024)
def even_layers(layers: int, pieces: int) -> tuple[int, ...] | None:
    """Return layers for each piece, as even as possible, with the embedding and the output layer counted as one each.

    The remainder goes to the middle pieces, from the end: the first stage holds the activations of the most
    micro-batches, the last one the logits. None if a piece at an end would have no layer.
    """
    each, remainder = divmod(layers + 2, pieces)
    if pieces == 1 or each < 2:
        return None
    layers_of_pieces = [each] * pieces
    for piece in [*range(pieces - 2, 0, -1), pieces - 1, 0][:remainder]:
        layers_of_pieces[piece] += 1
    layers_of_pieces[0] -= 1
    layers_of_pieces[-1] -= 1
    return tuple(layers_of_pieces)
