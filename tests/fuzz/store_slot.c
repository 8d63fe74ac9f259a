/* SPDX-License-Identifier: MIT */
/* Any bytes as a slot file of llama-server: refused with a sentence, or every page of it can be read and its layout has a text that
 * gives it back. As a state with a tail too: the tail is within the file, and can be made wider. */
#include "support/fuzz.h"

#include "files/slot_file.h"

#include <stdlib.h>
#include <string.h>

static void check(bool ok)
{
    if (!ok) abort();
}

static void get_pages(const slot_file *slot)
{
    if (slot->layout.page_bytes >= 1u << 22) return;
    uint8_t *page = malloc(slot->layout.page_bytes + 1);
    check(page != NULL);
    for (uint32_t i = 0; i < slot->n_cells / 64 && i < 4; i++) check(slot_get_page(slot, i, page));
    free(page);
}

/* like: what another state of the server was. */
static void read_state(const uint8_t *data, size_t n, const slot_layout *like)
{
    static slot_file slot;
    uint8_t *copy = malloc(n + 1);
    check(copy != NULL);
    memcpy(copy, data, n);
    const char *wrong = slot_parse_state(&slot, copy, n, like);
    if (wrong) {
        check(*wrong != 0 && !slot.bytes);
        return;
    }
    check(slot.tail_at <= n && slot.tail_bytes <= n - slot.tail_at && slot.n_cells <= slot.n_tokens);
    check(!slot.n_cells == !slot.layout.n_layers);
    const uint8_t *tail = slot.bytes + slot.tail_at;
    uint32_t version = slot.layout.version;
    check(slot_tail_size(version, tail, slot.tail_bytes) == slot.tail_bytes);
    size_t n_wide = 0;
    uint8_t *wide = slot_widen_tail(version, tail, slot.tail_bytes, &n_wide);
    if (wide) {
        check(slot_tail_is_cache(version, tail, slot.tail_bytes) &&
              slot_tail_is_cache(version, wide, n_wide));
        check(n_wide > slot.tail_bytes);
        memset(wide, 0, n_wide);
    }
    free(wide);
    get_pages(&slot);
    slot_free(&slot);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char text[65536];
    static slot_file slot;
    static slot_layout again;
    static const slot_layout no_rows, without_v = {.n_layers = 1};
    read_state(data, n, NULL);
    read_state(data, n, &no_rows);
    read_state(data, n, &without_v);
    uint8_t *copy = malloc(n + 1);
    check(copy != NULL);
    memcpy(copy, data, n);
    const char *wrong = slot_parse(&slot, copy, n);
    if (wrong) {
        check(*wrong != 0 && !slot.bytes);
        return 0;
    }
    size_t whole = slot.layout.page_bytes;
    get_pages(&slot);
    slot_leave_out_zeros(&slot);
    check(slot.layout.page_bytes <= whole);
    slot_layout_print(&slot.layout, text, sizeof text);
    check(!slot_layout_parse(&again, text));
    slot_keep_like(&slot, &again);
    check(again.page_bytes == slot.layout.page_bytes && again.n_layers == slot.layout.n_layers &&
          again.n_v == slot.layout.n_v && again.version == slot.layout.version &&
          again.rotation_k == slot.layout.rotation_k && again.rotation_v == slot.layout.rotation_v);
    check(slot.n_cells <= slot.n_tokens && (slot.layout.version == 3 || slot.layout.version == 4));
    get_pages(&slot);
    slot_free(&slot);
    return 0;
}
