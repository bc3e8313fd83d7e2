"""The documents are true: what they name exists, and what a user meets is named in them."""

import json
import re
import shlex
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import click
import numpy as np
import pytest
import tiny_bert
import tiny_sparse
import typer.main

from jobs.cli import app
from jobs.settings import VARIABLES
from serve.http import create_app
from serve.local import local_coordinator
from shards import manifest, vector_sketches
from shards.corpus_nulls import CorpusNulls
from shards.documents import Documents
from shards.errors import BadSpec
from shards.layers import REGISTRY, SpaceSpec, create
from shards.layers.contract import Layer, Resources
from shards.nulls import FusedNull, SpaceNull
from shards.segment import _document_arrays, _entry_arrays, pack_entries
from shards.types import Entry

ROOT = Path(__file__).resolve().parent.parent
README, ARCHITECTURE, FORMAT = "README.md", "ARCHITECTURE.md", "shards/FORMAT.md"
DOCUMENTS = (README, ARCHITECTURE, FORMAT)
JOBS = ("index", "deploy", "scale", "evaluate", "conform", "tune", "bench", "chaos", "formula_families", "misspellings")
DELEGATED = {name: name for name in ("index", "deploy", "scale", "evaluate", "tune", "bench")}  # commands whose options are a job's


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def bash_blocks(document: str) -> list[str]:
    return re.findall(r"```bash\n(.*?)```", text_of(document), re.DOTALL)


def prose(document: str) -> str:
    """The document without its code blocks."""
    return re.sub(r"```.*?```", "", text_of(document), flags=re.DOTALL)


def inline_code(document: str) -> list[str]:
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(document))


@lru_cache
def sub_commands() -> dict[str, click.Command]:
    return typer.main.get_command(app).commands


@lru_cache
def options_of_job(name: str) -> frozenset[str]:
    """The options of a job script, as its own help tells them."""
    shown = subprocess.run([sys.executable, f"jobs/{name}.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    return frozenset(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", shown.stdout))


def options_of(command: str) -> frozenset[str]:
    if command in DELEGATED:
        return options_of_job(DELEGATED[command])
    return frozenset(o for p in sub_commands()[command].params for o in (*p.opts, *p.secondary_opts)) | {"--help"}


def invocations(document: str) -> list[tuple[str, list[str]]]:
    """("sondage CMD" or "jobs/NAME.py", its words) of each command line of the document, in blocks and inline."""
    lines = [line for block in bash_blocks(document) for line in block.replace("\\\n", " ").splitlines()]
    lines += [code for code in inline_code(document) if " " in code]
    found = []
    for line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue  # inline code that is no command
        for i, word in enumerate(words[:-1]):
            if word == "sondage" and re.fullmatch("[a-z]+", words[i + 1]):
                found.append((f"sondage {words[i + 1]}", words[i + 2 :]))
            if word == "python" and words[i + 1].startswith("jobs/"):
                found.append((words[i + 1], words[i + 2 :]))
    return found


@pytest.mark.parametrize("document", [README, ARCHITECTURE])
def test_commands_and_options_in_the_documents_exist(document):
    for command, words in invocations(document):
        kind, _, name = command.partition(" ")
        if kind == "sondage":
            assert name in sub_commands(), f"{document}: there is no `sondage {name}`"
            known = options_of(name)
        else:
            assert Path(ROOT / command).is_file(), f"{document}: there is no {command}"
            known = options_of_job(Path(command).stem)
        for word in words:
            if re.match("-[a-zA-Z]|--[a-z]", word):
                assert word.split("=")[0] in known, f"{document}: {command} has no option {word}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_options_named_alone_belong_to_some_command(document):
    known = frozenset().union(*map(options_of_job, JOBS), *map(options_of, sub_commands()))
    known |= set(re.findall(r"--[a-z-]+", text_of("infra/demo")))
    for code in inline_code(document):
        if code.startswith("--"):
            assert code.split()[0] in known, f"{document}: no command has the option {code}"


def test_commands_of_jobs_say_which_layers_there_are_to_build():
    """A layer spec on a documented command line is one that the job accepts."""
    specs = 0
    for _, words in invocations(README):
        for option, value in zip(words[:-1], words[1:], strict=True):
            if option in ("--layers", "--layer"):
                for text in value.split(",") if option == "--layers" else [value]:
                    assert_spec(README, text)
                    specs += 1
    assert specs


def assert_spec(document: str, text: str) -> None:
    spec = SpaceSpec.parse(text)
    try:
        create(spec, Resources())
    except BadSpec as error:
        pytest.fail(f"{document}: {text!r}: {error}")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_dials_in_the_documents_exist(document):
    layers = "|".join(REGISTRY)
    for code in inline_code(document):
        if re.match(rf"(?:\w+=)?(?:{layers})(?::\w+=|@)", code):
            assert_spec(document, code)


def test_every_sub_command_is_documented():
    shown = text_of(README) + text_of(ARCHITECTURE)
    for name in sub_commands():
        assert re.search(rf"sondage {name}\b", shown), f"`sondage {name}` is in neither README.md nor ARCHITECTURE.md"


