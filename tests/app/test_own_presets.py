"""Presets that users save: private files with validated names. They are overwritten only on request, and return whole
jobs."""

from types import SimpleNamespace

import pytest

from app.own_presets import delete_preset, own_presets, read_preset, save_preset
from app.services import Draft
from app.wizard.events import change
from app.wizard.sources import fetch
from backend.job.mapping import load_job
from backend.job.problems import ProblemsError
from backend.runs.store.store import Store

SOUND = "name: shared\ncluster: {gpu: h100-80g, nodes: 1, gpus_per_node: 8}\nmodel: {preset: qwen3-8b}\n"
IN_CONTAINER = "{llamafactory: {python: /opt/python, container: {image: a, options: [--env=HF_TOKEN=of-mine]}}}"


@pytest.fixture
def services(tmp_path):
    store = Store(tmp_path / "megaboard.db")
    audited = []
    audit = SimpleNamespace(record=lambda action, **values: audited.append((action, values)), seen=audited)
    yield SimpleNamespace(home=tmp_path, draft=Draft(store, tmp_path), audit=audit)
    store.close()


def codes(problems):
    return [problem.code for problem in problems.problems]


def raised(call, *arguments, **named):
    with pytest.raises(ProblemsError) as error:
        call(*arguments, **named)
    return error.value.problems[0].code


def test_a_preset_is_a_private_file_and_no_temporary_file_is_left(tmp_path):
    save_preset(tmp_path, "8B 全参 v1.2", "a: 1\n")
    (file,) = (tmp_path / "presets").iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == ("8B 全参 v1.2.yaml", 0o600)
    assert (file.parent.stat().st_mode & 0o777, own_presets(tmp_path)) == (0o700, ["8B 全参 v1.2"])


def test_an_existing_preset_is_replaced_only_on_request(tmp_path):
    save_preset(tmp_path, "a", "old")
    assert raised(save_preset, tmp_path, "a", "new") == "preset_exists"
    assert read_preset(tmp_path, "a") == "old"
    save_preset(tmp_path, "a", "new", replace=True)
    assert read_preset(tmp_path, "a") == "new"
    assert (tmp_path / "presets" / "a.yaml").stat().st_mode & 0o777 == 0o600
    assert len(list((tmp_path / "presets").iterdir())) == 1


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "../a", "a/b", "a\\b", "a\nb", " a", "a ", "a.", "x" * 65, "a\0"]
)
def test_a_name_cannot_be_a_path(tmp_path, name):
    for call, *remainder in ((read_preset,), (delete_preset,), (save_preset, "")):
        assert raised(call, tmp_path, name, *remainder) == "bad_preset_name"


def test_a_deleted_preset_is_gone_and_others_stay(tmp_path):
    save_preset(tmp_path, "a", "1")
    save_preset(tmp_path, "b", "2")
    delete_preset(tmp_path, "a")
    assert own_presets(tmp_path) == ["b"]
    assert raised(delete_preset, tmp_path, "a") == raised(read_preset, tmp_path, "a") == "unknown_preset"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "presets").write_text("in the way")
    assert raised(save_preset, tmp_path, "a", "") == "preset_not_written"


def test_the_draft_comes_back_whole_after_other_edits(services):
    change(services, {"name": "mine", "cluster.hosts.lines": "me@10.0.0.1", "environment": "A=b"})
    before = services.draft.job_mapping()
    assert fetch(services, {"kind": "preset_save", "name": " first "}).note == {"name": "first"}
    change(services, {"name": "other", "cluster.nodes": 9, "environment": "", "parallel.tensor": 1})
    change(services, fetch(services, {"kind": "preset", "name": "first"}).edits)
    job, problems = load_job(read_preset(services.home, "first"))
    assert (problems, job.cluster.hosts[0].address, job.environment) == ([], "10.0.0.1", {"A": "b"})
    after = services.draft.job_mapping()
    assert {key: after[key] for key in ("name", "model", "parallel")} == {
        key: before[key] for key in ("name", "model", "parallel")
    }
    assert services.audit.seen == [("save_preset", {"name": "first"})]


def test_a_taken_name_is_reported_and_replaced_after_confirmation(services):
    fetch(services, {"kind": "preset_save", "name": "a"})
    change(services, {"name": "newer"})
    assert codes(fetch(services, {"kind": "preset_save", "name": "a"})) == ["preset_exists"]
    assert codes(fetch(services, {"kind": "preset_save", "name": "a", "replace": "yes"})) == ["preset_exists"]
    assert codes(fetch(services, {"kind": "preset_save", "name": "a", "replace": True})) == []
    assert "newer" in read_preset(services.home, "a")


def test_a_file_is_saved_under_its_own_name_and_the_draft_stays(services):
    before = services.draft.job_mapping()
    assert fetch(services, {"kind": "preset_import", "text": SOUND}).note == {"name": "shared"}
    assert (services.draft.job_mapping(), own_presets(services.home)) == (before, ["shared"])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: [", "not_yaml"),
        ("name: a\ncluster: {nodes: 1}\n", "missing_key"),
        (f"{SOUND}environment: {{HF_TOKEN: of-mine}}\n", "environment_secret"),
        (f"{SOUND}extra: {{run_name: hf_abcdefghijkl}}\n", "extra_secret"),
        (SOUND.replace("8}", f"8, environments: {IN_CONTAINER}}}", 1), "container_secret"),
        ("model_name_or_path: /m\nstage: sft\nfinetuning_type: lora\n", "preset_is_llamafactory"),
    ],
)
def test_a_text_that_is_not_a_job_file_is_not_saved(services, text, code):
    assert code in codes(fetch(services, {"kind": "preset_import", "name": "a", "text": text}))
    assert own_presets(services.home) == []


def test_a_draft_that_cannot_be_read_is_not_saved(services):
    change(services, {"cluster.nodes": "four"})
    assert codes(fetch(services, {"kind": "preset_save", "name": "a"})) == ["wrong_type"]
    assert own_presets(services.home) == []
