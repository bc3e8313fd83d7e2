"""Files of every format, small and written here, so that what is in them is known: "harbour" on page 1, "lighthouse" on page 2."""

import io
import json
import tarfile
import zipfile
from email.message import EmailMessage

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
M = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
P = 'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
R = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
ODF = "urn:oasis:names:tc:opendocument:xmlns"


def zipped(parts: dict[str, str | bytes]) -> bytes:
    """A zip archive, the same every time."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return target.getvalue()


def tarred(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    """A tar archive."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


def relations(*kinds: tuple[str, str]) -> str:
    rows = "".join(f'<Relationship Id="rId{i}" Type="{OFFICE}/{kind}" Target="{target}"/>' for i, (kind, target) in enumerate(kinds, 1))
    return f'<?xml version="1.0"?><Relationships xmlns="{RELATIONS}">{rows}</Relationships>'


def types(**overrides: str) -> str:
    rows = "".join(f'<Override PartName="/{name}" ContentType="application/vnd.openxmlformats-officedocument.{kind}+xml"/>'
                   for name, kind in overrides.items())  # fmt: skip
    default = "application/vnd.openxmlformats-package.relationships+xml"
    return (
        f'<?xml version="1.0"?><Types xmlns="{TYPES}"><Default Extension="rels" ContentType="{default}"/>'
        f'<Default Extension="xml" ContentType="application/xml"/>{rows}</Types>'
    )


def power(base: str, exponent: str) -> str:
    """base to the power of exponent, as Office writes it."""
    return f"<m:sSup><m:e><m:r><m:t>{base}</m:t></m:r></m:e><m:sup><m:r><m:t>{exponent}</m:t></m:r></m:sup></m:sSup>"


EQUATION = f"{power('x', '2')}<m:r><m:t>+</m:t></m:r>{power('y', '2')}<m:r><m:t>=θ</m:t></m:r>"


