"""Rules for sparse attention on ms-swift's Megatron: Megatron-Core's latent attention whose keys an indexer chooses.

They hold for megatron-core 0.19.2, the latest that mcore-bridge 1.6.5 allows.
"""

from itertools import accumulate

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.model.attention_shape import Mla
from backend.job.pipeline_layout import layout_of, readable_layers
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar
from backend.job.rules.stages import LAYOUT, counted_layers, layout_edit

RULES: list[BoundRule] = []
rule = registrar(RULES)

GATHERED = "all_gather"
"""The only exchange of keys between the ranks of context parallelism."""
IDLE_MODULES = ("linear_wq_b", "linear_wk", "linear_weights_proj", "linear_kv_up_proj")
"""Linear layers whose adapters are never computed: those of the indexer, which runs without gradients, and the one
whose weight is read without its module (mcore-bridge 1.6.5 model/modules/absorbed_mla.py _get_kv_up_weights)."""
TARGETS = "linear_q_down_proj,linear_q_up_proj,linear_kv_down_proj,linear_proj,linear_fc1,linear_fc2"
"""The other linear layers."""


def _chooses_keys(shape: ModelShape) -> bool:
    """Return whether this module trains the model. GLM-5.3 needs another (SWIFT_DEV_MEGATRON)."""
    return bool(shape.mla and shape.mla.masked) and not shape.has_connections


