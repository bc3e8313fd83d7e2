"""Files that are zip archives of parts: Office, OpenDocument, EPUB."""

import io
import zipfile
from xml.etree import ElementTree

from shards.formats.compound import OLE, wants_password
from shards.formats.reader import DAMAGED, PASSWORD, Unreadable


class Package:
    """The parts of one file. unpacked_bytes: that all of them may have together, by what they say and by what they give."""

    def __init__(self, data: bytes, unpacked_bytes: int):
        """Raises Unreadable."""
        if data.startswith(OLE):
            raise Unreadable(PASSWORD if wants_password(data) else DAMAGED)
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, NotImplementedError):
            raise Unreadable(DAMAGED) from None
        infos = self._zip.infolist()
        if any(info.flag_bits & 1 for info in infos):
            raise Unreadable(PASSWORD)
        if sum(info.file_size for info in infos) > unpacked_bytes:
            raise Unreadable(f"that unpacks to more than {unpacked_bytes >> 20:,} MiB")
        self.names = frozenset(self._zip.namelist())

    def part(self, name: str) -> bytes:
        """One part. Raises KeyError where there is none, Unreadable where it is damaged."""
        try:
            return self._zip.read(name)
        except (KeyError, MemoryError):
            raise
        except Exception:  # zlib, lzma, checksums
            raise Unreadable(DAMAGED) from None

    def tree(self, name: str) -> ElementTree.Element:
        """One part as XML. Raises KeyError, Unreadable."""
        return xml_tree(self.part(name))


def xml_tree(data: bytes) -> ElementTree.Element:
    """An XML document; expat bounds what entities may blow it up to. Raises Unreadable."""
    try:
        return ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError):
        raise Unreadable(DAMAGED) from None


def local(element: ElementTree.Element) -> str:
    """An element's name without its namespace; "" for a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: ElementTree.Element, name: str, default: str = "") -> str:
    """The attribute of this name in whatever namespace."""
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), default)


def core_facts(package: Package) -> dict[str, str | None]:
    """What an Office file says of itself (ECMA-376 part 2, section 11)."""
    if "docProps/core.xml" not in package.names:
        return {}
    said = {local(element): element.text for element in package.tree("docProps/core.xml").iter()}
    return {"author": said.get("creator")} | {name: said.get(name) for name in ("title", "subject", "keywords", "created", "modified")}
