"""Speed of enumerating and estimating all legal plans, by cluster size, compared with llm-analysis.

    python -m benchmarks.planning [--largest 1024] [--peer PYTHON] [--json]

- Plans are sorted as far as the page needs them: for its rows and the Pareto front.
- Times are CPU time of one process. The first call is shown apart: it fills caches that only a new model or cluster
  clears. A fixed loop of plain Python makes machines and busy hours comparable.
- `--peer` is the interpreter of an environment with llm-analysis (pip install llm-analysis). It estimates memory and
  time of the same Megatron plans in the same run.
"""

import argparse
import json
import subprocess
import time
from dataclasses import replace
from typing import Any

from backend.estimate import estimate_resolved
from backend.job.cluster import Cluster
from backend.job.job import Job, Model, Parallel
from backend.job.training import Training
from backend.planning import Plans, best_of_splits, enumerate_plans, front
from benchmarks.speed import cpu_seconds, plain_loop

MODELS = ("qwen3-vl-8b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b")
LOOP = 1_000_000
SAMPLE = 200
TARGET_S, LARGE_TARGET_S = 1.0, 3.0
"""Target of CPU time for 32 GPUs and for 1,024."""


def main() -> None:
    """Print the speed of every model and cluster size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=1024, help="GPUs of the largest cluster")
    parser.add_argument("--peer", help="a Python that has llm-analysis")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    loop_s = cpu_seconds(lambda: plain_loop(LOOP), 5)
    sizes = [32 * 2**power for power in range(12) if 32 * 2**power <= chosen.largest]
    rows = [measure(model, 32, loop_s) for model in MODELS]
    rows += [measure(model, gpus, loop_s) for model in MODELS[1:] for gpus in sizes[1:]]
    result = {"loop_s": loop_s, "rows": rows, "alone": one_by_one(loop_s)}
    if chosen.peer:
        result["peer"] = peer(chosen.peer, loop_s)
    print(json.dumps(result, indent=1) if chosen.json else as_text(result))


def job_of(model: str, gpus: int) -> Job:
    """Return a job of full fine-tuning at 4,096 tokens with two samples per GPU and step."""
    return Job(
        cluster=Cluster(gpu="h100-80g", nodes=gpus // 8, gpus_per_node=8),
        model=Model(preset=model),
        training=Training(global_batch_size=2 * gpus, images_per_sample=1),
        parallel=Parallel(tensor=4),
    )


def measure(model: str, gpus: int, loop_s: float) -> dict[str, Any]:
    """Measure one model on one cluster: all engines, sizes, micro-batches and recompute choices."""
    job = job_of(model, gpus)
    begin = time.process_time()
    plans = enumerate_plans(job)
    sort_plans(plans)
    first_s = time.process_time() - begin
    edits = iter(range(1000))

    def again() -> Plans:
        # An edit of the data changes no input of the rules and every input of the figures.
        plans = enumerate_plans(replace(job, training=replace(job.training, cutoff_len=4096 - 8 * next(edits))))
        sort_plans(plans)
        return plans

    seconds = cpu_seconds(again, 5)
    return {
        "model": model,
        "gpus": gpus,
        "plans": len(plans),
        "refused": sum(plans.rejected.values()),
        "first_s": first_s,
        "edit_s": seconds,
        "plans_per_s": len(plans) / seconds,
        "ratio": seconds / loop_s,
    }


def sort_plans(plans: Plans) -> None:
    """Sort the plans that the page's table lists."""
    best_of_splits(plans, 300)
    front(plans, 60)


