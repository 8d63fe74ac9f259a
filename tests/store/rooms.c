/* SPDX-License-Identifier: MIT */
/*
 * Raw loads write to the caller's memory. When quire_load_end() has returned, nothing does any more: threads end loads at
 * random moments and then free the memory, use it for something else, or make it inaccessible. On disk, on the scripted
 * network, and with a real server.
 */
#define _GNU_SOURCE
#include "store/kit/raw_kit.h"
#include "store/kit/servers.h"
#include "store/kit/world.h"
#include "store/seal.h"
#include "store/store.h"
#include "support/random.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ENGINES 4u
#define TEXTS 3u
#define PAGES 12u
#define KEPT 16u /* rooms that are watched after their load has ended */

/* ------------------------------------------------------------------ rooms */

typedef enum fate { FATE_FREED, FATE_NONE, FATE_FILLED, N_FATES } fate;

typedef struct rooms {
    fate fate;
    uint8_t *memory; /* NULL: none */
    size_t bytes;
} rooms;

static void rooms_begin(rooms *r, fate f, size_t bytes)
{
    size_t whole = (bytes + 4095) / 4096 * 4096;
    *r = (rooms){.fate = f, .bytes = whole};
    r->memory = f == FATE_FREED ? (uint8_t *)malloc(bytes)
                                : (uint8_t *)mmap(NULL, whole, PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KIT_REQUIRE(r->memory && r->memory != MAP_FAILED);
}

/* The load has ended. */
static void rooms_leave(rooms *r)
{
    if (r->fate == FATE_FREED) {
        free(r->memory);
        r->memory = NULL;
    } else if (r->fate == FATE_NONE) {
        KIT_REQUIRE(!mprotect(r->memory, r->bytes, PROT_NONE));
    } else {
        memset(r->memory, 0x5a, r->bytes);
    }
}

/* Some time later. */
static void rooms_end(rooms *r)
{
    if (!r->memory) return;
    for (size_t i = 0; i < r->bytes && r->fate == FATE_FILLED; i++) KIT_REQUIRE(r->memory[i] == 0x5a);
    munmap(r->memory, r->bytes);
    r->memory = NULL;
}

/* ---------------------------------------------------------------- engines */

typedef struct engine {
    kit_raw *raw;
    uint64_t until;
    uint32_t number;
    bool is_patient; /* time limits are far away: loads are cancelled instead */
    pthread_t thread;
    uint64_t n_loads, n_pages, n_whole, n_cut;
} engine;

static void end_one(engine *e, rng *r, quire_chain *c, uint64_t text, rooms *kept)
{
    uint32_t first = rng_below(r, PAGES + 1), n = rng_below(r, PAGES - first + 1), got = 0;
    size_t bytes = e->raw->page_bytes, gap = rng_below(r, 2) ? 4096 - bytes % 4096 : rng_below(r, 64);
    const uint32_t limits[] = {0, 1, 3, 20, 10000};
    uint32_t limit = e->is_patient ? 3600000 : limits[rng_below(r, 5)];
    void *room[PAGES];
    uint8_t *expected = (uint8_t *)malloc(bytes);
    quire_load *load = NULL;
    rooms_end(kept);
    rooms_begin(kept, (fate)rng_below(r, N_FATES), n * (bytes + gap) + 1);
    for (uint32_t i = 0; i < n; i++) room[i] = kept->memory + i * (bytes + gap);
    KIT_REQUIRE(!quire_load_begin_raw(&load, c, first, n, room, limit));
    uint32_t way = rng_below(r, 4);
    if (way == 1) usleep(rng_below(r, 300));
    if (way == 2) usleep(rng_below(r, 4000));
    if (way == 3)
        for (uint32_t i = 0; i < 2000 && !quire_load_is_done(load); i++) usleep(100);
    if (way != 0 && rng_below(r, 3)) quire_load_cancel(load);
    KIT_REQUIRE(!quire_load_end(load, &got));
    KIT_REQUIRE(got % 64 == 0 && got / 64 >= first && got / 64 <= first + n);
    for (uint32_t i = 0; i < got / 64 - first; i++) {
        kit_raw_page(e->raw, text, first + i, expected);
        KIT_REQUIRE(!memcmp(room[i], expected, bytes));
    }
    e->n_loads++;
    e->n_pages += got / 64 - first;
    e->n_whole += got / 64 == first + n;
    e->n_cut += got / 64 != first + n;
    rooms_leave(kept);
    free(expected);
}

static void *run_engine(void *arg)
{
    engine *e = (engine *)arg;
    rng r = {e->number * 7919 + 1};
    rooms kept[KEPT] = {0};
    quire_chain *chain[TEXTS];
    for (uint32_t i = 0; i < TEXTS; i++) {
        uint32_t tokens[PAGES * 64];
        kit_raw_tokens(tokens, i, PAGES);
        KIT_REQUIRE(!quire_chain_create(&chain[i], e->raw->ns));
        KIT_REQUIRE(!quire_chain_append(chain[i], tokens, PAGES * 64, NULL, 0, 0));
    }
    for (uint32_t i = 0; quire_now() < e->until; i++) {
        uint64_t text = rng_below(&r, TEXTS);
        end_one(e, &r, chain[text], text, &kept[i % KEPT]);
    }
    usleep(20000);
    for (uint32_t i = 0; i < KEPT; i++) rooms_end(&kept[i]);
    for (uint32_t i = 0; i < TEXTS; i++) quire_chain_destroy(chain[i]);
    return NULL;
}

typedef struct tally {
    uint64_t n_loads, n_pages, n_whole, n_cut;
} tally;

static void attack_once(kit_raw *raw, uint64_t ms, bool is_patient, uint32_t seed, tally *t)
{
    engine e[ENGINES];
    for (uint32_t i = 0; i < ENGINES; i++) {
        e[i] = (engine){.raw = raw,
                        .until = quire_now() + ms * QUIRE_MS,
                        .number = seed * ENGINES + i,
                        .is_patient = is_patient};
        KIT_REQUIRE(!pthread_create(&e[i].thread, NULL, run_engine, &e[i]));
    }
    for (uint32_t i = 0; i < ENGINES; i++) {
        pthread_join(e[i].thread, NULL);
        t->n_loads += e[i].n_loads;
        t->n_pages += e[i].n_pages;
        t->n_whole += e[i].n_whole;
        t->n_cut += e[i].n_cut;
    }
}

static void attack(const char *what, kit_raw *raw, uint64_t ms, bool is_patient, bool shares)
{
    tally t = {0};
    bool is_one = false; /* loads that got everything, loads that did not, pages that were shared */
    for (uint32_t i = 0; i < 20 && !is_one; i++) {
        attack_once(raw, ms, is_patient, i, &t);
        is_one =
            t.n_whole && t.n_cut && t.n_pages && (!shares || quire_counted(&raw->store->counters.shared));
    }
    printf("%s, pages of %zu bytes: %llu loads, %llu pages; %llu whole, %llu cut short\n", what,
           raw->page_bytes, (unsigned long long)t.n_loads, (unsigned long long)t.n_pages,
           (unsigned long long)t.n_whole, (unsigned long long)t.n_cut);
    KIT_REQUIRE(is_one);
}

/* ------------------------------------------------------------------- places */

static void on_disk(size_t page_bytes, uint64_t ms)
{
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, 128u << 20, NULL);
    kit_raw raw;
    kit_raw_begin(&raw, store, page_bytes);
    for (uint32_t i = 0; i < TEXTS; i++) kit_raw_save(&raw, i, PAGES);
    KIT_REQUIRE(!quire_store_flush(store, 60000));
    attack("disk", &raw, ms, false, false);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_remove(dir);
}

