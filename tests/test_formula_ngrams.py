"""Vectors of formulas that the corpus teaches: exact sums, a model of the generation's statistics, and the contract of every layer."""

import numpy as np
import pytest
from layer_contract import LayerContract, pack
from test_formula import FORMULAS

from jobs import formula_families
from shards import formula_embedding as embedding
from shards.formula_index import trees_of_text
from shards.layers import SpaceSpec, create
from shards.layers.contract import Request, Resources
from shards.types import Budget


def make():
    return create(SpaceSpec("formula_ngrams", "formula_ngrams"), Resources())


class TestFormulaNgramsContract(LayerContract):
    n_documents = 40

    def make_layer(self):
        return make()

    def documents(self, rng):
        items = []
        for i in range(self.n_documents):
            text = f"post {i}: " + " and ".join(f"${formula}$" for formula in rng.choice(FORMULAS, rng.integers(0, 7)))
            items.append((text.encode(), ("prose:english", "code", "data")[i % 3], (f"a/{i}.md", f"b/{i}.md")[: 1 + i % 2]))
        return items

    def requests(self):
        return [Request("x^2+y^2=z^2"), Request(r"is $\frac{u}{v}$ the same as $E=mc^2$?"), Request("", {"latex": r"\sqrt{y+1}"})]


def bags(texts):
    made = [embedding.bag(trees_of_text(text, "latex")) for text in texts]
    offsets = np.cumsum([0, *(len(buckets) for buckets, _ in made)])
    return np.concatenate([b for b, _ in made]), np.concatenate([c for _, c in made]), offsets


def test_what_stands_together_is_counted_as_a_slow_version_counts_it():
    buckets, counts, offsets = bags(FORMULAS)
    chosen = np.arange(len(FORMULAS)) % 3 > 0
    statistics = embedding.FormulaStatistics.collect(
        [(1, {"n_units": np.array([chosen.sum()]), **embedding.together(buckets, counts, offsets, chosen)})]
    )
    slow = np.zeros((embedding.BUCKETS, embedding.BUCKETS), np.int64)
    for unit in np.flatnonzero(chosen):
        own = buckets[offsets[unit] : offsets[unit + 1]]
        slow[np.ix_(own, own)] += 1
    np.testing.assert_array_equal(statistics.occurrences, slow)


def test_every_sum_is_a_whole_number_so_cosines_do_not_depend_on_their_order():
    buckets, counts, offsets = bags(FORMULAS * 3)
    together = embedding.together(buckets, counts, offsets, np.ones(len(offsets) - 1, bool))
    model = embedding.FormulaStatistics.collect([(1, {"n_units": np.array([45]), **together})]).model
    assert (model.shape, model.dtype) == ((embedding.BUCKETS, embedding.DIM), np.int8) and np.abs(model).max() == embedding.LEVELS
    found = embedding.vectors(buckets, counts, offsets, model)
    exact = np.zeros((len(offsets) - 1, embedding.DIM), np.int64)
    for unit in range(len(offsets) - 1):
        for at in range(offsets[unit], offsets[unit + 1]):
            exact[unit] += int(counts[at]) * model[buckets[at]].astype(np.int64)
    np.testing.assert_array_equal(found, exact)
    squares, units = embedding.squared(found), np.arange(len(found))
    together = embedding.cosines(found, squares, units, found[0])
    alone = [embedding.cosines(found, squares, units[i : i + 1], found[0]) for i in range(len(found))]
    sizes = np.sqrt((exact**2).sum(axis=1).astype(float) * float((exact[0] ** 2).sum()))
    slow = np.divide(exact @ exact[0], sizes, out=np.zeros(len(sizes)), where=sizes > 0)
    assert together.tobytes() == np.concatenate(alone).tobytes() == slow.tobytes()


def test_the_vectors_rank_a_collection_made_by_rules_better_than_bm25_over_its_tokens():
    made = formula_families.make(seed=0, n_others=100, families=formula_families.FAMILIES[::4])
    ranked = formula_families.mean_ndcg(formula_families.layer(made, "formula_ngrams"), made)
    assert ranked > 0.8
    assert ranked > formula_families.mean_ndcg(formula_families.bm25(made), made) + 0.2


def test_a_changed_corpus_has_another_model_and_the_same_arrays():
    layer = make()
    few, more = (pack([(f"${f}$ {i}".encode(), "prose:english", ("p",)) for i, f in enumerate(FORMULAS * n)], layer) for n in (1, 4))
    queries = []
    for segment in (few, more):
        arrays = layer.build(segment.documents, segment.entries)
        statistics = layer.collect([(1, layer.statistics(arrays, segment.documents, segment.entries))])
        queries.append(layer.prepare(Request("x^2+y^2=z^2"), statistics))
        reader = layer.open(arrays, segment.documents, segment.entries, np.ones(len(segment.keys), bool))
        best = reader.search(queries[-1], None, 1, Budget())
        assert best.scores[0] == pytest.approx(1.0)
        first = reader.search(queries[0], None, 3, Budget())  # a question of another generation brings its own model
        again = reader.search(queries[0], None, 3, Budget())
        assert first.scores.tobytes() == again.scores.tobytes()
    assert queries[0].payload.digest != queries[1].payload.digest
