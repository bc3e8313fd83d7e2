"""The file of API keys: `sondage keys add`, `list`, `revoke`, `hash`, `publish`, and following it as it changes.

A line of the file is one key: a JSON object with its ID, a salted hash and what it may do (`serve.keys.Key`), or, as it used to be, the
key itself, which may do everything. What is revoked stays, so that its ID is never anybody else's.
"""

import asyncio
import fcntl
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shards.errors import BadSpec, NotFound, SondageError

if TYPE_CHECKING:
    from jobs.settings import Settings
    from serve.keys import Key, KeyRing

logger = logging.getLogger(__name__)

LOOK_S = 2.0  # between looks whether the file has changed: how long a revoked key still opens a `sondage serve`
SPANS = {"h": "hours", "d": "days", "w": "weeks"}


class Action(StrEnum):
    add = "add"
    list = "list"
    revoke = "revoke"
    hash = "hash"
    publish = "publish"


def add(app: typer.Typer) -> None:
    """Put the command of this module into the `sondage` command."""
    app.command()(keys)


def keys(
    action: Annotated[
        Action,
        typer.Argument(
            help="add: make one, shown once; list; revoke ID; hash: of keys in the clear keep hashes; publish: to who follows a store."
        ),
    ],
    name: Annotated[str, typer.Argument(help="add: whose it is, for people. revoke: its ID.")] = "",
    file: Annotated[Path | None, typer.Option("--file", help="File of keys (SONDAGE_API_KEY_FILE).")] = None,
    scopes: Annotated[str, typer.Option("--scopes", help="Of a new key: read, write, admin; none includes another.")] = "read",
    corpora: Annotated[str | None, typer.Option("--corpora", help="That it sees, NAME,…, or beginnings: team-*. None: all.")] = None,
    expires: Annotated[str | None, typer.Option("--expires", help="In 12h, 90d, 4w, or at 2027-01-31 (UTC). None: never.")] = None,
    limits: Annotated[str, typer.Option("--limits", help="Its own: requests_per_s=5,concurrent=4,k=50,budget_ms=2000,…")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="list: print JSON, without salts and hashes.")] = False,
    store: Annotated[str | None, typer.Option("--store", help="publish: whose servers follow the keys (SONDAGE_STORE).")] = None,
) -> None:
    """Make, list and revoke API keys. A key is told from then on by its ID; of the key itself only a salted hash is kept."""
    from jobs.settings import Settings

    settings = Settings.load(api_key_file=file, store=store)
    path = settings.api_key_file
    if path is None:
        raise BadSpec("No file of keys is named. Give --file FILE or set SONDAGE_API_KEY_FILE.")
    path = path.expanduser()
    if name and action in (Action.list, Action.hash, Action.publish):
        raise BadSpec(f"`sondage keys {action}` takes no name; found {name!r}.")
    match action:
        case Action.add:
            made = add_key(path, name, scopes, corpora, expires, limits, datetime.now(UTC))
            print("The key, which is shown this once:", file=sys.stderr)
            print(made)
        case Action.revoke:
            revoke_key(path, name, datetime.now(UTC))
            print(
                f"{name} is revoked. `sondage serve` knows within {LOOK_S:.0f} s; a cluster that follows keys once you run `sondage keys "
                "publish`, any other once you run `sondage deploy` again."
            )
        case Action.publish:
            n = publish_keys(settings, datetime.now(UTC))
            print(f"{n} keys are published in {settings.store_url()}. Servers that follow them know within {LOOK_S:.0f} s.")
        case Action.hash:
            print(f"{hash_keys(path, datetime.now(UTC))} keys are kept as hashes from now on. They go on working.")
        case Action.list:
            list_keys(path, as_json, datetime.now(UTC))
    if action is not Action.hash and (n := sum(not line.startswith("{") for line in _lines_of_keys(path))):
        note = f"{n} keys stand there in the clear, and may do everything. Run `sondage keys hash`, or replace them by keys of their own."
        print(f"sondage: {path}: {note}", file=sys.stderr)


def add_key(path: Path, name: str, scopes: str, corpora: str | None, expires: str | None, limits: str, now: datetime) -> str:
    """Makes a key, keeps its hash in the file, which is made where there is none. Returns the key. Raises BadSpec."""
    from pydantic import ValidationError

    from serve.keys import new_key
    from serve.limits import Limits

    try:
        key, kept = new_key(
            now,
            name=name,
            scopes=_listed(scopes),
            corpora=None if corpora is None else _listed(corpora),
            expires=None if expires is None else moment(expires, now),
            limits=Limits.parse(limits, "--limits"),
        )
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise BadSpec(f"No key was made: {problems}.") from None
    with _changed(path) as lines:
        lines.append(_line(kept))
    return key


def revoke_key(path: Path, key_id: str, now: datetime) -> None:
    """From now on a server that reads the file refuses the key. Raises NotFound, which names the IDs there are."""
    from serve.keys import Key

    known = []
    with _changed(path) as lines:
        for number, line in enumerate(lines):
            if line.startswith("{"):
                key = Key.model_validate_json(line)
                known.append(key.id)
                if key.id == key_id:
                    lines[number] = _line(key.model_copy(update={"revoked": key.revoked or now}))
                    return
        raise NotFound(f"{path} has no key {key_id!r}. There are: {', '.join(known) or 'none'}. Keys in the clear are revoked by taking "
                       "out their line.")  # fmt: skip


