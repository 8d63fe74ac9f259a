/* SPDX-License-Identifier: MIT */
/* recommend: which preset a model should have. `quire plan` recommends by it, `quire run` has its default from it. */
#ifndef QUIRE_TOOLS_RECOMMEND_H
#define QUIRE_TOOLS_RECOMMEND_H

#include "llama/model.h"

/* The rule, as both commands explain it. */
#define RECOMMEND_RULE                                                                                                   \
    "The rule: safe is recommended, and quire run uses safe unless you choose another policy. If safe does not fit\n"    \
    "into the memory, the first of balanced and small that fits is recommended. These two change texts more often, so\n" \
    "quire run takes them only if you ask for them, by name or with --kv fit, which takes the recommendation.\n"         \
    "A preset that Quire warns of for this model is recommended only if no other fits."

/* The option of both that says how much memory there is; for a table of tool_option. */
#define RECOMMEND_RAM_OPTION(type, member)                                                                    \
    {                                                                                                         \
        "--ram", "BYTES",                                                                                     \
            "the memory for the model and its cache, as in 16G (default: what the system says is available\n" \
            "now; it does not see the limit of a container)",                                                 \
            TOOL_BYTES(type, member, 1, UINT64_C(1) << 50)                                                    \
    }

/* From the most faithful to the smallest. */
enum { RECOMMEND_DEFAULT, RECOMMEND_SMALLEST = 2, RECOMMEND_PRESETS };
extern const char *const recommend_presets[RECOMMEND_PRESETS];

/* What a preset takes for a model, and whether a plan of it warns. */
typedef struct recommend_offer {
    double bytes;
    bool is_warned;
} recommend_offer;

/* The rule itself: an index of recommend_presets. If none fits it is the smallest. */
int recommend_choose(const recommend_offer offers[RECOMMEND_PRESETS], double room);

typedef struct recommendation {
    const char *policy;
    int preset; /* its index */
    bool fits;
    double room;                               /* bytes for the cache */
    recommend_offer offers[RECOMMEND_PRESETS]; /* of all presets */
} recommendation;

/*
 * Plans all presets for a model and applies the rule. false: a preset cannot be planned for it, or the profile is of
 * another model; `why` has one sentence.
 */
bool recommend(recommendation *out, const model *m, const model_use *use, const quire_profile *profile,
               double room, char *why, size_t size);

/*
 * Bytes for the cache beside the model. ram: what both may take, or 0: what the system says is available now
 * (system_free_bytes()).
 */
double recommend_room(const model *m, uint64_t ram);

#endif
