"""Regular expressions for texts of a job file. Each must match the whole text."""

from backend.job.problems import Problem, quoted

NAME = r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}"
# Characters that end a line for some reader, mean nothing, or cannot be written as UTF-8.
_UNPRINTABLE = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff"
PRINTABLE = rf"[^{_UNPRINTABLE}]*"
# A path on a node is written to YAML and to a shell script, and read by programs that split at blanks (such as
# LLaMA-Factory's launcher). No character that one of them reads as syntax is allowed. Letters of any script are.
NODE_PATH = rf"(/|~/)[^\s{_UNPRINTABLE}'\"`$;&|<>\\*?!(){{}}\[\]#]*"
LOCAL_PATH = rf"[^{_UNPRINTABLE}]+"
_HOST_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?"
# Not fe80::/10: such an address is valid on one link only, and needs an interface name, which differs between nodes.
_IPV6 = r"(?![Ff][Ee][89ABab])(?=[^:]*:[^:]*:)[0-9A-Fa-f:]{2,39}([0-9]{1,3}(\.[0-9]{1,3}){3})?"
ADDRESS = rf"{_HOST_NAME}|{_IPV6}"
USER = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"
_JUMP = rf"({USER}@)?({_HOST_NAME}|\[[0-9A-Fa-f:.]+\])(:\d{{1,5}})?"
JUMPS = rf"{_JUMP}(,{_JUMP})*"
WORDS = rf"[^\s{_UNPRINTABLE}'\"`$;&|<>\\]+"
HUB = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
HUB_ADDRESS = r"https?://[A-Za-z0-9][A-Za-z0-9._-]*(:\d{1,5})?(/[A-Za-z0-9._/-]*)?"
IMAGE = rf"(/|~/|[A-Za-z0-9])[^\s{_UNPRINTABLE}'\"`$;&|<>\\*?!(){{}}\[\]]{{0,300}}"
OPTION = rf"[^{_UNPRINTABLE}'\"`$;&|<>\\!]{{1,300}}"
URL = rf"https?://[^\s{_UNPRINTABLE}'\"`$;&|<>\\]{{1,300}}"
RUN = r"[A-Za-z0-9._-]{1,100}"
LAYOUT = r"[A-Za-z0-9|,*()]{1,400}"
_SHARE = r"(\d{1,6}(\.\d{0,12})?|\.\d{1,12})"
SHARES = rf"{_SHARE}(, ?{_SHARE}){{0,63}}"
DATE = r"\d{4}-\d{2}-\d{2}"
CONSTANTS = DATE + "-[0-9a-f]{8}"
# Parameters of a model, method, cutoff_len, and whether matrix products are in FP8.
TRAINING = r"\d{1,18} (full|lora|qlora|partial) \d{1,9}( fp8)?"
# sbatch reads these from lines of a script, which end at a blank. None may begin like an option.
SLURM_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]{0,127}"
SLURM_CONSTRAINT = r"[A-Za-z0-9_\[(][A-Za-z0-9_.,&|*()\[\]-]{0,127}"
SLURM_TIME = r"[0-9]{1,4}(\.[0-9]{1,2})?|[0-9]{1,3}-[0-9]{2}:[0-9]{2}:[0-9]{2}"

FORMATS = {
    NODE_PATH: "node_path",
    LOCAL_PATH: "local_path",
    ADDRESS: "address",
    USER: "user",
    URL: "url",
    JUMPS: "jumps",
    WORDS: "words",
    NAME: "name",
    RUN: "run",
    HUB: "hub",
    HUB_ADDRESS: "hub_address",
    IMAGE: "image",
    OPTION: "option",
    LAYOUT: "layout",
    SHARES: "shares",
    DATE: "date",
    PRINTABLE: "printable",
    SLURM_NAME: "slurm_name",
    SLURM_CONSTRAINT: "slurm_constraint",
    SLURM_TIME: "slurm_time",
}
"""Pattern -> its name in the catalogues."""


def bad_format(field: str, value: str, pattern: str) -> Problem:
    """Return the problem of a text that does not match its pattern."""
    values = {"value": quoted(value), "pattern": pattern, "format": FORMATS.get(pattern, "words")}
    return Problem(code="bad_format", field=field, values=values)