def test_every_job_is_documented():
    shown = text_of(README) + text_of(ARCHITECTURE)
    runnable = {path.stem for path in (ROOT / "jobs").glob("*.py") if "__main__" in path.read_text()}
    assert runnable == {*JOBS, "cli"}, "a job was added or removed: say so in JOBS above, and in README.md"
    for name in runnable:
        assert f"jobs/{name}.py" in shown


@lru_cache
def variables_of_scripts() -> frozenset[str]:
    scripts = "".join(text_of(f"infra/{name}") for name in ("setup", "demo", "test"))
    return frozenset(re.findall(r"\bRAY_\w+|\b[A-Z][A-Z0-9_]{3,}\b", scripts))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_environment_variables_in_the_documents_exist(document):
    known = {name for names in VARIABLES.values() for name in names}
    for name in set(re.findall(r"\b(?:SONDAGE|AWS|RAY|HF)_[A-Za-z0-9_]+\b", text_of(document))):
        assert name in known | variables_of_scripts(), f"{document}: nothing reads {name}"


def test_every_environment_variable_is_in_the_table_of_the_readme():
    shown = text_of(README)
    for names in VARIABLES.values():
        for name in names:
            assert re.search(rf"^\|[^|]*`{name}`", shown, re.MULTILINE), f"README.md's table lacks {name}"


def http_paths() -> set[str]:
    application = create_app(local_coordinator(None))  # not entered: routes are known before it starts
    own = {route.path.replace(":path}", "}") for route in application.routes}
    return {path for path in own if not path.endswith("oauth2-redirect")}


@pytest.mark.parametrize("document", [README, ARCHITECTURE])
def test_http_paths_in_the_documents_exist(document):
    for path in set(re.findall(r"(?<![\w./])/(?:v1/[\w/{}]+|healthz|readyz|docs|openapi\.json)(?![\w/])", text_of(document))):
        assert path in http_paths(), f"{document}: the server has no {path}"


def test_every_http_path_is_documented():
    shown = text_of(README) + text_of(ARCHITECTURE)
    for path in http_paths():
        assert path in shown, f"{path} is in neither README.md nor ARCHITECTURE.md"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_layer_is_documented(document):
    named = set(inline_code(document))
    assert set(REGISTRY) <= named, f"{document} does not name {sorted(set(REGISTRY) - named)}"


def test_files_that_the_documents_name_exist():
    for document in DOCUMENTS:
        for name in set(re.findall(r"(?<![\w/:.])(?:shards|cluster|serve|jobs|infra|tests)/[\w./*-]*\w", prose(document))):
            assert any(ROOT.glob(name)) or (ROOT / name).exists(), f"{document} names {name}"


def test_tests_that_the_documents_cite_exist():
    known = {name for path in (ROOT / "tests").glob("*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    for document in DOCUMENTS:
        for name in set(re.findall(r"\btest_\w+\b(?!\.py)", text_of(document))):
            assert name in known, f"{document} cites {name}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_code_blocks_parse(document):
    for block in bash_blocks(document):
        checked = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert not checked.returncode, f"{document}: {checked.stderr}\n{block}"
    for block in re.findall(r"```json\n(.*?)```", text_of(document), re.DOTALL):
        json.loads(block)
    for block in re.findall(r"```python\n(.*?)```", text_of(document), re.DOTALL):
        compile(block, document, "exec")


# --- FORMAT.md ------------------------------------------------------------------------------------------------------------------

SECTION = re.compile(r"^#{2,3} (.*?)\n(.*?)(?=^#{2,3} |\Z)", re.MULTILINE | re.DOTALL)
DTYPES = {"U8": np.uint8, "I8": np.int8, "F16": np.float16, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
          "I32": np.int32, "I64": np.int64, "F32": np.float32, "F64": np.float64, "BOOL": np.bool_}  # fmt: skip


def section(title: str) -> str:
    """The text under the first heading that begins so, ### below ## counted apart."""
    return next(body for heading, body in SECTION.findall(text_of(FORMAT)) if heading.startswith(title))


def stated(body: str) -> dict[str, tuple[str, str]]:
    """Array name -> (dtype, shape) of the tables of a section; `a`, `b` share a row, as may their types."""
    found = {}
    for names, kinds in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]+) \|", body, re.MULTILINE):
        names, kinds = re.findall(r"`(\w+)`", names), re.findall(r"(\w+) (\([^)]*\))", kinds)
        for i, name in enumerate(names):
            found[name] = kinds[min(i, len(kinds) - 1)]
    return found


