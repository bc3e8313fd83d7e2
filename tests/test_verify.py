"""Verifying: every kind of damage is named with its file and consequence, and nothing else is."""

import os
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, write_files

from shards import invariants
from shards.documents import Documents
from shards.errors import NotFound
from shards.identity import content_hash
from shards.manifest import corpus_store, latest_generation
from shards.references import References, root_name
from shards.segment import Segment, Tombstones, pack_entries
from shards.types import Entry
from shards.verify import Verified, consequence_of, verify

FILES = {
    "a.txt": "The amber room was lost in the war.\n",
    "b.py": "def find_basalt(rocks):\n    return rocks\n",
    "c.txt": "Cobalt blue is a pigment. It is made of cobalt and alumina.\n",
    "copy.txt": "Cobalt blue is a pigment. It is made of cobalt and alumina.\n",
}


def built(tmp_path: Path) -> Engine:
    """Two generations over two shards, with tombstones and null models."""
    engine = Engine(tmp_path)
    source = write_files(tmp_path / "src", FILES)
    engine.index(source, n_shards=2)
    (source / "a.txt").write_text("The amber room was found again.\n")
    (source / "copy.txt").unlink()
    engine.index(source)
    return engine


def checked(engine: Engine, **options) -> Verified:
    return verify(engine.store, "c", engine.cache, engine.resources, **options)


def test_a_sound_corpus_has_nothing_wrong(tmp_path):
    engine = built(tmp_path)
    found = checked(engine, deep=True)
    assert found.damages == [] and found.notes == []
    references = References(engine.store, "c")
    files = {name for number in (1, 2) for name in references.files(references.root(number))}
    assert (found.generations, found.files) == ([1, 2], len(files)) and found.size_bytes > 0
    with pytest.raises(NotFound, match="no corpus 'nowhere'"):
        verify(engine.store, "nowhere", engine.cache, engine.resources)


@pytest.mark.parametrize("harm", ["flipped", "cut", "longer", "missing"])
def test_every_damaged_file_is_named_with_what_it_spoils(tmp_path, harm):
    engine = built(tmp_path)
    references = References(engine.store, "c")
    uses: dict[str, tuple[str, list[int]]] = {}
    for number in (1, 2):
        for name, (kind, _) in references.files(references.root(number)).items():
            uses.setdefault(name, (kind, []))[1].append(number)
    assert {kind.partition("/")[0] for kind, _ in uses.values()} == {
        "page", "tree", "nulls", "tombstones", "docs", "text", "entries", "layer", "stats",
    }  # fmt: skip
    for name, (kind, numbers) in uses.items():
        path = tmp_path / "store" / "c" / name
        good = path.read_bytes()
        if harm == "flipped":
            path.write_bytes(good[:-3] + bytes([good[-3] ^ 1]) + good[-2:])
        elif harm == "missing":
            path.unlink()
        else:
            path.write_bytes(good[:-1] if harm == "cut" else good + b"\0")
        (damage,) = checked(engine).damages
        assert (damage.name, damage.kind, list(damage.generations)) == (name, kind, numbers)
        assert damage.consequence == consequence_of(kind) != "unknown"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(good)
    assert checked(engine).damages == []


def test_a_root_that_cannot_be_read_is_named_and_the_others_are_checked(tmp_path):
    engine = built(tmp_path)
    corpus_store(engine.store, "c").write(root_name(1), b'{"format": 2')
    (damage,) = checked(engine).damages
    assert (damage.name, damage.kind, damage.generations) == (root_name(1), "root", (1,))


def test_a_root_whose_counts_are_wrong_is_named(tmp_path):
    engine = built(tmp_path)
    inside = corpus_store(engine.store, "c")
    number = latest_generation(engine.store, "c")
    data = inside.read(root_name(number))
    inside.write(root_name(number), data.replace(b'"n_docs":3,"n_entries":3,"null_version"', b'"n_docs":4,"n_entries":3,"null_version"'))
    (damage,) = checked(engine).damages
    assert damage.found == "4 documents and 3 entries stated, 3 and 3 live"


# --- invariants, computed by hand --------------------------------------------------------------------------------------------


def tiny() -> Documents:
    return Documents.pack([(content_hash(body), body, "data") for body in (b"one", b"two", b"three")])


def changed(documents: Documents, **columns) -> Documents:
    from dataclasses import replace

    return replace(documents, **columns)


