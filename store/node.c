/* SPDX-License-Identifier: MIT */
/* store: the nodes of the remote. */
#include "store/node.h"

#include <assert.h>

#define FAILURES 3u
#define FIRST_BACKOFF (200 * QUIRE_MS)
#define LAST_BACKOFF (2 * QUIRE_SECOND)    /* a node that comes back is used again within that time */
#define REFRESH_INTERVAL (250 * QUIRE_MS)  /* while the slots are wrong or a master is down */
#define REFRESH_ALWAYS (5 * QUIRE_SECOND)  /* replicas come and go without anybody telling */
#define GRACE (5 * QUIRE_SECOND)           /* for a node that the others do not know yet */
#define REFUSAL_LASTS (600 * QUIRE_SECOND) /* it is counted for so long, */
#define REFUSAL_PASSES (60 * QUIRE_SECOND) /* or for so long if a fail-over or a restart will end it */
#define SUSPECT_AFTER (100 * QUIRE_MS)     /* a node that failed once is probed so long after it */

static quire_node *find(quire_remote *r, uint32_t node)
{
    quire_node *n = &r->node[quire_node_index(node)];
    return node != QUIRE_NO_NODE && n->name == node ? n : NULL;
}

/* Not under the lock. */
static void say(quire_remote *r, const char *host, uint32_t port, bool is_down, const char *what)
{
    quire_log_say(r->log, is_down ? QUIRE_EVENT_NODE_DOWN : QUIRE_EVENT_NODE_BACK,
                  is_down ? QUIRE_LOG_WARNING : QUIRE_LOG_INFO, "The remote node %s:%u %s.", host,
                  (unsigned)port, what);
}

/* ------------------------------------------------------------------- table */

uint32_t quire_slot_of(const char *key, size_t n)
{
    uint32_t crc = 0; /* CRC-16/XMODEM, as the cluster's specification says; our keys have no hash tags */
    for (size_t i = 0; i < n; i++) {
        crc ^= (uint32_t)(uint8_t)key[i] << 8;
        for (int bit = 0; bit < 8; bit++) crc = (crc << 1 ^ (crc & 0x8000 ? 0x1021u : 0)) & 0xffff;
    }
    return crc % QUIRE_SLOTS;
}

/* Lanes close their connections to it when they next look. */
static void forget(quire_remote *r, quire_node *n)
{
    uint32_t place = quire_node_index(n->name);
    for (uint32_t i = 0; i < QUIRE_SLOTS; i++)
        if (r->place_of_slot[i] == place) r->place_of_slot[i] = QUIRE_MAX_NODES;
    n->name = QUIRE_NO_NODE;
    n->in_topology = false;
    r->n_nodes--;
}

static quire_node *free_place(quire_remote *r)
{
    quire_node *oldest = NULL;
    for (uint32_t i = 1; i < r->n_places; i++) {
        quire_node *n = &r->node[i];
        if (n->name == QUIRE_NO_NODE) return n;
        if (!n->in_topology && (!oldest || n->named < oldest->named)) oldest = n;
    }
    if (r->n_places < QUIRE_MAX_NODES) return &r->node[r->n_places++];
    if (oldest) forget(r, oldest);
    return oldest;
}

static uint32_t add(quire_remote *r, const char *host, size_t n, uint32_t port)
{
    quire_node *node = free_place(r);
    if (!node) return QUIRE_NO_NODE;
    /* Names come again after four million; by then nobody has the old one. */
    uint32_t n_given = node->n_given % (UINT32_MAX / QUIRE_MAX_NODES);
    memset(node, 0, sizeof *node);
    memcpy(node->host, host, n);
    node->n_given = n_given + 1;
    node->name = (uint32_t)(node - r->node) + n_given * QUIRE_MAX_NODES;
    node->master = QUIRE_NO_NODE;
    node->port = port;
    node->backoff = FIRST_BACKOFF;
    r->n_nodes++;
    return node->name;
}

/* Servers tell of hosts, and the log is told of them: no lines of their own, no commands to a terminal. */
static bool is_host(const char *host, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (host[i] <= ' ' || host[i] > '~') return false;
    return true;
}

