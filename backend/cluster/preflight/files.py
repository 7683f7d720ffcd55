"""Checks of the files and folders that a job needs on each node."""

import posixpath

from backend.cluster.inventory.software import ask_software, needed_environment
from backend.cluster.node import Node
from backend.cluster.preflight.deepspeed_extensions import EXTENSIONS, needed_parts
from backend.cluster.preflight.lock import LOCKS
from backend.cluster.preflight.readings import NodeReadings
from backend.cluster.preflight.results import CheckName, CheckResult
from backend.cluster.program_answers.checks import Paths
from backend.engines.swift import dataset_paths
from backend.job.job import Job
from backend.job.rules.grpo import solution_columns, solution_rewards
from backend.job.trained import named_targets

ASK_S = 30.0


OTHER_LOSSES = ("use_dft_loss", "use_eaft_loss", "use_asft_loss")
"""Keys of LLaMA-Factory that replace the loss of the model."""
PAIRED = ("dpo", "rm")
"""Stages whose rows have a chosen and a rejected answer."""


def ask_paths(job: Job, rank: int, node: Node) -> Paths:
    """Return what a node has of the job's files, folders and compiled parts."""
    question = {
        "model": job.model.path,
        "dataset_dir": job.training.dataset_dir,
        "datasets": data_on_node(job),
        "plain": job.traits.environment == "swift",
        "answers": solution_columns(job),
        "writable": [*run_folders(job), job.training.output_dir],
        "parts": needed_parts(job),
        "extensions": job.environment.get(EXTENSIONS),
        "lora_targets": named_targets(job),
        "own_code": loss_growth(job) > 1,
    }
    return ask_software(node, needed_environment(job, rank, node), Paths, "paths", question, ASK_S)


def check_model(node: NodeReadings) -> list[CheckResult]:
    """Check that the model's folder has a config.json that can be read, and all weight files of its index."""
    path = node.job.model.path
    if not node.paths["model"]:
        return [node.checks.wrong("model", "model_missing", "model.path", path=path)]
    if fault := node.paths.get("config"):
        reason, position = fault["fault"], {"line": fault["line"], "column": fault["column"]}
        source = f"{path}/config.json"
        values = {"source": source, "reason_code": reason, "case": reason, **position}
        return [node.checks.wrong("model", "model_config_broken", "model.path", **values)]
    if lacking := node.paths.get("lacking"):
        return [node.checks.wrong("model", "model_files_missing", "model.path", path=path, files=", ".join(lacking))]
    if unmatched := node.paths.get("unmatched"):
        # A warning, because transformers may give modules other names than the weights have.
        field = "training.lora.targets"
        return [node.checks.warning("model", "lora_targets_unmatched", field, names=", ".join(unmatched), path=path)]
    if undivided := node.paths.get("undivided"):
        values = {"path": path, "model_class": undivided, "factor": loss_growth(node.job)}
        return [node.checks.warning("model", "loss_not_divided", "model.path", **values)]
    return [node.checks.ok("model", path=path)]


def check_dataset(node: NodeReadings) -> list[CheckResult]:
    """Check that every data set has a description, a file, and the columns that the engine reads."""
    checks, dataset, folder = node.checks, node.paths["dataset"], node.job.training.dataset_dir
    if node.job.traits.environment == "swift":
        # Data sets of ms-swift are plain files, or folders of data that it has tokenised.
        if dataset["missing"]:
            values = {"paths": dataset["missing"], "case": "swift"}
            return [checks.wrong("dataset", "dataset_file_missing", "training.dataset", **values)]
        return [_answers(node) or checks.ok("dataset", names=dataset_names(node.job))]
    if not dataset["info"]:
        return [checks.wrong("dataset", "dataset_info_missing", "training.dataset_dir", path=folder)]
    if dataset["unknown"]:
        return [checks.wrong("dataset", "dataset_unknown", "training.dataset", names=dataset["unknown"], path=folder)]
    if dataset["missing"]:
        return [checks.wrong("dataset", "dataset_file_missing", "training.dataset", paths=dataset["missing"])]
    if problem := _unsuited(node):
        code, names = problem
        return [checks.wrong("dataset", code, "training.dataset", names=names, stage=node.job.training.stage)]
    if dataset["columns"]:
        # A warning, because only the first rows were read. A later row may have the column.
        lacking = [f"{name}: {', '.join(columns)}" for name, columns in dataset["columns"].items()]
        return [checks.warning("dataset", "dataset_columns_missing", "training.dataset", columns="; ".join(lacking))]
    return [checks.ok("dataset", names=dataset_names(node.job))]


