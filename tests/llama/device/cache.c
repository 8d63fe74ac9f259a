/* SPDX-License-Identifier: MIT */
/* A KV cache on the device. */
#define _POSIX_C_SOURCE 200809L

#include "cache.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

shape shape_of(kit_type t, int d_k, int d_v, int heads, int cells, int streams)
{
    return (shape){.k = t,
                   .v = t,
                   .d_k = d_k,
                   .d_v = d_v,
                   .heads = heads,
                   .gqa = 1,
                   .cells = cells,
                   .streams = streams,
                   .layers = 1};
}

const char *shape_text(const shape *s)
{
    static char text[160];
    snprintf(text, sizeof text, "k %s v %s d %d/%d%s heads %dx%d cells %d streams %d", kit_type_name(s->k),
             kit_type_name(s->v), s->d_k, s->d_v, s->v_in_k ? " (v in k)" : "", s->heads, s->gqa, s->cells,
             s->streams);
    return text;
}

kit_type cache_type(const cache *c, side x)
{
    return x == K ? c->s.k : c->s.v;
}

int cache_rows(const cache *c)
{
    return c->s.cells * c->s.streams;
}

static int n_sides(const cache *c)
{
    return c->s.v_in_k ? 1 : 2;
}

bool cache_alloc(cache *c, const shape *s, gg_buft *buft, int first_layer)
{
    struct ggml_init_params params = {.mem_size = 64 * gg.tensor_overhead(), .no_alloc = true};
    *c = (cache){.s = *s, .ctx = gg.init(params)};
    for (int x = K; x < n_sides(c); x++) {
        kit_type type = cache_type(c, (side)x);
        c->row[x] = s->heads * (x == K ? s->d_k : s->d_v);
        c->bytes[x] = kit_row_bytes(type, c->row[x]);
        for (int l = 0; l < s->layers; l++) {
            gg_tensor *t = gg.new_tensor_3d(c->ctx, kit_type_id(type), c->row[x], s->cells, s->streams);
            char name[32];
            snprintf(name, sizeof name, "cache_%c_l%d", x == K ? 'k' : 'v', first_layer + l);
            gg.set_name(t, name);
            c->side[x][l] = t;
        }
    }
    for (int x = K; x < n_sides(c); x++) {
        for (int l = 0; l < s->layers; l++) {
            for (int i = 0; i < s->streams; i++) {
                c->stream[x][l][i] = gg.view_2d(c->ctx, c->side[x][l], c->row[x], s->cells, c->bytes[x],
                                                (size_t)i * (size_t)s->cells * c->bytes[x]);
            }
        }
    }
    c->buffer = gg.backend_alloc_ctx_tensors_from_buft(c->ctx, buft);
    if (!kit_check(c->buffer != NULL, "no memory for a cache")) return false;
    gg.backend_buffer_clear(c->buffer, 0);
    return true;
}

void cache_close(cache *c)
{
    if (c->buffer) gg.backend_buffer_free(c->buffer);
    gg.free(c->ctx);
}

/* -------------------------------------------------------------------- step */

gg_tensor *cache_view(cache *c, gg_context *ctx, int layer, side x, int n_kv, int first_stream, int streams)
{
    int d = x == K ? c->s.d_k : c->s.d_v;
    size_t stream = (size_t)c->s.cells * c->bytes[x];
    return gg.view_4d(ctx, c->side[x][layer], d, c->s.heads, n_kv, streams,
                      kit_row_bytes(cache_type(c, x), d), c->bytes[x], stream, stream * (size_t)first_stream);
}

static gg_tensor *store(cache *c, kit_job *job, int layer, side x, gg_tensor *rows, gg_tensor *cells, int n)
{
    int d = x == K ? c->s.d_k : c->s.d_v;
    gg_tensor *to = c->side[x][layer];
    gg_tensor *from = gg.view_2d(job->ops, rows, c->row[x], n, (size_t)(d * c->s.heads) * sizeof(float), 0);
    if (c->s.streams > 1) to = gg.reshape_2d(job->ops, to, c->row[x], cache_rows(c));
    return gg.set_rows(job->ops, to, from, cells);
}

