"""What `sondage` does on a terminal and in a pipe: places that open, links, widths, a pager, redrawing, JSON, exit codes."""

import json
import os
import pty
import re
import shutil
import stat
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted_coordinator import Scripted, one_hit, running

from jobs import cli, completing, query_tables, render, terminal, watching
from jobs.plan_tree import plan_tree
from jobs.settings import VARIABLES
from jobs.suggesting import meant, meant_path
from jobs.tables import put, table
from serve.nlql.schema import Facet, FacetValue, QueryAnswer, Row, RowEntry
from serve.schema import ExcerptOut, SearchAnswer, SearchRequest
from shards.errors import BadQuery, SondageError

LAYER = {
    "name": "lines", "layer": "text", "units": 12, "bytes": 3_400, "granularity": "line", "origin": "source", "docs": 900,
    "query_format": "literal or regex", "cost": "1 ms per MB", "resident_bytes": 2_300, "private_bytes": 1_100, "params": {"fold": True},
}  # fmt: skip
WIDE = "the tide in 漢字 comes twice a day, and " * 3


class Server(Scripted):
    """Has the corpus "stdlib" in a folder of this machine; "long" finds thirty hits, "nothing" none, "broken" is refused."""

    folder = "/nowhere"

    def __init__(self) -> None:
        super().__init__(self.respond)

    def respond(self, request: SearchRequest) -> SearchAnswer:
        answer = one_hit(request)
        if request.query == "nothing":
            return answer.model_copy(update={"hits": [], "verdict": "none", "verdict_reason": "chance"})
        if request.query == "broken":
            raise BadQuery("a tide is no query")
        text = f"first line\n{WIDE}"
        excerpt = ExcerptOut(start=0, end=22, first_line=2, text=text, marks=[(15, 19)])
        hit = answer.hits[0].model_copy(update={"excerpt": excerpt, "column": 5})
        hit = hit.model_copy(update={"entries": [hit.entries[0].model_copy(update={"path": "tides/moon 1.md"})]})
        return answer.model_copy(update={"hits": [hit] * (30 if request.query == "long" else 1)})

    async def status(self) -> dict:
        corpus = {
            "generation": 4, "docs": 1_200, "entries": 1_300, "text_bytes": 5_000_000, "shards": [{}], "segments": 1,
            "layers": [LAYER], "sources": {"here": {"url": self.folder}},
        }  # fmt: skip
        return {"store": "/index", "corpora": {"stdlib": corpus}, "hosts": [], "problems": {}}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server()
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "tides").mkdir()
    (folder / "tides/moon 1.md").write_text("x")
    server.folder = str(folder)
    with running(server) as address:
        yield address


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No setting of the machine's own."""
    for names in VARIABLES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path / "cache"))
    return monkeypatch


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A store with one corpus, as it was written long ago."""
    return shutil.copytree(Path(__file__).parent / "fixtures/format-2/whole/store", tmp_path / "store")


class Terminal:
    """A terminal of its own around stdin and stdout of this process. text: all that was written to it so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int = 100, rows: int = 24):
        self.outer, inner = pty.openpty()
        tty.setraw(inner, termios.TCSANOW)
        self.file = os.fdopen(inner, "w", encoding="utf-8")
        self.read_from = os.fdopen(os.dup(inner), encoding="utf-8")
        monkeypatch.setattr(sys, "stdout", self.file)
        monkeypatch.setattr(sys, "stdin", self.read_from)
        for name, value in (("TERM", "xterm-256color"), ("COLUMNS", str(columns)), ("LINES", str(rows))):
            monkeypatch.setenv(name, value)
        self.seen: list[bytes] = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            while data := os.read(self.outer, 65_536):
                self.seen.append(data)
        except OSError:  # the other side was closed
            return

    def text(self) -> str:
        """Closes it."""
        self.file.close()
        self.read_from.close()
        self.thread.join(10)
        os.close(self.outer)
        return b"".join(self.seen).decode()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Terminal]:
    return lambda **size: Terminal(monkeypatch, **size)


def plain(text: str) -> str:
    """What is to be read, without control sequences."""
    return re.sub(r"\x1b\]8;[^\x1b]*\x1b\\|\x1b\[[?0-9;]*[A-Za-z]", "", text)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


