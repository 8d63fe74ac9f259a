/* SPDX-License-Identifier: MIT */
/* plan: what it says about itself, to programs and to people. */
#include "cache/plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define LINE_SIZE (QUIRE_REASON_MAX + 512) /* a policy or a layer's line, with its reason */

const char *quire_plan_policy(const quire_plan *plan)
{
    return plan->policy;
}

uint64_t quire_plan_fingerprint(const quire_plan *plan)
{
    return plan->fingerprint;
}

double quire_plan_bytes_per_token(const quire_plan *plan)
{
    return plan->bytes_per_token;
}

uint32_t quire_plan_n_groups(const quire_plan *plan)
{
    return plan->n_groups;
}

size_t quire_plan_page_bytes(const quire_plan *plan, uint32_t group)
{
    return group < plan->n_groups ? plan->group[group].pages.bytes : 0;
}

quire_status quire_plan_layer_info(const quire_plan *plan, uint32_t layer, quire_plan_layer *out)
{
    if (!plan || !out || layer >= plan->n_layers) return QUIRE_EINVAL;
    const quire_planned_layer *l = &plan->layer[layer];
    uint32_t n_sink_pages = plan->group[l->group].n_sink_pages;
    bool has_v = !l->shape.v_in_k;
    quire_plan_layer info = {
        .k = l->k.coder.codec->info.name,
        .v = has_v ? l->v.coder.codec->info.name : NULL,
        .sink_k = n_sink_pages ? l->sink_k.coder.codec->info.name : NULL,
        .sink_v = n_sink_pages && has_v ? l->sink_v.coder.codec->info.name : NULL,
        .sink_tokens = n_sink_pages * QUIRE_PAGE_TOKENS,
        .group = l->group,
        .group_index = l->index,
        .window = l->shape.window,
        .n_q_heads = l->shape.n_q_heads,
        .n_kv_heads = l->shape.n_kv_heads,
        .d_k = l->shape.d_k,
        .d_v = l->shape.d_v,
        .v_in_k = l->shape.v_in_k,
        .bytes_per_token = (double)quire_planned_bytes(l),
        .reason = l->reason,
    };
    return quire_write_sized(out, &info, sizeof info);
}

/* ---------------------------------------------------------------- describe */

typedef struct printer {
    quire_write_fn write;
    void *ctx;
    quire_status status; /* once it is not OK nothing more is written */
    size_t used;
    char line[LINE_SIZE];
} printer;

/* Adds to the current line; a line that is too long is cut. */
static void put(printer *p, const char *format, ...)
{
    va_list args;
    size_t room = sizeof p->line - 1 - p->used; /* one byte stays for the end of the line */
    va_start(args, format);
    int n = vsnprintf(p->line + p->used, room, format, args);
    va_end(args);
    if (n > 0) p->used += (size_t)n < room ? (size_t)n : room - 1;
}

static void end_line(printer *p)
{
    p->line[p->used++] = '\n';
    if (!p->status && p->write(p->ctx, p->line, p->used)) p->status = QUIRE_EIO;
    p->used = 0;
}

static bool same_reason(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

static bool same_layer(const quire_planned_layer *a, const quire_planned_layer *b)
{
    return a->group == b->group && !memcmp(&a->shape, &b->shape, sizeof a->shape) &&
           a->k.coder.codec == b->k.coder.codec && a->v.coder.codec == b->v.coder.codec &&
           same_reason(a->reason, b->reason);
}

static void put_pair(printer *p, const quire_tile_format *k, const quire_tile_format *v)
{
    put(p, "K %s", k->coder.codec->info.name);
    if (v->coder.codec) put(p, " V %s", v->coder.codec->info.name);
}

/* The codecs of sink pages are the same in all layers, except that some may not keep V. */
static const quire_planned_layer *widest_layer(const quire_plan *plan, const quire_group *group)
{
    for (uint32_t i = 0; i < group->n_layers; i++)
        if (!plan->layer[group->layer[i]].shape.v_in_k) return &plan->layer[group->layer[i]];
    return &plan->layer[group->layer[0]];
}

static void put_groups(printer *p, const quire_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_groups; i++) {
        const quire_group *g = &plan->group[i];
        const quire_planned_layer *l = widest_layer(plan, g);
        put(p, "group %" PRIu32 ": ", i);
        if (g->window)
            put(p, "window of %" PRIu32 " tokens", g->window);
        else
            put(p, "full attention");
        put(p, ", %" PRIu32 " layer%s, %zu bytes/page", g->n_layers, g->n_layers == 1 ? "" : "s",
            g->pages.bytes);
        if (g->n_sink_pages) {
            put(p, "; tokens 0-%" PRIu32 ": ", g->n_sink_pages * QUIRE_PAGE_TOKENS - 1);
            put_pair(p, &l->sink_k, &l->sink_v);
            put(p, ", %zu bytes/page", g->sinks.bytes);
        }
        end_line(p);
    }
}

static void put_layers(printer *p, const quire_plan *plan)
{
    for (uint32_t i = 0, next; i < plan->n_layers; i = next) {
        const quire_planned_layer *l = &plan->layer[i];
        for (next = i + 1; next < plan->n_layers && same_layer(l, &plan->layer[next]);) next++;
        if (next == i + 1)
            put(p, "layer %" PRIu32 ": ", i);
        else
            put(p, "layers %" PRIu32 "-%" PRIu32 ": ", i, next - 1);
        put_pair(p, &l->k, &l->v);
        put(p, ", %" PRIu64 " bytes/token%s", quire_planned_bytes(l), next == i + 1 ? "" : " each");
        if (l->reason) put(p, ", %s", l->reason);
        end_line(p);
    }
}

/* Against f16 rows without padding, which is what an engine without Quire keeps. */
static void put_total(printer *p, const quire_plan *plan)
{
    uint64_t bytes = 0, f16 = 0;
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        const quire_layer *s = &plan->layer[i].shape;
        if (s->window) continue;
        bytes += quire_planned_bytes(&plan->layer[i]);
        f16 += (uint64_t)s->n_kv_heads * (s->d_k + (s->v_in_k ? 0 : s->d_v)) * 2;
    }
    if (f16) {
        /* Whole numbers: the decimal point of printf depends on the locale. */
        uint64_t per_mille = (bytes * 1000 + f16 / 2) / f16;
        put(p, "total: %" PRIu64 " bytes/token, %" PRIu64 ".%" PRIu64 "%% of f16", bytes, per_mille / 10,
            per_mille % 10);
        if (plan->n_groups > 1) put(p, "; window layers do not grow with the length");
    } else {
        put(p, "total: no layer grows with the length");
    }
    end_line(p);
}

quire_status quire_plan_describe(const quire_plan *plan, quire_write_fn write, void *ctx)
{
    if (!plan || !write) return QUIRE_EINVAL;
    printer p = {.write = write, .ctx = ctx};
    put(&p, "policy: %s", plan->policy);
    end_line(&p);
    put_groups(&p, plan);
    put_layers(&p, plan);
    put_total(&p, plan);
    if (plan->warning[0]) {
        put(&p, "warning: %s", plan->warning);
        end_line(&p);
    }
    return p.status;
}
