"""The clients and /openapi.json say the same: every route is called, and what is sent and answered fits its schema."""

import asyncio
import inspect
import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from jsonschema import Draft202012Validator
from scripted_coordinator import HASH
from test_push_http import LAYERS, serving

import sondage
from serve.coordinator import Coordinator
from serve.corpora import Openings
from shards.errors import NotFound, SondageError

METHODS = ("get", "put", "post", "delete")


class Witness:
    """Looks on at what a client sends and is answered, and holds it against the description. seen: the operations that were called."""

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self.seen: set[tuple[str, str]] = set()
        # The longest first: a document's path may look like anything.
        self.routes = sorted(((self._pattern(path), path) for path in spec["paths"]), key=lambda route: -len(route[1]))

    @staticmethod
    def _pattern(path: str) -> re.Pattern[str]:
        inner = re.escape(path).replace(r"\{path\}", "(?P<path>.+)")
        return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", inner))

    def _operation(self, request: httpx.Request) -> tuple[str, dict[str, Any], dict[str, str]]:
        where = request.url.raw_path.decode().partition("?")[0]
        pattern, path = next(route for route in self.routes if route[0].fullmatch(where))
        given = {name: unquote(value) for name, value in pattern.fullmatch(where).groupdict().items()}
        return path, self.spec["paths"][path][request.method.lower()], given

    def fits(self, value: Any, schema: dict[str, Any], what: str) -> None:
        problems = list(Draft202012Validator({**schema, "components": self.spec["components"]}).iter_errors(value))
        assert not problems, f"{what}: {problems[0].message} at {list(problems[0].absolute_path)}"

    def request(self, request: httpx.Request) -> None:
        path, operation, in_path = self._operation(request)
        what = f"{request.method} {path}"
        known = {(p["in"], p["name"]): p for p in operation.get("parameters", ())}
        for name in request.url.params:
            assert ("query", name) in known, f"{what} is not described with ?{name}"
        for (kind, name), parameter in known.items():
            schema = parameter["schema"]
            values = {
                "path": lambda name=name: [in_path[name]],
                "query": lambda name=name: request.url.params.get_list(name),
                "header": lambda name=name: request.headers.get_list(name),
            }[kind]()
            assert values or not parameter["required"], f"{what} lacks {name}"
            if values:
                self.fits(_read(values, schema), schema, f"{what} {kind} {name}")
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]
            kind = request.headers["content-type"]
            assert kind in content, f"{what} is not described with {kind}"
            bodies = request.content.splitlines() if "ndjson" in kind else [request.content]
            for body in bodies:
                self.fits(json.loads(body), content[kind]["schema"], f"{what} body")
        else:
            assert not request.content, f"{what} takes no body"

    def response(self, request: httpx.Request, response: httpx.Response) -> None:
        path, operation, _ = self._operation(request)
        what = f"{request.method} {path} {response.status_code}"
        described = operation["responses"]
        answer = described.get(str(response.status_code)) or described.get("default")
        assert answer is not None, f"{what} is not described"
        kind = response.headers["content-type"].partition(";")[0]
        content = answer["content"].get(kind) or answer["content"].get(kind.partition("/")[0] + "/*")
        assert content is not None, f"{what} is not described as {kind}"
        if kind == "application/json":
            assert content["schema"], f"{what}: no schema"
            self.fits(response.json(), content["schema"], what)
        elif kind == "application/x-ndjson":
            for line in response.content.splitlines():
                self.fits(json.loads(line), content["schema"], what)
        if response.is_success:
            self.seen.add((request.method.lower(), path))


