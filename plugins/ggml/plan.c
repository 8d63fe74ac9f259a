/* SPDX-License-Identifier: MIT */
/* Which codec each tensor of a model gets, and where its tiles lie. Done once, at the first write. */
#define _DEFAULT_SOURCE
#include "kv.h"
#include "marks.h"
#include "config.h"
#include "device.h"
#include "stat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ------------------------------------------------------------------- geometry */

struct shapes {
    quire_layer *layers;
    uint32_t n_layers;
    uint32_t most_cells;
};

#define EACH_KV(context, kv)                                          \
    for (uint32_t b_ = 0; b_ < (context)->n_buffers; b_++)            \
        for (uint32_t i_ = 0; i_ < (context)->buffer[b_]->n_kv; i_++) \
            if ((kv = (context)->buffer[b_]->kv[i_])->owner->state == KV_OPEN && kv->d && !kv->plain)

/*
 * The host tells no windows. It keeps window layers in a second buffer with as many cells as they need, which in short
 * contexts is as many as the others have. A large second buffer of the same size means that the host was told to keep
 * all cells (--swa-full): then there is no small ring, and the layer is like any other.
 */
enum { SHORT_CONTEXT = 4096 };

static bool is_window(const struct kv_context *c, const struct shapes *s, const struct kv *kv)
{
    return kv->cells < s->most_cells || (kv->owner != c->buffer[0] && kv->cells <= SHORT_CONTEXT);
}

static bool gather_shapes(struct kv_context *c, struct shapes *s)
{
    struct kv *kv;
    EACH_KV (c, kv) {
        if (kv->layer >= s->n_layers) s->n_layers = kv->layer + 1;
        if (kv->cells > s->most_cells) s->most_cells = kv->cells;
    }
    s->layers = calloc(s->n_layers ? s->n_layers : 1, sizeof *s->layers);
    if (!s->layers) return false;
    quire_layer some = {0};
    EACH_KV (c, kv) {
        quire_layer *l = &s->layers[kv->layer];
        if (kv->side == QUIRE_V && !l->d_v) l->d_v = kv->d;
        if (kv->side == QUIRE_V || l->d_k) continue; /* the first cache of a layer is its main one */
        *l = (quire_layer){.n_q_heads = kv->n_q_heads,
                           .n_kv_heads = kv->n_heads,
                           .d_k = kv->d,
                           .d_v = kv->d_v ? kv->d_v : l->d_v,
                           .v_in_k = kv->d_v > 0,
                           .window = is_window(c, s, kv) ? kv->cells : 0};
    }
    /* Layers that are not ours, or of which only one side is: any shape stands for what is missing. */
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (s->layers[i].d_k && s->layers[i].d_v) some = s->layers[i];
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (!s->layers[i].d_k || !s->layers[i].d_v) s->layers[i] = some;
    return true;
}

static quire_geometry geometry_of(const struct shapes *s)
{
    return (quire_geometry){.size = sizeof(quire_geometry),
                            .n_layers = s->n_layers,
                            .layer_stride = sizeof(quire_layer),
                            .layers = s->layers};
}

/* --------------------------------------------------------------------- policy */

static quire_plan *try_policy(const struct shapes *s, const char *policy)
{
    char why[512];
    quire_plan *plan = NULL;
    quire_geometry geometry = geometry_of(s);
    quire_plan_options options = {.size = sizeof(quire_plan_options),
                                  .profile = config.loaded_profile,
                                  .message = why,
                                  .message_size = sizeof why};
    quire_status status = quire_plan_create(&plan, &geometry, policy, &options);
    if (status)
        say_trouble("policy %s cannot be used for this model: %s; the cache keeps its declared types", policy,
                    *why ? why : quire_status_text(status));
    return plan;
}

static const char *codec_of(const quire_plan *plan, const struct kv *kv)
{
    quire_plan_layer info = {.size = sizeof info};
    if (quire_plan_layer_info(plan, kv->layer, &info)) return NULL;
    return kv->side == QUIRE_K ? info.k : info.v;
}

/*
 * Window layers are small floats unless the policy says otherwise; the floats are the declared ones. If the declared
 * type is quantized, a float row has no room in it, and they get the codecs of the other layers.
 */
static bool add_window(char *policy, size_t size, const quire_plan *plan, struct kv_context *c,
                       const struct shapes *s)
{
    const char *side[2] = {NULL, NULL};
    struct kv *kv;
    EACH_KV (c, kv)
        if (!side[kv->side] && (host_is_float(kv->type) || !is_window(c, s, kv)))
            side[kv->side] = host_is_float(kv->type) ? host_codec(kv->type) : codec_of(plan, kv);
    if (!side[QUIRE_K]) return true;
    if (!side[QUIRE_V]) side[QUIRE_V] = host_codec(host.type[TYPE_F16]);
    size_t n = strlen(policy);
    return snprintf(policy + n, size - n, ",window=%s/%s", side[QUIRE_K], side[QUIRE_V]) < (int)(size - n);
}

