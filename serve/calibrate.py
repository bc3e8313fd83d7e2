"""Fitting the null models of a generation: its probes through every similarity space, queries without an answer through the fusion.

Two passes over all live units per probe and space (`shards.nulls`). The work is in numpy and compiled loops; segments are
scanned by a few threads.
"""

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from serve.answerable import UNUSED, feature_names, features
from serve.evidence import SpaceFacts, weigh
from serve.unanswered import Example, Seen, fused_nulls
from shards.answerability import MIN_EXAMPLES, SURE_WORDS, Answerability
from shards.background import gibberish, strangers, understands
from shards.cloze import cloze_probes, masked_documents
from shards.corpus_nulls import CorpusNulls, Selection
from shards.documents import Documents
from shards.errors import StoreError
from shards.generation import Generation
from shards.layers.contract import Asking, Reader, Request
from shards.nulls import ProbeRank, ProbeScan, SpaceNull, fit_space, known_item_gate, median_sd
from shards.plan import Everything, Glob, Or, Plan, Predicate, SpaceQuery
from shards.probes import (
    MAX_WORDS,
    N_OFFERED,
    N_PROBES,
    Probe,
    choose_probes,
    count_words,
    each_probe,
    rank_hashes,
    shorten,
    shuffle_words,
    word_pools,
)
from shards.segment import pack_entries
from shards.sentence_likeness import SentenceLikeness
from shards.shard import Shard, Space, search
from shards.types import Array, Budget, Candidates, Moments
from shards.weights import Choices, selections
from shards.word_order import MAX_BYTES, MIN_PAIRED, WordFacts, WordOrder

logger = logging.getLogger(__name__)

EVERYTHING = Everything()
N_CLOZE = 2 * N_PROBES  # that weights of spaces are learnt from: 128 left them too much to chance
WORTH_THREADS = 100 << 20  # bytes of text
MIN_PROBES = 8  # sentences; where there are fewer a space of images is probed with its own images
N_EXAMPLES = 3 * N_PROBES // 2  # sentences that tell what is answered; 256 make the verdict no better
# What a derived space counts that no cloze probe could try: less than the spaces whose texts it is made of, which it mostly repeats.
UNTRIED = 0.5
MIN_SENSE = 4  # words; fewer make sense in any order
# Shuffled queries as long as several sentences: how many, and of how many sentences each, so that lengths are spread evenly in their
# logarithm. People paste paragraphs: half of cisi's questions have more than 65 words.
N_AT_LENGTH, SENTENCES = 48, (2, 3, 4, 6, 8, 12)
AT_LENGTH = b"at length"  # salt: other words than those of the others


def sample(shards: list[Shard], where: Predicate = EVERYTHING, n: int = N_OFFERED) -> list[tuple[bytes, bytes]]:
    """The first `n` documents in scope that have any text, in the order of `rank_hashes`, with their renditions; the same for any
    sharding."""
    offers: list[tuple[Array, Shard]] = []
    for shard in shards:
        for view, allowed in zip(shard.views, shard.documents_in(where), strict=True):
            documents = view.segment.documents
            # An image without words would take the place of a text that has some.
            hashes = documents.hashes[allowed & (documents.ends > documents.starts)]
            offers.append((hashes[rank_hashes(hashes)[:n]], shard))
    if not offers:
        return []
    hashes = np.concatenate([h for h, _ in offers])
    owners = [shard for h, shard in offers for _ in range(len(h))]
    chosen = []
    for i in rank_hashes(hashes)[:n].tolist():
        view, row = owners[i].find(hashes[i].tobytes())
        chosen.append((hashes[i].tobytes(), bytes(view.segment.documents.content(row))))
    return chosen


def _readers(shards: list[Shard], space: Space) -> Iterator[tuple[Reader, Callable[[bytes], int]]]:
    """Every reader of a space, with the row of a document in it, or of its first entry (-1 where it has none)."""
    for shard in shards:
        for view in shard.views:
            if space.id in view.readers:
                yield view.readers[space.id], view.row_of if space.layer.over == "documents" else view.first_entry_of


