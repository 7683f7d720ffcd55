"""Hubs that models and data sets are downloaded from: the Hugging Face hub (or a mirror), and ModelScope.

Each has the files of one repository. Their packages belong to the engine's environment. Python >= 3.8.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple


class DownloadError(Exception):
    """The download failed. `answer` has the reason as `code`, and what its text needs."""

    def __init__(self, code: str, **values: Any) -> None:
        super().__init__(code, values)
        self.answer = {"code": code, **values}


class RemoteFile(NamedTuple):
    """One file of a repository."""

    path: str
    size: int
    sha256: str | None
    git_id: str | None = None
    """SHA-1 of git for the file. Small files of Hugging Face have only this."""


class HuggingFace:
    """A repository on the Hugging Face hub, or on a server that answers like it."""

    address = "https://huggingface.co"

    def __init__(self, request: dict[str, Any]) -> None:
        import huggingface_hub
        from huggingface_hub import errors

        self._hub: Any = huggingface_hub
        self._errors: Any = errors
        self._name, self._kind = request["id"], request["kind"]
        self._endpoint = request["endpoint"] or None
        self._revision = request["revision"]
        # Version 1 raises the errors of httpx, earlier ones those of requests, which are OSErrors.
        self.faults = (getattr(errors, "HTTPError", OSError), errors.HfHubHTTPError, ValueError, OSError)

    @property
    def page(self) -> str:
        """Return the page where a user accepts the licence."""
        return f"{self._endpoint or self.address}/{'datasets/' if self._kind == 'dataset' else ''}{self._name}"

    def files(self) -> list[RemoteFile]:
        api = self._hub.HfApi(endpoint=self._endpoint)
        info = api.repo_info(self._name, repo_type=self._kind, revision=self._revision, files_metadata=True)
        self._revision = info.sha
        return [_file_of(item) for item in info.siblings or ()]

    def fetch(self, file: RemoteFile, folder: str) -> None:
        self._hub.hf_hub_download(
            self._name,
            file.path,
            repo_type=self._kind,
            revision=self._revision,
            local_dir=folder,
            endpoint=self._endpoint,
        )

    def code_of(self, error: Exception) -> str:
        """Return the code of the problem."""
        if isinstance(error, self._errors.GatedRepoError):
            return "download_gated"
        return "download_not_found" if isinstance(error, self._errors.RepositoryNotFoundError) else "download_failed"


def _file_of(item: Any) -> RemoteFile:
    lfs = getattr(item, "lfs", None)
    sha256 = (lfs.get("sha256") if isinstance(lfs, dict) else lfs.sha256) if lfs else None
    return RemoteFile(item.rfilename, item.size or 0, sha256, None if lfs else item.blob_id)


class ModelScope:
    """A repository on ModelScope."""

    address = "https://modelscope.cn"

    def __init__(self, request: dict[str, Any]) -> None:
        try:
            import modelscope_hub
            from modelscope_hub import errors
        except ImportError as error:
            raise DownloadError("download_no_modelscope", detail=str(error)[:200]) from error
        self._errors: Any = errors
        self._name, self._kind, self._revision = request["id"], request["kind"], request["revision"]
        self._endpoint = request["endpoint"] or self.address
        token = os.environ.get("MODELSCOPE_API_TOKEN") or None
        self._api: Any = modelscope_hub.HubApi(endpoint=self._endpoint, token=token)
        self.faults = (errors.HubError, ValueError, OSError)

    @property
    def page(self) -> str:
        """Return the page where a user asks for access."""
        return f"{self._endpoint}/{self._kind}s/{self._name}"

    def files(self) -> list[RemoteFile]:
        listed = self._api.list_repo_files(self._name, self._kind, revision=self._revision)
        return [RemoteFile(file.path, file.size or 0, file.sha256) for file in listed if file.type != "tree"]

    def fetch(self, file: RemoteFile, folder: str) -> None:
        # The hub's own check of the hash tries three times. Ours follows, as with Hugging Face.
        self._api.download_file(
            self._name, self._kind, file.path, revision=self._revision, local_dir=folder, cache_dir=f"{folder}/.cache"
        )

    def code_of(self, error: Exception) -> str:
        """Return the code of the problem."""
        if isinstance(error, (self._errors.AuthenticationError, self._errors.PermissionDeniedError)):
            return "download_gated"
        return "download_not_found" if isinstance(error, self._errors.NotExistError) else "download_failed"