def hash_keys(path: Path, now: datetime) -> int:
    """Keeps hashes of keys that stand there in the clear; returns how many. Raises BadSpec for one that could be guessed from its hash."""
    from serve.keys import PLAIN, PLAIN_CHARS, Key, plain_key

    n = 0
    with _changed(path) as lines:
        taken = {Key.model_validate_json(line).id for line in lines if line.startswith("{")}
        number = 1
        for place, line in enumerate(lines):
            if not line or line.startswith(("#", "{")):
                continue
            if len(line) < PLAIN_CHARS:
                raise BadSpec(
                    f"{path}, line {place + 1}: the key has {len(line)} characters, and of less than {PLAIN_CHARS} a hash can be guessed. "
                    "Make a new one: sondage keys add."
                )
            while f"{PLAIN}{number}" in taken:
                number += 1
            taken.add(f"{PLAIN}{number}")
            lines[place] = _line(plain_key(line, number, now))
            n += 1
    return n


def publish_keys(settings: "Settings", now: datetime) -> int:
    """Puts the keys of the file into the store, for servers that follow them; returns how many, the revoked ones included. Raises BadSpec
    for keys in the clear."""
    from jobs.settings import read_keys
    from serve.published_keys import publish
    from shards.store import open_store

    if settings.api_key_file is None:
        raise BadSpec("No file of keys is named, and none are published yet. Give --api-key-file FILE, as `sondage keys add` makes it.")
    found = read_keys(settings.api_key_file)
    hashed = [key for key in found if not isinstance(key, str)]
    if len(hashed) < len(found) or settings.api_keys:
        raise BadSpec(
            "Keys in the clear are not published: their hashes could be guessed. Run `sondage keys hash`, and leave SONDAGE_API_KEYS empty."
        )
    return len(publish(open_store(settings.store_url(), **settings.store_options()), hashed, now).keys)


def publish_first(settings: "Settings") -> None:
    """Where servers are to follow keys and none are published, these are. What was published is not replaced: the file may be older. Raises
    BadSpec, StoreError."""
    from serve.published_keys import newest
    from shards.store import open_store

    if settings.follow_keys and newest(open_store(settings.store_url(), **settings.store_options())) is None:
        publish_keys(settings, datetime.now(UTC))


def list_keys(path: Path, as_json: bool, now: datetime) -> None:
    """Prints what each key may do, and since when."""
    from jobs.settings import read_keys

    found = [key for key in read_keys(path) if not isinstance(key, str)]
    if as_json:
        import json

        print(json.dumps([key.model_dump(mode="json", exclude={"salt", "hash", "format"}, exclude_none=True) for key in found]))
        return
    for key in found:
        facts = [",".join(key.scopes), "all corpora" if key.corpora is None else ",".join(key.corpora)]
        facts += [str(key.limits)] if str(key.limits) else []
        facts += [f"made {key.created:%Y-%m-%d}"]
        if key.revoked is not None:
            facts.append(f"revoked {key.revoked:%Y-%m-%d}")
        elif key.expires is not None:
            facts.append(f"{'expired' if key.expires <= now else 'expires'} {key.expires:%Y-%m-%d %H:%M}")
        print(f"{key.id}  {key.name or '-'}: {'; '.join(facts)}")


def moment(text: str, now: datetime) -> datetime:
    """When a key ends: in 12h, 90d, 4w, or at a date or time (ISO 8601, UTC if it does not say). Raises BadSpec."""
    if found := re.fullmatch(r"(\d{1,5})([hdw])", text):
        return now + timedelta(**{SPANS[found[2]]: int(found[1])})
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        raise BadSpec(f"--expires {text!r} is no time. Write 12h, 90d, 4w, or a date such as 2027-01-31.") from None
    end = end if end.tzinfo else end.replace(tzinfo=UTC)
    if end <= now:
        raise BadSpec(f"--expires {text} is over. Give a time to come.")
    return end


@asynccontextmanager
async def following(settings: "Settings", ring: "KeyRing", look_s: float = LOOK_S) -> AsyncIterator[None]:
    """Within it, what changes in the file of keys holds soon after, or, where published ones are followed, in these. A file that cannot be
    read changes nothing, and is logged."""
    if settings.follow_keys:
        from serve.published_keys import following as following_published
        from shards.store import open_store

        async with following_published(open_store(settings.store_url(), **settings.store_options()), ring, look_s):
            yield
        return
    path = settings.api_key_file
    if path is None:
        yield
        return
    watcher = asyncio.create_task(_follow(path.expanduser(), settings, ring, look_s))
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def _follow(path: Path, settings: "Settings", ring: "KeyRing", look_s: float) -> None:
    seen, problem = None, ""  # the first look reads it again: it may have changed since the server's settings were read
    while True:
        await asyncio.sleep(look_s)
        mark = await asyncio.to_thread(_mark, path)
        if mark == seen and not problem:
            continue
        try:
            ring.replace(await asyncio.to_thread(settings.keys))
            seen, problem = mark, ""
            logger.info("file=%s event=keys_read", path)
        except SondageError as error:
            if problem != str(error):
                problem = str(error)
                logger.warning("file=%s event=keys_not_read reason=%s", path, error)


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()  # of what a link points to: a mounted secret is swapped by its link
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for each in text.split(",") if (part := each.strip()))


def _line(key: "Key") -> str:
    return key.model_dump_json(exclude_none=True)


def _lines_of_keys(path: Path) -> list[str]:
    return [line for each in path.read_text("utf-8").splitlines() if (line := each.strip()) and not line.startswith("#")]


@contextmanager
def _changed(path: Path) -> Iterator[list[str]]:
    """The file's lines, to be changed; written when the block ends without an error, whole or not at all. One process at a time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lines = [line.strip() for line in path.read_text("utf-8").splitlines()] if path.exists() else []
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
            yield lines
            partial = f"{path}.{os.getpid()}.partial"
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), mode)
                file.writelines(f"{line}\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(f"The file of API keys {path} cannot be changed: {error}.") from None
