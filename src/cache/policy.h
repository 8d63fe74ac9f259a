/* SPDX-License-Identifier: MIT */
/* policy: the string a user writes, parsed. No memory is allocated. */
#ifndef QUIRE_CACHE_POLICY_H
#define QUIRE_CACHE_POLICY_H

#include "codec/codec.h"

#define QUIRE_POLICY_MAX 512       /* longest policy string and longest canonical form, terminator included */
#define QUIRE_POLICY_EDGE 4096u    /* largest N of edge= */
#define QUIRE_POLICY_SINKS 100000u /* largest N of sinks= */

typedef struct quire_codec_pair {
    const quire_codec *k, *v; /* NULL: not given */
} quire_codec_pair;

typedef struct quire_policy {
    quire_codec_pair main;            /* both always set */
    quire_codec_pair window;          /* sliding-window layers; both always set, default f16/f16 */
    quire_codec_pair edge;            /* first and last edge_layers full-attention layers */
    quire_codec_pair sinks;           /* first sink_tokens tokens of full-attention layers */
    uint32_t edge_layers;             /* 0: no edge= */
    uint32_t sink_tokens;             /* 0: no sinks= */
    char canonical[QUIRE_POLICY_MAX]; /* parsing it gives this policy again, with or without a profile */
} quire_policy;

/*
 * The grammar is in quire.h. Codecs on the V side are never calibrated; whether a profile is there for those
 * on the K side is for the plan to check.
 * with_profile: presets may choose calibrated codecs. EINVAL: *policy is untouched and why gets one sentence of
 * printable characters, cut to why_size (why may be NULL if that is 0).
 */
quire_status quire_policy_parse(quire_policy *policy, const char *text, bool with_profile, char *why,
                                size_t why_size);

#endif
