/* SPDX-License-Identifier: MIT */
/* Comparing sequences and pools with their model. */
#include "support/model_check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_ROWS 64u
#define ATTEND_BOUND 1e-3

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static bool
differs(model_why *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return false;
}

/* ----------------------------------------------------------------------- rows */

static bool all_held(const row_world *w, const model_seq *s, uint32_t layer, uint32_t first, uint32_t n)
{
    for (uint32_t p = first; p < first + n; p++)
        if (!model_holds(s, w->group[layer], p)) return false;
    return true;
}

/* Whether the pages of these rows have the codec that the plan has for ordinary pages. */
static bool all_planned(const row_world *w, const model_seq *s, uint32_t layer, quire_side side,
                        uint32_t first, uint32_t n)
{
    uint32_t g = w->group[layer], plain = s->plan * 2 * w->n_groups + g;
    uint64_t planned = quire_tile_format_fingerprint(w->layout[plain].format[layer][side]);
    for (uint32_t p = first; p < first + n; p++) {
        uint32_t layout = s->page[g][p / QUIRE_PAGE_TOKENS]->layout;
        if (quire_tile_format_fingerprint(w->layout[layout].format[layer][side]) != planned) return false;
    }
    return true;
}

static bool check_values(const row_world *w, const model_seq *s, uint32_t layer, quire_side side,
                         uint32_t first, uint32_t n, model_why *why)
{
    float x[MAX_ROWS * ROW_WIDEST];
    uint32_t width = row_width(w, layer, side);
    quire_rows_out rows = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = x};
    quire_status status = quire_seq_export(s->real, layer, side, first, n, &rows);
    quire_status due = all_held(w, s, layer, first, n) ? QUIRE_OK : QUIRE_ERANGE;
    if (status != due)
        return differs(why, "layer %u side %d rows %u+%u: export said %s, not %s", layer, (int)side, first, n,
                       quire_status_name(status), quire_status_name(due));
    for (uint32_t i = 0; i < n && !status; i++) {
        const float *expected = row_values(w, s->node[w->group[layer]][first + i], layer, side);
        if (memcmp(x + (size_t)i * width, expected, width * sizeof(float)))
            return differs(why, "layer %u side %d row %u of %u: other values", layer, (int)side, first + i,
                           s->length);
    }
    return true;
}

static bool check_native(const row_world *w, const model_seq *s, uint32_t layer, quire_side side,
                         uint32_t first, uint32_t n, model_why *why)
{
    uint8_t bytes[MAX_ROWS * ROW_WIDEST * 4];
    uint32_t g = w->group[layer];
    quire_rows_out rows = {.size = sizeof(quire_rows_out), .form = QUIRE_NATIVE, .data = bytes};
    quire_status due = !all_held(w, s, layer, first, n)            ? QUIRE_ERANGE
                       : !all_planned(w, s, layer, side, first, n) ? QUIRE_EUNSUPPORTED
                                                                   : QUIRE_OK;
    quire_status status = quire_seq_export(s->real, layer, side, first, n, &rows);
    if (due == QUIRE_ERANGE && status == QUIRE_EUNSUPPORTED) return true; /* both are so */
    if (status != due)
        return differs(why, "layer %u side %d rows %u+%u: native export said %s, not %s", layer, (int)side,
                       first, n, quire_status_name(status), quire_status_name(due));
    for (uint32_t i = 0; i < n && !status; i++) {
        uint32_t node = s->node[g][first + i];
        size_t size = w->layout[w->node[node].layout].row_bytes[layer][side] * w->layer[layer].n_kv_heads;
        if (memcmp(bytes + i * size, row_native(w, node, layer, side), size))
            return differs(why, "layer %u side %d row %u of %u: other bytes", layer, (int)side, first + i,
                           s->length);
    }
    return true;
}

bool model_check_rows(const row_world *w, const model_seq *s, uint32_t layer, quire_side side, uint32_t first,
                      uint32_t n, model_why *why)
{
    return check_values(w, s, layer, side, first, n, why) && check_native(w, s, layer, side, first, n, why);
}

/* ---------------------------------------------------------------------- shape */

static bool check_floor(const row_world *w, const model_seq *s, model_why *why)
{
    uint32_t floor = quire_seq_trim_floor(s->real);
    if (floor > s->length || !model_can_trim(w, s, floor))
        return differs(why, "trim floor %u of length %u: rows are missing", floor, s->length);
    if (floor && model_can_trim(w, s, floor - 1))
        return differs(why, "trim floor %u of length %u: one less would do", floor, s->length);
    return true;
}

