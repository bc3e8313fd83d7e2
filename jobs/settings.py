"""The settings of every command: defaults, environment, files. Nothing else in Sondage reads the environment.

What a command line gives goes before the environment, which goes before the defaults. `VARIABLES` lists the names.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from shards.errors import BadSpec

if TYPE_CHECKING:
    from cluster.settings import HostSettings
    from serve.settings import FrontSettings, ServiceSettings

# Field -> environment variables, the first that is set and not empty counts. Those of AWS are read because everything else on a
# machine that talks to S3 reads them too.
VARIABLES: dict[str, tuple[str, ...]] = {
    "store": ("SONDAGE_STORE",),
    "corpus": ("SONDAGE_CORPUS",),
    "url": ("SONDAGE_URL",),
    "api_key": ("SONDAGE_API_KEY",),
    "api_keys": ("SONDAGE_API_KEYS",),
    "host": ("SONDAGE_HOST",),
    "port": ("SONDAGE_PORT",),
    "namespace": ("SONDAGE_NAMESPACE",),
    "cache": ("SONDAGE_CACHE",),
    "cache_bytes": ("SONDAGE_CACHE_BYTES",),
    "models": ("SONDAGE_MODELS",),
    "threads": ("SONDAGE_THREADS",),
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
    api_keys: Annotated[
        tuple[SecretStr, ...], Field(description="accepted by a server, separated by commas; none: no key is asked for")
    ] = ()
    host: Annotated[str, Field(description="address a server listens on; loopback: an index is its owner's")] = "127.0.0.1"
    port: Annotated[
        int, Field(ge=0, le=65_535, description="TCP port a server listens on, 0 for any; no well-known service has 8765")
    ] = 8_765
    namespace: Annotated[str, Field(description="Ray namespace of the hosts: one per deployment on a cluster")] = "sondage"
    cache: Annotated[Path, Field(description="folder for downloads and models, per user and machine")] = Path("~/.cache/sondage")
    cache_bytes: Annotated[int, Field(ge=0, description="limit of downloaded index files; 20 GiB fit on any laptop")] = 20 * 2**30
    models: Annotated[Path | None, Field(description="folder for models; none: CACHE/models")] = None
    threads: Annotated[int, Field(ge=1, description="searches at once per process; the kernels share the memory bus")] = 2
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

    def host_settings(self) -> "HostSettings":
        """What the hosts are started with. Raises BadSpec when no store is named."""
        from cluster.settings import HostSettings

        return HostSettings(
            store_url=self.store_url(),
            store_options=self.store_options(),
            cache_dir=self.cache.expanduser().absolute() / "files",
            cache_bytes=self.cache_bytes,
            models_dir=self.models_dir(),
            threads=self.threads,
        )

    def front_settings(self) -> "FrontSettings":
        """Where a server listens. Raises BadSpec for other than loopback without a key."""
        from serve.settings import FrontSettings

        try:
            return FrontSettings(host=self.host, port=self.port, api_keys=self.api_keys)
        except ValidationError as error:
            raise BadSpec(error.errors()[0]["msg"].removeprefix("Value error, ") + ".") from None

    def service_settings(self) -> "ServiceSettings":
        """A whole deployment on Ray. Raises BadSpec."""
        from cluster.settings import ClusterSettings
        from serve.settings import ServiceSettings

        cluster = ClusterSettings(namespace=self.namespace)
        return ServiceSettings(host=self.host_settings(), cluster=cluster, front=self.front_settings())


def read_keys(path: Path) -> tuple[SecretStr, ...]:
    """API keys from a file, one a line; empty lines and those that begin with # are left out. Raises BadSpec."""
    try:
        lines = path.expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(f"The file of API keys {path} cannot be read: {error}. Write one key a line.") from None
    keys = tuple(SecretStr(key) for line in lines if (key := line.strip()) and not key.startswith("#"))
    if not keys:
        raise BadSpec(f"The file of API keys {path} holds none. Write one key a line, e.g. the output of `openssl rand -hex 32`.")
    return keys
