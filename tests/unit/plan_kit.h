/* SPDX-License-Identifier: MIT */
/* What the tests of plans share. Comes after cmocka.h. */
#ifndef QUIRE_TESTS_PLAN_KIT_H
#define QUIRE_TESTS_PLAN_KIT_H

#include "quire/quire.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static inline quire_geometry uniform(uint32_t n_layers, uint32_t n_q, uint32_t n_kv, uint32_t d)
{
    return (quire_geometry){sizeof(quire_geometry),
                            .n_layers = n_layers,
                            .n_q_heads = n_q,
                            .n_kv_heads = n_kv,
                            .d_k = d,
                            .d_v = d};
}

static inline quire_geometry per_layer(const quire_layer *layers, uint32_t n)
{
    return (quire_geometry){sizeof(quire_geometry), .n_layers = n, .layer_stride = sizeof(quire_layer),
                            .layers = layers};
}

static inline quire_plan *make(const quire_geometry *geometry, const char *policy)
{
    quire_plan *plan = NULL;
    char message[256] = "untouched";
    quire_plan_options options = {sizeof(quire_plan_options), .message = message,
                                  .message_size = sizeof message};
    if (quire_plan_create(&plan, geometry, policy, &options)) fail_msg("%s: %s", policy, message);
    assert_string_equal(message, "");
    return plan;
}

#endif
