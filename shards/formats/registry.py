"""Which formats there are, which one a path has, and what the text of a file depends on beside its bytes."""

from dataclasses import dataclass
from functools import lru_cache

from shards import pages
from shards.errors import BadSpec
from shards.identity import content_hash
from shards.renditions import is_unicode

_ZIP, _OLE = b"PK", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # Office's files before 2007 are OLE compounds, as are newer ones with a password


@dataclass(frozen=True, slots=True)
class Format:
    """One format of files.

    title: for people. version: raised whenever the same bytes would give another text. suffixes: of paths, lower case. magic: how
    its files begin, empty where nothing tells. library: the distribution that reads it, "" for none; its version counts, too.
    family: of its documents' kind, "" for that of their text. is_archive: its members are documents, it is none. renderer: what its
    renditions' hashes call it, "" for its name. is_legacy: it is text, and of the format only where its encoding is neither Unicode nor
    Western: otherwise it is what it is without a format.
    """

    name: str
    title: str
    version: int
    suffixes: tuple[str, ...]
    magic: tuple[bytes, ...] = ()
    library: str = ""
    family: str = ""
    is_archive: bool = False
    renderer: str = ""
    is_legacy: bool = False

    def begins(self, data: bytes) -> bool:
        """Whether content may be of this format. One that looks otherwise is read as text like any file."""
        return not (self.is_legacy and is_unicode(data)) and (not self.magic or data.startswith(self.magic))

    @property
    def mark(self) -> str:
        """What the text of a file depends on beside its bytes: a new version of a reader is a change of every file that it reads."""
        if self.is_archive:  # its members are of any format
            return f"{self.name}\0{self.version}\0{_marks_digest()}\0"
        library = f"{self.library} {_version_of(self.library)}\0" if self.library else ""
        return f"{self.renderer or self.name}\0{self.version}\0{library}"

    def identity(self, data: bytes) -> bytes:
        """The content hash of a file's rendition, 20 bytes (FORMAT.md)."""
        return content_hash(self.mark.encode() + content_hash(data))


FORMATS = (
    # As spaces of images read them (`shards/pages.py`), so that such a space changes no text; PDFium's version is covered by that of pages.
    Format("pdf", "PDF", pages.VERSION, (pages.SUFFIX,), (b"%PDF-",), family=pages.KIND, renderer=pages.KIND),
    Format("docx", "DOCX", 1, (".docx", ".docm", ".dotx"), (_ZIP, _OLE), family="document"),
    Format("pptx", "PPTX", 1, (".pptx", ".pptm", ".ppsx"), (_ZIP, _OLE), family="slides"),
    Format("doc", "DOC", 1, (".doc",), (_OLE,), "kreuzberg", "document"),
    Format("ppt", "PPT", 1, (".ppt",), (_OLE,), "kreuzberg", "slides"),
    Format("msg", "Outlook message", 1, (".msg",), (_OLE,), "kreuzberg"),
    Format("rtf", "RTF", 1, (".rtf",), (b"{\\rtf",), "striprtf", "document"),
    Format("xlsx", "XLSX", 1, (".xlsx", ".xlsm", ".xlsb", ".ods"), (_ZIP, _OLE), "python-calamine", "sheets"),
    Format("xls", "XLS", 1, (".xls",), (_OLE, _ZIP), "python-calamine", "sheets"),
    Format("odt", "ODT", 1, (".odt", ".ott"), (_ZIP,), family="document"),
    Format("odp", "ODP", 1, (".odp",), (_ZIP,), family="slides"),
    Format("epub", "EPUB", 1, (".epub",), (_ZIP,), family="chapters"),
    Format("html", "HTML", 1, (".html", ".htm", ".xhtml")),
    Format("ipynb", "notebook", 1, (".ipynb",), family="cells"),
    Format("eml", "mail", 1, (".eml",)),
    Format("csv", "CSV", 1, (".csv", ".tsv"), library="charset-normalizer", is_legacy=True),
    Format("xml", "XML", 1, (".xml",), is_legacy=True),
    Format("zip", "zip", 1, (".zip",), (_ZIP,), is_archive=True),
    Format("tar", "tar", 1, (".tar", ".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz"), is_archive=True),
)  # fmt: skip
ALL = frozenset(known.name for known in FORMATS)
NONE: frozenset[str] = frozenset()

_BY_NAME = {known.name: known for known in FORMATS}
_BY_SUFFIX = {suffix: known for known in FORMATS for suffix in known.suffixes}


def format_named(name: str) -> Format:
    """The format of this name. Raises KeyError."""
    return _BY_NAME[name]


def format_of(path: str, among: frozenset[str] = ALL) -> Format | None:
    """The format that a path's suffix names; None for plain text, and where it is not among those to be read."""
    name = path.rpartition("/")[2].lower()
    first, dot, last = name.rpartition(".")
    if not dot or not first:
        return None
    known = _BY_SUFFIX.get("." + last) or _BY_SUFFIX.get("." + ".".join(name.rsplit(".", 2)[1:]))
    return known if known is not None and known.name in among else None


def parse_formats(text: str) -> frozenset[str]:
    """Formats to be read, from words such as "all", "none", "pdf,docx", "all,-html". Raises BadSpec."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise BadSpec(f"--formats {text!r} names no format. Choose all, none, or from {_choice()}.")
    chosen: frozenset[str] = ALL if words[0].startswith("-") else NONE
    for word in words:
        name = word.lower().removeprefix("-")
        if name not in ALL | {"all", "none"}:
            raise BadSpec(f"--formats {text!r}: there is no format {name!r}. Choose all, none, or from {_choice()}; -html leaves one out.")
        named = ALL if name == "all" else NONE if name == "none" else frozenset({name})
        chosen = chosen - named if word.startswith("-") else chosen | named
    return chosen


def _choice() -> str:
    return ", ".join(known.name for known in FORMATS)


@lru_cache
def _version_of(library: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(library)
    except PackageNotFoundError:
        return "missing"  # once it is installed, its files are read again


@lru_cache
def _marks_digest() -> str:
    return content_hash("\n".join(known.mark for known in FORMATS if not known.is_archive).encode()).hex()[:12]
