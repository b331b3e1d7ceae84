"""Conditions that a comparison must not meet, as a person writes them: ``--fail-if 'tier==T3 && loss_rate_high>0.02'``.

The grammar is all there is; nothing is evaluated by Python::

    EXPR      := CONDITION { "&&" CONDITION }
    CONDITION := FIELD OP VALUE
    OP        := ">" | ">=" | "<" | "<=" | "==" | "!="
    VALUE     := number | true | false | null | word | 'quoted words'

A gate fails where one thing meets it. What was not measured is null, and null decides nothing: the gate is then untold
for that thing, unless another of its conditions is not met, or the condition asks for null itself.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from durabench_backends.registry import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from durabench.row import Field

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
        return None if found is None else _OPS[self.op](found, self.value)


@dataclass(frozen=True)
class Gate:
    """A parsed expression."""

    text: str
    conditions: tuple[_Condition, ...]

    @property
    def fields(self) -> set[str]:
        """The names that it asks about."""
        return {condition.field for condition in self.conditions}

    def of(self, thing: Mapping[str, Any]) -> bool | None:
        """Whether a thing meets every condition, which is to fail; None where that depends on what was not measured."""
        answers = [condition.of(thing) for condition in self.conditions]
        if False in answers:
            return False
        return None if None in answers else True

    def untold(self, thing: Mapping[str, Any]) -> list[str]:
        """The fields of a thing that would have to be known."""
        return [condition.field for condition in self.conditions if condition.of(thing) is None]


def parse(text: str, fields: Mapping[str, Field]) -> Gate:
    """The gate that ``text`` says, over things with ``fields``. GateError."""
    conditions = []
    for part in text.split("&&"):
        match = _CONDITION.fullmatch(part)
        if match is None:
            message = f"--fail-if {text!r}: {part.strip()!r} is no condition; {_EXAMPLE}"
            raise GateError(message)
        conditions.append(_condition(match["field"], match["op"], match["value"], fields))
    return Gate(text, tuple(conditions))


def _condition(field: str, op: str, value: str, fields: Mapping[str, Field]) -> _Condition:
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
        return _Condition(field, op, None)
    return _Condition(field, op, _value(field, kind, value[1:-1] if quoted else value))


def _value(field: str, kind: str, text: str) -> float | str | bool:
    if kind == "string":
        return text
    if kind == "boolean":
        if text in ("true", "false"):
            return text == "true"
        message = f"--fail-if: {field} is true or false, not {text!r}"
        raise GateError(message)
    try:
        return float(text)
    except ValueError:
        message = f"--fail-if: {field} is a number, not {text!r}"
        raise GateError(message) from None


def asked(gates: Iterable[Gate], things: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """What each gate says of things with their names: ``{"gate", "failed", "untold"}``: which met it, of which it could
    not be told.
    """
    things = list(things)
    return [
        {
            "gate": gate.text,
            "failed": [name for name, thing in things if gate.of(thing) is True],
            "untold": [
                f"{name}: {' and '.join(gate.untold(thing))} not measured"
                for name, thing in things
                if gate.of(thing) is None
            ],
        }
        for gate in gates
    ]
