"""Operators of sparse attention in Megatron-Core: latent attention whose keys an indexer chooses.

megatron-core 0.19.2 transformer/experimental_attention_variant/absorbed_mla.py and dsa.py, which mcore-bridge 1.6.5
runs (model/register.py _replace_spec_dsa, model/modules/absorbed_mla.py, model/modules/dsa_indexer.py). Queries are
multiplied by the weight that would project the keys, so all heads share one latent key.
"""

from backend.job.model.attention_shape import Indexer, Mla
from backend.job.model.operators import ChosenKeys, IndexScores, Keep, Linear, Norm, Operator, Parameters

ABSORBED = "kv_absorbed"
"""The projection whose weight is read without its module: it keeps no input, and an adapter on it is never computed."""


def chosen_keys_attention(mla: Mla, h: int) -> tuple[Operator, ...]:
    """Return AbsorbedMLASelfAttention with DSAttention. The norms of the low ranks are modules of their own."""
    a, key = mla.heads, mla.nope_dim + mla.rope_dim
    # The cosines and sines of queries and of the key, for the whole sequence.
    turns = 4 * mla.rope_dim
    return (
        Linear(name="q_down", inputs=h, outputs=mla.q_lora, share="whole", after_norm=True),
        Norm(width=mla.q_lora, parameters=mla.q_lora),
        Linear(name="q_up", inputs=mla.q_lora, outputs=a * key, share="split"),
        Linear(name="kv_down", inputs=h, outputs=mla.kv_lora + mla.rope_dim, share="whole", after_norm=True),
        Norm(width=mla.kv_lora, parameters=mla.kv_lora, is_joined=True),
        Keep(width=mla.rope_dim),
        Keep(width=turns),
        Keep(width=turns, gathered=True),
        Linear(name=ABSORBED, inputs=mla.kv_lora, outputs=a * (mla.nope_dim + mla.value_dim), share="split"),
        *(_indexer(mla.indexer, mla, h) if mla.indexer else ()),
        ChosenKeys(heads=a, latent=mla.kv_lora, rotary=mla.rope_dim, plain=mla.nope_dim, value_dim=mla.value_dim),
        Linear(name="o", inputs=a * mla.value_dim, outputs=h, share="split"),
    )


def _indexer(indexer: Indexer, mla: Mla, h: int) -> tuple[Operator, ...]:
    """Return DSAIndexer, which runs without gradients while dsa_indexer_loss_coeff is 0, ms-swift's default (4.6.0
    arguments/megatron_args.py). Every TP rank computes all of it."""
    heads, d = indexer.heads, indexer.head_dim
    return (
        Linear(name="wq_b", inputs=mla.q_lora, outputs=heads * d, share="whole", untrained=True),
        Linear(name="wk", inputs=h, outputs=d, share="whole", untrained=True),
        Parameters(count=2 * d, share="whole"),
        Linear(name="weights_proj", inputs=h, outputs=heads, share="whole", untrained=True),
        IndexScores(
            heads=heads,
            key_dim=d,
            rotary=mla.rope_dim,
            spreads_keys=False,
            in_fp32=True,
            kept=indexer.chosen if indexer.is_shared else 0,
        ),
    )
