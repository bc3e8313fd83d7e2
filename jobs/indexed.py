"""A judged collection as a corpus: indexed by the index job from its own file, each choice of layers in a store of its own."""

import argparse
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from jobs import datasets
from jobs.datasets import BadDataset
from jobs.progress import Progress
from jobs.settings import Settings
from shards.errors import BadSpec
from shards.layers import SpaceSpec

DEFAULT_LAYERS = "bm25,static"


def specs_of(args: argparse.Namespace) -> list[SpaceSpec]:
    """The layers asked for; none given and nothing to index: whatever the corpus has."""
    texts = [text for text in (args.layers or "").split(",") if text] + list(args.layer)
    if not texts and args.dataset and not args.http:
        texts = DEFAULT_LAYERS.split(",")
    return [SpaceSpec.parse(text) for text in texts]


def sweep(text: str, specs: Sequence[SpaceSpec]) -> list[tuple[str, str, SpaceSpec]]:
    """(layer.dial, value, space) of each value; the other dials are those of the layer of that name, if it is asked for."""
    parameter, _, values = text.partition("=")
    name, _, dial = parameter.partition(".")
    if not name or not dial or not values:
        raise BadSpec(f"--sweep {text!r} is not LAYER.DIAL=A,B,C, e.g. bm25.k1=0.9,1.2.")
    base = next((spec for spec in specs if spec.name == name), SpaceSpec(name, name))
    variants = []
    for value in dict.fromkeys(filter(None, values.split(","))):
        named = SpaceSpec.parse(f"{name}:{dial}={value}")
        variants.append((parameter, value, SpaceSpec(f"{parameter}.{value}", base.layer, base.params | named.params, base.scope)))
    return variants


def _as_text(spec: SpaceSpec) -> str:
    """The spec as `SpaceSpec.parse` reads it."""
    dials = ",".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in spec.params.items())
    return f"{spec.name}={spec.layer}" + (f":{dials}" if dials else "") + "".join(f"@{glob}" for glob in spec.scope)


def indexed(
    args: argparse.Namespace,
    settings: Settings,
    specs: Sequence[SpaceSpec],
    sweeps: Sequence[tuple[str, str, SpaceSpec]],
    progress: Progress,
) -> tuple[str | None, str]:
    """Store and name of the corpus, brought up to date by the index job. A second run finds that nothing changed."""
    if sweeps and (args.http or not args.dataset):
        raise BadSpec("--sweep indexes the documents of --dataset, in this process. Leave --http out.")
    if args.http or not args.dataset:
        if not args.corpus and not args.dataset:
            raise BadSpec("Which corpus is to be asked? Name it with --corpus.")
        return args.store, args.corpus or _corpus_name(args.dataset)
    from jobs import index
    from shards.layers import create

    for spec in (*specs, *(spec for *_, spec in sweeps)):
        create(spec, settings.resources())  # a wrong dial is told now, not after minutes of indexing
    documents = datasets.find(args.dataset, "corpus.jsonl")
    corpus, content = args.corpus or _corpus_name(args.dataset), datasets.digest(documents)
    folder = settings.cache.expanduser().absolute() / "evaluation" / content
    archive = folder / "documents.zip"
    if not archive.exists():
        datasets.write_archive(documents, archive)
    # What a corpus's layers count for depends on all of its layers: each choice of layers is a corpus of its own.
    chosen = hashlib.sha256("\n".join(sorted(map(_as_text, specs))).encode()).hexdigest()[:8]
    store = args.store or str(folder / chosen)
    wanted = {corpus: list(specs)}
    if sweeps:
        wanted[f"{corpus}.sweep"] = [spec for *_, spec in sweeps]
    for name, spaces in wanted.items():
        line = ["--corpus", name, "--source", f"zip://{archive}", "--source-name", datasets.SOURCE_NAME, "--store", store]
        line += ["--local", "--allow-shrink"]
        line += [f"--layer={_as_text(spec)}" for spec in spaces] + ([f"--shards={args.shards}"] if args.shards else [])
        outcome = index.run(index.parser().parse_args(line), settings.model_copy(update={"store": store}), progress)
        if outcome.failed:
            path, reason = min(outcome.failed.items())
            document = datasets.document_id(datasets.SOURCE_NAME, path)
            raise BadDataset(f"{documents}: document {document!r} cannot be indexed: {reason}")
    return store, corpus


def _corpus_name(folder: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", folder.resolve().name).lstrip("._-") or "collection"
