/* SPDX-License-Identifier: MIT */
/* Any bytes as a slot file of llama-server: refused with a sentence, or every page of it can be read and its layout has a text that
 * gives it back. */
#include "support/fuzz.h"

#include "files/slot_file.h"

#include <stdlib.h>
#include <string.h>

static void check(bool ok)
{
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char text[65536];
    static slot_file slot;
    static slot_layout again;
    uint8_t *copy = malloc(n + 1);
    check(copy != NULL);
    memcpy(copy, data, n);
    const char *wrong = slot_parse(&slot, copy, n);
    if (wrong) {
        check(*wrong != 0 && !slot.bytes);
        return 0;
    }
    slot_layout_print(&slot.layout, text, sizeof text);
    check(!slot_layout_parse(&again, text));
    check(again.page_bytes == slot.layout.page_bytes && again.n_layers == slot.layout.n_layers &&
          again.n_v == slot.layout.n_v && again.version == slot.layout.version &&
          again.rotation_k == slot.layout.rotation_k && again.rotation_v == slot.layout.rotation_v);
    check(slot.n_cells <= slot.n_tokens && (slot.layout.version == 3 || slot.layout.version == 4));
    if (slot.layout.page_bytes < 1u << 22) {
        uint8_t *page = malloc(slot.layout.page_bytes);
        check(page != NULL);
        for (uint32_t i = 0; i < slot.n_cells / 64 && i < 4; i++) slot_get_page(&slot, i, page);
        free(page);
    }
    slot_free(&slot);
    return 0;
}
