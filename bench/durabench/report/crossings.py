"""Two plans held against each other, crossing by crossing: whether the size from which on another is faster moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from durabench.results import member
from durabench.row import Field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Json = Mapping[str, Any]

PLAN = "plan.json"
CHANGES = ("turned", "moved", "refused", "untold", "gone", "new", "newly told", "same", "not told")

GATED: Mapping[str, Field] = {
    "change": Field("string", "", "what became of the crossing: " + ", ".join(CHANGES), required=True),
    "pair": Field("string", "", "the two settings", required=True),
    "payload": Field("string", "", "incompressible or compressible", required=True),
    "at_bytes": Field("number", "bytes", "where the two are as fast in B"),
    "low": Field("number", "bytes", "its 95 % interval"),
    "high": Field("number", "bytes", "the upper end"),
    "reliable": Field("boolean", "", "whether B's could be told"),
    "below": Field("string", "", "which is faster below it in B"),
    "above": Field("string", "", "which is faster above it in B"),
    "moved_ratio": Field("number", "", "B's place divided by A's"),
}
"""What a gate may ask of a crossing."""
CHOSEN_BY = ("pair", "payload")
"""Of those what says which crossing it is."""


@dataclass(frozen=True)
class Pair:
    """One crossing in both plans, or in one of them."""

    pair: str
    payload: str
    a: Json | None
    b: Json | None
    change: str
    why: str | None = None

    @property
    def moved_ratio(self) -> float | None:
        """B's place divided by A's; None where either has none."""
        before, after = ((one or {}).get("at_bytes") for one in (self.a, self.b))
        return float(f"{after / before:.6g}") if before and after else None

    @property
    def untold(self) -> bool:
        """Whether B does not say what A said, or says what must not be compared."""
        return self.change in ("refused", "untold") or (self.change == "gone" and bool((self.a or {}).get("reliable")))

    @property
    def name(self) -> str:
        """``one / other (payload)``."""
        return f"{self.pair} ({self.payload})"

    def as_json(self) -> dict[str, Any]:
        """The comparison and both crossings."""
        said = {"change": self.change, "why": self.why, "moved_ratio": self.moved_ratio}
        return {"pair": self.pair, "payload": self.payload, **said, "a": self.a, "b": self.b}

    def as_gated(self) -> dict[str, Any]:
        """What gates see."""
        return {
            **(self.b or {}),
            **{name: getattr(self, name) for name in ("pair", "payload", "change", "moved_ratio")},
        }


def is_plan(path: Path) -> bool:
    """Whether a result folder is one of a plan that came to its end."""
    return (path / PLAN).exists()


def compare(a: Path, b: Path) -> list[Pair]:
    """Every crossing of either plan, what moved first. NotAFolder where a plan.json is torn."""
    old, new = member(a, PLAN), member(b, PLAN)
    unlike = _unlike(old, new)
    left, right = _by_pair(old), _by_pair(new)
    found = [_pair(key, left.get(key), right.get(key), unlike) for key in dict.fromkeys([*right, *left])]
    return sorted(found, key=lambda one: CHANGES.index(one.change))


def words(found: Sequence[Pair]) -> dict[str, list[str]]:
    """All that a gate's words can be, field by field."""
    settings = [each for one in found for each in one.pair.split(" / ")]
    return {
        "change": list(CHANGES),
        "pair": sorted({one.pair for one in found}),
        "payload": sorted({one.payload for one in found} | {"incompressible", "compressible"}),
        **dict.fromkeys(("below", "above"), sorted(set(settings))),
    }


def _unlike(old: Json, new: Json) -> str | None:
    hosts = [(one.get("machine") or {}).get("id") for one in (old, new)]
    if hosts[0] != hosts[1]:
        return f"another machine or disk: {hosts[0]} against {hosts[1]}"
    unranked = [one.get("not_ranked_why") or "not ranked" for one in (old, new) if one.get("ranked") is False]
    return unranked[0] if unranked else None


def _by_pair(plan: Json) -> dict[tuple[str, str], Json]:
    found = {}
    for one in plan.get("crossings") or ():
        first, second = sorted((str(one["a"]), str(one["b"])))
        found[f"{first} / {second}", str(one.get("payload") or "incompressible")] = one
    return found


def _pair(key: tuple[str, str], old: Json | None, new: Json | None, unlike: str | None) -> Pair:
    if unlike:
        return Pair(*key, old, new, "refused", unlike)
    if old is None or new is None:
        return Pair(*key, old, new, "new" if old is None else "gone")
    before, after = (bool(one.get("reliable")) for one in (old, new))
    if not (before and after):
        change = "untold" if before else "newly told" if after else "not told"
        return Pair(*key, old, new, change, (old if after else new).get("why") or "not reliable")
    if old.get("below") != new.get("below"):
        return Pair(*key, old, new, "turned", f"{new.get('below')} is now the faster one below")
    ends = [one.get(name) for one in (old, new) for name in ("low", "high")]
    if None in ends:
        return Pair(*key, old, new, "untold", "no interval")
    apart = old["high"] < new["low"] or new["high"] < old["low"]
    return Pair(*key, old, new, "moved" if apart else "same")
