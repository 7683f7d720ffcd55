"""Run by a node's python: LLaMA-Factory's own parser over many configurations, in one process as importing it is slow.

stdin: JSON, case -> text of config.yaml. stdout, last line: JSON, case -> {error, warnings, arguments}.
"""

import json
import logging
import sys

import yaml
from llamafactory import hparams
from omegaconf import OmegaConf


class Warnings(logging.Handler):
    """Collects what the engine has to say about a configuration."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def parse(text):
    heard = Warnings()
    loggers = [logging.getLogger(name) for name in ("transformers", "llamafactory", "mcore_adapter")]
    for logger in loggers:
        logger.addHandler(heard)
    try:
        config = yaml.safe_load(text)
        if OmegaConf.to_container(OmegaConf.create(text)) != config:
            return {"error": "PyYAML and OmegaConf differ"}
        # This machine has no GPU: bf16 is refused on it unless it is told that this is meant.
        parsed = hparams.get_train_args({**config, "use_cpu": True})
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        for logger in loggers:
            logger.removeHandler(heard)
    arguments = {
        key: value
        for part in parsed
        for key, value in vars(part).items()
        if isinstance(value, bool | int | float | str | list | dict | None)
    }
    return {"error": None, "warnings": heard.lines, "arguments": arguments}


results = {case: parse(text) for case, text in json.load(sys.stdin).items()}
print("\n" + json.dumps(results, default=str))
