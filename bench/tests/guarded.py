"""An S3 server whose secret key the test chooses, loaded by the driver as ``guarded:Guarded``."""

from __future__ import annotations

import os

from durabench_backends.s3 import seaweedfs
from durabench_backends.s3.seaweedfs import SeaweedFS


class Guarded(SeaweedFS):
    def __init__(self, *args):
        seaweedfs.SECRET_KEY = os.environ.get("GUARDED_KEY", "none")
        super().__init__(*args)
