"""The store that the code of format 1 wrote: opened, searched and updated for ever, and read with FORMAT.md alone in hand.

`tests/fixtures/make_format_1.py` says what is in it. What it answered then is in `answers.json`. Hits and raw scores must stay;
where fusion is changed on purpose, `make_format_1.py --answers` writes the evidence of the new one. (A layer whose `version` is
raised is not searched here any more: then its hits and signals go from the answers, by the same command, and the files stay
readable.)
"""

import hashlib
import json
import math
import shutil
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, paths

from shards.analysis import Analyser
from shards.encodings import PackedEncodings
from shards.manifest import Root, ShardPage, check, corpus_store, latest_generation, read_page, read_root
from shards.store import open_store

sys.path.append(str(Path(__file__).parent / "fixtures"))
from make_format_1 import CORPUS, FILES, LAYERS, REQUESTS, WHOLE, answers, at_generation, write_generation


@pytest.fixture
def beside_the_model(monkeypatch):
    """The working folder from which the store's `vectors` space finds its model."""
    monkeypatch.chdir(WHOLE)


def assert_answered_as_then(requests: Sequence[dict], got: list[dict], expected: list[dict]) -> None:
    """Answers (`make_format_1.essence`) with the same hits and raw scores to the bit, and the same evidence but for rounding."""
    assert len(got) == len(expected) == len(requests)
    for request, now, then in zip(requests, got, expected, strict=True):
        if now is None or then is None:
            assert now == then, request
            continue
        assert now["verdict"] == then["verdict"] and now["complete"] == then["complete"], request
        for hit, known in zip(now["hits"], then["hits"], strict=True):
            assert [hit[key] for key in ("hash", "span", "paths")] == [known[key] for key in ("hash", "span", "paths")], request
            assert [s[:4] for s in hit["signals"]] == [s[:4] for s in known["signals"]], request  # layer, raw score, span
            evidence = [[x["fused"], math.log(x["evalue"]), *(y for s in x["signals"] for y in (s[4], math.log(s[5])))]
                        for x in (hit, known)]  # fmt: skip
            np.testing.assert_allclose(*evidence, rtol=0, atol=1e-9, err_msg=str(request))


@pytest.mark.usefixtures("beside_the_model")
@pytest.mark.parametrize(("generation", "as_answered_by"), [(1, 1), (2, 2), (3, 2), (4, 4)])
def test_a_store_of_format_1_answers_as_it_did(tmp_path, generation, as_answered_by):
    got = answers(tmp_path, at_generation(WHOLE / "store", generation, tmp_path / "store"))
    assert_answered_as_then(REQUESTS, got, json.loads((WHOLE / "answers.json").read_text())[str(as_answered_by)])


def test_every_file_that_a_manifest_names_is_there_with_its_size_and_checksum():
    store = corpus_store(open_store(str(WHOLE / "store")), CORPUS)
    named = set()
    for number in range(1, 5):
        root = read_root(open_store(str(WHOLE / "store")), CORPUS, number)
        refs = [shard.page for shard in root.shards] + [source.tree for source in root.sources.values()] + [root.nulls]
        for shard in root.shards:
            for segment in read_page(store, shard.page, ShardPage).segments:
                refs += [*segment.files.values(), *segment.tombstones]
        for ref in refs:
            if ref.size:  # an empty file is not written
                check(store.read(ref.name), ref, store)
                named.add(ref.name)
    others = {name for name in store.list() if not name.startswith(("roots/", "encodings/"))}
    assert named == others  # nothing is left of the runs but what some generation needs


@pytest.mark.usefixtures("beside_the_model")
def test_a_store_of_format_1_is_brought_up_to_date_and_encodes_only_what_is_new(tmp_path):
    shutil.copytree(WHOLE / "store", tmp_path / "store")
    engine = Engine(tmp_path, ())
    source = write_generation(tmp_path / "files", 4)
    outcome = engine.index(source, CORPUS)
    assert (outcome.generation, outcome.added) == (5, 0) and not any(outcome.encoded.values())
    assert outcome.hashed <= 1  # the table, which files of formats have made something to be read
    assert "fitted them anew" in outcome.notes[-1]  # null models have another format now, and names and bm25 are rebuilt
    assert not engine.index(source, CORPUS).changed
    (source / "notes/fog.txt").write_text("In fog the bell on the pier rings every minute.\n")
    (source / "notes/salt_again.txt").write_bytes(FILES["notes/salt.txt"].encode())  # deleted in generation 2
    outcome = engine.index(source, CORPUS)
    assert (outcome.generation, outcome.added, outcome.removed, outcome.hashed) == (6, 2, 0, 2)
    assert outcome.encoded["vectors"] == 1 and outcome.reused["vectors"] == 1
    assert paths(engine.search("the bell in fog", CORPUS))[0] == "notes/fog.txt"
    assert paths(engine.search("salt was boiled", CORPUS))[0] == "notes/salt_again.txt"


