"""Layers of Qwen4: residual streams, sparse attention over blocks of keys, and embeddings of n-grams.

Read from modeling_qwen4_exp.py and configuration_qwen4_exp.py of transformers 5.19.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from math import isqrt

from backend.job.model.attention_shape import BlockIndexer, FullAttention
from backend.job.model.config import Config, refusal
from backend.job.model.family import FULL, LINEAR
from backend.job.model.shape import LayerShape, Ngrams

MOST_STREAMS, MOST_HEADS, MOST_TABLES, MOST_ROWS = 64, 256, 1024, 10**8
"""Limits of a config.json that is read. Real models have 4 streams, 16 heads of n-grams and 20 million rows. Each head
of each layer with n-grams has a table."""


def qwen4_types(config: Config, layers: int) -> list[str]:
    """Return the layers' types of Qwen4ExpTextConfig."""
    period = config.size("full_attention_interval", default=4)
    return [LINEAR if (index + 1) % period else FULL for index in range(layers)]


def qwen4_layer(config: Config, layer: LayerShape, index: int, _layers: int) -> LayerShape:
    """Return a layer with its streams, its indexer and its n-grams."""
    attention = layer.attention
    if isinstance(attention, FullAttention):
        if config.get("indexer_kv_heads") != 1:
            raise refusal("bad_model_key", key="indexer_kv_heads", value=config.get("indexer_kv_heads"))
        indexer = BlockIndexer(
            heads=config.size("indexer_n_heads"),
            head_dim=config.size("indexer_head_dim"),
            block=config.size("indexer_compress_ratio"),
        )
        attention = replace(attention, masked=True, indexer=indexer)
    return replace(
        layer,
        attention=attention,
        streams=config.size("hc_count", largest=MOST_STREAMS),
        stream_rank=config.size("hc_lowrank"),
        ngrams=_ngrams(config, index),
    )


def _ngrams(config: Config, index: int) -> Ngrams | None:
    """Return the embedding of n-grams of a layer; its number in `ple_layer_ids` counts from 1."""
    numbers = sorted({*config.indexes("ple_layer_ids")})
    if index + 1 not in numbers:
        return None
    heads = (config.size("ngram_size", largest=MOST_HEADS) - 1) * config.size("heads_per_ngram", largest=MOST_HEADS)
    width = config.size("ple_embed_dim", default=config.size("hidden_size"))
    if not 0 < heads <= MOST_HEADS or width % heads or len(numbers) * heads > MOST_TABLES:
        raise refusal("bad_model_key", key="ple_embed_dim", value=width)
    first = config.size("ngram_vocab_size_base", largest=MOST_ROWS)
    before = numbers.index(index + 1) * heads
    rows = sum(_primes(first, before + heads)[before:])
    padding = config.size("make_ngram_vocab_size_divisible_by")
    return Ngrams(
        width=width,
        table=-(-rows // padding) * padding * (width // heads),
        convolution=config.size("ple_conv_kernel_size"),
    )


@lru_cache(maxsize=64)
def _primes(first: int, count: int) -> tuple[int, ...]:
    """Return so many primes from `first` on. Each head of an n-gram has a table with a prime number of rows."""
    return tuple(islice(_all_primes(first), count))


def _all_primes(first: int) -> Iterator[int]:
    number = first
    while True:
        if number == 2 or (number > 2 and number % 2 and all(number % d for d in range(3, isqrt(number) + 1, 2))):
            yield number
        number += 1
