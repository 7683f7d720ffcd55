"""What the page knows of a metric's name: its group, its words and which direction is better."""

import pytest

from app.text import LANGUAGES, catalogue
from backend.runs.known_metrics import GROUPS, KNOWN, describe


@pytest.mark.parametrize(
    ("name", "group", "key", "data", "better"),
    [
        ("eval_loss", "eval", "loss", "", "lower"),
        ("eval_news_loss", "eval", "loss", "news", "lower"),
        ("eval_my_long_set_samples_per_second", "speed", "samples_per_second", "my_long_set", "higher"),
        ("rewards/chosen", "preference", "rewards/chosen", "", None),
        ("eval_rewards/accuracies", "eval", "rewards/accuracies", "", "higher"),
        ("train_loss", "progress", "train_loss", "", "lower"),
        ("mtp_1 loss", "train", "mtp_loss", "", "lower"),
        ("my_team/weather", "my_team", None, "", None),
        ("alpha", "train", None, "", None),
        ("eval_bleu-4", "eval", None, "", "higher"),
        ("eval/", "eval", None, "", None),
    ],
)
def test_a_name_has_its_group_and_its_words(name: str, group: str, key: str, data: str, better: str) -> None:
    described = describe(name)
    assert (described.group, described.key, described.data, described.better) == (group, key, data, better)


def test_known_groups_and_names_come_before_the_others() -> None:
    names = ["zeta/x", "alpha/y", "eval_mine", "runtime", "rewards/chosen", "rewards/margins", "eval_loss", "mine"]
    ordered = sorted(map(describe, names), key=lambda one: one.place)
    expected = [
        "mine",
        "eval_loss",
        "eval_mine",
        "rewards/margins",
        "rewards/chosen",
        "runtime",
        "alpha/y",
        "zeta/x",
    ]
    assert [one.name for one in ordered] == expected


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_known_name_group_and_unit_has_words(lang: str) -> None:
    words = catalogue(lang)
    keys = {f"monitor.metric.{name}" for name in KNOWN} | {f"monitor.metrics.group.{group}" for group in GROUPS}
    keys |= {f"monitor.metrics.unit.{known.unit}" for known in KNOWN.values() if known.unit}
    assert keys <= words.keys()