static void on_server(size_t page_bytes, uint64_t ms, bool with_disk)
{
    char *dir = kit_directory(NULL);
    kit_server server;
    kit_proxy proxy;
    kit_server_start(&server, NULL);
    kit_proxy_start(&proxy, server.port);
    quire_store_remote direct = kit_remote(server.port), slow = kit_remote(proxy.port);
    quire_store *store = kit_open(NULL, 0, &direct);
    kit_raw raw;
    kit_raw_begin(&raw, store, page_bytes);
    for (uint32_t i = 0; i < TEXTS; i++) kit_raw_save(&raw, i, PAGES);
    KIT_REQUIRE(!quire_store_flush(store, 60000));
    attack("server", &raw, ms, false, false);
    kit_raw_end(&raw);
    quire_store_close(store);
    /* With a proxy that takes its time: replies come when the engine has left. */
    proxy.latency_ms = 2;
    store = kit_open(with_disk ? dir : NULL, with_disk ? 64u << 20 : 0, &slow);
    kit_raw_begin(&raw, store, page_bytes);
    attack(with_disk ? "slow server and disk" : "slow server", &raw, ms, false, false);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_proxy_end(&proxy);
    kit_server_end(&server);
    kit_remove(dir);
}

/* -------------------------------------------------------- scripted network */