# --- places and links --------------------------------------------------------------------------------------------------------


def test_a_hit_begins_with_path_line_and_column_as_editors_open_it(capsys, url, environment):
    code, out, _ = run(capsys, "search", "the", "tide", "--url", url)
    path = out.partition("tides/moon 1.md")[0] + "tides/moon 1.md"
    assert code == 0 and out.startswith(f"{path}:3:5:  E=") and Path(path).is_file()
    environment.chdir(Path(path).parent.parent)
    assert run(capsys, "search", "tide", "--url", url)[1].startswith("tides/moon 1.md:3:5:")
    assert run(capsys, "search", "tide", "--url", url, "--oneline")[1] == f"tides/moon 1.md:3:5: {WIDE.strip()}\n"


def test_only_a_terminal_gets_links_and_colours(capsys, url, screen):
    assert "\x1b" not in run(capsys, "search", "tide", "--url", url)[1]
    forced = run(capsys, "search", "tide", "--url", url, "--color", "always")[1]
    assert "\x1b[1;31mtide\x1b[0m" in forced and "\x1b]8;" not in forced  # the match is marked; a pipe follows no links
    seen = screen()
    assert cli.main(["search", "tide", "--url", url]) == 0
    text = seen.text()
    assert re.search(r"\x1b\]8;[^;]*;file://[^\x1b]*/tides/moon%201\.md\x1b\\", text) and "\x1b[1;31mtide\x1b[0m" in text


@pytest.mark.parametrize(("variable", "options"), [("TERM=dumb", []), ("", ["--color", "never"])])
def test_neither_links_nor_colours_where_they_are_not_wanted(url, screen, environment, variable, options):
    seen = screen()
    if variable:
        environment.setenv(*variable.split("="))
    assert cli.main(["search", "tide", "--url", url, *options]) == 0
    assert "\x1b" not in seen.text()


def test_no_color_takes_colours_away_and_leaves_the_match_marked(url, screen, environment):
    seen = screen()
    environment.setenv("NO_COLOR", "1")
    assert cli.main(["search", "tide", "--url", url]) == 0
    text = seen.text()
    assert "\x1b[1mtide\x1b[0m" in text and not re.search(r"\x1b\[[0-9;]*3[0-7]m", text)


# --- widths ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [30, 41, 80])
def test_excerpts_are_wrapped_below_themselves_by_the_width_of_their_characters(url, screen, columns):
    seen = screen(columns=columns)
    assert cli.main(["search", "tide", "--url", url, "--no-pager"]) == 0
    lines = plain(seen.text()).splitlines()
    rows = [line for line in lines if line.startswith("       ") or re.match(r" +\d+ ", line)]
    cells = [sum(2 if "一" <= c <= "鿿" else 1 for c in row.rstrip()) for row in rows]
    assert max(cells) <= columns and len(rows) > 2
    assert "".join(row[7:].replace(" ", "") for row in rows[1:]) == WIDE.replace(" ", "")


def test_a_table_that_is_too_wide_becomes_a_list(screen):
    made = table("layer", "units")
    made.add_row("a-layer-with-a-long-name", "[bold]1,234[/]")
    wide = screen(columns=60)
    put(terminal.console(), made)
    assert "layer" in wide.text().splitlines()[0]
    narrow = screen(columns=20)
    put(terminal.console(), made)
    assert [line.split() for line in plain(narrow.text()).splitlines()][:2] == [["layer", "a-layer-with-a-long-name"], ["units", "1,234"]]


# --- the pager ---------------------------------------------------------------------------------------------------------------


