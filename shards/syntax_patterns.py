"""ast-grep patterns and rules: what a form asks, and the words that every match must hold."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from shards.errors import BadQuery
from shards.languages import BY_NAME, LANGUAGES
from shards.regexes import ignores_case, required_literals
from shards.syntax_process import Task, shared_parsers
from shards.types import Budget

FORM = '{"pattern": "f($A)", "language": …} or {"rule": {…} or the text of a rule file, "language": …}'
MAX_BYTES = 8192
CHECK_S = 20.0  # for a pattern to be read in all languages: 0.1 s, beside a machine that is starved
_METAVARIABLE = re.compile(r"\$\$\$[A-Z_][A-Z0-9_]*|\$\$\$|\$\$?[A-Z_][A-Z0-9_]*")
_WORD = re.compile(r"\w+")
_FILE_KEYS = frozenset(  # of a rule file; those that say nothing of what matches are passed over
    "rule constraints utils language id message note severity fix rewriters transform files ignores url metadata labels".split()
)
_KEPT_KEYS = ("rule", "constraints", "utils")


class Form(BaseModel):
    """The form of the structure space: a pattern, or a rule with what a rule file may say beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    pattern: str | dict[str, Any] | None = None
    rule: dict[str, Any] | str | None = None
    constraints: dict[str, Any] | None = None
    utils: dict[str, Any] | None = None
    language: str | None = None
    strictness: Literal["cst", "smart", "ast", "relaxed", "signature", "template"] | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A form as ast-grep takes it: JSON of a config, and the languages (names) it may be of."""

    config: str
    languages: tuple[str, ...]


def question_of(given: Mapping[str, Any]) -> Question:
    """Raises BadQuery."""
    try:
        form = Form(**given)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise BadQuery(f"Structure form: {problems}. Expected {FORM}.") from None
    if (form.pattern is None) == (form.rule is None):
        raise BadQuery(f"Structure form: give one of pattern and rule. Expected {FORM}.")
    language = form.language
    if form.pattern is not None:
        if not form.pattern or (isinstance(form.pattern, str) and not form.pattern.strip()):
            raise BadQuery(f"Structure: the pattern is empty. Expected {FORM}.")
        pattern: Any = form.pattern
        if form.strictness is not None:
            pattern = ({"context": pattern} if isinstance(pattern, str) else pattern) | {"strictness": form.strictness}
        config: dict[str, Any] = {"rule": {"pattern": pattern}}
    else:
        config = _rule_of(form.rule)
        language = language or config.pop("language", None)
    config |= {key: value for key in ("constraints", "utils") if (value := getattr(form, key)) is not None}
    try:
        text = json.dumps(config, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        raise BadQuery(f"Structure: the rule is not made of JSON values: {error}.") from None
    if size > MAX_BYTES:
        raise BadQuery(f"Structure: the pattern or rule has {size} bytes; at most {MAX_BYTES} are allowed. Shorten it.")
    if language is None:
        return Question(text, tuple(one.name for one in LANGUAGES if one.definitions))
    if not isinstance(language, str) or (known := BY_NAME.get(language.lower())) is None:
        raise BadQuery(f"Structure: language {language!r} is unknown. Choose from: {', '.join(one.name for one in LANGUAGES)}.")
    return Question(text, (known.name,))


def _rule_of(rule: Any) -> dict[str, Any]:
    """The config of a rule, or of a rule file, given as an object or as YAML or JSON."""
    if isinstance(rule, str):
        import yaml

        try:
            rule = yaml.safe_load(rule)
        except (yaml.YAMLError, RecursionError) as error:
            raise BadQuery(f"Structure: the rule is not YAML: {str(error)[:300]}") from None
    if not isinstance(rule, dict) or not rule:
        raise BadQuery(f"Structure: the rule is not an object. Expected {FORM}.")
    if "rule" not in rule:
        return {"rule": rule}
    if unknown := sorted(set(map(str, rule)) - _FILE_KEYS):
        raise BadQuery(f"Structure: a rule file has no {', '.join(unknown)}. It has rule, constraints, utils, language.")
    return {key: rule[key] for key in (*_KEPT_KEYS, "language") if rule.get(key) is not None}


@lru_cache(maxsize=256)
def languages_that_read(question: Question) -> tuple[tuple[str, ...], str]:
    """The languages in which a config can be asked, and what ast-grep says where none can. Raises ModelMissing without ast-grep-py."""
    config = json.loads(question.config)
    tasks = [Task(number, bytes([number]), b"", name, config) for number, name in enumerate(question.languages)]
    answers = {answer.number: answer for answer in shared_parsers("search").each(iter(tasks), Budget(CHECK_S))}
    if len(answers) < len(tasks):
        raise BadQuery("Structure: the pattern could not be read in time. Name its language, or shorten it.")
    late = "it takes too long to read"
    problems = {name: answers[i].error or (late if answers[i].reason else "") for i, name in enumerate(question.languages)}
    good = tuple(name for name, problem in problems.items() if not problem)
    return good, "" if good else next(iter(problems.values()))


Clauses = tuple[tuple[str, ...], ...]


def required_words(config: Mapping[str, Any]) -> Clauses:
    """Words that stand in every document with a match: of each tuple one at least. () if none are known."""
    found = _clauses(config.get("rule"))
    for variable, rule in (config.get("constraints") or {}).items():
        if isinstance(variable, str) and f"${variable}" in json.dumps(config.get("rule")):
            found |= _clauses(rule)
    return tuple(sorted(found))


def _clauses(rule: Any) -> set[tuple[str, ...]]:
    if not isinstance(rule, dict):
        return set()
    found: set[tuple[str, ...]] = set()
    for key, value in rule.items():
        if key == "pattern":
            found |= {(word,) for word in _words_of_pattern(value)}
        elif key == "regex" and isinstance(value, str) and not ignores_case(value):
            found |= {(run.decode(),) for run in required_literals(value, False) if run.isascii()}
        elif key in ("inside", "has", "follows", "precedes"):
            found |= _clauses(value)
        elif key == "all" and isinstance(value, list):
            found = found.union(*map(_clauses, value))
        elif key == "any" and isinstance(value, list) and value and all(each := [_clauses(one) for one in value]):
            # Of each alternative its longest clause: one of these holds.
            found.add(tuple(sorted({word for one in each for word in max(one, key=lambda clause: (min(map(len, clause)), clause))})))
    return found


def _words_of_pattern(pattern: Any) -> set[str]:
    """Of a pattern that counts what its leaves read: a selector takes a part of it, and laxer strictness passes over some."""
    if isinstance(pattern, dict):
        if set(pattern) - {"context", "strictness"} or pattern.get("strictness", "smart") not in ("smart", "cst"):
            return set()
        pattern = pattern.get("context")
    return {word for word in _WORD.findall(_METAVARIABLE.sub(" ", pattern)) if len(word) > 1} if isinstance(pattern, str) else set()
