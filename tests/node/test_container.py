"""Commands that start containers. Those of podman, apptainer, enroot and GPUs were never run for real."""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from backend.node import container as containers
from backend.node.container import NO_RUNTIME, container_command, mounted_folders, refusal_of


def made(runtime: str, *options: str, **more: Any) -> list[str]:
    container = {"runtime": runtime, "image": "engine:1", "options": options, "mounts": ["/"]}
    return container_command(container, ["python", "-V"], **more)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with an NVIDIA GPU and without InfiniBand. Its home folder is `tmp_path`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOKEN", "secret value")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(containers, "has_nvidia", lambda: True)
    monkeypatch.setattr(containers, "CDI", ())
    return tmp_path


def after(command: list[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(command) if name == option]


def test_docker_keeps_user_network_folder_and_shared_memory(machine: Path) -> None:
    command = made("docker", mark="ab12.0", variables=["TOKEN", "UNSET"])
    assert command[:2] == ["docker", "run"]
    assert command[-3:] == ["engine:1", "python", "-V"]
    assert after(command, "--user") == [f"{os.getuid()}:{os.getgid()}"]
    assert (after(command, "--network"), after(command, "--ipc")) == (["host"], ["host"])
    assert after(command, "--workdir") == [str(machine)]
    assert after(command, "--name") == ["megaboard-ab12.0"]
    assert after(command, "--gpus") == ["all"]
    assert after(command, "--mount") == [f"type=bind,source={machine},target={machine}"]
    assert "--rm" in command
    assert "--interactive" not in command


def test_no_value_of_a_variable_is_in_the_command() -> None:
    for runtime in ("docker", "podman", "apptainer", "enroot"):
        assert "secret value" not in " ".join(made(runtime, variables=["TOKEN"]))


def test_the_mark_of_the_run_is_in_the_container_and_not_in_its_client() -> None:
    assert "MEGABOARD_RUN=ab12.0" in after(made("docker", mark="ab12.0"), "--env")


@pytest.mark.parametrize("option", ["--gpus=2", "--device=nvidia.com/gpu=0"])
def test_gpus_that_the_job_names_are_not_named_again(option: str) -> None:
    command = made("docker", option)
    assert [word for word in command if word.startswith(("--gpus", "--device", "nvidia"))] == [option]


def test_podman_maps_the_user_and_names_gpus_by_cdi() -> None:
    command = made("podman")
    assert after(command, "--device") == ["nvidia.com/gpu=all"]
    assert "--user" not in command
    assert ("--userns" in command) == bool(os.getuid())


def test_infiniband_brings_its_devices_and_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    is_dir = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path == "/dev/infiniband" or is_dir(path))
    command = made("docker")
    assert after(command, "--device") == ["/dev/infiniband"]
    assert after(command, "--ulimit") == ["memlock=-1:-1"]


def test_apptainer_and_enroot_start_processes_of_their_own(machine: Path) -> None:
    folder = str(machine)
    assert made("apptainer") == [
        "apptainer", "exec", "--nv", "--bind", folder, "--pwd", folder, "engine:1", "python", "-V"
    ]  # fmt: skip
    enroot = made("enroot", variables=["TOKEN"])
    assert after(enroot, "--mount") == [f"{folder}:{folder}:none:x-create=dir,rbind"]
    assert {"TOKEN", "HOME"} <= set(after(enroot, "--env"))
    assert enroot[-7:] == ["engine:1", "/bin/sh", "-c", 'cd "$0" && exec "$@"', folder, "python", "-V"]


def test_a_folder_that_is_not_there_yet_brings_its_nearest_parent(machine: Path) -> None:
    data = machine.parent / "data of the test"
    data.mkdir()
    (machine / "models").mkdir()
    paths = ["~/models", str(data / "out" / "runs"), "/nothing/at/all"]
    assert mounted_folders(paths) == sorted([str(machine), str(data)])


def test_a_comma_in_a_folder_separates_nothing(machine: Path) -> None:
    (machine.parent / "a,b").mkdir()
    container = {"runtime": "docker", "image": "i", "options": [], "mounts": [str(machine.parent / "a,b")]}
    folder = machine.parent / "a,b"
    assert f'type=bind,"source={folder}","target={folder}"' in after(container_command(container, ["x"]), "--mount")


def test_a_warning_of_the_runtime_is_no_container_and_no_image(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docker prints a warning for a configuration that it may not read, and goes on."""
    (machine / "docker").write_text(
        "#!/bin/sh\necho 'WARNING: Error loading config file: permission denied' >&2\n"
        'case "$1" in image) echo sha256:abc;; version) echo 20.10;; ps) ;; esac\n'
    )
    (machine / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{machine}:{os.environ['PATH']}")
    assert containers.left_containers({"runtime": "docker"}, "ab12.0") == []
    assert containers.image_facts({"runtime": "docker", "image": "engine:1"}) == {"image": "sha256:abc"}


def test_a_runtime_that_is_not_installed_is_named() -> None:
    status, detail = refusal_of({"runtime": "no-such-runtime", "image": "engine:1"})
    assert status == NO_RUNTIME
    assert "no-such-runtime" in detail
