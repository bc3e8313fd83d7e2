"""What a corpus of some ten thousand words learns of what it answers: the articles of Python's own `help()`."""

import pytest
from engine import Engine

from shards.answerability import MIN_EXAMPLES
from shards.word_order import MIN_PAIRED, MIN_WORDS

N_TOPICS = 70


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    from pydoc_data.topics import topics

    folder = tmp_path_factory.mktemp("small")
    source = folder / "source"
    source.mkdir()
    # Of each the beginning: whole, they are more words than a small corpus has.
    for name in sorted(topics)[:N_TOPICS]:
        (source / f"{name}.txt").write_text(topics[name][:2_500], "utf-8")
    engine = Engine(folder, ["bm25"])
    engine.index(source)
    return engine


def test_a_small_corpus_learns_to_tell_its_own_questions_from_others_but_no_order_of_words(engine):
    nulls = engine.generation().nulls
    assert nulls.n_docs >= MIN_EXAMPLES and MIN_WORDS <= nulls.answerability.words.n_words < MIN_PAIRED
    assert set(nulls.answerability.tests) == {"topic"} and nulls.likeness is None
    assert nulls.likeness_of("What is the value of an attribute of a class?") == 0.0


@pytest.mark.parametrize(
    ("question", "answered"),
    [
        ("what is the precedence of operators in an expression", True),
        ("how are attributes of an instance looked up in its class", True),
        ("which trains go to the coast on Sundays", False),
        ("who painted the ceiling of the chapel", False),
    ],
)
def test_its_margin_is_above_zero_for_what_it_answers_alone(engine, question, answered):
    answer = engine.search(question, explain=True)
    assert (answer.answerable > 0) == answered
    assert (answer.verdict != "none") == answered


def test_a_corpus_of_few_different_words_that_nobody_else_uses_is_indexed_and_searched(tmp_path):
    """Logs, say: all words are common ones, so no sentence about something else can be made of its own, and no other is in its words."""
    words = [f"w{chr(97 + i % 26)}{chr(97 + i // 26)}x" for i in range(100)]
    source = tmp_path / "source"
    source.mkdir()
    for i in range(80):
        lines = (" ".join(words[(7 * i + 3 * j + k * k) % 100] for k in range(12)) + "." for j in range(15))
        (source / f"{i}.txt").write_text("\n".join(lines).capitalize(), "utf-8")
    engine = Engine(tmp_path, ["bm25"])
    engine.index(source)
    assert engine.generation().nulls.answerability is None
    assert engine.search(" ".join(words[:4]), keep_all=True).hits
