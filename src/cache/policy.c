/* SPDX-License-Identifier: MIT */
/* policy: the string a user writes, parsed. */
#include "cache/policy.h"

#include <stdio.h>

#define NAME_SIZE 32  /* longer than any codec name */
#define QUOTE_SIZE 48 /* of the user's text in a message; more is cut */

/* A part of the user's string. */
typedef struct piece {
    const char *at;
    size_t n;
} piece;

typedef struct parser {
    quire_policy policy;
    bool with_profile;
    bool has_window; /* the policy itself begins with a default there */
    char *why;
    size_t why_size;
} parser;

/* k8v4 and k4v4 are names for bytes on disk and never change. The others say what the user wants and may get
 * better codecs in a later version; the canonical form names what they stand for now. docs/fidelity.md has the evidence.
 * The sizes are those of layers with full attention: layers with a sliding window stay f16 unless window= is given. */
static const quire_preset presets[] = {
    {sizeof(quire_preset), "k8v4", "a8g64/a4g64", "a8g64/a4g64", "MLX's 8-bit K and 4-bit V; never changes"},
    {sizeof(quire_preset), "k4v4", "a4g64/a4g64", "a4g64/a4g64", "MLX's 4-bit K and V; never changes"},
    {sizeof(quire_preset), "safe", "r8/r8", "c:r8/r8",
     "approximates f16 in about half the size; some measured greedy texts differ within 100 tokens"},
    {sizeof(quire_preset), "balanced", "r6/r4", "c:r5/r4",
     "approximates f16 in about a third of the size; most measured greedy texts differ within 100 tokens"},
    {sizeof(quire_preset), "small", "r5/r3", "c:r4/r3",
     "approximates f16 in about a quarter of the size; most measured greedy texts differ within 100 tokens"},
};
#define N_PRESETS ((uint32_t)(sizeof presets / sizeof *presets))

uint32_t quire_preset_count(void)
{
    return N_PRESETS;
}

const quire_preset *quire_preset_at(uint32_t i)
{
    return i < N_PRESETS ? &presets[i] : NULL;
}

/* ---------------------------------------------------------------- messages */

/* Quotes a piece, cut short and with '?' for what a terminal might act on. */
static void quote(piece p, char out[QUOTE_SIZE])
{
    size_t room = QUOTE_SIZE - 3; /* two quotation marks and the terminator */
    bool cut = p.n > room;
    size_t n = cut ? room - 3 : p.n, o = 0;
    out[o++] = '"';
    for (size_t i = 0; i < n; i++) out[o++] = p.at[i] < ' ' || p.at[i] > '~' ? '?' : p.at[i];
    for (int i = 0; cut && i < 3; i++) out[o++] = '.';
    out[o++] = '"';
    out[o] = 0;
}

static quire_status complain(const parser *ps, piece p, const char *text)
{
    char quoted[QUOTE_SIZE];
    quote(p, quoted);
    if (ps->why_size) (void)snprintf(ps->why, ps->why_size, "%s%s", quoted, text);
    return QUIRE_EINVAL;
}

/* ------------------------------------------------------------------ pieces */

static piece piece_of(const char *text)
{
    return (piece){text, strlen(text)};
}

static bool is(piece p, const char *text)
{
    return p.n == strlen(text) && !memcmp(p.at, text, p.n);
}

/* Splits at the first `mark`: what is before it is returned, *rest gets what is after it. Without a mark all of p
 * is returned and rest->at is NULL. */
static piece split(piece p, char mark, piece *rest)
{
    const char *at = p.n ? memchr(p.at, mark, p.n) : NULL;
    if (!at) {
        *rest = (piece){NULL, 0};
        return p;
    }
    size_t before = (size_t)(at - p.at);
    *rest = (piece){at + 1, p.n - before - 1};
    return (piece){p.at, before};
}

/* ------------------------------------------------------------------ values */

static const quire_codec *find_codec(piece p)
{
    char name[NAME_SIZE] = {0};
    if (p.n >= sizeof name) return NULL;
    memcpy(name, p.at, p.n);
    return quire_codec_get(name);
}