def one_by_one(loop_s: float) -> dict[str, Any]:
    """Estimate the same plans one by one, by the same formulas with plain numbers."""
    all_plans = enumerate_plans(job_of("llama-3.1-8b", 32))
    step = max(1, len(all_plans) // SAMPLE)
    plans = [all_plans[rank] for rank in range(0, len(all_plans), step)]
    begin = time.process_time()
    for plan in plans:
        estimate_resolved(plan.job, plan.shape, plan.gpu)
    seconds = (time.process_time() - begin) / len(plans)
    return {"plans": len(plans), "plans_per_s": 1 / seconds, "ratio": seconds / loop_s}


PEER = """
import io, json, logging, sys, time
logging.disable(logging.CRITICAL)
from contextlib import redirect_stdout
plans = json.load(sys.stdin)
with redirect_stdout(io.StringIO()):
    from llm_analysis.analysis import LLMAnalysis
    from llm_analysis.config import (DtypeConfig, GPUConfig, ModelConfig, ParallelismConfig)
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO
    model = ModelConfig(name="llama", num_layers=32, n_head=32, hidden_dim=4096, vocab_size=128256, max_seq_len=4096,
                        num_key_value_heads=8, ffn_embed_dim=16384)  # a multiple of hidden_dim
    gpu = GPUConfig(name="h100", mem_per_GPU_in_GB=80, hbm_bandwidth_in_GB_per_sec=3350,
                    intra_node_bandwidth_in_GB_per_sec=450, intra_node_min_message_latency=8e-6,
                    peak_fp16_TFLOPS=989, peak_i8_TFLOPS=1979, peak_i4_TFLOPS=1979,
                    inter_node_bandwidth_in_GB_per_sec=400)
    done = 0
    begin = time.process_time()
    for plan in plans:
        try:
            analysis = LLMAnalysis(model, gpu, DtypeConfig(name="w16a16e16", weight_bits=16, activation_bits=16,
                                   embedding_bits=16),
                                   ParallelismConfig(tp_size=plan["tp"], pp_size=plan["pp"], dp_size=plan["dp"],
                                                     sp_size=plan["tp"]))
            analysis.training(batch_size_per_gpu=plan["mbs"], gradient_accumulation_steps=plan["ga"],
                              seq_len=4096, total_num_tokens=1e9, ds_zero=DSZeRO(1),
                              mlp_gated_linear_units=True)
            done += 1
        except (AssertionError, ValueError):
            pass
    seconds = time.process_time() - begin
print(json.dumps({"done": done, "asked": len(plans), "seconds": seconds}))
"""


def peer(python: str, loop_s: float) -> dict[str, Any]:
    """Return the plans per second of llm-analysis on a sample of the same plans. It refuses some plans as too large."""
    all_plans = enumerate_plans(job_of("llama-3.1-8b", 32), ["llamafactory-megatron"])
    step = max(1, len(all_plans) // SAMPLE)
    sample = [all_plans[rank].job for rank in range(0, len(all_plans), step)]
    plans = [{"tp": job.parallel.tensor, "pp": job.parallel.pipeline, "dp": job.data_parallel,
              "mbs": job.training.micro_batch_size, "ga": job.accumulation} for job in sample]  # fmt: skip
    process = subprocess.run([python, "-c", PEER], input=json.dumps(plans), capture_output=True, text=True, check=False)
    if process.returncode:
        return {"error": process.stderr.strip().splitlines()[-1:]}
    output = json.loads(process.stdout)
    seconds = output["seconds"] / max(1, output["done"])
    return {**output, "plans_per_s": 1 / seconds, "ratio": seconds / loop_s}


def as_text(result: dict[str, Any]) -> str:
    """Return the table as text. A ratio is CPU time over the CPU time of the loop."""
    lines = [
        f"loop of {LOOP:,} multiply-adds: {1e3 * result['loop_s']:.0f} ms of CPU time; ratios are to it",
        f"{'model':16}{'GPUs':>6}{'plans':>11}{'refused':>11}{'first ms':>10}{'edit ms':>9}{'plans/s':>10}{'ratio':>7}",
    ]
    for row in result["rows"]:
        lines.append(
            f"{row['model']:16}{row['gpus']:6}{row['plans']:11,}{row['refused']:11,}{1e3 * row['first_s']:10.0f}"
            f"{1e3 * row['edit_s']:9.0f}{row['plans_per_s']:10,.0f}{row['ratio']:7.2f}"
        )
    lines.append(f"targets: {TARGET_S:.0f} s at 32 GPUs, {LARGE_TARGET_S:.0f} s at 1,024")
    lines.append(f"one by one: {result['alone']['plans_per_s']:,.0f} plans/s over {result['alone']['plans']} plans")
    if (peer_result := result.get("peer")) and "plans_per_s" in peer_result:
        times = result["rows"][1]["plans_per_s"] / peer_result["plans_per_s"]
        lines.append(
            f"llm-analysis: {peer_result['plans_per_s']:,.0f} plans/s over "
            f"{peer_result['done']} of {peer_result['asked']} plans; "
            f"this is {times:,.0f} times as fast"
        )
    elif peer_result:
        lines.append(f"llm-analysis: {peer_result['error']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