@rule(scopes.swift_megatron)
def megatron_core_chooses_keys(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore-bridge 1.6.5 model/modules/dsa_indexer.py: `fused_qk_topk_naive is not available. Please install
    "megatron-core>=0.17.0"`. With 0.17 and 0.18, model/modules/multi_latent_attention.py refuses padding_free, which is
    on by default (4.6.0 megatron_args.py), and gpts/glm_moe_dsa.py refuses layers that share an indexer. PyPI has these
    versions for Python 3.12 and later only. The indexer rotates by fast_hadamard_transform (dsa.py
    rotate_activation)."""
    if not _chooses_keys(shape):
        return None
    return problem("chosen_keys_megatron_core", "engine", "warning", model_type=shape.model_type)


@rule(scopes.swift_megatron)
def positions_are_not_fused(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core 0.19.2 transformer_config.py: `RoPE fusion is not supported for DSAttention`."""
    if not _chooses_keys(shape) or not job.parallel.rope_fusion:
        return None
    return problem("chosen_keys_rope", "parallel.rope_fusion", model_type=shape.model_type,
                   edit={"parallel.rope_fusion": False})  # fmt: skip


@rule(scopes.swift_megatron)
def context_ranks_gather_keys(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core 0.19.2 transformer_config.py: `DSAttention context parallelism currently supports
    cp_comm_type=allgather only.`"""
    asked = str(job.extra.get("cp_comm_type")).replace("_", "").lower()
    if not _chooses_keys(shape) or job.parallel.context == 1 or asked == "allgather":
        return None
    return problem("chosen_keys_context", "parallel.context", model_type=shape.model_type,
                   edit={"extra": {**job.extra, "cp_comm_type": GATHERED}})  # fmt: skip


@rule(scopes.swift_megatron)
def the_indexer_runs_in_bf16(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core 0.19.2 dsa.py: `rotate_activation only support bf16 input`."""
    if not _chooses_keys(shape) or job.training.precision == "bf16":
        return None
    return problem("chosen_keys_precision", "training.precision", model_type=shape.model_type,
                   edit={"training.precision": "bf16"})  # fmt: skip


@rule(scopes.swift_megatron)
def stages_begin_with_an_indexer(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core 0.19.2 dsa.py: `Cross-PP top-k sharing is not supported. Ensure each pipeline stage starts on a
    computing layer`. A chunk of an interleaved stage has its own choices, too."""
    if not _chooses_keys(shape) or job.parallel.pipeline == 1:
        return None
    computing = [place for place, kind in enumerate(shape.order) if _has_indexer(shape, kind)]
    starts = _starts(job, shape)
    shared = [start for start in starts if start is not None and start not in computing]
    if not shared:
        return None
    layout = _layout(computing, shape.layers, [start is not None for start in starts])
    edit: dict[str, object] = {"parallel.pipeline": 1, "parallel.virtual_pipeline": 1, LAYOUT: None}
    edit = layout_edit(job, layout) if layout else edit
    return problem("chosen_keys_stage", "parallel.pipeline", layer=shared[0] + 1, edit=edit)


@rule(scopes.swift_megatron)
def the_bridge_finds_the_same_indexers(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore-bridge 1.6.5 config/parser.py reads index_topk_freq and index_skip_topk_offset alone, as 1 and 0 if they
    are missing. transformers 5.19 configuration_glm_moe_dsa.py reads indexer_types and index_topk_pattern before them,
    and a missing offset as 2.

    A layer gets an indexer or none by Megatron-Core's is_dsa_skip_topk_layer (dsa.py). If it gets one that the
    checkpoint lacks, the weights do not load (mcore-bridge gpt_bridge.py _set_indexer); if the checkpoint has weights
    that transformers does not use, another attention is trained.
    """
    if not _chooses_keys(shape):
        return None
    period, offset = (_whole(job, key) for key in ("index_topk_freq", "index_skip_topk_offset"))
    found = [max(layer - max(offset, 1), 0) % max(period, 1) == 0 for layer in range(1, len(shape.order) + 1)]
    differ = [place for place, kind in enumerate(shape.order) if _has_indexer(shape, kind) != found[place]]
    if not differ:
        return None
    return problem("chosen_keys_pattern", "model.path", model_type=shape.model_type, layer=differ[0] + 1)


def _whole(job: Job, key: str) -> int:
    """Return a whole number of the model's configuration; 0 if it has none."""
    value = job.model.hf_config.get(key)
    return value if isinstance(value, int) else 0


def _has_indexer(shape: ModelShape, kind: int) -> bool:
    attention = shape.kinds[kind].attention
    return isinstance(attention, Mla) and attention.indexer is not None


def _starts(job: Job, shape: ModelShape) -> list[int | None]:
    """Return the first layer of every piece of the pipeline; None for a piece without layers."""
    parallel = job.parallel
    pieces = readable_layers(parallel.pipeline_layout)
    if pieces is None:
        count = parallel.pipeline * parallel.virtual_pipeline
        each, rest = divmod(counted_layers(job, shape), count)
        if rest:
            return []
        pieces = (each - parallel.account_for_embedding, *[each] * (count - 1))
    starts = accumulate(pieces[:-1], initial=0)
    return [start if size and start < shape.layers else None for start, size in zip(starts, pieces, strict=True)]


def _layout(computing: list[int], layers: int, has_layers: list[bool]) -> str | None:
    """Return a nearly even layout whose pieces with layers begin with an indexer; None if there are too few.

    Pieces without layers stay so.
    """
    pieces, starts = sum(has_layers), [0]
    for piece in range(1, pieces):
        # Each of the pieces after this one needs an indexer, too.
        usable = computing[: len(computing) - (pieces - 1 - piece)]
        later = [place for place in usable if place > starts[-1]]
        if not later:
            return None
        starts.append(min(later, key=lambda place: abs(place - piece * layers / pieces)))
    sizes = (after - before for before, after in zip(starts, [*starts[1:], layers], strict=True))
    return layout_of(tuple(next(sizes) if has else 0 for has in has_layers))


@rule(scopes.swift_megatron)
def adapters_are_computed(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift 4.6.0 megatron/utils/utils.py find_all_linears names every linear layer for `all-linear`."""
    training = job.training
    if not _chooses_keys(shape) or training.method not in ("lora", "qlora"):
        return None
    names = [name.strip() for name in training.lora.targets.split(",")]
    every = {"all", "all-linear"} & {*names}
    idle = [name for name in IDLE_MODULES if every or name in names]
    if not idle:
        return None
    kept = ",".join(name for name in names if name not in (*IDLE_MODULES, "all", "all-linear")) or TARGETS
    return problem("chosen_keys_adapters", "training.lora.targets", "warning", model_type=shape.model_type,
                   modules=", ".join(idle), edit={"training.lora.targets": kept})  # fmt: skip
