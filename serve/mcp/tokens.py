"""How many tokens a text costs a model, whichever it is: a bound by kinds of characters, never less than a tokenizer counts.

Of a model that reads bytes (GPT, Llama with its byte fallback, DeepSeek, Claude) a token is one byte or more, so that UTF-8 bytes are an
upper bound that is always right, and three to four times too high for English. The rule here stays above what six tokenizers count of
each text that was tried (see `tests/test_mcp_tokens.py`), by half on average, and well below bytes:

    letters      a run of ASCII letters of one case (a capital may begin it): a token for each 3; for each 2 of capitals alone, and of more
                 than 9 letters; each letter where it has no vowel, or more than 3 consonants in a row, or more than 20 letters: what
                 nobody speaks, no vocabulary holds
    digits       each; likewise each letter of a word that has digits in it (hashes, keys, base64)
    blanks       a single blank belongs to the word that follows, but not to a number; longer runs a token for each 4, each other white
                 space one
    the rest     each byte of its UTF-8: punctuation 1, accents 2, Chinese, Japanese, Korean, Indic 3; and one for the beginning
"""

import re

_WORD = re.compile(r"[A-Za-z0-9]+")
_CASES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_UNSPOKEN = re.compile(r"[^aeiouyAEIOUY]{4}")
_VOWEL = re.compile(r"[aeiouyAEIOUY]")
_NUMBERED = re.compile(r" (?=[0-9])")
_BLANKS = re.compile(r"  +")
COMMON, RARE = 3, 2  # letters of a token
LONG, LONGEST, BLANKS = 9, 20, 4


def count(text: str) -> int:
    """An upper bound of the tokens of a text."""
    total = 1 + len(text.encode("utf-8", "surrogatepass"))
    for match in _WORD.finditer(text):
        word = match[0]
        total += _of_word(word) - len(word)
    total -= text.count(" ") - len(_NUMBERED.findall(text))
    for match in _BLANKS.finditer(text):
        total += -(-len(match[0]) // BLANKS)
    return total


def _of_word(word: str) -> int:
    if not word.isalpha():
        return len(word)
    return sum(_of_letters(part) for part in _CASES.findall(word))


def _of_letters(part: str) -> int:
    if len(part) > 2 and (len(part) > LONGEST or not _VOWEL.search(part) or _UNSPOKEN.search(part)):
        return len(part)
    return -(-len(part) // (RARE if len(part) > LONG or part[-1].isupper() else COMMON))
