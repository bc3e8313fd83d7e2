"""The index of trigrams against sets of Python: what blocks hold, lists as bits, joining without the text, what is left out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from shards import block_list_kernels as kernels
from shards import trigram_index
from shards.documents import Documents
from shards.identity import content_hash
from shards.text_pattern import AllOf, AnyOf
from shards.trigram_index import build_index, join_index
from shards.trigram_search import TrigramSearch, trigrams

TEXTS = st.lists(st.text(alphabet="abA\nké", max_size=60).map(str.encode), max_size=8, unique=True)


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    """Blocks of 8 bytes, so that a text of a line has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trigram_index, "BLOCK_BYTES", 8)
        yield


def packed(texts: list[bytes]) -> Documents:
    return Documents.pack((content_hash(text), text, "code") for text in texts)


def blocks_of(documents: Documents) -> list[tuple[int, bytes]]:
    """(row, text) of each block, as the index says they lie."""
    index = build_index(documents, np.arange(len(documents)))
    found = []
    for row in range(len(documents)):
        at = 0
        for block in range(index["first_blocks"][row], index["first_blocks"][row + 1]):
            end = int(index["block_ends"][block])
            found.append((row, documents.content(row)[at:end].tobytes()))
            at = end
        assert at == len(documents.content(row))
    return found


def slow_trigrams(text: bytes) -> set[int]:
    folded = text.lower()
    return {int.from_bytes(folded[i : i + 3], "big") for i in range(len(folded) - 2) if b"\n" not in folded[i : i + 3]}


def lists_of(index) -> dict[int, list[int]]:
    n_blocks = len(index["block_ends"])
    numbers = np.arange(n_blocks, dtype=np.int32)
    keys, offsets, blocks = kernels.expand(index["codes"], index["group_keys"], index["group_bits"], n_blocks, numbers)
    return {int(key): blocks[a:b].tolist() for key, a, b in zip(keys, offsets[:-1], offsets[1:], strict=True)}


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        (b"", []),
        (b"abc", [b"abc"]),
        (b"0123456789", [b"0123456789"]),  # a quarter more than a block
        (b"ab\ncd\nef\ngh\n", [b"ab\ncd\n", b"ef\ngh\n"]),
        (b"a\nbcdefgh\nij\nk", [b"a\n", b"bcdefgh\n", b"ij\nk"]),
        (b"a long line of text\nb\n", [b"a long line of text\n", b"b\n"]),
        (b"no line feed at all in here", [b"no line feed at all in here"]),
    ],
)
def test_a_document_is_cut_behind_line_feeds_and_a_long_line_stays_whole(text, blocks):
    assert [body for _, body in blocks_of(packed([text]))] == blocks


@settings(max_examples=60)
@given(TEXTS)
def test_each_trigram_has_the_list_of_the_blocks_that_hold_it(texts):
    documents = packed(texts)
    expected: dict[int, list[int]] = {}
    for number, (_, body) in enumerate(blocks_of(documents)):
        assert b"\n" not in body[:-1] or len(body) <= 10
        for key in slow_trigrams(body):
            expected.setdefault(key, []).append(number)
    assert lists_of(build_index(documents, np.arange(len(documents)))) == expected


def test_a_block_too_large_for_the_table_is_told_apart_by_bits():
    """One line of 20,000 bytes, between two short ones."""
    long = bytes(np.random.default_rng(3).integers(97, 123, 20_000, np.uint8))
    documents = packed([b"first abc\n" + long + b"\nlast abc"])
    bodies = [body for _, body in blocks_of(documents)]
    assert [len(body) for body in bodies] == [10, 20_001, 8]
    found = lists_of(build_index(documents, np.arange(1)))
    for number, body in enumerate(bodies):
        assert {key for key, blocks in found.items() if number in blocks} == slow_trigrams(body)


def held(codes, n_blocks: int, keys: list[int]) -> np.ndarray:
    bits = kernels.holding(*codes, n_blocks, np.array(keys, np.int64))
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))


@pytest.mark.parametrize("n_blocks", [1, 2, 63, 64, 65, 1000, 70_000])
def test_lists_of_any_density_are_read_as_they_were_written(n_blocks):
    rng = np.random.default_rng(n_blocks)
    shares = [0.0, 1e-4, 0.01, 0.2, 0.5, 0.51, 0.8, 0.999, 1.0] * 3
    lists = [np.flatnonzero(rng.random(n_blocks) < share) for share in shares]
    lists = [found if len(found) else np.array([int(rng.integers(n_blocks))]) for found in lists]
    keys = np.sort(rng.choice(1 << 24, len(lists), replace=False)).astype(np.uint32)
    offsets = np.concatenate([[0], np.cumsum([len(found) for found in lists])])
    codes = kernels.encode(keys, offsets, np.concatenate(lists).astype(np.int32), n_blocks)
    assert all(kernels.find(*codes, n_blocks, key + 1) == (0, 0) for key in keys[:-1][np.diff(keys) > 1])
    other = lists[12]
    for key, blocks in zip(keys, lists, strict=True):
        assert kernels.find(*codes, n_blocks, key)[0] == len(blocks)
        assert_array_equal(held(codes, n_blocks, [key]), blocks)
        both = held(codes, n_blocks, [key, keys[12]])  # of few blocks that are left the other list may not be worth reading
        assert set(blocks) & set(other) <= set(both) <= set(min(blocks, other, key=len))
        assert len(blocks) < 100 or n_blocks < 1000 or set(both) == set(blocks) & set(other)
    again = kernels.expand(*codes, n_blocks, np.arange(n_blocks, dtype=np.int32))
    assert_array_equal(again[0], keys)
    assert_array_equal(again[2], np.concatenate(lists))


