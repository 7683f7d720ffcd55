"""The draft survives the end of a page, and the clusters of the home folder are listed by name."""

import threading

import pytest

from app.home import home_path, make_home, with_cluster
from app.services import FIRST_DRAFT, Draft, Services
from backend.job.mapping import load_mapping, parse_job
from backend.job.problems import ProblemsError
from backend.job.rules import check
from backend.planning import enumerate_plans, recommended


def test_the_first_draft_is_a_job_without_a_problem(store, tmp_path):
    job, problems = parse_job(Draft(store, tmp_path).job_mapping())
    assert problems == []
    assert check(job) == []


def test_the_first_drafts_plan_fits_and_is_nearly_as_fast_as_the_recommended_one(store, tmp_path):
    job, _ = parse_job(Draft(store, tmp_path).job_mapping())
    plans = enumerate_plans(job)
    own, best = plans[plans.rank_of(job)].estimate, plans[recommended(plans)].estimate
    assert own.fit == "fits"
    assert own.tokens_per_s_per_gpu > 0.9 * best.tokens_per_s_per_gpu


def test_an_edit_survives_a_restart(store, tmp_path):
    Draft(store, tmp_path).edit("parallel.tensor", 4)
    Draft(store, tmp_path).edit("name", "名字-run")
    again = Draft(store, tmp_path).job_mapping()
    assert (again["parallel"], again["name"]) == ({**FIRST_DRAFT["parallel"], "tensor": 4}, "名字-run")
    assert again["cluster"] == FIRST_DRAFT["cluster"]


def test_the_draft_shares_no_mapping_with_its_callers(store, tmp_path):
    draft = Draft(store, tmp_path)
    hosts = [{"address": "10.0.0.1"}]
    draft.edit("cluster.hosts", hosts)
    hosts.append({"address": "10.0.0.2"})
    draft.job_mapping()["cluster"]["hosts"].clear()
    assert draft.job_mapping()["cluster"]["hosts"] == [{"address": "10.0.0.1"}]


def test_wrong_values_are_kept_because_the_user_may_still_be_typing(store, tmp_path):
    draft = Draft(store, tmp_path)
    draft.edit_all({"training.micro_batch_size": "x", "model.preset": None})
    assert draft.job_mapping()["training"] == {**FIRST_DRAFT["training"], "micro_batch_size": "x"}
    assert draft.job_mapping()["model"] == {"preset": None}


@pytest.mark.parametrize(
    ("part", "typed", "value"),
    [
        ("environment", {"HF_TOKEN": "typed-by-mistake", "NCCL_DEBUG": "INFO"}, {"NCCL_DEBUG": "INFO"}),
        ("environment", {"NOTE": "hf_typedByMistake"}, {}),
        ("extra", {"hub_token": "typed-by-mistake", "flash_attn": "fa2"}, {"flash_attn": "fa2"}),
        ("environment", "HF_TOKEN=typed-by-mistake: [", None),
        ("environment", "NCCL_DEBUG: [", "NCCL_DEBUG: ["),
    ],
)
def test_a_possible_secret_is_shown_and_not_stored(store, tmp_path, part, typed, value):
    draft = Draft(store, tmp_path)
    draft.edit(part, typed)
    assert draft.job_mapping()[part] == typed
    assert Draft(store, tmp_path).job_mapping().get(part) == value
    assert b"ypedByMistake" not in (text := store.get_draft().encode())
    assert b"typed-by-mistake" not in text


def test_no_edit_of_many_threads_is_lost(store, tmp_path):
    draft = Draft(store, tmp_path)
    threads = [threading.Thread(target=draft.edit, args=(f"extra.key{i}", i)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert load_mapping(store.get_draft())[0]["extra"] == {f"key{i}": i for i in range(20)}


def test_the_first_draft_replaces_an_unreadable_one(store, tmp_path):
    store.set_draft("{ not yaml")
    assert Draft(store, tmp_path).job_mapping() == FIRST_DRAFT


def test_an_edit_inside_a_named_cluster_replaces_the_name_by_the_cluster(store, tmp_path):
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "lab.yaml").write_text("gpu: h20-96g\nnodes: 2\ngpus_per_node: 8\n")
    draft = Draft(store, tmp_path)
    draft.edit("cluster", "lab")
    assert draft.job_mapping()["cluster"] == "lab"
    draft.edit("cluster.nodes", 3)
    assert draft.job_mapping()["cluster"] == {"gpu": "h20-96g", "nodes": 3, "gpus_per_node": 8}


@pytest.mark.parametrize("name", ["nowhere", "../lab", "/etc/passwd", ".hidden", "a/b", ""])
def test_a_cluster_is_read_only_from_its_folder(tmp_path, name):
    (tmp_path / "clusters").mkdir()
    (tmp_path / "lab.yaml").write_text("nodes: 1")
    (tmp_path / "clusters" / ".hidden.yaml").write_text("nodes: 1")
    with pytest.raises(ProblemsError) as error:
        with_cluster({"cluster": name}, tmp_path)
    assert error.value.problems[0].code == "unknown_cluster"


@pytest.mark.parametrize("text", ["[1]", "{", "x", "\xff"])
def test_a_damaged_cluster_file_is_reported_by_name(tmp_path, text):
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "lab.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(ProblemsError) as error:
        with_cluster({"cluster": "lab"}, tmp_path)
    assert error.value.problems[0].code == "bad_cluster_file"


def test_the_home_folder_is_private_and_set_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "a" / "b"))
    home = make_home(home_path())
    assert home == tmp_path / "a" / "b"
    assert home.stat().st_mode & 0o777 == 0o700


def test_services_of_one_home_can_be_opened_twice(tmp_path):
    for _ in range(2):
        services = Services.open(tmp_path)
        services.controller.start()
        services.close()


def test_a_lone_surrogate_from_a_browser_does_not_lose_the_draft(store, tmp_path):
    Draft(store, tmp_path).edit_all({"name": "a\ud83d", "environment": {"\ud800": ["\udfff"]}})
    again = Draft(store, tmp_path).job_mapping()
    assert (again["name"], again["environment"]) == ("a?", {"?": ["?"]})


def test_a_draft_that_is_too_large_to_be_read_again_is_refused(store, tmp_path):
    draft = Draft(store, tmp_path)
    with pytest.raises(ProblemsError) as caught:
        draft.edit("name", "x" * 300_000)
    assert caught.value.problems[0].code == "file_too_large"
    assert draft.job_mapping() == Draft(store, tmp_path).job_mapping()
