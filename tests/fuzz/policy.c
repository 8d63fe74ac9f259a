/* SPDX-License-Identifier: MIT */
/* Any bytes as a policy: the parser must survive them, and what it accepts must have a stable canonical form and
 * give a plan or a clean refusal. */
#include "support/fuzz.h"

#include "cache/policy.h"

#include <stdlib.h>

static void check(bool ok)
{
    if (!ok) abort();
}

static bool same_pair(quire_codec_pair a, quire_codec_pair b)
{
    return a.k == b.k && a.v == b.v;
}

static bool is_printable(const char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~') return false;
    return true;
}

static quire_status count_bytes(void *ctx, const void *bytes, size_t n)
{
    (void)bytes;
    *(size_t *)ctx += n;
    return QUIRE_OK;
}

static void parse(const char *text, bool with_profile)
{
    quire_policy policy, again;
    char why[256] = "";
    if (quire_policy_parse(&policy, text, with_profile, why, sizeof why)) {
        check(why[0] && is_printable(why));
        return;
    }
    /* Only presets look at the profile, and a canonical form has none. */
    check(!quire_policy_parse(&again, policy.canonical, !with_profile, why, sizeof why));
    check(!strcmp(policy.canonical, again.canonical));
    check(same_pair(policy.main, again.main) && same_pair(policy.window, again.window) &&
          same_pair(policy.edge, again.edge) && same_pair(policy.sinks, again.sinks));
    check(policy.edge_layers == again.edge_layers && policy.sink_tokens == again.sink_tokens);
}

/* Full and window layers, an odd head size, a short last group, V inside K. */
static void plan(const char *text)
{
    static const quire_layer layers[] = {
        {4, 2, 64, 64, 0, 0},   {4, 2, 80, 33, 0, 0}, {4, 2, 64, 64, 100, 0},
        {4, 1, 192, 128, 0, 1}, {1, 1, 1, 1, 0, 0},
    };
    char message[256] = "";
    quire_geometry geometry = {sizeof(quire_geometry), .n_layers = 5, .layer_stride = sizeof(quire_layer),
                               .layers = layers};
    quire_plan_options options = {sizeof(quire_plan_options), .message = message,
                                  .message_size = sizeof message};
    quire_plan *made = NULL;
    size_t bytes = 0;
    if (quire_plan_create(&made, &geometry, text, &options)) {
        check(!made && message[0] && is_printable(message));
        return;
    }
    check(!quire_plan_describe(made, count_bytes, &bytes) && bytes);
    check(quire_plan_fingerprint(made) && quire_plan_n_groups(made) == 2 && quire_plan_page_bytes(made, 0));
    quire_plan_destroy(made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1); /* exactly as long as it is, so that reading past its end is seen */
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    parse(text, false);
    parse(text, true);
    plan(text);
    free(text);
    return 0;
}
