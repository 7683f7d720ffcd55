"""What a secret looks like, by its name or by its shape. The checks of a job and the redaction of text share it."""

import re

SHAPES = (
    r"(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[baprs]-)[A-Za-z0-9_\-]{8,}|AKIA[0-9A-Z]{16}"
    r"|wandb_v1_[A-Za-z0-9_]{60,}|ms-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)
"""Patterns of tokens of well-known services.

W&B's new keys, for wandb 0.22.3 and later: https://docs.rs/crate/redact-secret/latest/source/src/detectors/wandb.rs
(which names W&B's own tests) and
https://docs.wandb.ai/support/models/articles/why-does-my-api-key-fail-with-must-be-40-characters (about 86 characters).
ModelScope: https://docs.gitguardian.com/secrets-detection/secrets-detection-engine/detectors/specifics/modelscope_api_key
(a prefix) and clean-secrets.sh of https://github.com/xianyu110/my-awesome-skills (`ms-` and a UUID).
W&B's older keys look like a git commit (40 hex digits), and no source says that SwanLab's keys have a prefix: neither
has a pattern.
"""
VALUE_NAMES = (
    r"(?:password|passphrase|passwd)(?:[_-]hash)?|(?<=[^\W_][_-])pwd"
    r"|secret(?:[_-][\w-]{0,100}(?<!file)(?<!path)(?<!name))?|token|api[_-]?key|access[_-]?key"
)
"""Ends of names whose value is a secret, also if it begins like a path, as a password may. `--pwd` is a folder."""
PLURAL_NAMES = "passwords|passphrases|secrets|api[_-]?keys"
"""Ends of names whose values are secrets in data. In text, such a word stands before names and counts."""
FILE_NAMES = (
    r"private[_-]?key|(?:encryption|decryption|signing|ssh|ssl|tls)[_-]?key|(?-i:(?<=[A-Z0-9])_KEY)|credentials?|creds"
)
"""Ends of names whose value is a secret or the path of a file with one.

Only in capitals, as in a variable, is any other `_KEY` a secret: `sort_key` and `reft_layer_key` name keys of data.
"""
WEBHOOK_NAMES = r"webhook(?:[_-]url)?"
"""Ends of names whose value is an address that holds a token."""
NOT_TOKENS = "(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio)_token"
"""Names of the special tokens of a tokenizer, which are no secrets."""
PATH = r"""~?/[^\s:=+@"'`\\,;&]*"""
"""The path of a file. A secret in base64 that begins with `/` mostly has a `+` or a `=`, too."""
# A number before one of `,;&?#"'\` is the port of an address that ends there. A quote ends an address, but for an
# apostrophe inside a password.
ADDRESS = (
    r"""(?i:(?P<before>://[^\s/:@"'?#,]*:)(?!\d{1,5}[,;&?#"'\\])(?:[^\s/"']|'\w)+@"""
    r"""|(?P<scheme>https?://)(?!git@)[^\s/:@"'?#,]+@)"""
)
"""`user:password@` of any address, up to the last `@`, or a token alone before the `@` of a web address.

`before` and `scheme` are what stands before the secret. The user `git` alone is no token.
"""
_NAME = re.compile(rf"(?is)(?!{NOT_TOKENS}\Z).*(?:{VALUE_NAMES}|{PLURAL_NAMES}|{FILE_NAMES}|{WEBHOOK_NAMES})")
_FILE_NAME = re.compile(rf"(?is).*(?:{FILE_NAMES})")
_PATH = re.compile(PATH)
_ADDRESS = re.compile(ADDRESS)


def is_secret(name: str) -> bool:
    """Return whether the name of a key or a variable is typical of a secret. In text, `KEY=VALUE` is an example."""
    return name == "KEY" or _NAME.fullmatch(name) is not None


def is_file(name: str, value: str) -> bool:
    """Return whether a value is the path of a file, under a name that allows one instead of the secret itself."""
    return _FILE_NAME.fullmatch(name) is not None and _PATH.fullmatch(value) is not None


def has_address(text: str) -> bool:
    """Return whether the text holds an address with a password or a token."""
    return _ADDRESS.search(text) is not None
