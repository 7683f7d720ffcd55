"""Hostile text through a real sshd: 200 texts in the fields that reach a node, up to the environment of the rank.

What a shell makes of our quoting is shown ten thousand times without a network in tests/runs/test_quoting.py; only this
shows the log-in shell, SFTP, the supervisor's own start and `exec`.
"""

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.demo.local_nodes import LocalNodes
from backend.cluster.inventory.software import read_software
from backend.cluster.node import Node
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.node import connect
from backend.engines import render
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.mapping import parse_job
from backend.job.patterns import LOCAL_PATH, NODE_PATH, PRINTABLE, WORDS
from backend.runs.launch import launch
from tests.hostile import CANARY, text
from tests.waiting import wait_for

pytestmark = [pytest.mark.contract, pytest.mark.e2e]

SEED = 7
JOBS = 16

# Stands where the node's Python is: runs our programs by the real one, and in the place of a rank says what it got.
PYTHON = """\
#!/bin/sh
case "$1" in
  -m) env -0 > "$MEGABOARD_SAYS.environment"; printf '%s\\0' "$@" > "$MEGABOARD_SAYS.arguments" ;;
  *) exec {python} "$@" ;;
esac
"""


def test_two_hundred_hostile_texts_reach_the_rank_as_they_are(
    cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path
) -> None:
    source, texts = random.Random(SEED), 0
    for number in range(JOBS):
        folder = tmp_path / str(number)
        job = hostile_job(source, cluster, folder)
        host = job.cluster.hosts[0]
        Path(str(host.identity_file)).symlink_to(cluster.identity_file)
        node = connect(host, known_hosts)
        texts += started_and_heard(node, job, folder)
        node.close()
        assert not [path for path in folder.rglob(CANARY) if path.is_file()]
    assert texts >= 200
    assert not Path.home().joinpath(CANARY).exists()


def hostile_job(source: random.Random, cluster: LocalNodes, folder: Path) -> Job:
    """Return a job of one demo node. Every text of it that reaches the node is hostile."""

    def name(pattern: str) -> str:
        created = text(source, pattern).replace("/", "").replace("\0", "")[:50]
        return created if re.fullmatch(pattern, f"/{created}") and created.strip(".") else "plain"

    def path(pattern: str = NODE_PATH) -> str:
        created = f"{folder}/{name(pattern)}{source.randrange(1000)}/{name(pattern)}{source.randrange(1000)}"
        Path(created).parent.mkdir(parents=True)
        return created

    python, setup, key = path(), path(), path(LOCAL_PATH)
    for file, lines in ((python, PYTHON.format(python=sys.executable)), (setup, "export FROM_SETUP=yes\n")):
        Path(file).write_text(lines)
        Path(file).chmod(0o700)
    host = cluster.hosts()[source.randrange(4)]
    mapping: dict[str, Any] = {
        "name": "fuzz",
        "engine": "llamafactory-ddp",
        "cluster": {
            "gpu": "cpu",
            "nodes": 1,
            "gpus_per_node": 1,
            "run_root": path(),
            "environments": {"llamafactory": {"python": python, "setup": setup}},
            "hosts": [{"address": host.address, "port": host.port, "user": host.user, "identity_file": key}],
        },
        "model": {"preset": "qwen3-0.6b", "path": f"/{name(NODE_PATH)}"},
        "training": {
            "dataset": name(WORDS),
            "dataset_dir": f"/{name(NODE_PATH)}",
            "template": name(WORDS),
            "output_dir": f"/{name(NODE_PATH)}",
            "precision": "fp32",
        },
        "environment": {"LABEL": text(source, PRINTABLE), "UID": text(source, PRINTABLE), "MORE": name(PRINTABLE),
                        "SAYS": "x"},
        "extra": {"run_name": name(PRINTABLE).replace("${", ""), "tags": [name(PRINTABLE).replace("${", "")]},
    }  # fmt: skip
    mapping["environment"] = {k: v if re.fullmatch(PRINTABLE, v) else "it" for k, v in mapping["environment"].items()}
    job, problems = parse_job(mapping)
    assert job is not None, problems
    return job


def started_and_heard(node: Node, job: Job, folder: Path) -> int:
    """Start the job's one rank as a launch does, compare what it received, and return the number of compared texts."""
    environment = environment_of(job, 0)
    assert environment is not None
    facts = {0: read_software(node, environment)}
    placement = launch.make_placement(job, "the-run", 1, facts, 29500)
    rendered = render(job, placement)
    records = launch.make_records(job, placement, facts)
    attempt = launch.Attempt(
        run="the-run", number=1, job=job, placement=placement, rendered=rendered, records=records, grace_s=1.0
    )
    launch.upload(attempt, 0, node)
    home = records[0].folder
    spec = json.loads(node.read(f"{home}/spec.json"))
    spec["environment"]["MEGABOARD_SAYS"] = f"{folder}/said"
    node.write(f"{home}/spec.json", json.dumps(spec).encode())
    launch.start_supervisor(records[0], node)
    wait_for(lambda: node.exists(f"{home}/exit"))
    assert json.loads(node.read(f"{home}/exit"))["code"] == 0, node.read(f"{home}/out.log")
    command = rendered.commands[0]
    assert words(folder / "said.arguments") == list(command.argv[1:])
    got = dict(word.split("=", 1) for word in words(folder / "said.environment"))
    expected = {**command.environment, "FROM_SETUP": "yes"}
    assert {key: got.get(key) for key in expected} == expected
    config = yaml.safe_load(node.read(f"{home}/config.yaml"))
    training = job.training
    output = {
        "model_name_or_path": job.model.path,
        "dataset": training.dataset,
        "dataset_dir": training.dataset_dir,
        "template": training.template,
        **job.extra,
    }
    assert {key: config.get(key) for key in output} == output
    assert str(training.output_dir) in config["output_dir"]
    # The rest: run_root, python, setup, the key.
    return len(output) + len(job.environment) + 4


def words(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\0")[:-1]
