"""Megatron-LM's own CI readings, replayed from the arguments of each case.

A row: {family, case, env, test_type, mem_allocated_bytes, mem_max_allocated_bytes, world, args: {--argument: value}}.
The readings are of the last rank, so of the last pipeline stage. What is not modelled is told from the arguments
alone, and no row is dropped for how far off it is.
"""

import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend.estimate.layers import Keep, LayerKind, Linear, ModelLayers, Norm, Operator, model_layers
from backend.estimate.megatron import cached_gradients, pipeline_memory
from backend.estimate.plan import Plan
from backend.estimate.stage import Trained, rank_parameters, stages
from backend.estimate.terms import StageMemory
from backend.job.model import Mla, parse_model
from backend.job.traits import MEGATRON_LM_MEMORY, MemoryTraits
from benchmarks.statistics import Result, Skip

GIB = 2.0**30
VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
    # The 256k model that Megatron-LM's release tests use with it.
    "GPTSentencePieceTokenizer": 256000,
    # Comes with --vocab-size.
    "NullTokenizer": 0,
}
STATIC, PEAK = "Megatron-LM CI, static bytes", "Megatron-LM CI, peaks over 10 GiB"
SMALL_PEAK = "Megatron-LM CI, smaller peaks"

# Checked in this order; the value says what the row has that is not modelled.
_NOT_MODELLED = {
    "--fp8-format": "fp8",
    "--fp16": "fp16",
    "--use-megatron-fsdp": "Megatron FSDP",
    "--mtp-num-layers": "multi-token prediction",
    "--cuda-graph-impl": "CUDA graphs",
    "--fine-grained-activation-offloading": "activation offload",
    "--pipeline-model-parallel-layout": "custom pipeline layout",
    "--decoder-first-pipeline-num-layers": "custom pipeline layout",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A row in the estimate's own types."""

    row: Mapping[str, Any]
    layers: ModelLayers
    plan: Plan
    memory: MemoryTraits

    @property
    def last_stage(self) -> StageMemory:
        """Our figures of the rank that was read."""
        return pipeline_memory(self.layers, self.plan, self.memory, Trained())[-1]

    @property
    def static_bytes(self) -> float:
        """Weights, gradients, optimizer and cached buffers: what is there between two iterations."""
        memory = self.last_stage
        stage = stages(self.layers, self.plan)[-1]
        cached = cached_gradients(self.layers, self.plan, stage) if self.memory.cached_weight_gradients else 0.0
        return float(memory.weights + memory.gradients + memory.optimizer + cached) + _library_bytes(self.row)

    @property
    def rule_bytes(self) -> float:
        """18 bytes a parameter of the rank, and nothing else."""
        stage = stages(self.layers, self.plan)[-1]
        found = rank_parameters(self.layers, self.plan, stage, Trained(), self.memory.vocabulary_padding)
        return float(18 * (found.dense + found.expert))


def golden_results(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Result], list[Skip], dict[str, float]]:
    """Errors of static bytes on the odd rows and of every peak; skips; MiB that each environment adds.

    The constant of an environment (workspaces of its libraries) is the median residual of its even rows. A case is
    measured in several environments; its peak counts once, by the median of its errors.
    """
    replays, skips = [], []
    for row in rows:
        found = replay(row)
        (skips if isinstance(found, Skip) else replays).append(found)  # type: ignore[arg-type]
    constants: dict[str, float] = {}
    results: list[Result] = []
    for environment in sorted({item.row["env"] for item in replays}):
        mine = [item for item in replays if item.row["env"] == environment]
        even = [item.row["mem_allocated_bytes"] - item.static_bytes for item in mine[::2]]
        constant = statistics.median(even)
        constants[environment] = constant / 2**20
        results += [_static(item, constant) for item in mine[1::2]]
    return [*results, *_peaks(replays)], skips, constants


