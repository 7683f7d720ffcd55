"""The job file's `cluster`: the machines, how to reach them, and measurements of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from backend.job.parameters import parameter
from backend.job.patterns import (
    ADDRESS,
    CONSTANTS,
    DATE,
    IMAGE,
    JUMPS,
    LOCAL_PATH,
    NAME,
    NODE_PATH,
    OPTION,
    RUN,
    SLURM_CONSTRAINT,
    SLURM_NAME,
    SLURM_TIME,
    TRAINING,
    URL,
    USER,
)
from backend.job.traits import EngineName


def host_name(address: str, port: int) -> str:
    """Return the name of a host: its address, and the port if it is not SSH's default."""
    if port == 22:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """A container image on the nodes that has the engine."""

    runtime: Literal["docker", "podman", "apptainer", "enroot"] = parameter("docker", source="ours")
    """Program that starts containers. It runs as the log-in user, without sudo."""
    image: str = parameter(pattern=IMAGE)
    """Name of the image, or for apptainer and enroot the path of its file on the nodes."""
    options: tuple[str, ...] = parameter((), pattern=OPTION)
    """More options of the runtime, such as `--volume=/opt/models:/opt/models:ro`."""
    mounts: tuple[str, ...] = field(default=(), metadata={"hidden": True})
    """The job's folders on the node (launch_rules.environment_of)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """A Python environment on a node that can run one engine."""

    python: str = parameter(pattern=NODE_PATH)
    """Absolute path of its interpreter; inside the container, if there is one."""
    setup: str | None = parameter(None, pattern=NODE_PATH)
    """A shell file on the node that is sourced first (modules, library paths), outside of a container."""
    container: Container | None = parameter(None)
    """The container that the engine runs in. The supervisor runs outside, with the node's python3."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One node; the order of the hosts is the node rank."""

    address: str = parameter(pattern=ADDRESS)
    """Name or IP address that SSH connects to."""
    user: str | None = parameter(None, pattern=USER)
    """Log-in name; null takes that of ~/.ssh/config or the current user."""
    port: int = parameter(22, minimum=1, maximum=65535, source="ssh")
    """SSH port."""
    identity_file: str | None = parameter(None, pattern=LOCAL_PATH)
    """Private key on the machine of the server; null takes the agent and ~/.ssh/config."""
    proxy_jump: str | None = parameter(None, pattern=JUMPS)
    """[user@]host[:port] of a jump host; several with commas between them, the first one first."""
    fabric_address: str | None = parameter(None, pattern=ADDRESS)
    """The address that the other nodes connect to; null takes `address`."""
    environments: Mapping[str, Environment] = parameter(default_factory=dict)
    """Overrides cluster.environments on this node."""
    gpu_memory_gib: float | None = parameter(None, above=0, maximum=4096, unit="GiB")
    """Memory of one of its GPUs, as read on the node. The smallest of all nodes counts. Null takes the cluster's GPU.
    """

    @property
    def name(self) -> str:
        """Return the name of the host: its address, and the port if it is not SSH's default."""
        return host_name(self.address, self.port)

    @property
    def dialled_address(self) -> str:
        """Return the address that the other nodes use for this one."""
        return self.fabric_address or self.address


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """The login node of a scheduler: the only machine that the server connects to."""

    address: str = parameter(pattern=ADDRESS)
    """Name or IP address that SSH connects to."""
    user: str | None = parameter(None, pattern=USER)
    """Log-in name; null takes that of ~/.ssh/config or the current user."""
    port: int = parameter(22, minimum=1, maximum=65535, source="ssh")
    """SSH port."""
    identity_file: str | None = parameter(None, pattern=LOCAL_PATH)
    """Private key on the machine of the server; null takes the agent and ~/.ssh/config."""
    proxy_jump: str | None = parameter(None, pattern=JUMPS)
    """[user@]host[:port] of a jump host; several with commas between them, the first one first."""

    @property
    def host(self) -> Host:
        """Return the login node as a host."""
        return Host(
            address=self.address,
            user=self.user,
            port=self.port,
            identity_file=self.identity_file,
            proxy_jump=self.proxy_jump,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheduler:
    """The batch system that gives the nodes: `nodes` x `gpus_per_node` are requested from it at every launch."""

    kind: Literal["slurm"] = parameter("slurm", source="ours")
    """Slurm is the only one."""
    login: Login
    partition: str | None = parameter(None, pattern=SLURM_NAME)
    """sbatch --partition; null takes the cluster's default."""
    account: str | None = parameter(None, pattern=SLURM_NAME)
    """sbatch --account."""
    qos: str | None = parameter(None, pattern=SLURM_NAME)
    """sbatch --qos."""
    time_limit: str | None = parameter(None, pattern=SLURM_TIME, unit="h")
    """Longest time of one allocation: hours, or D-HH:MM:SS. Null takes the partition's default."""
    constraint: str | None = parameter(None, pattern=SLURM_CONSTRAINT)
    """sbatch --constraint: features of the nodes."""
    exclusive: bool = parameter(True, source="ours")
    """Request whole nodes, with all of their cores and memory."""
    cpus_per_node: int | None = parameter(None, minimum=1, maximum=4096)
    """Cores on each node, for nodes that are shared with other jobs."""
    signal_s: int = parameter(300, minimum=10, maximum=65535, unit="s", source="ours")
    """How long before the end of the allocation the ranks are asked to save a checkpoint."""
    container: str | None = parameter(None, pattern=IMAGE)
    """Image in which Slurm's pyxis plugin runs the ranks; null runs them on the nodes themselves."""

    @property
    def time_limit_s(self) -> int | None:
        """Return the time limit in seconds; None without one."""
        if self.time_limit is None:
            return None
        if "-" not in self.time_limit:
            return max(60, round(float(self.time_limit) * 3600))
        days, clock = self.time_limit.split("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        return max(60, ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Measurements of this cluster, which replace assumptions about such machines; null is not measured.

    A run gives the ratios, the benchmark of the nodes gives the speeds. They hold for the GPU that they were made on.
    """

    gpu: str | Mapping[str, Any] | None = parameter(None, pattern=NAME)
    """The cluster's `gpu` at the time of the measurement."""
    run: str | None = parameter(None, pattern=RUN)
    """Id of the run that gave the ratios."""
    run_date: str | None = parameter(None, pattern=DATE)
    engine: EngineName | None = parameter(None)
    """The run's engine; memory_ratio holds only for this engine."""
    training: str | None = parameter(None, pattern=TRAINING)
    """What the run trained: parameters of the model, method, cutoff_len, and FP8. memory_ratio holds only for this, and
    the intervals are narrower only for this. None: not known, because an older version wrote the file."""
    time_ratio: float | None = parameter(None, minimum=0.01, maximum=100)
    """Measured over estimated seconds of a step: the geometric mean over `time_runs` runs. The estimate uses measured
    speeds if there are any."""
    time_runs: int | None = parameter(None, minimum=1, maximum=1000)
    """None: one run."""
    time_spread: float | None = parameter(None, minimum=0, maximum=10)
    """Standard deviation of the logarithms of the ratios of these runs. None with several runs: not known, because an
    older version wrote the file."""
    constants: str | None = parameter(None, pattern=CONSTANTS)
    """Date and digest of the time model's constants in that estimate; time_ratio holds only for these."""
    memory_ratio: float | None = parameter(None, minimum=0.1, maximum=10)
    """Measured peak that torch reserved, over the estimated peak of its allocator: the mean over `memory_runs` runs."""
    memory_runs: int | None = parameter(None, minimum=1, maximum=1000)
    """None: one run."""
    memory_spread: float | None = parameter(None, minimum=0, maximum=10)
    """The same as time_spread, of the memory."""
    probe_date: str | None = parameter(None, pattern=DATE)
    matmul_tflops: float | None = parameter(None, above=0, maximum=1e6, unit="TFLOP/s")
    """Speed of the best GEMM of one rank: the median over the ranks."""
    matmul_precision: Literal["bf16", "fp16", "fp32"] = parameter("bf16", source="ours")
    """Data type of that GEMM."""
    intra_node_bus_gb_per_s: float | None = parameter(None, above=0, maximum=1e6, unit="GB/s")
    """Bus bandwidth of an all-reduce inside a node: per GPU, one direction."""
    inter_node_bus_gb_per_s: float | None = parameter(None, above=0, maximum=1e6, unit="GB/s")
    """The same across nodes. Every GPU communicates with its counterparts on the other nodes at the same time."""

    def holds_for(self, gpu: str | Mapping[str, Any]) -> bool:
        """Return whether the measurement is of this GPU, as far as it says."""
        return self.gpu is None or self.gpu == gpu


@dataclass(frozen=True, kw_only=True, slots=True)
class Install:
    """How `megaboard install` makes the engine's environment on the nodes."""

    environment: str | None = parameter(None, pattern=NAME)
    """A set of presets/environments.yaml; null takes the one that fits the engine and the GPUs' driver."""
    index_url: str | None = parameter(None, pattern=URL)
    """Mirror of PyPI (PEP 503), without a password; null takes the node's own setting."""
    find_links: str | None = parameter(None, pattern=NODE_PATH)
    """Folder of wheels on the nodes, in addition to the index."""
    offline: bool = parameter(False, source="ours")
    """Take packages only from `find_links`, for nodes without internet."""
    python_download: bool = parameter(False, source="ours")
    """Let uv download a Python into the environment where the node lacks a suitable one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The machines: their figures for planning, and how to reach them."""

    gpu: str | Mapping[str, Any] = parameter(
        pattern=NAME,
        llamafactory=("use_cpu", "ddp_backend"),
        mcore_adapter="transformer_impl",
        swift_trainer=("use_cpu", "ddp_backend"),
    )
    """A key of presets/gpus.yaml, or a mapping {memory_gib, bf16_tflops, hbm_gb_per_s}."""
    nodes: int = parameter(minimum=1, maximum=1024)
    gpus_per_node: int = parameter(minimum=1, maximum=64)
    """Ranks on each node; on CPU nodes, the number of processes."""
    intra_node_gb_per_s: float = parameter(900.0, above=0, unit="GB/s", source="clusters")
    """Vendor figure per GPU, both directions."""
    inter_node_gbit_per_s: float = parameter(400.0, above=0, unit="Gbit/s", source="clusters")
    """One port, one direction."""
    nics_per_node: int = parameter(8, minimum=1, maximum=64, source="clusters")
    host_memory_gib: float | None = parameter(None, above=0, maximum=65_536, unit="GiB")
    """RAM of the smallest node; null if it is not known."""
    outside_gib: float | None = parameter(None, minimum=0, maximum=64, unit="GiB")
    """Memory outside torch's allocator: CUDA context and NCCL. None: computed from the communicators of the plan
    (backend/estimate/memory/non_torch_memory.py)."""
    memory_margin: float = parameter(0.0, minimum=0, maximum=0.9, source="ours")
    """Share of a GPU's memory that plans leave free."""
    stack: Literal["as_run", "tuned"] = parameter("as_run", source="ours")
    """How well the software of the nodes is tuned; it scales all times until a run has calibrated them. as_run: as
    people run an engine, with its data loader, logging, host, clocks and network. tuned: as in the published tables of
    vendors. The factors are in presets/intervals.yaml."""
    port_range: tuple[int, ...] = parameter((29500, 29599), minimum=1024, maximum=65535, source="torch")
    """First and last port that the master may listen on."""
    run_root: str = parameter("~/.megaboard", pattern=NODE_PATH, source="ours")
    """Folder of the run folders on the nodes; may be a shared home."""
    environments: Mapping[str, Environment] = parameter(default_factory=dict)
    """llamafactory or swift -> its environment on the nodes."""
    install: Install = field(default_factory=Install)
    """How `megaboard install` makes an environment."""
    calibration: Calibration = field(default_factory=Calibration)
    """Written by `megaboard calibrate` and `megaboard benchmark`."""
    hosts: tuple[Host, ...] = parameter(())
    """May be empty for planning."""
    spares: tuple[Host, ...] = parameter(())
    """Hosts that wait. They are checked with the hosts, and an automatic restart puts one in the place of a node that
    was lost or whose GPU failed."""
    scheduler: Scheduler | None = parameter(None)
    """A batch system that chooses the nodes; `hosts` stays empty then. Null: the hosts are dialled over SSH."""

    @property
    def connected_hosts(self) -> tuple[Host, ...]:
        """Return the host that the server connects to for each node rank: the node, or the scheduler's login node."""
        return self.hosts if self.scheduler is None else (self.scheduler.login.host,) * self.nodes
