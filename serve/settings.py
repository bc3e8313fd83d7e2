"""What the HTTP front lets one set. jobs/settings.py fills it in; nothing below reads files or the environment."""

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from cluster.settings import ClusterSettings, HostSettings
from serve.audit import AuditSettings
from serve.keys import Key, as_keys
from serve.limits import Limits
from serve.schema import Rerank
from serve.translation_schema import Translate

APP_NAME = "sondage"  # of the application in Ray Serve


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class FrontSettings(BaseModel):
    """Where the coordinator listens and whom it answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"  # this machine only: an index holds what its owner can read, so others are let in on purpose
    port: Annotated[int, Field(ge=0, le=65_535)] = 8_765  # below the ephemeral ports, in nobody's list of well-known ones
    api_keys: tuple[Key, ...] = ()  # any of them is required of every request; none: no key is asked for
    follow_keys: bool = False  # take the keys that are published in the store instead, as they change (`serve.published_keys`)
    limits: Limits = Limits()  # of each key that states none of its own
    audit: AuditSettings | None = None  # none: who asks what is nobody's business
    tls_certificate: Path | None = None  # PEM, with the chain; where the server runs. None: plain HTTP
    tls_key: Path | None = None
    open_roots: tuple[str, ...] = ()  # sources that may be opened over HTTP, with all below: a folder of the server is not its callers'
    coordinators: Annotated[int, Field(ge=1)] = 1  # on Ray; two and more, so that one that dies is not missed: it takes 5 s to start
    own_listener: bool = True  # on Ray, for this machine alone: the coordinator's process listens itself, without Serve's proxy
    translate: Translate | None = None  # who writes forms for searches that want it and name nobody; none: they have to name somebody
    rerank: Rerank | None = None  # the last stage of searches that say nothing of one; none: a model takes seconds, so it is asked for
    builders: Annotated[int, Field(ge=0)] = 1  # processes that build spaces where they are used, with spare CPU only; 0: others do
    count_usage: bool = True  # which documents answers show, for these: kept with the corpus, decayed, and nobody else's
    poll_s: Annotated[float, Field(gt=0)] = 0.5  # seconds between looks for a new generation: one listing of a few names

    @field_validator("api_keys", mode="before")
    @classmethod
    def _hashed(cls, given: Any) -> tuple[Key, ...]:
        """Keys in the clear become hashes: settings are kept by Ray's controller, and are printed. Raises BadSpec."""
        return as_keys(key.get_secret_value() if isinstance(key, SecretStr) else key for key in given)

    @model_validator(mode="after")
    def _both_files(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("TLS takes two files. Set SONDAGE_TLS_CERTIFICATE and SONDAGE_TLS_KEY, or neither")
        return self

    @model_validator(mode="after")
    def _others_need_a_key(self) -> Self:
        if not self.api_keys and not is_loopback(self.host):
            raise ValueError(
                f"listening on {self.host!r} opens the index to other machines, and no API key is set. Set SONDAGE_API_KEYS or "
                "--api-key-file, or listen on 127.0.0.1"
            )
        return self

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """Files of the certificate and its key; None: plain HTTP."""
        return (self.tls_certificate, self.tls_key) if self.tls_certificate and self.tls_key else None

    @property
    def url(self) -> str:
        """Where this machine finds it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"{'https' if self.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"


class ServiceSettings(BaseModel):
    """One deployment: its hosts, how they are kept, and its front."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: HostSettings
    cluster: ClusterSettings = ClusterSettings()
    front: FrontSettings = FrontSettings()
