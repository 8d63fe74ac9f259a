/* SPDX-License-Identifier: MIT */
/*
 * What the log says about a policy. Only the layers whose cache is the device's are counted: beside a GPU the host keeps
 * the others, and the plan holds shapes for those that nobody here will use.
 */
#include "device.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct report {
    const struct kv_context *context;
    const quire_plan *plan;
    quire_write_fn write;
    void *ctx;
};

/* A layer with what it takes; k NULL: it is not the device's. */
struct own_layer {
    quire_plan_layer info;
    const struct kv *k, *v;
    size_t page_bytes, f16_bytes; /* the second of one token */
};

static void put(const struct report *r, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n > 0) r->write(r->ctx, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static struct own_layer find_layer(const struct report *r, uint32_t layer)
{
    struct own_layer l = {.info = {.size = sizeof l.info}};
    const struct kv_context *c = r->context;
    if (quire_plan_layer_info(r->plan, layer, &l.info)) return l;
    for (uint32_t i = 0; i < c->n_buffers; i++)
        for (uint32_t j = 0; j < c->buffer[i]->n_kv; j++) {
            const struct kv *kv = c->buffer[i]->kv[j];
            if (kv->layer != layer || !kv->format) continue;
            *(kv->side == QUIRE_K ? &l.k : &l.v) = kv;
            l.page_bytes += kv->n_heads * kv->tile_bytes;
            l.f16_bytes += 2 * (size_t)kv->row;
        }
    return l;
}

static uint32_t n_layers(const struct report *r)
{
    uint32_t n = 0;
    quire_plan_layer info = {.size = sizeof info};
    while (!quire_plan_layer_info(r->plan, n, &info)) n++;
    return n;
}

static void put_groups(const struct report *r, uint32_t n)
{
    for (uint32_t g = 0, told = 0; g < quire_plan_n_groups(r->plan); g++) {
        uint32_t count = 0, window = 0;
        size_t bytes = 0;
        for (uint32_t i = 0; i < n; i++) {
            struct own_layer l = find_layer(r, i);
            if (!l.k || l.info.group != g) continue;
            count++;
            window = l.info.window;
            bytes += l.page_bytes;
        }
        if (!count) continue;
        put(r, "group %" PRIu32 ": ", told++);
        if (window)
            put(r, "window of %" PRIu32 " tokens", window);
        else
            put(r, "full attention");
        put(r, ", %" PRIu32 " layer%s, %zu bytes/page\n", count, count == 1 ? "" : "s", bytes);
    }
}

static bool is_same(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

static bool is_alike(const struct own_layer *a, const struct own_layer *b)
{
    return a->k && b->k && !a->v == !b->v && a->info.group == b->info.group &&
           a->page_bytes == b->page_bytes && !strcmp(a->k->codec, b->k->codec) &&
           (!a->v || !strcmp(a->v->codec, b->v->codec)) && is_same(a->info.reason, b->info.reason);
}

static void put_layers(const struct report *r, uint32_t n)
{
    for (uint32_t i = 0, next; i < n; i = next) {
        struct own_layer first = find_layer(r, i);
        for (next = i + 1; next < n; next++) {
            struct own_layer l = find_layer(r, next);
            if (!is_alike(&first, &l)) break;
        }
        if (!first.k) continue;
        if (next == i + 1)
            put(r, "layer %" PRIu32, i);
        else
            put(r, "layers %" PRIu32 "-%" PRIu32, i, next - 1);
        put(r, ": K %s%s%s, %zu bytes/token%s%s%s\n", first.k->codec, first.v ? " V " : "",
            first.v ? first.v->codec : "", first.page_bytes / CELLS, next == i + 1 ? "" : " each",
            first.info.reason ? ", " : "", first.info.reason ? first.info.reason : "");
    }
}

/* Against f16 rows without padding, which is what the host would keep. */
static void put_total(const struct report *r, uint32_t n)
{
    uint64_t bytes = 0, f16 = 0;
    bool windows = false;
    for (uint32_t i = 0; i < n; i++) {
        struct own_layer l = find_layer(r, i);
        if (!l.k) continue;
        windows |= l.info.window > 0;
        if (l.info.window) continue;
        bytes += l.page_bytes / CELLS;
        f16 += l.f16_bytes;
    }
    if (!f16) {
        put(r, "total: no layer grows with the length\n");
        return;
    }
    /* Whole numbers: the decimal point of printf depends on the locale. */
    uint64_t per_mille = (bytes * 1000 + f16 / 2) / f16;
    put(r, "total: %" PRIu64 " bytes/token, %" PRIu64 ".%" PRIu64 "%% of f16%s\n", bytes, per_mille / 10,
        per_mille % 10, windows ? "; window layers do not grow with the length" : "");
}

void report_policy(const struct kv_context *c, const quire_plan *plan, quire_write_fn write, void *ctx)
{
    struct report r = {c, plan, write, ctx};
    uint32_t n = n_layers(&r);
    put(&r, "policy: %s\n", quire_plan_policy(plan));
    put_groups(&r, n);
    put_layers(&r, n);
    put_total(&r, n);
    if (quire_plan_warning(plan)) put(&r, "warning: %s\n", quire_plan_warning(plan));
}