static quire_status parse_codec(const parser *ps, piece item, piece p, const quire_codec **out)
{
    if (!p.n) return complain(ps, item, " lacks the name of a codec");
    const quire_codec *codec = find_codec(p);
    if (!codec) return complain(ps, p, " is not a codec");
    *out = codec;
    return QUIRE_OK;
}

/* c: names are an "r" codec's with the prefix, so what to write instead is always known. */
static quire_status check_v(const parser *ps, piece item, const quire_codec *k, const quire_codec *v)
{
    char text[128];
    if (!(v->info.flags & QUIRE_CODEC_CALIBRATED)) return QUIRE_OK;
    (void)snprintf(text, sizeof text, ": c: codecs are for K only; write %s%s%s",
                   k ? k->info.name : "v=", k ? "/" : "", v->info.name + strlen("c:"));
    return complain(ps, item, text);
}

/* C or C/C. item: what a message shows. */
static quire_status parse_pair(const parser *ps, piece item, piece p, quire_codec_pair *out)
{
    piece second, first = split(p, '/', &second);
    quire_codec_pair pair = {NULL, NULL};
    quire_status status = parse_codec(ps, item, first, &pair.k);
    if (!status) status = second.at ? parse_codec(ps, item, second, &pair.v) : QUIRE_OK;
    if (status) return status;
    if (!pair.v) pair.v = pair.k;
    status = check_v(ps, item, pair.k, pair.v);
    if (!status) *out = pair;
    return status;
}

/* N:C or N:C/C. Only the first colon counts: codec names have their own. */
static quire_status parse_counted(const parser *ps, piece item, piece p, uint32_t max, uint32_t *n,
                                  quire_codec_pair *pair)
{
    piece codecs, digits = split(p, ':', &codecs);
    uint32_t value = 0;
    char text[96];
    if (!codecs.at) return complain(ps, item, " lacks a number and a colon before the codec");
    for (size_t i = 0; i < digits.n; i++) {
        if (digits.at[i] < '0' || digits.at[i] > '9')
            return complain(ps, item, ": the part before the first colon is not a number");
        if (value <= max) value = value * 10 + (uint32_t)(digits.at[i] - '0');
    }
    if (value < 1 || value > max) {
        (void)snprintf(text, sizeof text, ": the number before the colon must be 1 to %u", (unsigned)max);
        return complain(ps, item, text);
    }
    quire_status status = parse_pair(ps, item, codecs, pair);
    if (!status) *n = value;
    return status;
}

/* ------------------------------------------------------------------- items */

/* Preset or pair: the part that may stand first. */
static quire_status parse_first(parser *ps, piece item)
{
    for (uint32_t i = 0; i < N_PRESETS; i++) {
        if (!is(item, presets[i].name)) continue;
        piece pair = piece_of(ps->with_profile ? presets[i].with_profile : presets[i].without);
        return parse_pair(ps, pair, pair, &ps->policy.main);
    }
    if (!memchr(item.at, '/', item.n) && !find_codec(item))
        return complain(
            ps, item,
            " is not a preset or a codec; the presets are safe, balanced, small, k8v4 and k4v4, and "
            "\"quire codecs\" lists the codecs");
    return parse_pair(ps, item, item, &ps->policy.main);
}

static quire_status parse_side(const parser *ps, piece item, piece value, quire_side side,
                               quire_codec_pair *pair)
{
    const quire_codec *codec = NULL;
    quire_status status = parse_codec(ps, item, value, &codec);
    if (!status && side == QUIRE_V) status = check_v(ps, item, NULL, codec);
    if (status) return status;
    if (side == QUIRE_K)
        pair->k = codec;
    else
        pair->v = codec;
    return QUIRE_OK;
}

