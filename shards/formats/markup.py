"""HTML as the text that is read: blocks as paragraphs, rows of tables as lines, what is not shown left out, equations kept.

An equation that brings its TeX along becomes `$…$`; another one stays as the markup that it is, on one line: MathML is a notation, too.
"""

import re
from html.parser import HTMLParser

from shards.formats.encodings import decoded_markup
from shards.formats.reader import Read, flowing

_HIDDEN = frozenset("script style template noscript svg iframe object select datalist head".split())
_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure footer form header hgroup "
    "hr legend main menu nav ol p section summary table tbody tfoot thead ul video audio".split()
)
_HEADINGS = {f"h{n}": "#" * n for n in range(1, 7)}
_BESIDE = frozenset("a button label option".split())
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_MATH_ATTRIBUTES = re.compile(r'\s(?:class|style|id|xmlns(?::\w+)?|data-[\w-]+|alttext)\s*=\s*("[^"]*"|\'[^\']*\')')
_TEX = re.compile(r"<annotation\b[^>]*x-(?:tex|latex)[^>]*>(.*?)</annotation>", re.DOTALL | re.IGNORECASE)
_ANNOTATION = re.compile(r"<annotation(?:-xml)?\b.*?</annotation(?:-xml)?>", re.DOTALL | re.IGNORECASE)


def load() -> None:
    """Nothing: the standard library does."""


def read(_name: str, data: bytes, _unpacked_bytes: int) -> Read:
    """The text of a page. facts: its title."""
    text, title = text_of(decoded_markup(data))
    return Read(text, {"title": title})


def text_of(html: str) -> tuple[str, str]:
    """The text of HTML and what its title says."""
    parser = _Text()
    parser.feed(html)
    parser.close()
    return parser.text(), " ".join("".join(parser.title).split())


class _Text(HTMLParser):
    """Collects what is shown. Never fails: browsers show whatever comes, and so do we."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self._out: list[str] = []
        self._open: list[str] = []  # hidden elements that are open
        self._pre = self._in_title = self._cells = 0
        self._beside = ""  # what ended just now, of elements that a page shows apart even where no blank stands between
        self._math: list[str] | None = None
        self._tex = ""  # of the last equation

    def text(self) -> str:
        """All of it."""
        if self._math is not None:
            self._end_math()
        return flowing("".join(self._out))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._math is not None:
            self._math.append(self.get_starttag_text() or "")
        elif tag == "math" and not self._open:
            self._math = [self.get_starttag_text() or ""]
        elif tag == "title" and self._open in ([], ["head"]):
            self._in_title = 1
        elif tag == "body":  # browsers end a forgotten head here
            self._open.clear()
            self._break()
        elif tag in _HIDDEN or (self._open and tag == self._open[-1]) or _is_drawn_equation(attrs):
            self._open.append(tag)
        elif not self._open:
            self._start(tag, dict(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._math is not None:
            self._math.append(self.get_starttag_text() or "")
        elif tag not in _HIDDEN | {"title", "math"}:  # <script/> opens nothing in XHTML
            self.handle_starttag(tag, attrs)
            if tag not in _VOID:
                self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._math is not None:
            self._math.append(f"</{tag}>")
            if tag == "math":
                self._end_math()
        elif tag == "title":
            self._in_title = 0
        elif tag in self._open:
            del self._open[len(self._open) - 1 - self._open[::-1].index(tag) :]
        elif self._open:
            return
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)
            self._break()
        elif tag in _BESIDE:
            self._beside = tag
        elif tag in _BLOCKS or tag in _HEADINGS or tag in ("li", "tr"):
            self._break("\n" if tag in ("li", "tr") else "\n\n")

    def handle_data(self, data: str) -> None:
        if self._math is not None:
            self._math.append(data.replace("&", "&amp;").replace("<", "&lt;"))
        elif self._in_title:
            self.title.append(data)
        elif not self._open:
            self._beside = ""
            if self._pre:
                self._out.append(data)
            elif data:
                if data[0].isspace():
                    self._blank()
                if words := " ".join(data.split()):
                    self._out.append(words + (" " if data[-1].isspace() else ""))

    def _start(self, tag: str, attrs: dict[str, str | None]) -> None:
        if tag == self._beside:
            self._blank()
        elif tag == "br":
            self._out.append("\n")
        elif tag == "pre":
            self._break()
            self._pre += 1
        elif tag in _HEADINGS:
            self._break()
            self._out.append(_HEADINGS[tag] + " ")
        elif tag == "li":
            self._break("\n")
            self._out.append("- ")
        elif tag == "tr":
            self._break("\n")
            self._cells = 0
        elif tag in ("td", "th"):
            if self._cells:
                self._out.append("\t")
            self._cells += 1
        elif tag == "img":
            words = " ".join((attrs.get("alt") or "").split())
            if words and words != self._tex:  # the picture of an equation, beside it
                self._blank()
                self._out.append(words + " ")
        elif tag in _BLOCKS:
            self._break()

    def _blank(self) -> None:
        if self._out and not self._out[-1].endswith((" ", "\n", "\t")):
            self._out.append(" ")

    def _break(self, lines: str = "\n\n") -> None:
        self._beside = ""
        if self._out and not self._out[-1].endswith(lines):
            self._out.append("\n" if self._out[-1].endswith("\n") else lines)

    def _end_math(self) -> None:
        markup = "".join(self._math or ())
        self._math = None
        is_block = re.match(r"<math\b[^>]*\bdisplay\s*=\s*[\"']?block", markup, re.IGNORECASE) is not None
        if said := _TEX.search(markup):
            from html import unescape

            tex = self._tex = " ".join(unescape(said[1]).split())
            self._out.append(f"\n\n$${tex}$$\n\n" if is_block else f"${tex}$")
        else:
            self._out.append(one_line_math(markup))


def _is_drawn_equation(attrs: list[tuple[str, str | None]]) -> bool:
    """Whether an element is what KaTeX draws beside an equation's MathML: its characters one by one."""
    return any(name == "class" and value is not None and "katex-html" in value.split() for name, value in attrs)


def one_line_math(markup: str) -> str:
    """MathML on one line, without annotations and attributes that say nothing of its meaning."""
    return " ".join(_MATH_ATTRIBUTES.sub("", _ANNOTATION.sub("", markup)).split())