def _answers(node: NodeReadings) -> CheckResult | None:
    """Return a problem if a row of GRPO's data lacks the right answer that a reward compares with.

    ms-swift 4.6.0 then ends with a TypeError at the first batch that has such a row: rl_core/grpo_algorithm.py gives
    None, or no argument, to the function.
    """
    rows, job = node.paths["dataset"].get("unanswered", {}), node.job
    if not rows:
        return None
    where = "; ".join(f"{path}: {number}" for path, number in rows.items())
    columns, rewards = ", ".join(solution_columns(job)), ", ".join(solution_rewards(job))
    # The file of rewards may replace a function of ms-swift by one that reads other columns.
    report = node.checks.warning if job.training.grpo.plugin else node.checks.wrong
    return report("dataset", "grpo_solution_missing", "training.dataset", rows=where, columns=columns, rewards=rewards)


def _unsuited(node: NodeReadings) -> tuple[str, list[str]] | None:
    """Return why data sets do not suit the stage, and their names.

    LLaMA-Factory 0.9.5 refuses data of the wrong kind (data/loader.py _get_merged_dataset). Without `kto_tag` it drops
    every row of KTO's data (data/processor/feedback.py).
    """
    stage, dataset, names = node.job.training.stage, node.paths["dataset"], dataset_names(node.job)
    ranking = dataset.get("ranking", names if stage in PAIRED else [])
    judged = dataset.get("judged", names)
    if stage in PAIRED and (others := [name for name in names if name not in ranking]):
        return "dataset_without_pairs", others
    if stage not in PAIRED and ranking:
        return "dataset_of_pairs", ranking
    if stage == "kto" and (others := [name for name in names if name not in judged]):
        return "dataset_without_kto_tag", others
    return None


def check_writable(node: NodeReadings) -> list[CheckResult]:
    """Check that the node can write the run folder and the output."""
    job, not_writable = node.job, node.paths["not_writable"]
    folders: tuple[tuple[CheckName, str, tuple[str, ...]], ...] = (
        ("run_root", "cluster.run_root", run_folders(job)),
        ("output_dir", "training.output_dir", (job.training.output_dir or "",)),
    )
    results = []
    for name, field, paths in folders:
        bad = next((path for path in paths if not_writable.get(path)), None)
        detail = not_writable.get(bad or "")
        owner = node.paths.get("foreign", {}).get(paths[0])
        if bad:
            results.append(node.checks.wrong(name, "not_writable", field, path=bad, detail=detail))
        elif owner and name == "run_root":
            results.append(node.checks.warning(name, "run_root_of_other", field, path=paths[0], owner=owner))
        else:
            results.append(node.checks.ok(name, path=paths[0]))
    return results


def loss_growth(job: Job) -> int:
    """Return how many times too large the loss is of a model whose own code returns a mean, although transformers'
    Trainer expects a part of a sum (model_code.py undivided_loss). 1 where the trainer divides it.

    ms-swift 4.6.0 divides it itself (template/base.py compute_sft_loss), as LLaMA-Factory 0.9.5 does for other losses
    (train/sft/trainer.py compute_loss_func, train/dpo/trainer.py).
    """
    training, traits = job.training, job.traits
    is_plain = traits.environment == "llamafactory" and not traits.is_megatron and training.stage in ("pt", "sft")
    if not is_plain or job.extra.get("trust_remote_code") is not True or any(map(job.extra.get, OTHER_LOSSES)):
        return 1
    ranks = job.data_parallel if job.extra.get("average_tokens_across_devices", True) else 1
    return ranks * job.accumulation


def run_folders(job: Job) -> tuple[str, ...]:
    """Return the folders that a run writes besides its output. Another user of the run root may own the locks."""
    return job.cluster.run_root, posixpath.join(job.cluster.run_root, LOCKS)


def data_on_node(job: Job) -> list[str]:
    """Return the names of LLaMA-Factory's data sets, or the paths of ms-swift's."""
    if job.traits.environment == "swift":
        return dataset_paths(job.training.dataset, job.training.dataset_dir)
    return dataset_names(job)


def dataset_names(job: Job) -> list[str]:
    """Return the names of the job's data sets."""
    return [name.strip() for name in (job.training.dataset or "").split(",") if name.strip()]