def pager(folder: Path, name: str) -> Path:
    """A pager that keeps what it was given in the file "paged", and its options in "options"."""
    script = folder / name
    script.write_text(f'#!/bin/sh\necho "$@" > {folder}/options\ncat > {folder}/paged\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_what_is_longer_than_the_screen_goes_to_the_pager(url, screen, environment, tmp_path):
    environment.setenv("PAGER", str(pager(tmp_path, "less")))
    seen = screen(rows=24)
    assert cli.main(["search", "tide", "--url", url]) == 0
    assert not (tmp_path / "paged").exists()  # it fits
    assert cli.main(["search", "long", "--url", url]) == 0
    text = (tmp_path / "paged").read_text()
    assert plain(text).count("moon 1.md:3:5:") == 30 and "\x1b[" in text and (tmp_path / "options").read_text() == "-R\n"
    assert plain(seen.text()).count("moon 1.md:3:5:") == 1


def test_a_pager_that_shows_no_colours_gets_none_and_options_decide(url, screen, environment, tmp_path):
    environment.setenv("PAGER", str(pager(tmp_path, "more")))
    seen = screen()
    assert cli.main(["search", "long", "--url", url, "--no-pager"]) == 0
    assert not (tmp_path / "paged").exists()
    assert cli.main(["search", "tide", "--url", url, "--pager"]) == 0
    assert "\x1b" not in (tmp_path / "paged").read_text()
    assert plain(seen.text()).count("moon 1.md:3:5:") == 30


def test_there_is_no_pager_in_a_pipe(capsys, url, environment, tmp_path):
    environment.setenv("PAGER", str(pager(tmp_path, "less")))
    assert run(capsys, "search", "long", "--url", url, "--pager")[1].count("moon 1.md:3:5:") == 30
    assert not (tmp_path / "paged").exists()


# --- watching ----------------------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only in sleep, and in looks that say so. After the last pause somebody presses Ctrl-C."""

    def __init__(self, pauses: int):
        self.now, self.pauses, self.slept = 50.0, pauses, []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        if len(self.slept) == self.pauses:
            raise KeyboardInterrupt


def test_looks_follow_one_another_by_their_beginnings_and_late_ones_at_once():
    clock = Clock(3)
    took = iter([0.5, 3.0, 0.0])

    def look() -> float:
        clock.now += next(took)
        return clock.now

    found = []
    with pytest.raises(KeyboardInterrupt):
        for answer in watching.looks(look, 2.0, clock, clock.sleep):
            found.append(answer)
    assert found == [50.5, 55.0, 55.0] and clock.slept == [1.5, 0.0, 2.0]


def watched(capsys, answers: list, **more) -> tuple[object, str, str]:
    """What `watch` gives and prints when looks bring these answers; errors among them are raised."""
    left = iter(answers)

    def look() -> object:
        answer = next(left)
        if isinstance(answer, SondageError):
            raise answer
        return answer

    clock = Clock(len(answers))
    last = watching.watch(
        look, lambda out, answer: out.print(f"found {answer}"), 2.0, clock=clock, sleep=clock.sleep, time_of_day=lambda: "09:00:00", **more
    )
    return last, *capsys.readouterr()


def test_in_a_pipe_answers_stand_below_one_another_and_a_failure_does_not_end_it(capsys):
    last, out, err = watched(capsys, ["a", BadQuery("away"), "b"])
    assert last == "b" and err == "sondage: away\n"
    assert out == "-- every 2 s, 09:00:00\nfound a\n-- every 2 s, 09:00:00\nfound b\n"
    assert watched(capsys, ["a", "b"], as_json=lambda answer: {"is": answer})[1] == '{"is": "a"}\n{"is": "b"}\n'


def test_what_is_wrong_at_first_is_raised(capsys):
    with pytest.raises(BadQuery, match="away"):
        watched(capsys, [BadQuery("away")])
    with pytest.raises(BadQuery, match=r"--watch is 0\.1; expected 0\.2 to 86,400 seconds"):
        watching.watch(lambda: 1, lambda out, answer: None, 0.1)


def test_a_terminal_is_redrawn_and_left_as_it_was_with_the_last_answer(capsys, screen):
    seen = screen(columns=40, rows=6)
    assert watched(capsys, ["a", "b"])[0] == "b"
    text = seen.text()
    assert text.index("\x1b[?1049h") < text.index("found a") < text.index("\x1b[?1049l") < text.rindex("found b")
    assert text.index("\x1b[?25l") < text.index("\x1b[?25h") and "\x1b[2J" not in text  # a cleared screen flickers


def test_a_frame_is_no_higher_than_the_screen():
    drawn = watching.frame("head", [f"row {n}" for n in range(9)], 20, 6)
    rows = drawn.removeprefix("\x1b[H").removesuffix("\x1b[K\x1b[J").split("\x1b[K\n")
    assert rows == ["head", "row 0", "row 1", "row 2", "… 6 more rows"]


@pytest.mark.parametrize(
    ("words", "every"), [(["--watch", "q"], 2.0), (["--watch", "5", "q"], 5.0), (["q", "--watch"], 2.0), (["--watch=7", "q"], 7.0)]
)
def test_the_seconds_of_watch_may_be_left_out(url, environment, words, every):
    heard = []
    environment.setattr(watching, "watch", lambda look, draw, every_s, *_: heard.append(every_s) or look())
    assert cli.main(["search", *words, "--url", url]) == 0 and heard == [every]


# --- JSON, exit codes, pipes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["status"], ["layers", "-c", "stdlib"], ["explain", "tide"], ["search", "tide", "-c", "stdlib"], ["layers", "--url", ""]]
)
def test_json_is_one_document_on_stdout(capsys, url, words):
    if words[-1:] == [""]:
        words = words[:-2]
    else:
        words = [*words, "--url", url]
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "") and json.loads(out)


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        (["search", "broken"], "bad_query", "a tide is no query"),
        (["search", "tide", "--where", "{"], "bad_query", "--where is not JSON"),
        (["search", "--layr", "x"], "usage", "--layer"),
        (["serch", "x"], "usage", "'search'"),
        (["history", "--store", "/nowhere"], "not_found", "corpus"),
        (["gc", "--store", "/nowhere"], "usage", "--keep"),
    ],
)
def test_errors_are_json_on_stderr_where_json_is_asked_for(capsys, url, words, kind, says):
    code, out, err = run(capsys, *words, *([] if "/nowhere" in words or words[0] == "serch" else ["--url", url]), "--json")
    told = json.loads(err)["error"]
    assert (code, out, told["kind"]) == (2, "", kind) and says in told["message"]