/* sides: what k= and v= gave so far. They are applied at the end, because they win over the first part. */
static quire_status parse_item(parser *ps, piece item, quire_codec_pair *sides)
{
    quire_policy *po = &ps->policy;
    piece value, key = split(item, '=', &value);
    if (!value.at)
        return complain(ps, item,
                        " is not an item such as k=r8; only the first part may be a preset or a codec");
    bool k = is(key, "k"), v = is(key, "v"), window = is(key, "window"), edge = is(key, "edge"),
         sinks = is(key, "sinks");
    if ((k && sides->k) || (v && sides->v) || (window && ps->has_window) || (edge && po->edge_layers) ||
        (sinks && po->sink_tokens))
        return complain(ps, item, " has a key that was already given");
    if (k) return parse_side(ps, item, value, QUIRE_K, sides);
    if (v) return parse_side(ps, item, value, QUIRE_V, sides);
    if (edge) return parse_counted(ps, item, value, QUIRE_POLICY_EDGE, &po->edge_layers, &po->edge);
    if (sinks) return parse_counted(ps, item, value, QUIRE_POLICY_SINKS, &po->sink_tokens, &po->sinks);
    if (!window) return complain(ps, item, " has an unknown key; the keys are k, v, window, edge and sinks");
    ps->has_window = true;
    return parse_pair(ps, item, value, &po->window);
}

/* Names are shorter than NAME_SIZE, so that four pairs, the keys and two numbers fit by far. */
static void write_canonical(quire_policy *po)
{
    char *at = po->canonical;
    size_t size = sizeof po->canonical, used;
    const quire_codec *f16 = quire_codec_get("f16");
    used = (size_t)snprintf(at, size, "%s/%s", po->main.k->info.name, po->main.v->info.name);
    if (po->window.k != f16 || po->window.v != f16)
        used += (size_t)snprintf(at + used, size - used, ",window=%s/%s", po->window.k->info.name,
                                 po->window.v->info.name);
    if (po->edge_layers)
        used += (size_t)snprintf(at + used, size - used, ",edge=%u:%s/%s", (unsigned)po->edge_layers,
                                 po->edge.k->info.name, po->edge.v->info.name);
    if (po->sink_tokens)
        (void)snprintf(at + used, size - used, ",sinks=%u:%s/%s", (unsigned)po->sink_tokens,
                       po->sinks.k->info.name, po->sinks.v->info.name);
}

/* ------------------------------------------------------------------- parse */

static quire_status parse(parser *ps, piece all)
{
    quire_policy *po = &ps->policy;
    quire_codec_pair sides = {NULL, NULL};
    piece rest = all;
    quire_status status = QUIRE_OK;
    po->window.k = po->window.v = quire_codec_get("f16");

    if (memchr(all.at, ' ', all.n))
        return complain(ps, all, " has a space; a policy must not contain spaces");
    for (bool first = true; rest.at && !status; first = false) {
        piece item = split(rest, ',', &rest);
        if (!item.n)
            status = complain(ps, all, " has an empty item");
        else if (first && !memchr(item.at, '=', item.n))
            status = parse_first(ps, item);
        else
            status = parse_item(ps, item, &sides);
    }
    if (status) return status;
    if (sides.k) po->main.k = sides.k;
    if (sides.v) po->main.v = sides.v;
    if (!po->main.k)
        return complain(ps, all, " gives no codec for K; add k= or begin with a preset or a codec");
    if (!po->main.v)
        return complain(ps, all, " gives no codec for V; add v= or begin with a preset or a codec");
    write_canonical(po);
    return QUIRE_OK;
}

quire_status quire_policy_parse(quire_policy *policy, const char *text, bool with_profile, char *why,
                                size_t why_size)
{
    parser ps = {.with_profile = with_profile, .why = why, .why_size = why_size};
    const char *fault = NULL;
    if (!text)
        fault = "no policy was given";
    else if (!text[0])
        fault = "the policy is empty";
    else if (!memchr(text, 0, QUIRE_POLICY_MAX))
        fault = "the policy has more than 511 characters";
    if (fault) {
        if (why_size) (void)snprintf(why, why_size, "%s", fault);
        return QUIRE_EINVAL;
    }
    quire_status status = parse(&ps, piece_of(text));
    if (!status) *policy = ps.policy;
    return status;
}
