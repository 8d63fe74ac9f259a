/* SPDX-License-Identifier: MIT */
/* keeps: where the prompts of each tenant are kept: one prefix for each owner of slots. Several threads may call everything here. */
#ifndef QUIRE_TOOLS_SERVE_KEEPS_H
#define QUIRE_TOOLS_SERVE_KEEPS_H

#include "serve/prefix.h"
#include "serve/tenants.h"
#include "serve/watched.h"

#include <stdbool.h>

typedef struct keeps keeps;

/* Without tenants all requests have this owner. */
enum { OWNER_ALL = 1 };

/* files: on which rows depend, which must stay as they are; or NULL. */
keeps *keeps_create(const prefix_options *options, bool has_tenants, const watched *files);
void keeps_destroy(keeps *k);

/*
 * The server is ready, and slot 0 is free: each time that it was started. false: message has one sentence, and its prompts cannot be kept,
 * because it cannot be learnt or is not what it was.
 */
bool keeps_learn(keeps *k, char *message, size_t size);
/* The server has ended: nothing is kept or restored before the next was learnt. */
void keeps_forget(keeps *k);
/* The tenants have changed: nothing more is kept for those that are not among them. */
void keeps_leave(keeps *k, tenants *now);
bool keeps_can_keep(keeps *k); /* it has learnt it */
/* The server was learnt, and its model has windows or recurrent layers: see prefix_has_states(). */
bool keeps_have_states(keeps *k);
/* prefix_root(), which servers have in common that share pages. false: nothing was learnt, or each tenant has another one. */
bool keeps_root(keeps *k, uint8_t root[32]);
/* NULL: nothing can be kept. What was made stays until the end. */
prefix *keeps_of(keeps *k, uint32_t owner);
/* The same for a tenant, whose pages are opened if they are not yet. */
prefix *keeps_of_tenant(keeps *k, const tenant *t);

#endif
