"""Bytes per logit that torch allocates for log-probabilities of DPO and KTO in LLaMA-Factory's own code, on CPU.

    .venv-node/bin/python -m benchmarks.pair_logits

Prints JSON {moment: bytes per logit}. A count of tensors (step_peak.py) misses the copies inside a kernel: log_softmax
copies the logits without the last token of each sequence into a contiguous tensor, on CPU as on CUDA.
"""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from llamafactory.train.kto.trainer import CustomKTOTrainer
from llamafactory.train.trainer_utils import get_batch_logps
from torch.profiler import ProfilerActivity, profile

PAIR, SEQUENCE, VOCABULARY = 2, 256, 8192


def main() -> None:
    """Measure the policy's forward, what autograd saves of it, the reference's forward, and the backward."""
    labels = torch.randint(0, VOCABULARY, (PAIR, SEQUENCE))
    model = torch.randn(PAIR, SEQUENCE, VOCABULARY, dtype=torch.bfloat16, requires_grad=True)

    def judged() -> tuple[torch.Tensor, torch.Tensor]:
        logits = (model * 1).to(torch.float32)
        return logits, get_batch_logps(logits, labels)[0]

    (logits, chances), forward, kept = _allocated(judged)
    with torch.no_grad():
        reference = _allocated(judged)[1]
    # The trainer has computed its metrics by now. Of the logits, only what autograd saves remains.
    kept_for_backward = kept - logits.numel() * 4 / model.numel()
    del logits
    backward = kept_for_backward + _allocated(lambda: chances.sum().backward())[1]
    printed = {"forward": forward, "kept": kept, "reference": reference, "backward": backward}
    print(json.dumps({**printed, "kto": _kto(model, labels)}))


def _kto(weights: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the peak of KTO's forward passes: policy and reference, each with the samples and with the KL batch."""
    batch = {f"{prefix}{name}": labels for prefix in ("", "kl_") for name in ("input_ids", "attention_mask", "labels")}
    batch["kto_tags"] = torch.tensor([True, False])

    def model(**_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=weights * 1)

    trainer = CustomKTOTrainer.__new__(CustomKTOTrainer)
    trainer.ref_model = model

    def judged() -> tuple[Any, ...]:
        policy = trainer.concatenated_forward(model, batch)
        return policy, trainer.compute_reference_log_probs(model, batch)

    return _allocated(judged)[1]


def _allocated(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result of a call, and its bytes per logit at the peak and at the end."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = run()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda item: item.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    logits = PAIR * SEQUENCE * VOCABULARY
    return result, most / logits, now / logits


if __name__ == "__main__":
    main()