class Calibrator:
    """Fits null models. threads: segments scanned at once; report: told (step, done, total, unit)."""

    def __init__(self, threads: int = 2, report: Callable[[str, int, int, str], None] = lambda *_: None):
        self.threads, self.report = threads, report

    def __call__(self, generation: Generation) -> bytes | None:
        """The null models of an opened generation, as the bytes of the file that its root names; None for an empty corpus."""
        shards = [generation.shard(ref.shard) for ref in generation.root.shards]
        for name, reason in (item for shard in shards for item in shard.unopened.items()):
            raise StoreError(f"Layer {name!r} cannot be calibrated: {reason}")
        if not generation.root.n_docs:
            return None
        documents = sample(shards)
        with ThreadPoolExecutor(1) as aside:  # counting words takes no part of the interpreter's lock from the scans
            counted = aside.submit(WordOrder.fit, _texts(shards)) if len(documents) >= MIN_EXAMPLES else None
            return self._fit(generation, shards, documents, counted).to_bytes()

    def cloze(self, generation: Generation) -> Choices:
        """What cloze probes find in an opened generation that has null models: what the weights of its spaces are learnt from."""
        shards = [generation.shard(ref.shard) for ref in generation.root.shards]
        return Choices((), []) if generation.nulls is None else self._cloze(generation, shards, generation.nulls, sample(shards))

    def _fit(
        self,
        generation: Generation,
        shards: list[Shard],
        documents: list[tuple[bytes, bytes]],
        counted: "Future[WordOrder | None] | None",
    ) -> CorpusNulls:
        offered = each_probe(documents)
        probes = tuple(itertools.islice(offered, N_PROBES))
        spaces: dict[str, SpaceNull] = {}
        for name, space in sorted(generation.spaces.items()):
            if space.layer.null != "moments":
                continue
            # A space that was built for some paths only is probed with sentences of these: others are strangers to it. Not so one that
            # looks at images: it is asked in the words of texts, which never were its units, so any of the corpus will do.
            own = choose_probes(sample(shards, Or(tuple(map(Glob, space.scope))))) if space.scope and not space.layer.media else probes
            fitted = self._space(generation, shards, space, own)
            if fitted is not None:
                spaces[name] = fitted
        n_docs = generation.root.n_docs
        version = generation.root.null_version + 1
        nulls = CorpusNulls(version, spaces, None, n_docs)
        cloze = self._cloze(generation, shards, nulls, documents)
        derived = [name for name in spaces if generation.spaces[name].layer.origin == "derived"]
        untried = {name: UNTRIED * spaces[name].gate for name in derived if name not in cloze.spaces}
        asked = [name for name, s in generation.spaces.items() if s.layer.null == "moments" and s.layer.asked_in_words]
        nulls = replace(
            nulls,
            weights=cloze.weights(cloze.spaces) | untried,
            cloze=cloze.found() if cloze.weights(cloze.spaces) else {},
            selections={
                some: Selection(cloze.weights(some) | {name: w for name, w in untried.items() if name in some}, None)
                for some in selections(asked)
            },
            recalls={some: recall for some in (*selections(cloze.spaces), cloze.spaces) if (recall := cloze.recall(some)) is not None},
        )
        return self._learn(generation, shards, nulls, documents, probes, offered, counted)

    def _prepare(self, generation: Generation, space: Space, text: str) -> SpaceQuery | None:
        query = space.layer.prepare(Request(text), generation.statistics(space.name))
        return None if query is None else replace(query, space=space.name)

    def _space(self, generation: Generation, shards: list[Shard], space: Space, probes: tuple[Probe, ...]) -> SpaceNull | None:
        readers = list(_readers(shards, space))
        if not space.layer.asked_in_words or (space.layer.media and len(probes) < MIN_PROBES):
            # Nobody can put sentences to such a space, or there are none; but what documents themselves would ask is known.
            asked, parts = self._own_questions(space, shards), []
        elif space.layer.media:
            # A sentence is at home among texts, whatever images score: what it finds there is no measure of answers. Images that bring a
            # sentence along are known items, but for what cameras and agencies write into all of theirs: it counts once.
            own = {p.text: p for p in reversed(probes)}
            asked, parts = [(q, p) for p in own.values() if (q := self._prepare(generation, space, p.text)) is not None], []
        else:
            asked = [(q, p) for p in probes if (q := self._prepare(generation, space, p.text)) is not None]
            parts = [(q, p) for p in shorten(probes) if (q := self._prepare(generation, space, p.text)) is not None]
        step, total = f"null model of {space.name}", 2 * len(asked) + len(parts)
        with ThreadPoolExecutor(self.threads) as pool:
            each = _map(pool, generation)

            def first(query: SpaceQuery, source: bytes) -> ProbeScan:
                scanned = each(lambda r: ProbeScan.of(*r[0].scan(query), _row(r[1], source)), readers)
                return ProbeScan.merge(list(scanned))

            def second(query: SpaceQuery, source: bytes, whole: ProbeScan, median: float) -> ProbeRank:
                ranked = each(lambda r: ProbeRank.of(*r[0].scan(query), _row(r[1], source), whole, median), readers)
                return ProbeRank.merge(list(ranked))

            scans = []
            for i, (query, probe) in enumerate(asked):
                scans.append(first(query, probe.source))
                self.report(step, i + 1, total, "queries")
            median = median_sd(scans)
            ranks = []
            for i, ((query, probe), scan) in enumerate(zip(asked, scans, strict=True)):
                ranks.append(second(query, probe.source, scan, median))
                self.report(step, len(asked) + i + 1, total, "queries")
            home = []
            if _reads(space):
                home = [(probe.n_words, _best(query, scan)) for (query, probe), scan in zip(asked, scans, strict=True)]
            for i, (query, probe) in enumerate(parts):
                home.append((probe.n_words, _best(query, first(query, probe.source))))
                self.report(step, 2 * len(asked) + i + 1, total, "queries")
        fitted = fit_space(scans, ranks, home)
        if fitted is not None and asked and not asked[0][1].text:
            # A document finds itself, which says nothing of how well others' questions do.
            fitted = replace(fitted, known_item=math.nan, gate=known_item_gate(math.nan, fitted.n_docs))
        return fitted

    def _own_questions(self, space: Space, shards: list[Shard]) -> list[tuple[SpaceQuery, Probe]]:
        """What documents themselves would ask, the first in the order of `rank_hashes` that can."""
        offers: list[tuple[Array, Asking, Array]] = []
        for shard in shards:
            for view in shard.views:
                if isinstance(reader := view.readers.get(space.id), Asking):
                    rows = reader.rows
                    over_documents = space.layer.over == "documents"
                    hashes = (view.segment.documents if over_documents else view.segment.entries).hashes[rows]
                    best = rank_hashes(hashes)[:N_PROBES]
                    offers.append((hashes[best], reader, rows[best]))
        if not offers:
            return []
        hashes = np.concatenate([offer[0] for offer in offers])
        owners = [(reader, row) for _, reader, rows in offers for row in rows.tolist()]
        asked = []
        for i in rank_hashes(hashes)[:N_PROBES].tolist():
            reader, row = owners[i]
            asked.append((SpaceQuery(space.name, "what is like a document", reader.question_of(row)), Probe(hashes[i].tobytes(), "")))
        return asked

    def _cloze(self, generation: Generation, shards: list[Shard], nulls: CorpusNulls, documents: list[tuple[bytes, bytes]]) -> Choices:
        """What cloze probes find in the similarity spaces that read: each source without its sentence, or with an echo of it, competes with
        what a search finds for the sentence elsewhere."""
        spaces = [s for _, s in sorted(generation.spaces.items()) if s.name in nulls.spaces and _reads(s)]
        if len(spaces) < 2:
            return Choices((), [])
        kept, masked = masked_documents(cloze_probes(documents, N_CLOZE), dict(documents), echoes=True)
        row = {masked.hashes[i].tobytes(): i for i in range(len(masked))}
        readers = {space.name: _masked_reader(space, masked, shards) for space in spaces} if kept else {}

        def choose(probe: Probe) -> tuple[Array, Array]:
            """Surprises of what is left of the probe's source, and of the other documents that are found."""
            queries, found = self._search(generation, shards, spaces, probe.text)
            others = np.zeros(0, bool) if found is None else (found.hashes != np.frombuffer(probe.source, np.uint8)).any(axis=1)
            if found is not None:
                # A space that is built for some documents says nothing of the rest, which would lose against the source for that. Weights
                # learnt from some of what there is to choose from, drawn by lot, are those of all (McFadden 1978).
                some = [at for at, query in enumerate(queries) if generation.spaces[query.space].built == "used"]
                others &= ~np.isnan(found.scores[:, some]).any(axis=1)
            right, rest = np.zeros(len(spaces)), np.zeros((int(others.sum()), len(spaces)))
            for at, query in enumerate(queries):
                j, null = names.index(query.space), nulls.spaces[query.space]
                scores, rows = readers[query.space].scan(query)
                mine = scores[rows == row[probe.source]]
                right[j] = _evidence(null, mine[mine != 0.0], found.moments[at]).max(initial=0.0)  # 0: no match
                rest[:, j] = _evidence(null, found.scores[others, at], found.moments[at])
            return right, rest

        names = [space.name for space in spaces]
        choices = []
        with ThreadPoolExecutor(self.threads) as pool:
            for i, choice in enumerate(_map(pool, generation)(choose, kept)):
                choices.append(choice)
                self.report("weights of spaces", i + 1, len(kept), "queries")
        return Choices(tuple(names), choices)

    def _learn(
        self,
        generation: Generation,
        shards: list[Shard],
        nulls: CorpusNulls,
        documents: list[tuple[bytes, bytes]],
        probes: tuple[Probe, ...],
        more: Iterator[Probe],
        counted: "Future[WordOrder | None] | None",
    ) -> CorpusNulls:
        """The null of fused evidence, from words in senseless order and from sentences about something else; and what tells the corpus's
        own sentences and their parts, seen without their words in the source, from these and from random strings."""
        similar = [s for _, s in sorted(generation.spaces.items()) if s.layer.null == "moments" and s.layer.asked_in_words]
        # Whether it is answered here the source must tell, not texts about it.
        whole = [s for s in similar if s.name in nulls.spaces and not s.scope and _reads(s) and s.layer.origin == "source"]
        partly = {space.name for space in similar if any(_partly(shard, space) for shard in shards)}
        whole = [s for s in whole if s.name not in partly]
        if not similar:
            return nulls
        # Of small documents too little is left without their sentence: then more of them are looked at.
        kept, masked = masked_documents(itertools.chain(probes, more), dict(documents), limit=N_EXAMPLES)
        own = [*kept, *shorten(kept)]
        words = counted.result() if counted is not None and whole and len(kept) >= MIN_EXAMPLES else None
        # In length like sentences and like what people ask, some at length.
        lengths = [*kept[::2], *shorten(kept)] or [*probes[::2], *shorten(probes)]
        pools = word_pools(documents)
        shuffled = shuffle_words(pools, lengths, n_queries=max(len(lengths), N_EXAMPLES))
        shuffled += shuffle_words(pools, at_length(kept or list(probes)), AT_LENGTH, N_AT_LENGTH)
        asked = [Example("shuffled", text) for text in shuffled]
        if words is not None:
            foreign = strangers([p for p in lengths if p.n_words >= MIN_SENSE], words)
            asked += [Example("topic", text) for text in foreign]
            asked += [Example("random", text) for text in gibberish(len(foreign))]
            asked += [Example("", probe.text, probe.source) for probe in own]
        row = {masked.hashes[i].tobytes(): i for i in range(len(masked))}
        readers = {space.name: _masked_reader(space, masked, shards) for space in whole} if words is not None else {}
        names = [space.name for space in whole]
        among = [nulls.weights_among(some) for some in nulls.selections]
        among = [{name: w / (max(chosen.values()) or 1.0) for name, w in chosen.items()} for chosen in among]

        def look(example: Example) -> Seen:
            """What one query finds, its source seen without its words where it has one."""
            spaces = similar if example.kind in ("shuffled", "topic") else whole
            looked = WordFacts() if words is None else words.look(example.text, own=example.source is not None)
            seen = Seen(count_words(example.text), looked)
            queries, found = self._search(generation, shards, spaces, example.text)
            if found is None:
                return seen
            silent = [space.name for space in spaces if space.name not in {query.space for query in queries}]
            facts = [_fact(generation, query, query.space in partly) for query in queries]
            if example.source is not None:
                # What the source says without the sentence stands in for it. No layer scores a unit 0 that matches.
                mine = (found.hashes == np.frombuffer(example.source, np.uint8)).all(axis=1)
                scores = found.scores.copy()
                for j, query in enumerate(queries):
                    hidden, rows = readers[query.space].scan(query)
                    best = hidden[rows == row[example.source]].max(initial=-np.inf)
                    scores[mine, j] = best if best != 0.0 else -np.inf
                found = replace(found, scores=scores)
            fused = weigh(found, facts, nulls, silent)
            seen = replace(seen, best=float(fused.fused.max(initial=0.0)), of_sources=float(fused.of_sources.max(initial=0.0)))
            if spaces is similar:
                counted = np.array([[chosen.get(query.space, 0.0) for query in queries] for chosen in among]).reshape(-1, len(queries))
                seen = replace(seen, of_selections=(fused.surprises @ counted.T).max(axis=0, initial=0.0))
            # No own sentence is longer, and in fewer words there is no order.
            if words is None or seen.n_words > MAX_WORDS or (example.kind == "shuffled" and seen.n_words < MIN_SENSE):
                return seen
            return replace(seen, features=features(fused, facts, names, example.text, looked))

        seen: dict[str, list[Seen]] = {kind: [] for kind in ("shuffled", "topic", "random", "")}
        with ThreadPoolExecutor(self.threads) as pool:
            for i, (example, result) in enumerate(zip(asked, _map(pool, generation)(look, asked), strict=True)):
                seen[example.kind].append(result)
                self.report("what is answered here", i + 1, len(asked), "queries")
        learnt = likeness = None
        if words is not None:

            def examples(*kinds: str) -> Array:
                return np.array([s.features for kind in kinds for s in seen[kind] if s.features is not None])

            kinds = {"topic": examples("topic", "random")}
            # Where neighbours tell little of shuffled words, a test against these would go by what they find, which is more than own
            # sentences find whose source is seen without them: it refused 6 of 10 judged questions of xquad-de.
            if words.n_words >= SURE_WORDS:
                kinds["order"] = examples("shuffled")
            learnt = Answerability.fit(feature_names(names), names, examples(""), kinds, words, UNUSED)
            # Sentences about something else are a null of the corpus where its language makes them sentences.
            if learnt is not None and words.n_words >= MIN_PAIRED and understands(words):
                likeness = SentenceLikeness.fit(*([(s.words, s.n_words) for s in seen[kind]] for kind in ("topic", "shuffled")))
        nulls_of = fused_nulls(seen["shuffled"], seen["topic"] if likeness is not None else [], likeness, generation.root.n_docs)
        sources = [space.name for space in similar if space.layer.origin == "source"]
        chosen = {}
        for i, (some, selection) in enumerate(nulls.selections.items()):
            chosen[some] = replace(selection, fused=nulls_of(lambda s, i=i: 0.0 if s.of_selections is None else s.of_selections[i], some))
        return replace(
            nulls,
            fused=nulls_of(lambda s: s.best, [space.name for space in similar]),
            answerability=learnt,
            fused_of_sources=nulls_of(lambda s: s.of_sources, sources) if 0 < len(sources) < len(similar) else None,
            selections=chosen,
            likeness=likeness,
        )

    def _search(
        self, generation: Generation, shards: list[Shard], spaces: list[Space], text: str
    ) -> tuple[list[SpaceQuery], Candidates | None]:
        """What searches of these spaces alone find over the whole corpus, and what they were asked."""
        queries = [q for space in spaces if (q := self._prepare(generation, space, text)) is not None]
        if not queries:
            return [], None
        plan = Plan(Everything(), tuple(queries), n_details=0, budget_s=60.0)
        return queries, search(shards, plan, Budget(plan.budget_s))


