"""Compound files (OLE), as Office wrote them before 2007 and still writes them around a document with a password: do they want one?"""

import re

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_PACKAGE = "EncryptedPackage".encode("utf-16-le")  # the stream that holds an encrypted zip file of parts: [MS-OFFCRYPTO] 2.3.4.4
_SECTOR_BYTES = 64  # the smallest: where a stream may begin
_WORD = re.compile(rb"\xec\xa5[\xc0-\xc2]\0.{6}.(?P<flags>.)", re.DOTALL)  # the head of WordDocument: [MS-DOC] 2.5.2, F is bit 0
_SHEET = re.compile(  # BOF of the workbook, then FilePass, perhaps after WriteProtect: [MS-XLS] 2.4.21, 2.4.117
    rb"\x09\x08(?:\x10\0..\x05\0.{12}|\x08\0..\x05\0.{4})(?:\x86\0\0\0)?\x2f\0", re.DOTALL
)
_SLIDES = re.compile(rb"\0\0\xf6\x0f.{4}\x14\0\0\0\xdf\xc4\xd1\xf3", re.DOTALL)  # CurrentUserAtom with headerToken F3D1C4DF: [MS-PPT] 2.3.2


def wants_password(data: bytes) -> bool:
    """Whether a compound file is encrypted, by the marks of each program; one that is damaged may lack them."""
    if _PACKAGE in data:
        return True
    if word := next((one for one in _WORD.finditer(data) if one.start() % _SECTOR_BYTES == 0), None):
        return bool(word["flags"][0] & 1)
    return any(one.start() % _SECTOR_BYTES == 0 for marks in (_SHEET, _SLIDES) for one in marks.finditer(data))
