"""Payloads can be made again, and a reader who never saw the writer names what every block is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durabench.payload import BLOCK_BYTES, CORRUPT, FOREIGN, STAMP_BYTES, ZERO, digest, make, read

EXAMPLES = settings(deadline=None, derandomize=True)
SIZES = st.integers(0, 6 * BLOCK_BYTES)
WHO = (3, "metadata", "key")


def blocks_of(size: int) -> int:
    return -(-size // BLOCK_BYTES)


@EXAMPLES
@given(SIZES, st.integers(0, 1000), st.integers(1, 2**31))
def test_a_payload_is_a_function_of_five_words_and_reads_as_one_put(size, seed, sequence):
    value = make(seed, "data", "k", sequence, size)
    assert len(value) == size
    assert value == make(seed, "data", "k", sequence, size)
    assert read(seed, "data", "k", value) == (((sequence, blocks_of(size)),) if size >= STAMP_BYTES else ())


@EXAMPLES
@given(st.integers(24, 6 * BLOCK_BYTES))
def test_every_word_changes_the_payload(size):
    payloads = {
        make(seed, ns, key, seq, size) for seed in (1, 2) for ns in ("m", "d") for key in "ab" for seq in (1, 2)
    }
    assert len(payloads) == 16


@EXAMPLES
@given(st.integers(STAMP_BYTES + 1, 6 * BLOCK_BYTES), st.data())
def test_a_flipped_byte_is_seen_in_its_block_and_nowhere_else(size, data):
    value = bytearray(make(*WHO, 7, size))
    at = data.draw(st.integers(0, size - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    found = [who for who, count in read(*WHO, bytes(value)) for _ in range(count)]
    struck = at // BLOCK_BYTES
    if size % BLOCK_BYTES == STAMP_BYTES and struck == blocks_of(size) - 1:
        return  # a block of nothing but a stamp: the checker asks the digest
    assert found[struck] != 7
    # A last block that has no stamp of its own stands and falls with the one before it.
    rest = found[:struck] + found[struck + 1 :]
    assert set(rest) <= ({7} if size % BLOCK_BYTES == 0 or size % BLOCK_BYTES >= STAMP_BYTES else {7, CORRUPT, FOREIGN})


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_old_and_new_blocks_are_told_apart(cut):
    old, new = make(*WHO, 1, 2048), make(*WHO, 2, 2048)
    at = cut * BLOCK_BYTES
    expected = [run for run in ((2, cut), (1, 4 - cut)) if run[1]]
    assert read(*WHO, new[:at] + old[at:]) == tuple(expected)


def test_zeros_foreign_and_corrupt_blocks_are_told_apart():
    value = make(*WHO, 5, 4 * BLOCK_BYTES)
    foreign = make(3, "metadata", "other", 5, BLOCK_BYTES)
    corrupt = value[: BLOCK_BYTES - 1] + b"?"
    assert read(*WHO, corrupt + value[512:1024] + bytes(512) + foreign) == (
        (CORRUPT, 1),
        (5, 1),
        (ZERO, 1),
        (FOREIGN, 1),
    )
    assert read(*WHO, b"text of somebody else, long enough for a stamp") == ((FOREIGN, 1),)


def test_a_block_at_another_place_is_corrupt():
    value = make(*WHO, 5, 2 * BLOCK_BYTES)
    assert read(*WHO, value[BLOCK_BYTES:] + value[:BLOCK_BYTES]) == ((CORRUPT, 2),)


def test_the_payload_of_another_seed_namespace_or_key_is_foreign():
    for seed, namespace, key in ((4, "metadata", "key"), (3, "data", "key"), (3, "metadata", "kez")):
        assert read(*WHO, make(seed, namespace, key, 1, 1024)) == ((FOREIGN, 2),)


def test_a_prefix_keeps_its_blocks():
    value = make(*WHO, 5, 2048)
    assert read(*WHO, value[:700]) == ((5, 2),)
    assert read(*WHO, value[: BLOCK_BYTES + 3]) == ((5, 2),)


@pytest.mark.parametrize("rest", range(1, STAMP_BYTES))
def test_an_end_without_a_stamp_is_read_as_what_was_put_even_where_it_is_zero(rest):
    size = BLOCK_BYTES + rest
    ends_in_zeros = next((n for n in range(1, 2000) if not make(*WHO, n, size)[BLOCK_BYTES:].strip(b"\0")), 1)
    assert read(*WHO, make(*WHO, ends_in_zeros, size)) == ((ends_in_zeros, 2),)


def test_a_damaged_stamp_that_claims_a_huge_size_is_read_all_the_same():
    value = bytearray(make(*WHO, 5, BLOCK_BYTES))
    value[12:20] = (1 << 60).to_bytes(8, "little")
    assert read(*WHO, bytes(value)) == ((CORRUPT, 1),)


@EXAMPLES
@given(st.binary(max_size=3 * BLOCK_BYTES))
def test_any_bytes_can_be_read(value):
    assert sum(count for _, count in read(*WHO, value)) == (blocks_of(len(value)) if len(value) >= STAMP_BYTES else 0)
    assert len(digest(value)) == 64


def test_payloads_do_not_compress():
    import zlib

    value = make(*WHO, 1, 1 << 16)
    assert len(zlib.compress(value, 9)) > 0.95 * len(value)
