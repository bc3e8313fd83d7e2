"""What every layer promises (`shards/layers/contract.py`), as tests that each layer's own test class inherits.

    class TestBM25Contract(LayerContract):
        def make_layer(self): return BM25(BM25.Params(), Resources())
        def requests(self): return [Request("alpha beta"), …]

A subclass may override `documents` (what the corpus holds), `about` (metadata of its entries) and `n_documents`. Requests should
find something in it.
"""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from shards import arrays as array_files
from shards.documents import Documents, Entries
from shards.identity import content_hash
from shards.layers.contract import Layer, Request
from shards.on_the_fly import OnTheFly, can_be
from shards.plan import SpaceQuery
from shards.segment import pack_entries
from shards.shard import Space
from shards.types import Arrays, Budget, Entry, Found, Moments

WORDS = ["alpha", "beta", "gamma", "delta", "river", "stone", "cloud", "parse_json", "loadFile", "HTTPServer", "tree", "sort"]
WORDS += ["merge", "node", "edge", "42", "utf8", "naïve"]

Item = tuple[bytes, str, tuple[str, ...]]  # rendition, kind, paths


def random_documents(rng: np.random.Generator, n: int) -> list[Item]:
    """Random words of a Zipf-like vocabulary in lines: short, long and empty documents, prose, code and data."""
    weights = 1 / np.arange(1, len(WORDS) + 1)
    items: list[Item] = []
    for i in range(n):
        n_words = int(rng.choice([0, 3, 30, 300, 1500], p=[0.05, 0.2, 0.4, 0.3, 0.05])) + i % 3
        words = rng.choice(WORDS, n_words, p=weights / weights.sum())
        text = "".join(word + ("\n" if rng.random() < 0.1 else " ") for word in words) + f"id{i}"
        kind = ("prose:english", "code", "data")[i % 3]
        suffix = ("md", "py", "csv")[i % 3]
        paths = tuple(f"{folder}/{words[0] if n_words else 'empty'}_{i}.{suffix}" for folder in ("src", "old")[: 1 + i % 2])
        items.append((b"" if i == 5 else text.encode(), kind, paths))
    return items


@dataclass(frozen=True, slots=True)
class Segment:
    """Documents and entries as one segment has them; `keys`: one name per row of the layer, the same in any segment."""

    documents: Documents
    entries: Entries
    keys: list[tuple[bytes, str]]


def pack(items: list[Item], layer: Layer, about: Callable[[str], Mapping[str, Any]] = lambda path: {}) -> Segment:
    """about: the metadata of a path."""
    documents = Documents.pack((content_hash(body), body, kind) for body, kind, _ in items)
    entries = pack_entries(
        Entry("test", path, content_hash(body), len(body), mtime_ns=0, metadata=about(path)) for body, _, paths in items for path in paths
    )
    if layer.over == "documents":
        keys = [(key.tobytes(), "") for key in documents.hashes]
    else:
        keys = [(entries.hashes[i].tobytes(), entries.path(i)) for i in range(len(entries))]
    return Segment(documents, entries, keys)


