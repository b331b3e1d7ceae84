"""Power cuts without a machine: a program's file calls are recorded, and a model says what a file system may have lost.

Three steps, each a module that can be read alone:

1. `recorder` runs a program, carries out its file calls below a folder one after the other, and writes them to a log.
   ``python -m durabench_model.recorder ROOT LOG -- CMD…`` is that by hand.
2. `rules` gives the states that are legal at a position of the log under a profile: `posix` or `ext4-ordered`.
3. `folder` lays one state after the other into a folder, where the real reader looks at it.

::

    log = Log.load(path)
    model = Model(log, base, Profile.EXT4)        # base: a copy of the folder from before
    for state in sample(model, count=1000, seed=1):
        laid.take_on(model.build(state))          # laid: a Folder

What such a state shows is *modelled*, never *measured*. The standard library only.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

MARK_FD = 0x3FFFFFFF
"""A write to this number, which is no descriptor, is a mark: an acknowledgement. Unrecorded it fails: EBADF."""
WHERE_FD = MARK_FD - 1
"""A write to this number says where in its source a thread is: ``FILE:LINE``."""


def mark(value: object = None) -> None:
    """Acknowledge: what was written before this call must survive. Nothing happens where nobody records.

    `value` is anything that JSON can hold; TypeError otherwise.
    """
    with suppress(OSError):
        os.write(MARK_FD, json.dumps(value).encode())