def test_a_misspelt_corpus_is_answered_with_what_may_be_meant(capsys, url):
    code, _, err = run(capsys, "search", "tide", "-c", "stdlob", "--url", url)
    assert code == 2 and err == "sondage: There is no corpus 'stdlob'. Did you mean 'stdlib'? There are: stdlib.\n"
    assert "Did you mean 'search'" in run(capsys, "serch")[2]
    assert "Did you mean 'bm25'?" in run(capsys, "layers", "bm52")[2]


def test_a_misspelt_path_is_answered_with_what_lies_there(tmp_path, capsys):
    (tmp_path / "notes/2024").mkdir(parents=True)
    assert meant_path(str(tmp_path / "ntoes")) == f"Did you mean '{tmp_path}/notes'? "
    assert meant_path(str(tmp_path / "notes/2042/a.txt")) == f"Did you mean '{tmp_path}/notes/2024'? "
    assert meant_path(str(tmp_path / "zzz")) == "" == meant("zzz", ["bm25"])
    code = cli.main(["index", "--corpus", "c", "--source", str(tmp_path / "note"), "--store", str(tmp_path / "s")])
    err = capsys.readouterr().err
    assert code == 2 and "does not exist" in err and f"Did you mean '{tmp_path}/notes'?" in err


def test_a_jobs_wrong_options_are_guessed_and_end_with_2(capsys):
    code, _, err = run(capsys, "index", "--corpus", "c", "--source", ".", "--shrads", "3")
    assert code == 2 and "unrecognized arguments: --shrads 3. Did you mean '--shards'?" in err


def test_a_reader_that_goes_away_is_no_error(url):
    """Nobody reads any more when the command writes: no traceback, and a code that says so, not "nothing found"."""
    reader, writer = os.pipe()
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "jobs.cli", "search", "long", "--url", url]
    with subprocess.Popen(command, cwd=root, stdout=writer, stderr=subprocess.PIPE, text=True) as process:
        os.close(reader)
        os.close(writer)
        assert process.communicate(timeout=120)[1] == "" and process.returncode == 141


@pytest.mark.parametrize("raised", [BrokenPipeError, KeyboardInterrupt])
def test_codes_say_how_a_command_was_ended(environment, url, raised, tmp_path):
    def ends(*_: object) -> None:
        raise raised

    environment.setattr(render, "answer", ends)
    with open(tmp_path / "out", "w") as out:
        environment.setattr(sys, "stdout", out)
        assert cli.main(["search", "tide", "--url", url]) == {BrokenPipeError: 141, KeyboardInterrupt: 130}[raised]


