"""Any source, any store: the same corpus from a folder, an archive and a bucket gives the same answers."""

import io
import json
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from engine import Engine, write_files

from jobs import cli
from jobs.index import run_index
from jobs.settings import VARIABLES
from serve import client
from shards.generation import Generation

FILES = {
    "a.txt": "The amber room was lost in the war. Nobody has seen the amber since.\n",
    "sub/b.py": "def find_basalt(rocks):\n    return [r for r in rocks if r.kind == 'basalt']\n",
    "sub/c.txt": "Cobalt blue is a pigment. It is made of cobalt and alumina.\n",
    "copy of c.txt": "Cobalt blue is a pigment. It is made of cobalt and alumina.\n",
    "sub/caf\u00e9.txt": "Caf\u00e9 au lait.\n",
    "picture.png": b"\x89PNG\r\n\x1a\n\0\0\0",
    ".gitignore": "secret*\n/build/\n",
    "secret.txt": "hush\n",
    "build/log.txt": "built\n",
    "sub/.sondageignore": "draft.txt\n",
    "sub/draft.txt": "Not yet cobalt.\n",
}
N_TEXTS = 7  # the ignore files are texts too
QUERIES = ["amber war", "find_basalt", "cobalt pigment", "caf\u00e9", "b.py", "hush", "built", "draft"]


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path) -> pytest.MonkeyPatch:
    for names in VARIABLES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path / "cache"))
    return monkeypatch


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_files(tmp_path / "src", FILES)


@pytest.fixture
def bucket(s3_server, environment) -> str:
    """A bucket holding FILES below corpus/, with the environment that reaches it."""
    for variable, option in (("AWS_ENDPOINT_URL", "endpoint_url"), ("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")):
        environment.setenv(variable, s3_server.options[option])
    name = s3_server.bucket()
    upload(s3_server.options, name, FILES)
    return name


def filesystem(options: dict[str, str]):
    from s3fs import S3FileSystem

    return S3FileSystem(**options, skip_instance_cache=True, use_listings_cache=False)


def upload(options: dict[str, str], bucket: str, files: dict[str, str | bytes]) -> None:
    fs = filesystem(options)
    for name, body in files.items():
        fs.pipe_file(f"{bucket}/corpus/{name}", body.encode() if isinstance(body, str) else body)


def index(capsys: pytest.CaptureFixture[str], source: str, store: object, *more: str) -> dict[str, Any]:
    """What a run of the job says of itself."""
    layers = ["--layers", "names,text,bm25", "--local", "--json"]
    capsys.readouterr()
    assert run_index(["--corpus", "c", "--source", source, "--store", str(store), *layers, *more]) == 0
    return json.loads(capsys.readouterr().out)


def hits(capsys: pytest.CaptureFixture[str], store: object) -> list:
    """What the search command finds: everything but times and what tells one kind of file system from another, such as whether files can be
    looked at."""
    found = []
    for query in QUERIES:
        capsys.readouterr()
        code = cli.main(["search", query, "-c", "c", "--store", str(store), "--json", "--explain", "--budget-ms", "30000"])
        answer = json.loads(capsys.readouterr().out)
        assert answer["complete"]
        for hit in answer["hits"]:
            del hit["freshness"]
            for entry in hit["entries"]:
                del entry["mtime"]
        found.append((code, answer["verdict"], _rounded(answer["hits"])))
    return found


