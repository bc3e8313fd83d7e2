"""A source that is listed in a process of its own, while this one loads what it reads and builds with.

The process is forked: whoever makes one has no other threads yet.
"""

import gc
import multiprocessing
from multiprocessing.connection import Connection

from shards.corpus import list_source
from shards.errors import SondageError
from shards.listing import Listing
from shards.memory import uncollected
from shards.roots import Source


class Lister:
    """The listing of a source, begun. Close it."""

    def __init__(self, source: Source):
        self.source = source
        forked = multiprocessing.get_context("fork")
        self._heard, told = forked.Pipe(duplex=False)
        self._process = forked.Process(target=_list, args=(told, source), daemon=True)
        self._process.start()
        told.close()

    def listing(self) -> Listing:
        """What the source holds, waited for. Raises as `list_source`. Where the process died, this one lists."""
        with uncollected():  # the collector would look thrice at each of a hundred thousand new tuples, none of which is garbage
            try:
                found = self._heard.recv()
            except (EOFError, OSError):  # it was killed, perhaps amid its answer
                found = list_source(self.source)
        if isinstance(found, SondageError):
            raise found
        assert isinstance(found, Listing)
        return found

    def close(self) -> None:
        """End the process, if it is still at it."""
        self._process.kill()
        self._process.join()
        self._heard.close()


def _list(told: Connection, source: Source) -> None:
    gc.disable()
    try:
        told.send(list_source(source))
    except SondageError as error:
        told.send(error)
