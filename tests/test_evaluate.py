"""The evaluator from files to figures, over the engine that serves."""

import gzip
import html.parser
import json
import re
import threading
import time

import pytest
import uvicorn
from scipy.stats import kstest
from test_metrics import assert_same_as_ir_measures

from jobs import cli, datasets, evaluate, report
from jobs.datasets import BadDataset
from jobs.metrics import METRICS, Evaluation, Measured, measure, ranking
from jobs.settings import Settings
from jobs.verdicts import distance_from_uniform
from serve.http import create_app
from serve.local import local_coordinator
from serve.schema import EntryOut, SearchRequest

TOPICS = {
    "tide": "The tide rises twice a day because the moon pulls the sea",
    "bread": "Bread rises when yeast turns sugar into gas, and sourdough needs no yeast from a shop",
    "harbour": "The harbour master closes the gate of the dock at low water",
    "loom": "A loom holds the warp threads under tension while the weft is woven through",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """48 documents, of which two have the same text; 4 judged queries and one that is not judged; ids that no file can bear."""
    folder = tmp_path_factory.mktemp("data") / "sea and bread"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"{t}/{i} x", "title": t.title(), "text": f"{text}, as page {i} of {i * 7 + 3} tells."}
                 for t, text in TOPICS.items() for i in range(12)]  # fmt: skip
    documents.append({"_id": "same", "title": "", "text": "Salt is left behind by evaporated brine."})
    documents.append({"_id": "same.txt", "text": "Salt is left behind by evaporated brine."})
    with gzip.open(folder / "corpus.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(d) + "\n" for d in documents)
    queries = {"1": "why does the tide rise", "2": "sourdough without yeast", "u": "loom", "3": "evaporated brine", "4": "dock gate page 7"}
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": q, "text": t}) + "\n" for q, t in queries.items()))
    rows = [("1", "tide/3 x", 2), ("1", "tide/4 x", 1), ("2", "bread/7 x", 1), ("3", "same", 1), ("3", "same.txt", 1)]
    rows.append(("4", "harbour/7 x", 1))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{d}\t{g}\n" for q, d, g in rows))
    return folder


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """The command with a cache of its own; gives exit code, report, stdout and stderr."""
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path / "cache"))
    for name in ("SONDAGE_STORE", "SONDAGE_URL", "SONDAGE_CORPUS"):
        monkeypatch.delenv(name, raising=False)

    def command(*words):
        target = tmp_path / "out.json"
        target.unlink(missing_ok=True)
        code = cli.main(["evaluate", *map(str, words), "--json", str(target)])
        out, err = capsys.readouterr()
        return code, json.loads(target.read_text()) if target.exists() else None, out, err

    return command


TWO = "bm25,words=bm25:stem=false"


def test_the_report_has_each_layer_and_coupling_by_name(folder, run, tmp_path):
    code, found, out, err = run("--dataset", folder, "--layers", TWO, "--html", tmp_path / "r.html", "--runs", tmp_path / "runs")
    assert code == 0, err
    assert (found["dataset"], found["shards"], found["queries"], found["docs"]) == ("sea and bread", 1, 4, 49)
    assert set(found["runs"]) == {"bm25", "words", "evidence"}
    for figures in found["runs"].values():
        assert all(0 < figures[metric] <= 1 for metric in METRICS) and figures["ms_p50"] > 0
        assert sum(figures["verdicts"].values()) == 4
        assert figures["per_query"]["recall@100"]["3"] == 1.0  # both places of the one text
    assert all(name in out for name in ("bm25", "words", "evidence", "ndcg@10"))
    assert {(t["a"], t["b"]) for t in found["tests"]} == {("evidence", "bm25"), ("evidence", "words"), ("bm25", "words")}
    qrels = datasets.read_qrels(folder / "qrels/test.tsv")
    for name in found["runs"]:
        written = datasets.read_run(tmp_path / f"runs/{name}.trec")
        assert_same_as_ir_measures(qrels, written, tmp_path / "again.trec")


