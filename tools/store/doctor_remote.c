/* SPDX-License-Identifier: MIT */
/* store_doctor: the remote tier: whether it can be reached, what the login may do, how its nodes are configured. */
#define _GNU_SOURCE
#include "store/doctor.h"
#include "store/server.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPIRES_SOON_DAYS 14
#define MAX_LAG_S 10
#define MAX_CLOCK_S 5.0
#define SMALL_BULK (16u << 20)

static bool is_error(const valkeyReply *r, const char *code)
{
    return r && r->type == VALKEY_REPLY_ERROR && strncmp(r->str, code, strlen(code)) == 0;
}

/* ------------------------------------------------------------------ reaching */

static void say_closed(doctor *d, const server *s, bool is_given)
{
    /* One node of a cluster that is down does not keep the others from working. */
    severity how = is_given ? SEVERITY_FAULT : SEVERITY_WARNING;
    if (s->state == SERVER_NO_LOGIN)
        doctor_say(d, "remote.login", SEVERITY_FAULT,
                   "Check --user and --password-file against the server's users (ACL LIST).",
                   "%s:%u refuses the login: %s.", s->address.host, s->address.port, s->why);
    else if (s->state == SERVER_NO_TLS)
        doctor_say(
            d, "remote.tls", SEVERITY_FAULT,
            "Check the server's certificate, --tls-ca and --tls-name; renew a certificate that has expired.",
            "%s:%u: %s.", s->address.host, s->address.port, s->why);
    else
        doctor_say(
            d, "remote.reach", how,
            "Check that the server runs and listens on this address, that firewalls let it through, and whether "
            "it wants TLS (--tls).",
            "%s:%u cannot be used: %s.", s->address.host, s->address.port, s->why);
}

static void look_at_certificate(doctor *d, const server *s)
{
    if (!s->has_certificate) return;
    if (s->certificate_days < EXPIRES_SOON_DAYS)
        doctor_say(d, "remote.tls", SEVERITY_WARNING, "Renew it.",
                   "The certificate of %s:%u expires in %.1f days.", s->address.host, s->address.port,
                   s->certificate_days);
    else
        doctor_say(d, "remote.tls", SEVERITY_OK, NULL, "The certificate of %s:%u is valid for %.0f days.",
                   s->address.host, s->address.port, s->certificate_days);
}

/* -------------------------------------------------------------------- rights */

#define KEY_SIZE 80

/* Of no page: what begins with so many zeros is no key of the store. */
static void make_key(char key[KEY_SIZE], uint32_t i)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    (void)snprintf(key, KEY_SIZE, "q1:%040x%08x%016llx", 0, i,
                   (unsigned long long)now.tv_nsec << 20 ^ (unsigned long long)now.tv_sec);
}

/* Whether one master of a cluster takes a page. What it answers about a key of another one says nothing. */
static void look_at_saving(doctor *d, server *s, const char *name, uint32_t n_masters)
{
    char key[KEY_SIZE];
    bool is_elsewhere = true;
    for (uint32_t i = 0; i < 20 * n_masters && is_elsewhere; i++) {
        make_key(key, i);
        valkeyReply *r = server_ask(s, "EXISTS %s", key);
        is_elsewhere = is_error(r, "MOVED") || is_error(r, "ASK");
        freeReplyObject(r);
    }
    valkeyReply *r = is_elsewhere ? NULL : server_ask(s, "SET %s x EX 5 NX", key);
    if (r && r->type == VALKEY_REPLY_ERROR)
        doctor_say(
            d, "remote.write", SEVERITY_FAULT,
            "OOM: set maxmemory-policy allkeys-lru. NOPERM: give the login its rights on this server too. "
            "Else look into the server's log.",
            "%s refuses to store: %s.", name, r->str);
    else if (r)
        freeReplyObject(server_ask(s, "DEL %s", key)); /* else it goes after 5 seconds */
    freeReplyObject(r);
}

