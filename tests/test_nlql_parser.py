"""NLQL's grammar: text and tree on one line, then text and error."""

import sys
from types import FrameType

import pytest

from serve.nlql.bounds import MAX_DEPTH, MAX_KEYS
from serve.nlql.lexer import MAX_CHARS
from serve.nlql.parser import parse, parse_statement
from shards.nlql.errors import NLQLError, ParseError, SchemaError
from shards.nlql.ir import And, Call, Compare, Expr, In, Literal, Not, Or, Parameter, Path, Position, Query, Ref, Select, walk

S = "SELECT SENTENCE WHERE "


def tree(node: Expr) -> str:
    """A tree in brackets: fields as they are, aliases with $, texts in quotes, (operator operands)."""
    match node:
        case Literal(value=value, type_hint=hint):
            return (f"{hint}:" if hint else "") + repr(value)
        case Path(root=root, segments=segments):
            return ".".join((root, *segments))
        case Ref(name=name):
            return f"${name}"
        case Parameter(name=name):
            return f":{name}"
        case Call(name=name, args=args):
            return f"{name}({', '.join(map(tree, args))})"
        case Compare(op=op, left=left, right=right):
            return f"({op} {tree(left)} {tree(right)})"
        case And(operands=operands):
            return f"(and {' '.join(map(tree, operands))})"
        case Or(operands=operands):
            return f"(or {' '.join(map(tree, operands))})"
        case Not(operand=operand):
            return f"(not {tree(operand)})"
        case In(operand=operand, items=items):
            return f"(in {tree(operand)} {' '.join(map(tree, items))})"


PLAIN = [
    ("a", "a"),
    ("meta.a.b", "meta.a.b"),
    ("a . b", "a.b"),
    ("a.true.null.SELECT", "a.true.null.SELECT"),
    ("content CONTAINS 'x'", "CONTAINS(content, 'x')"),
    ("CONTAINS (a, b)", "CONTAINS(a, b)"),
    ("x()", "x()"),
    ("similarity(content, \"it's\")", 'similarity(content, "it\'s")'),
    ("a == b OR c AND NOT d", "(or (== a b) (and c (not d)))"),
    ("a AND b AND c", "(and a b c)"),
    ("(a AND b) AND c", "(and a b c)"),
    ("a AND (b AND c) AND d", "(and a (and b c) d)"),
    ("a OR (b OR c)", "(or a (or b c))"),
    ("NOT NOT a == b", "(not (not (== a b)))"),
    ("NOT (a) == b", "(not (== a b))"),
    ("a CONTAINS b == true", "(== CONTAINS(a, b) True)"),
    ("a == b CONTAINS c", "(== a CONTAINS(b, c))"),
    ("(a == b) == (c < d)", "(== (== a b) (< c d))"),
    ("((a))", "a"),
    ("a>-1", "(> a -1)"),
    ("a != -0.50", "(!= a -0.5)"),
    ("007", "7"),
    ("true AND false OR null", "(or (and True False) None)"),
    ("TRUE == NULL", "(== TRUE NULL)"),
    ("d > DATE '2024-01-01'", "(> d date:'2024-01-01')"),
    ("x LIKE LIKE 'y'", "LIKE(x, like:'y')"),
    ('a == "two\nlines \\ \'"', "(== a \"two\\nlines \\\\ '\")"),
    ('"" == \'\'', "(== '' '')"),
    ("true_x == 1 AND false_x AND nullx", "(and (== true_x 1) false_x nullx)"),  # B12
    ("LIMIT == 10", "(== LIMIT 10)"),
    ("LIMIT(x)", "LIMIT(x)"),
    ("NOTa", "NOTa"),
    ("NOT'a'", "(not 'a')"),
    ("select CONTAINS contains", "CONTAINS(select, contains)"),
    ("5ANDb", "(and 5 b)"),
    ("5ORx", "(or 5 x)"),
    ("(a)LIKE(b)", "LIKE(a, b)"),
    ("a\r\n\tAND\fb", "(and a b)"),
]  # fmt: skip

