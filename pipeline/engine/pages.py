"""Who owns which page: free lists, reference counts and the prefix cache.

The prefix cache is a tree of sealed pages: a page is known by its parent's node and its own tokens, compared exactly,
never by hash alone. Pages that nobody uses stay in the tree until their memory is needed, least recently used first.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

ROOT = 0
Key = tuple[int, bytes]  # (parent's node, the page's tokens)


def token_bytes(tokens: Sequence[int]) -> bytes:
    """The page's tokens as an exact, compact dictionary key."""
    return np.asarray(tokens, np.int32).tobytes()


@dataclass(slots=True)
class Pages:
    """Sealed and raw pages of one device. Ids index the pool; nothing here touches tensors."""

    page_size: int
    sealed_total: int
    raw_total: int
    caching: bool
    _free: list[int] = field(default_factory=list)
    _raw: list[int] = field(default_factory=list)
    _users: list[int] = field(default_factory=list)  # by sealed page
    _node: dict[int, int] = field(default_factory=dict)  # sealed page in the tree -> its node
    _key: dict[int, Key] = field(default_factory=dict)
    _page: dict[Key, int] = field(default_factory=dict)
    _unused: OrderedDict[int, None] = field(default_factory=OrderedDict)  # in the tree, without users, oldest first
    _nodes: int = ROOT
    peak: int = 0  # most sealed pages in use at once, by sequences or kept for their prefix
    raw_peak: int = 0

    def __post_init__(self) -> None:
        self._free = list(range(self.sealed_total - 1, -1, -1))
        self._raw = list(range(self.raw_total - 1, -1, -1))
        self._users = [0] * self.sealed_total

    @property
    def available(self) -> int:
        """Sealed pages that can be taken, unused cached ones included."""
        return len(self._free) + len(self._unused)

    def available_beside(self, pages: Iterable[int]) -> int:
        """`available`, once these pages are in use."""
        return self.available - sum(page in self._unused for page in pages)

    def take(self) -> int:
        """A sealed page for one user. The caller has checked `available`."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._unused.popitem(last=False)
            del self._page[self._key.pop(page)], self._node[page]
        self._users[page] = 1
        self.peak = max(self.peak, self.sealed_total - len(self._free))
        return page

    def take_raw(self) -> int:
        """A raw page. There is always one: raw_total covers the largest step (see Engine)."""
        page = self._raw.pop()
        self.raw_peak = max(self.raw_peak, self.raw_total - len(self._raw))
        return page

    def give_raw(self, page: int) -> None:
        self._raw.append(page)

    def share(self, pages: Iterable[int]) -> None:
        """One more user for each page."""
        for page in pages:
            self._users[page] += 1
            self._unused.pop(page, None)

    def give(self, pages: Sequence[int]) -> None:
        """One user less for each page. Deeper pages go first when memory is needed, for they are shared by fewer."""
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page]:
                continue
            if page in self._node:
                self._unused[page] = None
            else:
                self._free.append(page)

    def node(self, pages: Sequence[int]) -> int | None:
        """The tree's node at the end of a sequence's sealed pages; None if its last page is not in the tree."""
        return self._node.get(pages[-1]) if pages else ROOT

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The longest run of cached pages that begins `tokens`, without its last token (which must be computed)."""
        found: list[int] = []
        if not self.caching:
            return found
        node, size = ROOT, self.page_size
        for start in range(0, len(tokens) - size, size):
            page = self._page.get((node, token_bytes(tokens[start : start + size])))
            if page is None:
                break
            found.append(page)
            node = self._node[page]
        return found

    def seal(self, before: Sequence[int], page: int, tokens: Sequence[int]) -> int:
        """Puts a freshly sealed page, which follows `before`, into the tree; returns the page to use from now on.

        If the same tokens are there already, that page is shared and the new one goes back: equal prefixes have equal
        contents, bit for bit.
        """
        parent = self.node(before)
        if not self.caching or parent is None:
            return page
        key = (parent, token_bytes(tokens))
        twin = self._page.get(key)
        if twin is not None:
            self.share([twin])
            self.give([page])
            return twin
        self._nodes += 1
        self._page[key], self._key[page], self._node[page] = page, key, self._nodes
        return page

    def check(self) -> None:
        """Invariant: every page is free, cached without users, or used."""
        used = sum(1 for n in self._users if n)
        assert used + len(self._free) + len(self._unused) == self.sealed_total
        assert not set(self._free) & set(self._unused)