def test_couplings_are_measured_side_by_side(folder, run):
    code, found, _, err = run("--dataset", folder, "--layers", TWO, "--couplings", "evidence,rrf:k=2,none")
    assert code == 0, err
    assert set(found["runs"]) == {"bm25", "words", "evidence", "rrf:k=2", "none"}
    assert all(figures["per_query"]["recall@100"]["3"] == 1.0 for figures in found["runs"].values())


def test_the_page_needs_nothing_else_and_is_well_formed(folder, run, tmp_path):
    assert run("--dataset", folder, "--layers", TWO, "--html", tmp_path / "r.html")[0] == 0
    page = (tmp_path / "r.html").read_text()
    assert not re.search(r"(?:src|href)=|url\(|<script", page)
    assert page.count("<svg") == 1 + 3

    class Balanced(html.parser.HTMLParser):
        def __init__(self):
            super().__init__()
            self.open = []

        def handle_starttag(self, tag, attrs):
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []


def test_figures_do_not_depend_on_shards_and_a_second_run_indexes_nothing(folder, run, tmp_path):
    _, one, _, _ = run("--dataset", folder, "--layers", TWO)
    before = sorted(str(p) for p in (tmp_path / "cache/evaluation").rglob("*"))
    _, again, _, _ = run("--dataset", folder, "--layers", TWO)
    assert sorted(str(p) for p in (tmp_path / "cache/evaluation").rglob("*")) == before
    _, four, _, _ = run("--dataset", folder, "--layers", TWO, "--shards", 4)
    assert four["shards"] == 4
    for name, figures in one["runs"].items():
        assert again["runs"][name]["per_query"] == four["runs"][name]["per_query"] == figures["per_query"]
        assert four["runs"][name]["verdicts"] == figures["verdicts"]
        # The shards share one segment; each has statistics of its part.
        assert figures["bytes"] < four["runs"][name]["bytes"] < 2 * figures["bytes"]