static bool check_tiles(const row_world *w, const model_seq *s, model_why *why)
{
    for (uint32_t layer = 0; layer < w->n_layers; layer++) {
        quire_tile_ref tile[64];
        uint32_t g = w->group[layer], n = quire_seq_tiles(s->real, layer, tile, 64, sizeof(quire_tile_ref)),
                 at = 0;
        for (uint32_t i = 0; i < model_pages(s->length) && i < 64; i++) {
            if (!s->page[g][i]) continue;
            uint32_t rows = s->length - i * QUIRE_PAGE_TOKENS;
            if (rows > QUIRE_PAGE_TOKENS) rows = QUIRE_PAGE_TOKENS;
            if (at >= n || tile[at].first != i * QUIRE_PAGE_TOKENS || tile[at].n_rows != rows)
                return differs(why, "layer %u: tile %u is not that of page %u", layer, at, i);
            at++;
        }
        if (at != n && n <= 64) return differs(why, "layer %u: %u tiles, not %u", layer, n, at);
    }
    return true;
}

bool model_check_shape(const row_world *w, const model_seq *s, model_why *why)
{
    uint32_t length = quire_seq_length(s->real);
    if (length != s->length) return differs(why, "length %u, not %u", length, s->length);
    uint64_t plan = quire_plan_fingerprint(quire_seq_plan(s->real));
    if (plan != quire_plan_fingerprint(w->plan[s->plan])) return differs(why, "another plan");
    return check_floor(w, s, why) && check_tiles(w, s, why);
}

bool model_check_seq(const row_world *w, const model_seq *s, model_why *why)
{
    if (!model_check_shape(w, s, why)) return false;
    for (uint32_t layer = 0; layer < w->n_layers; layer++)
        for (uint32_t p = 0, n; p < s->length; p += n) {
            n = s->length - p < MAX_ROWS ? s->length - p : MAX_ROWS;
            if (!model_check_rows(w, s, layer, QUIRE_K, p, n, why)) return false;
            if (!model_check_rows(w, s, layer, QUIRE_V, p, n, why)) return false;
        }
    return true;
}

bool model_check_pool(model_pool *pool, model_why *why)
{
    quire_pool_stats stats = {.size = sizeof stats};
    quire_pool_stats_get(pool->real, &stats);
    if (stats.used_bytes != pool->used || stats.n_pages != pool->n_pages)
        return differs(why, "pool: %zu bytes in %llu pages, not %zu in %llu", stats.used_bytes,
                       (unsigned long long)stats.n_pages, pool->used, (unsigned long long)pool->n_pages);
    if (stats.n_copies != pool->n_copies)
        return differs(why, "pool: %llu copies, not %llu", (unsigned long long)stats.n_copies,
                       (unsigned long long)pool->n_copies);
    if (stats.resident_bytes < stats.used_bytes || stats.resident_bytes > stats.budget_bytes ||
        stats.peak_bytes < stats.resident_bytes || stats.peak_bytes > stats.budget_bytes ||
        stats.budget_bytes != pool->budget)
        return differs(why, "pool: used %zu, resident %zu, peak %zu, budget %zu", stats.used_bytes,
                       stats.resident_bytes, stats.peak_bytes, stats.budget_bytes);
    return true;
}

/* ------------------------------------------------------------------ attention */

bool model_check_attend(const row_world *w, const model_seq *s, uint32_t layer, uint32_t first, uint32_t n,
                        const float *q, const float *out, model_why *why)
{
    const quire_layer *l = &w->layer[layer];
    double expected[ROW_WIDEST];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < l->n_q_heads; h++) {
            double off = 0, size = 0;
            model_attend(w, s, layer, h, first + i, q + (size_t)h * l->d_k, expected);
            for (uint32_t c = 0; c < l->d_v; c++) {
                double e = expected[c] - (double)out[(size_t)h * l->d_v + c];
                off += e * e;
                size += expected[c] * expected[c];
            }
            if (h + 1 == l->n_q_heads) {
                q += (size_t)l->n_q_heads * l->d_k;
                out += (size_t)l->n_q_heads * l->d_v;
            }
            /* Rows have values of about 1; what is far below it cancelled and has no digits to compare. */
            if (!(sqrt(off) <= ATTEND_BOUND * fmax(sqrt(size), 1e-2)))
                return differs(why, "layer %u: attention at %u, query head %u is off by %g of %g", layer,
                               first + i, h, sqrt(off), sqrt(size));
        }
    return true;
}
