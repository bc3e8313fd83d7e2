"""BM25 engines behind one line protocol, each in a process and, for peers, an environment of its own: `serve("tantivy")`.

A request is one JSON object a line on stdin, its answer one on stdout: {"do": "load" | "build" | "query", …}. Only the standard
library is imported at the top: the peers' environment has nothing of ours.

Every engine has the same passages, k1 = 1.2, b = 0.75 and one thread. Builds are from the text, with each engine's own tokens and
its English stemmer: ours keeps an identifier and adds its parts, tantivy's simple tokenizer splits at what is no letter or digit,
bm25s is told `\\w+`. Questions are asked of indexes of the same terms: ours writes its own postings as numbers, a passage a line,
and the peers index these ("analysed"). Norms differ a little: tantivy rounds lengths, ours does not count an identifier twice.
"""

import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

K1, B = 1.2, 0.75


class Engine(Protocol):
    """Built once from passages, then asked. `parsed` is what a question costs before the index is looked at."""

    def build(self, passages: list[str], analysed: bool) -> None: ...
    def parse(self, text: str) -> Any: ...
    def search(self, parsed: Any, k: int) -> Any: ...
    def ids(self, found: Any) -> list[int]: ...
    def n_postings(self) -> int | None: ...


class Sondage:
    """This project's layer: the k best and the exact mean and variance of all scores."""

    def build(self, passages: list[str], analysed: bool) -> None:
        import numpy as np

        from shards.documents import Documents
        from shards.layers import SpaceSpec, create
        from shards.layers.contract import Resources
        from shards.segment import pack_entries

        self.layer = create(SpaceSpec("bm25", "bm25", {"k1": K1, "b": B, "title_weight": 1, "unit_bytes": 1_000_000}), Resources())
        # Keys in the order of the passages: a row is a passage's number. Hashing belongs to the index job, not to BM25.
        items = ((i.to_bytes(20, "big"), text.encode(), "code") for i, text in enumerate(passages))
        documents, entries = Documents.pack(items), pack_entries(())
        self.arrays = self.layer.build(documents, entries)
        self.statistics = self.layer.collect([(1, self.layer.statistics(self.arrays, documents, entries))])
        self.reader = self.layer.open(self.arrays, documents, entries, np.ones(len(documents), np.bool_))

    def parse(self, text: str) -> Any:
        from shards.layers.contract import Request

        return self.layer.prepare(Request(text), self.statistics)

    def search(self, parsed: Any, k: int) -> Any:
        from shards.types import Budget

        return self.reader.search(parsed, None, k, Budget(60.0))

    def ids(self, found: Any) -> list[int]:
        return found.rows.tolist()

    def n_postings(self) -> int | None:
        return len(self.arrays["posting_units"])

    def write_terms(self, path: Path) -> None:
        """Every passage as the numbers of its terms, a JSON string a line."""
        path.write_text("".join(json.dumps(text) + "\n" for text in as_numbers(self.arrays, len(self.reader._live))))

    def as_terms(self, text: str) -> str:
        """A question as the numbers of its terms."""
        import numpy as np

        asked = self.parse(text)
        return "" if asked is None else " ".join(map(str, np.searchsorted(self.arrays["term_hashes"], asked.payload.terms)))


def as_numbers(arrays: Any, n_rows: int) -> list[str]:
    """Each row of a segment of ours as the numbers of its terms, as often as they count; without those of titles as such, a field of
    ours. arrays: of the layer bm25, `shards.postings`."""
    import numpy as np

    from shards.bm25_statistics import WordList
    from shards.postings import TITLE

    terms = np.repeat(np.arange(len(arrays["term_hashes"])), np.diff(arrays["term_offsets"]))
    words = WordList(arrays["word_blob"], arrays["word_offsets"])
    of_titles = arrays["word_terms"][[words[i].startswith(TITLE.encode()) for i in range(len(words))]]
    in_text = ~np.isin(terms, of_titles)
    terms, units, tfs = terms[in_text], arrays["posting_units"][in_text], arrays["posting_tfs"][in_text]
    by_unit = np.argsort(np.repeat(units, tfs), kind="stable")
    numbers = np.repeat(terms, tfs)[by_unit].astype("U")
    ends = np.searchsorted(arrays["unit_rows"][np.repeat(units, tfs)[by_unit]], np.arange(n_rows), "right").tolist()
    return [" ".join(numbers[start:end].tolist()) for start, end in zip([0, *ends], ends, strict=False)]


