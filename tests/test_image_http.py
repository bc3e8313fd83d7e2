"""Images over real HTTP: pushed as files, found by what they show, given back as they came, with and without their layer."""

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from scripted_coordinator import eventually
from test_push_http import serving
from tiny_clip import drawing, file_of, png, save_clip

import sondage
from shards import images, pushlog
from shards.errors import BadQuery, NotFound
from shards.images import identity
from shards.pushlog import Operation


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> str:
    return f"image:model={save_clip(tmp_path_factory.mktemp('clip'))}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def server(folder) -> Iterator[str]:
    with serving(folder) as url:
        yield url


@pytest.fixture(scope="module")
def corpus(server, folder, clip) -> str:
    """Twelve pushed images and a text, of which the space of images has been filled."""
    with sondage.Engine(folder / "store", cache=folder / "cache", models=folder / "models") as engine:  # no request may name a folder
        engine.put("a.txt", "Harbour and pier.", corpus="album", create=True, layers=["names", "bm25", clip])
    with httpx.Client(base_url=server, timeout=60) as session:
        for i in range(11):
            answer = session.put(f"/v1/corpora/album/documents/{i}.png", content=png(i))
            assert answer.json()["hash"] == identity(png(i)).hex(), answer.text
        line = {"path": "as-json.png", "base64": base64.b64encode(png(11)).decode(), "metadata": {"by": "Ada"}}
        bulk = session.post("/v1/corpora/album/documents", json=line, headers={"content-type": "application/x-ndjson"})
        assert bulk.json()["accepted"] == 1, bulk.text

        def filled() -> bool:
            spaces = session.get("/v1/status").json()["corpora"].get("album", {}).get("layers", [])
            return any(space["name"] == "image" and space["units"] == 12 for space in spaces)

        eventually(filled, 60)
    return "album"


def test_what_is_pushed_as_an_image_is_found_by_what_it_shows(server, corpus):
    with sondage.connect(server) as client:
        form = {"image": {"image": base64.b64encode(file_of(drawing(4), "BMP")).decode()}}
        hit = client.search("", corpus, forms=form, k=1).hits[0]
        assert (hit.entries[0].path, hit.entries[0].metadata["image"]["format"]) == ("4.png", "png")
        again = client.search("", corpus, forms={"image": {"image": hit.hash}}, k=2)
        assert again.hits[0].hash == hit.hash and again.hits[1].hash != hit.hash
        said = client.search("", corpus, forms={"image": {"image": identity(png(11)).hex()}}, k=1).hits[0].entries[0].metadata
        assert said == {"by": "Ada", "image": {"format": "png", "width": 48, "height": 40}}


def test_the_file_itself_is_given_back_with_its_type(server, corpus):
    key = identity(png(3)).hex()
    with httpx.Client(base_url=server, timeout=30) as session:
        answer = session.get(f"/v1/documents/{key}/media", params={"corpus": corpus})
        assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "image/png", png(3))
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert session.get(f"/v1/documents/{key}", params={"corpus": corpus}).json()["kind"] == "image"
    with sondage.connect(server) as client:
        assert client.media(key, corpus) == png(3)
        text = client.search("harbour", corpus, layers=["bm25"]).hits[0].hash
        with pytest.raises(NotFound, match="nothing but its text is kept"):
            client.media(text, corpus)
        with pytest.raises(NotFound, match=f"{'ab' * 20}"):
            client.media("ab" * 20, corpus)
        with pytest.raises(BadQuery, match="no content hash"):
            client.media("x", corpus)


def test_a_damaged_image_is_refused_and_so_is_one_where_no_layer_looks(server, corpus):
    with httpx.Client(base_url=server, timeout=30) as session:
        cut = session.put(f"/v1/corpora/{corpus}/documents/x.png", content=png(3)[:80])
        assert cut.status_code == 422 and "image that cannot be decoded" in cut.json()["error"]["message"]
        text = session.put("/v1/corpora/plain/documents/x.png", params={"layers": "names,bm25"}, content=png(3))
        assert text.status_code == 422 and "give the corpus a layer that looks at them, such as `image`" in text.json()["error"]["message"]
        plain = session.put(f"/v1/corpora/{corpus}/documents/text.png", content="Words under an odd name.")
        assert plain.status_code == 200


def test_an_image_in_the_log_is_what_was_pushed_whatever_came_with_it():
    operations = (
        Operation("a.png", identity(png(1)), b"", "image", 9, 1, media=png(1)),
        Operation("b.txt", b"b" * 20, b"words", "prose:english", 5, 2),
        Operation("c.png", identity(png(2)), b"said", "image", 9, 3, media=png(2), id="7"),
    )
    from shards.store import open_store

    store = open_store("memory://image-log")
    store.create(pushlog.entry_name(1), pushlog.dump(operations, 5.0))
    assert pushlog.read(store, 1).operations == operations
    assert operations[0].cost_bytes > len(png(1))
    pushlog.erase(store, identity(png(1)))
    assert png(1) not in store.read(pushlog.entry_name(1)) and png(2) in store.read(pushlog.entry_name(1))


def test_large_pushed_images_are_kept_reduced(server, corpus, monkeypatch):
    monkeypatch.setattr(images, "KEPT_BYTES", 100)
    data = png(77)
    with sondage.connect(server) as client:
        pushed = client.put("big.png", data, corpus=corpus, wait=True)
        assert pushed.hash == identity(data).hex()
        assert client.media(pushed.hash, corpus).startswith(b"\xff\xd8\xff")