def assert_same_arrays(left: Arrays, right: Arrays) -> None:
    assert sorted(left) == sorted(right)
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@pytest.mark.parametrize("seed", [0, 1])
class LayerContract:
    """Inherit, and give `make_layer` and `requests`."""

    n_documents = 60

    def make_layer(self) -> Layer:
        raise NotImplementedError  # each layer's test class gives its own

    def requests(self) -> list[Request]:
        raise NotImplementedError  # likewise

    def documents(self, rng: np.random.Generator) -> list[Item]:
        return random_documents(rng, self.n_documents)

    def about(self, path: str) -> Mapping[str, Any]:
        """The metadata of an entry: a function of its path alone."""
        return {}

    # Building blocks

    def items(self, seed: int) -> list[Item]:
        by_hash = {content_hash(item[0]): item for item in self.documents(np.random.default_rng(seed))}
        return list(by_hash.values())

    def built(self, layer: Layer, items: list[Item], scope=None) -> tuple[Segment, Arrays]:
        """A segment and its arrays, read back from the bytes of their file: mapped arrays are read-only."""
        segment = pack(items, layer, self.about)
        arrays = layer.build(segment.documents, segment.entries, scope)
        parsed, _ = array_files.parse(array_files.dump(arrays), "test")
        assert_same_arrays(arrays, parsed)
        return segment, parsed

    def statistics(self, layer: Layer, built: list[tuple[Segment, Arrays]]):
        return layer.collect([(1, layer.statistics(arrays, s.documents, s.entries)) for s, arrays in built])

    def prepared(self, layer: Layer, statistics) -> list[SpaceQuery]:
        queries = [layer.prepare(request, statistics) for request in self.requests()]
        assert all(queries), "every request of the contract must have something to ask"
        return queries

    def reader(self, layer: Layer, segment: Segment, arrays: Arrays, live=None):
        live = np.ones(len(segment.keys), bool) if live is None else live
        return layer.open(arrays, segment.documents, segment.entries, live)

    def whole(self, seed: int):
        """Everything in one segment: layer, segment, arrays, reader, queries."""
        layer = self.make_layer()
        segment, arrays = self.built(layer, self.items(seed))
        queries = self.prepared(layer, self.statistics(layer, [(segment, arrays)]))
        return layer, segment, arrays, self.reader(layer, segment, arrays), queries

    def all_scores(self, reader, query: SpaceQuery, n_rows: int) -> np.ndarray:
        return reader.score(query, np.arange(n_rows, dtype=np.int32), Budget()).scores

    def check_form(self, found: Found, segment: Segment, layer: Layer, k: int) -> None:
        assert len(found.rows) == len(found.scores) == len(found.starts) == len(found.ends) <= k
        assert (found.rows.dtype, found.scores.dtype) == (np.int32, np.float64)
        assert (found.starts.dtype, found.ends.dtype) == (np.int64, np.int64)
        assert len(set(found.rows.tolist())) == len(found.rows)
        assert np.isfinite(found.scores).all()
        order = np.lexsort((found.rows, -found.scores))
        np.testing.assert_array_equal(order, np.arange(len(order)))
        assert 0 <= found.rows_covered <= found.rows_total
        assert (found.moments is None) == (layer.null == "rarity")
        if layer.over == "documents":
            size = (segment.documents.ends - segment.documents.starts)[found.rows]
            assert ((found.starts >= 0) & (found.starts <= found.ends) & (found.ends <= size)).all()

    # Promises

    def test_search_finds_exactly_the_best_rows_that_score_gives(self, seed):
        layer, segment, _, reader, queries = self.whole(seed)
        found_any = False
        for query in queries:
            scores = self.all_scores(reader, query, len(segment.keys))
            expected = [row for row in np.lexsort((np.arange(len(scores)), -scores)) if scores[row] > -np.inf]
            for k in (1, 7, 1000):
                found = reader.search(query, None, k, Budget())
                self.check_form(found, segment, layer, k)
                assert found.rows.tolist() == expected[:k], query.asked
                assert found.scores.tobytes() == scores[found.rows].tobytes()
                assert found.rows_covered == found.rows_total == len(segment.keys)
                found_any |= len(found.rows) > 0
            matched = scores[expected]  # best first
            for floor in matched[[0, len(matched) // 2, -1]] if len(matched) else ():
                found = reader.search(layer.exhaustive(query), None, len(scores) + 1, Budget(), floor)
                assert found.rows[found.scores > floor].tolist() == [row for row in expected if scores[row] > floor]
            if layer.null == "rarity" and layer.monotone:
                assert (np.diff(layer.surprise(query, matched)) <= 0).all()
        assert found_any

    def test_search_and_score_name_the_same_span(self, seed):
        _, _, _, reader, queries = self.whole(seed)
        for query in queries:
            found = reader.search(query, None, 1000, Budget())
            scored = reader.score(query, found.rows, Budget())
            np.testing.assert_array_equal(scored.starts, found.starts)
            np.testing.assert_array_equal(scored.ends, found.ends)

    def test_scan_gives_the_scores_behind_search_and_its_moments(self, seed):
        layer, segment, _, reader, queries = self.whole(seed)
        if layer.null == "rarity":
            pytest.skip("layers with a null of rarity have no scan")
        for query in queries:
            units, rows = reader.scan(query)
            assert (units.dtype, rows.dtype) == (np.float64, np.int32)
            assert len(units) == len(rows) == reader.n_units
            scores = self.all_scores(reader, query, len(segment.keys))
            best = np.full(len(segment.keys), -np.inf)
            np.maximum.at(best, rows, units)
            matched = scores > -np.inf
            assert best[matched].tobytes() == scores[matched].tobytes()
            self.check_moments(reader.search(query, None, 5, Budget()).moments, Moments.of(units))

    def check_moments(self, moments: Moments, expected: Moments) -> None:
        assert moments.n == expected.n
        np.testing.assert_allclose([moments.mean, moments.m2], [expected.mean, expected.m2], rtol=1e-6, atol=1e-9)

    @pytest.mark.parametrize("n_segments", [2, 5])
    def test_scores_are_the_same_bits_on_any_split_into_segments(self, seed, n_segments):
        layer, segment, _, reader, queries = self.whole(seed)
        items = self.items(seed)
        places = np.random.default_rng(seed + n_segments).integers(n_segments, size=len(items))
        built = [self.built(layer, [i for i, p in zip(items, places, strict=True) if p == part]) for part in range(n_segments)]
        readers = [self.reader(layer, *part) for part in built]
        assert sum(r.n_units for r in readers) == reader.n_units
        split_queries = self.prepared(layer, self.statistics(layer, built))
        for query, split_query in zip(queries, split_queries, strict=True):
            assert query.log_p == split_query.log_p
            whole = dict(zip(segment.keys, self.all_scores(reader, query, len(segment.keys)), strict=True))
            pieces = {}
            founds = []
            for (part, _), part_reader in zip(built, readers, strict=True):
                scores = self.all_scores(part_reader, split_query, len(part.keys))
                pieces |= dict(zip(part.keys, scores, strict=True))
                founds.append(part_reader.search(split_query, None, 1000, Budget()))
            assert pieces == whole
            one = reader.search(query, None, 1000, Budget())
            assert sum(f.n_matched for f in founds) == one.n_matched
            if layer.null == "moments":
                self.check_moments(sum((f.moments for f in founds), Moments()), one.moments)

    def test_the_scope_filters_hits_but_never_the_moments(self, seed):
        layer, segment, _, reader, queries = self.whole(seed)
        allowed = np.random.default_rng(seed).random(len(segment.keys)) < 0.4
        for query in queries:
            everything = reader.search(query, None, 1000, Budget())
            found = reader.search(query, allowed, 1000, Budget())
            self.check_form(found, segment, layer, 1000)
            kept = allowed[everything.rows]
            np.testing.assert_array_equal(found.rows, everything.rows[kept])
            assert found.scores.tobytes() == everything.scores[kept].tobytes()
            assert found.moments == everything.moments
            assert found.n_matched <= everything.n_matched
            assert found.rows_covered == found.rows_total == allowed.sum()
            nothing = reader.search(query, np.zeros_like(allowed), 10, Budget())
            assert len(nothing.rows) == nothing.n_matched == nothing.rows_total == 0
            assert nothing.moments == everything.moments  # questions that only score (`SpaceQuery.finds`) are asked so

    def test_deleted_rows_leave_no_trace(self, seed):
        """A reader with tombstones, and statistics minus theirs, equal an index built from what is left."""
        layer = self.make_layer()
        items = self.items(seed)
        segment, arrays = self.built(layer, items)
        dies = np.random.default_rng(seed).random(len(items)) < 0.3
        gone = {content_hash(item[0]) for item, dead in zip(items, dies, strict=True) if dead}
        live = np.array([key not in gone for key, _ in segment.keys])
        left, left_arrays = self.built(layer, [item for item in items if content_hash(item[0]) not in gone])
        dead_rows = np.flatnonzero(~live).astype(np.int32)
        part, dead = (layer.statistics(arrays, segment.documents, segment.entries, rows) for rows in (None, dead_rows))
        queries = self.prepared(layer, layer.collect([(1, part), (-1, dead)]))
        expected_queries = self.prepared(layer, self.statistics(layer, [(left, left_arrays)]))
        assert int(part["n_units"][0] - dead["n_units"][0]) == self.reader(layer, segment, arrays, live).n_units
        reader, expected_reader = self.reader(layer, segment, arrays, live), self.reader(layer, left, left_arrays)
        assert reader.n_units == expected_reader.n_units
        for query, expected_query in zip(queries, expected_queries, strict=True):
            assert query.log_p == expected_query.log_p
            found = reader.search(query, None, 1000, Budget())
            expected = expected_reader.search(expected_query, None, 1000, Budget())
            assert [segment.keys[row] for row in found.rows] == [left.keys[row] for row in expected.rows]
            assert found.scores.tobytes() == expected.scores.tobytes()
            assert (found.n_matched, found.rows_total) == (expected.n_matched, expected.rows_total)
            if layer.null == "moments":
                self.check_moments(found.moments, expected.moments)

    def test_merged_segments_equal_one_built_from_their_documents(self, seed):
        layer = self.make_layer()
        items = self.items(seed)
        rng = np.random.default_rng(seed)
        places, dropped = rng.integers(3, size=len(items)), rng.random(len(items)) < 0.2
        joined, expected = self.built(layer, [item for item, drop in zip(items, dropped, strict=True) if not drop])
        new_row = {key: row for row, key in enumerate(joined.keys)}
        parts, held = [], []
        for place in range(3):
            part, arrays = self.built(layer, [item for item, p in zip(items, places, strict=True) if p == place])
            parts.append((arrays, np.array([new_row.get(key, -1) for key in part.keys], np.int32)))
            gone = np.flatnonzero(parts[-1][1] < 0).astype(np.int32)
            for sign, rows in ((1, None), (-1, gone)):
                held.append((sign, layer.statistics(arrays, part.documents, part.entries, rows)))
        assert_same_arrays(layer.merge(parts, joined.documents, joined.entries), expected)
        assert_same_arrays(layer.merge(parts, joined.documents, joined.entries, held), expected)

    def test_what_is_dead_is_counted_from_its_text_as_from_the_arrays(self, seed):
        layer = self.make_layer()
        items = self.items(seed)
        few = [item for i, item in enumerate(items) if i % 3 == 0]
        alone, arrays = self.built(layer, few)
        counted = layer.recount(alone.documents, alone.entries)
        if counted is not None:
            assert_same_arrays(counted, layer.statistics(arrays, alone.documents, alone.entries))

    def test_building_twice_gives_the_same_bytes(self, seed):
        layer = self.make_layer()
        segment, arrays = self.built(layer, self.items(seed))
        again = self.make_layer().build(segment.documents, segment.entries)
        assert array_files.dump(arrays) == array_files.dump(again)

    def test_rows_outside_the_scope_of_the_space_are_not_found_and_not_covered(self, seed):
        layer = self.make_layer()
        items = self.items(seed)
        scope = np.random.default_rng(seed).random(len(pack(items, layer).keys)) < 0.6
        segment, arrays = self.built(layer, items, scope)
        reader = self.reader(layer, segment, arrays)
        for query in self.prepared(layer, self.statistics(layer, [(segment, arrays)])):
            found = reader.search(query, None, 1000, Budget())
            assert scope[found.rows].all()
            assert (found.rows_covered, found.rows_total) == (scope.sum(), len(scope))
            outside = self.all_scores(reader, query, len(scope))[~scope]
            assert not np.isfinite(outside).any()

    def test_an_expired_budget_gives_fewer_hits_but_no_wrong_ones(self, seed):
        layer, segment, _, reader, queries = self.whole(seed)
        for query in queries:
            scores = self.all_scores(reader, query, len(segment.keys))
            found = reader.search(query, None, 10, Budget(-1))
            self.check_form(found, segment, layer, 10)
            assert found.scores.tobytes() == scores[found.rows].tobytes()
            late = reader.score(query, np.arange(len(scores), dtype=np.int32), Budget(-1)).scores
            assert (np.isnan(late) | (late == scores)).all()

    def test_questions_travel_between_processes_and_are_small(self, seed):
        _, _, _, reader, queries = self.whole(seed)
        for query in queries:
            wire = pickle.dumps(query)
            assert len(wire) < 100_000
            assert query.asked
            here, there = (reader.search(q, None, 10, Budget()) for q in (query, pickle.loads(wire)))
            assert here.scores.tobytes() == there.scores.tobytes()

    def test_scores_do_not_depend_on_the_batch(self, seed):
        _, segment, _, reader, queries = self.whole(seed)
        rows = np.random.default_rng(seed).permutation(len(segment.keys)).astype(np.int32)
        for query in queries:
            together = self.all_scores(reader, query, len(rows))
            alone = np.concatenate([reader.score(query, rows[i : i + 1], Budget()).scores for i in range(len(rows))])
            assert alone.tobytes() == together[rows].tobytes()

    def test_what_is_scored_on_the_fly_has_the_bits_that_the_index_gives(self, seed):
        layer = self.make_layer()
        if seed or not can_be(space := Space("s", "s", layer)):
            pytest.skip("never scored on the fly, or was with the first seed")
        _, segment, _, reader, queries = self.whole(seed)
        rows = np.random.default_rng(seed).permutation(len(segment.keys))[:8].astype(np.int32)
        on_the_fly = OnTheFly()
        assert on_the_fly.load(space).wait(60)
        for query in queries:
            wanted = reader.score(query, rows, Budget())
            found, why = on_the_fly.score(space, query, [(segment.documents, row) for row in rows.tolist()], Budget())
            assert why == ""
            assert found.scores.tobytes() == wanted.scores.tobytes()
            matched = np.isfinite(wanted.scores)
            assert found.starts[matched].tolist() == wanted.starts[matched].tolist()
            assert found.ends[matched].tolist() == wanted.ends[matched].tolist()

    def test_an_empty_segment_is_searched_and_finds_nothing(self, seed):
        layer, _, _, _, queries = self.whole(seed)
        empty, arrays = self.built(layer, [])
        reader = self.reader(layer, empty, arrays)
        assert reader.n_units == 0
        assert int(layer.statistics(arrays, empty.documents, empty.entries)["n_units"][0]) == 0
        for query in queries:
            found = reader.search(query, None, 10, Budget())
            assert len(found.rows) == found.n_matched == found.rows_total == 0
            assert len(reader.score(query, np.zeros(0, np.int32), Budget()).scores) == 0