def assert_same_spaces(before: Root, after: Root) -> None:
    """But for those whose layer's version has risen since, which are built anew."""
    assert [space.name for space in after.spaces] == [space.name for space in before.spaces]
    for then, now in zip(before.spaces, after.spaces, strict=True):
        assert now == then or now.version > then.version, "an id changed: raise the layer's version on purpose, or keep its dials"


@pytest.mark.usefixtures("beside_the_model")
def test_asking_for_the_layers_it_has_changes_nothing(tmp_path):
    shutil.copytree(WHOLE / "store", tmp_path / "store")
    source = write_generation(tmp_path / "files", 4)
    before = read_root(open_store(str(tmp_path / "store")), CORPUS, 4)
    Engine(tmp_path, ()).index(source, CORPUS)  # brings the null models up to date
    outcome = Engine(tmp_path, LAYERS).index(source, CORPUS)
    after = read_root(open_store(str(tmp_path / "store")), CORPUS, 5)
    assert not outcome.changed
    assert_same_spaces(before, after)


# --- with FORMAT.md alone in hand: no code of ours between the bytes and what is expected --------------------------------------


def arrays_of(name: str, whole: Path = WHOLE) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """A safetensors file of the corpus, by its own description."""
    data = (whole / "store" / CORPUS / name).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    dtypes = {"U8": "<u1", "I32": "<i4", "I64": "<i8", "U16": "<u2", "U32": "<u4", "U64": "<u8", "F32": "<f4", "F64": "<f8",
              "BOOL": "?"}  # fmt: skip
    found = {}
    for key, entry in header.items():
        begin, end = entry["data_offsets"]
        found[key] = np.frombuffer(data[8 + length :][begin:end], dtypes[entry["dtype"]]).reshape(entry["shape"])
    return found, metadata


def json_of(name: str, whole: Path = WHOLE) -> dict:
    return json.loads((whole / "store" / CORPUS / name).read_bytes())


def buckets(hashes: np.ndarray) -> np.ndarray:
    return hashes[:, 0].astype(int) * 16 + hashes[:, 1] // 16


def live_rows(hashes: np.ndarray, segment: dict, dead: np.ndarray) -> list[int]:
    low, high = segment["buckets"]
    inside = (buckets(hashes) >= low) & (buckets(hashes) < high)
    return sorted(set(np.flatnonzero(inside).tolist()) - set(dead.tolist()))


def read_by_the_book(whole: Path = WHOLE) -> tuple[dict[str, tuple[bytes, str]], dict[str, list]]:
    """Path -> (text, kind) of the newest generation; and space name -> its statistics as (sign, arrays)."""
    newest = max(path.name for path in (whole / "store" / CORPUS / "roots").iterdir())
    root = json_of(f"roots/{newest}", whole)
    found, statistics = {}, {space["name"]: [] for space in root["spaces"]}
    for shard in root["shards"]:
        texts, placed = {}, []
        for segment in json_of(shard["page"]["name"], whole)["segments"]:
            files = {role: ref["name"] for role, ref in segment["files"].items()}
            # Format 1 has one file of tombstones, or none; later ones have a list of them.
            named = segment["tombstones"] or []
            dead = [arrays_of(ref["name"], whole)[0] for ref in (named if isinstance(named, list) else [named])]
            rows_of = lambda what: np.concatenate([np.zeros(0, int), *(file[what] for file in dead)])  # noqa: E731, B023
            docs, about = arrays_of(files["docs"], whole)
            text = (whole / "store" / CORPUS / files["text"]).read_bytes() if segment["files"]["text"]["size"] else b""
            for row in live_rows(docs["hashes"], segment, rows_of("documents")):
                key = docs["hashes"][row].tobytes()
                assert key not in texts and text[docs["ends"][row] : docs["ends"][row] + 1] == b"\n"
                kind = json.loads(about["kind_names"])[docs["kinds"][row]]
                texts[key] = (text[docs["starts"][row] : docs["ends"][row]], kind)
            entries, _ = arrays_of(files["entries"], whole)
            for row in live_rows(entries["hashes"], segment, rows_of("entries")):
                path = entries["path_blob"][entries["path_offsets"][row] : entries["path_offsets"][row + 1]].tobytes()
                placed.append((path.decode("utf-8", "surrogateescape"), entries["hashes"][row].tobytes()))
            for name, space in segment["spaces"].items():
                statistics[name].append((1, arrays_of(files[f"stats/{space}"], whole)[0]))
                for file in dead:
                    buried = {k.split("/")[2]: v for k, v in file.items() if k.startswith(f"stats/{space}/")}
                    statistics[name] += [(-1, buried)] if buried else []
        assert {key for _, key in placed} == set(texts)  # a document without entries is dead, an entry without document is none
        found |= {path: texts[key] for path, key in placed}
    return found, statistics