uint32_t quire_node_at(quire_remote *r, const char *host, size_t n, uint32_t port)
{
    uint32_t name = QUIRE_NO_NODE;
    if (!n || n >= QUIRE_HOST_MAX || !port || port > 65535) return QUIRE_NO_NODE;
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < r->n_places && name == QUIRE_NO_NODE; i++) {
        const quire_node *node = &r->node[i];
        if (node->name != QUIRE_NO_NODE && node->port == port && strlen(node->host) == n &&
            !memcmp(node->host, host, n))
            name = node->name;
    }
    bool is_given = !r->n_places; /* by the engine: the first */
    if (name == QUIRE_NO_NODE && (is_given || is_host(host, n))) name = add(r, host, n, port);
    quire_node *node = find(r, name);
    if (node) node->named = quire_remote_now(r);
    pthread_mutex_unlock(&r->lock);
    return name;
}

bool quire_node_address(quire_remote *r, uint32_t node, char host[QUIRE_HOST_MAX], uint32_t *port)
{
    pthread_mutex_lock(&r->lock);
    const quire_node *n = find(r, node);
    if (n) {
        memcpy(host, n->host, QUIRE_HOST_MAX);
        *port = n->port;
    }
    pthread_mutex_unlock(&r->lock);
    return n != NULL;
}

uint32_t quire_node_attempt(quire_remote *r, uint32_t node)
{
    pthread_mutex_lock(&r->lock);
    quire_node *n = find(r, node);
    uint32_t attempt = n ? n->n_attempts++ : 0;
    pthread_mutex_unlock(&r->lock);
    return attempt;
}

bool quire_node_is_known(quire_remote *r, uint32_t node)
{
    pthread_mutex_lock(&r->lock);
    bool known = find(r, node) != NULL;
    pthread_mutex_unlock(&r->lock);
    return known;
}

/* ------------------------------------------------------------------- slots */

static bool is_in_trouble(const quire_node *n)
{
    return n->open_until || n->n_failures;
}

static bool is_healthy_replica(const quire_node *n, uint32_t master, uint32_t avoid)
{
    return n->name != QUIRE_NO_NODE && n->in_topology && n->master == master && n->name != master &&
           n->name != avoid && !is_in_trouble(n);
}

/* The `which`-th of the healthy replicas of a master, counted round, with the master itself as the last if with_master is set.
 * NULL: it is the master's turn, or there is no other. */
static const quire_node *replica_of(const quire_remote *r, uint32_t master, uint32_t which, uint32_t avoid,
                                    bool with_master)
{
    uint32_t n = with_master;
    for (uint32_t i = 0; i < r->n_places; i++) n += is_healthy_replica(&r->node[i], master, avoid);
    if (!n) return NULL;
    which %= n;
    for (uint32_t i = 0; i < r->n_places; i++)
        if (is_healthy_replica(&r->node[i], master, avoid) && which-- == 0) return &r->node[i];
    return NULL;
}

uint32_t quire_node_for(quire_remote *r, uint32_t slot, bool reads, uint32_t which, uint32_t avoid,
                        bool *is_replica)
{
    pthread_mutex_lock(&r->lock);
    bool in_cluster = r->topology == QUIRE_CLUSTER;
    uint32_t place = in_cluster ? r->place_of_slot[slot] : 0;
    if (place >= r->n_places) place = 0; /* whoever it is will say who has the slot */
    uint32_t name = r->node[place].name;
    const quire_node *replica = NULL;
    *is_replica = false;
    if (reads && in_cluster) {
        bool no_master = name == avoid || is_in_trouble(&r->node[place]);
        if (no_master || r->options.read_replicas) replica = replica_of(r, name, which, avoid, !no_master);
    }
    if (replica) {
        name = replica->name;
        *is_replica = true;
    }
    pthread_mutex_unlock(&r->lock);
    return name;
}