def _read(values: list[str], schema: dict[str, Any]) -> Any:
    """A parameter's text as the schema's type."""
    if schema.get("type") == "array":
        return values
    kinds = {option.get("type") for option in (schema, *schema.get("anyOf", ()))}
    return json.loads(values[0]) if kinds & {"integer", "number", "boolean"} else values[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    def opening(coordinator: Coordinator) -> Openings:  # by processes that die at once: what opening comes to is test_open_corpus's
        return Openings(coordinator.store, coordinator.generations, lambda *_: subprocess.Popen(["true"]), ("/data",))

    with serving(tmp_path_factory.mktemp("openapi"), opening=opening) as url:
        yield url


@pytest.fixture(scope="module")
def spec(server) -> dict[str, Any]:
    return httpx.get(f"{server}/openapi.json", timeout=60).json()


def test_every_schema_is_one_and_every_operation_says_what_errors_look_like(spec):
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            assert method in METHODS
            for answer in (*operation["responses"].values(), *[operation[b] for b in ("requestBody",) if b in operation]):
                for content in answer.get("content", {}).values():
                    if content:
                        Draft202012Validator.check_schema({**content["schema"], "components": spec["components"]})
            if path not in ("/healthz", "/readyz"):
                assert operation["responses"]["default"]["content"]["application/json"]["schema"], (method, path)


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def tour(client: Any, corpus: str) -> None:
    """Calls everything that a client can do, in every way in which it is sent."""
    push = {"corpus": corpus, "wait": True, "timeout_s": 30.0}
    made = await done(client.put("a/ä b.txt", "Granite is hard.", {"n": 1, "deep": {"list": [1, "x"]}}, layers=LAYERS.split(","), **push))
    await done(client.put("bytes", b"Gneiss is banded.", id=f"once-{corpus}", **push))
    lines = [("c", "Schist shines."), {"op": "delete", "path": "bytes"}, {"path": "../no", "text": "x"}, {"path": "d", "base64": "eA=="}]
    assert (await done(client.put_many(lines, **push))).failed == 1
    await done(client.delete("c", **push))
    link = await done(client.search("granite", corpus, k=3, layers=["bm25", "text"], paths=["a/*"], where={"n": 1}, explain=True))
    assert link.hits[0].hash == made.hash
    growing = client.search_stream("granite", corpus, goal="precise")
    grown = [answer async for answer in growing] if hasattr(growing, "__aiter__") else list(growing)
    assert grown[-1].certificate.final and grown[-1].hits[0].hash == made.hash
    forms = {"text": {"pattern": "gran.te", "regex": True}}
    await done(client.search("", corpus, forms=forms, context={"before": 1}, weights={"text": 2.0}, coupling="rrf:k=2", keep_all=True))
    await done(client.search("granite", corpus, feedback=[f"{made.hash}:0-7"], generation=link.generation))
    tree = {"union": [{"search": {"query": "granite"}}, {"search": {"query": "schist", "layers": ["bm25"]}}]}
    await done(client.combine(tree, corpus))
    assert (await done(client.document(made.hash, corpus, 0, 7, link.generation))).text == "Granite"
    with pytest.raises(NotFound):
        await done(client.media(HASH, corpus))
    text = "SELECT DOCUMENT WHERE meta.n >= :least ORDER BY meta.n COUNT BY meta.n"
    assert len((await done(client.query(text, corpus, params={"least": 1}, field_types={"n": "number"}))).rows) == 1
    tree = {"select": {"unit": "sentence"}, "limit": 2}
    await done(client.query(tree, corpus))
    with pytest.raises(SondageError) as caught:
        await done(client.query("SELECT", corpus))
    assert caught.value.request_id
    assert await done(client.explain_query(text, corpus, params={"least": 1}))
    rows = client.query_rows(text, corpus, params={"least": 1})
    assert len([row async for row in rows] if hasattr(rows, "__aiter__") else list(rows)) == 1
    assert await done(client.nlql_schema(corpus, strict=True)) and await done(client.nlql_schema())
    assert (await done(client.suggest_terms([f"{made.hash}:0-16"], corpus=corpus, k=3))).terms
    ordered = await done(client.open_corpus(f"{corpus}-opened", "/data", include=["*.txt"], layers=["names"]))
    assert ordered == (await done(client.opening(ordered.corpus))).model_copy(update={"seconds": ordered.seconds})
    assert not (await done(client.order_layers(corpus, usage=False))).queue.usage
    assert (await done(client.status()))["corpora"][corpus]
    assert "sondage_" in await done(client.metrics())
    assert await done(client.alive()) and (await done(client.ready())).ready


def test_both_clients_call_every_path_and_all_that_crosses_fits_the_description(server, spec):
    everything = {(method, path) for path, methods in spec["paths"].items() for method in methods}
    image = (
        "get",
        "/v1/documents/{hash}/media",
    )  # there is none: its error is held against the description, and test_image_http asks for one

    def sync() -> Witness:
        witness = Witness(spec)

        def answered(response: httpx.Response) -> None:
            response.read()
            witness.response(response.request, response)

        with sondage.connect(server, retries=0) as client:
            client._http.event_hooks = {"request": [witness.request], "response": [answered]}
            asyncio.run(tour(client, "one"))
        return witness

    async def other() -> Witness:
        witness = Witness(spec)

        async def asked(request: httpx.Request) -> None:
            witness.request(request)

        async def answered(response: httpx.Response) -> None:
            await response.aread()
            witness.response(response.request, response)

        async with sondage.connect_async(server, retries=0) as client:
            client._http.event_hooks = {"request": [asked], "response": [answered]}
            await tour(client, "two")
        return witness

    for witness in (sync(), asyncio.run(other())):
        assert everything - witness.seen == {image}
