"""Conditions that a comparison must not meet, as a person writes them: ``--fail-if 'tier==T3 && loss_rate_high>0.02'``.

The grammar is all there is; nothing is evaluated by Python::

    EXPR      := CONDITION { "&&" CONDITION }
    CONDITION := FIELD OP VALUE
    OP        := ">" | ">=" | "<" | "<=" | "==" | "!="
    VALUE     := number | true | false | null | word | 'quoted words'

A gate fails where one thing meets it. What was not measured is null, and null decides nothing: the gate is then untold
for that thing, unless another of its conditions is not met, or the condition asks for null itself.

No gate holds in silence because nothing can meet it: a word must be one of its field's, a number finite, and of the
things there are the conditions that choose (``fault==cut-power``, not ``lost>0``) must choose at least one.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from durabench_backends.registry import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from durabench.row import Field

    Things = Sequence[tuple[str, Mapping[str, Any]]]

_CONDITION = re.compile(
    r"""\s*(?P<field>[A-Za-z_]\w*)\s*(?P<op>>=|<=|==|!=|>|<|=)\s*(?P<value>'[^']*'|"[^"]*"|[^\s'"&|<>=!()]+)\s*"""
)
_OPS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_EXAMPLE = "write FIELD OP VALUE, such as loss_rate_high>0.02, several joined by &&"


class GateError(ValueError):
    """An expression that is no gate; the message names the mend (exit 2)."""


@dataclass(frozen=True)
class _Condition:
    """``value`` None: asks whether the field is null."""

    field: str
    op: str
    value: float | str | bool | None

    def of(self, thing: Mapping[str, Any]) -> bool | None:
        """Whether a thing meets it; None where nobody knows."""
        found = thing.get(self.field)
        if self.value is None:
            return (found is None) == (self.op == "==")
        if self.field == "tier" and isinstance(found, str) and " " not in str(self.value):
            found = found.partition(" ")[0]  # T2 is every T2, whatever its seconds
        return None if found is None else _OPS[self.op](found, self.value)

    def __str__(self) -> str:
        value = str(self.value).lower() if self.value is None or isinstance(self.value, bool) else self.value
        return f"{self.field}{self.op}{value:g}" if isinstance(value, float) else f"{self.field}{self.op}{value}"


@dataclass(frozen=True)
class Gate:
    """A parsed expression."""

    text: str
    conditions: tuple[_Condition, ...]

    def choosing(self, chosen_by: Collection[str]) -> Gate:
        """Of its conditions those that say which things it is about."""
        return Gate(self.text, tuple(one for one in self.conditions if one.field in chosen_by))

    def of(self, thing: Mapping[str, Any]) -> bool | None:
        """Whether a thing meets every condition, which is to fail; None where that depends on what was not measured."""
        answers = [condition.of(thing) for condition in self.conditions]
        if False in answers:
            return False
        return None if None in answers else True

    def untold(self, thing: Mapping[str, Any]) -> list[str]:
        """The fields of a thing that would have to be known."""
        return [condition.field for condition in self.conditions if condition.of(thing) is None]


def parse(text: str, fields: Mapping[str, Field], words: Mapping[str, Collection[str]] | None = None) -> Gate:
    """The gate that ``text`` says, over things with ``fields``; ``words`` are all that a field can say. GateError."""
    conditions = []
    for part in text.split("&&"):
        match = _CONDITION.fullmatch(part)
        if match is None:
            message = f"--fail-if {text!r}: {part.strip()!r} is no condition; {_EXAMPLE}"
            raise GateError(message)
        conditions.append(_condition(match["field"], match["op"], match["value"], fields, words or {}))
    return Gate(text, tuple(conditions))


def _condition(
    field: str, op: str, value: str, fields: Mapping[str, Field], words: Mapping[str, Collection[str]]
) -> _Condition:
    if field not in fields:
        message = f"--fail-if: nothing has a field {field!r}; {nearest(field, list(fields))}"
        raise GateError(message)
    if op == "=":
        message = f"--fail-if: {field}={value}: equality is written =="
        raise GateError(message)
    kind = fields[field].type
    quoted = value[0] in "'\""
    ordered = op not in ("==", "!=")
    if (ordered and kind in ("string", "boolean")) or (ordered and value == "null"):
        message = f"--fail-if: {field} {op} {value}: {field} is {kind}, and only == and != make sense here"
        raise GateError(message)
    if value == "null" and not quoted:
        if fields[field].required:
            message = f"--fail-if: {field} is never null"
            raise GateError(message)
        return _Condition(field, op, None)
    return _Condition(field, op, _value(field, kind, value[1:-1] if quoted else value, words.get(field)))


def _value(field: str, kind: str, text: str, words: Collection[str] | None) -> float | str | bool:
    if kind == "string":
        if words is not None and text not in words:
            message = (
                f"--fail-if: {field} is never {text!r}; {nearest(text, list(words)) if words else 'there is none here'}"
            )
            raise GateError(message)
        return text
    if kind == "boolean":
        if text in ("true", "false"):
            return text == "true"
        message = f"--fail-if: {field} is true or false, not {text!r}"
        raise GateError(message)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        message = f"--fail-if: {field} is a number, not {text!r}"
        raise GateError(message)
    if field in RATES and not 0 <= number <= 1:
        message = f"--fail-if: {field} lies between 0 and 1, {text} does not; 5 % is 0.05"
        raise GateError(message)
    return number


RATES = ("loss_rate_low", "loss_rate_high", "recording_rate_low", "recording_rate_high", "p", "p_holm")
"""What nothing above 1 can be asked of: whoever does means per cent."""


def asked(
    text: str, kinds: Sequence[tuple[Gate, Things]], chosen_by: Collection[str] = (), whole: str = "thing"
) -> dict[str, Any]:
    """What a gate says of things with their names: ``{"gate", "failed", "untold"}``: which met it, of which it could
    not be told. ``kinds``: the gate as it is read for each kind of things. It is untold, too, where the conditions on
    ``chosen_by`` choose none of all the things, each called a ``whole``.
    """
    pairs = [(gate, name, thing) for gate, things in kinds for name, thing in things]
    untold = [
        f"{name}: {' and '.join(gate.untold(thing))} not measured"
        for gate, name, thing in pairs
        if gate.of(thing) is None
    ]
    if not any(gate.choosing(chosen_by).of(thing) for gate, _, thing in pairs):
        choosing = kinds[0][0].choosing(chosen_by).conditions
        said = " && ".join(map(str, choosing))
        untold.append(f"no {whole} is {said}: it chooses nothing" if said else f"there is no {whole} to ask")
    return {"gate": text, "failed": [name for gate, name, thing in pairs if gate.of(thing) is True], "untold": untold}
