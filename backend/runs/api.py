"""Types and pure functions that `app` uses with the controller and the database. Their modules are internal."""

from backend.cluster.chat_stream import ChatStream
from backend.cluster.slurm import Partition
from backend.runs.collect.external_run import watched_job
from backend.runs.collect.log_text import decoded
from backend.runs.collect.node_records import stuck_words
from backend.runs.diagnosis.findings import Held, Loaded, Stuck
from backend.runs.diagnosis.fixes import fixes as fixes_of_cause
from backend.runs.diagnosis.gpu_errors import words as gpu_error_words
from backend.runs.evaluations import Evaluation
from backend.runs.evaluations import Result as EvaluationResult
from backend.runs.known_metrics import CLOSED, GROUPS, Described, describe
from backend.runs.launch.derived_start import has_chat
from backend.runs.launch.preflight import PreflightReport, warning_key
from backend.runs.launch.resume import Checkpoints
from backend.runs.launch.slurm_launch import batch_of
from backend.runs.launch.starter import NOT_ACCEPTED
from backend.runs.model_chat import ModelChat
from backend.runs.store.curve_view import END, Curves, State
from backend.runs.store.derived_runs import KINDS as DERIVED
from backend.runs.store.metric_view import Extremes, Metric
from backend.runs.store.metrics import FileKey
from backend.runs.store.queue_order import Move
from backend.runs.store.sizes import KINDS, RunSize, Storage
from backend.runs.store.store import StoreError
from backend.runs.store.utilization import ROWS, Measured, Stretch
from backend.runs.supervise.gang_rules import nothing_left
from backend.runs.supervise.restart import RESTARTS
from backend.runs.tasks.benchmark import Measurement
from backend.runs.tasks.benchmark import calibration_of as calibration_of_benchmark
from backend.runs.tasks.calibration import RunMeasured
from backend.runs.tasks.calibration import calibration_of as calibration_of_run
from backend.runs.tasks.dataset_info import MOST_UPLOAD_BYTES
from backend.runs.tasks.dataset_info import Change as DatasetChange
from backend.runs.tasks.discovery import NodeMemory
from backend.runs.tasks.environment_install import Installed, check_installation, with_python
from backend.runs.tasks.export import Exported
from backend.runs.tasks.file_copy import Missing, find_missing
from backend.runs.tasks.hub_download import Repository, model_repository
from backend.runs.tasks.image_pull import lacks_image
from backend.runs.tasks.wheelhouse import download as download_wheels
from backend.runs.view.history import is_saving
from backend.runs.view.progress import WATCHED

__all__ = [
    "CLOSED",
    "DERIVED",
    "END",
    "GROUPS",
    "KINDS",
    "MOST_UPLOAD_BYTES",
    "NOT_ACCEPTED",
    "RESTARTS",
    "ROWS",
    "WATCHED",
    "ChatStream",
    "Checkpoints",
    "Curves",
    "DatasetChange",
    "Described",
    "Evaluation",
    "EvaluationResult",
    "Exported",
    "Extremes",
    "FileKey",
    "Held",
    "Installed",
    "Loaded",
    "Measured",
    "Measurement",
    "Metric",
    "Missing",
    "ModelChat",
    "Move",
    "NodeMemory",
    "Partition",
    "PreflightReport",
    "Repository",
    "RunMeasured",
    "RunSize",
    "State",
    "Storage",
    "StoreError",
    "Stretch",
    "Stuck",
    "batch_of",
    "calibration_of_benchmark",
    "calibration_of_run",
    "check_installation",
    "decoded",
    "describe",
    "download_wheels",
    "find_missing",
    "fixes_of_cause",
    "gpu_error_words",
    "has_chat",
    "is_saving",
    "lacks_image",
    "model_repository",
    "nothing_left",
    "stuck_words",
    "warning_key",
    "watched_job",
    "with_python",
]
