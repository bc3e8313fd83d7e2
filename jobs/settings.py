"""The settings of every command: defaults, environment, files. Nothing else in Sondage reads the environment.

What a command line gives goes before the environment, which goes before the defaults. `VARIABLES` lists the names.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from shards.errors import BadSpec

if TYPE_CHECKING:
    from cluster.settings import HostSettings
    from serve.external.mapping_schema import HttpSource, McpSource
    from serve.external.sources import Sources
    from serve.keys import Key
    from serve.schema import Rerank
    from serve.settings import FrontSettings, ServiceSettings
    from serve.translation_schema import Translate
    from shards.endpoint_settings import EndpointSettings
    from shards.layers.contract import Resources

# Field -> environment variables, the first that is set and not empty counts. Those of AWS are read because everything else on a
# machine that talks to S3 reads them too.
VARIABLES: dict[str, tuple[str, ...]] = {
    "store": ("SONDAGE_STORE",),
    "corpus": ("SONDAGE_CORPUS",),
    "url": ("SONDAGE_URL",),
    "api_key": ("SONDAGE_API_KEY",),
    "ca_file": ("SONDAGE_CA_FILE",),
    "api_keys": ("SONDAGE_API_KEYS",),
    "api_key_file": ("SONDAGE_API_KEY_FILE",),
    "follow_keys": ("SONDAGE_FOLLOW_KEYS",),
    "limits": ("SONDAGE_LIMITS",),
    "audit": ("SONDAGE_AUDIT",),
    "audit_queries": ("SONDAGE_AUDIT_QUERIES",),
    "open_roots": ("SONDAGE_OPEN_ROOTS",),
    "tls_certificate": ("SONDAGE_TLS_CERTIFICATE",),
    "tls_key": ("SONDAGE_TLS_KEY",),
    "host": ("SONDAGE_HOST",),
    "port": ("SONDAGE_PORT",),
    "namespace": ("SONDAGE_NAMESPACE",),
    "cache": ("SONDAGE_CACHE",),
    "cache_bytes": ("SONDAGE_CACHE_BYTES",),
    "models": ("SONDAGE_MODELS",),
    "threads": ("SONDAGE_THREADS",),
    "endpoint_url": ("SONDAGE_ENDPOINT_URL",),
    "endpoint_key": ("SONDAGE_ENDPOINT_KEY",),
    "endpoints": ("SONDAGE_ENDPOINTS",),
    "rerank": ("SONDAGE_RERANK",),
    "rerank_endpoint": ("SONDAGE_RERANK_ENDPOINT",),
    "rerank_depth": ("SONDAGE_RERANK_DEPTH",),
    "plugins": ("SONDAGE_PLUGINS",),
    "builders": ("SONDAGE_BUILDERS",),
    "count_usage": ("SONDAGE_COUNT_USAGE",),
    "pager": ("SONDAGE_PAGER", "PAGER"),
    "translate": ("SONDAGE_TRANSLATE",),
    "translate_endpoint": ("SONDAGE_TRANSLATE_ENDPOINT",),
    "external": ("SONDAGE_EXTERNAL",),
    "s3_endpoint": ("SONDAGE_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3_key": ("AWS_ACCESS_KEY_ID",),
    "s3_secret": ("AWS_SECRET_ACCESS_KEY",),
    "s3_token": ("AWS_SESSION_TOKEN",),
    "s3_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}


class Settings(BaseModel):
    """Every setting once, with its default, its unit and its reason."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Annotated[str | None, Field(description="the index: a folder or s3://bucket/prefix; no default")] = None
    corpus: Annotated[str | None, Field(description="the corpus that is searched; none: the only one there is")] = None
    url: Annotated[str | None, Field(description="the server to ask; none: the store, else this machine's server")] = None
    api_key: Annotated[SecretStr | None, Field(description="sent to the server; none by default")] = None
    ca_file: Annotated[Path | None, Field(description="PEM file of who vouches for a server's TLS; none: the public authorities")] = None
    api_keys: Annotated[
        tuple[SecretStr, ...], Field(description="accepted by a server for everything, separated by commas; none: no key is asked for")
    ] = ()
    api_key_file: Annotated[Path | None, Field(description="file of keys accepted by a server, see `sondage keys`")] = None
    follow_keys: Annotated[bool, Field(description="accept the keys published in the store by `sondage keys`, as they change")] = False
    limits: Annotated[str, Field(description="NAME=NUMBER,…, of each key that states none of its own: see `serve.limits.Limits`")] = ""
    audit: Annotated[str | None, Field(description='where each request is told of: "stderr" or a file; none: nowhere')] = None
    audit_queries: Annotated[bool, Field(description="tell there what was searched for, too")] = False
    open_roots: Annotated[
        tuple[str, ...],
        Field(description="what may be opened over HTTP, and all below it, commas between; none: anything, on loopback without keys"),
    ] = ()
    tls_certificate: Annotated[Path | None, Field(description="PEM file of a server's certificate with its chain; none: plain HTTP")] = None
    tls_key: Annotated[Path | None, Field(description="PEM file of the certificate's key")] = None
    host: Annotated[str, Field(description="address a server listens on; loopback: an index is its owner's")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535, description="TCP port a server listens on, 0 for any; no well-known service has 8765")] = (
        8_765
    )
    namespace: Annotated[str, Field(description="Ray namespace of the hosts: one per deployment on a cluster")] = "sondage"
    cache: Annotated[Path, Field(description="folder for downloads and models, per user and machine")] = Path("~/.cache/sondage")
    cache_bytes: Annotated[int, Field(ge=0, description="limit of downloaded index files; 20 GiB fit on any laptop")] = 20 * 2**30
    models: Annotated[Path | None, Field(description="folder for models; none: CACHE/models")] = None
    threads: Annotated[int, Field(ge=1, description="searches at once per process; the kernels share the memory bus")] = 2
    endpoint_url: Annotated[str | None, Field(description="base URL of the OpenAI-compatible endpoint `default`; none: no endpoint")] = None
    endpoint_key: Annotated[SecretStr | None, Field(description="sent to that endpoint alone; none: it asks for no key")] = None
    endpoints: Annotated[Path | None, Field(description="YAML or JSON file of further endpoints by name, with url, key, prices")] = None
    rerank: Annotated[str | None, Field(description="model that orders the best hits of every search anew; none: where asked for")] = None
    rerank_endpoint: Annotated[str | None, Field(description="endpoint whose model that is; none: it is a cross-encoder")] = None
    rerank_depth: Annotated[int, Field(ge=1, le=200, description="hits that it reads; 20 take MiniLM's size a second or two")] = 20
    plugins: Annotated[
        tuple[str, ...], Field(description="modules that register functions, embedders and the like, with commas between; none")
    ] = ()
    builders: Annotated[int, Field(ge=0, description="processes of a server that build layers where they are used; 0: none")] = 1
    count_usage: Annotated[bool, Field(description="count which documents a server's answers show, for these layers")] = True
    pager: Annotated[str, Field(description="command that shows what is longer than a terminal's screen; cat: none")] = "less -FRX"
    translate: Annotated[str | None, Field(description="chat model that writes forms where searches want it; none: they name one")] = None
    translate_endpoint: Annotated[str, Field(description="endpoint whose model that is")] = "default"
    external: Annotated[Path | None, Field(description="YAML or JSON file of external search tools by name; none: no tools")] = None
    s3_endpoint: Annotated[str | None, Field(description="URL of an S3-compatible server; none: AWS")] = None
    s3_key: Annotated[str | None, Field(description="none: profile, container or instance role, as boto finds them")] = None
    s3_secret: SecretStr | None = None
    s3_token: SecretStr | None = None
    s3_region: Annotated[str | None, Field(description="none: as boto finds it")] = None

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None, **given: Any) -> Self:
        """The settings of this process. given: from the command line; None means not given. Raises BadSpec naming the source."""
        environment = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        if given.get("api_key_file") is not None:
            given.setdefault("api_keys", ())  # the file that is named on the command line, and none of the environment's keys beside it
        for field, names in VARIABLES.items():
            if given.get(field) is not None:
                values[field], origins[field] = given[field], f"--{field.replace('_', '-')}"
                continue
            for name in names:
                if environment.get(name):
                    values[field], origins[field] = environment[name], name
                    break
        if unknown := set(given) - set(VARIABLES):
            raise TypeError(f"unknown settings {', '.join(sorted(unknown))}")
        if isinstance(values.get("api_keys"), str):
            values["api_keys"] = [key for part in values["api_keys"].split(",") if (key := part.strip())]
        if isinstance(values.get("open_roots"), str):
            values["open_roots"] = [root for part in values["open_roots"].split(",") if (root := part.strip())]
        if isinstance(values.get("plugins"), str):
            values["plugins"] = [module for part in values["plugins"].split(",") if (module := part.strip())]
        try:
            return cls(**values)
        except ValidationError as error:
            found = error.errors(include_input=False)  # some inputs are secret
            problems = "; ".join(f"{origins.get(str(e['loc'][0]), e['loc'][0])}: {e['msg']}" for e in found)
            raise BadSpec(f"{problems}.") from None

    def store_url(self) -> str:
        """The store, a folder as an absolute path (other processes run elsewhere). Raises BadSpec when there is none."""
        if not self.store:
            raise BadSpec("No index store is named. Give --store URL or set SONDAGE_STORE: a folder, or s3://bucket/prefix.")
        return self.store if "://" in self.store else str(Path(self.store).expanduser().absolute())

    def store_options(self) -> dict[str, str]:
        """What `shards.store.open_store` needs beside the URL: `s3_options` for a store on S3, else nothing."""
        return self.s3_options() if (self.store or "").startswith("s3://") else {}

    def s3_options(self) -> dict[str, str]:
        """`shards.store_s3.S3Options` as far as set: stated, because hosts on other nodes do not share this environment."""
        secret, token = (s.get_secret_value() if s else None for s in (self.s3_secret, self.s3_token))
        stated = {
            "endpoint_url": self.s3_endpoint,
            "key": self.s3_key,
            "secret": secret,
            "token": token,
            "region": self.s3_region,
        }
        return {name: value for name, value in stated.items() if value}

    def models_dir(self) -> Path:
        """The folder of models, absolute."""
        return (self.models or self.cache / "models").expanduser().absolute()

    def endpoint_settings(self) -> "dict[str, EndpointSettings]":
        """The endpoints that layers and judges may ask, by name. Raises BadSpec."""
        from shards.endpoint_settings import DEFAULT, EndpointSettings

        found = read_endpoints(self.endpoints) if self.endpoints else {}
        if self.endpoint_url:
            prices = found[DEFAULT].prices if DEFAULT in found else {}
            found[DEFAULT] = EndpointSettings(self.endpoint_url, self.endpoint_key.get_secret_value() if self.endpoint_key else "", prices)
        elif self.endpoint_key and DEFAULT not in found:
            raise BadSpec("SONDAGE_ENDPOINT_KEY is set, but not the URL it is for. Set SONDAGE_ENDPOINT_URL, e.g. https://host/v1.")
        return found

    def resources(self) -> "Resources":
        """What layers may use of this machine; plugins register in this process. Raises BadSpec for one that cannot be imported."""
        from shards.layers.contract import Resources

        self.load_plugins()
        return Resources(models=self.models_dir(), endpoints=self.endpoint_settings())

    def load_plugins(self) -> None:
        """Let the plugins register in this process. Raises BadSpec for one that cannot be imported."""
        if self.plugins:
            from shards.plugins import load

            for module in self.plugins:
                load(module)

    def host_settings(self) -> "HostSettings":
        """What the hosts are started with. Raises BadSpec when no store is named, or a plugin cannot be imported here."""
        from cluster.settings import HostSettings

        self.load_plugins()
        return HostSettings(
            store_url=self.store_url(),
            store_options=self.store_options(),
            cache_dir=self.cache.expanduser().absolute() / "files",
            cache_bytes=self.cache_bytes,
            models_dir=self.models_dir(),
            endpoints=self.endpoint_settings(),
            threads=self.threads,
            plugins=self.plugins,
        )

    def last_stage(self) -> "Rerank | None":
        """What reorders the hits of searches that do not say. Raises BadSpec."""
        from serve.schema import Rerank

        if self.rerank is None:
            if self.rerank_endpoint is not None:
                raise BadSpec("SONDAGE_RERANK_ENDPOINT is set, but not which of its models judges. Set SONDAGE_RERANK.")
            return None
        return Rerank(model=self.rerank, endpoint=self.rerank_endpoint, depth=self.rerank_depth)

    def translator(self) -> "Translate | None":
        """Who writes forms for searches that want it and name nobody."""
        from serve.translation_schema import Translate

        return Translate(model=self.translate, endpoint=self.translate_endpoint) if self.translate is not None else None

    def external_sources(self) -> "Sources | None":
        """Search tools elsewhere, of the file of sources and as they were registered. None where there are none. Raises BadSpec."""
        from shards.plugins import PROCESS

        registered = {name: PROCESS.externals.get(name) for name in PROCESS.externals.names()}
        if self.external is None and not registered:
            return None
        from serve.external.sources import Sources

        return Sources(read_sources(self.external) if self.external is not None else {}, registered)

    def keys(self) -> "tuple[Key, ...]":
        """The keys that a server accepts: those that are published, where it is to follow these and there are some; else those given one by
        one, and those of the file. Raises BadSpec."""
        from serve.keys import as_keys

        if self.follow_keys:
            from serve.published_keys import newest
            from shards.store import open_store

            if (record := newest(open_store(self.store_url(), **self.store_options()))) is not None:
                return record.keys
        in_file = read_keys(self.api_key_file) if self.api_key_file else ()
        return as_keys([*(key.get_secret_value() for key in self.api_keys), *in_file])

    def front_settings(self) -> "FrontSettings":
        """Where a server listens, and whom it answers. Raises BadSpec for other than loopback without a key."""
        from serve.audit import AuditSettings
        from serve.limits import Limits
        from serve.settings import FrontSettings

        try:
            return FrontSettings(
                host=self.host,
                port=self.port,
                api_keys=self.keys(),
                follow_keys=self.follow_keys,
                limits=Limits.parse(self.limits, "SONDAGE_LIMITS"),
                audit=AuditSettings(target=self.audit, queries=self.audit_queries) if self.audit else None,
                open_roots=self.open_roots,
                tls_certificate=_absolute(self.tls_certificate),
                tls_key=_absolute(self.tls_key),
                rerank=self.last_stage(),
                translate=self.translator(),
                builders=self.builders,
                count_usage=self.count_usage,
            )
        except ValidationError as error:
            raise BadSpec(error.errors()[0]["msg"].removeprefix("Value error, ") + ".") from None

    def service_settings(self) -> "ServiceSettings":
        """A whole deployment on Ray. Raises BadSpec."""
        from cluster.settings import ClusterSettings
        from serve.settings import ServiceSettings

        cluster = ClusterSettings(namespace=self.namespace)
        return ServiceSettings(host=self.host_settings(), cluster=cluster, front=self.front_settings())