def docx(body: str = "") -> bytes:
    """Two pages, an equation in a sentence and one by itself, and a table."""
    text = body or (
        "<w:p><w:r><w:t>Ships lie in the harbour.</w:t></w:r></w:p>"
        f"<w:p><w:r><w:t>For </w:t></w:r><m:oMath>{EQUATION}</m:oMath><w:r><w:t>, it holds.</w:t></w:r></w:p>"
        f"<w:p><m:oMathPara><m:oMath>{EQUATION}</m:oMath></m:oMathPara></w:p>"
        '<w:p><w:r><w:br w:type="page"/></w:r></w:p>'
        "<w:p><w:r><w:lastRenderedPageBreak/><w:t>The lighthouse stands on page two.</w:t></w:r></w:p>"
        "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>Ship</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>Tons</w:t></w:r></w:p></w:tc></w:tr>"
        "<w:tr><w:tc><w:p><w:r><w:t>Ada</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>311</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    )
    return zipped(
        {
            "[Content_Types].xml": types(**{"word/document.xml": "wordprocessingml.document.main"}),
            "_rels/.rels": relations(("officeDocument", "word/document.xml")),
            "word/document.xml": f'<?xml version="1.0" encoding="UTF-8"?><w:document {W} {M}><w:body>{text}</w:body></w:document>',
        }
    )


def slide(*paragraphs: str) -> str:
    shown = "".join(f"<a:p>{paragraph}</a:p>" for paragraph in paragraphs)
    about = '<p:nvSpPr><p:cNvPr id="2" name="x"/><p:cNvSpPr/><p:nvPr/></p:nvSpPr><p:spPr/>'
    shape = f"<p:sp>{about}<p:txBody><a:bodyPr/>{shown}</p:txBody></p:sp>"
    math = 'xmlns:a14="http://schemas.microsoft.com/office/drawing/2010/main"'
    return f'<?xml version="1.0"?><p:sld {A} {P} {R} {M} {math}><p:cSld><p:spTree>{shape}</p:spTree></p:cSld></p:sld>'


def pptx() -> bytes:
    """Two slides, the second with an equation."""
    kinds = {f"ppt/slides/slide{i}.xml": "presentationml.slide" for i in (1, 2)}
    return zipped(
        {
            "[Content_Types].xml": types(**{"ppt/presentation.xml": "presentationml.presentation.main"} | kinds),
            "_rels/.rels": relations(("officeDocument", "ppt/presentation.xml")),
            "ppt/_rels/presentation.xml.rels": relations(("slide", "slides/slide1.xml"), ("slide", "slides/slide2.xml")),
            "ppt/presentation.xml": f'<?xml version="1.0"?><p:presentation {A} {P} {R}><p:sldIdLst><p:sldId id="256" r:id="rId1"/>'
            '<p:sldId id="257" r:id="rId2"/></p:sldIdLst></p:presentation>',
            "ppt/slides/slide1.xml": slide("<a:r><a:t>Ships lie in the harbour</a:t></a:r>"),
            "ppt/slides/slide2.xml": slide("<a:r><a:t>The lighthouse of </a:t></a:r>"
                                           f"<a14:m><m:oMath>{EQUATION}</m:oMath></a14:m><a:r><a:t> rays</a:t></a:r>"),
        }
    )  # fmt: skip


def sheet(cells: dict[str, str | float]) -> str:
    rows: dict[int, str] = {}
    for name, value in cells.items():
        number = int(name.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
        told = f'<c r="{name}" t="inlineStr"><is><t>{value}</t></is></c>' if isinstance(value, str) else f'<c r="{name}"><v>{value}</v></c>'
        rows[number] = rows.get(number, "") + told
    data = "".join(f'<row r="{number}">{row}</row>' for number, row in sorted(rows.items()))
    return ('<?xml version="1.0"?><worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
            f"<sheetData>{data}</sheetData></worksheet>")  # fmt: skip


def xlsx(*sheets: tuple[str, dict[str, str | float]]) -> bytes:
    """Two sheets; on the second a block that does not begin at A1, and one far below it."""
    sheets = sheets or (
        ("Ships", {"A1": "Name", "B1": "Tons", "A2": "harbour", "B2": 311}),
        ("Lights & Co", {"B3": "Tower", "C3": "Height", "B4": "lighthouse", "C4": 27.5, "D40": "far below"}),
    )
    names = [name.replace("&", "&amp;") for name, _ in sheets]
    listed = "".join(f'<sheet name="{name}" sheetId="{i}" r:id="rId{i}"/>' for i, name in enumerate(names, 1))
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    kinds = {f"xl/worksheets/sheet{i}.xml": "spreadsheetml.worksheet" for i, _ in enumerate(sheets, 1)}
    return zipped(
        {
            "[Content_Types].xml": types(**{"xl/workbook.xml": "spreadsheetml.sheet.main"} | kinds),
            "_rels/.rels": relations(("officeDocument", "xl/workbook.xml")),
            "xl/_rels/workbook.xml.rels": relations(*(("worksheet", f"worksheets/sheet{i}.xml") for i, _ in enumerate(sheets, 1))),
            "xl/workbook.xml": f'<?xml version="1.0"?><workbook xmlns="{main}" {R}><sheets>{listed}</sheets></workbook>',
        }
        | {f"xl/worksheets/sheet{i}.xml": sheet(cells) for i, (_, cells) in enumerate(sheets, 1)}
    )


MATHML = '<math xmlns="http://www.w3.org/1998/Math/MathML"><semantics><msup><mi>x</mi><mn>2</mn></msup>{}</semantics></math>'


def odt() -> bytes:
    """Headings, a list, a table, an equation, and a place where a page ended."""
    spaces = " ".join(f'xmlns:{p}="{ODF}:{p}:1.0"' for p in ("office", "text", "table")) + f' xmlns:draw="{ODF}:drawing:1.0"'
    return zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": f'<?xml version="1.0"?><office:document-content {spaces} xmlns:xlink="http://www.w3.org/1999/xlink"><office:body>'
            '<office:text><text:h text:outline-level="2">Ships</text:h><text:p>They lie  in<text:s text:c="2"/>the harbour.</text:p>'
            "<text:list><text:list-item><text:p>one</text:p></text:list-item><text:list-item><text:p>two</text:p></text:list-item></text:list>"
            '<text:p>So <draw:frame><draw:object xlink:href="./Object 1"/></draw:frame> holds.</text:p>'
            "<text:p><text:soft-page-break/>The lighthouse.</text:p><table:table><table:table-row><table:table-cell><text:p>Ada</text:p>"
            "</table:table-cell><table:table-cell><text:p>311</text:p></table:table-cell></table:table-row></table:table>"
            "</office:text></office:body></office:document-content>",
            "Object 1/content.xml": MATHML.format('<annotation encoding="StarMath 5.0">x^2</annotation>'),
            "meta.xml": '<meta xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Ships of old</dc:title></meta>',
        }
    )


def odp() -> bytes:
    """Two slides."""
    spaces = " ".join(f'xmlns:{p}="{ODF}:{p}:1.0"' for p in ("office", "text", "presentation")) + f' xmlns:draw="{ODF}:drawing:1.0"'
    pages = "".join(f"<draw:page><draw:frame><draw:text-box><text:p>{text}</text:p></draw:text-box></draw:frame></draw:page>"
                    for text in ("The harbour", "The lighthouse"))  # fmt: skip
    body = f"<office:body><office:presentation>{pages}</office:presentation></office:body>"
    content = f"<office:document-content {spaces}>{body}</office:document-content>"
    return zipped({"mimetype": "application/vnd.oasis.opendocument.presentation", "content.xml": content})