static gg_tensor *attend(cache *c, kit_job *job, int layer, const attention *a, gg_tensor *q, gg_tensor *mask,
                         gg_tensor *sinks)
{
    const shape *s = &c->s;
    int heads_q = s->heads * s->gqa;
    size_t head = (size_t)s->d_k * sizeof(float), token = head * (size_t)heads_q;
    gg_tensor *k = cache_view(c, job->ops, layer, K, a->n_kv, a->first_stream, a->streams), *v;
    if (s->v_in_k) {
        v = gg.view_4d(job->ops, k, s->d_v, s->heads, a->n_kv, a->streams, kit_row_bytes(s->k, s->d_k),
                       c->bytes[K], c->bytes[K] * (size_t)s->cells, 0);
    } else {
        v = cache_view(c, job->ops, layer, V, a->n_kv, a->first_stream, a->streams);
    }
    q = gg.view_4d(job->ops, q, s->d_k, heads_q, a->n_q, a->streams, head, token, token * (size_t)a->n_q, 0);
    q = gg.permute(job->ops, q, 0, 2, 1, 3);
    k = gg.permute(job->ops, k, 0, 2, 1, 3);
    v = gg.permute(job->ops, v, 0, 2, 1, 3);
    gg_tensor *out = gg.flash_attn_ext(job->ops, q, k, v, mask, a->scale, a->max_bias, a->softcap);
    if (sinks) gg.flash_attn_ext_add_sinks(out, sinks);
    if (a->most) gg.flash_attn_ext_set_n_kv_max(out, a->most);
    return out;
}

size_t attention_out(const shape *s, const attention *a)
{
    return (size_t)a->streams * (size_t)a->n_q * (size_t)(s->heads * s->gqa) * (size_t)s->d_v;
}

/* Not run: the device is shown the nodes and nothing is allocated. */
static int step(cache *c, int layer, const batch *b, const attention *a, float *out, bool run)
{
    const shape *s = &c->s;
    int heads_q = s->heads * s->gqa, status = -1;
    gg_tensor *cells = NULL, *rows[2] = {NULL, NULL}, *q = NULL, *mask = NULL, *sinks = NULL, *result = NULL;
    kit_job job;
    kit_job_begin(&job, kit.dev, kit.backend);
    if (b) {
        cells = kit_job_input(&job, I64, b->n, 1, 1, 1);
        for (int x = K; x < n_sides(c); x++) {
            rows[x] = kit_job_input(&job, F32, x == K ? s->d_k : s->d_v, s->heads, b->n, 1);
            kit_job_add(&job, store(c, &job, layer, (side)x, rows[x], cells, b->n));
        }
    }
    if (a) {
        q = kit_job_input(&job, F32, s->d_k, heads_q, a->n_q * a->streams, 1);
        if (a->mask)
            mask = kit_job_input(&job, F16, a->n_kv, a->n_q, a->mask_heads ? a->mask_heads : 1, a->streams);
        if (a->sinks) sinks = kit_job_input(&job, F32, heads_q, 1, 1, 1);
        result = attend(c, &job, layer, a, q, mask, sinks);
        kit_job_add(&job, result);
    }
    if (!run) {
        int refused = kit_job_refused(&job);
        kit_check(refused == 0, "%d nodes of a step are refused", refused);
        status = refused ? -1 : GG_SUCCESS;
    } else if (kit_job_ready(&job)) {
        if (b) gg.backend_tensor_set(cells, b->cell, 0, gg.nbytes(cells));
        if (b) gg.backend_tensor_set(rows[K], b->k, 0, gg.nbytes(rows[K]));
        if (rows[V]) gg.backend_tensor_set(rows[V], b->v, 0, gg.nbytes(rows[V]));
        if (a) gg.backend_tensor_set(q, a->q, 0, gg.nbytes(q));
        if (mask) gg.backend_tensor_set(mask, a->mask, 0, gg.nbytes(mask));
        if (sinks) gg.backend_tensor_set(sinks, a->sinks, 0, gg.nbytes(sinks));
        if (result) gg.backend_tensor_memset(result, 0xff, 0, gg.nbytes(result));
        status = kit_job_run(&job);
        if (result) gg.backend_tensor_get(result, out, 0, gg.nbytes(result));
    }
    kit_job_end(&job);
    return status;
}

