"""Which shapes a query's text has, and that a space is left out only where it can hardly be meant."""

import gzip
import json
from pathlib import Path

import pytest
from engine import Engine

from shards.routing import SHAPES, WORDS, read

# query | shapes; a shape that stands alone leaves spaces out, with prose beside it nothing is left out
TABLE = r"""
how are strings encoded | prose
encoding of strings | prose
recursion | identifier prose
Berlin | identifier prose
Zürich | identifier prose
What is the capital of France? | prose
who wrote Faust? | prose
What does C++ do? | prose
what does .* mean in a regex? | prose
is a.b(c) the same as c.b(a)? | prose
How do I call foo.bar()? | prose
C++ | prose
C# | prose
F# compiler | prose
e.g. foo() | prose
i.e. the one we know | prose
e.g. | prose
U.S. | prose
don't panic | prose
state-of-the-art models | prose
(and so on) | prose
and/or | path prose
read/write locks | prose
I/O | path prose
N/A | path prose
TCP/IP | path prose
R&D spending in 2020 | prose
50% of people | prose
costs $5 and $10 | prose
US$ 100 | prose
between $20 and $30 a month | prose
Q1 revenue: $4.5m ($3.9m) | prose
see section [3-5] | prose
as shown in [1-3] | prose
footnote [^1] | prose
^_^ | prose
:-) | prose
*emphasis* here | prose
wow!!! | prose
a + b | prose formula
3 * 4 = 12 | prose
yes (or no) | prose
ls | grep foo | prose
TODO|FIXME | prose
int | None | prose
SELECT * FROM t WHERE a = 'b' | prose
File "x.py", line 3, in foo | prose
  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode | prose
Traceback (most recent call last): | prose
ValueError: invalid literal for int() with base 10: 'x' | prose
at java.util.HashMap.get(HashMap.java:556) | prose
error: expected ';' before '}' token | prose
[2024-01-02 10:11:12] INFO started | prose
segfault at 0000 ip 00007f rsp 00007ffe | prose
a * b | prose formula
def \w+\(self | regex
^\s*import\s | regex
\d{3}-\d{4} | regex
\bfoo\b | regex
foo.*bar | regex
class .*Error | regex
.*Error$ | regex
^.*$ | regex
[a-z_]+\s*= | regex
[0-9]+ | regex
[A-Za-z_][A-Za-z0-9_]* | regex
[^"]*" | regex
(?i)hello | regex
(?:foo|bar)baz | regex
(?P<year>\d\d\d\d) | regex
asyncio\.gather | regex
print\( | regex
test_(a|b) | regex
(get|set)_value | regex
0x[0-9a-f]{8} | regex
\w+@\w+\.com | regex
^import | prose regex
^class Foo | prose regex
failed to connect to .* after \d+ ms | prose regex
matches .* in the middle of a line | prose regex
(?=foo)bar | prose
(a)\1 | prose
foo[ | prose
m = re.match(r"(\w+)\s", text) | prose
href="[^"]*" | regex
*.*.*( | prose
java.util.* | glob prose
import java.util.*; | prose
A.*B | glob prose
a*b | glob prose
comput* | glob prose
comput* sci* | prose
(cats OR dogs) AND NOT birds | prose
"big cat" NEAR/3 dog | prose
title:harbour +boat -ship | prose
*args | glob prose
**kwargs | glob prose
* | glob prose
*.py | glob
**/*.py | glob
src/**/test_*.rs | glob
docs/*.{md,rst} | glob
tests/* | glob
src/main.py | path prose
./run.sh | path prose
../a/b | path prose
~/notes/todo | path prose
/etc/passwd | path prose
main.py | identifier path prose
setup.cfg | identifier path prose
archive.tar.gz | identifier path prose
README | identifier prose
C:\Users\me\file | path
C:\dir\b | path
C:\int\x | path
src\bin\build | prose
\\server\share | path
https://example.com/a?b=c*d | url
www.example.com | url
http://foo.com/a.*b | url
10.1038/s41586-020-2649-2 | key prose
3.11.4 | key prose
v1.2.3-rc1 | key prose
2024-01-02 | key prose
127.0.0.1:8000 | key prose
42 | key prose
deadbeef | key prose
d41d8cd98f00b204e9800998ecf8427e | key prose
123e4567-e89b-12d3-a456-426614174000 | key prose
0xdeadbeef | key prose
60-35-5 | key prose
BSYNRYMUTXBXSQ-UHFFFAOYSA-N | key molecule
foo_bar | identifier prose
FooBar | identifier prose
getElementById | identifier prose
asyncio.gather | identifier path prose
std::vector | identifier prose
ptr->field | identifier prose
foo() | identifier prose
$scope | identifier prose
__init__ | identifier prose
class Foo | prose definition
def gather( | prose definition
async def gather(*coros): | prose definition
pub fn main() { | prose definition
func (s *Server) Serve(l net.Listener) error { | prose definition
interface Shape extends Base | prose definition
class action lawsuit | prose
type error | prose definition
function of the liver | prose
f($A, $B) | prose syntax
print($$$ARGS) | prose syntax
if ($X == null) { $$$ } | prose syntax
echo $HOME | prose
"the exact words" | phrase
"x" | phrase
$x^2+y^2=z^2$ | formula
$$\int_0^1 f$$ | formula
$x$ | formula
\[ a = b \] | formula
\frac{a}{b} | formula
\sum_{i=1}^n i^2 | formula
\begin{equation} a=b \end{equation} | formula
<math><mi>x</mi></math> | formula
x^2+y^2=z^2 | prose formula
E=mc^2 | prose formula
sin(x) + cos(x) | prose formula
P=NP | prose formula
prose with $x$ inside | prose formula
the value of $\int_0^1 f$ when f is even | prose formula
for \alpha in the interval | prose formula
\boldsymbol{x} + \boldsymbol{y} | formula
\beta + \bar{x} | formula
\\frac{a}{b} | formula
CC(=O)Oc1ccccc1C(=O)O | molecule
c1ccccc1 | molecule
C1CCCCC1 | molecule
CC(=O)O | molecule
CN1C=NC2=C1C(=O)N(C(=O)N2C)C | molecule
C[C@H](N)C(=O)O | molecule
[Na+].[Cl-] | molecule
F/C=C/F | molecule
OCC3OC(OCC2OC(OC(C#N)c1ccccc1)C(O)C(O)C2O)C(O)C(O)C3O | molecule
InChI=1S/C2H6O/c1-2-3/h3H,2H2,1H3 | molecule
CCO | identifier molecule prose
CC=O | molecule prose
C=C | molecule prose
C#N | identifier molecule prose
CC=gcc | prose
O(n) | prose
O(N) | prose
NO | identifier prose
CON | identifier prose
COIN | identifier prose
cocoon | identifier prose
B52 | identifier prose
C3PO | identifier prose
CO2 | identifier prose
[No] | prose
""".strip("\n").splitlines()


