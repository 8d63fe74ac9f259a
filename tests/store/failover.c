/* SPDX-License-Identifier: MIT */
/*
 * Fail-overs of real clusters under load: of the master that has all keys of the loads, of the only master, of every address at
 * once; and of a master without a replica, whose keys are gone, while the keys of the others are used. Loads must be whole five
 * seconds after the cluster reports that it is well, and saving works.
 *   store_failover [ROUNDS]       scripts/failover-store runs a hundred
 */
#define _GNU_SOURCE
#include "store/conn.h"
#include "store/kit/raw_kit.h"
#include "store/kit/servers.h"

#include <stdlib.h>
#include <unistd.h>

#define THREADS 8
#define PAGES 4u
#define BYTES 30000u
#define TIMEOUT_MS 500u
#define ALLOWED (5 * QUIRE_SECOND)

typedef struct client {
    pthread_t thread;
    quire_store *store;
    uint64_t text;
    atomic_bool *stop;
    _Atomic uint64_t last_whole;
    uint32_t n_loads, n_whole;
} client;

typedef struct scene {
    quire_store *store;
    kit_raw raw;
    client clients[THREADS];
    atomic_bool stop;
    uint32_t first, last;   /* slots of all keys */
    uint64_t text, slowest; /* the next text; ns until whole, the longest */
    uint64_t saved_slowest;
} scene;

static void *run_client(void *arg)
{
    client *c = (client *)arg;
    kit_raw raw;
    kit_raw_begin(&raw, c->store, BYTES);
    while (!*c->stop) {
        uint32_t n = kit_raw_load(&raw, c->text, PAGES, TIMEOUT_MS);
        c->n_loads++;
        if (n == PAGES) {
            c->n_whole++;
            c->last_whole = quire_now();
        }
        usleep(10000);
    }
    kit_raw_end(&raw);
    return NULL;
}

/* A text all of whose pages are in the slots. */
static uint64_t next_text(scene *s)
{
    for (;;) {
        quire_key objects[PAGES];
        uint32_t n = 0;
        kit_raw_objects(&s->raw, ++s->text, PAGES, NULL, objects);
        for (uint32_t i = 0; i < PAGES; i++) {
            quire_call call = {.object = objects[i]};
            uint32_t slot = quire_call_slot(&call);
            n += slot >= s->first && slot <= s->last;
        }
        if (n == PAGES) return s->text;
    }
}

/* The other nodes are known: a server lists its replicas some seconds after they came. */
static void wait_known(scene *s, uint32_t n)
{
    for (int i = 0; kit_stats(s->store).nodes < n; i++) {
        KIT_REQUIRE(i < 12000);
        usleep(10000);
    }
}

static void begin(scene *s, uint32_t port, uint32_t first, uint32_t last)
{
    quire_store_remote remote = kit_remote(port);
    *s = (scene){.first = first, .last = last};
    s->store = kit_open(NULL, 0, &remote);
    kit_raw_begin(&s->raw, s->store, BYTES);
    for (int i = 0; i < THREADS; i++) {
        client *c = &s->clients[i];
        *c = (client){.store = s->store, .text = next_text(s), .stop = &s->stop};
        kit_raw_save(&s->raw, c->text, PAGES);
    }
    KIT_REQUIRE(!quire_store_flush(s->store, 20000));
    usleep(300000); /* replicas have it */
    for (int i = 0; i < THREADS; i++)
        KIT_REQUIRE(!pthread_create(&s->clients[i].thread, NULL, run_client, &s->clients[i]));
}

/* Everybody has a whole load that began after now. */
static void expect_whole(scene *s, const char *what)
{
    uint64_t since = quire_now();
    for (int i = 0; i < THREADS; i++)
        while (s->clients[i].last_whole < since + 1) {
            if (quire_now() - since > ALLOWED) {
                quire_store_stats t = kit_stats(s->store);
                fprintf(stderr, "%s: thread %d has no whole load after %llu ms; nodes %u, down %u; misses",
                        what, i, (unsigned long long)((quire_now() - since) / QUIRE_MS), t.nodes,
                        t.nodes_down);
                for (int m = 0; m < QUIRE_MISS_COUNT; m++)
                    if (t.misses[m])
                        fprintf(stderr, " %s %llu", quire_miss_name((quire_miss)m),
                                (unsigned long long)t.misses[m]);
                fprintf(stderr, "\n");
                abort();
            }
            usleep(2000);
        }
    uint64_t took = quire_now() - since;
    if (took > s->slowest) s->slowest = took;
    for (;;) {
        uint64_t text = next_text(s);
        kit_raw_save(&s->raw, text, PAGES);
        KIT_REQUIRE(!quire_store_flush(s->store, 20000));
        if (kit_raw_load(&s->raw, text, PAGES, 1000) == PAGES) break;
        KIT_REQUIRE(quire_now() - since <= ALLOWED);
    }
    took = quire_now() - since;
    if (took > s->saved_slowest) s->saved_slowest = took;
}

static void end(scene *s, const char *what, int rounds)
{
    uint32_t n_loads = 0, n_whole = 0;
    s->stop = true;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(s->clients[i].thread, NULL);
        n_loads += s->clients[i].n_loads;
        n_whole += s->clients[i].n_whole;
    }
    if (*what)
        printf(
            "%s: %d rounds, %d threads, %u loads of which %u whole; after the cluster is well all are whole within %u ms and "
            "saving works within %u ms\n",
            what, rounds, THREADS, n_loads, n_whole, (unsigned)(s->slowest / QUIRE_MS),
            (unsigned)(s->saved_slowest / QUIRE_MS));
    kit_raw_end(&s->raw);
    quire_store_close(s->store);
}

