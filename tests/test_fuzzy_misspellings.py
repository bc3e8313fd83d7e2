"""A table of misspellings finds its originals, among 30 modules of the standard library and as many notes."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest

from jobs import misspellings
from shards.documents import Documents
from shards.identity import content_hash
from shards.layers.contract import Request, Resources
from shards.layers.fuzzy import Fuzzy
from shards.types import Budget

MODULES = (
    "json/decoder", "json/encoder", "asyncio/queues", "asyncio/tasks", "asyncio/base_events", "http/server", "http/client", "shutil",
    "heapq", "bisect", "textwrap", "csv", "logging/handlers", "email/message", "unittest/case", "threading", "subprocess", "tempfile",
    "zipfile", "inspect", "functools", "collections/__init__", "argparse", "sched", "statistics", "fractions", "decimal", "calendar",
    "ipaddress", "uuid",
)  # fmt: skip
NOTES = """
The hotel had accommodation for forty guests, and embarrassment followed when sixty came.
It is definitely necessary to receive the committee's questionnaire before the millennium ends.
A privilege of the lieutenant was to manoeuvre the maintenance crew through the rhythm of the seasons.
Her conscience and pronunciation were beyond reproach; the liaison with the restaurant was an occurrence of yesterday.
Mischievous neighbours threw vegetables at the guarantee's signature on the fluorescent bureaucracy.
A hierarchy of parallel playwrights, an inoculation against pharaohs, and a handkerchief of indispensable silk.
The psychologist diagnosed schizophrenia and pneumonia in the ophthalmologist's camaraderie.
Dmitri Shostakovich and Pyotr Tchaikovsky never met Friedrich Nietzsche or Albert Schweitzer.
Arnold Schwarzenegger played chess with Garry Kasparov in Reykjavik and Albuquerque.
Mahatma Gandhi corresponded with Rabindranath Tagore about Siddhartha and Massachusetts.
Vladimir Levenshtein measured distances; Andrey Kolmogorov measured complexity; Pafnuty Chebyshev bounded deviations.
Ludwig Wittgenstein wrote the Tractatus; Soren Kierkegaard wrote Either/Or in Copenhagen.
def getUserPreferences(session): return fetchConfiguration(session).preferences
class AuthenticationMiddleware(BaseMiddleware): validateCredentials = True
def calculate_standard_deviation(samples): normalize_histogram(samples)
const asynchronousInitializer = createObservableProperty(initialState);
MAX_CONCURRENT_CONNECTIONS = 64; RETRY_EXPONENTIAL_BACKOFF = True
fn serialize_checkpoint(tensor: &Tensor) -> Result<Checkpoint, SerializationError>
struct PersistentHashTable { LinkedListNode *buckets; }
""".strip().splitlines()

WORDS = """
accomodation:accommodation embarasment:embarrassment definately:definitely neccessary:necessary recieve:receive
commitee:committee questionaire:questionnaire millenium:millennium priviledge:privilege lieutenent:lieutenant
manoeuver:manoeuvre manuever:manoeuvre
maintainance:maintenance rythm:rhythm concience:conscience pronounciation:pronunciation liason:liaison
restaraunt:restaurant occurence:occurrence mischevious:mischievous vegatables:vegetables garantee:guarantee
flourescent:fluorescent buerocracy:bureaucracy heirarchy:hierarchy paralell:parallel playwrigth:playwrights
playwrite:playwrights innoculation:inoculation
pharoahs:pharaohs hankerchief:handkerchief indispensible:indispensable psycologist:psychologist schizofrenia:schizophrenia
newmonia:pneumonia opthalmologist:ophthalmologist cameraderie:camaraderie complexitty:complexity decsriptor:descriptor
"""
NAMES = """
Shostakovitch:Shostakovich Chaikovsky:Tchaikovsky Nietzche:Nietzsche Shweitzer:Schweitzer Schwartzenegger:Schwarzenegger
Kasprov:Kasparov Reykjavic:Reykjavik Albequerque:Albuquerque Ghandi:Gandhi Rabindrinath:Rabindranath Sidhartha:Siddhartha
Massachussets:Massachusetts Levenstein:Levenshtein Kolmogorow:Kolmogorov Tchebyshev:Chebyshev Witgenstien:Wittgenstein
Kierkegard:Kierkegaard Copenhaguen:Copenhagen
"""
IDENTIFIERS = """
getUserPrefernces:getUserPreferences fetchConfigration:fetchConfiguration AuthentificationMiddleware:AuthenticationMiddleware
validateCredentails:validateCredentials calculate_standrad_deviation:calculate_standard_deviation
normalise_histogram:normalize_histogram asyncronousInitialiser:asynchronousInitializer createObservableProprety:createObservableProperty
MAX_CONCURENT_CONNECTIONS:MAX_CONCURRENT_CONNECTIONS exponentialBackof:EXPONENTIAL_BACKOFF serialise_chekpoint:serialize_checkpoint
PersistantHashTable:PersistentHashTable LinkedLsitNode:LinkedListNode JSONDecodeEror:JSONDecodeError
get_runing_loop:get_running_loop QueueEmtpy:QueueEmpty SimpleHTTPRequestHandeler:SimpleHTTPRequestHandler
NamedTemporyFile:NamedTemporaryFile lru_cahce:lru_cache assertRaisesRegexp:assertRaisesRegex OrderdDict:OrderedDict
rotatingFileHandler:RotatingFileHandler ThreadPoolExecuter:ThreadPoolExecutor heappushpopp:heappushpop
"""
TABLE = [tuple(pair.split(":")) for pair in " ".join([WORDS, NAMES, IDENTIFIERS]).split()]


@pytest.fixture(scope="module")
def search():
    """The hits of a question: the text of each span, and the document it is in."""
    library = Path(sysconfig.get_path("stdlib"))
    bodies = [(library / f"{module}.py").read_bytes() for module in MODULES]
    documents = Documents.pack(
        [(content_hash(body), body, "code") for body in bodies]
        + [(content_hash(line.encode()), line.encode(), "prose:english") for line in NOTES]
    )
    layer = Fuzzy(Fuzzy.Params(), Resources())
    arrays = layer.build(documents, None)
    statistics = layer.collect([(1, layer.statistics(arrays, documents, None))])
    reader = layer.open(arrays, documents, None, np.ones(len(documents), bool))

    def search(text: str, **form) -> list[tuple[str, str, float]]:
        query = layer.prepare(Request(text, form, True), statistics)
        found = reader.search(query, None, 5, Budget())
        bodies = [bytes(documents.content(row)) for row in found.rows]
        spans = zip(bodies, found.starts, found.ends, layer.surprise(query, found.scores), strict=True)
        return [(body[start:end].decode(), body.decode(), float(surprise)) for body, start, end, surprise in spans]

    return search


def test_the_table_has_words_names_and_identifiers():
    assert len(TABLE) >= 75
    assert all(misspelt != original for misspelt, original in TABLE)


@pytest.mark.parametrize(("misspelt", "original"), TABLE)
def test_a_misspelling_finds_its_original_first_and_marks_it(search, misspelt, original):
    (span, document, _), *_ = search(misspelt)
    assert original.casefold() in document.casefold()
    assert original.casefold() in span.casefold()


WEAK = {"manuever": "three mistakes in eight letters: one passage in six has such a word by chance"}


@pytest.mark.parametrize(
    "misspelt",
    [pytest.param(word, marks=pytest.mark.xfail(reason=WEAK[word], strict=True)) if word in WEAK else word for word, _ in TABLE],
)
def test_a_misspelling_is_evidence(search, misspelt):
    assert search(misspelt)[0][2] > 2.5  # of `Ghandi`: there is much that has two mistakes in six letters


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("Nietzche Schweizer", "Nietzsche or Albert Schweitzer"),
        ("schweizer nietzche", "Nietzsche or Albert Schweitzer"),  # in any order
        ("maintainance rythm", "maintenance crew through the rhythm"),
        ("Witgenstien tractatsu", "Wittgenstein wrote the Tractatus"),
        ("calclate deviaton samples", "calculate_standard_deviation(samples"),
        ("thread pool executer", "ThreadPoolExecutor"),  # run together
        ("linkedlist node", "LinkedListNode"),
        ("concurent conections", "CONCURRENT_CONNECTIONS"),
        ("pharao", "pharaohs"),  # a part
        ("psycholog", "psychologist"),
    ],
)
def test_several_words_find_where_they_stand_together(search, asked, found):
    assert found in search(asked)[0][0]


def test_what_is_no_misspelling_of_anything_is_no_evidence(search):
    for asked in ("xqzvkw", "Zweibrücken", "brontosaurus", "glyptodon quokka", "abc def ghi jkl", "teh cat"):
        assert all(surprise < 4 for _, _, surprise in search(asked)), asked


def test_lists_of_misspellings_are_looked_up_in_collections_and_counted(tmp_path, monkeypatch, capsys):
    texts = ["The committee will accommodate their guests.", "An accommodation for the committee."]
    (tmp_path / "corpus.jsonl").write_text("".join(f'{{"_id": "{i}", "text": "{text}"}}\n' for i, text in enumerate(texts)))
    listed = "acommodate:accommodate thier:their teh:the absent:absence"
    known = misspellings.vocabulary([tmp_path])
    assert misspellings.places(known, misspellings.pairs(listed)) == [[1, 1, 1], [1, 1, 1]]
    assert misspellings.by_layer(known, "acommodate") == ["accommodate", "accommodation"]
    monkeypatch.setattr(misspellings, "LISTS", {"short": listed})
    monkeypatch.setattr("sys.argv", ["misspellings.py", "--dataset", str(tmp_path)])
    misspellings.main()
    assert "short list, fuzzy: 3 of 3 first, 3 of the first three, 3 found" in capsys.readouterr().out


def test_no_word_is_in_two_of_the_lists():
    listed = [misspelt for text in misspellings.LISTS.values() for misspelt, _ in misspellings.pairs(text)]
    assert len(listed) == len(set(listed)) > 300
