"""A job as plain shell scripts that need ssh and LLaMA-Factory, but not Megaboard."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from backend.engines.shell_text import path_word, program_words, setup_line, variable_lines
from backend.job.cluster import Environment, Host
from backend.job.job import Job
from backend.job.launch_rules import environment_of, needs_template
from backend.job.mapping import get_value, with_values

LAUNCH = "launch.sh"

_NODE = """\
#!/usr/bin/env bash
# Node {rank} of {nodes} of the job {name}. Start it in the folder of config.yaml, on every node at about the same time.
set -euo pipefail
cd "$(dirname "$0")"
{setup}export PATH={path}:"$PATH"
export FORCE_TORCHRUN=1 NNODES={nodes} NODE_RANK={rank} NPROC_PER_NODE={ranks}
export MASTER_ADDR={master} MASTER_PORT={port}

# The interface that leads to the master. By default, NCCL and gloo may choose one that the other nodes cannot reach.
if [ -z "${{NCCL_SOCKET_IFNAME:-}}" ] && command -v ip > /dev/null; then
  address=$(getent ahostsv4 "$MASTER_ADDR" | awk 'NR == 1 {{ print $1 }}')
  interface=$(ip -o -4 addr show | awk -v a="${{address:-none}}" '{{ split($4, p, "/"); if (p[1] == a) print $2 }}')
  if [ -z "$interface" ] && [ -n "$address" ]; then
    interface=$(ip -o route get "$address" | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p')
  fi
  interface=${{interface%%$'\\n'*}}
  if [ -n "$interface" ]; then
    export NCCL_SOCKET_IFNAME="=$interface" GLOO_SOCKET_IFNAME="${{GLOO_SOCKET_IFNAME:-$interface}}"
  fi
fi
# Only the ranks get these variables: this shell would refuse or change some names, such as UID.
variables=(
{variables}
)
exec env "${{variables[@]}}" {python} -m {plain}
"""

_ATTACHED = """\
#!/usr/bin/env bash
# attached.sh SCRIPT: runs it, and ends its process group when standard input closes, as it does when ssh is cut.
exec 3<&0
setsid bash "$1" < /dev/null &
job=$!
{ while read -r _ <&3; do :; done; kill -- "-$job"; } 2> /dev/null &
watch=$!
wait "$job"
status=$?
kill "$watch" 2> /dev/null
exit "$status"
"""

_LAUNCH = """\
#!/usr/bin/env bash
# Starts the job {name} on its {nodes} nodes over ssh, writes logs/node<rank>.log here, and waits until it ends.
# When one node fails, or on Ctrl-C, it ends all of them; run it in tmux or screen. Needs log-in by key and known hosts.
# Results: output_dir of config.yaml. A run that finds checkpoints there resumes from them: change it for another run.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
mkdir -p logs
folder={folder} # on the nodes
pids=

each_node() {{
{each}
}}

copy() {{
  local rank=$1
  shift
  for file in {files} attached.sh "node$rank.sh"; do
    ssh -o BatchMode=yes "$@" "mkdir -p $folder && cat > $folder/$file" < "$file" || exit 1
  done
}}

start() {{
  local rank=$1
  shift
  ssh -o BatchMode=yes -o ServerAliveInterval=15 "$@" "bash $folder/attached.sh $folder/node$rank.sh" \\
    > "logs/node$rank.log" 2>&1 <&9 &
  pids="$pids $!"
}}

stop() {{
  trap - INT TERM EXIT
  for pid in $pids; do kill "$pid" 2> /dev/null; done
  wait
  exit "$1"
}}

each_node copy
# Standard input of every ssh: nobody writes to it, and it closes when its ssh ends.
held=$(mktemp -u)
mkfifo -m 600 "$held" && exec 9<> "$held" && rm "$held" || exit 1
trap 'stop 130' INT TERM
trap 'stop 1' EXIT
each_node start
while [ -n "$pids" ]; do
  sleep 1
  left=
  for pid in $pids; do
    if kill -0 "$pid" 2> /dev/null; then
      left="$left $pid"
    else
      wait "$pid" || {{ status=$?; echo "a node ended with status $status; see logs/" >&2; stop "$status"; }}
    fi
  done
  pids=$left
done
trap - EXIT
echo "finished"
"""


_FILL_IN: Mapping[str, str] = {
    "model.path": "/fill-in/model",
    "training.dataset": "fill-in-dataset",
    "training.dataset_dir": "/fill-in/data",
    "training.template": "fill-in-template",
    "training.output_dir": "/fill-in/runs",
}


def with_placeholders(job: Job) -> Job:
    """Return the job with `fill-in` names for missing nodes and paths."""
    needed = [path for path in _FILL_IN if path != "training.template" or needs_template(job)]
    values: dict[str, object] = {path: _FILL_IN[path] for path in needed if get_value(job, path) is None}
    if not job.cluster.hosts and job.cluster.scheduler is None:
        values["cluster.hosts"] = tuple(Host(address=f"fill-in-node{rank}") for rank in range(job.cluster.nodes))
    name = job.traits.environment
    if name not in job.cluster.environments and not any(name in host.environments for host in job.cluster.hosts):
        environment = Environment(python="/fill-in/bin/python")
        values["cluster.environments"] = {**job.cluster.environments, name: environment}
    return with_values(job, values)


def exported_files(job: Job, variables: Mapping[str, str], files: Iterable[str], plain: str) -> dict[str, str]:
    """Return launch.sh and the files that it copies to the nodes besides `files`. `variables` are those of the ranks.

    `plain` is the module that `python -m` starts on a node. The job must have passed check_launch.
    """
    variables = for_plain_scripts(variables)
    scripts = {f"node{rank}.sh": _node_script(job, rank, variables, plain) for rank in range(job.cluster.nodes)}
    return {LAUNCH: _launch_script(job, files), "attached.sh": _ATTACHED, **scripts}


def for_plain_scripts(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that only our entry script reads."""
    return {name: text for name, text in variables.items() if not name.startswith("MEGABOARD_")}


def _node_script(job: Job, rank: int, variables: Mapping[str, str], plain: str) -> str:
    environment = environment_of(job, rank) or Environment(python="python3")
    return _NODE.format(
        rank=rank,
        nodes=job.cluster.nodes,
        name=job.name,
        setup=setup_line(environment.setup),
        path=path_word(str(PurePosixPath(environment.python).parent)),
        variables=variable_lines(variables),
        ranks=job.cluster.gpus_per_node,
        master=shlex.quote(job.cluster.hosts[0].dialled_address),
        port=job.cluster.port_range[0],
        python=program_words(environment.python),
        plain=plain,
    )


def _launch_script(job: Job, files: Iterable[str]) -> str:
    return _LAUNCH.format(
        name=job.name,
        nodes=job.cluster.nodes,
        folder=shlex.quote(path_word(f"{job.cluster.run_root}/plain/{job.name}")),
        files=" ".join(files),
        each="\n".join(f'  "$1" {rank} {_ssh_arguments(host)}' for rank, host in enumerate(job.cluster.hosts)),
    )


def _ssh_arguments(host: Host) -> str:
    arguments = ["-p", str(host.port)]
    if host.proxy_jump:
        arguments += ["-J", shlex.quote(host.proxy_jump)]
    if host.identity_file:
        arguments += ["-i", path_word(host.identity_file)]
    destination = f"{host.user}@{host.address}" if host.user else host.address
    return " ".join([*arguments, "--", shlex.quote(destination)])
