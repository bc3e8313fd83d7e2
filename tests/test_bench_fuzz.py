"""What `jobs/bench.py fuzz` does with few queries: all of them end as they should, and what does not would be reported."""

from argparse import Namespace

from jobs import bench_fuzz
from jobs.bench_fuzz import bench_fuzz as run
from jobs.bench_fuzz import outcome
from jobs.progress import Progress
from jobs.random_queries import RandomQueries
from shards.nlql.errors import NLQLError, ParseError


def test_random_queries_end_in_rows_or_placed_errors(monkeypatch):
    monkeypatch.setattr(bench_fuzz, "SLOW_S", 60.0)  # a busy machine is no failure
    with Progress() as progress:
        figures = run(progress, Namespace(count=40, seed=3))
    assert figures["examples of wrong"] == [] and figures["wrong"] == 0
    assert figures["over 60 s"] == 0 and figures["slowest"]["query"]
    assert sum(figures["ends"].values()) == 40
    assert {"rows", "syntax error"} <= set(figures["ends"])


def test_one_shard_and_three_shards_give_the_same_rows_and_the_same_errors():
    made = RandomQueries(2)
    queries = [
        text for text in (made.query() for _ in range(120)) if "EV" not in text
    ]  # evidence rests on null models, which are of shards
    with bench_fuzz.filled(1) as one, bench_fuzz.filled(3) as three:
        answers = [(answer(one, text), answer(three, text)) for text in queries]
    for text, (alone, apart) in zip(queries, answers, strict=True):
        assert alone == apart, text
    assert sum(isinstance(alone, list) and len(alone) > 0 for alone, _ in answers) > 15


def answer(engine, text):
    """Rows in their order, or the error as it is told."""
    try:
        found = engine.query(text)
    except NLQLError as error:
        return str(error)
    return [(row.id, row.content, row.span, {name: round(score, 4) for name, score in row.scores.items()}) for row in found.rows]


def test_what_ends_otherwise_is_reported():
    class Engine:
        def __init__(self, error):
            self.error = error

        def query(self, text):
            raise self.error

    end, problem = outcome(Engine(ZeroDivisionError("no")), "x")
    assert (end, problem["error"]) == ("wrong: ZeroDivisionError", "ZeroDivisionError('no')")
    assert "test_bench_fuzz.py:" in problem["raised in"]
    assert outcome(Engine(ParseError("no")), "x") == ("wrong: a syntax error without a place", {"error": "no"})
    assert outcome(Engine(ParseError("no", line=1, column=1)), "x") == ("syntax error", None)
