"""Inventory of a node's software, read by the engine's own Python in one command."""

import base64
import json
import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

from backend.cluster.node import ANSWER_BYTES, Node, NodeError, ask, tail
from backend.cluster.node_group import ends_of_all
from backend.cluster.node_programs import CONTAINER, node_program
from backend.cluster.program_answers.checks import Facts
from backend.cluster.typed_json import answer_of
from backend.job.attention import asks_for_flash_attention_3, may_run_flash_attn, needs_flash_attn
from backend.job.cluster import Container, Environment
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.model.linear_shape import GatedDeltaNet, LightningAttention, ShortConvolution, StateSpace
from backend.job.model.shape import ModelShape
from backend.job.presets import known_model, resolve_gpu
from backend.job.rules.grpo import reward_names
from backend.job.rules.packing import RESETS_STATES
from backend.node.container import NO_DAEMON, NO_IMAGE, NO_RUNTIME

T = TypeVar("T")

SOFTWARE_S = 30.0
PROGRAM = "software.py"

CONTAINER_CODES: Mapping[object, str] = {
    NO_RUNTIME: "container_runtime_missing",
    NO_DAEMON: "container_daemon_silent",
    NO_IMAGE: "container_image_missing",
}
"""Exit status of container.py -> code of the problem."""

# Import name -> distribution.
_COMMON = {"torch": "torch", "transformers": "transformers"}
_ENGINE = {
    "llamafactory": {"llamafactory": "llamafactory"},
    "swift": {"swift": "ms-swift", "datasets": "datasets", "peft": "peft"},
}
_MEGATRON = {"llamafactory": {"mcore_adapter": "mcore-adapter"}, "swift": {}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Source of an installed package. A text is empty where it does not apply."""

    version: str
    url: str = ""
    """The URL that pip installed, if it was not a name."""
    commit: str = ""
    """Commit of a git repository."""
    subdirectory: str = ""
    folder: str = ""
    """Checkout on the node that `pip install -e` installed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """Software of one node. Hardware has its machine."""

    home: str
    """Home folder of the log-in user: `~` on the node."""
    hostname: str
    python: str
    """Version of the engine's interpreter."""
    modules: Mapping[str, str | None] = field(default_factory=dict)
    """Version by import name, with the commit of a git checkout. None: it cannot be imported."""
    metrics: Mapping[str, str | None] = field(default_factory=dict)
    """Versions of the packages of metric_modules. They need not be equal on all nodes, and decide nothing of a run."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """By import name, also of packages that are installed but cannot be imported."""
    cuda: str | None = None
    """CUDA version of torch's build. Empty: built without CUDA. None: not known."""
    nccl: str | None = None
    """Version of the NCCL package that torch loads. None without such a package."""
    has_pip: bool = True
    """Whether the environment has pip. One that uv made has none."""
    interface: str | None = None
    """Network interface of the route to the master. None without a route."""
    machine: str = ""
    """The kernel's boot id, which is equal for nodes that are one machine. Empty without one."""
    clock_offset_s: float = 0.0
    """The node's clock minus the server's."""
    clock_error_s: float = 0.0
    """Error of the offset: half the time that the question took."""

    def versions(self) -> dict[str, str]:
        """Return the versions that are known: Python, the modules, CUDA and NCCL."""
        named = {"Python": self.python, **self.modules, "CUDA": self.cuda, "NCCL": self.nccl}
        return {name: version for name, version in named.items() if version}


def needed_modules(job: Job) -> dict[str, str]:
    """Return the modules that the job's engine imports: import name -> distribution."""
    traits = job.traits
    megatron = {"megatron": "megatron-core", **_MEGATRON[traits.environment]} if traits.is_megatron else {}
    modules = {"transformer_engine": "transformer-engine"} if _builds_transformer_engine(job) else {}
    deepspeed = {"deepspeed": "deepspeed"} if traits.zero_stage else {}
    # megatron-core 0.16.1 ssm/gated_delta_net.py raises ImportError without it, and so do mcore-bridge 1.6.5
    # model/gpts/bailing_hybrid.py and Ling 2.5's own code.
    is_linear = _has_layers(job, LightningAttention) or (traits.is_megatron and _has_layers(job, GatedDeltaNet))
    is_linear = is_linear or _resets_states(job)
    linear = {"fla": "flash-linear-attention"} if is_linear else {}
    images = {"qwen_vl_utils": "qwen-vl-utils"} if traits.environment == "swift" and _is_qwen_with_images(job) else {}
    return {
        **_COMMON,
        **_ENGINE[traits.environment],
        **megatron,
        **modules,
        **deepspeed,
        **linear,
        **images,
        **_reinforcement_modules(job),
    }


def _builds_transformer_engine(job: Job) -> bool:
    """Return whether the model consists of Transformer Engine's modules: Megatron on GPUs.

    Without it, mcore_adapter ends in megatron-core 0.16.1 models/gpt/gpt_layer_specs.py (`NameError: name
    'TESpecProvider' is not defined`), and mcore-bridge 1.6.5 ends when patcher.py imports it.
    """
    return job.traits.is_megatron and not _is_benchmark(job) and resolve_gpu(job.cluster).device != "cpu"


def _resets_states(job: Job) -> bool:
    """Return whether LLaMA-Factory replaces Qwen3.5's linear layers, which ends with an ImportError without
    flash-linear-attention, packed or not (0.9.5 model/patcher.py _check_fla_dependencies)."""
    is_hugging_face = job.traits.environment == "llamafactory" and not job.traits.is_megatron
    if not is_hugging_face or _is_benchmark(job) or not needs_flash_attn(job):
        return False
    return known_model(job.model).model_type in RESETS_STATES


def _is_qwen_with_images(job: Job) -> bool:
    """Return whether ms-swift loads the model with qwen_vl_utils (4.6.0 swift/model/models/qwen.py)."""
    if _is_benchmark(job):
        return False
    shape = known_model(job.model)
    return bool(shape.vision) and shape.model_type.startswith("qwen")


def _reinforcement_modules(job: Job) -> dict[str, str]:
    """Return the modules of ms-swift's preference and GRPO trainers.

    GRPO, and FSDP with a reference model, import msgspec, which ms-swift 4.6.0 does not require
    (rlhf_trainers/utils.py, rlhf_mixin.py). Its rewards `accuracy` and `cosine` import math_verify (rewards/orm.py).
    """
    stage, is_fsdp = job.training.stage, job.traits.is_fsdp
    if job.traits.is_megatron or job.traits.environment != "swift" or stage not in ("dpo", "kto", "grpo"):
        return {}
    trl = {} if stage == "kto" else {"trl": "trl"}
    msgspec = {"msgspec": "msgspec"} if stage == "grpo" or is_fsdp else {}
    if stage != "grpo":
        return {**trl, **msgspec}
    checked = {"math_verify": "math-verify"} if {"accuracy", "cosine"} & set(reward_names(job)) else {}
    vllm = {"vllm": "vllm"} if job.training.grpo.rollout == "vllm" else {}
    return {**trl, **msgspec, **checked, **vllm}


def kernel_modules(job: Job) -> dict[str, str]:
    """Return the modules without which transformers computes some layers slowly: import name -> distribution.

    It then uses plain torch, and loops over the chunks of a sequence or over its tokens (transformers 5.6.0
    `is_fast_path_available` in models/{qwen3_next,qwen3_5,mamba2,falcon_h1,jamba,lfm2}/modeling_*.py). The estimates
    count on the kernels.
    """
    if job.traits.is_megatron or resolve_gpu(job.cluster).device == "cpu":
        return {}
    linear = {"fla": "flash-linear-attention"} if _has_layers(job, GatedDeltaNet) else {}
    state_space = {"mamba_ssm": "mamba-ssm"} if _has_layers(job, StateSpace) else {}
    is_convolved = _has_layers(job, GatedDeltaNet, StateSpace, ShortConvolution)
    convolution = {"causal_conv1d": "causal-conv1d"} if is_convolved else {}
    return {**linear, **state_space, **convolution}


def optional_modules(job: Job) -> dict[str, str]:
    """Return the modules that decide which kernels compute, if they are there: import name -> distribution.

    Of flash-attn's and cuDNN's attention, Transformer Engine chooses one (pytorch/attention/dot_product_attention/
    utils.py get_attention_backend). transformers replaces a FlashAttention 2 that is asked for and not installed by a
    kernel from the hub (5.6.0 modeling_utils.py _check_and_adjust_attn_implementation).
    """
    if _is_benchmark(job) or resolve_gpu(job.cluster).device == "cpu":
        return {}
    third = {"flash_attn_interface": "flash-attn-3"} if asks_for_flash_attention_3(job) else {}
    takes_flash = may_run_flash_attn(job, known_model(job.model).model_type)
    return {**third, **({"flash_attn": "flash-attn"} if takes_flash else {})}


def read_modules(job: Job) -> dict[str, str]:
    """Return all modules whose versions a node is asked for, and which all nodes must share: import name ->
    distribution."""
    return {**needed_modules(job), **kernel_modules(job), **optional_modules(job)}


METRICS: Mapping[str, str] = {"jieba": "jieba", "nltk": "nltk", "rouge_chinese": "rouge-chinese"}
"""What LLaMA-Factory imports to compute BLEU and ROUGE (0.9.5 src/llamafactory/train/sft/metric.py)."""


def metric_modules(job: Job, rank: int) -> Mapping[str, str]:
    """Return the modules that an evaluation of the job's model needs on this node: import name -> distribution.

    Node 0 evaluates.
    """
    is_evaluated = rank == 0 and job.traits.environment == "llamafactory" and job.training.stage == "sft"
    return METRICS if is_evaluated else {}


def _is_benchmark(job: Job) -> bool:
    """Return whether the job has no model, as that of a benchmark of the nodes."""
    return job.model.preset is None and not job.model.hf_config


def _has_layers(job: Job, *mixers: type) -> bool:
    if _is_benchmark(job):
        return False
    shape = known_model(job.model)
    return isinstance(shape, ModelShape) and any(
        isinstance(mixer, mixers) for kind in shape.kinds for mixer in (kind.attention, kind.beside)
    )


def read_software(
    node: Node,
    environment: Environment,
    *,
    master: str | None = None,
    modules: Mapping[str, str] | None = None,
    python_field: str = "cluster.environments",
) -> NodeFacts:
    """Read a node's facts. `master` is the address that all nodes dial.

    Raises NodeError: no_python where the environment's interpreter cannot be run, bad_python where its answer is
    invalid, shell_leaves where the shell ends before it runs.
    """
    started = time.time()
    try:
        answer = ask_software(node, environment, Facts, "facts", {"master": master, "modules": dict(modules or {})})
    except NodeError as error:
        if error.code in CONTAINER_CODES.values():
            error.field = python_field.replace(".python", ".container.image")
        if error.code != "bad_answer":
            raise
        code = "no_python" if error.values["exit"] in (126, 127) else "bad_python"
        if code == "bad_python" and (empty := node.run(["true"], timeout_s=SOFTWARE_S)).code:
            raise NodeError("shell_leaves", node.name, exit=empty.code, detail=tail(empty.err)) from error
        detail = error.values["detail"]
        raise NodeError(code, node.name, field=python_field, python=environment.python, detail=detail) from error
    return _read(answer, modules or {}, started, time.time())


def read_all_software(job: Job, nodes: Mapping[int, Node]) -> dict[int, NodeFacts | NodeError]:
    """Return the facts of every node, or the error, by rank."""
    return ends_of_all(nodes, lambda rank, node: _read_for_job(job, rank, node), SOFTWARE_S + 10)


def read_node_software(job: Job, rank: int, node: Node) -> NodeFacts | NodeError:
    """Return the facts of one node of a job, or the error."""
    try:
        return _read_for_job(job, rank, node)
    except NodeError as error:
        error.rank = rank
        return error


def _read_for_job(job: Job, rank: int, node: Node) -> NodeFacts:
    environment = needed_environment(job, rank, node)
    master = job.cluster.hosts[0].dialled_address if job.cluster.hosts else None
    modules = read_modules(job)
    metrics = metric_modules(job, rank)
    asked = {**modules, **metrics}
    facts = read_software(node, environment, master=master, modules=asked, python_field=python_field(job, rank))
    versions = {name: version for name, version in facts.modules.items() if name in modules}
    return replace(facts, modules=versions, metrics={name: facts.modules[name] for name in metrics})


def needed_environment(job: Job, rank: int, node: Node) -> Environment:
    """Return the environment that answers questions about the job on a node, or raise NodeError(no_environment).

    It is that of the job's engine. If Slurm starts the engine in an image, the login node's own Python answers.
    """
    environment = environment_of(job, rank)
    if environment is not None and job.cluster.scheduler is not None and job.cluster.scheduler.container is not None:
        return Environment(python="python3")
    if environment is None:
        raise NodeError("no_environment", node.name, field=python_field(job, rank), name=job.traits.environment)
    return environment


def python_field(job: Job, rank: int) -> str:
    """Return the job path of the interpreter of node `rank`."""
    name = job.traits.environment
    own = job.cluster.scheduler is None and name in job.cluster.hosts[rank].environments
    return f"cluster.hosts[{rank}].environments.{name}.python" if own else f"cluster.environments.{name}.python"


def ask_software(
    node: Node,
    environment: Environment,
    shape: type[T],
    action: str,
    question: Mapping[str, object],
    timeout_s: float = SOFTWARE_S,
) -> T:
    """Run software.py with the environment's Python and return its answer."""
    return ask_program(node, environment, shape, PROGRAM, action, question, timeout_s)


def ask_program(
    node: Node,
    environment: Environment,
    shape: type[T],
    program: str,
    action: str,
    question: Mapping[str, object],
    timeout_s: float,
    max_bytes: int = ANSWER_BYTES,
) -> T:
    """Run one of our programs on a node and return its answer, a type of program_answers/. Raises NodeError."""
    argv = python_command(environment, ["-", action, one_argument(question)])
    try:
        answer = ask(node, argv, timeout_s=timeout_s, stdin=node_program(program), max_bytes=max_bytes)
    except NodeError as error:
        status, detail = error.values.get("exit"), error.values.get("detail")
        if refused := refused_container(environment, node.name, status, detail):
            raise refused from error
        raise
    return answer_of(node.name, shape, answer)


def refused_container(environment: Environment, node: str, status: object, detail: object) -> NodeError | None:
    """Return the error of a container that cannot start, by the exit status of container.py; None for another one."""
    container, code = environment.container, CONTAINER_CODES.get(status)
    if container is None or code is None:
        return None
    field = "cluster.environments"
    return NodeError(code, node, field=field, runtime=container.runtime, image=container.image, detail=detail)


def one_argument(value: Mapping[str, object]) -> str:
    """Return JSON for a command line. Even in quotes csh expands `!`, and fish reads two backslashes as one."""
    return json.dumps(value).replace("\\\\", "\\u005c").replace("!", "\\u0021")


def python_command(environment: Environment, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `setup` and then Python with these arguments. The node resolves `~/`."""
    command = [environment.python, *arguments]
    if environment.container:
        command = container_command("container-run", environment.container, *command)
    elif environment.python.startswith("~/"):
        command = ["sh", "-c", 'exec "$HOME/$0" "$@"', environment.python[2:], *arguments]
    return with_setup(environment, command)


def with_setup(environment: Environment, command: Sequence[str]) -> list[str]:
    """Return the command behind the environment's `setup`. The node resolves `~/`."""
    if not environment.setup:
        return list(command)
    return ["bash", "-c", '. "${0/#\\~/$HOME}" >&2 && exec "$@"', environment.setup, *command]


def container_command(action: str, container: Container, *arguments: str) -> list[str]:
    """Return the command that calls the program container.py, whose text travels in the command."""
    text = base64.b64encode(node_program(CONTAINER)).decode()
    call = "import base64, sys; exec(base64.b64decode(sys.argv.pop(1))); container_main()"
    return ["python3", "-c", call, text, action, one_argument(asdict(container)), *arguments]


def outside(environment: Environment) -> Environment:
    """Return the environment of our own programs: outside of a container, with the node's python3."""
    return Environment(python="python3", setup=environment.setup) if environment.container else environment


def expand(path: str, home: str) -> str:
    """Return the path with the node's home folder in place of `~`, for a path that no shell of the node reads."""
    return posixpath.join(home, path[2:]) if path.startswith("~/") else path


def _read(answer: Facts, modules: Mapping[str, str], started: float, ended: float) -> NodeFacts:
    return NodeFacts(
        home=answer["home"],
        hostname=answer["hostname"],
        python=answer["python"],
        modules={module: answer["modules"].get(module) for module in modules},
        origins={module: Origin(**origin) for module, origin in answer["origins"].items() if "version" in origin},
        cuda=answer.get("cuda"),
        nccl=answer.get("nccl"),
        has_pip=answer.get("has_pip", True),
        interface=answer.get("interface"),
        machine=answer["machine"],
        clock_offset_s=answer["time"] - (started + ended) / 2,
        clock_error_s=(ended - started) / 2,
    )
