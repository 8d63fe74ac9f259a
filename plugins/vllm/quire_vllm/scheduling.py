# SPDX-License-Identifier: MIT
"""The scheduler's part of the connector: what the store has of a request, and which blocks each step loads and saves."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
from quire import _native as n
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.logger import init_logger

from .figures import Counter
from .identity import Spaces, Tenant
from .settings import Settings

logger = init_logger("vllm.quire")
PAGE = n.PAGE_TOKENS
_PROMPT_S = 0.003  # so long the scheduler itself waits for look-ups in a step; a directory answers sooner, a remote may not
_STALE_S = 5.0  # a look-up that is older is made again: requests may wait long for blocks


# vLLM prints metadata when a step fails: tokens and salts are left out.
@dataclass
class Load:
    request_id: str
    tenant: Tenant = field(repr=False)
    tokens: np.ndarray = field(repr=False)  #: up to the last page to load
    first_token: int  #: tokens before it are in vLLM's own cache
    block_ids: List[int]


@dataclass
class Save:
    request_id: str
    tenant: Tenant = field(repr=False)
    start: int  #: how many tokens of the request the worker has been told before
    tokens: np.ndarray = field(repr=False)  #: those that follow
    first_page: int
    n_pages: int
    block_ids: List[int]  #: of the request, from the beginning


@dataclass
class StepMetadata(KVConnectorMetadata):
    word: str = ""  #: of all tenants in this step; reset_cache() changes it
    loads: List[Load] = field(default_factory=list)
    saves: List[Save] = field(default_factory=list)


@dataclass
class _Known:
    """A request that may use the store."""

    request: Any
    tenant: Tenant
    lookup: "Optional[Future[Tuple[int, float]]]" = None
    looked_up: int = 0  #: tokens that the look-up was made for
    begun_at: float = 0.0
    failed_at: float = float("-inf")  #: when a look-up ended with an error
    is_counted: bool = False
    found: int = 0  #: tokens that the store had
    is_answered: bool = False  #: the last look-up ended without an error, so found is what the store has
    local: int = 0  #: tokens that vLLM's own cache had at the last question
    loaded_life: int = -1  #: number of preemptions when it was loaded: once in each life, because a load that failed would fail again
    saved: int = 0  #: pages that need no saving any more
    told: int = 0  #: tokens that the worker's chain has
    is_mixed: bool = False  #: it may have rows from before reset_cache(), and saves nothing
    block_ids: List[int] = field(default_factory=list)


class Scheduling:
    def __init__(self, settings: Settings, spaces: Spaces, block_tokens: int, counter: Counter, loads: bool, saves: bool) -> None:
        self._settings, self._spaces, self._block_tokens, self._counter = settings, spaces, block_tokens, counter
        self._may_load, self._may_save = loads, saves
        self._known: Dict[str, _Known] = {}
        self._refused: Dict[str, str] = {}
        self._loads: List[Load] = []
        self._word = ""
        self._is_mixed = False  # vLLM's own cache may have rows from before reset_cache()
        self._errors = 0
        self._patience = _PROMPT_S
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="quire-lookup")

    # ------------------------------------------------------------- requests

    @staticmethod
    def refusal(request: Any) -> Optional[str]:
        """The name of the figure that counts it, or None."""
        if request.lora_request is not None:
            return "refused_lora"
        if request.mm_features:
            return "refused_media"
        if request.prompt_embeds is not None or request.prompt_token_ids is None:
            return "refused_embeddings"
        if request.pooling_params is not None or getattr(request, "resumable", False):
            return "refused_other"
        return None

    def _know(self, request: Any) -> Optional[_Known]:
        known = self._known.get(request.request_id)
        if known is not None or request.request_id in self._refused:
            return known
        reason = self.refusal(request)
        if reason is not None:
            self._refused[request.request_id] = reason
            self._counter.add(**{reason: 1})
            return None
        known = self._known[request.request_id] = _Known(request, (request.cache_salt, self._word))
        return known

    def new_request(self, request: Any) -> None:
        """Begins the look-up while the request waits for its turn."""
        known = self._know(request)
        if known is not None and self._is_asked(request):
            self._begin(known)

    def _is_read(self, request: Any) -> bool:
        # Requests for log-probabilities of their prompt need it computed.
        return self._may_load and not request.skip_reading_prefix_cache

    def _is_asked(self, request: Any) -> bool:
        # Whoever only saves asks as well, to save nothing twice.
        return self._is_read(request) or (self._may_save and not self._may_load)

    def _begin(self, known: _Known) -> None:
        tokens = np.array(known.request.all_token_ids[:], np.uint32)[:-1]  # one is left to compute
        known.looked_up, known.is_counted, known.begun_at = len(tokens), False, time.monotonic()
        known.is_answered = False
        known.lookup = self._threads.submit(self._look_up, known.tenant, tokens)

    def _look_up(self, tenant: Tenant, tokens: np.ndarray) -> Tuple[int, float]:
        """Tokens that the store has for all ranks, and when it said so."""
        if len(tokens) < PAGE:
            return 0, time.monotonic()
        timeout = self._settings.lookup_ms / 1000 if self._settings.remote else 0.0
        with self._spaces.using(tenant) as spaces:
            chains = [space.chain(tokens) for space in spaces]
            try:
                return min(spaces[0].store.lookup_many(chains, timeout=timeout)), time.monotonic()
            finally:
                for chain in chains:
                    chain.close()

    def matched(self, request: Any, computed: int) -> Tuple[Optional[int], bool]:
        """What get_num_new_matched_tokens() answers. None: ask again later."""
        known = self._know(request)
        if known is None:
            return 0, False
        known.local = computed
        if not self._is_asked(request) or known.loaded_life == request.num_preemptions:
            return 0, False
        asked_at = time.monotonic()
        if known.lookup is None and asked_at - known.failed_at < _STALE_S:
            return 0, False  # not again in every step
        if known.lookup is None or self._is_stale(known):
            self._begin(known)
        assert known.lookup is not None
        try:
            known.found, _ = known.lookup.result(self._patience)
            known.is_answered = True
        except FutureTimeout:
            if not self._is_read(request):
                return 0, False  # nothing to wait for
            self._patience = max(0.0, self._patience - (time.monotonic() - asked_at))
            # Many requests at a time may wait for their turn; none waits longer for an answer than two look-ups may take.
            if time.monotonic() - known.begun_at < 2 * self._settings.lookup_ms / 1000:
                return None, False
            known.found = 0
        except Exception as error:  # whatever it is, the engine goes on
            # The future goes: result() would raise the same error in every step, each time with a longer trace.
            known.lookup, known.failed_at, known.found = None, time.monotonic(), 0
            self._note_error(error)
        if not known.is_counted:
            known.is_counted = True
            self._counter.add(looked_up_tokens=known.looked_up)
        if not self._is_read(request):
            return 0, False
        whole = known.found // self._block_tokens * self._block_tokens  # vLLM loads whole blocks
        more = whole - computed
        return (more, True) if more >= max(1, self._settings.min_load_tokens) else (0, False)

    def _note_error(self, error: Exception) -> None:
        self._errors += 1
        self._counter.add(lookup_errors=1)
        if self._errors <= 10:
            logger.warning("Quire: a look-up failed: %s%s", error, " Further ones are counted only." if self._errors == 10 else "")

    def _is_stale(self, known: _Known) -> bool:
        assert known.lookup is not None
        if not known.lookup.done():
            return False
        is_old = known.lookup.exception() is None and time.monotonic() - known.lookup.result()[1] > _STALE_S
        return is_old or known.looked_up < known.request.num_tokens - 1

    def allocated(self, request: Any, block_ids: List[int], external: int) -> None:
        """vLLM has blocks for the request; external tokens of it are to be loaded."""
        known = self._known.get(request.request_id)
        if known is None or external <= 0:
            return
        end = known.local + external
        tokens = np.array(request.all_token_ids[:end], np.uint32)
        self._loads.append(Load(request.request_id, known.tenant, tokens, known.local, list(block_ids)))
        known.loaded_life = request.num_preemptions
        self._counter.add(found_tokens=external)

    def finished(self, request: Any) -> None:
        self._refused.pop(request.request_id, None)
        known = self._known.pop(request.request_id, None)
        if known is not None and known.lookup is not None:
            known.lookup.cancel()

    def reset(self, is_emptied: bool = True) -> None:
        """From now on nothing that was stored before is found, here; what this engine stores is not found by others. is_emptied: vLLM has
        emptied its own cache, too. If not, requests that begin with rows of it save nothing, until it is emptied: neither these rows nor
        what is computed from them belongs to the new word."""
        self._word, self._is_mixed = os.urandom(16).hex(), not is_emptied
        # Requests that hold rows from before are forgotten: they save nothing more.
        self._known = {name: known for name, known in self._known.items() if not known.block_ids and known.loaded_life < 0}
        for known in self._known.values():
            known.tenant, known.lookup, known.found, known.is_answered = (known.tenant[0], self._word), None, 0, False
            known.failed_at = float("-inf")

    # ---------------------------------------------------------------- steps

    def metadata(self, output: Any) -> StepMetadata:
        self._patience = _PROMPT_S
        step, self._loads = StepMetadata(self._word, self._loads), []
        counts = output.num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            self._plan(step, new.req_id, new.block_ids[0], True, new.num_computed_tokens, counts[new.req_id])
        cached = output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            more = cached.new_block_ids[i]
            self._plan(step, name, more[0] if more is not None else [], name in cached.resumed_req_ids, cached.num_computed_tokens[i], counts[name])
        return step

    def _plan(self, step: StepMetadata, name: str, block_ids: List[int], is_whole: bool, computed: int, new: int) -> None:
        known = self._known.get(name)
        if known is None or not self._may_save:
            return
        if is_whole:
            known.block_ids = list(block_ids)
            local = known.local if known.loaded_life == known.request.num_preemptions else computed
            known.is_mixed |= self._is_mixed and local > 0
            # Pages that vLLM's own cache has but the store has not (they were dropped, or evicted there) are saved again. Where the store
            # did not say what it has, only what is computed from here on is saved. What was found, but is computed all the same, did not
            # load and is saved again; who never loads computes all that is found, and saves none of it.
            there = computed if not known.is_answered else min(known.found, computed) if self._may_load else known.found
            known.saved = max(known.saved if known.told else 0, there // PAGE)
        else:
            known.block_ids += block_ids
        if known.is_mixed:
            return
        # Rows of drafted tokens count as computed before it is known whether they are accepted; all_token_ids has accepted ones only, and
        # after this step the rows of all of these that were scheduled are there.
        end = min(computed + new, len(known.request.all_token_ids))
        if not self._settings.save_decoded:
            end = min(end, known.request.num_prompt_tokens)
        n_pages = end // PAGE - known.saved
        if n_pages <= 0:
            return
        stop = (known.saved + n_pages) * PAGE
        tokens = np.array(known.request.all_token_ids[known.told:stop], np.uint32)
        blocks = known.block_ids[:-(-stop // self._block_tokens)]
        step.saves.append(Save(name, known.tenant, known.told, tokens, known.saved, n_pages, blocks))
        known.told, known.saved = stop, known.saved + n_pages

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._spaces.close()
