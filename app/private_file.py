"""Files of the operator's that hold secrets: read only where no other user can."""

from pathlib import Path


class PrivateFileError(Exception):
    """A file that cannot be used; `code` and `values` name the words for it (`cli.error.<code>`)."""

    def __init__(self, code: str, **values: object) -> None:
        super().__init__(code)
        self.code = code
        self.values = values


def read_private(path: Path) -> list[str]:
    """A file's lines, stripped; PrivateFileError when it is missing, no text, or open to other users."""
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrivateFileError("private_file_unreadable", path=str(path)) from error
    if mode & 0o077:
        raise PrivateFileError("private_file_open", path=str(path))
    return [line.strip() for line in lines]
