"""Reading of a configuration key by key: the job path of each key, and its value there.

A key without a reader is read by the engine's own table. The job file's own parser has the final decision.
"""

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from backend.engines import ENGINES
from backend.engines.checks import check_passed_on
from backend.engines.engine import Engine, Target
from backend.engines.importing.choose import Choice, ReadFile
from backend.engines.importing.dialect import LAUNCHER, LLAMAFACTORY, Dialect
from backend.engines.importing.readers import Read
from backend.engines.importing.report import ImportLine, because, with_outcome
from backend.engines.known_keys import keys_of, programs
from backend.job.job import Job, Model
from backend.job.mapping import parameters, parse_job
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import Problem, ProblemsError, errors, quoted
from backend.job.secret_patterns import is_secret

_CONSUMED = re.compile(r"deepspeed|fsdp.*|use_mca|USE_MCA|ACCELERATE_USE_FSDP|FSDP_.*")
"""Keys that choose the engine."""
_VISION = ("freeze_vision_tower", "image_max_pixels", "freeze_language_model", "freeze_vit", "freeze_llm", "max_pixels")
"""Keys that only configurations of vision-language models have."""
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")
"""Pattern of an environment variable. Articles list such variables among the keys."""


class Reading:
    """The part of the job that is read so far, and the lines of the report by key."""

    def __init__(
        self,
        choice: Choice,
        config: Mapping[str, Any],
        cluster: Mapping[str, Any],
        dialect: Dialect = LLAMAFACTORY,
        open_keys: Collection[str] = (),
    ) -> None:
        self.open_keys = open_keys
        self.dialect = dialect
        self.name = choice.engine
        self.reasons = choice.reasons
        self.engine: Engine = ENGINES[choice.engine]
        self.config = config
        self.cluster = cluster
        self.values: dict[str, Any] = dict(choice.values)
        self.extra: dict[str, Any] = {}
        self.environment: dict[str, str] = {}
        self.lines: dict[str, ImportLine] = {}

    def take(self, key: str) -> None:
        """Read one key of the file."""
        current_key = self.dialect.renamed.get(key, key)
        line = self._line(current_key, self.config[current_key])
        if current_key != key and line.outcome in ("kept", "changed", "passed_on"):
            reason = line.reason or because("import_renamed", key, today=current_key)
            line = with_outcome(line, "renamed", reason)
        self.lines[key] = replace(line, key=key)

    def _line(self, key: str, value: Any) -> ImportLine:
        line = ImportLine(key=key, outcome="kept", value=None if is_secret(key) else value)
        if key in self.open_keys and not re.fullmatch(LAUNCHER, key):
            return with_outcome(line, "dropped", because("import_open", key, value=quoted(value)))
        if _CONSUMED.fullmatch(key):
            if not value:
                return with_outcome(line, "dropped", because("import_off", key))
            reason = self.reasons.get(key) or because("import_engine", key, engine=self.name)
            return with_outcome(line, "changed", reason, path="engine", became=self.name)
        if key in self.dialect.passed_on:
            return self._other(line)
        if key in self.engine.owned or key in self.dialect.readers:
            return self._owned(line)
        if re.fullmatch(LAUNCHER, key):
            return with_outcome(line, "dropped", because("import_launcher", key))
        if _VARIABLE.fullmatch(key):
            self.environment[key] = str(value)
            return with_outcome(line, "changed", because("import_variable", key), path=f"environment.{key}",
                                became=line.value)  # fmt: skip
        return self._other(line)

    def _owned(self, line: ImportLine) -> ImportLine:
        """Read a key whose value has a path in the job."""
        if line.key in self.dialect.always:
            return line
        read = self._read(line.key, line.value, self.config)
        self.values |= read.values
        own_path = self.engine.owned.get(line.key, "")
        path = own_path if own_path in read.values else next(iter(read.values), None)
        became = read.values.get(path or "")
        if line.key == "finetuning_type" and self.name == "llamafactory-megatron" and line.value != "full":
            # The job is refused until the user decides which value is meant.
            reason = because("import_method_under_megatron", line.key, method=line.value)
            return with_outcome(line, "kept", reason, path=path, became=became)
        if read.reason is None:
            return with_outcome(line, "kept", path=path, became=became)
        return with_outcome(line, "changed" if read.values else "dropped", read.reason, path=path, became=became)

    def _other(self, line: ImportLine) -> ImportLine:
        """Read a key that has no path in the job."""
        value = self.config[line.key]
        if value is None or (value is False and any(re.fullmatch(p, line.key) for p, _ in self.dialect.dropped)):
            return with_outcome(line, "dropped", because("import_off", line.key))
        for pattern, code in self.dialect.dropped:
            if re.fullmatch(pattern, line.key):
                return with_outcome(line, "dropped", because(code, line.key))
        keys = keys_of(self.name)
        if line.key in keys and not _is_plain(value):
            return with_outcome(line, "dropped", because("import_not_read", line.key, value=quoted(value)))
        if line.key in keys:
            self.extra[line.key] = self.config[line.key]
            return with_outcome(line, "passed_on", path=f"extra.{line.key}", became=line.value)
        if any(line.key in program.keys for program in programs().values()):
            return with_outcome(line, "dropped", because("import_not_taken", line.key, engine=self.name))
        similar = difflib.get_close_matches(line.key, keys, n=1, cutoff=0.8)
        if similar:
            return with_outcome(line, "dropped", because("import_unknown_near", line.key, near=similar[0]))
        return with_outcome(line, "dropped", because("import_unknown", line.key))

    def _read(self, key: str, value: Any, config: Mapping[str, Any]) -> Read:
        if reader := self.dialect.readers.get(key):
            try:
                return reader(config, value)
            except (TypeError, ValueError, KeyError, OverflowError):
                return Read(reason=because("import_not_read", key, value=quoted(value)))
        path = self.engine.owned[key]
        return Read(values={path: value})

    def find_shape(self, read_file: ReadFile | None) -> None:
        """Read the shape of a model that is no preset from its folder, if that is available."""
        folder = self.values.get("model.path")
        if not folder or "model.preset" in self.values or read_file is None:
            return
        if shape := read_file(f"{folder}/config.json"):
            self.values["model.hf_config"] = shape

    def correct(self) -> None:
        """Correct or drop what the job file's own parser and the engine's checks refuse."""
        while problems := self._refused():
            for problem in problems:
                self._correct(problem)

    def _refused(self) -> list[Problem]:
        job, problems = parse_job(self.mapping())
        if job is None:
            return errors(problems)
        return [
            problem
            for problem in errors(check_passed_on(job, self.engine))
            if problem.field.startswith(("extra.", "environment."))
        ]

    def _correct(self, problem: Problem) -> None:
        path = re.sub(r"\[\d+\].*", "", problem.field)
        kind, _, name = path.partition(".")
        section = {"extra": self.extra, "environment": self.environment}.get(kind)
        if section is not None and name in section:
            del section[name]
        elif path in self.values:
            if path in problem.edit:
                self.values[path] = problem.edit[path]
            else:
                del self.values[path]
        else:
            raise ProblemsError([problem])
        for key, line in self.lines.items():
            if line.path == path:
                became = self.values.get(path)
                outcome = "changed" if path in self.values else "dropped"
                reason = Problem(code=problem.code, field=key, severity="note", values=problem.values)
                new_path = path if outcome == "changed" else None
                self.lines[key] = with_outcome(line, outcome, reason, path=new_path, became=became)  # type: ignore[arg-type]

    def fill_in(self) -> None:
        """Take the engine's default of every key that the renderer would write and the file lacks."""
        job, _ = parse_job(self.mapping())
        if job is None:
            return
        keys = keys_of(self.name)
        absent = {
            key: keys[key].default
            for key in self.engine.config(_target(job, self.config), "/")
            if key in keys
            and not any(key in known for known in (self.config, self.dialect.always, self.dialect.passed_on))
        }
        if self.name == "llamafactory-megatron":
            # Its workflow never reads the method: it trains all weights, whatever LLaMA-Factory's default is.
            absent |= {"finetuning_type": "full"} if "finetuning_type" in absent else {}
        config = {**absent, **self.config}
        for key, default in absent.items():
            for path, value in self._read(key, default, config).values.items():
                self._fill(key, path, value)

    def _fill(self, key: str, path: str, value: Any) -> None:
        parameter = parameters()[path]
        if value is None and not parameter.optional:
            if parameter.kind != "bool" and not path.startswith("parallel."):
                return
            value = False if parameter.kind == "bool" else parameter.default
        if path in self.values or path in ("model.path", "training.output_dir", "name"):
            return
        self.values[path] = value
        if value != parameter.default:
            self.lines[key] = ImportLine(
                key=key, outcome="default", path=path, became=value, reason=because("import_default", key)
            )

    def mapping(self) -> dict[str, Any]:
        """Return the job file."""
        mapping: dict[str, Any] = {"version": 1, "name": "imported", "cluster": dict(self.cluster)}
        mapping |= {"model": {}, "training": {}, "engine": self.name, "parallel": {}}
        for path, value in self.values.items():
            *parents, last = path.split(".")
            owner = mapping
            for parent in parents:
                owner = owner.setdefault(parent, {})
            owner[last] = list(value) if isinstance(value, tuple) else value
        mapping |= {"environment": self.environment} if self.environment else {}
        # Readers may also send a key to `extra`.
        extra = {**mapping.get("extra", {}), **self.extra}
        return mapping | ({"extra": extra} if extra else {})


def _is_plain(value: Any) -> bool:
    """Return whether JSON can express a value: YAML also has dates, sets and infinity."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _target(job: Job, config: Mapping[str, Any]) -> Target:
    """Return the job for the renderer, with its model, or with a small one of the kind that the file describes."""
    gpu = resolve_gpu(job.cluster)
    try:
        return Target(job=job, shape=resolve_model(job.model), gpu=gpu)
    except ProblemsError:
        has_vision = any(key in config for key in _VISION)
        has_experts = "expert_model_parallel_size" in config
        preset = "qwen3-vl-2b" if has_vision else "qwen3-30b-a3b" if has_experts else "qwen3-0.6b"
        return Target(job=job, shape=resolve_model(Model(preset=preset)), gpu=gpu)