class EndpointInFile(BaseModel):
    """One endpoint in the file of endpoints. prices: model -> [of a million tokens read, of a million written]."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    key: SecretStr = SecretStr("")
    prices: dict[str, tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]]] = {}
    concurrency: Annotated[int, Field(ge=1, description="requests under way at once; most servers take so many of one client")] = 8
    timeout_s: Annotated[float, Field(gt=0, description="for one attempt; a slow model on a laptop takes a minute")] = 120.0


_EndpointFile = TypeAdapter(dict[str, EndpointInFile])


def read_endpoints(path: Path) -> "dict[str, EndpointSettings]":
    """Endpoints from a YAML (or JSON) file: name -> url, key, prices. Raises BadSpec, which shows no value of the file."""
    import yaml

    from shards.endpoint_settings import EndpointSettings, Price

    try:
        body = yaml.safe_load(path.expanduser().read_text("utf-8"))
        if not isinstance(body, dict):
            raise BadSpec(f"The file of endpoints {path} is no mapping. Write `name:`, and below it url, key and prices.")
        read = _EndpointFile.validate_python(body)
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(f"The file of endpoints {path} cannot be read: {error}.") from None
    except yaml.MarkedYAMLError as error:  # its text would quote the line, which may hold the key
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise BadSpec(f"The file of endpoints {path} is no YAML from line {line} on: {error.problem}.") from None
    except yaml.YAMLError:
        raise BadSpec(f"The file of endpoints {path} is no YAML: it holds characters that are not allowed there.") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
        raise BadSpec(f"The file of endpoints {path}: {problems}. Each has url, and may have key and prices.") from None
    return {
        name: EndpointSettings(
            e.url, e.key.get_secret_value(), {m: Price(*price) for m, price in e.prices.items()}, e.concurrency, e.timeout_s
        )
        for name, e in read.items()
    }


def read_sources(path: Path) -> "dict[str, HttpSource | McpSource]":
    """Search tools elsewhere from a YAML (or JSON) file: name -> `use: openalex`, `key`, or a mapping. Raises BadSpec, without values."""
    import yaml

    from serve.external.sources import sources_of

    origin = f"The file of external sources {path}"
    try:
        stated = yaml.safe_load(path.expanduser().read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(f"{origin} cannot be read: {error}.") from None
    except yaml.YAMLError as error:  # its text would quote the line, which may hold a key
        mark = getattr(error, "problem_mark", None)
        raise BadSpec(f"{origin} is no YAML" + (f" from line {mark.line + 1} on." if mark else ".")) from None
    return sources_of(stated, origin)


def read_keys(path: Path) -> "tuple[Key | str, ...]":
    """The keys of a file, as `sondage keys` writes it: a JSON object a line, or a key in the clear, which may do everything.

    Empty lines and those that begin with # are left out. Raises BadSpec, which shows no line.
    """
    from serve.keys import Key

    try:
        lines = path.expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(f"The file of API keys {path} cannot be read: {error}. `sondage keys add --file {path}` makes one.") from None
    keys: list[Key | str] = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        if not line.startswith("{"):
            keys.append(line)
            continue
        try:
            keys.append(Key.model_validate_json(line))
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
            raise BadSpec(f"The file of API keys {path}, line {number}: {problems}. Take the line out, and make a new key.") from None
    if not keys:
        raise BadSpec(f"The file of API keys {path} holds none. Make one: sondage keys add --file {path}.")
    return tuple(keys)


def _absolute(path: Path | None) -> Path | None:
    """Other processes run in other folders."""
    return None if path is None else path.expanduser().absolute()