def at_length(sentences: Sequence[Probe]) -> list[Probe]:
    """As long as several sentences each, in turn of SENTENCES; none of no sentences."""
    found = []
    for i in range(N_AT_LENGTH if sentences else 0):
        some = [sentences[(i * SENTENCES[-1] + j) % len(sentences)] for j in range(SENTENCES[i % len(SENTENCES)])]
        found.append(Probe(b"", " ".join(probe.text for probe in some)))
    return found


def _reads(space: Space) -> bool:
    """Whether a space looks at the words of documents, so that a text without its sentence tells how well it finds it: and one that can
    be made of some hundred such texts at once, which a model that writes about them cannot."""
    return space.layer.asked_in_words and not space.layer.media and space.layer.maskable


def _texts(shards: list[Shard]) -> list[tuple[Array, Array, Array]]:
    """Live documents for `WordOrder.fit`: all of them, or the first in the order of `rank_hashes` that 16 MB hold."""
    views = [(view, rows) for shard in shards for view in shard.views if len(rows := np.flatnonzero(view.live_docs))]
    sizes = [np.asarray(view.segment.documents.ends[rows] - view.segment.documents.starts[rows]) for view, rows in views]
    if sum(int(s.sum()) for s in sizes) > MAX_BYTES:
        order = rank_hashes(np.concatenate([view.segment.documents.hashes[rows] for view, rows in views]))
        total = np.cumsum(np.concatenate(sizes)[order])
        wanted = np.zeros(len(order), bool)
        wanted[order[: np.searchsorted(total, MAX_BYTES) + 1]] = True
        parts = np.split(wanted, np.cumsum([len(rows) for _, rows in views])[:-1])
        views = [(view, rows[part]) for (view, rows), part in zip(views, parts, strict=True)]
    texts = []
    for view, rows in views:
        documents = view.segment.documents
        starts = np.asarray(documents.starts[rows], np.int64)
        # of one huge document the beginning is enough
        texts.append((np.asarray(documents.text), starts, np.minimum(documents.ends[rows], starts + MAX_BYTES).astype(np.int64)))
    return texts