def _static(item: Replay, constant: float) -> Result:
    return Result(
        source=STATIC,
        case=f"{item.row['case']} {item.row['env']}",
        measured=item.row["mem_allocated_bytes"] / GIB,
        ours=(item.static_bytes + constant) / GIB,
        baseline=item.rule_bytes / GIB,
    )


def _peaks(replays: list[Replay]) -> Iterable[Result]:
    cases: dict[tuple[str, str], list[Replay]] = {}
    for item in replays:
        cases.setdefault((item.row["case"], item.row["test_type"]), []).append(item)
    for (name, kind), items in cases.items():
        found = [
            Result(
                source=PEAK if item.row["mem_max_allocated_bytes"] > 10 * GIB else SMALL_PEAK,
                case=f"{name} ({kind}, {len(items)} environments)",
                measured=item.row["mem_max_allocated_bytes"] / GIB,
                ours=float(item.last_stage.peak) / GIB,
                baseline=item.rule_bytes / GIB,
                family="megatron" if item.row["mem_max_allocated_bytes"] > 10 * GIB else None,
            )
            for item in items
        ]
        yield sorted(found, key=lambda result: result.error)[len(found) // 2]


def within_tolerance(results: Iterable[Result]) -> float:
    """The share of static readings within 20 MiB + 1%."""
    static = [result for result in results if result.source == STATIC]
    good = [abs(item.ours - item.measured) <= 20 / 1024 + 0.01 * item.measured for item in static]
    return sum(good) / len(good) if good else 0.0


def replay(row: Mapping[str, Any]) -> Replay | Skip:
    """The row in our types, or why not."""
    args = row["args"]
    reason = _refusal(row, args)
    if reason:
        return Skip(source="Megatron-LM CI", case=f"{row['case']} {row['env']}", reason=reason)
    try:
        found = Replay(row=row, layers=_layers(args), plan=_plan(row, args), memory=_memory(row, args))
        if int(args["--num-layers"]) % (found.plan.pipeline * found.plan.virtual_pipeline) == 0:
            return found
        return Skip(
            source="Megatron-LM CI",
            case=f"{row['case']} {row['env']}",
            reason="layers that do not divide over the stages",
        )
    except KeyError as missing:
        return Skip(
            source="Megatron-LM CI", case=f"{row['case']} {row['env']}", reason=f"no {missing.args[0]} in the arguments"
        )


def _refusal(row: Mapping[str, Any], args: Mapping[str, Any]) -> str | None:
    if row["family"] not in ("gpt", "moe", "mixtral"):
        return f"architecture: {row['family']}"
    if "grpo" in row["case"]:
        return "GRPO"
    for key, reason in _NOT_MODELLED.items():
        if args.get(key):
            return reason
    if args.get("--optimizer") not in (None, "adam"):
        return f"optimizer: {args['--optimizer']}"
    if args.get("--use-distributed-optimizer") and _world(row, args) is None:
        return "world size not published"
    if args.get("--tokenizer-type", "GPT2BPETokenizer") not in VOCABULARIES:
        return "vocabulary not published"
    return None


def _world(row: Mapping[str, Any], args: Mapping[str, Any]) -> int | None:
    """Functional tests whose size is not published run on one node: of eight GPUs, or four where the name says so."""
    if row.get("world"):
        return int(row["world"])
    if row["test_type"] == "release":
        return None
    return 4 if row["case"].endswith("_1node") else 8


def _library_bytes(row: Mapping[str, Any]) -> float:
    """Workspaces that differ within an environment.

    Transformer Engine's grouped GEMM runs on four streams, each with a workspace: 32 MiB on Hopper and later, 4 MiB
    before (its cpp_extensions/gemm.py). Deterministic runs give cuBLAS 32 MiB a handle (CUBLAS_WORKSPACE_CONFIG
    :4096:8); others have torch's 8 MiB on all but Hopper, for the handles of forward and backward. Deterministic mode
    allows neither flash attention nor a fused loss (megatron/training/arguments.py), and a test that resumes on another
    layout (reshard) does not ask for it.
    """
    args, environment = row["args"], row["env"]
    if args.get("--transformer-impl") == "local":
        return 0.0
    ampere = "a100" in environment or environment.startswith("lts")
    total = 4.0 * (4 if ampere else 32) if args.get("--moe-grouped-gemm") else 0.0
    flash = ampere and args.get("--attention-backend") == "flash"
    free = (args.get("--cross-entropy-loss-fusion") or flash) and not args.get("--num-experts")
    if "h100" not in environment and (free or "_reshard_" in row["case"]):
        total -= 2 * (32 - 8)
    return total * 2**20


def _number(args: Mapping[str, Any], key: str, default: int = 1) -> int:
    return int(args.get(key) or default)


def _plan(row: Mapping[str, Any], args: Mapping[str, Any]) -> Plan:
    tensor, pipeline = _number(args, "--tensor-model-parallel-size"), _number(args, "--pipeline-model-parallel-size")
    context = _number(args, "--context-parallel-size")
    # Without a distributed optimizer nothing depends on the number of replicas but the micro-batches in flight.
    world = _world(row, args) or tensor * pipeline * context
    data = max(1, world // (tensor * pipeline * context))
    micro_batch = int(args["--micro-batch-size"])
    layers = int(args["--num-layers"])
    virtual = _number(args, "--num-virtual-stages-per-pipeline-rank")
    if "--num-layers-per-virtual-pipeline-stage" in args and pipeline > 1:
        virtual = layers // pipeline // int(args["--num-layers-per-virtual-pipeline-stage"])
    recompute = args.get("--recompute-granularity", "none")
    modules = tuple(re.findall(r"\w+", str(args.get("--recompute-modules", "core_attn"))))
    return Plan(
        tensor=tensor,
        pipeline=pipeline,
        virtual_pipeline=virtual,
        context=context,
        expert=_number(args, "--expert-model-parallel-size"),
        expert_tensor=_number(args, "--expert-tensor-parallel-size", tensor if args.get("--num-experts") else 1),
        data=data,
        sequence_parallel=bool(args.get("--sequence-parallel")) and tensor > 1,
        sequence_length=int(args["--seq-length"]),
        micro_batch=micro_batch,
        micro_batches=max(1, _number(args, "--global-batch-size", micro_batch * data) // (micro_batch * data)),
        distributed_optimizer=bool(args.get("--use-distributed-optimizer")),
        recompute=recompute,
        recompute_modules=modules if recompute == "selective" else (),
        recompute_layers=_number(args, "--recompute-num-layers"),
        flash_attention=args.get("--attention-backend") not in ("unfused", "local")
        and args.get("--transformer-impl") != "local",
        attention_dropout=float(args.get("--attention-dropout", 0.1)) > 0,
        context_a2a="a2a" in row["case"] and context > 1,
    )


def _memory(row: Mapping[str, Any], args: Mapping[str, Any]) -> MemoryTraits:
    logits = 10 if args.get("--cross-entropy-loss-fusion") else 6
    single = not args.get("--bf16")
    transformer_engine = args.get("--transformer-impl", "transformer_engine") == "transformer_engine"
    return replace(
        MEGATRON_LM_MEMORY,
        weight_bytes=4 if single else 2,
        gradient_bytes=2 if args.get("--grad-reduce-in-bf16") else 4,
        # Several instances of the distributed optimizer each hold all of it; the tests run two.
        optimizer_bytes=(8 if single else 12) * (2 if "multi_dist_optimizer_instances" in row["case"] else 1),
        # The long-term support images carry a Transformer Engine from before the cache (2.3).
        cached_weight_gradients=transformer_engine
        and not args.get("--no-gradient-accumulation-fusion")
        and not row["env"].startswith("lts"),
        logits_forward_bytes=logits,
        logits_backward_bytes=logits,
        vocabulary_padding=_number(args, "--make-vocab-size-divisible-by", 128),
    )


def _layers(args: Mapping[str, Any]) -> ModelLayers:
    hidden, heads = int(args["--hidden-size"]), int(args["--num-attention-heads"])
    latent = bool(args.get("--multi-latent-attention"))
    gated, biased = bool(args.get("--swiglu")), not args.get("--disable-bias-linear")
    # megatron/training/arguments.py narrows the FFN where SwiGLU adds a third matrix.
    ffn = _number(args, "--ffn-hidden-size", int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden)
    experts = _number(args, "--num-experts", 0)
    vocabulary = VOCABULARIES[args.get("--tokenizer-type", "GPT2BPETokenizer")]
    leading = re.match(r"\(\[0\]\*(\d+)", str(args.get("--moe-layer-freq", "")))
    shape = parse_model(
        {
            "hidden_size": hidden,
            "intermediate_size": ffn,
            "num_hidden_layers": int(args["--num-layers"]),
            "num_attention_heads": heads,
            "num_key_value_heads": _number(args, "--num-query-groups", heads),
            "head_dim": _number(args, "--kv-channels", hidden // heads),
            "vocab_size": _number(args, "--vocab-size", vocabulary),
            "tie_word_embeddings": not args.get("--untie-embeddings-and-output-weights"),
            "attention_bias": biased,
            "mlp_gated": gated,
            "qk_norm": bool(args.get("--qk-layernorm")) and not latent,
            "num_experts": experts,
            "num_experts_per_tok": _number(args, "--moe-router-topk", 2),
            "moe_intermediate_size": _number(args, "--moe-ffn-hidden-size", ffn),
            "shared_expert_intermediate_size": _number(args, "--moe-shared-expert-intermediate-size", 0),
            "first_k_dense_replace": int(leading[1]) if leading else 0,
        }
    )
    if latent:
        ranks = {"q_lora": _number(args, "--q-lora-rank", 0), "kv_lora": _number(args, "--kv-lora-rank", 32)}
        # Widths of heads: defaults of megatron-core's MLATransformerConfig.
        shape = replace(shape, mla=Mla(**ranks, nope_dim=128, rope_dim=64, value_dim=128))
    layers = model_layers(shape)
    options = _Gpt(
        bias=biased,
        layer_norm=args.get("--normalization", "LayerNorm") == "LayerNorm",
        dropout=float(args.get("--hidden-dropout", 0.1)) > 0,
    )
    learned = args.get("--position-embedding-type", "learned_absolute") == "learned_absolute"
    return replace(
        layers,
        positions=int(args["--seq-length"]) * hidden if learned else 0,
        dense=options.kind(layers.dense),
        sparse=options.kind(layers.sparse) if layers.sparse else None,
        output=replace(layers.output, operators=tuple(options.norms(layers.output.operators))),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gpt:
    """What a GPT of Megatron-LM has that the families of presets have not."""

    bias: bool
    layer_norm: bool
    dropout: bool

    def kind(self, kind: LayerKind) -> LayerKind:
        """The layer with biases in its FFN, LayerNorms and the masks of its two dropouts."""
        operators = list(self.norms(kind.operators))
        if self.dropout:
            operators += [Keep(width=2 * kind.hidden, bytes=1)]
        return replace(kind, operators=tuple(operators))

    def norms(self, operators: Iterable[Operator]) -> Iterable[Operator]:
        """The operators with the weights that LayerNorm and biases add."""
        for operator in operators:
            if isinstance(operator, Norm) and self.layer_norm:
                yield replace(operator, parameters=2 * operator.parameters)
            elif isinstance(operator, Linear) and self.bias and operator.name in ("up", "shared_up"):
                yield replace(operator, bias=operator.outputs)
            elif isinstance(operator, Linear) and self.bias and operator.name in ("down", "shared_down"):
                yield replace(operator, whole_bias=operator.outputs)
            else:
                yield operator