def _rounded(value):
    """With floats to 9 digits: E-values agree to 1e-9 on other numbers of shards, raw scores to the bit."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def test_a_zip_archive_gives_the_same_hits_as_the_folder(folder, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    local = index(capsys, str(folder), tmp_path / "one")
    zipped = index(capsys, f"zip://{tmp_path}/x.zip", tmp_path / "two")
    assert (zipped["added"], zipped["hashed"], zipped["skipped"]["binary"]) == (N_TEXTS, N_TEXTS + 1, 1)
    assert local["skipped"] == {"binary": 1, "ignored": 3}  # a folder that is ignored counts once
    assert zipped["skipped"] == {"binary": 1, "ignored": 3}
    assert hits(capsys, tmp_path / "two") == hits(capsys, tmp_path / "one")
    again = index(capsys, f"zip://{tmp_path}/x.zip", tmp_path / "two")
    assert not again["changed"]


def test_a_bucket_gives_the_same_hits_as_the_folder(folder, bucket, tmp_path, capsys):
    index(capsys, str(folder), tmp_path / "one")
    outcome = index(capsys, f"s3://{bucket}/corpus", tmp_path / "two")
    assert (outcome["added"], outcome["skipped"]) == (N_TEXTS, {"binary": 1, "ignored": 3})
    assert hits(capsys, tmp_path / "two") == hits(capsys, tmp_path / "one")
    again = index(capsys, f"s3://{bucket}/corpus", tmp_path / "two")
    assert (again["changed"], again["hashed"]) == (False, 0)


def test_an_archive_in_a_bucket_is_a_source_too(folder, bucket, s3_server, tmp_path, capsys):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    filesystem(s3_server.options).pipe_file(f"{bucket}/archives/x.zip", data.getvalue())
    index(capsys, str(folder), tmp_path / "one")
    options = json.dumps(s3_server.options)
    outcome = index(capsys, f"zip://::s3://{bucket}/archives/x.zip", tmp_path / "two", "--source-option", f"s3={options}")
    assert outcome["added"] == N_TEXTS
    assert hits(capsys, tmp_path / "two") == hits(capsys, tmp_path / "one")


def test_a_store_in_a_bucket_is_built_searched_and_updated(folder, bucket, s3_server, tmp_path, capsys):
    past = 1_600_000_000
    for path in folder.rglob("*"):
        os.utime(path, (past, past))
    store = f"s3://{bucket}/index"
    first = index(capsys, f"s3://{bucket}/corpus", store, "--shards", "2")
    assert (first["changed"], first["generation"], first["added"]) == (True, 1, N_TEXTS)
    index(capsys, str(folder), tmp_path / "local")
    assert hits(capsys, store) == hits(capsys, tmp_path / "local")

    same = index(capsys, f"s3://{bucket}/corpus", store)
    assert (same["changed"], same["hashed"], same["listed"]) == (False, 0, N_TEXTS + 1)

    upload(s3_server.options, bucket, {"a.txt": "Amber was found again.\n"})
    filesystem(s3_server.options).rm_file(f"{bucket}/corpus/sub/c.txt")
    edited = index(capsys, f"s3://{bucket}/corpus", store)
    assert [edited[name] for name in ("hashed", "added", "removed", "documents_added", "documents_removed")] == [1, 1, 2, 1, 1]
    write_files(folder, {"a.txt": "Amber was found again.\n"})
    (folder / "sub/c.txt").unlink()
    scratch = Engine(tmp_path / "scratch")
    scratch.index(folder)
    fs = filesystem(s3_server.options)
    assert fs.find(f"{bucket}/index/c/staging") == []
    assert [name for name in fs.ls(f"{bucket}/index/c/roots")][-1].endswith(f"{2:016d}.json")
    capsys.readouterr()
    assert cli.main(["search", "amber found", "-c", "c", "--store", store, "--json"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    (local,) = scratch.search("amber found").hits
    assert hit["hash"] == local.hash and hit["entries"][0]["path"] == "a.txt"
    assert cli.main(["search", "war", "-l", "bm25", "-c", "c", "--store", store]) == 1


def test_a_store_in_a_bucket_that_is_not_there_is_named(folder, bucket, capsys):
    assert run_index(["--corpus", "c", "--source", str(folder), "--store", "s3://no-such-bucket/index", "--local"]) == 2
    told = capsys.readouterr().err
    assert "s3://no-such-bucket/index" in told and "Create the bucket 'no-such-bucket' first" in told
    assert run_index(["--corpus", "c", "--source", "s3://no-such-bucket/x", "--store", f"s3://{bucket}/index", "--local"]) == 2
    assert "Source 's3://no-such-bucket/x'" in capsys.readouterr().err


def test_what_a_first_search_in_this_process_has_to_open_is_not_taken_from_its_budget(folder, tmp_path, capsys, monkeypatch):
    index(capsys, str(folder), tmp_path / "store")
    opened = Generation.open

    def slow(*arguments):
        time.sleep(0.6)  # more than usual, as over a slow network
        return opened(*arguments)

    monkeypatch.setattr(Generation, "open", slow)
    with client.Engine(str(tmp_path / "store"), cache=tmp_path / "cache") as engine:
        answer = engine.search("amber", corpus="c", budget_ms=500)
    assert answer.complete and answer.hits, answer.timings_ms