def _map(pool: ThreadPoolExecutor, generation: Generation) -> Callable[..., Iterator[Any]]:
    """The pool's `map` where scans take milliseconds; else that of the interpreter, for whose lock threads would wait longer."""
    return pool.map if generation.root.text_bytes >= WORTH_THREADS else map


def _best(query: SpaceQuery, scan: ProbeScan) -> float:
    """How near the best document comes that is not the query's source: its score, as a share of what is asked for where that is
    known."""
    return scan.best / (query.most or 1.0)


def _fact(generation: Generation, query: SpaceQuery, partly: bool) -> SpaceFacts:
    space = generation.spaces[query.space]
    n_units = int(generation.statistics(query.space).n_units)
    return SpaceFacts(query.space, "moments", n_units, origin=space.layer.origin, most=query.most, partly=partly)


def _partly(shard: Shard, space: Space) -> bool:
    """Whether a space that is built where it is used is not built for all of a shard yet."""
    return space.built == "used" and not all(shard.built(space, view)[view.live_docs].all() for view in shard.views)


def _masked_reader(space: Space, masked: Documents, shards: list[Shard]) -> Reader:
    """A reader over documents that are in no segment. A space built for some paths only sees those whose sources lie there."""
    entries = pack_entries([])
    scope = None
    if space.scope:
        inside = Or(tuple(map(Glob, space.scope)))
        kept = {
            key.tobytes()
            for shard in shards
            for view, allowed in zip(shard.views, shard.documents_in(inside), strict=True)
            for key in view.segment.documents.hashes[allowed]
        }
        scope = np.array([key.tobytes() in kept for key in masked.hashes], bool)
    arrays = space.layer.build(masked, entries, scope)
    return space.layer.open(arrays, masked, entries, np.ones(len(masked), bool))


def _evidence(null: SpaceNull, scores: Array, moments: Moments | None) -> Array:
    """Surprise as fusion counts it: none where there is no match or no score."""
    return np.where(np.isfinite(scores), np.nan_to_num(null.surprise(null.z(scores, moments))), 0.0)


def _row(row_of: Callable[[bytes], int], source: bytes) -> int | None:
    row = row_of(source)
    return row if row >= 0 else None