int cache_step(cache *c, int layer, const batch *b, const attention *a, float *out)
{
    return step(c, layer, b, a, out, true);
}

int cache_write(cache *c, int layer, const batch *b)
{
    return step(c, layer, b, NULL, NULL, true);
}

bool cache_reserve(cache *c)
{
    const float none[1] = {0};
    const uint16_t no_mask[1] = {0};
    const int64_t cell[1] = {0};
    batch b = {.n = 16 * c->s.streams, .cell = cell, .k = none, .v = none};
    attention a = {
        .n_q = 16, .n_kv = c->s.cells, .streams = c->s.streams, .scale = 1, .q = none, .mask = no_mask};
    for (int l = 0; l < c->s.layers; l++) {
        if (step(c, l, &b, &a, NULL, false) != GG_SUCCESS) return false;
    }
    return true;
}

bool cache_open(cache *c, const shape *s)
{
    return cache_alloc(c, s, kit.buft, 0) && cache_reserve(c);
}

/* ---------------------------------------------------------------------- IO */

void cache_get(cache *c, int layer, side x, int row, int n, void *bytes)
{
    gg.backend_tensor_get(c->side[x][layer], bytes, (size_t)row * c->bytes[x], (size_t)n * c->bytes[x]);
}

void cache_set(cache *c, int layer, side x, int row, int n, const void *bytes)
{
    gg.backend_tensor_set(c->side[x][layer], bytes, (size_t)row * c->bytes[x], (size_t)n * c->bytes[x]);
}

bool cache_values_copied(cache *c, int layer, side x, float *out)
{
    int d = x == K ? c->s.d_k : c->s.d_v;
    kit_job job;
    kit_job_begin(&job, kit.dev, kit.backend);
    gg_tensor *all = gg.view_3d(job.ops, c->side[x][layer], d, c->s.heads, cache_rows(c),
                                kit_row_bytes(cache_type(c, x), d), c->bytes[x], 0);
    gg_tensor *f32 = gg.cast(job.ops, all, kit_type_id(F32));
    kit_job_add(&job, f32);
    bool ok = kit_job_ready(&job);
    if (ok) {
        ok = kit_check(kit_job_run(&job) == GG_SUCCESS, "CPY to f32 fails");
        gg.backend_tensor_get(f32, out, 0, gg.nbytes(f32));
    }
    kit_job_end(&job);
    return ok;
}

bool cache_values(cache *c, int layer, side x, float *out)
{
    if (kit.policy) return cache_values_copied(c, layer, x, out);
    uint8_t *bytes = kit_alloc((size_t)cache_rows(c), c->bytes[x]);
    cache_get(c, layer, x, 0, cache_rows(c), bytes);
    kit_decode(cache_type(c, x), bytes, out, c->row[x], cache_rows(c));
    free(bytes);
    return true;
}

bool cache_attend_exactly(cache *c, int layer, const attention *a, double *out)
{
    float *x[2] = {NULL, NULL};
    bool ok = true;
    for (int i = K; i < n_sides(c); i++) {
        x[i] = KIT_NEW(float, cache_rows(c) * c->row[i]);
        ok = ok && cache_values(c, layer, (side)i, x[i]);
    }
    if (ok) {
        values held = {.k = x[K], .v = x[V], .row_k = c->row[K], .row_v = c->row[V], .cells = c->s.cells};
        if (c->s.v_in_k) held.v = x[K], held.row_v = held.row_k;
        attend_exactly(&c->s, a, &held, out);
    }
    free(x[K]);
    free(x[V]);
    return ok;
}
