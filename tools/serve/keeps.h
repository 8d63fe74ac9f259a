/* SPDX-License-Identifier: MIT */
/* keeps: where the prompts of each tenant are kept: one prefix for each owner of slots. Several threads may call everything here. */
#ifndef QUIRE_TOOLS_SERVE_KEEPS_H
#define QUIRE_TOOLS_SERVE_KEEPS_H

#include "serve/prefix.h"
#include "serve/tenants.h"

#include <stdbool.h>

typedef struct keeps keeps;

/* Without tenants all requests have this owner. */
enum { OWNER_ALL = 1 };

keeps *keeps_create(const prefix_options *options, bool has_tenants);
void keeps_destroy(keeps *k);

/* The server is ready, and slot 0 is free. false: message has one sentence, and its prompts cannot be kept. */
bool keeps_learn(keeps *k, char *message, size_t size);
bool keeps_can_keep(keeps *k); /* it has learnt it */
/* The server was learnt, and its model has windows or recurrent layers: see prefix_has_states(). */
bool keeps_have_states(keeps *k);
/* NULL: nothing can be kept. What was made stays until the end. */
prefix *keeps_of(keeps *k, uint32_t owner);
/* The same for a tenant, whose pages are opened if they are not yet. */
prefix *keeps_of_tenant(keeps *k, const tenant *t);

#endif