static void look_at_rights(doctor *d, server *s)
{
    static const struct {
        const char *right, *command, *without;
        bool is_needed;
    } rights[] = {
        {"+exists", "EXISTS %s", NULL, true},
        {"+getrange", "GETRANGE %s 0 0", NULL, true},
        {"+set", "SET %s x EX 5 NX", NULL, true},
        {"+expire", "EXPIRE %s 5", "times to live are not renewed by use", false},
        {"+del", "DEL %s", "damaged pages are not replaced", false},
        {"+asking", "ASKING",
         "in a cluster, pages in a slot that is being moved are neither loaded nor saved", false},
        {"+readonly", "READONLY", "replicas are not read while a master is down", false},
        {"+cluster|slots", "CLUSTER SLOTS", "a cluster is not recognised", false},
    };
    char key[KEY_SIZE], missing[200] = "";
    bool any = false, lost = false;
    make_key(key, 0);
    for (size_t i = 0; i < sizeof rights / sizeof *rights && !lost; i++) {
        valkeyReply *r = strstr(rights[i].command, "%s") ? server_ask(s, rights[i].command, key)
                                                         : server_ask(s, rights[i].command);
        lost = !r;
        if (is_error(r, "NOPERM")) {
            any = true;
            if (rights[i].is_needed)
                (void)snprintf(missing + strlen(missing), sizeof missing - strlen(missing), " %s",
                               rights[i].right);
            else
                doctor_say(d, "remote.rights", SEVERITY_WARNING, "Give the user this right (ACL SETUSER).",
                           "The login lacks %s: %s.", rights[i].right, rights[i].without);
        } else if (is_error(r, "OOM")) {
            doctor_say(d, "remote.memory", SEVERITY_FAULT, "Set maxmemory-policy allkeys-lru.",
                       "The server refuses to store: it is out of memory and evicts nothing.");
        } else if (is_error(r, "READONLY") || is_error(r, "MISCONF")) {
            doctor_say(d, "remote.write", SEVERITY_FAULT,
                       "Give the address of a master; look into the server's log.",
                       "The server refuses to store: %s.", r->str);
        }
        freeReplyObject(r);
    }
    if (*missing)
        doctor_say(d, "remote.rights", SEVERITY_FAULT,
                   "Give the user these rights (ACL SETUSER), with keys ~q1:*.",
                   "The login lacks%s, without which pages cannot be stored and loaded.", missing);
    else if (!any && !lost)
        doctor_say(d, "remote.rights", SEVERITY_OK, NULL, "The login has the rights that the store needs.");
}

/* ------------------------------------------------------------- configuration */

/* The value of a setting; NULL: refused, or not there. To be freed. */
static char *setting(server *s, const char *name, bool *refused)
{
    valkeyReply *r = server_ask(s, "CONFIG GET %s", name);
    char *value = NULL;
    if (!r || r->type == VALKEY_REPLY_ERROR) *refused = true;
    if (r && r->elements == 2 && r->element[1]->str) value = strdup(r->element[1]->str);
    freeReplyObject(r);
    return value;
}

static void look_at_configuration(doctor *d, server *s, const char *name)
{
    bool refused = false;
    char *policy = setting(s, "maxmemory-policy", &refused), *maxmemory = setting(s, "maxmemory", &refused),
         *save = setting(s, "save", &refused), *append = setting(s, "appendonly", &refused),
         *bulk = setting(s, "proto-max-bulk-len", &refused);
    if (refused)
        doctor_say(d, "remote.config", SEVERITY_NOTE, "Run this command with a login that has +config|get.",
                   "%s does not let this login see its configuration.", name);
    bool limited = maxmemory && strcmp(maxmemory, "0") != 0;
    if (maxmemory && !limited)
        doctor_say(d, "remote.memory", SEVERITY_WARNING, "Set maxmemory to 80 % of the machine's memory.",
                   "%s has no limit of memory (maxmemory 0): it grows until the machine has none left.",
                   name);
    if (policy && strcmp(policy, "noeviction") == 0)
        doctor_say(d, "remote.eviction", limited ? SEVERITY_FAULT : SEVERITY_WARNING,
                   "Set maxmemory-policy allkeys-lru.",
                   "%s evicts nothing (noeviction): when it is full, nothing can be "
                   "saved any more.",
                   name);
    else if (policy && strncmp(policy, "volatile", 8) == 0)
        doctor_say(d, "remote.eviction", SEVERITY_WARNING,
                   "Set maxmemory-policy allkeys-lru, or use ttl_seconds.",
                   "%s evicts only objects that expire (%s).", name, policy);
    else if (policy)
        doctor_say(d, "remote.eviction", SEVERITY_OK, NULL, "%s evicts by %s.", name, policy);
    if ((save && *save) || (append && strcmp(append, "no") != 0))
        doctor_say(d, "remote.persistence", SEVERITY_WARNING,
                   "Set save \"\" and appendonly no: lost pages are computed again.",
                   "%s writes its pages to disk (%s), which costs memory and time.", name,
                   save && *save ? "save" : "appendonly");
    else if (save && append)
        doctor_say(d, "remote.persistence", SEVERITY_OK, NULL, "%s keeps pages in memory only.", name);
    uint64_t most = bulk ? strtoull(bulk, NULL, 10) : 0;
    uint64_t need = d->largest_page_bytes ? d->largest_page_bytes + 4096 : SMALL_BULK;
    if (bulk && most < need)
        doctor_say(d, "remote.value_size", d->largest_page_bytes ? SEVERITY_FAULT : SEVERITY_WARNING,
                   "Raise proto-max-bulk-len (default: 512mb).", "%s takes values of at most %llu bytes%s.",
                   name, (unsigned long long)most,
                   d->largest_page_bytes ? "; pages in the directory are larger"
                                         : ", less than pages of large models");
    free(policy);
    free(maxmemory);
    free(save);
    free(append);
    free(bulk);
}

/* ------------------------------------------------------------ state of a node */

/* The number after "field:" of INFO; -1: there is none. */
static int64_t field(const valkeyReply *info, const char *name)
{
    const char *at = info && info->str ? strstr(info->str, name) : NULL;
    return at ? strtoll(at + strlen(name), NULL, 10) : -1;
}