def test_every_command_explains_itself(capsys):
    for name in cli.typer.main.get_command(cli.app).commands:
        code, out, err = run(capsys, name, "--help")
        assert (code, err) == (0, "") and re.match(r"[Uu]sage: ", out) and "Exit code" in out and len(out) > 200, name


def test_help_names_every_command_under_a_heading_with_a_whole_sentence_and_the_exit_codes(capsys):
    code, out, _ = run(capsys, "--help")
    commands = cli.typer.main.get_command(cli.app).commands
    listed = [name for names in cli.SECTIONS.values() for name in names]
    assert code == 0 and set(commands) <= set(listed) and len(listed) == len(set(listed)) and "Other:" not in out
    for name, command in commands.items():
        assert cli.summary(command).rstrip(".") in " ".join(out.split()), name
    assert "0 found" in out and "1 nothing found" in out and "2 error" in out


# --- stores ------------------------------------------------------------------------------------------------------------------


def test_the_history_of_a_store_is_a_table(capsys, library):
    code, out, _ = run(capsys, "history", "--store", str(library))
    assert code == 0 and re.match(r"generation +published +by +documents", out) and "added" in out
    code, out, _ = run(capsys, "history", "--store", str(library), "--json")
    assert code == 0 and {"generation", "created", "by", "changed", "size_bytes"} <= set(json.loads(out)[0])
    assert "nothing is damaged" in run(capsys, "verify", "--store", str(library))[1]
    assert re.search(r"removed generations .*; kept \d", run(capsys, "gc", "--keep", "1", "--store", str(library))[1])


def test_layers_are_told_with_what_they_are_asked_and_those_of_a_corpus_with_what_they_cover(capsys, url):
    out = run(capsys, "layers")[1]
    assert re.search(r"^bm25 .*words", out, re.MULTILINE)
    told = {layer["name"]: layer for layer in json.loads(run(capsys, "layers", "--json")[1])}
    assert told["bm25"]["dials"]["k1"]["default"] == 1.2 and told["bm25"]["ready"] is True
    assert re.search(r"^k1 +1\.2 +how soon", run(capsys, "layers", "bm25")[1], re.MULTILINE)
    code, out, _ = run(capsys, "layers", "-c", "stdlib", "--url", url)
    assert code == 0 and re.search(r"^lines \(text\) +900 of 1,200 +12 +3\.4 kB", out, re.MULTILINE) and "lines: fold=True" in out


# --- completion --------------------------------------------------------------------------------------------------------------