static world w;
static quire_store scripted;
static pthread_mutex_t turn; /* the world has no threads: one at a time, and poll() calls others */
static quire_transport inner;

static uint64_t t_now(void *ctx)
{
    pthread_mutex_lock(&turn);
    uint64_t out = inner.now(ctx);
    pthread_mutex_unlock(&turn);
    return out;
}
static quire_link *t_open(void *ctx, const char *host, uint32_t port, uint32_t attempt)
{
    pthread_mutex_lock(&turn);
    quire_link *out = inner.open(ctx, host, port, attempt);
    pthread_mutex_unlock(&turn);
    return out;
}
static void t_close(quire_link *link)
{
    pthread_mutex_lock(&turn);
    inner.close(link);
    pthread_mutex_unlock(&turn);
}
static int t_connect(quire_link *link)
{
    pthread_mutex_lock(&turn);
    int out = inner.connect(link);
    pthread_mutex_unlock(&turn);
    return out;
}
static ssize_t t_read(quire_link *link, void *to, size_t n)
{
    pthread_mutex_lock(&turn);
    ssize_t out = inner.read(link, to, n);
    pthread_mutex_unlock(&turn);
    return out;
}
static ssize_t t_write(quire_link *link, const struct iovec *parts, int n)
{
    pthread_mutex_lock(&turn);
    ssize_t out = inner.write(link, parts, n);
    pthread_mutex_unlock(&turn);
    return out;
}
static bool t_pending(const quire_link *link)
{
    pthread_mutex_lock(&turn);
    bool out = inner.pending(link);
    pthread_mutex_unlock(&turn);
    return out;
}
static size_t t_unsent(const quire_link *link)
{
    pthread_mutex_lock(&turn);
    size_t out = inner.unsent(link);
    pthread_mutex_unlock(&turn);
    return out;
}
static void t_expect(quire_link *link, size_t n)
{
    pthread_mutex_lock(&turn);
    inner.expect(link, n);
    pthread_mutex_unlock(&turn);
}
static void t_poll(void *ctx, quire_link_poll *polls, uint32_t n, uint64_t ns)
{
    pthread_mutex_lock(&turn);
    inner.poll(ctx, polls, n, ns);
    pthread_mutex_unlock(&turn);
}

static void no_touch(void *ctx, quire_log_level level, const char *sentence)
{
    (void)ctx;
    (void)level;
    (void)sentence;
}

/* A store without a disk whose remote is the world: two masters. */
static void scripted_begin(uint32_t n_threads, uint64_t latency)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&turn, &attr);
    world_begin(&w);
    w.clock = quire_now();
    w.log.log.write = no_touch;
    w.log.now = NULL; /* the world's clock belongs to whoever has the turn */
    int one = world_add(&w, "10.0.0.1", 6379, -1), two = world_add(&w, "10.0.0.2", 6379, -1);
    world_slots(&w, 0, QUIRE_SLOTS / 2 - 1, one);
    world_slots(&w, QUIRE_SLOTS / 2, QUIRE_SLOTS - 1, two);
    w.peer[one].latency = w.peer[two].latency = latency;
    world_connect(&w, "10.0.0.1", 6379, NULL);
    inner = w.remote->transport;
    w.remote->transport = (quire_transport){inner.ctx, t_now,     t_open,   t_close,  t_connect, t_read,
                                            t_write,   t_pending, t_unsent, t_expect, t_poll};
    memset(&scripted, 0, sizeof scripted);
    scripted.allocator = w.allocator;
    scripted.remote = w.remote;
    for (int t = 0; t < 2; t++)
        KIT_REQUIRE(quire_queue_init(&scripted.queue[t], &scripted.allocator, 1 << 20,
                                     &scripted.counters.queued_bytes[t]));
    KIT_REQUIRE(!quire_loader_start(&scripted.loader, &scripted, 0, n_threads));
}

static void scripted_end(void)
{
    atomic_store(&scripted.stop, true);
    quire_loader_stop(&scripted.loader);
    for (int t = 0; t < 2; t++) quire_queue_fini(&scripted.queue[t]);
    w.remote->transport = inner;
    world_end(&w);
    pthread_mutex_destroy(&turn);
}

