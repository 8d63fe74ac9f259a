/* SPDX-License-Identifier: MIT */
#include "serve/keeps.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct keep {
    struct keep *next;
    uint32_t owner;
    prefix *prefix; /* NULL: it could not be made, and is not tried again */
} keep;

struct keeps {
    prefix_options o;
    bool has_tenants;
    const watched *files;
    atomic_bool is_stopped; /* the server of now is not learnt, or differs from the first */
    pthread_mutex_t lock;   /* of what follows */
    prefix *first;          /* of all, or of nobody if there are tenants */
    keep *more;
};

keeps *keeps_create(const prefix_options *options, bool has_tenants, const watched *files)
{
    keeps *k = (keeps *)calloc(1, sizeof *k);
    if (!k) return NULL;
    k->o = *options;
    k->o.is_stopped = &k->is_stopped;
    k->has_tenants = has_tenants;
    k->files = files;
    atomic_init(&k->is_stopped, true);
    pthread_mutex_init(&k->lock, NULL);
    return k;
}

void keeps_destroy(keeps *k)
{
    if (!k) return;
    for (keep *one = k->more, *next; one; one = next) {
        next = one->next;
        prefix_destroy(one->prefix);
        free(one);
    }
    prefix_destroy(k->first);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

/* Only the thread of the engine sets what was learnt. */
static bool learn(keeps *k, char *message, size_t size)
{
    const char *changed = k->files ? watched_change(k->files) : NULL;
    if (changed) {
        snprintf(message, size, "%s is not as it was when quire serve was started; start quire serve again",
                 changed);
        return false;
    }
    if (k->first) {
        const char *wrong = prefix_differs(k->first);
        if (wrong) snprintf(message, size, "%s", wrong);
        return !wrong;
    }
    prefix *p = prefix_create(&k->o, message, size);
    pthread_mutex_lock(&k->lock);
    k->first = p;
    pthread_mutex_unlock(&k->lock);
    return p;
}

bool keeps_learn(keeps *k, char *message, size_t size)
{
    if (!k->o.store) return true;
    bool good = learn(k, message, size);
    atomic_store(&k->is_stopped, !good);
    return good;
}

void keeps_forget(keeps *k)
{
    atomic_store(&k->is_stopped, true);
}

void keeps_leave(keeps *k, tenants *now)
{
    pthread_mutex_lock(&k->lock);
    for (const keep *one = k->more; one; one = one->next)
        if (one->prefix) prefix_set_left(one->prefix, !tenants_has(now, one->owner));
    pthread_mutex_unlock(&k->lock);
}

bool keeps_can_keep(keeps *k)
{
    pthread_mutex_lock(&k->lock);
    bool can = k->first && !atomic_load(&k->is_stopped);
    pthread_mutex_unlock(&k->lock);
    return can;
}

bool keeps_root(keeps *k, uint8_t root[32])
{
    pthread_mutex_lock(&k->lock);
    bool has = k->first && !k->has_tenants && prefix_root(k->first, root);
    pthread_mutex_unlock(&k->lock);
    return has;
}

bool keeps_have_states(keeps *k)
{
    pthread_mutex_lock(&k->lock);
    bool have = k->first && prefix_has_states(k->first);
    pthread_mutex_unlock(&k->lock);
    return have;
}

prefix *keeps_of(keeps *k, uint32_t owner)
{
    prefix *found = NULL;
    pthread_mutex_lock(&k->lock);
    if (!k->has_tenants) found = k->first;
    for (const keep *one = k->more; one; one = one->next)
        if (one->owner == owner) found = one->prefix;
    pthread_mutex_unlock(&k->lock);
    return atomic_load(&k->is_stopped) ? NULL : found;
}

static keep *open_keep(const keeps *k, const tenant *t)
{
    char message[256];
    quire_identity identity = *k->o.identity;
    keep *one = (keep *)calloc(1, sizeof *one);
    if (!one) return NULL;
    identity.secret = t->secret;
    identity.tenant_name = t->name;
    one->owner = t->number;
    one->prefix = prefix_create_like(k->first, &identity, message, sizeof message);
    if (!one->prefix) fprintf(stderr, "quire serve: prompts of a tenant cannot be kept: %s\n", message);
    return one;
}

prefix *keeps_of_tenant(keeps *k, const tenant *t)
{
    pthread_mutex_lock(&k->lock);
    keep *one = k->more;
    while (one && one->owner != t->number) one = one->next;
    if (!one && k->first && (one = open_keep(k, t))) {
        one->next = k->more;
        k->more = one;
    }
    prefix *p = one && !atomic_load(&k->is_stopped) ? one->prefix : NULL;
    pthread_mutex_unlock(&k->lock);
    return p;
}