def test_over_http_the_figures_are_those_of_this_process(folder, run, tmp_path):
    store = tmp_path / "store"
    further = ("--calibration", 8, "--answerability", "--predictors")
    code, inside, _, err = run("--dataset", folder, "--layers", TWO, "--store", store, *further)
    assert code == 0, err
    settings = Settings.load(store=str(store))
    server = uvicorn.Server(uvicorn.Config(create_app(local_coordinator(settings.host_settings())), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not (server.started and server.servers):
            assert thread.is_alive()
            time.sleep(0.01)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        code, outside, _, err = run("--dataset", folder, "--http", url, *further)
        assert code == 0, err
        assert outside["sections"] == inside["sections"] and set(inside["sections"]) == {"calibration", "answerability", "predictors"}
        code, files, _, err = run("--queries", folder / "queries.jsonl", "--qrels", folder / "qrels/test.tsv", "--http", url,
                                  "--corpus", "sea-and-bread")  # fmt: skip
        assert code == 0, err
    finally:
        server.should_exit = True
        thread.join()
    for name, figures in inside["runs"].items():
        assert outside["runs"][name]["per_query"] == files["runs"][name]["per_query"] == figures["per_query"]


def test_a_sweep_sets_each_value_beside_the_first(folder, run):
    dials = ["--sweep", "bm25.k1=0.9,1.2", "--sweep", "bm25.unit_bytes=100,2000"]
    code, found, out, err = run("--dataset", folder, "--layers", "bm25:b=0.5", *dials)
    assert code == 0, err
    assert [(s["parameter"], s["value"]) for s in found["sweeps"]] == [
        ("bm25.k1", "0.9"), ("bm25.k1", "1.2"), ("bm25.unit_bytes", "100"), ("bm25.unit_bytes", "2000"),
    ]  # fmt: skip
    assert found["sweeps"][1]["per_query"] == found["runs"]["bm25"]["per_query"]  # 1.2 is the default, b is that of --layers
    assert all(s["bytes"] > 0 and s["ms_p50"] > 0 for s in found["sweeps"])
    assert "bm25.k1" in out and "0.9" in out
    assert len(found["tests"]) == 2
    assert "evidence" not in found["runs"]  # one layer has nothing to be coupled with


def test_runs_and_earlier_reports_are_compared(folder, run, tmp_path, capsys):
    _, first, _, _ = run("--dataset", folder, "--layers", TWO, "--runs", tmp_path / "runs")
    (tmp_path / "earlier.json").write_text(json.dumps(first))
    code, found, _, err = run("--dataset", folder, "--run", tmp_path / "runs/words.trec", "--compare", tmp_path / "earlier.json",
                              "--layers", "bm25")  # fmt: skip
    assert code == 0, err
    assert set(found["runs"]) == {"bm25", "words", "earlier:bm25", "earlier:words", "earlier:evidence"}
    assert found["runs"]["words"]["per_query"] == first["runs"]["words"]["per_query"] == found["runs"]["earlier:words"]["per_query"]
    same = next(t for t in found["tests"] if {t["a"], t["b"]} == {"bm25", "earlier:bm25"})
    assert (same["difference"], same["p"], same["ties"]) == (0.0, 1.0, 4)
    code, found, _, err = run("--qrels", folder / "qrels/test.tsv", "--run", tmp_path / "runs/words.trec")  # nothing is searched
    assert code == 0, err
    assert found["runs"]["words"]["per_query"] == first["runs"]["words"]["per_query"] and found["shards"] == 0
    alone = ["--qrels", str(folder / "qrels/test.tsv"), "--run", str(tmp_path / "runs/words.trec"), "--json", "-"]
    assert cli.main(["evaluate", *alone]) == 0
    assert json.loads(capsys.readouterr().out)["runs"]["words"]["per_query"] == found["runs"]["words"]["per_query"]


def test_python_code_is_a_collection_too(run, tmp_path):
    code = tmp_path / "yard"
    code.mkdir()
    (code / "loom.py").write_text(
        "".join(f'def {name}(x):\n    """{text}"""\n    return {name}_of(x)\n\n\n' for name, text in TOPICS.items())
    )
    exit_code, found, _, err = run("--docstrings", code, "--layers", TWO)
    assert exit_code == 0, err
    assert (found["dataset"], found["queries"], found["docs"]) == ("yard-docstrings", 4, 4)
    assert found["runs"]["bm25"]["ndcg@10"] == 1.0  # the functions are named by words of their sentences
    _, again, _, _ = run("--docstrings", code, "--layers", TWO)
    assert again["runs"]["bm25"]["per_query"] == found["runs"]["bm25"]["per_query"]


def test_a_limit_takes_the_first_judged_queries(folder, run):
    _, found, _, _ = run("--dataset", folder, "--layers", "bm25", "--limit", "2")
    assert list(found["runs"]["bm25"]["per_query"]["map"]) == ["1", "2"]


def test_queries_whose_verdict_is_known_are_counted(folder, run, tmp_path):
    other = tmp_path / "another sea"
    other.mkdir()
    (other / "queries.jsonl").write_text('{"_id": "1", "text": "qwzx vbnm"}\n{"_id": "2", "text": "the tide rises"}\n')
    page = tmp_path / "page.html"
    code, found, out, err = run("--dataset", folder, "--layers", "bm25", "--nonsense", 30, "--foreign", other, "--html", page)
    assert code == 0, err
    by_kind = {verdicts["kind"]: verdicts for verdicts in found["verdicts"]}
    assert list(by_kind) == ["random strings", "shuffled words", "foreign: another sea"]  # titles of one word are no questions
    assert sum(by_kind["random strings"]["counts"].values()) == 30 and by_kind["random strings"]["counts"]["strong"] == 0
    assert by_kind["foreign: another sea"]["counts"]["none"] == 1
    assert sum(by_kind["shuffled words"]["counts"].values()) == 30 and 0 < by_kind["shuffled words"]["ks"] <= 1
    assert by_kind["random strings"]["ks"] is None
    assert "foreign: another sea" in out and "foreign: another sea" in page.read_text()


def test_distance_from_uniform_is_that_of_scipy():
    values = [0.1, 0.15, 0.7, 1.0, 0.4]
    assert distance_from_uniform(values) == pytest.approx(kstest(values, "uniform").statistic)


def test_an_answer_without_verdict_keeps_its_hits_only_when_asked_to(folder, run, tmp_path):
    run("--dataset", folder, "--layers", "bm25", "--store", tmp_path / "store")
    import sondage

    with sondage.Engine(tmp_path / "store", cache=tmp_path / "cache") as engine:
        for query in ("tide zzyzx qwrtp blorf", "zzyzx tells quuxify blorf wibble frobnicate", "page xyzzy", "the of by"):
            fields = {"query": query, "corpus": "sea-and-bread", "k": 100}
            plain, kept = engine.search(SearchRequest(**fields)), engine.search(SearchRequest(**fields, keep_all=True))
            assert (plain.verdict, plain.verdict_reason) == (kept.verdict, kept.verdict_reason)
            if plain.verdict == "none":
                assert plain.hits == []
            else:
                assert plain.hits == kept.hits
        nothing = [e for e in ("zzyzx tells quuxify blorf wibble frobnicate", "page xyzzy")
                   if (a := engine.search(e, "sea-and-bread", keep_all=True)).verdict == "none" and a.hits]  # fmt: skip
        assert nothing, "no query of these has both a verdict of none and hits"


class Answered:
    """An answer's hits, by fused evidence and the paths they lie at."""

    def __init__(self, *hits):
        self.hits = [type("Hit", (), {"fused": f, "entries": [EntryOut(source=s, path=p, size_bytes=1, mtime=0) for s, p in e]})
                     for f, e in hits]  # fmt: skip


def test_a_run_keeps_the_order_that_was_served():
    """The engine broke a tie, and a document lies in two places: scores fall strictly, so that trec_eval sees that very order."""
    made = datasets.SOURCE_NAME
    answer = Answered((3.0, [(made, "a.txt"), (made, "c%2Fd.txt")]), (3.0, [(made, "z.txt")]), (1.0, [("other", "x y.txt")]))
    scores = evaluate.scores_of(answer, 100)
    assert list(scores) == ["a", "c/d", "z", "x%20y.txt"] == ranking(scores)
    assert scores["a"] == 3.0 and scores["x%20y.txt"] == 1.0
    assert list(evaluate.scores_of(answer, 2)) == ["a", "c/d"]


# --- files --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), [
    ('{"_id": "1", "text": "one"}\n{"_id": 2, "text": "two"}\n', {"1": "one", "2": "two"}),
    ("1\tone\n\nb c\ttwo\twords\n", {"1": "one", "b%20c": "two\twords"}),
    ("<top>\n<num> Number: 301\n<title> International\n Crime\n<desc> x\n</top>\n<top><num>302</num><title>Polio</title></top>",
     {"301": "International Crime", "302": "Polio"}),
])  # fmt: skip
def test_queries_are_read_in_three_formats(text, expected, tmp_path):
    (tmp_path / "q").write_text(text)
    assert datasets.read_queries(tmp_path / "q") == expected