def assert_arrays(what: str, arrays: dict[str, np.ndarray], table: dict[str, tuple[str, str]], sizes: dict[str, int]) -> None:
    """Each array is in the table with its dtype and shape, and nothing else is. sizes: what letters stand for, added to."""
    assert set(arrays) == set(table), f"{what}: built {sorted(set(arrays) ^ set(table))}"
    for name, (dtype, shape) in table.items():
        array = arrays[name]
        assert array.dtype == DTYPES[dtype], f"{what}: {name} is {array.dtype}, FORMAT.md says {dtype}"
        axes = [axis.strip() for axis in shape.strip("()").split(",") if axis.strip()]
        assert len(axes) == array.ndim, f"{what}: {name} has shape {array.shape}, FORMAT.md says {shape}"
        for axis, size in zip(axes, array.shape, strict=True):
            letter, plus = re.fullmatch(r"(\w+?)( \+ 1)?", axis).groups()
            if letter != "bytes":
                wanted = int(letter) if letter.isdigit() else sizes.setdefault(letter, size - bool(plus))
                assert size == wanted + bool(plus), f"{what}: {name} has shape {array.shape}, FORMAT.md says {shape}"


@pytest.fixture(scope="module")
def tiny():
    """Documents and entries of three kinds, with 10 and more passages."""
    bodies = [b"def add(a, b):\n    return a + b\n", b"", b"Die Flut kommt, und das Wasser steigt bis an den Deich.\n"]
    bodies += [f"The harbour of village {i} is open to all ships.\n".encode() for i in range(12)]
    items = [(bytes([i * 16]) + bytes(19), body, ("code", "data", "prose:german", "prose:english")[min(i, 3)])
             for i, body in enumerate(bodies)]  # fmt: skip
    documents = Documents.pack(items)
    entries = pack_entries(Entry("main", f"folder/{i}.txt", key, len(body), i) for i, (key, body, _) in enumerate(items))
    return documents, entries


def test_format_md_states_the_files_of_a_segment(tiny):
    documents, entries = tiny
    for role, (arrays, metadata), n in (
        ("`docs`", _document_arrays(documents), {"n": len(documents)}),
        ("`entries`", _entry_arrays(entries), {"m": len(entries)}),
    ):
        assert_arrays(role, arrays, stated(section(role)), n)
        assert all(f"`{key}`" in section(role) for key in metadata)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_format_md_states_every_array_of_every_layer(name, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(vector_sketches, "LEAST_UNITS", 1)  # the arrays of larger segments, too
    documents, entries = tiny
    layer = built_without_a_hub(name, tmp_path)
    layers = text_of(FORMAT).partition("\n## Arrays of the layers\n")[2]
    (body,) = [body for heading, body in SECTION.findall(layers) if f"`{name}`" in heading.partition(" (")[0]]
    table = stated(body)
    if "| text statistics |" in body:
        table |= stated(section("Text statistics"))
    if "| arrays of `static` |" in body:
        table |= stated(section("`static`"))
    arrays = layer.build(documents, entries)
    sizes = {"n": len(documents), "m": len(entries)}
    assert_arrays(name, arrays, table, sizes)
    named = set(re.findall(r"`(\w+)`", body)) | set(stated(section("Text statistics")))
    statistics = layer.statistics(arrays, documents, entries)
    assert set(statistics) <= named, f"stats of {name}: {sorted(set(statistics) - named)} not in FORMAT.md"


def built_without_a_hub(name: str, folder: Path) -> Layer:
    """The layer, with a small model where it needs one: what the arrays are does not depend on the model."""
    if name == "sparse":
        return create(SpaceSpec(name, name, {"model": str(tiny_sparse.splade(folder))}), Resources())
    if name == "late":
        return create(SpaceSpec(name, name, {"model": str(tiny_bert.save_bert(folder)), "dim": 8}), Resources(models=folder))
    model = ROOT / "tests/fixtures/format-1/whole/model"
    layer = create(SpaceSpec(name, name, {"dim": 8} if name == "vectors" else {}), Resources())
    if hasattr(type(layer), "encoder"):
        layer.encoder = create(SpaceSpec("static", "static", {"model": str(model)}), Resources()).encoder
    return layer


def test_format_md_names_every_field_of_manifests_and_null_models():
    fields = {field for model in (manifest.FileRef, manifest.Root, manifest.ShardRef, manifest.ShardPage, manifest.SegmentRef,
                                  manifest.SpaceRef, manifest.SourceRef) for field in model.model_fields}  # fmt: skip
    named = set(re.findall(r"`(\w+)`", section("Manifest")))
    assert fields <= named, f"FORMAT.md's manifests lack {sorted(fields - named)}"
    nulls = {*SpaceNull.__slots__, *FusedNull.__slots__, *CorpusNulls.__slots__, "format"}
    named = set(re.findall(r"`(\w+)`", section("Null models")))
    assert nulls <= named, f"FORMAT.md's null models lack {sorted(nulls - named)}"


def test_format_md_is_about_the_format_that_is_written():
    assert text_of(FORMAT).split("\n")[2].startswith(f"Format {manifest.FORMAT_VERSION}. ")
    for version in range(manifest.OLDEST_READABLE, manifest.FORMAT_VERSION + 1):
        assert (ROOT / f"tests/fixtures/format-{version}").is_dir(), f"no store of format {version} is opened by a test"
