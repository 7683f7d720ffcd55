"""The lengths and faults of data sets, as the page shows them."""

import pytest

from app.text import LANGUAGES
from app.wizard.data_preview import has_faults, mean_tokens, shown
from backend.job.cluster import Cluster
from backend.job.job import Job, Model
from backend.job.mapping import with_values


@pytest.fixture
def job() -> Job:
    job = Job(cluster=Cluster(gpu="h100-80g", nodes=1, gpus_per_node=8), model=Model(preset="qwen3-8b"))
    return with_values(job, {"training.cutoff_len": 100, "training.micro_batch_size": 2})


def dataset(**more):
    facts = {"name": "mine", "rows": 4, "read": 4, "is_cut": False, "encoded": 4, "columns": ["a"], "faults": []}
    return {**facts, "duplicates": 0, "duplicate_rows": [], **more}


def test_the_shares_follow_from_the_lengths(job):
    answer = {"datasets": [dataset()], "lengths": [50, 100, 200, 50], "trained": [25, 25, 100, 50], "packs": 3}
    lengths = shown(answer, job, "en")["lengths"]
    assert sum(count for _, _, count in lengths["bars"]) == 4
    assert (lengths["mean"], lengths["longest"], lengths["cut_share"]) == (100, 200, 0.25)
    assert lengths["lost_share"] == pytest.approx(100 / 400)
    assert lengths["trained_share"] == pytest.approx(200 / 400)
    # Micro-batches (50, 100) and (100, 50) are padded to 100: 300 of 400 tokens are not padding.
    assert lengths["padded_share"] == pytest.approx(0.25)
    assert lengths["packing_saves"] == pytest.approx(0.25)
    assert mean_tokens(answer) == 100


def test_without_an_encoded_row_there_are_no_lengths(job):
    assert shown({"datasets": [dataset()], "lengths": [], "trained": []}, job, "en")["lengths"] is None
    assert mean_tokens({"lengths": []}) is None


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    "code", ["column_missing", "media_missing", "media_unreadable", "row_refused", "row_dropped", "nothing_trained"]
)
def test_every_fault_names_its_rows_and_a_fix(job, lang, code):
    fault = {"code": code, "detail": "output", "count": 30, "rows": [(7, ""), (9, "a.png")]}
    answer = {"datasets": [dataset(faults=[fault])], "lengths": []}
    assert has_faults(answer)
    [words] = shown(answer, job, lang)["datasets"][0]["faults"]
    assert "30" in words["words"]
    assert words["fix"]
    assert "7" in words["rows"]
    assert "9 (a.png)" in words["rows"]
