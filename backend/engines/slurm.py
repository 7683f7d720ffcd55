"""Slurm's batch script of a job: what it requests, and one task on each node.

Options: https://slurm.schedmd.com/sbatch.html. The options of a container are those of pyxis
(https://github.com/NVIDIA/pyxis), a plugin of Slurm.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from backend.engines.placement import Rendered
from backend.engines.shell_text import path_word, program_words, setup_line, variable_lines
from backend.job.cluster import Environment
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.presets import resolve_gpu

MASTER_ADDRESS = "MEGABOARD_MASTER_ADDRESS"
MASTER_PORT = "MEGABOARD_MASTER_PORT"
INHERITED = (
    MASTER_ADDRESS, MASTER_PORT, "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
    "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODEID", "SLURMD_NODENAME",
)  # fmt: skip
"""Variables of an allocation that the ranks get: above all the GPUs that Slurm gives them on a shared node."""
BEGAN = "began"
"""File that the batch script writes first. Without it, the node does not see the run root."""
SIGNAL = "signal"
"""File that the batch script writes when Slurm announces the end of the allocation: the seconds that are left."""
LOG = "slurm.log"
SCRIPT = "job.sbatch"
PORTS = 16

_LAUNCH = """\
#!/bin/bash
{options}

folder={folder}
: > "$folder/{began}" || exit 73
MEGABOARD_MASTER_ADDRESS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
for MEGABOARD_MASTER_PORT in {ports}; do
  (exec 3<> "/dev/tcp/127.0.0.1/$MEGABOARD_MASTER_PORT") 2> /dev/null || break # nobody listens
done
export MEGABOARD_MASTER_ADDRESS MEGABOARD_MASTER_PORT

# Slurm announces the end of the allocation: the ranks save a checkpoint and exit.
announce() {{
  squeue -h -j "$SLURM_JOB_ID" -o %L > "$folder/{signal}.part" 2> /dev/null
  mv "$folder/{signal}.part" "$folder/{signal}"
  for node in "$folder"/node*; do : > "$node/control/stop"; done
}}
trap announce USR1 TERM

srun --ntasks-per-node=1 --kill-on-bad-exit=0 --cpu-bind=none{container} \\
  {command} &
step=$!
# A signal interrupts `wait`.
while :; do
  wait "$step"
  status=$?
  kill -0 "$step" 2> /dev/null || break
done
exit "$status"
"""

_EXPORTED = """\
#!/bin/bash
# Submit it in this folder, which every node must see: sbatch {script}
{options}

cd "$SLURM_SUBMIT_DIR" || exit 1
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT={port}
srun --ntasks-per-node=1 --kill-on-bad-exit=1 --cpu-bind=none{container} \\
  bash node.sh
"""

_NODE = """\
#!/usr/bin/env bash
# One node of the job {name}. srun of {script} starts it on every node.
set -euo pipefail
{setup}export PATH={path}:"$PATH"
export FORCE_TORCHRUN=1 NNODES="$SLURM_JOB_NUM_NODES" NODE_RANK="$SLURM_NODEID" NPROC_PER_NODE={ranks}
# Only the ranks get these variables: this shell would refuse or change some names, such as UID.
variables=(
{variables}
)
exec env "${{variables[@]}}" {python} -m {plain}
"""


def request_options(job: Job, name: str, log: str) -> list[str]:
    """Return the #SBATCH lines: what the job requests. Every value matches a pattern without blanks."""
    scheduler, cluster = job.cluster.scheduler, job.cluster
    options: dict[str, object] = {"job-name": name, "nodes": cluster.nodes, "ntasks-per-node": 1, "output": log}
    flags = ["no-requeue"]
    if resolve_gpu(cluster).device != "cpu":
        options["gres"] = f"gpu:{cluster.gpus_per_node}"
    if scheduler is not None:
        for option in ("partition", "account", "qos", "constraint"):
            if value := getattr(scheduler, option):
                options[option] = value
        if scheduler.time_limit_s is not None:
            options["time"] = slurm_time(scheduler.time_limit_s)
        if scheduler.cpus_per_node is not None:
            options["cpus-per-task"] = scheduler.cpus_per_node
        if scheduler.exclusive:
            flags.append("exclusive")
            options["mem"] = 0
        options["signal"] = f"B:USR1@{scheduler.signal_s}"
    return [f"#SBATCH --{name}={value}" for name, value in options.items()] + [f"#SBATCH --{flag}" for flag in flags]


def slurm_time(seconds: int) -> str:
    """Return D-HH:MM:SS."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}"


def batch_script(job: Job, name: str, folder: str, command: Sequence[str], ports: Sequence[int]) -> str:
    """Return the batch script of an attempt: it starts `command` once on each node. `folder`: the attempt's."""
    return _LAUNCH.format(
        options="\n".join(request_options(job, name, f"{folder}/{LOG}")),
        folder=shlex.quote(folder),
        began=BEGAN,
        signal=SIGNAL,
        ports=" ".join(map(str, ports)),
        container=_container_options(job, (folder,)),
        command=shlex.join(command),
    )


def for_allocation(rendered_argv: Sequence[str]) -> tuple[str, ...]:
    """Return torchrun's arguments with the names of the variables that the batch script sets as master."""
    argv = list(rendered_argv)
    for option, variable in (("--master_addr", MASTER_ADDRESS), ("--master_port", MASTER_PORT)):
        argv[argv.index(option) + 1] = variable
    return tuple(argv)


def with_allocation(rendered: Rendered) -> Rendered:
    """Return the commands for nodes that are not known yet."""
    commands = tuple(replace(command, argv=for_allocation(command.argv)) for command in rendered.commands)
    return replace(rendered, commands=commands)


def exported_slurm_files(job: Job, variables: Mapping[str, str], plain: str) -> dict[str, str]:
    """Return the batch script, and the script of each node, for a launch without Megaboard."""
    environment = environment_of(job, 0) or Environment(python="python3")
    script = _EXPORTED.format(
        script=SCRIPT,
        # The engine's own launcher does not save at a signal.
        options="\n".join(
            line for line in request_options(job, job.name, "slurm-%j.log") if not line.startswith("#SBATCH --signal")
        ),
        port=job.cluster.port_range[0],
        container=_container_options(job, ()),
    )
    node = _NODE.format(
        name=job.name,
        script=SCRIPT,
        setup=setup_line(environment.setup),
        path=path_word(environment.python.rpartition("/")[0] or "/"),
        ranks=job.cluster.gpus_per_node,
        variables=variable_lines(variables),
        python=program_words(environment.python),
        plain=plain,
    )
    return {SCRIPT: script, "node.sh": node}


def _container_options(job: Job, folders: Sequence[str]) -> str:
    """Return srun's options for pyxis. The job's folders have the same paths inside."""
    scheduler = job.cluster.scheduler
    if scheduler is None or scheduler.container is None:
        return ""
    paths = (*folders, job.model.path, job.training.dataset_dir, job.training.output_dir)
    mounts = ",".join(dict.fromkeys(f"{path}:{path}" for path in paths if path))
    options = [f"--container-image={scheduler.container}", f"--container-mounts={mounts}"]
    return " " + shlex.join(options)