@pytest.mark.parametrize("text", [
    "query-id\tcorpus-id\tscore\n1\ta b\t2\n1\tc\t0\n", "1 0 a%20b 2\n1 0 c 0\n", "1\t0\ta b\t2\n1\t0\tc\t0\n",
])  # fmt: skip
def test_judgements_are_read_in_both_formats(text, tmp_path):
    (tmp_path / "q").write_text(text)
    assert datasets.read_qrels(tmp_path / "q") == {"1": {"a%20b": 2, "c": 0}}


@pytest.mark.parametrize(("reader", "text", "message"), [
    (datasets.read_queries, '{"_id": "1", "text": "x"}\n{"_id": "1", "text": "y"}\n', "f:2: id '1' occurs a second time"),
    (datasets.read_queries, '{"_id": "1", "text": "x"}\n{"id": "2"}\n', 'f:2: has no "_id"'),
    (datasets.read_queries, '{"_id": "1", "text": "x"}\n\n{"_id": \n', "f:3: not JSON"),
    (datasets.read_queries, '{"_id": "1", "text": ["x"]}\n', 'f:1: "text" is no text'),
    (datasets.read_queries, '{"_id": "1", "text": " "}\n', "f:1: query '1' has no text"),
    (datasets.read_queries, "1 one\n", "f:1: no tab"),
    (datasets.read_queries, "", "no queries"),
    (datasets.read_queries, "\n<top>\n<num> 1\n</top>", "f:2: the topic lacks"),
    (datasets.read_qrels, "q\td\t1\nq\te\tgood\n", "f:2: grade 'good' is no whole number"),
    (datasets.read_qrels, "q\td\t1\nq\td\t2\n", "f:2: document 'd' of query 'q' is judged 1 before, now 2"),
    (datasets.read_qrels, "q d\n", "f:1: 2 columns"),
    (datasets.read_run, "q Q0 d 1 0.5\n", "f:1: 5 columns"),
    (datasets.read_run, "q Q0 d 1 high t\n", "f:1: score 'high' is no number"),
    (datasets.read_run, "q Q0 d 1 2 t\nq Q0 d 2 1 t\n", "f:2: document 'd' occurs a second time"),
    (datasets.read_run, "", "is an empty run"),
])  # fmt: skip
def test_what_is_wrong_in_a_file_is_said_with_its_line(reader, text, message, tmp_path):
    (tmp_path / "f").write_text(text)
    with pytest.raises(BadDataset, match=re.escape(message)):
        reader(tmp_path / "f")


