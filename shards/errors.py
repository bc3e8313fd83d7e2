"""The errors a caller can act on. Each message names what, where and the remedy."""


class SondageError(Exception):
    """Base of every error that is the caller's to read.

    status: its HTTP code. at: the place in the request that is wrong (`where.or[2].size_bytes`), if it is about one.
    retry_after_s: of those that go away by themselves, when it is worth to ask again. request_id: of an error that a server answered, by
    which its log has it.
    """

    status = 500
    retry_after_s: float | None = None
    request_id: str | None = None

    def __init__(self, message: str = "", *, at: str | None = None):
        super().__init__(message)
        self.at = at


class BadQuery(SondageError):
    """The request cannot be understood: broken regex, unknown layer, k out of range, bad filter."""

    status = 422


class BadSpec(SondageError):
    """A layer's spec or a command's arguments are wrong."""

    status = 422


class NotFound(SondageError):
    """No such corpus, generation or document."""

    status = 404


class NoCorpus(NotFound):
    """No such corpus. Callers are told the same as by NotFound; some may not be told which others there are."""

    kind = "not_found"  # for programs: what stood for it before it had a class of its own

    def __init__(self, message: str = "", *, at: str | None = None, corpus: str = ""):
        super().__init__(message, at=at)
        self.corpus = corpus


class Gone(NotFound):
    """A generation that there was, and that was collected."""

    status = 410


class SourceError(SondageError):
    """A corpus source cannot be listed or read. reason: in one word, for counting (forbidden, unreachable, damaged, …)."""

    status = 502

    def __init__(self, message: str = "", *, at: str | None = None, reason: str = "unreadable"):
        super().__init__(message, at=at)
        self.reason = reason


class StoreError(SondageError):
    """The index store cannot be read or written, or holds something this build cannot read."""

    status = 503


class BeingOpened(StoreError):
    """A corpus that was named just now, of which nothing is read yet."""

    retry_after_s = 1.0


class AlreadyExists(StoreError):
    """An exclusive create lost: somebody else published that name first."""

    status = 409


class LeaseLost(AlreadyExists):
    """Somebody else became the writer of the corpus."""


class Corrupt(StoreError):
    """Bytes in the store do not have the size or checksum that the manifest states."""


class ModelMissing(SondageError):
    """A layer's model is not on this machine and cannot be fetched."""

    status = 424


class EndpointError(SondageError):
    """An OpenAI-compatible endpoint did not do what it was asked for.

    reason: unreachable (no answer), failing (429, 5xx), garbage (an answer that cannot be read), refused (this request), forbidden
    (every request: key, model, payment), unknown (no such endpoint in the settings), late (the budget ended).
    """

    status = 424

    def __init__(self, message: str = "", *, at: str | None = None, reason: str = "unreachable"):
        super().__init__(message, at=at)
        self.reason = reason

    @property
    def is_settled(self) -> bool:
        """Whether any other request would fail in the same way."""
        return self.reason in ("forbidden", "unknown")


class Conflict(SondageError):
    """The request contradicts one that was acknowledged before."""

    status = 409


class Cancelled(SondageError):
    """The caller asked to stop."""

    status = 499