def test_a_list_takes_about_the_entropy_of_a_random_set():
    n_blocks, rng = 50_000, np.random.default_rng(0)
    for share in (0.001, 0.03, 0.2, 0.5, 0.9):
        blocks = np.flatnonzero(rng.random(n_blocks) < share).astype(np.int32)
        _, _, bits = kernels.encode(np.array([7], np.uint32), np.array([0, len(blocks)]), blocks, n_blocks)
        p = len(blocks) / n_blocks
        entropy = -n_blocks * (p * np.log2(p) + (1 - p) * np.log2(1 - p))
        assert entropy - 100 < bits[-1] < 1.05 * entropy + 100


@settings(max_examples=60)
@given(TEXTS, st.randoms(use_true_random=False))
def test_joined_indexes_equal_the_one_of_the_joined_documents(texts, random):
    """Three parts, a quarter of whose documents is dropped; joined without a look at the text."""
    places = {text: random.randrange(3) for text in texts}
    kept = [text for text in texts if random.random() > 0.25]
    documents = packed(kept)
    row = {key.tobytes(): i for i, key in enumerate(documents.hashes)}
    parts = []
    for place in range(3):
        part = packed([text for text in texts if places[text] == place])
        new_rows = np.array([row.get(key.tobytes(), -1) for key in part.hashes], np.int32)
        parts.append((build_index(part, np.arange(len(part))), new_rows))
    expected, joined = build_index(documents, np.arange(len(documents))), join_index(parts, len(documents))
    assert sorted(joined) == sorted(expected)
    for name, array in expected.items():
        assert joined[name].dtype == array.dtype
        assert_array_equal(joined[name], array, err_msg=name)


NEEDED = st.recursive(
    st.one_of(st.none(), st.text(alphabet="abké\n", min_size=1, max_size=6).map(str.encode)),
    lambda parts: st.builds(lambda kind, of: kind(tuple(of)), st.sampled_from([AllOf, AnyOf]), st.lists(parts, min_size=1, max_size=3)),
    max_leaves=5,
)


def holds(needed, folded: bytes) -> bool:
    if isinstance(needed, AllOf | AnyOf):
        return (all if isinstance(needed, AllOf) else any)(holds(part, folded) for part in needed.of)
    return needed is None or needed in folded


@settings(max_examples=150)
@given(TEXTS, NEEDED)
def test_no_line_and_no_document_is_left_out_that_holds_what_is_needed(texts, needed):
    documents = packed(texts)
    search = TrigramSearch(build_index(documents, np.arange(len(documents))), documents.starts)
    blocks, rows = search.blocks(needed), search.documents(needed)
    for number, (_, body) in enumerate(blocks_of(documents)):
        if any(holds(needed, line.lower()) for line in body.split(b"\n")):
            assert blocks is None or blocks[number]
    for row in range(len(documents)):
        if holds(needed, documents.content(row).tobytes().lower()):
            assert rows is None or rows[row]


def test_blocks_without_the_trigrams_are_left_out_and_the_ranges_of_others_joined():
    documents = packed([b"abcdef\nxyzxyz\nabcdef\nabcdeg\n"])
    search = TrigramSearch(build_index(documents, np.arange(1)), documents.starts)
    assert search.blocks(b"cdef").tolist() == [True, False, True, False]
    assert search.ranges(search.blocks(b"cdef")).tolist() == [[0, 7], [14, 21]]
    assert search.ranges(search.blocks(b"bcd")).tolist() == [[0, 7], [14, 28]]
    assert search.blocks(AllOf((b"abc", b"xyz"))).tolist() == [False] * 4  # in no line together
    assert search.documents(AllOf((b"abc", b"xyz"))).tolist() == [True]
    assert search.blocks(AnyOf((b"deg", b"yzx"))).tolist() == [False, True, False, True]
    assert search.blocks(b"nowhere").any() == search.documents(b"nowhere").any() == False  # noqa: E712
    assert search.blocks(b"ab") is search.blocks(AnyOf((b"abc", b"ab"))) is search.documents(None) is None
    assert search.blocks(AllOf((b"ab", b"yzx"))).tolist() == [False, True, False, False]


def test_trigrams_hold_no_line_feed():
    assert trigrams(b"ab\ncde") == {int.from_bytes(b"cde", "big")}
    assert trigrams(b"ab") == set()
