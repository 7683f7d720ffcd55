"""Multi-token prediction (MTP): the layers that Megatron-Core trains beside the decoder's (DeepSeek-V3, GLM-4.5).

`extra.mtp_num_layers` asks for them, in both Megatron engines; 0 or nothing leaves them out, whatever config.json says
(mcore_adapter 0.10.0.dev0 models/model_config.py update_with_args, ms-swift 4.6.0 arguments/megatron_args.py). Hugging
Face engines have none: transformers drops these weights.
"""

from backend.job.job import Job
from backend.job.model.attention_shape import FullAttention, Mla
from backend.job.model.shape import LayerShape, ModelShape

KEY = "mtp_num_layers"

# Only these types of mcore_adapter have names for the layers' weights (models/*/__init__.py). It refuses to load a
# model of which weights are missing (models/model_factory.py from_pretrained).
#
# The templates of the first two say `transformer_layer`, as megatron-core 0.16.1 does. Since alibaba/ROLL 7f9d4d38
# models/converter/convert_utils.py says `mtp_model_layer`, so that loading ends with a ValueError whatever the version
# of megatron-core (docs/upstream-mcore-adapter-mtp.md). Before that commit both said `transformer_layer`.
MCA_LOADED_EARLIER = frozenset({"deepseek_v3", "glm4_moe"})
# For these types only `mtp_model_layer` is said, the name of later versions than megatron-core 0.16.1.
MCA_LOADS_LATER = frozenset({"qwen3_5", "qwen3_5_moe"})


def requested_layers(job: Job) -> int:
    """Return the MTP layers that the job asks its Megatron engine for."""
    count = job.extra.get(KEY)
    if not job.traits.is_megatron or not isinstance(count, int) or isinstance(count, bool):
        return 0
    return max(0, count)


def counted_layers(job: Job, shape: ModelShape) -> int:
    """Return the MTP layers that the figures count.

    Not counted: the layers of a hybrid model, which mcore-bridge builds by another pattern (model/hybrid_model.py), and
    those of preference training and reward models, for which no MTP loss is computed.
    """
    count = requested_layers(job)
    if not count or job.training.stage not in ("pt", "sft") or not _is_whole(shape.kinds[shape.order[-1]]):
        return 0
    return count


def _is_whole(kind: LayerShape) -> bool:
    """Return whether a layer has full attention and an FFN, and nothing that only the decoder gives it."""
    attends = isinstance(kind.attention, FullAttention | Mla)
    return attends and kind.ffn is not None and not kind.per_layer and not kind.operators