/* Of two nodes the one that is master is killed, the other one takes over and the first comes back as its replica. */
static void kill_master(kit_cluster *c, uint32_t a, uint32_t b, scene *s, const char *what, bool takes_over)
{
    bool first = kit_says(c->node[a].port, "INFO replication", "role:master");
    kit_server *dies = &c->node[first ? a : b], *lives = &c->node[first ? b : a];
    kit_wait_for(dies->port, "INFO replication", "connected_slaves:1");
    kit_wait_for(lives->port, "INFO replication", "master_link_status:up");
    kit_server_kill(dies);
    if (takes_over) {
        usleep(1500000); /* as long as noticing takes elsewhere */
        free(kit_command(lives->port, "CLUSTER FAILOVER TAKEOVER"));
    }
    kit_wait_for(lives->port, "INFO replication", "role:master");
    kit_wait_for(lives->port, "CLUSTER INFO", "cluster_state:ok");
    expect_whole(s, what);
    kit_server_restart(dies);
    kit_wait_for(dies->port, "INFO replication", "role:slave");
    kit_wait_for(dies->port, "INFO replication", "master_link_status:up");
}

static void all_keys(int rounds)
{
    kit_cluster c;
    scene s;
    uint32_t first, last;
    kit_cluster_start(&c);
    kit_cluster_range(&c, 0, &first, &last);
    begin(&s, c.node[0].port, first, last);
    wait_known(&s, KIT_NODES);
    for (int i = 0; i < rounds; i++) kill_master(&c, 0, KIT_MASTERS, &s, "all keys", false);
    end(&s, "master with all keys", rounds);
    kit_cluster_end(&c);
}

static void one_shard(int rounds)
{
    kit_cluster c;
    scene s;
    kit_cluster_start_with(&c, 1, 1);
    begin(&s, c.node[0].port, 0, 16383);
    wait_known(&s, 2);
    for (int i = 0; i < rounds; i++) kill_master(&c, 0, 1, &s, "one shard", true);
    end(&s, "only master", rounds);
    kit_cluster_end(&c);
}

/* A master without a replica goes: the one whose address was configured. The keys are those of another one, which goes on alone. */
static void part_of_keys(int rounds)
{
    kit_cluster c;
    scene s;
    uint32_t first, last;
    kit_cluster_start_with(&c, KIT_MASTERS, 0);
    for (uint32_t i = 0; i < c.n_nodes; i++)
        free(kit_command(c.node[i].port, "CONFIG SET cluster-require-full-coverage no"));
    kit_cluster_range(&c, 1, &first, &last);
    begin(&s, c.node[0].port, first, last);
    wait_known(&s, KIT_MASTERS);
    for (int i = 0; i < rounds; i++) {
        kit_server_kill(&c.node[0]);
        kit_wait_for(c.node[1].port, "CLUSTER NODES", "fail");
        kit_wait_for(c.node[1].port, "CLUSTER INFO", "cluster_state:ok");
        expect_whole(&s, "part of the keys");
        kit_server_restart(&c.node[0]);
        kit_wait_for(c.node[0].port, "CLUSTER INFO", "cluster_state:ok");
        kit_wait_for(c.node[1].port, "CLUSTER INFO", "cluster_slots_ok:16384");
        expect_whole(&s, "all of the keys again");
    }
    end(&s, "master without a replica, keys of another one", rounds);
    kit_cluster_end(&c);
}

/* Two clusters with the same pages; the configured address leads to one of them, the other one does not run. */
static void all_addresses(int rounds)
{
    kit_cluster c[2];
    kit_proxy name;
    scene s, filler;
    for (int i = 0; i < 2; i++) kit_cluster_start_with(&c[i], 2, 0);
    kit_proxy_start(&name, c[0].node[0].port);
    begin(&s, name.port, 0, 16383);
    for (int i = 0; i < rounds; i++) {
        kit_cluster *old = &c[i % 2], *fresh = &c[(i + 1) % 2];
        for (uint32_t k = 0; k < fresh->n_nodes; k++)
            if (fresh->node[k].pid <= 0) kit_server_restart(&fresh->node[k]);
        for (uint32_t k = 0; k < fresh->n_nodes; k++)
            kit_wait_for(fresh->node[k].port, "CLUSTER INFO", "cluster_state:ok");
        begin(&filler, fresh->node[1].port, 0, 16383); /* the same texts */
        filler.stop = true;
        end(&filler, "", i);
        for (uint32_t k = 0; k < old->n_nodes; k++) kit_server_kill(&old->node[k]);
        usleep(200000);
        name.target = fresh->node[0].port;
        expect_whole(&s, "all addresses");
    }
    end(&s, "every address at once", rounds);
    kit_proxy_end(&name);
    for (int i = 0; i < 2; i++) kit_cluster_end(&c[i]);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    kit_need_redis();
    setvbuf(stdout, NULL, _IOLBF, 0);
    all_keys(rounds);
    one_shard(rounds);
    part_of_keys(rounds);
    all_addresses(rounds);
    return 0;
}
