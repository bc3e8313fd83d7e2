"""API keys: which there are, what each may do, and how a key is told from a guess.

A key is `sondage_ID_SECRET`, made by `sondage keys add` and shown once. What is kept of it is a `Key`: its ID, and a salted hash.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from serve.edge import Edge
from serve.limits import Limits, TokenBucket
from serve.problems import Forbidden, Limited, Unauthorized
from shards.errors import BadSpec, NoCorpus

PREFIX = "sondage"
SECRET_BYTES = 32
SALT_BYTES = 16
_TOKEN = re.compile(rf"{PREFIX}_([0-9a-f]{{8}})_([A-Za-z0-9_-]{{43}})")
PLAIN = "plain-"  # IDs of keys that were given in the clear, and so have none of their own
PLAIN_CHARS = 22  # of a key that may be kept as a hash: as many as 128 random bits take in base64
BUSY_S = 1.0  # when a key whose requests are all under way is told to come back


# What a key may do: search and read; push and delete; make corpora and whatever else administers. None includes another.
CorpusName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\*?$")]
ScopeName = Literal["read", "write", "admin"]
ALL_SCOPES: tuple[ScopeName, ...] = ("read", "write", "admin")


class Key(Edge):
    """What is kept of a key. corpora: names, or beginnings of names with a * behind, that it may see; None: all of them.

    hash: BLAKE2b with the salt, of the secret alone. limits: what it states goes before the deployment's.
    """

    format: Literal[1] = 1
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,40}$")]
    name: Annotated[str, Field(max_length=200, description="whose it is, for people")] = ""
    salt: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * SALT_BYTES}}}$")]
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    scopes: Annotated[tuple[ScopeName, ...], Field(min_length=1)]
    corpora: Annotated[tuple[CorpusName, ...] | None, Field(min_length=1)] = None
    created: AwareDatetime
    expires: AwareDatetime | None = None
    revoked: AwareDatetime | None = None
    limits: Limits = Limits()

    @property
    def is_plain(self) -> bool:
        """Whether it was given in the clear: then what the client sends is the secret alone."""
        return self.id.startswith(PLAIN)

    def opens_with(self, secret: str) -> bool:
        """Whether this is its secret; in a time that tells nothing of it."""
        return hmac.compare_digest(digest(secret, bytes.fromhex(self.salt)), bytes.fromhex(self.hash))


def digest(secret: str, salt: bytes) -> bytes:
    """32 bytes that tell nothing of a secret of 256 random bits.

    One BLAKE2b (RFC 7693), a microsecond. Slow functions (bcrypt, scrypt, Argon2) make up for passwords that people can remember: each
    guess costs 0.1 s. Nobody guesses 256 random bits, however fast; and a slow function would be paid by every request. The salt keeps
    equal secrets of two files from having equal hashes; the person string keeps hashes of another use from being taken for these.
    """
    return hashlib.blake2b(secret.encode("utf-8", "replace"), digest_size=32, salt=salt, person=b"sondage-api-key1").digest()


def new_key(now: datetime, **fields: Any) -> tuple[str, Key]:
    """A key that is shown once, and what is kept of it. fields: of `Key`. Raises pydantic's ValidationError."""
    key_id, secret, salt = secrets.token_hex(4), secrets.token_urlsafe(SECRET_BYTES), secrets.token_bytes(SALT_BYTES)
    kept = Key(id=key_id, salt=salt.hex(), hash=digest(secret, salt).hex(), created=now, **fields)
    return f"{PREFIX}_{key_id}_{secret}", kept


def plain_key(text: str, number: int, now: datetime) -> Key:
    """A key given in the clear, as a hash; it may do everything. number: which of those given, from 1. Raises BadSpec for one that is
    empty or that no header can carry."""
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise BadSpec("An API key is empty or has characters that no HTTP header carries. Use printable ASCII without spaces.")
    salt = secrets.token_bytes(SALT_BYTES)
    return Key(id=f"{PLAIN}{number}", salt=salt.hex(), hash=digest(text, salt).hex(), scopes=ALL_SCOPES, created=now)


def as_keys(given: Iterable[str | Key]) -> tuple[Key, ...]:
    """Keys, and texts in the clear as keys; each ID is there once. Raises BadSpec."""
    given, now = list(given), datetime.now(UTC)
    taken = [key.id for key in given if isinstance(key, Key)]
    if twice := {key_id for key_id in taken if taken.count(key_id) > 1}:
        raise BadSpec(f"Two API keys have the ID {min(twice)}. Take one of them out of the file of keys.")
    free = (number for number in count(1) if f"{PLAIN}{number}" not in taken)
    return tuple(each if isinstance(each, Key) else plain_key(each, next(free), now) for each in given)


