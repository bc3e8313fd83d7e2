"""Where OpenAI-compatible endpoints are, and what asking them costs: values alone, `shards/endpoints.py` asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from shards.errors import BadSpec

DEFAULT = "default"  # the endpoint that SONDAGE_ENDPOINT_URL names


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, read and written, in whatever currency the user counts in."""

    tokens_in: float = 0.0
    tokens_out: float = 0.0


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where an endpoint is. url: the base, to which `/chat/completions` is added; key: "" for none; prices: by model.

    concurrency: requests under way at once; timeout_s: for one attempt: what the endpoint stands, no part of any space.
    """

    url: str
    key: str = field(default="", repr=False)
    prices: Mapping[str, Price] = field(default_factory=dict)
    concurrency: int = 8
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password or parts.query:
            shown = f"{parts.scheme}://{parts.hostname or ''}"
            raise BadSpec(
                f"Endpoint URL {shown!r} is not the base URL of an OpenAI-compatible server. Write http(s)://host/v1, without name, "
                "password or query; the key has a setting of its own (SONDAGE_ENDPOINT_KEY)."
            )
        if not self.key.isascii() or not self.key.isprintable():
            raise BadSpec(f"The key of endpoint {self.url} holds characters that no HTTP header may hold. Copy it again.")


@dataclass(frozen=True, slots=True)
class Usage:
    """What was asked for: a sum. requests: answered ones; retries: attempts that were repeated; tokens as the server counted.

    uncounted: answers that stated no tokens. cost: by the prices of the settings, None where the model has none.
    """

    requests: int = 0
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    uncounted: int = 0
    cost: float | None = None

    def __add__(self, other: "Usage") -> "Usage":
        cost = None if self.cost is None and other.cost is None else (self.cost or 0.0) + (other.cost or 0.0)
        return Usage(
            self.requests + other.requests,
            self.retries + other.retries,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.uncounted + other.uncounted,
            cost,
        )

    def __str__(self) -> str:
        parts = [f"{self.requests:,} requests", f"{self.tokens_in:,} tokens read, {self.tokens_out:,} written"]
        parts += [f"{self.retries:,} attempts repeated"] if self.retries else []
        parts += [f"{self.uncounted:,} answers without a count"] if self.uncounted else []
        return ", ".join([*parts, *([] if self.cost is None else [f"cost {self.cost:.4f}"])])

    def __sub__(self, part: "Usage") -> "Usage":
        """Without a part of it."""
        return self + Usage(
            -part.requests, -part.retries, -part.tokens_in, -part.tokens_out, -part.uncounted, None if part.cost is None else -part.cost
        )

    def priced(self, price: Price | None) -> "Usage":
        """With its cost by a price."""
        if price is None:
            return self
        return replace(self, cost=(self.tokens_in * price.tokens_in + self.tokens_out * price.tokens_out) / 1e6)
