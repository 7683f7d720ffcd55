"""Hostile text in every text field of a job: it is refused with its field, or all rendered files keep it, and no shell
that reads it runs a part of it.

A case is one text in one field. The rendered text goes through real shells, hundreds of jobs in each process.
tests/contract/test_quoting.py does this over a real sshd.
"""

import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from backend.cluster.inventory.software import NodeFacts, expand, python_command
from backend.cluster.ssh.channel import command_line
from backend.engines import CONFIG, ENGINES, export, render
from backend.engines.engine import target_of
from backend.engines.environment import merged, shared_variables
from backend.job.cluster import Environment, Host
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.mapping import dump_job, load_job, parse_job, texts_in, with_values
from backend.runs.launch.launch import make_placement, make_records, supervisor_command
from tests.engines.jobs import ddp
from tests.hostile import CANARY, copied, put, refusals, slots, text

SEED = 20_261_121
END = "<end of a case>"
ENGINES_FUZZED = ("llamafactory-ddp", "llamafactory-megatron", "llamafactory-zero3-offload", "swift-megatron")
FACTS = NodeFacts(home="/home/me", hostname="h", python="3.11", interface="eth0")
RUN = "20261121-120000-fuzz-abcd"


def base(engine: str) -> dict[str, Any]:
    """Return a job that can be launched and has an entry in every list and table."""
    name = "swift" if engine.startswith("swift") else "llamafactory"
    environment = {"python": "/p/bin/python", "setup": "/p/setup.sh"}
    host = {"user": "me", "identity_file": "~/k", "proxy_jump": "j", "fabric_address": "f0"}
    return {
        "version": 1,
        "name": "fuzz",
        "engine": engine,
        "cluster": {
            "gpu": "h100-80g",
            "nodes": 2,
            "gpus_per_node": 1,
            "run_root": "/r",
            "environments": {name: dict(environment)},
            "hosts": [{"address": "a0", **host}, {"address": "a1", **host, "environments": {name: dict(environment)}}],
        },
        "model": {"preset": "qwen3-0.6b", "path": "/m", "hf_config": {"model_type": "qwen3"}},
        "training": {"dataset": "d", "dataset_dir": "/d", "template": "t", "output_dir": "/o"},
        "environment": {"LABEL": "x"},
        "extra": {"run_name": "x", "tags": ["x"]},
    }


@dataclass(kw_only=True)
class Fuzzed:
    """Jobs with hostile text in every field that accepts some."""

    cases: int = 0
    refused: int = 0
    jobs: list[Job] = field(default_factory=list)
    unnamed: list[tuple[str, str, list[str]]] = field(default_factory=list)
    """Field, text and what was named, where a text was refused at other fields alone."""