def expected_files(tmp_path: Path) -> dict[str, bytes]:
    folder = write_generation(tmp_path / "files", 4)
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    del found["data/logo.bin"]
    latin1 = "data/latin1_\udce4.txt"
    found[latin1] = found[latin1].decode("latin-1").encode()
    found["data/signals.txt"] = found["data/signals.txt"].decode("utf-16").encode()
    return found


def test_a_reader_written_from_format_md_finds_every_text_by_its_path(tmp_path):
    found, _ = read_by_the_book()
    assert {path: text for path, (text, _) in found.items()} == expected_files(tmp_path)
    assert found["src/expiry.py"][1] == "code" and found["notes/ebbe.txt"][1] == "prose:german"


def test_statistics_add_up_to_those_of_the_live_texts(tmp_path):
    found, statistics = read_by_the_book()
    total = lambda space, name: sum(sign * int(part[name].sum()) for sign, part in statistics[space])  # noqa: E731
    contents = {text for text, _ in found.values()}
    assert total("names", "n_units") == len(found)
    assert total("names", "n_bytes") == sum(len(path.encode("utf-8", "surrogateescape")) + 1 for path in found)
    assert total("text", "n_units") == sum(text.count(b"\n") for text in contents)  # every line of these ends with a line feed
    assert total("text", "n_bytes") == total("text", "trigram_counts") == sum(len(text) + bool(text) for text in contents)
    the = int.from_bytes(b"the", "big")
    counted = sum(sign * int(part["trigram_counts"][part["trigrams"] == the].sum()) for sign, part in statistics["text"])
    assert counted == sum(text.lower().count(b"the") for text in contents)
    # "pilot" in bm25: passages that hold it, by the hash of its stem
    (((stem,),),) = Analyser("english").analyse(["pilot"])
    key = int.from_bytes(hashlib.blake2b(stem.encode(), digest_size=8).digest(), "little")
    holding = sum(sign * int(part["frequencies"][part["terms"] == key].sum()) for sign, part in statistics["bm25"])
    assert holding == sum(b"pilot" in text[a:b] for text, a, b in passages_of("bm25"))
    assert total("bm25", "n_units") == len(passages_of("bm25")) and total("vectors", "n_units") == len(passages_of("vectors"))


def passages_of(space: str) -> list[tuple[bytes, int, int]]:
    """Text and span of each live passage of a passage space, by its own arrays."""
    newest = max(path.name for path in (WHOLE / "store" / CORPUS / "roots").iterdir())
    found = []
    for shard in json_of(f"roots/{newest}")["shards"]:
        for segment in json_of(shard["page"]["name"])["segments"]:
            files = {role: ref["name"] for role, ref in segment["files"].items()}
            arrays, _ = arrays_of(files[f"layer/{segment['spaces'][space]}"])
            docs, _ = arrays_of(files["docs"])
            text = (WHOLE / "store" / CORPUS / files["text"]).read_bytes() if segment["files"]["text"]["size"] else b""
            dead = arrays_of(segment["tombstones"]["name"])[0]["documents"] if segment["tombstones"] else np.zeros(0, int)
            if "row_units" in arrays:
                rows = np.repeat(np.arange(len(docs["starts"])), np.diff(arrays["row_units"]))
                spans = zip(rows.tolist(), arrays["starts"].tolist(), arrays["ends"].tolist(), strict=True)
            else:
                spans = zip(*(arrays[name].tolist() for name in ("unit_rows", "unit_starts", "unit_ends")), strict=True)
            live = set(live_rows(docs["hashes"], segment, dead))
            found += [(text[docs["starts"][row] : docs["ends"][row]], a, b) for row, a, b in spans if row in live]
    return found


def test_kept_encodings_are_the_vectors_of_the_segments():
    store = corpus_store(open_store(str(WHOLE / "store")), CORPUS)
    root = read_root(open_store(str(WHOLE / "store")), CORPUS, latest_generation(open_store(str(WHOLE / "store")), CORPUS))
    (space,) = [s.space_id for s in root.spaces if s.name == "vectors"]
    kept = PackedEncodings(store, f"encodings/{space}")
    n_compared = 0
    for shard in root.shards:
        for segment in read_page(store, shard.page, ShardPage).segments:
            hashes = arrays_of(segment.files["docs"].name)[0]["hashes"]
            arrays, _ = arrays_of(segment.files[f"layer/{space}"].name)
            known = kept.get(hashes)
            for row, key in enumerate(hashes):
                vectors = arrays["vectors"][arrays["row_units"][row] : arrays["row_units"][row + 1]]
                if len(vectors):
                    np.testing.assert_array_equal(known[key.tobytes()], vectors)
                    n_compared += len(vectors)
    assert n_compared > 30
