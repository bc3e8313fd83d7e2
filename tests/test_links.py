"""Searches as links: what fits is asked by GET, and is the same search."""

from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.links import MAX_LINK_CHARS, parameters_of, request_of
from serve.problems import InvalidRequest
from serve.schema import Coupling, Rerank, SearchRequest

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
requests = st.builds(
    SearchRequest,
    corpus=st.text("abc", min_size=1, max_size=5),
    query=words,
    layers=st.just("auto") | st.lists(st.text("abc,", min_size=0, max_size=5), max_size=3),
    paths=st.lists(words, max_size=3),
    where=st.none() | st.dictionaries(words, st.integers() | words, max_size=2),
    k=st.integers(1, 1000),
    budget_ms=st.integers(1, 60_000),
    cursor=st.none() | words,
    generation=st.none() | st.integers(1, 10**9),
    highlight=st.booleans(),
    explain=st.booleans(),
    keep_all=st.booleans(),
    coupling=st.builds(Coupling, name=st.sampled_from(["evidence", "select", "none"]))
    | st.builds(Coupling, name=st.just("rrf"), k=st.integers(0, 99)),
    weights=st.dictionaries(words, st.floats(0, 1e9), max_size=2),
    rerank=st.sampled_from([None, None, False])
    | st.builds(Rerank, model=st.text("a/é&", min_size=1), depth=st.integers(1, 200), query=st.none() | words),
)


@given(requests)
def test_a_link_asks_what_the_request_says_or_there_is_none(request):
    parameters = parameters_of(request)
    if parameters is None:
        return
    link = urlencode(parameters)
    assert len(link) <= MAX_LINK_CHARS
    assert request_of(parse_qsl(link, keep_blank_values=True)) == request


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"query": "tide"}, True),
        ({"query": "tide", "layers": ["bm25", "static"], "paths": ["notes/**"], "where": {"size_bytes": {"<": 9}}, "k": 3}, True),
        ({"query": "tide", "explain": True, "highlight": False, "generation": 4}, True),
        ({"query": "ü" * 320}, True),
        ({"query": "ü" * 340}, False),
        ({"forms": {"text": {"pattern": "x"}}}, False),
        ({"query": "tide", "keep_all": True}, False),
        ({"query": "tide", "coupling": Coupling(name="rrf", k=2), "weights": {"bm25": 1, "dense": 0.5}}, True),
        ({"query": "tide", "layers": []}, False),
        ({"query": "tide", "rerank": {"model": "owner/name", "depth": 50}}, True),
        ({"query": "tide", "rerank": {"model": "tiny", "endpoint": "default"}}, False),
        ({"query": "tide", "rerank": False}, False),
        ({"query": "tide", "layers": ["a,b"]}, False),
    ],
)
def test_what_fits_into_a_link(fields, fits):
    assert (parameters_of(SearchRequest(corpus="news", **fields)) is not None) is fits


def test_a_parameter_that_is_given_twice_counts_once_unless_it_is_a_list():
    asked = request_of([("corpus", "a"), ("corpus", "b"), ("path", "x"), ("path", "y"), ("layers", "bm25,static"), ("layers", "names")])
    assert (asked.corpus, asked.paths, asked.layers) == ("b", ["x", "y"], ["bm25", "static", "names"])


def test_an_unknown_parameter_is_named():
    with pytest.raises(InvalidRequest, match="qq: unknown field; did you mean 'q'"):
        request_of([("corpus", "a"), ("qq", "x")])
