"""The client library and its model of S3, loaded once: importing this takes what would else be paid per process.

A parent that forks drivers imports it, so that a driver makes its client in a fifth of the time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import botocore.client
import botocore.httpsession
import botocore.parsers
import botocore.session
from botocore.config import Config

if TYPE_CHECKING:
    from collections.abc import Mapping

LOADER = botocore.session.Session().get_component("data_loader")
"""Reads the models from disk and keeps them; they never change."""
LOADER.load_service_model("s3", "service-2", None)
LOADER.load_data("endpoints")


def client(config: Mapping[str, Any], options: Mapping[str, Any], *, from_environment: bool) -> Any:
    """A client for S3 that shares the loaded models.

    What ``options`` lack comes from the environment and the user's files, or from nowhere if not ``from_environment``.
    """
    nowhere = {"profile": (None, None, None, None), "config_file": (None, None, os.devnull, None)}
    session = botocore.session.Session(session_vars=None if from_environment else nowhere)
    session.register_component("data_loader", LOADER)
    return session.create_client("s3", config=Config(**config), **options)