/* The pages of a text, sealed as a server would hold them. */
static void scripted_put(kit_raw *raw, uint64_t text, uint32_t n_pages)
{
    quire_key keys[64], objects[64];
    quire_sealer *sealer = quire_sealer_create(&w.allocator);
    uint8_t *page = (uint8_t *)malloc(raw->page_bytes);
    kit_raw_objects(raw, text, n_pages, keys, objects);
    pthread_mutex_lock(&turn);
    for (uint32_t i = 0; i < n_pages; i++) {
        quire_object_id id = quire_namespace_object(raw->ns, keys, &objects[i], 0, i);
        kit_raw_page(raw, text, i, page);
        world_put(&w, &objects[i], quire_sealed_bytes(id.bytes));
        KIT_REQUIRE(
            quire_seal(sealer, world_find(&w, &objects[i])->bytes, &raw->ns->seal_key, &id, page, NULL));
    }
    pthread_mutex_unlock(&turn);
    free(page);
    quire_sealer_destroy(sealer);
}

static void on_script(uint32_t n_threads, size_t page_bytes, uint64_t ms)
{
    kit_raw raw;
    static const size_t cuts[] = {70000, 5, 1400, 16384, 300};
    scripted_begin(n_threads, 300000);
    w.read_cuts = cuts;
    w.n_read_cuts = 5;
    kit_raw_begin(&raw, &scripted, page_bytes);
    for (uint32_t i = 0; i < TEXTS; i++) scripted_put(&raw, i, PAGES);
    attack("scripted network", &raw, ms, true, n_threads > 1);
    kit_raw_end(&raw);
    scripted_end();
}

/* ---------------------------------------------------------------- round trips */

/* Many prompts are asked for in one round trip to each node; what they have in common is asked for once. */
static void round_trips(void)
{
    enum { N = 60, SHARED = 6, OWN = 2 };
    static uint32_t tokens[N][(SHARED + OWN) * 64];
    quire_prompt prompts[N];
    uint32_t n[N] = {0};
    kit_raw raw;
    uint64_t latency = 100 * QUIRE_MS;
    scripted_begin(1, 0);
    kit_raw_begin(&raw, &scripted, 1000);
    scripted_put(&raw, 0, SHARED);
    for (uint32_t i = 0; i < N; i++) {
        kit_raw_tokens(tokens[i], 0, SHARED + OWN);
        for (uint32_t k = SHARED * 64; k < (SHARED + OWN) * 64; k++) tokens[i][k] = i + k;
        prompts[i] =
            (quire_prompt){.size = sizeof prompts[i], .tokens = tokens[i], .n_tokens = (SHARED + OWN) * 64};
    }
    for (uint32_t i = 0; i < 3; i++) { /* the first ones connect and learn the slots */
        KIT_REQUIRE(!quire_namespace_lookup_many(raw.ns, prompts, sizeof *prompts, N, 3600000, n));
        quire_keeper_step(w.remote, w.keeper);
    }
    pthread_mutex_lock(&turn);
    for (uint32_t i = 0; i < 2; i++) w.peer[i].latency = latency;
    uint64_t before = w.clock, reads = w.peer[0].n_reads + w.peer[1].n_reads;
    uint32_t opened = w.n_opened;
    pthread_mutex_unlock(&turn);
    KIT_REQUIRE(!quire_namespace_lookup_many(raw.ns, prompts, sizeof *prompts, N, 3600000, n));
    pthread_mutex_lock(&turn);
    uint64_t took = w.clock - before;
    reads = w.peer[0].n_reads + w.peer[1].n_reads - reads;
    KIT_REQUIRE(w.n_opened == opened);
    pthread_mutex_unlock(&turn);
    printf("%d prompts of %d pages: %.2f round trips, %llu questions\n", N, SHARED + OWN,
           (double)took / (double)latency, (unsigned long long)reads);
    for (uint32_t i = 0; i < N; i++) KIT_REQUIRE(n[i] == SHARED * 64);
    KIT_REQUIRE(took >= latency && took < latency * 5 / 4);
    KIT_REQUIRE(reads == SHARED + N * OWN);
    KIT_REQUIRE(quire_counted(&scripted.counters.loads) == 0); /* a question is no load */
    kit_raw_end(&raw);
    scripted_end();
}

int main(int argc, char **argv)
{
    uint64_t ms = argc > 1 ? (uint64_t)atoi(argv[1]) : 1500; /* each */
    setvbuf(stdout, NULL, _IOLBF, 0);
    round_trips();
    on_script(1, 20000, ms);
    on_script(2, 300000, ms);
    on_disk(5000, ms);
    on_disk(300000, ms);
    on_disk(1300000, ms);
    kit_need_redis();
    on_server(300000, ms, false);
    on_server(20000, ms, true);
    return 0;
}
