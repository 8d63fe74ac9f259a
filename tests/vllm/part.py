# SPDX-License-Identifier: MIT
"""The connector's parts without an engine, and requests for them."""
import time
from types import SimpleNamespace

import torch
from quire_vllm import identity, settings
from quire_vllm.figures import Counter
from quire_vllm.moving import Moving
from quire_vllm.pages import Blocks, PageForm
from quire_vllm.policy import parse
from quire_vllm.scheduling import Scheduling, StepMetadata

LAYERS, HEADS, D, PAGE = 3, 2, 64, 64


def impl(name, **members):
    return type(name, (), members)()


class Request(SimpleNamespace):
    def __init__(self, name, tokens, salt=None, **members):
        super().__init__(request_id=name, all_token_ids=list(tokens), cache_salt=salt, lora_request=None, mm_features=[], prompt_embeds=None,
                         prompt_token_ids=list(tokens), pooling_params=None, resumable=False, skip_reading_prefix_cache=False,
                         num_preemptions=0, num_prompt_tokens=len(tokens))
        self.__dict__.update(members)

    @property
    def num_tokens(self):
        return len(self.all_token_ids)


class Part:
    """A worker and a scheduler over one store, with memory of their own."""

    def __init__(self, extra, weights="w", policy="r8", tokens=64, rank=0, ranks=1, n_blocks=40, seed=5):
        self.settings = settings.read({"lookup_ms": 20000, **extra})  # on a busy machine look-ups end late
        self.form = PageForm(parse(policy), LAYERS, HEADS, D, D, torch.bfloat16, False)
        model = identity.Model(weights, "{}", self.form.layout, self.form.page_bytes, "test", ranks)
        self.store = identity.open_store(self.settings)
        self.counter = Counter()
        self.caches = [torch.randn(n_blocks, HEADS, tokens, 2 * D, generator=torch.Generator().manual_seed(seed + i)).to(torch.bfloat16)
                       for i in range(LAYERS)]
        self.moving = Moving(self.settings, identity.Spaces(self.store, model, self.settings.secret, [rank]), self.counter)
        self.moving.use(Blocks(self.form, tokens, self.caches, [impl("FlashAttentionImpl")] * LAYERS))
        self.scheduling = Scheduling(self.settings, identity.Spaces(self.store, model, self.settings.secret, range(ranks)), tokens, self.counter,
                                     True, True)

    def matched(self, request, computed=0):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            got = self.scheduling.matched(request, computed)
            if got[0] is not None:
                return got
            time.sleep(0.001)
        raise AssertionError("a look-up does not end")

    def save(self, request, blocks, computed=0):
        count = len(request.all_token_ids)
        step = self.scheduling.metadata(SimpleNamespace(
            num_scheduled_tokens={request.request_id: count - computed}, scheduled_new_reqs=[SimpleNamespace(
                req_id=request.request_id, block_ids=[blocks], num_computed_tokens=computed)],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set(), num_computed_tokens=[])))
        self.moving.begin_saves(step)
        return step

    def flush(self):
        for _ in range(3000):
            if not self.moving._queued_bytes:
                break
            time.sleep(0.01)
        time.sleep(0.02)
        self.store.flush(20)

    def load(self, request, external, blocks, wait=60):
        self.scheduling.allocated(request, blocks, external)
        self.moving.begin_loads(StepMetadata(loads=self.scheduling._loads))
        self.scheduling._loads = []
        return self.ended(request.request_id, wait)

    def ended(self, name, wait=60):
        end = time.monotonic() + wait
        while time.monotonic() < end:
            got = self.moving.take_ended()
            if name in got:
                return self.moving.take_failed()
            time.sleep(0.002)
        raise AssertionError("a load does not end")

    def page(self, blocks, first, count):
        b = self.moving._blocks
        return b.encode(b.copy(blocks, first, count))

    def close(self):
        self.scheduling.close()
        self.moving.close()
        return identity.release_store(self.settings)