@pytest.mark.parametrize("line", TABLE)
def test_a_text_has_the_shapes_that_people_see_in_it(line):
    query, _, shapes = line.rpartition(" | ")
    found = read(query)
    assert set(found.shapes) == set(shapes.split())
    assert set(found.shapes) <= set(SHAPES)


def test_only_a_text_of_no_words_leaves_out_spaces_that_read_words():
    for line in TABLE:
        query, _, shapes = line.rpartition(" | ")
        assert read(query).asks(WORDS) == bool(WORDS & set(shapes.split()))
        assert read(query).asks(None)


def test_an_empty_text_and_a_paste_leave_nothing_out():
    assert not read(" \n").shapes
    assert read("").asks(frozenset({"regex"}))
    assert set(read("\\d+ " * 1000).shapes) == {"prose"}
    assert set(read("def \\w+\nclass \\w+").shapes) == {"prose"}
    assert set(read("Let $x^2$ be even.\nThen?").shapes) == {"prose", "formula"}


def test_hostile_texts_are_read_in_linear_time():
    # Each of these would take minutes if any of the patterns tried every way of sharing the text among its repetitions.
    for unit in ("(", "a-", "$a", "\\(", "[^", "foo.", "a|", "_(", "/a", "1.", "C(", "[a-z", "a::", "\\begin{align}", ".*"):
        for tail in ("", "!", "\x00"):
            read(unit * (1_990 // len(unit)) + tail)


def test_queries_of_judged_collections_are_prose():
    files = sorted((Path(__file__).resolve().parents[2] / "shared" / "data").glob("*/queries.jsonl.gz"))
    if not files:
        pytest.skip("there are none: the collections lie beside the repository on the developers' machines only")
    for file in files:
        with gzip.open(file, "rt") as lines:
            for line in [line for _, line in zip(range(1500), lines, strict=False)]:
                shapes = set(read(json.loads(line)["text"]).shapes)
                assert "prose" in shapes, line
                assert not shapes & {"regex", "molecule", "glob", "path"}, line


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("routing")
    (folder / "source").mkdir()
    (folder / "source" / "code.py").write_text("def gather(self, awaitables):\n    return 42\n")
    (folder / "source" / "notes.md").write_text("We gather berries in autumn, and then we write notes on what self means.\n")
    made = Engine(folder, layers=("names", "text", "bm25"))
    made.index(folder / "source")
    made.index(folder / "source", corpus="words", layers=("bm25",))
    return made


def told(answer):
    return {info.name: info.asked if info.asked is not None else info.reason for info in answer.layers}


def test_a_regular_expression_goes_to_lines_and_not_to_words(engine):
    (answer,) = engine.search_many([{"query": r"def \w+\(self"}])
    assert [hit.entries[0].path for hit in answer.hits] == ["code.py"]
    asked = told(answer)
    assert asked["text"].startswith(r"/def \w+\(self/")
    assert asked["bm25"].startswith(r"the query looks like a regular expression (\w is a class of characters)")
    assert answer.read_as == {"regex": r"\w is a class of characters"}


def test_a_space_that_is_named_or_has_a_form_is_asked_whatever_the_text_looks_like(engine):
    named, formed = engine.search_many(
        [{"query": r"def \w+\(self", "layers": ["bm25", "text"]}, {"query": "berries", "forms": {"names": {"glob": "*.py"}}}]
    )
    assert told(named)["bm25"] and "looks like" not in told(named)["bm25"]
    assert told(named)["text"].startswith("'def")
    assert named.read_as == {}
    assert told(formed)["names"].startswith("paths like *.py")


def test_where_nothing_else_could_be_asked_words_are_looked_for_after_all(engine):
    (answer,) = engine.search_many([{"query": r"berries.*autumn"}], corpus="words")
    assert told(answer)["bm25"] and [hit.entries[0].path for hit in answer.hits] == ["notes.md"]


def test_what_is_in_doubt_leaves_nothing_out(engine):
    (answer,) = engine.search_many([{"query": "^class Foo"}])
    assert told(answer)["text"].startswith("/^class Foo/") and "looks like" not in told(answer)["bm25"]
    (answer,) = engine.search_many([{"query": "gather"}])
    assert {hit.entries[0].path for hit in answer.hits} == {"code.py", "notes.md"}
    assert not [reason for reason in told(answer).values() if "looks like" in reason]
