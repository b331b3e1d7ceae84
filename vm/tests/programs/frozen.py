"""Records a program, and lets it stand still at positions of its log: ROOT LOG POSITIONS CMD…, POSITIONS as 12,40,99.

Prints `at POSITION` where it stands, and goes on when a line comes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from durabench_model.recorder import Recorder, kill_descendants

recorder = Recorder(Path(sys.argv[1]), Path(sys.argv[2]), do_flushes=True)
pid = recorder.start(sys.argv[4:], output=2, cwd=Path(sys.argv[1]))
for stop in map(int, sys.argv[3].split(",")):
    if pid not in recorder.status and recorder.position < stop:
        recorder.run(pid, stop_at=stop, deadline_s=60)
    if pid in recorder.status:
        break
    print("at", recorder.position, flush=True)
    sys.stdin.readline()
kill_descendants()
recorder.close()
