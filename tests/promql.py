"""Which metrics and labels a PromQL expression uses: enough of its grammar to hold dashboards and alerts against a real application."""

import re
from dataclasses import dataclass, field

FUNCTIONS = frozenset(
    "absent avg count count_over_time histogram_quantile label_values max max_over_time min min_over_time rate sum vector".split()
)
WORDS = frozenset("and or unless by without on ignoring bool offset".split())
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*"|'[^']*') | (?P<duration>\[[^\]]*\]) | (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![a-zA-Z_]))
    | (?P<name>[a-zA-Z_:$][a-zA-Z0-9_:]*) | (?P<sign>=~|!~|!=|==|<=|>=|[-+*/^<>=(){},])
    )""",
    re.VERBOSE,
)
_DURATION = re.compile(r"\[(\d+[smhdw]|\$__rate_interval)(:\d*[smhdw]?)?\]")


@dataclass
class Used:
    """metrics: name -> labels that are matched on it; grouped: labels that results are grouped or joined by."""

    metrics: dict[str, set[str]] = field(default_factory=dict)
    grouped: set[str] = field(default_factory=set)


def used(expression: str) -> Used:
    """What an expression refers to. Raises ValueError where it is no expression."""
    tokens, at = [], 0
    text = expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"unexpected {text[at : at + 20]!r} in {expression!r}")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    _balanced(tokens, expression)
    found = Used()
    i = 0
    while i < len(tokens):
        kind, value = tokens[i]
        following = tokens[i + 1][1] if i + 1 < len(tokens) else ""
        if kind == "duration" and not _DURATION.fullmatch(value):
            raise ValueError(f"no duration: {value} in {expression!r}")
        if kind == "name" and value in WORDS:
            if value in ("by", "without", "on", "ignoring"):
                end = next(j for j in range(i, len(tokens)) if tokens[j][1] == ")")
                found.grouped |= {name for what, name in tokens[i + 2 : end] if what == "name"}
                i = end
        elif kind == "name" and value in FUNCTIONS and following in ("(", "by", "without"):
            pass
        elif kind == "name" and following == "(":
            raise ValueError(f"unknown function {value!r} in {expression!r}")
        elif kind == "name":
            labels = found.metrics.setdefault(value, set())
            if following == "{":
                end = next(j for j in range(i, len(tokens)) if tokens[j][1] == "}")
                inside = tokens[i + 2 : end]
                labels |= {name for what, name in inside if what == "name"}
                if any(what not in ("name", "string") and sign not in ("=", "!=", "=~", "!~", ",") for what, sign in inside):
                    raise ValueError(f"no matcher of labels in {expression!r}")
                i = end
        i += 1
    return found


def _balanced(tokens: list[tuple[str, str]], expression: str) -> None:
    closes, waiting = {"(": ")", "{": "}"}, []
    for _, value in tokens:
        if value in closes:
            waiting.append(closes[value])
        elif value in closes.values() and (not waiting or waiting.pop() != value):
            raise ValueError(f"unexpected {value!r} in {expression!r}")
    if waiting:
        raise ValueError(f"{waiting[-1]!r} is missing in {expression!r}")