def test_documents_must_ascend_and_fill_the_text():
    documents = tiny()
    assert list(invariants.of_documents(documents)) == []
    swapped = documents.hashes[[1, 0, 2]]
    assert list(invariants.of_documents(changed(documents, hashes=swapped))) == ["hashes that do not ascend"]
    assert list(invariants.of_documents(changed(documents, kinds=np.array([0, 1, 0], np.uint8)))) == ["kinds without a name"]
    ends = documents.ends - np.array([0, 0, 1])
    assert list(invariants.of_documents(changed(documents, ends=ends))) == ["renditions that do not fill the text one after the other"]
    text = documents.text.copy()
    text[documents.ends[0]] = ord("x")
    assert list(invariants.of_documents(changed(documents, text=text))) == ["renditions without a line feed after them"]
    assert invariants.identities(documents)[0] == 3
    text = documents.text.copy()
    text[0] ^= 1
    assert invariants.identities(changed(documents, text=text))[1].tolist() == [0]


def test_entries_must_ascend_by_hash_source_and_path():
    from dataclasses import replace

    key = content_hash(b"one")
    entries = pack_entries([Entry("s", path, key, 1, 1) for path in ("a", "b")])
    assert list(invariants.of_entries(entries)) == []
    backwards = replace(entries, path_blob=entries.path_blob[::-1].copy())
    assert list(invariants.of_entries(backwards)) == ["entries of one document that do not ascend, at row 1"]
    beyond = replace(entries, path_offsets=np.array([0, 1, 3]))
    assert list(invariants.of_entries(beyond)) == ["path offsets that do not fill their blob"]
    unnamed = replace(entries, sources=np.array([0, 1], np.uint16))
    assert list(invariants.of_entries(unnamed)) == ["sources without a name"]


def test_a_hash_lives_once_and_as_long_as_it_has_an_entry():
    one, two = (np.frombuffer(content_hash(body), np.uint8).reshape(1, 20) for body in (b"one", b"two"))
    both = np.concatenate([one, two])
    assert list(invariants.of_shard([one, two], [both])) == []
    assert list(invariants.of_shard([both, one], [both])) == ["1 documents that live more than once"]
    assert list(invariants.of_shard([both], [one])) == ["1 live documents without an entry"]
    assert list(invariants.of_shard([one], [both])) == ["1 live entries without a document"]


def test_counts_and_tombstones_must_be_those_of_the_arrays(tmp_path):
    engine = built(tmp_path)
    generation = engine.generation()
    ref = next(ref for page in generation.pages for ref in page.segments if ref.tombstones)
    segment, dead = Segment(ref, generation.store, engine.cache), Tombstones.read(generation.store, ref)
    assert list(invariants.of_reference(ref, segment, dead)) == []
    wrong = ref.model_copy(update={"text_bytes": ref.text_bytes + 1, "n_dead_docs": ref.n_dead_docs + 1})
    assert [text.split(" stated")[0] for text in invariants.of_reference(wrong, segment, dead)] == [
        f"{ref.text_bytes + 1:,} bytes of text", f"{ref.n_dead_docs + 1:,} dead documents",
    ]  # fmt: skip
    outside = Tombstones(np.array([ref.n_docs + 5], np.int32), dead.entries, {})
    assert any("tombstones of documents outside" in text for text in invariants.of_reference(ref, segment, outside))


def test_arrays_and_sums_that_the_text_does_not_give_are_found(tmp_path):
    """Whole files with right checksums, written by a builder that was wrong."""
    engine = built(tmp_path)
    generation = engine.generation()
    ref = next(ref for page in generation.pages for ref in page.segments if ref.n_docs)
    dead = Tombstones.files(generation.store, ref)
    for name, space in generation.spaces.items():
        segment = Segment(ref, generation.store, engine.cache)
        good = segment.layer(space.id)
        assert list(invariants.of_layer(space, segment)) == list(invariants.of_statistics(space, segment, ref, dead)) == []
        array = next(key for key in ("trigram_counts", "posting_tfs") if key in good)
        segment._layers[space.id] = good | {array: good[array] + good[array].dtype.type(1)}
        assert list(invariants.of_layer(space, segment)) == [f"arrays of space {name!r} that are not what its text gives"]
    assert os.path.isdir(tmp_path / "store")