/* A codec has room in a declared row if it is that float row, or leaves space for the mark. A quantized declared type
 * as codec is not: without a policy it is stock's, and needs no mark. */
static bool fits(const struct kv *kv, const char *codec)
{
    const char *declared = host_codec(kv->type);
    if (host_is_float(kv->type) && !strcmp(codec, declared)) return true;
    return quire_codec_row_bytes(codec, kv->d) * kv->n_heads + MARK_BYTES <= kv->row_bytes;
}

/* Says why a tensor cannot have its codec. */
static bool can_hold(const struct kv *kv, const char *codec)
{
    const char *type = host.ggml_type_name(kv->type);
    if (codec && !strncmp(codec, "c:", 2) && !host_is_float(kv->type)) {
        say_trouble(
            "policy %s: K is declared as %s, which llama.cpp rotates, but a profile is made for rows that are not rotated; "
            "the cache keeps its declared types; use -ctk f16",
            config.kv, type);
        return false;
    }
    if (codec && fits(kv, codec)) return true;
    say_trouble(
        "policy %s: a row of %s in %s needs %zu bytes and a mark of %u bytes, but the declared type %s has %zu bytes; "
        "the cache keeps its declared types; use -ctk f16 -ctv f16, which have room for every policy",
        config.kv, kv->name, codec ? codec : "?",
        codec ? quire_codec_row_bytes(codec, kv->d) * kv->n_heads : 0, MARK_BYTES, type, kv->row_bytes);
    return false;
}

/* NULL: no policy, or one that this model cannot have. */
static quire_plan *plan_by_policy(struct kv_context *c, const struct shapes *s)
{
    char policy[512];
    struct kv *kv;
    if (!config.kv || !s->n_layers) return NULL;
    if (snprintf(policy, sizeof policy, "%s", config.kv) >= (int)sizeof policy) return NULL;
    quire_plan *plan = try_policy(s, policy);
    if (plan && !strstr(policy, "window=") && add_window(policy, sizeof policy, plan, c, s)) {
        quire_plan_destroy(plan);
        plan = try_policy(s, policy);
    }
    EACH_KV (c, kv)
        if (plan && !can_hold(kv, codec_of(plan, kv))) {
            quire_plan_destroy(plan);
            plan = NULL;
        }
    return plan;
}

/* --------------------------------------------------------------------- layout */

static bool give_format(struct kv *kv, const char *codec)
{
    quire_tile_format_options options = {.size = sizeof(quire_tile_format_options),
                                         .side = kv->side,
                                         .d = kv->d,
                                         .d_v = kv->d_v,
                                         .profile = config.loaded_profile,
                                         .layer = kv->layer};
    if (!codec || quire_tile_format_create(&kv->format, codec, &options)) return false;
    kv->codec = codec;
    kv->tile_bytes = quire_tile_bytes(kv->format);
    kv->head_bytes = quire_codec_row_bytes(codec, kv->d);
    kv->marked = strcmp(codec, host_codec(kv->type));
    kv->mark = mark_of(kv->format);
    return true;
}

/* What is left without a format is not attended by us; whoever reads it needs the bytes. all: the others too. */
static void release_rest(struct kv_buffer *b, bool all)
{
    for (uint32_t i = 0; i < b->n_kv; i++)
        if ((all || !b->kv[i]->format) && !b->kv[i]->plain) context_release(b->kv[i]);
}

/* Without address space for the tiles all of it is plain: the bytes that the host declared are there already. */
static void lay_out(struct kv_buffer *b)
{
    uint32_t streams = 1;
    for (uint32_t i = 0; i < b->n_kv; i++) {
        struct kv *kv = b->kv[i];
        if (!kv->format) continue;
        uint32_t pages = (kv->cells + CELLS - 1) / CELLS;
        if (pages > b->stream_pages) b->stream_pages = pages;
        if (kv->streams > streams) streams = kv->streams;
        kv->page_offset = b->page_bytes;
        b->page_bytes += kv->n_heads * kv->tile_bytes;
    }
    b->pages_size = (size_t)b->stream_pages * streams * b->page_bytes;
    b->pages = kv_reserve(b->pages_size);
    if (!b->pages) {
        say_trouble(
            "could not reserve address space for %zu bytes of cache, so it is stored as without Quire; use a smaller -c",
            b->pages_size);
        release_rest(b, true);
        return;
    }
    /* Conversations do not belong into core dumps. It also marks the memory in smaps (dd), where it can be counted. */
    madvise(b->pages, b->pages_size, MADV_DONTDUMP);
    b->state = KV_SETTLED;
}

/* --------------------------------------------------------------------- report */

struct text {
    char *bytes;
    size_t n;
};

static quire_status add_text(void *ctx, const void *bytes, size_t n)
{
    struct text *t = ctx;
    char *more = realloc(t->bytes, t->n + n + 1);
    if (!more) return QUIRE_EIO;
    memcpy(more + t->n, bytes, n);
    t->bytes = more;
    t->n += n;
    more[t->n] = 0;
    return QUIRE_OK;
}