def epub(locked: str = "") -> bytes:
    """Two chapters, the second with an equation. locked: a part that is said to be encrypted."""
    chapters = ("<h1>Ships</h1><p>In the harbour.</p>", "<h1>Towers</h1><p>The lighthouse has " + MATHML.format(
        '<annotation encoding="application/x-tex">x^2</annotation>') + " rays.</p>")  # fmt: skip
    items = "".join(f'<item id="c{i}" href="text/c%20{i}.xhtml" media-type="application/xhtml+xml"/>' for i in (1, 2))
    parts: dict[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OPS/book.opf"/></rootfiles></container>',
        "OPS/book.opf": '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<metadata><dc:title>The coast</dc:title></metadata><manifest>{items}</manifest>"
        '<spine><itemref idref="c1"/><itemref idref="c2"/></spine></package>',
    }
    for i, chapter in enumerate(chapters, 1):
        head = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>x</title></head>'
        parts[f"OPS/text/c {i}.xhtml"] = f"{head}<body>{chapter}</body></html>"
    if locked:
        parts["META-INF/encryption.xml"] = f'<encryption><EncryptedData><CipherReference URI="{locked}"/></EncryptedData></encryption>'
    return zipped(parts)


HTML = b"""<!DOCTYPE html><html><head><title>The coast</title><style>p { color: red }</style></head><body>
<nav><a href=/>Home</a><a>About</a></nav>
<h1>Ships</h1><p>Ships lie in the <b>harb</b>our at
dawn.<ul><li>one<li>two</ul><table><tr><th>Ship<th>Tons<tr><td>Ada<td>311</table>
<p>It holds that <math display="block">
<semantics><mi>x</mi><annotation encoding="application/x-tex">x^{2} &lt; y</annotation></semantics></math>
<p>and <math class="a"><msup><mi>a</mi><mn>2</mn></msup></math>.<script>lighthouse()</script><pre>if a:
    b()</pre><p>G\xc3\xb6teborg &amp; &#x4e2d;</body></html>"""

RTF = (
    rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}{\info{\title The coast}}\f0 Ships in the harbour of G\'f6teborg.\par "
    rb"The {\b light}house \u20013? stands.\par}"
)

NOTEBOOK = json.dumps(
    {
        "nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": {"name": "python3", "language": "python"}},
        "cells": [
            {"cell_type": "markdown", "source": ["# The harbour\n", "where $x^2$ holds"], "metadata": {}},
            {"cell_type": "code", "source": "def lighthouse():\n\n\n    return 311", "metadata": {}, "execution_count": 1,
             "outputs": [{"output_type": "stream", "name": "stdout", "text": ["shining\n"]},
                         {"output_type": "display_data", "data": {"text/html": "<b>bold</b>"}, "metadata": {}},
                         {"output_type": "error", "ename": "ValueError", "evalue": "no light", "traceback": []}]},
        ],
    }
).encode()  # fmt: skip


def eml() -> bytes:
    """A mail in quoted-printable and base64, with an alternative in HTML and something attached."""
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = "Ships in the harbour of Göteborg", "Ada <ada@example.org>", "bo@example.org"
    mail["Date"] = "Tue, 20 Feb 2024 10:15:00 +0100"
    mail.set_content("The lighthouse stands.\nGrüße\n", cte="base64")
    mail.add_alternative("<p>The lighthouse <b>stands</b>.</p>", subtype="html")
    mail.add_attachment(b"\0\1", maintype="application", subtype="octet-stream", filename="chart.bin")
    return mail.as_bytes()


CSV = "名前,年齢,住所\n佐藤太郎,30,東京\n三木英子,25,大阪\n髙橋淳,35,名古屋\n".encode("cp932")
XML = '<?xml version="1.0" encoding="windows-1251"?>\n<корабль>гавань</корабль>\n'.encode("cp1251")


def files(pdf: bytes) -> dict[str, bytes]:
    """One file of each format that is written here, by name."""
    members = {"a/ship.html": HTML, "a/notes.txt": b"The harbour lies open.\n"}
    return {
        "a.pdf": pdf, "a.docx": docx(), "a.pptx": pptx(), "a.xlsx": xlsx(), "a.odt": odt(), "a.odp": odp(), "a.epub": epub(),
        "a.html": HTML, "a.rtf": RTF, "a.ipynb": NOTEBOOK, "a.eml": eml(), "a.csv": CSV, "a.xml": XML, "a.zip": zipped(members),
        "a.tar.gz": tarred(members),
    }  # fmt: skip
