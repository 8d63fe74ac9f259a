# SPDX-License-Identifier: MIT
"""The worker's part of the connector: pages to and from vLLM's blocks, in threads beside the engine."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Set, Tuple

import numpy as np
from quire import QuireError
from quire import _native as n
from quire.store import Chain, RawLoad
from vllm.logger import init_logger

from .figures import Counter
from .identity import Spaces, Tenant
from .pages import Blocks, Copied, page_buffers
from .scheduling import Load, Save, StepMetadata
from .settings import Settings

logger = init_logger("vllm.quire")
PAGE = n.PAGE_TOKENS
_PIECE_BYTES = 16 << 20  # pages of a request are loaded and saved in pieces; while one is put into blocks the next one comes
_FULL_S = 20.0  # so long a save waits for room in the store's queue
_CLOSE_S = 10.0


class Moving:
    def __init__(self, settings: Settings, spaces: Spaces, counter: Counter) -> None:
        self._settings, self._spaces, self._counter = settings, spaces, counter
        self._blocks: Optional[Blocks] = None
        self._is_closing = self._is_dropping = False
        self._word = ""  # of the last step
        self._stale_word: Optional[str] = None  # under which nothing is loaded or saved, because the weights are others now
        self._own = threading.local()  # memory for pages, of each thread that loads
        self._save_room: Optional[np.ndarray] = None
        self._lock = threading.Lock()
        self._ended: List[Tuple[str, Set[int]]] = []  # loads that ended, with the blocks that did not come
        self._failed: Set[int] = set()
        self._running: Set[RawLoad] = set()
        self._loaders = ThreadPoolExecutor(settings.load_threads, thread_name_prefix="quire-load")
        self._queue: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._queued_bytes = 0
        self._errors = 0
        self._saver = threading.Thread(target=self._save_all, name="quire-save", daemon=True)
        self._saver.start()

    def use(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def weights_changed(self, method: str) -> None:
        """Called in the thread of the steps. Pages of the word that the last step had are those of other weights; every later word is one of
        a reset_cache() after which nothing was computed yet."""
        if self._stale_word != self._word:
            logger.warning("Quire: %s() changes the weights. Until reset_prefix_cache with reset_connector nothing is loaded from the store "
                           "or saved to it.", method)
        self._stale_word = self._word

    # ------------------------------------------------------------------ load

    def begin_loads(self, step: StepMetadata) -> None:
        self._word = step.word
        for load in step.loads:
            self._loaders.submit(self._load, load, time.monotonic())

    def _load(self, load: Load, began: float) -> None:
        """Whatever happens, the request is told: it would wait for ever. Its time runs since it asked, not since a thread was free."""
        blocks, deadline = self._blocks, began + self._settings.load_ms / 1000
        first_page, n_pages = load.first_token // PAGE, len(load.tokens) // PAGE
        arrived = load.first_token
        try:
            assert blocks is not None
            if not self._is_closing and time.monotonic() < deadline and load.tenant[1] != self._stale_word:
                arrived = max(arrived, self._load_pages(load, blocks, first_page, n_pages, deadline))
        except Exception as error:
            self._tell(f"a load failed: {error}")
        size = self._block_tokens()
        lost = set(load.block_ids[arrived // size:-(-len(load.tokens) // size)]) if arrived < len(load.tokens) else set()
        with self._lock:
            self._ended.append((load.request_id, lost))
        seconds, came = time.monotonic() - began, arrived - load.first_token
        self._counter.add(loaded_tokens=came, loaded_bytes=-(-came // PAGE) * self._page_bytes(), load_seconds=seconds,
                          failed_tokens=len(load.tokens) - arrived)
        logger.info("Quire: %s: %d of %d tokens loaded in %.3f s.", load.request_id, came, len(load.tokens) - load.first_token, seconds)

    def _block_tokens(self) -> int:
        return self._blocks.block_tokens if self._blocks is not None else PAGE

    def _page_bytes(self) -> int:
        return self._blocks.form.page_bytes if self._blocks is not None else 0

    @staticmethod
    def _per_piece(blocks: Blocks) -> int:
        return max(1, _PIECE_BYTES // blocks.form.page_bytes)

    def _load_pages(self, load: Load, blocks: Blocks, first_page: int, n_pages: int, deadline: float) -> int:
        """Returns the tokens of the request up to the first page that did not come."""
        per_piece = self._per_piece(blocks)
        if not hasattr(self._own, "rooms"):  # used again and again: allocated for each load, they would scatter malloc's memory
            self._own.rooms = [page_buffers(per_piece, blocks.form.page_bytes) for _ in range(2)]
        rooms: List[np.ndarray] = self._own.rooms
        pieces = [(at, min(per_piece, n_pages - at)) for at in range(first_page, n_pages, per_piece)]
        with self._spaces.using(load.tenant) as (space,):
            chain = space.chain(load.tokens[:n_pages * PAGE])
            ahead: Optional[RawLoad] = None
            try:
                ahead = self._begin(chain, rooms[0], *pieces[0], deadline)
                for i, (at, count) in enumerate(pieces):
                    assert ahead is not None
                    current, ahead = ahead, None
                    arrived = self._end(current) // PAGE - at
                    if i + 1 < len(pieces) and arrived == count:
                        ahead = self._begin(chain, rooms[(i + 1) % 2], *pieces[i + 1], deadline)
                    if arrived > 0:
                        blocks.write(rooms[i % 2][:arrived], load.block_ids, at, load.first_token)
                    if arrived < count:
                        return (at + max(0, arrived)) * PAGE
                return n_pages * PAGE
            finally:
                if ahead is not None:
                    self._end(ahead, cancel=True)
                chain.close()

    def _begin(self, chain: Chain, rooms: Any, first_page: int, n_pages: int, deadline: float) -> RawLoad:
        load = chain.load_raw(list(rooms[:n_pages]), first_page, timeout=max(0.001, deadline - time.monotonic()))
        with self._lock:
            self._running.add(load)
        if self._is_closing:
            load.cancel()
        return load

    def _end(self, load: RawLoad, cancel: bool = False) -> int:
        try:
            if cancel:
                load.close()
                return 0
            return load.wait()
        finally:
            with self._lock:
                self._running.discard(load)

    def take_ended(self) -> Set[str]:
        """Requests whose loads ended. The blocks that did not come are told by take_failed(), in the same step."""
        with self._lock:
            ended, self._ended = self._ended, []
        for _, lost in ended:
            self._failed |= lost
        return {name for name, _ in ended}

    def take_failed(self) -> Set[int]:
        failed, self._failed = self._failed, set()
        return failed

    # ------------------------------------------------------------------ save

    def begin_saves(self, step: StepMetadata) -> None:
        """Copies the finished pages of a step. What is beyond the memory for it is dropped."""
        began = time.monotonic()
        for save in step.saves:
            copied: Optional[Copied] = None
            try:
                copied = self._copy(save)
            except Exception as error:  # a page that is not saved is computed again; the engine goes on
                self._counter.add(save_errors=1)
                self._tell(f"a copy failed: {error}")
            self._queue.put((save, copied))
        if step.saves:
            self._counter.add(copy_seconds=time.monotonic() - began)

    def _copy(self, save: Save) -> Optional[Copied]:
        """The first pages of a save, as many as there is memory for."""
        blocks = self._blocks
        assert blocks is not None
        with self._lock:
            room = self._settings.save_bytes - self._queued_bytes
        count = save.n_pages if save.tenant[1] != self._stale_word else 0
        while count and blocks.copy_bytes(save.first_page, count) > room:
            count -= 1
        self._counter.add(dropped_pages=save.n_pages - count)
        if not count:
            return None
        copied = blocks.copy(save.block_ids, save.first_page, count)
        with self._lock:
            self._queued_bytes += copied.bytes
        return copied

    def forget(self, finished: Set[str]) -> None:
        for name in finished:
            self._queue.put(name)

    def _save_all(self) -> None:
        chains: Dict[str, Tuple[Tenant, Chain]] = {}
        while True:
            item = self._queue.get()
            if item is None:
                break
            if isinstance(item, str):
                self._drop_chain(chains, item)
                continue
            save, copied = item
            try:
                self._save(chains, save, copied)
            except Exception as error:
                self._counter.add(save_errors=1)
                self._tell(f"a save failed: {error}")
                self._drop_chain(chains, save.request_id)
            finally:
                if copied is not None:
                    with self._lock:
                        self._queued_bytes -= copied.bytes
            del item, save, copied
        for name in list(chains):
            self._drop_chain(chains, name)

    def _drop_chain(self, chains: Dict[str, Tuple[Tenant, Chain]], name: str) -> None:
        found = chains.pop(name, None)
        if found is not None:
            found[1].close()
            self._spaces.leave(found[0])

    def _save(self, chains: Dict[str, Tuple[Tenant, Chain]], save: Save, copied: Optional[Copied]) -> None:
        if save.start == 0:
            self._drop_chain(chains, save.request_id)
            (space,) = self._spaces.enter(save.tenant)
            try:
                chains[save.request_id] = (save.tenant, space.chain())
            except BaseException:
                self._spaces.leave(save.tenant)
                raise
        if save.request_id not in chains:
            self._counter.add(dropped_pages=copied.n_pages if copied is not None else 0)
            return  # an earlier save of the request failed
        chain = chains[save.request_id][1]
        if chain.length != save.start:
            raise ValueError(f"the chain has {chain.length} tokens, not {save.start}")
        chain.append(save.tokens)
        if copied is None:
            return
        assert self._blocks is not None
        done, until = 0, time.monotonic() + _FULL_S
        while done < copied.n_pages and not self._is_dropping:
            count = min(self._per_piece(self._blocks), copied.n_pages - done)
            pages = self._blocks.encode(copied, self._room(self._blocks)[:count], done)
            handed = self._hand_over(chain, pages, save.first_page + done, until)
            done += handed
            if handed < count:
                break
        self._counter.add(saved_pages=done, dropped_pages=copied.n_pages - done)

    def _room(self, blocks: Blocks) -> np.ndarray:
        if self._save_room is None:
            self._save_room = page_buffers(self._per_piece(blocks), blocks.form.page_bytes)
        return self._save_room

    def _hand_over(self, chain: Chain, pages: np.ndarray, first_page: int, until: float) -> int:
        """The store copies them. Returns how many of them it took."""
        done = 0
        while True:
            done = len(pages) - chain.save_raw(list(pages[done:]), first_page + done)
            if done == len(pages) or self._is_closing or time.monotonic() > until:
                return done
            try:  # the store's queue is full; this thread may wait
                chain.namespace.store.flush(1.0)
            except QuireError:
                pass

    # ----------------------------------------------------------------- both

    def _tell(self, sentence: str) -> None:
        self._errors += 1
        if self._errors <= 10:
            logger.warning("Quire: %s%s", sentence, " Further ones are counted only." if self._errors == 10 else "")

    def close(self) -> None:
        """Cancels loads, and saves what was copied as far as it can be done in some seconds."""
        self._is_closing = True
        with self._lock:
            running = list(self._running)
        for load in running:
            try:
                load.cancel()
            except (QuireError, ValueError):
                pass  # it ended
        self._loaders.shutdown(wait=True, cancel_futures=False)
        self._queue.put(None)
        self._saver.join(_CLOSE_S)
        if self._saver.is_alive():
            logger.warning("Quire: pages that were not saved yet are dropped.")
            self._is_dropping = True
            self._saver.join(_CLOSE_S)
        if not self._saver.is_alive():  # if it is, the namespaces are in use; they end with the process
            self._spaces.close()
