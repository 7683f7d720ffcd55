"""The job file, version 1, as dataclasses: everything that a run needs and that the wizard edits, saves and shares.

It carries no secret. Planning needs `cluster.{gpu, nodes, gpus_per_node}` and `model`; every other key has a default.
cluster.py has the machines; training.py has data, method and schedule. mapping.py reads and writes the file.
parameters.py builds the parameter table from these fields. rules/ says which values go together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from backend.job.cluster import Cluster
from backend.job.lengths import cut_mean
from backend.job.memory_traits import Offload
from backend.job.parameters import parameter
from backend.job.patterns import HUB, HUB_ADDRESS, LAYOUT, NAME, NODE_PATH, PRINTABLE
from backend.job.stored_property import stored_property
from backend.job.training import Training
from backend.job.traits import TRAITS, EngineName, EngineTraits

Recompute = Literal["none", "selective", "full"]
RecomputeModule = Literal["core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts"]

STALL_MARGIN_S = 300
"""Time between the time-out of collectives and the stall limit of a rank. A collective that hangs may begin a step
after the last line of the log, and its ranks write their flight records when it times out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The model: its shape for planning, its folder for the run."""

    preset: str | None = parameter(None, pattern=NAME, swift="model_type")
    """A key of presets/models.yaml."""
    hf_config: Mapping[str, Any] = parameter(default_factory=dict)
    """The shape inline, with the key names of a Hugging Face config.json. Used if no preset is named."""
    profile: Mapping[str, Any] = parameter(default_factory=dict)
    """What a node's torch counted in the model (model/model_profile.py). Used if hf_config does not give the shape."""
    path: str | None = parameter(
        None, pattern=NODE_PATH, llamafactory="model_name_or_path", swift="model", swift_trainer="check_model"
    )
    """The model's folder on the nodes."""
    hub: str | None = parameter(None, pattern=HUB)
    """Repository on the hub that `megaboard download` fetches; null takes that of the preset."""
    hub_kind: Literal["huggingface", "modelscope"] = parameter("huggingface", source="ours")
    """The hub of the model and of data sets."""
    hub_endpoint: str | None = parameter(None, pattern=HUB_ADDRESS)
    """Address of a mirror of the hub; null: https://huggingface.co, or https://modelscope.cn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fsdp:
    version: int = parameter(2, minimum=1, maximum=2, source="examples", accelerate="FSDP_VERSION")
    reshard_after_forward: bool = parameter(
        True, source="examples", accelerate=("FSDP_RESHARD_AFTER_FORWARD", "FSDP_SHARDING_STRATEGY")
    )
    offload: bool = parameter(False, source="examples", accelerate="FSDP_OFFLOAD_PARAMS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallel:
    """How the ranks divide the work. TP, PP, VPP, CP, EP and ETP exist only on Megatron."""

    tensor: int = parameter(1, minimum=1, maximum=64, source="mcore_adapter", megatron="tensor_model_parallel_size")
    pipeline: int = parameter(
        1, minimum=1, maximum=256, source="mcore_adapter", megatron="pipeline_model_parallel_size"
    )
    virtual_pipeline: int = parameter(
        1, minimum=1, maximum=128, source="mcore_adapter", megatron="virtual_pipeline_model_parallel_size"
    )
    """Model chunks per stage; 1 is plain 1F1B."""
    context: int = parameter(1, minimum=1, maximum=256, source="mcore_adapter", megatron="context_parallel_size")
    expert: int = parameter(1, minimum=1, maximum=256, source="mcore_adapter", megatron="expert_model_parallel_size")
    expert_tensor: int = parameter(1, minimum=1, maximum=64, source="swift", megatron="expert_tensor_parallel_size")
    sequence: bool = parameter(True, source="guides", megatron="sequence_parallel")
    """Sequence parallel; has an effect only with TP > 1."""
    account_for_embedding: bool = parameter(
        False, source="mcore_adapter", megatron="account_for_embedding_in_pipeline_split"
    )
    """Count the embedding as one layer when splitting into stages."""
    account_for_loss: bool = parameter(False, source="mcore_adapter", megatron="account_for_loss_in_pipeline_split")
    """Count the output layer as one layer when splitting into stages."""
    pipeline_layout: str | None = parameter(
        None, pattern=LAYOUT, source="mcore_adapter", megatron="pipeline_model_parallel_layout"
    )
    """Layers of each stage in Megatron-Core's notation (pipeline_layout.py); null cuts them into equal parts."""
    recompute: Recompute | None = parameter(
        None,
        megatron="recompute_granularity",
        hugging_face=("disable_gradient_checkpointing", "gradient_checkpointing"),
        swift_trainer="gradient_checkpointing",
    )
    """Null: the engine's default, which is none on Megatron, full (gradient checkpointing) on Hugging Face engines."""
    recompute_modules: tuple[RecomputeModule, ...] = parameter((), megatron="recompute_modules")
    """For selective recompute; empty takes the engine's default, core_attn."""
    recompute_num_layers: int | None = parameter(None, minimum=1, megatron=("recompute_num_layers", "recompute_method"))
    """For full recompute: layers of a recomputed unit."""
    distributed_optimizer: bool = parameter(True, source="guides", megatron="use_distributed_optimizer")
    """ZeRO-1."""
    optimizer_offload_fraction: float = parameter(
        0.0,
        minimum=0,
        maximum=1,
        source="mcore_adapter",
        megatron=("optimizer_offload_fraction", "optimizer_cpu_offload"),
    )
    offload_device: Literal["cpu", "nvme"] = parameter(
        "cpu",
        source="examples",
        deepspeed=("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"),
    )
    """For DeepSpeed engines."""
    offload_folder: str | None = parameter(
        None,
        pattern=NODE_PATH,
        deepspeed=("zero_optimization.offload_optimizer.nvme_path", "zero_optimization.offload_param.nvme_path"),
    )
    """For nvme: a folder on each node's own NVMe disk."""
    offload_parameters: bool = parameter(True, source="examples", deepspeed="zero_optimization.offload_param")
    """For ZeRO-3 with offload: the weights too, not only the optimizer."""
    gradient_dtype: Literal["fp32", "bf16"] = parameter(
        "fp32", source="ours", megatron="accumulate_allreduce_grads_in_fp32"
    )
    overlap_grad_reduce: bool = parameter(False, source="mcore_adapter", megatron="overlap_grad_reduce")
    overlap_param_gather: bool = parameter(False, source="mcore_adapter", megatron="overlap_param_gather")
    bias_activation_fusion: bool = parameter(True, source="guides", megatron="bias_activation_fusion")
    rope_fusion: bool = parameter(True, source="guides", megatron="apply_rope_fusion")
    cross_entropy_fusion: bool = parameter(False, source="mcore_adapter", megatron="cross_entropy_loss_fusion")
    moe_grouped_gemm: bool = parameter(True, source="guides", megatron="moe_grouped_gemm")
    moe_token_dispatcher: Literal["alltoall", "allgather"] = parameter(
        "alltoall", source="guides", megatron="moe_token_dispatcher_type"
    )
    fsdp: Fsdp = field(default_factory=Fsdp)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training job; immutable. `unknown` keeps the keys that this version does not know, by dotted path."""

    version: int = parameter(1, minimum=1, maximum=1, source="ours")
    name: str = parameter("job", pattern=NAME, source="ours")
    cluster: Cluster
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)
    engine: EngineName = parameter("llamafactory-megatron", source="ours")
    parallel: Parallel = field(default_factory=Parallel)
    environment: Mapping[str, str] = parameter(default_factory=dict, pattern=PRINTABLE)
    """Extra environment variables of the ranks, not secret."""
    extra: Mapping[str, Any] = parameter(default_factory=dict)
    """Keys of the engine that the job file has no name for."""
    unknown: Mapping[str, Any] = field(default_factory=dict, metadata={"hidden": True})

    @stored_property
    def traits(self) -> EngineTraits:
        """Return the facts of this job's engine."""
        return TRAITS[self.engine]

    @property
    def eval_size(self) -> object:
        """Return the share or number of samples held out for evaluation, also where `extra` has it; None without."""
        key = "split_dataset_ratio" if self.traits.environment == "swift" else "val_size"
        return self.extra.get(key) if self.training.eval_size is None else self.training.eval_size

    @property
    def eval_dataset(self) -> Any:
        """Return the data sets for evaluation, also where `extra` has them; None without."""
        key = "val_dataset" if self.traits.environment == "swift" else "eval_dataset"
        return self.extra.get(key) if self.training.eval_dataset is None else self.training.eval_dataset

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return self.cluster.nodes * self.cluster.gpus_per_node

    @property
    def model_parallel(self) -> int:
        """Return the ranks that hold one copy of the model together: TP x PP x CP on Megatron, 1 elsewhere."""
        if not self.traits.is_megatron:
            return 1
        return self.parallel.tensor * self.parallel.pipeline * self.parallel.context

    @property
    def data_parallel(self) -> int:
        """Return the copies of the model; 0 if the ranks are not a whole number of them."""
        ranks, model_parallel = self.world_size, self.model_parallel
        # The estimate passes arrays of sizes.
        return ranks // model_parallel * (ranks % model_parallel == 0)

    @property
    def accumulation(self) -> int:
        """Return the micro-batches of a step on each rank: the job's own, or those of its global batch (at least 1)."""
        global_batch = self.training.global_batch_size
        if global_batch is None:
            return self.training.gradient_accumulation_steps
        return max(1, global_batch // max(1, self.training.micro_batch_size * self.data_parallel))

    @property
    def global_batch(self) -> int:
        """Return the samples of an optimizer step."""
        return self.training.micro_batch_size * self.accumulation * self.data_parallel

    @property
    def sequences_per_sample(self) -> int:
        """Return the sequences of a sample: DPO and a reward model train on pairs. In GRPO a sample is a completion."""
        return 2 if self.training.stage in ("dpo", "rm") else 1

    @property
    def completion_tokens(self) -> int:
        """Return the maximum number of tokens that the model generates for a sample; 0 outside of GRPO."""
        return self.training.grpo.completion_len if self.training.stage == "grpo" else 0

    @property
    def longest_sequence(self) -> int:
        """Return the tokens of the longest sequence that is trained: in GRPO, a prompt with its completion."""
        return self.training.cutoff_len + self.completion_tokens

    @property
    def has_reference(self) -> bool:
        """Return whether a frozen reference model evaluates every sample too.

        KTO always has one (LLaMA-Factory 0.9.5 train/kto/workflow.py). ORPO and SimPO need none
        (hparams/finetuning_args.py use_ref_model, mcore_adapter trainer/dpo_config.py), nor does GRPO with a beta of 0
        (ms-swift 4.6.0 arguments/rlhf_args.py).
        """
        training = self.training
        if training.stage == "grpo":
            return training.grpo.beta > 0
        return training.stage == "kto" or (training.stage == "dpo" and training.dpo.loss not in ("orpo", "simpo"))

    @property
    def forward_passes(self) -> int:
        """Return the forward passes of a micro-batch, of which one has a backward pass.

        KTO evaluates two batches with the trained model and with the reference model: the samples, and their prompts
        with other answers for the KL term (LLaMA-Factory 0.9.5 train/kto/trainer.py concatenated_forward).
        GRPO evaluates the completions once before the updates (ms-swift 4.6.0 rlhf_trainers/grpo_trainer.py
        _prepare_batch_inputs).
        Their generation is not counted here.
        """
        if self.training.stage == "grpo":
            return 3 if self.has_reference else 2
        return 4 if self.training.stage == "kto" else 2 if self.has_reference else 1

    @property
    def lora_dropout(self) -> float:
        """Return the dropout before adapters: 0.05 under ms-swift (4.6.0 arguments/tuner_args.py), 0 elsewhere."""
        own = 0.05 if self.traits.environment == "swift" else 0.0
        value = self.extra.get("lora_dropout", own)
        return float(value) if isinstance(value, int | float) else own

    @property
    def has_fp8_products(self) -> bool:
        """Return whether Transformer Engine computes the matrix products of layers in FP8.

        mcore_adapter and ms-swift name the format `fp8` and `fp8_format`. The Hugging Face engines are in 16 bits
        whatever `fp8` says (rules/extra.py fp8_has_an_effect).
        """
        if not self.extra or not self.traits.is_megatron:
            return False
        return bool(self.extra.get("fp8") or self.extra.get("fp8_format"))

    @property
    def can_resume(self) -> bool:
        """Return whether a run can resume from a checkpoint.

        LLaMA-Factory 0.9.5 resumes no reward model: it ignores the checkpoint of a whole one (hparams/parser.py
        can_resume_from_checkpoint), and that of adapters ends with "Can't find a checkpoint index" (transformers 5.6.0
        trainer.py _load_from_checkpoint does not see adapters below the value head).
        """
        return self.training.stage != "rm" or self.traits.environment != "llamafactory"

    @property
    def sequence_tokens(self) -> float:
        """Return the tokens of a mean sequence without padding.

        It is a full sequence if samples are packed or if their length is not known. A completion counts as the longest
        one: its length is not known before the training.
        """
        training = self.training
        if training.packing or training.sample_tokens is None:
            return float(self.longest_sequence)
        return cut_mean(training.sample_tokens, training.cutoff_len) + self.completion_tokens

    @property
    def step_tokens(self) -> int:
        """Return the tokens of an optimizer step without padding."""
        return round(self.global_batch * self.sequences_per_sample * self.sequence_tokens)

    @property
    def prepares_data(self) -> bool:
        """Return whether the data is tokenised before the ranks start; ms-swift does it in its own way."""
        prepare = self.training.prepare
        return (prepare.tokenize or prepare.shuffle) and self.traits.environment == "llamafactory"

    @property
    def stall_s(self) -> int:
        """Return how long a node may write nothing before its supervisor ends it."""
        stall_s = self.training.stall_s
        return self.training.ddp_timeout_s + STALL_MARGIN_S if stall_s is None else stall_s

    @property
    def offloads(self) -> Offload:
        """Return what a DeepSpeed engine always keeps in host memory."""
        if self.traits.offloads == "everything" and not self.parallel.offload_parameters:
            return "optimizer"
        return self.traits.offloads

    @property
    def sequence_parallel(self) -> bool:
        """Return whether sequence parallel has an effect."""
        return self.traits.is_megatron and self.parallel.sequence and self.parallel.tensor > 1

    @property
    def recompute(self) -> Recompute:
        """Return the recompute choice in effect."""
        if self.parallel.recompute is not None:
            return self.parallel.recompute
        return "none" if self.traits.is_megatron else "full"
