"""Plain scripts that launch without Megaboard."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from backend.engines import export
from backend.job.cluster import Environment, Host
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.job.problems import ProblemsError
from tests.engines.jobs import ddp, job

# Replaces the node's python: it records how it was started.
RECORDER = """\
#!/bin/sh
env -0 > "$(dirname "$0")/environment"
printf '%s\\0' "$PWD" "$@" > "$(dirname "$0")/arguments"
"""


def recording(folder: Path, the_job: Job) -> Job:
    """Return the job with an interpreter in `folder` that only records how it was started."""
    folder.mkdir(parents=True)
    (folder / "python").write_text(RECORDER)
    (folder / "python").chmod(0o700)
    return with_values(the_job, {"cluster.environments": {"llamafactory": Environment(python=f"{folder}/python")}})


def written(folder: Path, the_job: Job) -> Path:
    """Return `folder` with the exported files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in export(the_job).items():
        (folder / name).write_text(text)
    return folder


def read_zero_ended(path: Path) -> list[str]:
    return path.read_text().split("\0")[:-1]


def test_the_same_job_gives_the_same_files() -> None:
    assert export(job()) == export(job())
    assert set(export(job(nodes=2))) == {"config.yaml", "launch.sh", "attached.sh", "node0.sh", "node1.sh"}


def test_results_go_to_a_folder_of_the_jobs_name() -> None:
    assert "output_dir: /runs/tiny\n" in export(ddp())["config.yaml"]


def test_every_script_is_shell(tmp_path: Path) -> None:
    folder = written(tmp_path, job(cluster__hosts=(Host(address="a", identity_file="~/it's mine"), Host(address="b"))))
    for script in folder.glob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)


def test_a_node_script_starts_llamafactorys_own_launcher_with_its_rank(tmp_path: Path) -> None:
    the_job = recording(tmp_path / "bin", job(nodes=3, ranks=4, environment={"NCCL_DEBUG": "WARN"}))
    folder = written(tmp_path / "it", the_job)
    subprocess.run(["bash", folder / "node2.sh"], check=True, cwd="/")
    recorded = read_zero_ended(tmp_path / "bin" / "arguments")
    assert recorded == [str(folder), "-m", "llamafactory.cli", "train", "config.yaml"]
    environment = dict(line.split("=", 1) for line in read_zero_ended(tmp_path / "bin" / "environment"))
    expected = {
        "FORCE_TORCHRUN": "1",
        "NNODES": "3",
        "NODE_RANK": "2",
        "NPROC_PER_NODE": "4",
        "MASTER_ADDR": "10.0.0.1",
    }
    assert expected.items() <= environment.items()
    assert (environment["USE_MCA"], environment["NCCL_DEBUG"]) == ("1", "WARN")
    assert environment["PATH"].startswith(f"{tmp_path}/bin:")


def test_the_interface_towards_the_master_is_looked_up_where_the_script_runs(tmp_path: Path) -> None:
    the_job = recording(tmp_path / "bin", ddp(cluster__hosts=(Host(address="127.0.0.1"), Host(address="10.0.0.2"))))
    subprocess.run(["bash", written(tmp_path / "it", the_job) / "node1.sh"], check=True)
    environment = dict(line.split("=", 1) for line in read_zero_ended(tmp_path / "bin" / "environment"))
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")


HOSTILE = 'it\'s; "$(touch /tmp/never)" `id` 用户 & | > \\ *'


def test_hostile_values_reach_the_ranks_as_they_are(tmp_path: Path) -> None:
    the_job = recording(tmp_path / "x=y $(x) ; '", ddp(environment={"LABEL": HOSTILE, "NCCL_SOCKET_IFNAME": "a b"}))
    subprocess.run(["bash", written(tmp_path / "it", the_job) / "node0.sh"], check=True)
    environment = dict(line.split("=", 1) for line in read_zero_ended(tmp_path / "x=y $(x) ; '" / "environment"))
    assert (environment["LABEL"], environment["NCCL_SOCKET_IFNAME"]) == (HOSTILE, "a b")


def test_ssh_gets_every_host_as_one_word_after_its_options(tmp_path: Path) -> None:
    hosts = (Host(address="a;b", user="-oProxyCommand=x", proxy_jump="u@j:1", identity_file="~/k y"), Host(address="b"))
    folder = written(tmp_path, ddp(cluster__hosts=hosts))
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$*\" >> {shlex.quote(str(tmp_path))}/calls\n")
    sleep = tmp_path / "bin" / "sleep"
    sleep.write_text("#!/bin/sh\nexec /bin/sleep 0.1\n")
    ssh.chmod(0o700)
    sleep.chmod(0o700)
    environment = {**os.environ, "PATH": f"{ssh.parent}:{os.environ['PATH']}", "HOME": "/home/me"}
    subprocess.run(["bash", folder / "launch.sh"], check=True, env=environment, timeout=280)
    calls = (tmp_path / "calls").read_text()
    assert "-p 22 -J u@j:1 -i /home/me/k y -- -oProxyCommand=x@a;b mkdir -p" in calls
    assert 'bash "$HOME"/.megaboard/plain/tiny/attached.sh "$HOME"/.megaboard/plain/tiny/node1.sh' in calls


def test_a_job_without_hosts_cannot_be_exported() -> None:
    with pytest.raises(ProblemsError) as raised:
        export(job(cluster__hosts=()))
    assert [problem.code for problem in raised.value.problems] == ["hosts_not_nodes"]


def test_a_plan_without_a_cluster_is_exported_with_names_to_fill_in() -> None:
    bare, problems = parse_job({"cluster": {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8},
                                "model": {"preset": "qwen3-8b"}})  # fmt: skip
    assert bare is not None, problems
    files = export(bare, placeholders=True)
    assert "model_name_or_path: /fill-in/model\n" in files["config.yaml"]
    assert "-- fill-in-node1\n" in files["launch.sh"]
    assert " /fill-in/bin/python -m llamafactory.cli" in files["node1.sh"]
    with pytest.raises(ProblemsError):
        export(bare)


@pytest.mark.parametrize(("stage", "written"), [("sft", True), ("pt", False)])
def test_a_template_is_filled_in_only_where_the_stage_has_one(stage: str, written: bool) -> None:
    config = export(ddp(training__stage=stage, training__template=None), placeholders=True)["config.yaml"]
    assert ("template: fill-in-template" in config) == written
