"""A small corpus of prose, code and Chinese, indexed once for the tests of tools for agents."""

from pathlib import Path

from engine import Engine, write_files

CODE = '''def parse_date(text: str) -> datetime:
    """Parses an HTTP date header, see RFC 9110 section 5.6.7."""
    match = re.fullmatch(r"(\\w{3}), (\\d{2}) (\\w{3}) (\\d{4}) (\\d{2}):(\\d{2}):(\\d{2}) GMT", text)
    if match is None:
        raise ValueError(f"no HTTP date: {text!r}")
    return datetime(int(match[4]), MONTHS.index(match[3]) + 1, int(match[2]), *map(int, match.groups()[4:]))
'''
CHINESE = "东京是日本的首都，也是世界上最大的都市圈之一。搜索引擎为文档建立索引，并回答用户提出的问题。第{i}号文档讨论边界层与激波。" * 12


def files() -> dict[str, str]:
    """Forty documents: ten of each kind, and notes with metadata."""
    made = {f"wing/flutter{i}.md": f"# Flutter {i}\n\n" + f"Wing flutter at mach {i} heats the panel. " * (5 + 6 * i) for i in range(10)}
    made |= {f"code/dates{i}.py": f"# module {i}\n" + CODE * (1 + i) for i in range(10)}
    made |= {f"zh/{i}.txt": CHINESE.format(i=i) for i in range(10)}
    made |= {f"notes/{i}.md": f"---\nyear: {1990 + i}\n---\nA note on dates of wings, number {i}." for i in range(10)}
    return made


def indexed(folder: Path) -> Path:
    """The store of the corpus "c"."""
    Engine(folder, layers=("bm25", "text", "names")).index(write_files(folder / "source", files()), calibrate=False)
    return folder / "store"
