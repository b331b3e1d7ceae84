"""Inputs that somebody else could have made: small changes of good ones, drawn from a seed, to be seen again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from typing import TYPE_CHECKING

from durabench import cli, outside
from durabench.cli.screen import COULD_NOT_TELL, USAGE

if TYPE_CHECKING:
    from random import Random

TIMES = int(os.environ.get("DURABENCH_FUZZ", "1"))
"""So many times as many inputs as usual."""
LONGEST_S = 20.0
"""Of one input. On a busy machine a good one takes a hundredth of it."""
ODD = (
    *(None, True, False, 0, 1, -1, -(1 << 63), 1 << 63, 10**30, int("9" * 4000), 0.5, -0.0, 1e308, float("nan")),
    *(float("inf"), float("-inf"), "", "x", "../../x", "/etc/passwd", "1; touch pwned #", "$(touch pwned)", "-x", "–"),
    *("\x1b[2J\x07", "a\nb", "a\r\nb", "\u2028", "\u202e", "\x00", "\ud800", "\ufeff", "</script><b>", "%s{0}", "="),
    *("x" * 5000, [], {}, [1], [[]], {"trial": 1}, [None] * 20),
)
PIECES = (
    *(
        b"NaN",
        b"Infinity",
        b"-1",
        b"1e999",
        b"9" * 5000,
        b"\xff",
        b"\xed\xa0\x80",
        b"\xe2\x80\xa8",
        b"\\ud800",
        b"\\u0000",
    ),
    *(
        b"null",
        b"true",
        b'""',
        b"[]",
        b"{}",
        b"[" * 5000,
        b'{"a":' * 5000,
        b'"',
        b"\\",
        b"\0" * 40,
        b"\x1b[2J",
        b"\n",
        b"\r",
    ),
    *(
        b",",
        b":",
        b"..",
        b"/",
        b"%",
        b"'",
        b"$(",
        b"://",
        b"@",
        b"#",
        b"?",
        b"&",
        b"=",
        b";",
        b" " * 200,
        b"x" * 5000,
    ),
)


def of_bytes(good: bytes, rng: Random) -> bytes:
    """A piece put in, taken out, doubled or replaced, once or a few times."""
    made = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at, length = rng.randint(0, len(made)), rng.choice((0, 1, 1, 4, 40))
        kind = rng.randrange(5)
        if kind == 0:
            made[at:at] = rng.choice(PIECES)
        elif kind == 1:
            del made[at : at + length]
        elif kind == 2:
            made[at:at] = made[at : at + length]
        elif kind == 3:
            made[at : at + length] = rng.choice(PIECES)
        elif made:
            made[at % len(made)] ^= 1 << rng.randrange(8)
    return bytes(made)


def of_json(good: object, rng: Random) -> bytes:
    """JSON text in which a member or an entry, anywhere, is another value, is missing or stands there twice."""
    value = json.loads(json.dumps(good))
    here, steps = value, rng.randint(0, 5)
    for _ in range(steps):
        below = [
            one for one in (here.values() if isinstance(here, dict) else here) if isinstance(one, (dict, list)) and one
        ]
        if not below or rng.random() < 0.2:
            break
        here = rng.choice(below)
    places = list(here) if isinstance(here, dict) else list(range(len(here)))
    if not places:
        return json.dumps(rng.choice(ODD)).encode()
    at = rng.choice(places)
    if rng.random() < 0.15:
        del here[at]
    elif rng.random() < 0.1:
        text = json.dumps(value)
        name = json.dumps(at)
        return text.replace(f"{name}:", f"{name}: 7, {name}:", 1).encode() if isinstance(at, str) else text.encode()
    else:
        here[at] = rng.choice(ODD)
    return json.dumps(value, separators=(",", ":")).encode()


def answered(call, *, told: str) -> int:
    """The exit status that a command would have whose work is ``call``; AssertionError for any other answer than one
    line and exit 2 or 3, or where the answer takes long.
    """
    began, said = time.monotonic(), io.StringIO()
    status = 0
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            call()
        except Exception as error:
            try:
                cli._tell(error)
            except SystemExit as left:
                status = left.code
    line = said.getvalue()
    assert status in (0, USAGE, COULD_NOT_TELL), f"{told}: exit {status}: {line}"
    assert status == 0 or (line.count("\n") == 1 and outside._UNSEEN.search(line[:-1]) is None), f"{told}:\n{line}"
    assert time.monotonic() - began < LONGEST_S, f"{told}: took too long"
    return status