void quire_node_set_slot(quire_remote *r, uint32_t slot, uint32_t node)
{
    if (slot >= QUIRE_SLOTS) return;
    pthread_mutex_lock(&r->lock);
    if (find(r, node)) r->place_of_slot[slot] = (uint16_t)quire_node_index(node);
    pthread_mutex_unlock(&r->lock);
}

/* ----------------------------------------------------------------- breaker */

quire_miss quire_node_may_try(quire_remote *r, uint32_t node)
{
    pthread_mutex_lock(&r->lock);
    const quire_node *n = find(r, node);
    quire_miss why = !n                 ? QUIRE_MISS_DOWN
                     : !n->open_until   ? QUIRE_MISS_NONE
                     : n->refuses_login ? QUIRE_MISS_AUTH
                                        : QUIRE_MISS_DOWN;
    pthread_mutex_unlock(&r->lock);
    return why;
}

void quire_node_succeeded(quire_remote *r, uint32_t node, bool with_values)
{
    char host[QUIRE_HOST_MAX];
    uint32_t port = 0;
    pthread_mutex_lock(&r->lock);
    quire_node *n = find(r, node);
    /* Small answers do not show that values come at a good rate again. */
    bool shows = n && (with_values || !n->n_slow || !n->probe_bytes), was_down = shows && n->open_until != 0;
    if (n) {
        n->n_failures = 0;
        if (shows) n->open_until = 0;
        if (with_values || !n->n_slow) {
            n->n_slow = 0;
            n->probe_bytes = 0;
            n->backoff = FIRST_BACKOFF;
        }
        memcpy(host, n->host, sizeof host);
        port = n->port;
    }
    pthread_mutex_unlock(&r->lock);
    if (was_down) say(r, host, port, false, "answers again");
}

void quire_node_probed(quire_remote *r, uint32_t node)
{
    pthread_mutex_lock(&r->lock);
    quire_node *n = find(r, node);
    uint64_t backoff = n ? n->backoff : 0;
    uint32_t n_slow = n ? n->n_slow : 0;
    pthread_mutex_unlock(&r->lock);
    quire_node_succeeded(r, node, true);
    if (!n_slow) return;
    /* It was slow under load: the next time is enough, and it is given more time then. */
    pthread_mutex_lock(&r->lock);
    n = find(r, node);
    if (n) {
        n->n_slow = n_slow < FAILURES ? n_slow : FAILURES - 1;
        n->backoff = backoff;
    }
    pthread_mutex_unlock(&r->lock);
}

void quire_node_failed(quire_remote *r, uint32_t node, quire_trouble trouble, const quire_call *call)
{
    char host[QUIRE_HOST_MAX];
    uint32_t port = 0;
    bool is_lost = false, is_slow = trouble == QUIRE_TROUBLE_SLOW || trouble == QUIRE_TROUBLE_TOO_SLOW;
    pthread_mutex_lock(&r->lock);
    quire_node *n = find(r, node);
    if (n) {
        n->failed = quire_remote_now(r);
        n->refuses_login = trouble == QUIRE_TROUBLE_REFUSED;
        if (is_slow)
            n->n_slow++;
        else
            n->n_failures++;
        if (is_slow && call && call->verb == QUIRE_GET) {
            n->probe = call->object;
            n->probe_bytes = call->bytes;
        }
        if (n->n_failures >= FAILURES || n->n_slow >= FAILURES || trouble == QUIRE_TROUBLE_HOPELESS ||
            trouble == QUIRE_TROUBLE_REFUSED || trouble == QUIRE_TROUBLE_TOO_SLOW || n->open_until) {
            is_lost = !n->open_until;
            if (is_lost) quire_count(&r->counters->breaks, 1);
            n->open_until = n->failed + n->backoff;
            n->backoff = n->backoff * 2 < LAST_BACKOFF ? n->backoff * 2 : LAST_BACKOFF;
        }
        memcpy(host, n->host, sizeof host);
        port = n->port;
        r->stale = true; /* another node may have taken its slots */
        pthread_cond_signal(&r->work);
    }
    pthread_mutex_unlock(&r->lock);
    if (is_lost)
        say(r, host, port, true,
            is_slow                            ? "answers too slowly and is considered down"
            : trouble == QUIRE_TROUBLE_REFUSED ? "refuses the user or password and is considered down"
                                               : "does not answer and is considered down");
}