EXTENDED = [
    ("a IN (1, 'x', null)", "(in a 1 'x' None)"),
    ("a IN ()", "(in a )"),
    ("a NOT IN (b, LENGTH(c))", "(not (in a b LENGTH(c)))"),
    ("a IN :names", "(in a :names)"),
    ("a BETWEEN 1 AND 2 AND b", "(and (>= a 1) (<= a 2) b)"),
    ("b AND a BETWEEN 1 AND 2", "(and b (and (>= a 1) (<= a 2)))"),
    ("a NOT BETWEEN :x AND (y)", "(not (and (>= a :x) (<= a y)))"),
    ("a IS NULL OR b IS NOT NULL", "(or (== a None) (!= b None))"),
    ("a NOT LIKE 'x' AND a NOT CONTAINS 'y'", "(and (not LIKE(a, 'x')) (not CONTAINS(a, 'y')))"),
    ("NOT a NOT MATCH 'z'", "(not (not MATCH(a, 'z')))"),
    ("tags HAS 'x' AND tags NOT HAS :y", "(and HAS(tags, 'x') (not HAS(tags, :y)))"),
    ("SIMILARITY(content, :q) > : least", "(> SIMILARITY(content, :q) :least)"),
    ("a -- so it is\n AND b--", "(and a b)"),
    ("a == '-- no comment'", "(== a '-- no comment')"),
    ("HAS 'x'", "has:'x'"),
    ("IN (1)", "IN(1)"),
    ("IS == BETWEEN", "(== IS BETWEEN)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PLAIN)
def test_plain_nlql_is_read_the_same_strictly_and_not(text: str, expected: str) -> None:
    assert tree(parse(S + text, strict=True).where) == expected
    assert parse(S + text) == parse(S + text, strict=True)


@pytest.mark.parametrize(("text", "expected"), EXTENDED)
def test_extensions_are_read(text: str, expected: str) -> None:
    assert tree(parse(S + text).where) == expected


@pytest.mark.parametrize("text", [text for text, _ in EXTENDED if not text.startswith(("HAS", "IN", "IS")) and "-- no" not in text])
def test_extensions_are_syntax_errors_when_strict(text: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(S + text, strict=True)
    assert (error.value.line, error.value.category) == (1, "syntax")


CLAUSES = [
    ("SELECT DOCUMENT", Query(Select("document"))),
    ("SELECTSENTENCE LIMIT5", Query(Select("sentence"), limit=5)),
    ("SELECT SPAN(SENTENCE)", Query(Select("sentence", 1))),
    ("SELECTSPAN(CHUNK,3)", Query(Select("chunk", 3))),
    ("SELECT SPAN ( SENTENCE , window=>0 ) LIMIT 0", Query(Select("sentence", 0), limit=0)),
]


@pytest.mark.parametrize(("text", "expected"), CLAUSES)
def test_clauses(text: str, expected: Query) -> None:
    assert parse(text, strict=True) == expected


def test_clauses_follow_one_another() -> None:
    query = parse("SELECT CHUNK LET r = SIMILARITY(content, 'x'), n=5WHERE r > 1 ORDER BY r DESC, a ASC, 5 DESCLIMIT 7", strict=True)
    assert [(binding.name, tree(binding.expr)) for binding in query.let] == [("r", "SIMILARITY(content, 'x')"), ("n", "5")]
    assert tree(query.where) == "(> $r 1)"
    assert [(tree(key.expr), key.desc) for key in query.order_by] == [("$r", True), ("a", False), ("5", True)]
    assert query.limit == 7


def test_later_clauses_of_sondage_come_in_any_order() -> None:
    query = parse("SELECT CHUNK LIMIT 7 OFFSET 3 COUNT BY a, LENGTH(b) WITHIN 300 MS")
    assert (query.limit, query.offset, query.within_ms, [*map(tree, query.count_by)]) == (7, 3, 300, ["a", "LENGTH(b)"])
    assert query == parse("SELECT CHUNK LIMIT7OFFSET3WITHIN300MSCOUNTBYa,LENGTH(b)")


@pytest.mark.parametrize("later", ["OFFSET 1", "WITHIN 9 MS", "COUNT BY a", "LIMIT 1 OFFSET 1"])
def test_later_clauses_of_sondage_are_syntax_errors_when_strict(later: str) -> None:
    with pytest.raises(ParseError, match="not part of plain NLQL"):
        parse(f"SELECT CHUNK {later}", strict=True)


def test_a_bare_name_is_an_alias_even_before_it_is_bound_and_a_longer_path_is_not() -> None:
    query = parse("SELECT CHUNK LET a = b, b = a.b, content = 1, LET = WHERE WHERE a == a.b AND content AND LET AND c ORDER BY b")
    assert [tree(binding.expr) for binding in query.let] == ["$b", "a.b", "1", "WHERE"]
    assert tree(query.where) == "(and (== $a a.b) $content $LET c)"
    assert tree(query.order_by[0].expr) == "$b"


def test_explain_stands_before_a_query_where_a_statement_is_read() -> None:
    assert parse_statement("EXPLAIN SELECT CHUNK") == (Query(Select("chunk")), True)
    assert parse_statement("SELECT CHUNK") == (Query(Select("chunk")), False)
    with pytest.raises(ParseError, match="EXPLAIN"):
        parse("EXPLAIN SELECT CHUNK")
    with pytest.raises(ParseError, match=r"Expected SELECT, found `EXPLAIN`\. EXPLAIN is not part of plain NLQL"):
        parse_statement("EXPLAIN SELECT CHUNK", strict=True)


def test_nodes_know_their_places() -> None:
    query = parse("SELECT SENTENCE\nWHERE a == 'x\ny' AND\n  NOT LENGTH(b) < 3\nORDER BY\tc")
    places = [(type(node).__name__, node.at) for node in walk(query.where)]
    assert places == [
        ("And", (3, 4)),
        ("Compare", (2, 9)),
        ("Path", (2, 7)),
        ("Literal", (2, 12)),
        ("Not", (4, 3)),
        ("Compare", (4, 17)),
        ("Call", (4, 7)),
        ("Path", (4, 14)),
        ("Literal", (4, 19)),
    ]
    assert query.order_by[0].at == Position(5, 10)
    assert query.select.at == Position(1, 8)


UNITS = "Expected SPAN(…), DOCUMENT, CHUNK or SENTENCE, found"
BACKSLASH = "A backslash is a plain character: a text with quotes in it stands in the other kind of quotes."
END = "Expected the end of the query, found"
AFTER_UNIT = "Expected LET, WHERE, ORDER BY, LIMIT or the end of the query, found"
AFTER_INFIX = "Expected AND, OR, ORDER BY, LIMIT or the end of the query, found"
AFTER_COMPARISON = AFTER_INFIX.replace("AND,", "an operator (CONTAINS, LIKE, …), AND,")
AFTER = "Expected an operator (==, <, CONTAINS, …), AND, OR, ORDER BY, LIMIT or the end of the query, found"

# Each of a strict query: the text, where a | stands before what is wrong, and the message.
ERRORS = [
    ("|", "Expected SELECT, found the end of the query."),
    ("|select SENTENCE", "Expected SELECT, found `select`. Keywords are upper case: SELECT."),
    ("SELECT|", f"{UNITS} the end of the query."),
    ("SELECT |sentence", f"{UNITS} `sentence`. Keywords are upper case: SENTENCE."),
    ("SELECT |*", f"{UNITS} `*`. A query has no list of columns, and no arithmetic."),
    ("SELECT SENTENCE|, CHUNK", f"{AFTER_UNIT} `,`."),
    ("SELECT SPAN |SENTENCE", "Expected `(`, found `SENTENCE`."),
    ("SELECT SPAN(SENTENCE, |win => 1)", "SPAN has a window and no 'win': write `window => 2`."),
    ("SELECT SPAN(SENTENCE, |1.5)", "Expected a whole number, found 1.5."),
    ("SELECT SPAN(SENTENCE,|)", "Expected `window =>` or a number of units, found `)`."),
    ("SELECT SENTENCE LIMIT|", "Expected a number after LIMIT, found the end of the query."),
    ("SELECT SENTENCE LIMIT |ten", "Expected a number after LIMIT, found `ten`."),
    ("SELECT SENTENCE LIMIT |2.5", "Expected a whole number, found 2.5."),
    ("SELECT SENTENCE LIMIT |-1", "LIMIT takes a whole number from 0 to 2,147,483,647, not -1."),  # B9
    ("SELECT SENTENCE LIMIT |2147483648", "LIMIT takes a whole number from 0 to 2,147,483,647, not 2147483648."),
    ("SELECT SENTENCE LIMIT 3 |OFFSET 1", f"{END} `OFFSET`. OFFSET is not part of plain NLQL, which `strict` asks for."),
    ("SELECT SENTENCE LIMIT 3 |ORDER BY a", f"{END} `ORDER`. Clauses stand in this order: LET, WHERE, ORDER BY, LIMIT."),
    ("SELECT SENTENCE |FROM docs", f"{AFTER_UNIT} `FROM`. A query names no corpus; it is given beside the query."),
    ("SELECT SENTENCE ORDER |meta.year", "Expected BY, found `meta`."),
    ("SELECT SENTENCE ORDER BY a,|  ", "Expected a value, found the end of the query."),
    ("SELECT SENTENCE LET |= 1", "Expected a name to bind, found `=`. `=` binds names in LET; to compare, write `==`."),
    ("SELECT SENTENCE LET a |LENGTH(b)", "Expected `=`, found `LENGTH`."),
    (S.rstrip() + "|", "Expected a value, found the end of the query."),
    (S + "AND |x == 1", f"{AFTER} `x`. AND was read as a name, because a value was expected there."),
    (S + "a == 1 AND AND |b", f"{AFTER} `b`. AND was read as a name, because a value was expected there."),
    (S + "a == 2024|;", f"{AFTER_COMPARISON} `;`. A query ends without a semicolon."),
    (S + "a |= 2024", f"{AFTER} `=`. `=` binds names in LET; to compare, write `==`."),
    (S + "a |<> 2024", f"{AFTER} `<>`. Write `!=`."),
    (S + "a + 1 == 2".replace("+", "|+"), f"{AFTER} `+`. There is no arithmetic."),
    (S + "a == |+5", "Expected a value, found `+`. A number begins with a digit or a minus."),
    (S + "a == |.5", "Expected a value, found `.`. A number begins with a digit or a minus."),
    (S + "a == 5|.", f"{AFTER_COMPARISON} `.`."),
    (S + "a == 1|e3", f"{AFTER_COMPARISON} `e3`. A number is written in full: it has no exponent."),
    (S + "a |-1", f"{AFTER} `-1`."),
    (S + "a |-- comment", f"{AFTER} `--`. There are no comments in plain NLQL."),
    (S + "a.|== 1", "Expected a name after the dot, found `==`."),
    (S + "a |contains 'x'", f"{AFTER} `contains`. Keywords are upper case: CONTAINS."),
    (S + "a |NOT CONTAINS 'x'", f"{AFTER} `NOT`. NOT stands before the whole condition: NOT x LIKE '…'."),
    (S + "a |IS NULL", f"{AFTER} `IS`. IS is not part of plain NLQL, which `strict` asks for."),
    (S + "a == |:x", "Expected a value, found `:`. Parameters are not part of plain NLQL, which `strict` asks for."),
    (S + "a == |?", "Expected a value, found `?`."),
    (S + "a LIKE|", "Expected a value, found the end of the query."),
    (S + "a < b |< c", f"{AFTER_COMPARISON} `<`. One comparison compares two values: a < b AND b < c."),
    (S + "(a == 2024|", "Expected an operator (CONTAINS, LIKE, …), AND, OR or `)`, found the end of the query."),
    (S + "LENGTH(a,|) > 1", "Expected a value, found `)`."),
    (S + "(|)", "Expected a value, found `)`."),
    (S + "true|(x)", f"{AFTER} `(`."),
    (S + "a == |'published\" LIMIT 1", "The text that begins here is never closed: expected another ' behind it."),
    (S + 'a CONTAINS "\\"|ship"', f"{AFTER_INFIX} `ship`. {BACKSLASH}"),
    (S + "a == |“x”", "Expected a value, found the character U+201C (left double quotation mark). Texts stand in plain quotes, ' or \"."),
    (S + "a|\u00a0== 1", f"{AFTER} the character U+00A0 (no-break space). It looks like a blank; write a plain one."),
    (S + "a == '|\ud800'", "The text holds half of a character (a surrogate without its other half)."),
    (S + "5 |'\x1b[31m\n'", f"{AFTER} the text '�[31m⏎'."),
    (S + "a == 1\n AND b |&& c", f"{AFTER} `&&`. Write AND."),
    (S + "|größe == 1".replace("|größe", "gr|öße"), f"{AFTER} `öße`."),
    (S + "|" + "9" * 401, "A number lies between -1.8e308 and 1.8e308 and has at most 400 characters."),
    (S + "|" + "9" * 309 + ".0", "A number lies between -1.8e308 and 1.8e308 and has at most 400 characters."),
]  # fmt: skip


@pytest.mark.parametrize(("marked", "message"), ERRORS)
def test_errors_say_where_and_what_was_expected(marked: str, message: str) -> None:
    before, after = marked.split("|", 1)
    with pytest.raises(ParseError) as error:
        parse(before + after, strict=True)
    assert error.value.message == message
    lines = before.split("\n")
    assert (error.value.line, error.value.column) == (len(lines), len(lines[-1]) + 1)


def test_what_is_missing_behind_an_extension_is_told_too() -> None:
    for text, message in (
        (S + "a NOT", "Expected CONTAINS, MATCH, LIKE, HAS, IN or BETWEEN, found the end of the query."),
        (S + "a IS 5", "Expected NOT or NULL, found `5`."),
        (S + "a IN 5", "Expected a parameter or `(`, found `5`."),
        (S + "a BETWEEN 1 OR 2", "Expected AND, found `OR`."),
        ("SELECT CHUNK WITHIN 5", "Expected MS, found the end of the query."),
        ("SELECT CHUNK WITHIN 0 MS", "WITHIN takes at least 1 millisecond."),
        ("SELECT CHUNK OFFSET -1", "OFFSET takes a whole number from 0 to 2,147,483,647, not -1."),
        ("SELECT CHUNK COUNT a", "Expected BY, found `a`."),
    ):
        with pytest.raises(ParseError) as error:
            parse(text)
        assert error.value.message == message


def test_a_negative_window_is_an_error_of_its_own_kind() -> None:
    with pytest.raises(SchemaError, match="Line 1, column 33: The window of SPAN is at least 0, not -1"):
        parse("SELECT SPAN(SENTENCE, window => -1)")


def test_the_expected_things_are_there_for_programs() -> None:
    with pytest.raises(ParseError) as error:
        parse("SELECT SENTENCE ORDER x")
    assert error.value.expected == ("BY",)


NESTED = [("(", "a", ")"), ("f(", "a", ")"), ("NOT ", "a", ""), ("NOT (", "a", ")"), ("a IN (", "1", ")")]


@pytest.mark.parametrize(("opening", "inside", "closing"), NESTED)
def test_nesting_ends_in_an_error_before_the_stack_does(opening: str, inside: str, closing: str) -> None:
    levels = MAX_DEPTH // 2 - 2  # a level of NOT ( is two in the tree
    parse(S + opening * levels + inside + closing * levels)
    with pytest.raises(ParseError, match="at most 100 levels"):
        parse(S + opening * 2_500 + inside + closing * 2_500)


def test_what_between_repeats_is_bounded() -> None:
    with pytest.raises(ParseError, match="BETWEEN is two comparisons"):
        parse(S + "(" * 60 + "a" + " BETWEEN 1 AND 2)" * 60)


def test_lists_and_texts_are_bounded() -> None:
    parse("SELECT CHUNK ORDER BY " + ", ".join("a" * MAX_KEYS))
    with pytest.raises(ParseError, match="ORDER BY has 65 parts") as error:
        parse("SELECT CHUNK ORDER BY " + ", ".join("a" * (MAX_KEYS + 1)))
    assert error.value.column == len("SELECT CHUNK ORDER BY ") + 3 * MAX_KEYS + 1
    with pytest.raises(ParseError, match="at most 20,000 characters, this one has 20,001"):
        parse("SELECT CHUNK" + " " * (MAX_CHARS - 11))


FAMILIES = {
    "conjunction": lambda n: S + "a AND " * (n // 6) + "a",
    "comparisons": lambda n: S + "a<a OR " * (n // 7) + "a",
    "one name": lambda n: S + "a" * n,
    "path": lambda n: S + "a" + ".a" * (n // 2),
    "items": lambda n: S + "a IN (" + "1," * (n // 2) + "1)",
    "texts": lambda n: S + "f(" + "''," * (n // 3) + "'')",
    "open text": lambda n: S + "'" + "x" * n,
    "brackets": lambda n: S + "(a) AND " * (n // 8) + "a",
    "negations": lambda n: S + "NOT " * 90 + "a AND " * (n // 6) + "a",
    "aliases": lambda n: (
        "SELECT CHUNK LET " + ",".join(f"a{i}=a{i + 1}" for i in range(min(n // 9, 900))) + ", z=" + "a AND " * (n // 8) + "a"
    ),
    "lines": lambda n: S + "\n" * n + "$",
    "comments": lambda n: S + "--\n" * (n // 3) + "a",
    "between": lambda n: S + "a BETWEEN 1 AND 2 AND " * (n // 22) + "a",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_takes_work_in_proportion_to_the_text(family: str) -> None:
    """Counted in calls, of Python's functions and of built-in ones; regular expressions give nothing back that they read."""
    few, many = (calls_of(FAMILIES[family](n)) for n in (2_000, 8_000))
    assert many <= 4.5 * few + 200


def calls_of(text: str) -> int:
    """How many calls reading a text takes."""
    n = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        parse(text)
    except NLQLError:
        pass
    finally:
        sys.setprofile(before)
    return n
