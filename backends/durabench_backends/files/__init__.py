"""Checkpoints as files of a directory: the adapter, its four ways, and what a live directory means for a goal."""

from durabench_backends.files.adapter import Files
from durabench_backends.files.promises import PROMISES, UNKNOWN
from durabench_backends.files.store import FilesStore, file_name, key_of

__all__ = ["PROMISES", "UNKNOWN", "Files", "FilesStore", "file_name", "key_of"]
