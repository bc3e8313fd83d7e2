"""What a change costs: bytes read and written, files hashed, documents encoded; in proportion to the change, not to the corpus."""

import os
from pathlib import Path

import pytest
from engine import Engine, write_files
from test_encoders import save_static, word_pieces
from test_update import WORDS

from jobs.bench_upsert import CountingStore
from shards.store import open_store

LAYERS = ("names", "text", "bm25")
LARGE = "\n".join(f"{WORDS[i % 16]} {i} {WORDS[i // 16 % 16]}" for i in range(20_000))  # 380 kB


def many(folder: Path, n: int) -> Path:
    write_files(folder, {f"{i // 100:03}/{i % 100:02}.txt": f"{WORDS[i % 16]} {WORDS[i // 16 % 16]} {i}\n" * 20 for i in range(n)})
    for path in folder.rglob("*.txt"):
        os.utime(path, (1, 1))  # old enough to be trusted by its clock
    return folder


def counted(folder: Path, source: Path, layers=LAYERS) -> tuple:
    """A run over a store that says of no file that it is local: its outcome, bytes read and written by kind."""
    store = CountingStore(open_store(str(folder / "store")))
    outcome = Engine(folder, layers, store).index(source)
    return outcome, store.bytes_read, store.bytes_written


def test_an_edit_hashes_one_file_encodes_one_document_and_writes_little(tmp_path):
    static = f"static:model={save_static(tmp_path / 'model', word_pieces())}"
    source = many(tmp_path / "src", 300)
    counted(tmp_path, source, (*LAYERS, static))
    (source / "001/07.txt").write_text("Amber was found again.\n")
    outcome, read, written = counted(tmp_path, source, (*LAYERS, static))
    assert (outcome.listed, outcome.hashed, outcome.added, outcome.removed) == (300, 1, 1, 1)
    assert (outcome.documents_added, outcome.documents_removed, outcome.encoded["static"]) == (1, 1, 1)
    assert written.total() < 100_000
    assert read["segments"] < 1000  # the text of what was removed; columns were in the cache


def test_what_an_edit_writes_beside_the_tree_does_not_grow_with_the_corpus(tmp_path):
    sizes = {}
    for n in (250, 2000):
        source = many(tmp_path / f"src{n}", n)
        counted(tmp_path / f"{n}", source)
        for i in range(2):  # with more, small segments would be merged
            (source / f"000/{i:02}.txt").write_text(f"Amber was found again, time {i}.\n")
            _, _, sizes[n] = counted(tmp_path / f"{n}", source)
    small, large = sizes[250].copy(), sizes[2000].copy()
    assert large.pop("trees") < 200_000 > small.pop("trees")  # a page of at most 2,048 rows, and its ancestors
    assert large.total() < 1.2 * small.total() < 60_000


def test_a_rename_moves_no_data(tmp_path):
    source = many(tmp_path / "src", 50)
    (source / "large.txt").write_text(LARGE)
    counted(tmp_path, source)
    (source / "large.txt").rename(source / "renamed.txt")
    outcome, read, written = counted(tmp_path, source)
    assert (outcome.renamed, outcome.documents_added, outcome.documents_removed) == (1, 0, 0)
    assert written.total() - written["staging"] < 40_000  # it was read, since nothing tells before that its content is known
    assert read["segments"] == 0


def test_the_same_bytes_at_many_paths_are_one_document_with_many_entries(tmp_path):
    source = many(tmp_path / "src", 10)
    (source / "large.txt").write_text(LARGE)
    counted(tmp_path, source)
    write_files(source, {f"copies/{i}.txt": LARGE for i in range(8)})
    outcome, _, written = counted(tmp_path, source)
    assert (outcome.added, outcome.documents_added) == (8, 0)
    assert written.total() - written["staging"] < 40_000
    generation = Engine(tmp_path).generation()
    assert (generation.root.n_docs, generation.root.n_entries) == (11, 19)
    (source / "large.txt").unlink()
    for i in range(7):
        (source / f"copies/{i}.txt").unlink()
    outcome, _, _ = counted(tmp_path, source)
    assert (outcome.removed, outcome.documents_removed) == (8, 0)  # one path keeps it
    (source / "copies/7.txt").unlink()
    outcome, _, _ = counted(tmp_path, source)
    assert (outcome.removed, outcome.documents_removed) == (1, 1)


@pytest.mark.parametrize("n_shards", [1, 4])
def test_a_changed_file_is_one_delete_and_one_insert_in_one_generation(n_shards, tmp_path):
    source = many(tmp_path / "src", 20)
    engine = Engine(tmp_path, LAYERS)
    engine.index(source, n_shards=n_shards)
    (source / "000/05.txt").write_text("Amber was found again.\n")
    outcome = engine.index(source)
    assert outcome.generation == 2
    for number, old, new in ((1, 1, 0), (2, 0, 1)):
        generation = engine.generation(number=number)
        assert (generation.root.n_docs, generation.root.n_entries) == (20, 20)
        texts = [bytes(v.segment.documents.content(r)) for ref in generation.root.shards for v in generation.shard(ref.shard).views
                 for r in v.live_docs.nonzero()[0].tolist()]  # fmt: skip
        assert sum(b"found again" in text for text in texts) == new
        assert sum(text.startswith(b"feldspar amber 5\n") for text in texts) == old