class Tantivy:
    """The k best, with block-max WAND. count: how many match as well, as our reader tells, which leaves nothing to skip."""

    def __init__(self, count: bool = False):
        self.count = count

    def build(self, passages: list[str], analysed: bool) -> None:
        import tantivy

        schema = tantivy.SchemaBuilder()
        schema.add_text_field("body", tokenizer_name="whitespace" if analysed else "en_stem", index_option="freq")
        schema.add_unsigned_field("id", stored=True)
        self.folder = tempfile.TemporaryDirectory(prefix="sondage-bench-tantivy-")
        self.index = tantivy.Index(schema.build(), path=self.folder.name)
        writer = self.index.writer(heap_size=1 << 30, num_threads=1)
        for i, text in enumerate(passages):
            writer.add_document(tantivy.Document(body=text, id=i))
        writer.commit()
        writer.wait_merging_threads()
        self.index.reload()
        self.searcher = self.index.searcher()

    def parse(self, text: str) -> Any:
        # Words as its tokenizer finds them: it takes several in one for a phrase, and AND, OR and NOT in capitals for operators.
        return self.index.parse_query(" ".join(re.findall(r"[^\W_]+", text)).lower(), ["body"])

    def search(self, parsed: Any, k: int) -> Any:
        return self.searcher.search(parsed, limit=k, count=self.count).hits

    def ids(self, found: Any) -> list[int]:
        return [self.searcher.doc(address)["id"][0] for _, address in found]

    def n_postings(self) -> int | None:
        return None


class BM25S:
    """The k best from precomputed scores, by compiled loops (its `numba` backend, the faster one)."""

    def build(self, passages: list[str], analysed: bool) -> None:
        import bm25s
        import Stemmer

        self.bm25s, self.stemmer = bm25s, None if analysed else Stemmer.Stemmer("english")
        self.index = bm25s.BM25(method="lucene", k1=K1, b=B, backend="numba")
        self.index.index(self._tokens(passages), show_progress=False)

    def _tokens(self, texts: list[str]) -> Any:
        return self.bm25s.tokenize(
            texts, stopwords=[], stemmer=self.stemmer, token_pattern=r"(?u)\w+", show_progress=False, return_ids=True
        )

    def parse(self, text: str) -> Any:
        return self._tokens([text])

    def search(self, parsed: Any, k: int) -> Any:
        return self.index.retrieve(parsed, k=k, show_progress=False, n_threads=0)

    def ids(self, found: Any) -> list[int]:
        return [int(i) for i, score in zip(found.documents[0], found.scores[0], strict=True) if score > 0]

    def n_postings(self) -> int | None:
        return len(self.index.scores["data"])

    def ranked(self, text: str, k: int) -> tuple[list[int], list[float]]:
        """The k best and all that score as the last of them: passages and scores, unordered. text: terms, of which unknown ones count
        nothing."""
        if not text:
            return [], []  # get_scores takes no empty question
        scores = self.index.get_scores(text.split())
        least = sorted(scores.tolist(), reverse=True)[: min(k, len(scores))][-1]
        found = ((scores >= least) & (scores > 0)).nonzero()[0]
        return found.tolist(), scores[found].tolist()


ENGINES = {"sondage": Sondage, "tantivy": Tantivy, "tantivy, counting": lambda: Tantivy(count=True), "bm25s": BM25S}


def serve(name: str) -> None:
    """Answers requests until stdin ends.

    load {path}: passages, a JSON string a line. build {analysed}: {seconds, cpu_s, n_postings}, of a fresh index.
    terms {path, queries}: {queries}, and the passages in a file, as numbers; only ours.
    ranked {queries, k}: {ranked: (ids, scores) of each query's `BM25S.ranked`}; only bm25s, built from terms.
    query {queries, k}: {parse_s, search_s: one for each, cpu_s: of all searches together, ids}. Times are of this process alone.
    """
    engine: Any = ENGINES[name]()
    passages: list[str] = []
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "load":
            passages = [json.loads(text) for text in Path(asked["path"]).read_text("utf-8").splitlines()]
            answer: dict[str, Any] = {"n_passages": len(passages)}
        elif asked["do"] == "build":
            begun, cpu = time.perf_counter(), time.process_time()
            engine.build(passages, asked["analysed"])
            seconds, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
            answer = {"seconds": seconds, "cpu_s": cpu_s, "n_postings": engine.n_postings()}
        elif asked["do"] == "terms":
            engine.write_terms(Path(asked["path"]))
            answer = {"queries": [engine.as_terms(text) for text in asked["queries"]]}
        elif asked["do"] == "ranked":
            answer = {"ranked": [engine.ranked(text, asked["k"]) for text in asked["queries"]]}
        else:
            answer = _query(engine, asked["queries"], asked["k"])
        print(json.dumps(answer), flush=True)


def _query(engine: Engine, queries: list[str], k: int) -> dict[str, Any]:
    parse_s, search_s, parsed, found = [], [], [], []
    for text in queries:
        begun = time.perf_counter()
        parsed.append(engine.parse(text))
        parse_s.append(time.perf_counter() - begun)
    cpu = time.process_time()
    for question in parsed:
        begun = time.perf_counter()
        found.append(engine.search(question, k))
        search_s.append(time.perf_counter() - begun)
    cpu_s = time.process_time() - cpu
    return {"parse_s": parse_s, "search_s": search_s, "cpu_s": cpu_s, "ids": [engine.ids(f) for f in found]}