static void set_refusal(quire_remote *r, uint32_t node, quire_verb verb, uint64_t counts)
{
    assert(verb < QUIRE_SLOTS_OF);
    pthread_mutex_lock(&r->lock);
    quire_node *n = find(r, node);
    if (n) n->refused_until[verb] = counts ? quire_remote_now(r) + counts : 0;
    pthread_mutex_unlock(&r->lock);
}

void quire_node_complies(quire_remote *r, uint32_t node, quire_verb verb)
{
    set_refusal(r, node, verb, 0);
}

void quire_node_refuses(quire_remote *r, uint32_t node, quire_verb verb, bool lasts, const char *error)
{
    char host[QUIRE_HOST_MAX];
    uint32_t port;
    /* Its code alone: the rest can be anything, and is for a log. */
    int n = (int)strspn(error, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    bool is_save = verb == QUIRE_SET;
    if (!is_save && verb != QUIRE_GET && verb != QUIRE_EXISTS) return;
    set_refusal(r, node, verb, lasts ? REFUSAL_LASTS : REFUSAL_PASSES);
    if (quire_node_address(r, node, host, &port))
        quire_log_say(r->log, QUIRE_EVENT_REFUSAL, QUIRE_LOG_WARNING,
                      "The remote node %s:%u does not %s pages: it says %.*s.", host, (unsigned)port,
                      is_save ? "take" : "give", n ? n : 3, n ? error : "ERR");
}

/* ---------------------------------------------------------------- topology */

/* Nodes of the map, marked; returns how many masters there are. */
static uint32_t mark_nodes(quire_remote *r, const quire_slot_map *map)
{
    uint32_t n_masters = 0;
    for (uint32_t i = 0; i < r->n_places; i++) r->node[i].in_topology = false;
    for (uint32_t i = 0; i < QUIRE_SLOTS; i++) {
        quire_node *n = find(r, map->owner[i]);
        if (!n || n->in_topology) continue;
        n->in_topology = true;
        n->master = n->name;
        n_masters++;
    }
    for (uint32_t i = 0; i < map->n_replicas; i++) {
        quire_node *n = find(r, map->replica[i].replica);
        if (!n || n->in_topology || !find(r, map->replica[i].master)) continue;
        n->in_topology = true;
        n->master = map->replica[i].master;
    }
    return n_masters;
}

void quire_node_apply(quire_remote *r, const quire_slot_map *map)
{
    bool changed = false;
    uint32_t n_known = 0;
    pthread_mutex_lock(&r->lock);
    uint64_t now = quire_remote_now(r);
    uint32_t n_masters = mark_nodes(r, map);
    for (uint32_t i = 0; i < QUIRE_SLOTS; i++) {
        uint16_t place = find(r, map->owner[i]) ? (uint16_t)quire_node_index(map->owner[i]) : QUIRE_MAX_NODES;
        changed |= r->place_of_slot[i] != place;
        r->place_of_slot[i] = place;
    }
    changed |= r->topology != QUIRE_CLUSTER;
    for (uint32_t i = 1; i < r->n_places; i++) {
        quire_node *n = &r->node[i];
        if (n->name != QUIRE_NO_NODE && !n->in_topology && now - n->named > GRACE) forget(r, n);
        n_known += n->name != QUIRE_NO_NODE && n->in_topology;
    }
    n_known += r->node[0].in_topology;
    r->topology = QUIRE_CLUSTER;
    r->stale = false;
    r->refreshed = now;
    pthread_mutex_unlock(&r->lock);
    if (changed)
        quire_log_say(r->log, QUIRE_EVENT_CLUSTER, QUIRE_LOG_INFO,
                      "The remote cluster's slots are now shared by %u masters; %u replicas are known.",
                      (unsigned)n_masters, (unsigned)(n_known - n_masters));
}

void quire_node_set_topology(quire_remote *r, quire_topology topology)
{
    pthread_mutex_lock(&r->lock);
    r->topology = topology;
    r->stale = topology == QUIRE_CLUSTER;
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
}

quire_topology quire_node_topology(quire_remote *r)
{
    pthread_mutex_lock(&r->lock);
    quire_topology topology = r->topology;
    pthread_mutex_unlock(&r->lock);
    return topology;
}

void quire_node_set_stale(quire_remote *r)
{
    pthread_mutex_lock(&r->lock);
    r->stale = true;
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
}

/* --------------------------------------------------------------- what is due */

/* Slots whose master does not answer may have another one by now. */
static bool misses_a_master(const quire_remote *r)
{
    for (uint32_t i = 0; i < r->n_places; i++) {
        const quire_node *n = &r->node[i];
        if (n->name != QUIRE_NO_NODE && n->in_topology && n->master == n->name && is_in_trouble(n))
            return true;
    }
    return false;
}

bool quire_node_is_troubled(const quire_remote *r)
{
    if (r->topology == QUIRE_TOPOLOGY_UNKNOWN || (r->topology == QUIRE_CLUSTER && r->stale)) return true;
    for (uint32_t i = 0; i < r->n_places; i++) {
        const quire_node *n = &r->node[i];
        bool counts = n->name != QUIRE_NO_NODE && (r->topology != QUIRE_CLUSTER || n->in_topology);
        if (counts && is_in_trouble(n)) return true;
    }
    return false;
}

static void add_ask(quire_due *due, const quire_node *n)
{
    if (n->name == QUIRE_NO_NODE || due->n_ask == QUIRE_DUE_MAX) return;
    for (uint32_t i = 0; i < due->n_ask; i++)
        if (due->ask[i] == n->name) return;
    due->ask[due->n_ask++] = n->name;
}

/* Two nodes that are well, and what was given, whatever its state: a name may lead elsewhere by now. Nobody well: four others, in
 * turn. */
static void add_asks(quire_remote *r, quire_due *due)
{
    for (uint32_t i = 0; i < r->n_places && due->n_ask < 2; i++) {
        const quire_node *n = &r->node[(r->turn + i) % r->n_places];
        if (n->in_topology && !is_in_trouble(n)) add_ask(due, n);
    }
    if (due->n_ask < 2 || !is_in_trouble(&r->node[0])) add_ask(due, &r->node[0]);
    for (uint32_t i = 0; i < r->n_places && due->n_ask < 5; i++) {
        const quire_node *n = &r->node[(r->turn + i) % r->n_places];
        if (due->n_ask < 2 || n->in_topology) add_ask(due, n);
    }
    r->turn++;
}

void quire_node_take_due(quire_remote *r, quire_due *due)
{
    *due = (quire_due){0};
    pthread_mutex_lock(&r->lock);
    uint64_t now = quire_remote_now(r);
    bool wrong = r->topology == QUIRE_TOPOLOGY_UNKNOWN ||
                 (r->topology == QUIRE_CLUSTER && (r->stale || misses_a_master(r)));
    bool old = r->topology == QUIRE_CLUSTER && now - r->refreshed > REFRESH_ALWAYS;
    if ((wrong || old) && now >= r->next_refresh) {
        r->next_refresh = now + REFRESH_INTERVAL;
        add_asks(r, due);
    }
    for (uint32_t i = 0; i < r->n_places && due->n_probe < QUIRE_DUE_MAX; i++) {
        quire_node *n = &r->node[i];
        if (n->name == QUIRE_NO_NODE || !is_in_trouble(n)) continue;
        /* A node that left the cluster is not asked for; the given one is, in its turn above. */
        if (r->topology == QUIRE_CLUSTER && !n->in_topology) continue;
        if (now < (n->open_until ? n->open_until : n->failed + SUSPECT_AFTER)) continue;
        due->probe[due->n_probe] = n->name;
        due->object[due->n_probe] = n->probe;
        due->bytes[due->n_probe++] = n->probe_bytes;
    }
    pthread_mutex_unlock(&r->lock);
}