@pytest.fixture(scope="module", params=[1_000, pytest.param(10_000, marks=pytest.mark.e2e)])
def fuzz(request: pytest.FixtureRequest) -> Fuzzed:
    source, fuzzed = random.Random(SEED + request.param), Fuzzed()
    while fuzzed.cases < request.param:
        mapping = base(source.choice(ENGINES_FUZZED))
        changed = copied(mapping)
        # Keys last: until then the paths of the values below them hold.
        for slot in sorted(slots(mapping), key=lambda slot: slot.is_key):
            text_ = text(source, slot.pattern)
            fuzzed.cases += 1
            if not (refused := refusals(changed, slot, text_)):
                put(changed, slot, text_)
                continue
            fuzzed.refused += 1
            if not any(name.startswith(slot.field) for name in refused):
                fuzzed.unnamed.append((slot.field, text_, refused))
        job, problems = parse_job(changed)
        assert job is not None, problems
        fuzzed.jobs.append(job)
    return fuzzed


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return the working folder of the shells. Nothing may appear in it or in their home."""
    for name in ("here", "home"):
        (tmp_path / name).mkdir()
    yield tmp_path
    assert [*(tmp_path / "here").iterdir(), *(tmp_path / "home").iterdir()] == []


def said(shell: str, script: str, folder: Path) -> list[list[str]]:
    """Return the lists of words that a script printed with `say WORD...`."""
    say = f"say() {{ printf '%s\\0' \"$@\" '{END}'; }}\n"
    (folder / "script").write_text(say + script)
    environment = {"HOME": str(folder / "home"), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run([shell, folder / "script"], cwd=folder / "here", env=environment, capture_output=True)
    assert (done.stderr.decode(), done.returncode) == ("", 0)
    words = done.stdout.decode().split("\0")[:-1]
    ends = [number for number, word in enumerate(words) if word == END]
    return [words[start + 1 : end] for start, end in zip([-1, *ends], ends, strict=False)]


def test_a_shell_that_gets_text_unquoted_does_run_it(tmp_path: Path) -> None:
    """The other tests depend on this: unquoted, the canary file appears."""
    (tmp_path / "here").mkdir()
    assert said("sh", f"say a$(>{CANARY})\n", tmp_path) == [["a"]]
    assert [path.name for path in (tmp_path / "here").iterdir()] == [CANARY]


def test_what_is_refused_is_named_by_its_field(fuzz: Fuzzed) -> None:
    assert fuzz.unnamed == []
    # Else the other tests would have nothing to look at.
    assert 0.3 < fuzz.refused / fuzz.cases < 0.7


def test_the_job_file_keeps_every_text(fuzz: Fuzzed) -> None:
    for job in fuzz.jobs:
        again, problems = load_job(dump_job(job).encode().decode())
        assert again == job, problems


def test_the_engines_configuration_keeps_every_text(fuzz: Fuzzed) -> None:
    for job in fuzz.jobs:
        placement = make_placement(job, RUN, 1, {0: FACTS, 1: FACTS}, 29500)
        read = yaml.safe_load(render(job, placement).files[CONFIG].encode().decode())
        config = ENGINES[job.engine].config(target_of(job), f"{(job.training.output_dir or '').rstrip('/')}/{RUN}")
        assert set(texts_in(read)) == set(texts_in(config | dict(job.extra)))
        assert {job.model.path, *texts_in(job.extra)} <= set(texts_in(read))
        written = "\n".join(texts_in(read))
        names = [name.strip() for name in str(job.training.dataset).split(",")]
        # ms-swift gets paths: `a//b` is `a/b` there, and `.` the folder.
        folder = PurePosixPath(job.training.dataset_dir or "")
        assert all(name in written or str(folder / name) in written for name in names)


def test_every_command_reaches_its_node_as_it_was_made(fuzz: Fuzzed, folder: Path) -> None:
    commands = [command for job in fuzz.jobs for command in commands_of(job)]
    lines = [f'set -- {command_line(command, 5)}\nsay "$@"\n' for command in commands]
    assert said("sh", "".join(lines), folder) == [["timeout", "-k", "5", "7", *command] for command in commands]


def commands_of(job: Job) -> Iterator[list[str]]:
    """Yield the commands that a launch runs on the job's nodes: the inventory, the supervisor, torchrun."""
    facts = {0: FACTS, 1: FACTS}
    placement = make_placement(job, RUN, 1, facts, 29500)
    for rank, record in enumerate(make_records(job, placement, facts)):
        environment = environment_of(job, rank)
        assert environment is not None
        yield python_command(environment, ["-", "facts"])
        yield supervisor_command(record, "start")
    for command in render(job, placement).commands:
        yield [*command.argv, *(f"{name}={value}" for name, value in command.environment.items())]


def test_exported_scripts_start_what_the_job_says(fuzz: Fuzzed, folder: Path) -> None:
    script, expected = [], []
    for job in map(without_container, fuzz.jobs):
        for rank in range(2):
            script.append(f"(\n{_STAND_INS}\n{export(job)[f'node{rank}.sh']}\n)\n")
            expected.append(node_words(job, rank, str(folder / "home")))
    assert said("bash", "".join(script), folder) == expected


def without_container(job: Job) -> Job:
    """Return the job as it can be exported."""

    def strip(environments: Mapping[str, Environment]) -> dict[str, Environment]:
        return {name: replace(environment, container=None) for name, environment in environments.items()}

    hosts = tuple(replace(host, environments=strip(host.environments)) for host in job.cluster.hosts)
    return with_values(job, {"cluster.environments": strip(job.cluster.environments), "cluster.hosts": hosts})


_STAND_INS = """
exec() { say "${sourced-}" "${PATH%%:/usr/bin:/bin}" "$MASTER_ADDR" "$@"; }
source() { sourced=$1; }
dirname() { echo .; }
command() { return 1; } # no search for the interface
"""