class Caller:
    """A key at work: what its requests may do, how many are under way, and how fast they may come. Belongs to one event loop.

    Without a key (`key` None) everything is allowed within the deployment's limits.
    """

    __slots__ = ("bucket", "expires_s", "hash", "id", "key", "limits", "salt", "scopes", "under_way")

    def __init__(self, key: Key | None, deployment: Limits):
        self.key = key
        self.id = key.id if key else "-"
        self.scopes = frozenset(key.scopes if key else ALL_SCOPES)
        self.salt, self.hash = (bytes.fromhex(text) for text in (key.salt, key.hash)) if key else (b"", b"")
        self.limits = deployment if key is None else deployment.narrowed(key.limits)
        self.expires_s = key.expires.timestamp() if key and key.expires else None
        rate = self.limits.requests_per_s
        self.bucket = None if rate is None else TokenBucket(rate, self.limits.burst or max(1.0, rate))
        self.under_way = 0

    @property
    def sees_all(self) -> bool:
        return self.key is None or self.key.corpora is None

    def sees(self, corpus: str) -> bool:
        """Whether it may know of a corpus."""
        if self.key is None or self.key.corpora is None:
            return True
        return any(corpus == name or ("*" in name and fnmatchcase(corpus, name)) for name in self.key.corpora)

    def no_corpus(self, corpus: str) -> NoCorpus:
        """What is said of a corpus that is not there, or that this key does not see: the same, and nothing of other corpora."""
        named = self.key.corpora if self.key is not None else None
        known = f" This key sees: {', '.join(named)}." if named else ""
        return NoCorpus(f"No corpus {corpus!r}.{known}", corpus=corpus)

    def opens_with(self, secret: str) -> bool:
        """Whether this is its key's secret; in a time that tells nothing of it."""
        return hmac.compare_digest(digest(secret, self.salt), self.hash)

    def begin(self, wanted: ScopeName, now: float) -> None:
        """A request begins; `end` must follow. now: seconds of the caller's clock. Raises Forbidden, Limited."""
        if wanted not in self.scopes:
            has = ", ".join(scope for scope in ALL_SCOPES if scope in self.scopes)
            raise Forbidden(
                f"The API key {self.id} has the scope {has}; this wants {wanted}. Use another, or have one made: "
                f"`sondage keys add --scopes {wanted}`."
            )
        most = self.limits.concurrent
        if most is not None and self.under_way >= most:
            raise Limited(f"{self._who()} may have {most} requests under way. Wait for one of them.", retry_after_s=BUSY_S)
        if self.bucket is not None and (wait_s := self.bucket.take(1.0, now)):
            rate = self.limits.requests_per_s
            raise Limited(f"{self._who()} may send {rate:g} requests a second. Wait {wait_s:.1f} s.", retry_after_s=wait_s)
        self.under_way += 1

    def _who(self) -> str:
        return f"The API key {self.id}" if self.key is not None else "All callers together"

    def end(self) -> None:
        """A request that had begun is over."""
        self.under_way -= 1


class KeyRing:
    """All keys of a server. Without any, everybody is the same caller.

    clock: seconds that only go forward. time_of_day: seconds since 1970, for expiry.
    """

    def __init__(
        self,
        keys: Iterable[Key],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], float] = time.time,
    ):
        self.limits, self.clock, self._time_of_day = limits, clock, time_of_day
        self._callers: dict[str, Caller] = {}
        self._plain: tuple[Caller, ...] = ()
        self._nobody = Caller(None, limits)
        self._salt = secrets.token_bytes(SALT_BYTES)
        self.is_open = False
        self.replace(keys)
        self.is_open = not self._callers

    def replace(self, keys: Iterable[Key]) -> None:
        """From now on these are the keys; what is under way goes on, and a key that stays keeps its place in its limits.

        A server that has asked for keys goes on asking, also when the last one is gone.
        """
        kept = {}
        for key in keys:
            before = self._callers.get(key.id)
            kept[key.id] = before if before is not None and before.key == key else Caller(key, self.limits)
        self._callers = kept
        self._plain = tuple(caller for caller in kept.values() if caller.key is not None and caller.key.is_plain)

    def find(self, token: str) -> Caller:
        """Whose key this is. Raises Unauthorized for none, a wrong, an expired or a revoked one."""
        if self.is_open:
            return self._nobody
        if not token:
            raise Unauthorized("This server wants an API key: send it as `Authorization: Bearer KEY` or as `X-API-Key: KEY`.")
        caller: Caller | None = None
        if match := _TOKEN.fullmatch(token):
            caller = self._callers.get(match[1])
            if caller is None:
                digest(match[2], self._salt)  # so that time does not tell which IDs there are
            elif not caller.opens_with(match[2]):
                caller = None
        if caller is None:
            # All of them, each in constant time, so that time tells neither which one nor how much of it was right.
            found = [plain for plain in self._plain if plain.opens_with(token)]
            caller = found[0] if found else None
        if caller is None or caller.key is None:
            raise Unauthorized("The API key is not one of this server's. Check it for cut or added characters.")
        if caller.key.revoked is not None:
            raise Unauthorized(f"The API key {caller.id} was revoked. Ask for another.")
        if caller.expires_s is not None and self._time_of_day() >= caller.expires_s:
            raise Unauthorized(f"The API key {caller.id} has expired. Ask for another.")
        return caller


def visible_status(state: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """What of a server's status a caller may know. Of a key that does not see all corpora: what is said of those that it sees, and of
    nothing that all of them share (store, hosts, endpoints), in which traces of the others are."""
    if caller.sees_all:
        return state
    seen = {corpus: _without_hosts(facts) for corpus, facts in state.get("corpora", {}).items() if caller.sees(corpus)}
    problems = {what: reason for what, reason in state.get("problems", {}).items() if _corpus_of(what) in seen}
    return {"corpora": seen, "hosts": [], "problems": problems}


def _without_hosts(facts: dict[str, Any]) -> dict[str, Any]:
    """What is told of a corpus, without the names of hosts: of those that have its shards open, or have no room for them."""
    facts = dict(facts)
    if "shards" in facts:
        facts["shards"] = [{name: value for name, value in shard.items() if name != "nodes"} for shard in facts["shards"]]
    if "replicas" in facts:
        facts["replicas"] = {name: value for name, value in facts["replicas"].items() if name != "short"}
    return facts


def _corpus_of(what: str) -> str:
    """The corpus that a problem is about: "CORPUS", "CORPUS/SPACE", "the log of CORPUS"; something else for none."""
    return what.removeprefix("the log of ").partition("/")[0]