def completed(words: str, **variables: str) -> list[str]:
    """What bash is told of a line that is under way; the words and the place as typer's script passes them."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SONDAGE_")} | variables
    environment |= {"_SONDAGE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-m", "jobs.cli"], cwd=root, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_completes_commands_options_and_what_a_store_has(library):
    assert completed("sondage sear") == ["search"]
    job = cli.typer.main.get_command(cli.app).commands["index"]
    assert [item.value for item in job.shell_complete(SimpleNamespace(args=[]), "--inc")] == ["--include"]


def test_corpora_and_layers_are_completed_from_a_store_and_a_server(library, url, environment):
    environment.setattr(completing, "PATIENCE_S", 60)  # not what is tested here, and machines may be busy
    given = SimpleNamespace(params={"store": str(library)})
    assert completing.corpora(given, "li") == ["library"] and completing.corpora(given, "x") == []
    assert "bm25" in completing.layers(given, "b")
    given = SimpleNamespace(params={"url": url, "corpus": "stdlib"})
    assert completing.corpora(given, "") == ["stdlib"] and completing.layers(given, "l") == ["lines"]
    assert completing.couplings("comb") == ["combsum", "combmnz"]


def test_a_key_is_sent_where_there_is_one_and_a_refusal_completes_nothing(environment):
    environment.setattr(completing, "PATIENCE_S", 60)
    with running(Server(), ("a-key-of-some-length",)) as locked:
        given = SimpleNamespace(params={"url": locked})
        assert completing.corpora(given, "") == []
        environment.setenv("SONDAGE_API_KEY", "a-key-of-some-length")
        assert completing.corpora(given, "") == ["stdlib"]


def test_completion_gives_up_silently_and_in_time(environment):
    given = SimpleNamespace(params={"store": "/nowhere/at/all"})
    assert completing.corpora(given, "") == [] and "bm25" in completing.layers(given, "bm")
    assert completing.corpora(SimpleNamespace(params={"url": "http://127.0.0.1:9"}), "") == []
    never = threading.Event()
    assert completing.within(0.01, never.wait) is None
    never.set()
    environment.setenv("SONDAGE_PORT", "no number")
    assert completing.corpora(SimpleNamespace(params={}), "") == []


def test_options_of_jobs_are_completed_from_their_own_parsers(library):
    from jobs.commands_jobs import words_of_job

    assert words_of_job("index", [], "--inc") == ["--include"]
    assert words_of_job("index", ["--store", str(library), "--corpus"], "") == ["library"]
    assert words_of_job("index", ["--layer"], "bm") == ["bm25"]


# --- NLQL --------------------------------------------------------------------------------------------------------------------


def test_rows_are_shown_with_place_scores_and_facets(capsys, tmp_path):
    (tmp_path / "a.md").write_text("# Tides\n\nThe tide\x1b[2J\ncomes.\n")
    entry = RowEntry(source="here", path="a.md", size_bytes=1, mtime=0)
    row = Row(
        id="1", doc_id="a.md", kind="span", content="The tide\x1b[2J comes.", scores={"rel": 0.8125},
        metadata={"year": 2024, "tags": ["x"]}, span=(3, 4, 5), entry=entry,
        start=9, end=28,
    )  # fmt: skip
    facet = Facet(expr="meta.year", values=[FacetValue(value=2024, count=7)], n_values=1)
    answer = QueryAnswer(corpus="c", generation=3, rows=[row], facets=[facet], timings_ms={"total": 12.0})
    query_tables.rows(terminal.console(), answer, render.Places({"here": str(tmp_path)}))
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/a.md:3:  rel 0.8125  [span 3 to 5 around 4]",
        '    year 2024, tags ["x"]',
        "    The tide�[2J comes.",
        "",
        "1 row  (generation 3, 12 ms)",
        "",
        "count by meta.year",
        "rows  value",
        "   7  2024 ",
    ]


@pytest.mark.parametrize(
    ("text", "start", "end", "line"),
    [("a\nb\nc d", 4, 7, 3), ("c d", 0, 3, 1), ("a\nb\nc x", 4, 7, 0), ("", 0, 0, 0), (None, 4, 7, 0), ("c d", 0, 1 << 30, 0)],
)
def test_a_rows_line_is_told_where_its_bytes_are_still_the_files(tmp_path, text, start, end, line):
    if text is not None:
        (tmp_path / "f").write_text(text)
    row = Row(id="1", doc_id="f", kind="chunk", content="c d" if text != "" else "", start=start, end=end)
    assert query_tables.line_of(tmp_path / "f", row) == line


def test_a_plan_is_a_tree_with_expressions_as_they_would_be_written(capsys):
    field = {"node": "path", "root": "meta", "segments": ["year"]}
    year = {"node": "compare", "op": ">=", "left": field, "right": {"node": "literal", "value": 2024}}
    plan = {
        "text": "SELECT CHUNK …", "select": {"unit": "chunk", "window": None}, "filter": {"pushed": year, "residual": None},
        "scores": [{"key_alias": "rel", "query": "tide", "path": "content", "spaces": ["dense"]}], "limit": 5, "offset": 0, "ir": {},
        "order_by": [{"expr": {"node": "ref", "name": "rel"}, "desc": True}], "cost": {"rows": 12_000},
    }  # fmt: skip
    terminal.console().print(plan_tree(plan))
    lines = [line.strip("│├└─ ") for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "SELECT CHUNK …", "select  unit chunk", "scores", "key alias rel, query tide, path content, spaces dense", "filter",
        "pushed  meta.year >= 2024", "order by", "rel DESC", "limit  5", "cost  rows 12,000",
    ]  # fmt: skip
