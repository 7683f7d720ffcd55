"""The job file's `training`: data, method and schedule."""

from dataclasses import dataclass, field
from typing import Literal

from backend.job.parameters import parameter
from backend.job.patterns import NODE_PATH, PRINTABLE, SHARES, WORDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    rank: int = parameter(
        8, minimum=1, maximum=1024, source="llamafactory", llamafactory="lora_rank", swift="lora_rank"
    )
    alpha: int = parameter(
        16, minimum=1, maximum=4096, source="llamafactory", llamafactory="lora_alpha", swift="lora_alpha"
    )
    targets: str = parameter(
        "all", pattern=WORDS, source="llamafactory", llamafactory="lora_target", swift="target_modules"
    )
    """`all` linear layers, or module names separated by commas."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Freeze:
    """Frozen parts; vision-language models only."""

    vision_tower: bool = parameter(False, source="ours", llamafactory="freeze_vision_tower", swift="freeze_vit")
    projector: bool = parameter(
        False, source="ours", llamafactory="freeze_multi_modal_projector", swift="freeze_aligner"
    )
    language_model: bool = parameter(
        False, source="llamafactory", llamafactory="freeze_language_model", swift="freeze_llm"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Workers:
    preprocessing: int = parameter(
        16,
        minimum=1,
        maximum=512,
        source="examples",
        llamafactory="preprocessing_num_workers",
        swift="dataset_num_proc",
    )
    """Number of tokenising processes."""
    data_loader: int = parameter(
        4, minimum=0, maximum=64, source="swift", llamafactory="dataloader_num_workers", swift="dataloader_num_workers"
    )
    """Loader processes per rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepare:
    """Preparation of the data, once, on one node, before the ranks start. LLaMA-Factory engines only."""

    tokenize: bool = parameter(False, source="ours")
    """Tokenise into <output_dir>/tokenized; every rank loads it from there."""
    shuffle: bool = parameter(False, source="ours")
    """Tokenise and shuffle by the seed: Megatron reads the data in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dpo:
    beta: float = parameter(0.1, above=0, source="llamafactory", llamafactory="pref_beta", swift="beta")
    loss: Literal["sigmoid", "hinge", "ipo", "orpo", "simpo"] = parameter(
        "sigmoid", source="llamafactory", llamafactory="pref_loss", swift="loss_type"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Grpo:
    """GRPO: the model answers each prompt several times, and learns from the rewards of its answers. Only ms-swift's
    Hugging Face trainers have it.
    """

    rewards: str | None = parameter(None, pattern=WORDS, swift_trainer="reward_funcs")
    """Names of reward functions, separated by commas: those of ms-swift, or those that `plugin` registers."""
    plugin: str | None = parameter(None, pattern=NODE_PATH, swift_trainer="external_plugins")
    """Python file on the nodes that registers reward functions."""
    group_size: int = parameter(8, minimum=2, maximum=4096, source="swift", swift_trainer="num_generations")
    """Completions of a prompt."""
    completion_len: int = parameter(
        512, minimum=1, maximum=1_048_576, unit="tokens", source="swift", swift_trainer="max_completion_length"
    )
    """Maximum length of a completion. `cutoff_len` limits the prompt."""
    temperature: float = parameter(0.9, above=0, maximum=10, source="swift", swift_trainer="temperature")
    beta: float = parameter(0.04, minimum=0, maximum=100, source="ours", swift_trainer="beta")
    """Weight of the divergence from the reference model; 0: no reference model. ms-swift takes the same value if none
    is given (4.6.0 arguments/rlhf_args.py _init_grpo)."""
    epsilon: float = parameter(0.2, above=0, maximum=1, source="swift", swift_trainer="epsilon")
    rollout: Literal["transformers", "vllm"] = parameter(
        "transformers", source="ours", swift_trainer=("use_vllm", "vllm_mode")
    )
    """What generates the completions, on the GPUs that train."""
    vllm_memory: float = parameter(
        0.5, above=0, maximum=0.95, source="swift_examples", swift_trainer="vllm_gpu_memory_utilization"
    )
    """Share of a GPU's memory that vLLM takes."""
    vllm_sleep: bool = parameter(True, source="swift_examples", swift_trainer="sleep_level")
    """Whether vLLM frees its memory while the model is trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Data, method and schedule."""

    stage: Literal["pt", "sft", "rm", "dpo", "kto", "grpo"] = parameter(
        "sft", source="llamafactory", llamafactory=("stage", "do_train"), swift="rlhf_type"
    )
    method: Literal["full", "lora", "qlora", "partial"] = parameter(
        "full",
        source="ours",
        llamafactory=("finetuning_type", "quantization_bit", "upcast_layernorm"),
        swift="tuner_type",
        swift_trainer=("quant_method", "quant_bits"),
    )
    """partial trains the last `trainable_layers` layers."""
    trainable_layers: int = parameter(2, minimum=1, source="llamafactory", llamafactory="freeze_trainable_layers")
    lora: Lora = field(default_factory=Lora)
    freeze: Freeze = field(default_factory=Freeze)
    dataset: str | None = parameter(None, pattern=WORDS, llamafactory="dataset", swift=("dataset", "cached_dataset"))
    """Names in dataset_info.json, separated by commas."""
    dataset_dir: str | None = parameter(None, pattern=NODE_PATH, llamafactory="dataset_dir")
    mix_strategy: Literal["concat", "interleave_under", "interleave_over", "interleave_once"] = parameter(
        "concat", source="llamafactory", llamafactory="mix_strategy", swift="stopping_strategy"
    )
    """How several data sets become one (mixing.py)."""
    interleave_probs: str | None = parameter(
        None, pattern=SHARES, llamafactory="interleave_probs", swift="interleave_prob"
    )
    """Share of each data set in a mixture, in the order of `dataset`, separated by commas; null: equal shares."""
    template: str | None = parameter(None, pattern=WORDS, llamafactory="template", swift="template")
    cutoff_len: int = parameter(
        4096,
        minimum=8,
        maximum=4_194_304,
        unit="tokens",
        source="guides",
        llamafactory="cutoff_len",
        swift="max_length",
    )
    image_max_pixels: int = parameter(
        451_584,
        minimum=1024,
        maximum=10**9,
        unit="pixels",
        source="guides",
        llamafactory="image_max_pixels",
        swift="max_pixels",
    )
    video_max_pixels: int = parameter(
        16_384, minimum=256, maximum=10**9, unit="pixels", source="guides", llamafactory="video_max_pixels"
    )
    images_per_sample: int = parameter(1, minimum=0, maximum=4096, source="ours")
    """Only for the estimate."""
    samples: int | None = parameter(None, minimum=1, maximum=10**12)
    """Only for the estimate; read on the node when known."""
    samples_from: str | None = parameter(None, pattern=PRINTABLE)
    """Source of `samples`, written together with it; null if a user typed it."""
    sample_tokens: int | None = parameter(None, minimum=1, maximum=10**9, unit="tokens")
    """Tokens of a mean sample before it is cut, for the estimate; null: every sample is as long as cutoff_len. In the
    stage grpo a sample is a prompt.
    """
    precision: Literal["bf16", "fp16", "fp32"] = parameter(
        "bf16", source="guides", llamafactory=("bf16", "fp16"), swift=("torch_dtype", "bf16", "fp16")
    )
    micro_batch_size: int = parameter(
        1,
        minimum=1,
        maximum=4096,
        source="guides",
        llamafactory=("per_device_train_batch_size", "per_device_eval_batch_size"),
        swift_megatron="micro_batch_size",
        swift_trainer=("per_device_train_batch_size", "per_device_eval_batch_size"),
    )
    gradient_accumulation_steps: int = parameter(
        8,
        minimum=1,
        maximum=65_536,
        source="guides",
        llamafactory="gradient_accumulation_steps",
        swift_trainer="gradient_accumulation_steps",
    )
    global_batch_size: int | None = parameter(None, minimum=1, maximum=16_777_216, swift_megatron="global_batch_size")
    """Global batch to keep; accumulation then follows from each plan."""
    num_train_epochs: float = parameter(
        3.0, above=0, maximum=10_000, source="transformers", llamafactory="num_train_epochs", swift="num_train_epochs"
    )
    max_steps: int | None = parameter(
        None,
        minimum=1,
        maximum=10**9,
        llamafactory="max_steps",
        swift_megatron="train_iters",
        swift_trainer="max_steps",
    )
    """Replaces the epochs if set."""
    learning_rate: float = parameter(
        2.0e-5,
        above=0,
        maximum=10,
        source="guides",
        llamafactory="learning_rate",
        swift_megatron="lr",
        swift_trainer="learning_rate",
    )
    learning_rate_batch: int | None = parameter(None, minimum=1, maximum=16_777_216)
    """Global batch that the learning rate was chosen for; null if it is not known."""
    lr_scheduler: Literal[
        "cosine", "linear", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt", "cosine_with_min_lr"
    ] = parameter(
        "cosine",
        source="guides",
        llamafactory="lr_scheduler_type",
        swift_megatron=("lr_decay_style", "min_lr"),
        swift_trainer=("lr_scheduler_type", "lr_scheduler_kwargs"),
    )
    warmup_ratio: float = parameter(
        0.03,
        minimum=0,
        maximum=1,
        source="guides",
        llamafactory=("warmup_ratio", "warmup_steps"),
        swift_megatron=("lr_warmup_fraction", "lr_warmup_iters"),
        swift_trainer=("warmup_ratio", "warmup_steps"),
    )
    weight_decay: float = parameter(
        0.01, minimum=0, maximum=10, source="torch", llamafactory="weight_decay", swift="weight_decay"
    )
    logging_steps: int = parameter(
        1,
        minimum=1,
        unit="steps",
        source="ours",
        llamafactory="logging_steps",
        hugging_face=("include_num_input_tokens_seen", "logging_nan_inf_filter"),
        swift=("logging_steps", "callbacks"),
        swift_trainer=("include_num_input_tokens_seen", "logging_nan_inf_filter"),
    )
    save_steps: int = parameter(
        200, minimum=1, unit="steps", source="ours", llamafactory="save_steps", swift="save_steps"
    )
    save_total_limit: int | None = parameter(
        3, minimum=1, source="ours", llamafactory="save_total_limit", swift="save_total_limit"
    )
    eval_steps: int | None = parameter(
        None,
        minimum=1,
        unit="steps",
        llamafactory=("eval_steps", "eval_strategy"),
        swift="eval_steps",
        swift_trainer="eval_strategy",
    )
    eval_size: float | None = parameter(
        None, above=0, maximum=10**9, llamafactory="val_size", swift="split_dataset_ratio"
    )
    """Held out of the training data for evaluation: a share below 1, or a number of samples. Job files without this
    field may have the engine's key in `extra`.
    """
    eval_dataset: str | None = parameter(None, pattern=WORDS, llamafactory="eval_dataset")
    """Names in dataset_info.json, separated by commas, of data for evaluation. LLaMA-Factory only."""
    packing: bool = parameter(False, source="swift", llamafactory="packing", swift="packing", swift_trainer="attn_impl")
    liger: bool = parameter(
        False, source="llamafactory", hugging_face="enable_liger_kernel", swift_trainer="use_liger_kernel"
    )
    seed: int = parameter(42, minimum=0, maximum=2**31 - 1, source="transformers", llamafactory="seed", swift="seed")
    report_to: tuple[Literal["tensorboard", "wandb", "swanlab", "mlflow"], ...] = parameter(
        ("tensorboard",), source="swift", llamafactory="report_to", swift="report_to"
    )
    ddp_timeout_s: int = parameter(
        1800,
        minimum=60,
        maximum=604_800,
        unit="s",
        source="transformers",
        llamafactory="ddp_timeout",
        swift="ddp_timeout",
    )
    stall_s: int | None = parameter(None, minimum=60, maximum=604_800, unit="s")
    """Stall limit: without a new byte in its log for so long, a node's supervisor saves the ranks' stacks and ends
    them.

    None: STALL_MARGIN_S after the collective time-out (Job.stall_s).
    """
    workers: Workers = field(default_factory=Workers)
    prepare: Prepare = field(default_factory=Prepare)
    dpo: Dpo = field(default_factory=Dpo)
    grpo: Grpo = field(default_factory=Grpo)
    output_dir: str | None = parameter(
        None, pattern=NODE_PATH, llamafactory="output_dir", swift=("output_dir", "add_version")
    )
    """Base folder: the engine writes to <output_dir>/<run id>."""