def test_a_broken_archive_is_named(tmp_path):
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(b'{"_id": "1", "text": "x"}\n' * 50)[:-9])
    with pytest.raises(BadDataset, match=r"q\.jsonl\.gz"):
        datasets.read_queries(tmp_path / "q.jsonl.gz")


@pytest.mark.parametrize(("words", "message"), [
    ([], "Give --dataset DIR, --docstrings, or --qrels FILE"),
    (["--dataset", "/nowhere"], "There is no folder /nowhere"),
    (["--dataset", "{folder}", "--split", "dev"], "Choose with --split from: test"),
    (["--dataset", "{folder}", "--couplings", "magic"], "Choose from: evidence"),
    (["--dataset", "{folder}", "--couplings", "minmax:k=2"], "rrf takes k, as in rrf:k=2"),
    (["--dataset", "{folder}", "--layers", "bm52"], "Unknown layer 'bm52'"),
    (["--dataset", "{folder}", "--layers", "bm25", "--sweep", "bm25.k2=1"], "Its dials are: "),
    (["--dataset", "{folder}", "--sweep", "bm25"], "LAYER.DIAL=A,B,C"),
    (["--dataset", "{folder}", "--docstrings"], "--dataset and --docstrings both name a collection"),
    (["--docstrings", "/nowhere"], "There is no folder /nowhere"),
    (["--dataset", "{folder}", "--limit", "0"], "--limit"),
    (["--dataset", "{folder}", "--layers", "bm25", "--nonsense", "0"], "take N >= 1"),
    (["--qrels", "{folder}/qrels/test.tsv", "--foreign", "{folder}"], "take N >= 1"),
    (["--qrels", "{folder}/qrels/test.tsv"], "Nothing to evaluate"),
    (["--qrels", "{folder}/qrels/test.tsv", "--corpus", "x"], "Searching needs queries"),
    (["--qrels", "{folder}/qrels/test.tsv", "--queries", "{folder}/queries.jsonl", "--corpus", "x", "--store", "{folder}"],
     "No corpus 'x' in"),
    (["--dataset", "{folder}", "--layers", "bm25", "--compare", "{folder}/queries.jsonl"], "queries.jsonl:1: "),
])  # fmt: skip
def test_what_cannot_be_evaluated_is_said_in_one_line(words, message, folder, run):
    code, found, _, err = run(*(word.format(folder=folder) for word in words))
    assert code == 2 and found is None
    (line,) = [line for line in err.splitlines() if line.startswith("sondage evaluate: ")]
    assert message in line


def test_a_judged_query_without_text_is_an_error(folder):
    with pytest.raises(BadDataset, match=r"query 'x' is judged but has no text"):
        datasets.judged("d", {"1": "one"}, {"x": {"d": 1}}, folder / "qrels/test.tsv")


def test_names_with_markup_are_shown_as_they_are():
    odd = "<b>[bold]&"
    runs = [Measured(odd, "given", measure({"q": {"d": 1.0}}, {"q": {"d": 1}}, ["q"]))]
    page = report.as_html(Evaluation(odd, 0, 0, 0, 100, ["q"], runs, [], []))
    assert odd not in page and "&lt;b&gt;[bold]&amp;" in page
