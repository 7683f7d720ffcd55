"""What is known about the names under which trainings log numbers: group, unit, and which direction is better.

The only table of such names. A name that is not in it is shown all the same, in a group of its prefix. Catalogues have
the words: `monitor.metric.KEY`, `monitor.metrics.group.GROUP`. Sources of the names:
- transformers 5.6 src/transformers/trainer.py, trainer_utils.py (speed_metrics)
- LLaMA-Factory 0.9.6 src/llamafactory/train/{dpo,kto,sft,pt}
- TRL trl/trainer/grpo_trainer.py, and ms-swift 4.6.0 swift/rlhf_trainers/grpo_trainer.py, swift/megatron/trainers (the
  same names)
- Megatron-LM megatron/training/training.py (training_log), megatron/core/transformer/moe/moe_utils.py
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

Better = Literal["lower", "higher"] | None

GROUPS = ("train", "eval", "preference", "rollout", "router", "speed", "progress")
"""Known groups in their order. Groups of unknown names follow, by name."""
MARKS = "marks"
"""Group of names that mark steps in charts and have no chart."""
CLOSED = ("speed", "progress")
"""Groups that are closed at first, because their numbers say little about the model."""


class Known(NamedTuple):
    """What is known about a name."""

    group: str
    better: Better = None
    unit: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A name of a metric as the page shows it."""

    name: str
    group: str
    """One of GROUPS, or the prefix of an unknown name."""
    key: str | None
    """Key of the words in the catalogue; None for an unknown name."""
    is_eval: bool
    """Whether it was measured on evaluation data."""
    data: str
    """The data set of the evaluation, if the name has one."""
    unit: str
    better: Better

    @property
    def place(self) -> tuple[object, ...]:
        """Return the sort key: known groups, then the others; in a group, known names in the order of the table."""
        group = GROUPS.index(self.group) if self.group in GROUPS else len(GROUPS)
        return (group, self.group, _PLACES.get(self.key or "", len(KNOWN)), self.data, self.name)


_PREFERENCE: Mapping[str, Known] = {
    "rewards/accuracies": Known("preference", "higher"),
    "rewards/margins": Known("preference", "higher"),
    "rewards/chosen": Known("preference"),
    "rewards/rejected": Known("preference"),
    "logps/chosen": Known("preference"),
    "logps/rejected": Known("preference"),
    "logits/chosen": Known("preference"),
    "logits/rejected": Known("preference"),
    "sft_loss": Known("preference", "lower"),
    "odds_ratio_loss": Known("preference", "lower"),
    "kl": Known("preference"),
}
_ROLLOUT: Mapping[str, Known] = {
    "reward": Known("rollout", "higher"),
    "reward_std": Known("rollout"),
    "entropy": Known("rollout"),
    "completions/mean_length": Known("rollout", unit="tokens"),
    "completions/min_length": Known("rollout", unit="tokens"),
    "completions/max_length": Known("rollout", unit="tokens"),
    "completions/clipped_ratio": Known("rollout"),
    "frac_reward_zero_std": Known("rollout", "lower"),
    "clip_ratio/region_mean": Known("rollout"),
    "step_time": Known("rollout", unit="s"),
}
_ROUTER: Mapping[str, Known] = {
    "load_balancing_loss": Known("router", "lower"),
    "seq_load_balancing_loss": Known("router", "lower"),
    "global_load_balancing_loss": Known("router", "lower"),
    "z_loss": Known("router", "lower"),
}
_MODEL: Mapping[str, Known] = {
    "loss": Known("train", "lower"),
    "accuracy": Known("train", "higher"),
    "perplexity": Known("train", "lower"),
    "mtp_loss": Known("train", "lower"),
}
_SPEED: Mapping[str, Known] = {
    "runtime": Known("speed", unit="s"),
    "samples_per_second": Known("speed", "higher", "samples/s"),
    "steps_per_second": Known("speed", "higher", "steps/s"),
    "model_preparation_time": Known("speed", unit="s"),
    "tokens_per_second": Known("speed", "higher", "tokens/s"),
    "effective_tokens_per_sec": Known("speed", "higher", "tokens/s"),
    "throughput": Known("speed", "higher", "tokens/s"),
}
_PROGRESS: Mapping[str, Known] = {
    "train_loss": Known("progress", "lower"),
    "total_flos": Known("progress", unit="FLOPs"),
    "num_input_tokens_seen": Known("progress", unit="tokens"),
    "consumed samples": Known("progress", unit="samples"),
    "global batch size": Known("progress", unit="samples"),
    "loss scale": Known("progress"),
    "params norm": Known("progress"),
    "num zeros": Known("progress"),
    "number of skipped iterations": Known("progress", "lower"),
    "number of nan iterations": Known("progress", "lower"),
}
_MARKS: Mapping[str, Known] = {
    "checkpoint": Known(MARKS),
}
"""entry.py logs `checkpoint` when a checkpoint was saved."""
KNOWN: Mapping[str, Known] = {**_MARKS, **_MODEL, **_PREFERENCE, **_ROLLOUT, **_ROUTER, **_SPEED, **_PROGRESS}
_PLACES = {name: position for position, name in enumerate(KNOWN)}

_OF_DATA = re.compile(rf"(.+)_({'|'.join(map(re.escape, sorted(KNOWN, key=len, reverse=True)))})")
"""eval_NAME_loss: the loss on one of several evaluation data sets."""
_MTP = re.compile(r"mtp_\d+ loss")


def describe(name: str) -> Described:
    """Return what is known about a name."""
    for prefix in ("eval_", "eval/", "train_", "train/"):
        if name.startswith(prefix) and name not in KNOWN:
            base, is_eval, data = name.removeprefix(prefix), prefix.startswith("eval"), ""
            match = None if base in KNOWN else _OF_DATA.fullmatch(base)
            if match and is_eval:
                data, base = match[1], match[2]
            return _described(name, base, is_eval, data, prefix[:-1])
    return _described(name, "mtp_loss" if _MTP.fullmatch(name) else name, False, "", _prefix(name))


def _described(name: str, base: str, is_eval: bool, data: str, prefix: str) -> Described:
    known = KNOWN.get(base)
    group = prefix if known is None else known.group
    if is_eval and group not in CLOSED:
        group = "eval"
    return Described(
        name=name,
        group=group,
        key=None if known is None else base,
        is_eval=is_eval,
        data=data,
        unit=known.unit if known else "",
        better=known.better if known else _guess(base),
    )


def _prefix(name: str) -> str:
    """Return the part before the first slash, or `train` for a name without one."""
    prefix, slash, _ = name.partition("/")
    return prefix if slash else "train"


def _guess(name: str) -> Better:
    if re.search(r"loss|perplexity|error", name):
        return "lower"
    return "higher" if re.search(r"accurac|reward|bleu|rouge|score", name) else None