def node_words(job: Job, rank: int, home: str) -> list[str]:
    environment, target = environment_of(job, rank), target_of(job)
    assert environment is not None
    engine = ENGINES[job.engine]
    python = expand(environment.python, home)
    variables = merged(target, shared_variables(target, engine))
    return [
        expand(environment.setup or "", home),
        str(PurePosixPath(python).parent),
        job.cluster.hosts[0].dialled_address,
        *("env", *(f"{name}={value}" for name, value in variables.items() if not name.startswith("MEGABOARD_"))),
        *("nice", "-n", "0") * ("=" in environment.python),  # env would read it as a variable.
        *(python, "-m", *engine.plain(target).split()),
    ]


def test_the_exported_launcher_hands_ssh_every_host_as_it_is(fuzz: Fuzzed, folder: Path) -> None:
    script, expected, home = [], [], str(folder / "home")
    for job in map(without_container, fuzz.jobs):
        head = export(job)["launch.sh"].partition("\ncopy() {")[0].partition("\nfolder=")[2]
        # The last word is for the shell on the node.
        script.append(f'(\nfolder={head}\nshow() {{ eval "say \\"\\$@\\" $folder/file"; }}\neach_node show\n)\n')
        path = f"{expand(job.cluster.run_root, home)}/plain/{job.name}/file"
        expected += [[str(rank), *ssh_words(host, home), path] for rank, host in enumerate(job.cluster.hosts)]
    assert said("bash", "".join(script), folder) == expected


def ssh_words(host: Host, home: str) -> list[str]:
    words = ["-p", str(host.port), "-J", str(host.proxy_jump), "-i", expand(str(host.identity_file), home)]
    return [*words, "--", f"{host.user}@{host.address}"]


@pytest.mark.parametrize("name", ["UID", "RANDOM", "IFS", "SHELLOPTS", "interface", "address", "_", "PS4", "BASH_ENV"])
def test_a_variable_that_means_something_to_a_shell_reaches_the_ranks_as_it_is(name: str, folder: Path) -> None:
    job = ddp(environment={name: "a/b"})
    script = f"(\n{_STAND_INS}\n{export(job)['node1.sh']}\n)\n"
    assert f"{name}=a/b" in said("bash", script, folder)[0]


@pytest.mark.parametrize("name", [".", ".."])
def test_a_job_is_not_named_like_a_folder_above(name: str) -> None:
    """Exported paths end in the job's name."""
    mapping = base("llamafactory-ddp")
    assert refusals(mapping, next(slot for slot in slots(mapping) if slot.path == ("name",)), name) == ["name"]


@pytest.mark.parametrize("jump", ["-oProxyCommand=id", "a,,b", "a:b:c", "%h", "a b", "u@-x", "u@"])
def test_a_host_in_between_is_no_option_of_ssh(jump: str) -> None:
    mapping = base("llamafactory-ddp")
    slot = next(slot for slot in slots(mapping) if slot.path[-1] == "proxy_jump")
    assert refusals(mapping, slot, jump) == [slot.field]


@pytest.mark.parametrize("home", [False, True])
def test_setup_and_interpreter_are_found_by_their_names_alone(home: bool, tmp_path: Path) -> None:
    source = random.Random(SEED)
    for number in range(8):
        created = {"python": "", "setup": ""}
        for name in created:
            shaped = text(source, None).replace("\0", "").replace("/", "").encode(errors="ignore").decode()[:60]
            folder = tmp_path / str(number) / f"{name}{shaped}"
            folder.mkdir(parents=True)
            created[name] = f"{'~/' if home else f'{tmp_path}/'}{number}/{folder.name}/it"
        _program(tmp_path, created["python"], '#!/bin/sh\nprintf \'%s\\0\' "$FROM_SETUP" "$@"\n')
        _program(tmp_path, created["setup"], "export FROM_SETUP=yes\n")
        line = command_line(python_command(Environment(**created), ["-", "$(>canary)"]), 5)
        environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("yes\0-\0$(>canary)\0", "")
    assert not (tmp_path / CANARY).exists()


def _program(home: Path, path: str, lines: str) -> None:
    file = Path(path.replace("~", str(home), 1) if path.startswith("~/") else path)
    file.write_text(lines)
    file.chmod(0o700)


def test_a_text_that_no_file_can_hold_is_refused() -> None:
    """This is half of a surrogate pair, which YAML can write and UTF-8 cannot."""
    mapping = base("llamafactory-ddp")
    for slot in slots(mapping):
        if not slot.is_key:
            assert refusals(mapping, slot, "/a\ud800"), slot.field
