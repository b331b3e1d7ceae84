"""Which recordings of losing trials a run keeps: within its limit, what tells most first, and the rest is told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from durabench import recorded


@pytest.fixture
def shelf(tmp_path):
    """Keeps made-up recordings, given as name, setting, size and whether they broke a promise."""
    made = recorded.Shelf(tmp_path / "recordings", 100)

    def keep(name, of, size, *, broken=False):
        recording = SimpleNamespace(save=lambda path, base: path.write_bytes(b"x" * size))
        stands_for = SimpleNamespace(name=name, recording=recording, base=SimpleNamespace(image=None))
        made.keep(stands_for, of, broken=broken)
        return sorted(path.name.removesuffix(".gz") for path in made.folder.iterdir())

    keep.shelf = made
    return keep


def test_what_does_not_fit_is_not_kept_and_told(shelf):
    assert shelf("a0", "a", 60) == ["a0"]
    assert shelf("b0", "b", 60) == ["a0"]
    assert "limit of 100" in shelf.shelf.not_kept["b0"]
    assert shelf("c0", "c", 40) == ["a0", "c0"], "a smaller one still fits"


def test_one_of_each_setting_comes_before_a_second_of_any(shelf):
    shelf("a0", "a", 30)
    shelf("a1", "a", 50)
    assert shelf("b0", "b", 60) == ["a0", "b0"]
    assert "room" in shelf.shelf.not_kept["a1"]
    assert shelf("a2", "a", 60) == ["a0", "b0"]


def test_a_broken_promise_comes_before_a_loss_that_nobody_promised_to_prevent(shelf):
    shelf("a0", "a", 60)
    shelf("b0", "b", 40)
    assert shelf("c0", "c", 60, broken=True) == ["b0", "c0"]
    assert shelf("d0", "d", 40) == ["b0", "c0"], "of two that tell as much, the first stays"


def test_what_a_resumed_run_had_kept_stays_and_counts(shelf):
    shelf("a0", "a", 60)
    again = recorded.Shelf(shelf.shelf.folder, 100)
    shelf.shelf.__dict__.update(again.__dict__)
    assert shelf("b0", "b", 60, broken=True) == ["a0"]


def test_what_is_kept_is_never_replaced_by_another_of_its_name(shelf):
    shelf("a0", "a", 10)
    before = (shelf.shelf.folder / "a0.gz").read_bytes()
    assert shelf("a0", "a", 20, broken=True) == ["a0"]
    assert (shelf.shelf.folder / "a0.gz").read_bytes() == before
    assert "of that name" in shelf.shelf.not_kept["a0"]


def test_the_shelf_knows_which_attempts_it_has_and_drops_half_ones(shelf):
    for name in ("1-0-a-ext4", "1-0-a-ext4.2", "1-0-a-ext4.11", "1-0-a-ext4.x", "1-0-a"):
        shelf(name, "a", 1)
    (shelf.shelf.folder / "1-1-a-ext4.gz.part").write_bytes(b"half")
    again = recorded.Shelf(shelf.shelf.folder, 100)
    assert [again.attempts(name) for name in ("1-0-a-ext4", "1-0-a", "1-1-a-ext4")] == [11, 1, 0]
    assert not list(shelf.shelf.folder.glob("*.part"))


def test_one_that_is_too_large_makes_no_room_for_itself(shelf):
    shelf("a0", "a", 50)
    shelf("a1", "a", 50)
    assert shelf("b0", "b", 101, broken=True) == ["a0", "a1"]