/* What there is to say without a policy. */
static void describe_declared(struct kv_context *c, struct text *t)
{
    char line[256];
    double bytes = 0, floats = 0;
    uint32_t n = 0;
    const struct kv *k = NULL, *v = NULL, *kv;
    EACH_KV (c, kv) {
        bytes += (double)kv->row_bytes;
        floats += 2.0 * kv->row;
        n += kv->side == QUIRE_K;
        if (kv->side == QUIRE_K)
            k = kv;
        else
            v = kv;
    }
    if (!k) return;
    int size =
        snprintf(line, sizeof line,
                 "declared types are used unchanged: K %s V %s, %u layers, %.0f bytes/token, %.1f%% of f16\n",
                 host.ggml_type_name(k->type), v ? host.ggml_type_name(v->type) : "in K", n, bytes,
                 100 * bytes / floats);
    if (size > 0 && size < (int)sizeof line) add_text(t, line, (size_t)size);
}

/* Whether a layer is there, or one of its caches is in tiles. */
static bool has_layer(const struct kv_context *c, uint32_t layer, bool in_tiles)
{
    for (uint32_t i = 0; i < c->n_buffers; i++)
        for (uint32_t j = 0; j < c->buffer[i]->n_kv; j++) {
            const struct kv *kv = c->buffer[i]->kv[j];
            if (kv->layer == layer && (kv->format || !in_tiles)) return true;
        }
    return false;
}

/* How many layers are plain while others are not. If all are, there is nothing to tell. */
static void describe_plain(struct kv_context *c, struct text *t)
{
    char line[128];
    uint32_t n = 0, in_tiles = 0, end = 0;
    for (uint32_t i = 0; i < c->n_buffers; i++)
        for (uint32_t j = 0; j < c->buffer[i]->n_kv; j++)
            if (c->buffer[i]->kv[j]->layer >= end) end = c->buffer[i]->kv[j]->layer + 1;
    for (uint32_t layer = 0; layer < end; layer++) {
        n += has_layer(c, layer, false);
        in_tiles += has_layer(c, layer, true);
    }
    if (!in_tiles && t->bytes) t->bytes[t->n = 0] = 0;
    if (!in_tiles || in_tiles == n) return;
    int size = snprintf(line, sizeof line, "%u of %u layers are stored as without Quire\n", n - in_tiles, n);
    if (size > 0 && size < (int)sizeof line) add_text(t, line, (size_t)size);
}

void plan_tell(struct kv_context *c)
{
    for (char *line = c->report, *end; line && *line; line = end + 1) {
        end = strchr(line, '\n');
        if (!end) break;
        say_info("%.*s", (int)(end - line), line);
    }
    free(c->report);
    c->report = NULL;
}

/* ----------------------------------------------------------------------- plan */

/* The host rotates rows of quantized types, and a profile is made for rows as they are. */
static void start_recorder(struct kv_context *c, const struct shapes *s)
{
    struct kv *kv;
    quire_geometry geometry = geometry_of(s);
    if ((!config.profile_record && !config.rows_record) || !s->n_layers) return;
    EACH_KV (c, kv)
        if (kv->side == QUIRE_K && !host_is_float(kv->type)) {
            say_trouble("K is declared as %s, which llama.cpp rotates; record with -ctk f16",
                        host.ggml_type_name(kv->type));
            return;
        }
    c->recorder = recorder_create(&geometry);
}

bool plan_context(struct kv_context *c)
{
    struct shapes s = {0};
    struct text report = {0};
    struct kv *kv;
    if (!gather_shapes(c, &s)) return false;
    quire_plan *plan = plan_by_policy(c, &s);
    start_recorder(c, &s);
    EACH_KV (c, kv)
        if (!give_format(kv, plan ? codec_of(plan, kv) : host_codec(kv->type)))
            say_trouble("%s: Quire cannot store %u heads of %u values; the tensor keeps its declared type",
                        kv->name, kv->n_heads, kv->d);
    for (uint32_t i = 0; i < c->n_buffers; i++)
        if (c->buffer[i]->state == KV_OPEN) release_rest(c->buffer[i], false);
    if (plan)
        report_policy(c, plan, add_text, &report);
    else
        describe_declared(c, &report);
    for (uint32_t i = 0; i < c->n_buffers; i++)
        if (c->buffer[i]->state == KV_OPEN) lay_out(c->buffer[i]);
    stat_attach(c, plan ? quire_plan_policy(plan) : "declared");
    for (uint32_t i = 0; i < c->n_buffers; i++)
        for (uint32_t j = 0; j < c->buffer[i]->n_kv; j++)
            if (c->buffer[i]->kv[j]->format) state_import(c->buffer[i]->kv[j]);
    describe_plain(c, &report);
    c->report = report.bytes;
    c->settled = true;
    quire_plan_destroy(plan);
    free(s.layers);
    return true;
}