static void look_at_replication(doctor *d, server *s, const char *name)
{
    valkeyReply *r = server_ask(s, "INFO replication");
    if (!r || r->type == VALKEY_REPLY_ERROR || !r->str) {
        doctor_say(d, "remote.info", SEVERITY_NOTE, "Run this command with a login that has +info.",
                   "%s does not tell this login about itself.", name);
    } else if (strstr(r->str, "master_link_status:down")) {
        doctor_say(d, "remote.replica", SEVERITY_WARNING, "Look into its log.",
                   "The replica %s has no connection to its master.", name);
    } else {
        const char *at = r->str;
        for (int64_t lag; (at = strstr(at, ",lag=")); at++)
            if ((lag = strtoll(at + 5, NULL, 10)) > MAX_LAG_S)
                doctor_say(d, "remote.replica", SEVERITY_WARNING, "Check the network between them.",
                           "A replica of %s was last heard of %lld s ago.", name, (long long)lag);
    }
    freeReplyObject(r);
}

static void look_at_clock(doctor *d, server *s, const char *name)
{
    struct timespec now;
    valkeyReply *r = server_ask(s, "TIME");
    clock_gettime(CLOCK_REALTIME, &now);
    if (r && r->type == VALKEY_REPLY_ARRAY && r->elements == 2 && r->element[0]->str) {
        double apart = strtod(r->element[0]->str, NULL) - (double)now.tv_sec;
        if (apart > MAX_CLOCK_S || apart < -MAX_CLOCK_S)
            doctor_say(d, "remote.clock", SEVERITY_NOTE, "Set the clocks right (NTP).",
                       "The clock of %s is %.0f s %s this machine's.", name, apart < 0 ? -apart : apart,
                       apart < 0 ? "behind" : "ahead of");
    }
    freeReplyObject(r);
}

static void look_at_cluster(doctor *d, server *s, const server_nodes *nodes)
{
    valkeyReply *r = server_ask(s, "CLUSTER INFO");
    bool refused = !r || r->type == VALKEY_REPLY_ERROR || !r->str;
    if (!refused && !strstr(r->str, "cluster_state:ok"))
        doctor_say(d, "remote.cluster", SEVERITY_FAULT,
                   "Bring its masters back, or promote replicas (CLUSTER NODES).",
                   "The cluster says that its state is not ok; %lld slots fail.",
                   (long long)field(r, "cluster_slots_fail:"));
    else if (nodes->n_slots < 16384)
        doctor_say(d, "remote.cluster", SEVERITY_FAULT,
                   "Give the slots to masters (valkey-cli --cluster fix).",
                   "%u of 16384 slots have no master: their pages can be neither saved nor loaded.",
                   16384 - nodes->n_slots);
    else
        doctor_say(d, "remote.cluster", SEVERITY_OK, NULL,
                   "A cluster of %u masters and %u replicas; all slots have a master.", nodes->n_masters,
                   nodes->n_nodes - nodes->n_masters);
    freeReplyObject(r);
}

/* n_masters: of the cluster that this one is a master of, or 0. */
static void look_at_node(doctor *d, const server_address *a, bool is_given, uint32_t n_masters)
{
    char name[SERVER_HOST + 16];
    server s;
    (void)snprintf(name, sizeof name, "%s:%u", a->host, a->port);
    if (!server_open(&s, &d->options->remote, a, (uint32_t)d->options->timeout_ms)) {
        say_closed(d, &s, is_given);
    } else {
        look_at_certificate(d, &s);
        look_at_configuration(d, &s, name);
        look_at_replication(d, &s, name);
        if (n_masters) look_at_saving(d, &s, name, n_masters);
        look_at_clock(d, &s, name);
    }
    server_close(&s);
}

void doctor_look_at_remote(doctor *d)
{
    static server_nodes nodes; /* large */
    const store_options *o = d->options;
    server_address given = {.port = o->remote.port ? o->remote.port : 6379};
    server s;
    (void)snprintf(given.host, sizeof given.host, "%s", o->remote.host);
    if (!server_open(&s, &o->remote, &given, (uint32_t)o->timeout_ms)) {
        say_closed(d, &s, true);
        server_close(&s);
        return;
    }
    doctor_say(d, "remote.reach", SEVERITY_OK, NULL, "%s:%u answers.", given.host, given.port);
    look_at_rights(d, &s);
    if (server_list(&s, &nodes)) {
        if (nodes.is_cluster) look_at_cluster(d, &s, &nodes);
        server_close(&s);
        for (uint32_t i = 0; i < nodes.n_nodes; i++)
            look_at_node(d, &nodes.node[i], !nodes.is_cluster,
                         nodes.is_cluster && i < nodes.n_masters ? nodes.n_masters : 0);
    } else {
        doctor_say(d, "remote.reach", SEVERITY_FAULT, "Look into the server's log.",
                   "%s:%u closed the connection, or stopped answering, while it was asked.", given.host,
                   given.port);
    }
    server_close(&s);
}
