/* SPDX-License-Identifier: MIT */
/* Tenants in one directory: what each has, removal, limits. Also with several processes, and with an index that is made anew. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/file_kit.h"
#include "store/kit/tenant_kit.h"
#include "store/disk_inside.h"
#include "store/store.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------- names */

static void names(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), text[80], path[512];
    quire_namespace *ns = NULL;
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    quire_identity id = kit_identity(1);
    const char *const wrong[] = {"a\nb", "\x7f", "tab\t"};
    for (size_t i = 0; i < 3; i++) {
        id.tenant_name = wrong[i];
        id.model_name = NULL;
        assert_int_equal(quire_namespace_create_raw(&ns, store, &id, "rows", 100), QUIRE_EINVAL);
        id.tenant_name = NULL;
        id.model_name = wrong[i];
        assert_int_equal(quire_namespace_create_raw(&ns, store, &id, "rows", 100), QUIRE_EINVAL);
    }
    memset(text, 'x', sizeof text);
    text[64] = 0;
    id.model_name = text;
    assert_int_equal(quire_namespace_create_raw(&ns, store, &id, "rows", 100), QUIRE_EINVAL);
    text[63] = 0;

    /* Names do not change the root. Those given last are kept; giving none changes nothing. */
    kit_tenant a, b, c;
    kit_tenant_begin(&a, store, 1, "Müller & Söhne", text, 5000);
    kit_tenant_begin(&b, store, 1, NULL, "", 5000);
    uint8_t root[2][32];
    quire_namespace_root(a.raw.ns, root[0]);
    quire_namespace_root(b.raw.ns, root[1]);
    assert_memory_equal(root[0], root[1], 32);
    kit_raw_save(&b.raw, 1, 1);
    kit_tenants_flush(store);
    kit_usage u = kit_usage_get(store);
    assert_int_equal(u.n, 1);
    assert_string_equal(u.one[0].tenant_name, "");
    kit_raw_save(&a.raw, 2, 1);
    kit_tenants_flush(store);
    kit_raw_save(&b.raw, 3, 1);
    kit_tenants_flush(store);
    for (int i = 0; i < 2; i++) { /* the second time with a new index */
        u = kit_usage_get(store);
        assert_int_equal(u.n, 1);
        assert_string_equal(u.one[0].tenant_name, "Müller & Söhne");
        assert_string_equal(u.one[0].model_name, text);
        assert_memory_equal(u.one[0].root, root[0], 32);
        assert_int_equal(u.one[0].objects, 3);
        assert_int_equal(u.one[0].bytes, 3 * quire_record_bytes(5000));
        kit_tenant_end(&a);
        kit_tenant_end(&b);
        quire_store_close(store);
        snprintf(path, sizeof path, "%s/index", dir);
        if (!i) assert_int_equal(unlink(path), 0);
        store = kit_open(dir, 0, NULL);
        kit_wait_for_scan(store);
        kit_tenant_begin(&a, store, 1, "Müller & Söhne", text, 5000);
        kit_tenant_begin(&b, store, 1, NULL, NULL, 5000);
    }
    kit_tenant_begin(&c, store, 1, "another name", "m", 5000);
    kit_raw_save(&c.raw, 4, 1);
    kit_tenants_flush(store);
    u = kit_usage_get(store);
    assert_int_equal(u.n, 1);
    assert_string_equal(u.one[0].tenant_name, "another name");
    kit_tenant_end(&a);
    kit_tenant_end(&b);
    kit_tenant_end(&c);
    quire_store_close(store);
    kit_remove(dir);
}

static quire_status stop(void *ctx, const quire_namespace_usage *u)
{
    (void)u;
    ++*(int *)ctx;
    return QUIRE_EIO;
}

static void usage(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_tenant t[40];
    uint64_t begin = quire_now_us();
    for (uint32_t i = 0; i < 40; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", i);
        kit_tenant_begin(&t[i], store, (uint8_t)(i + 1), name, "model", 5000);
        kit_raw_save(&t[i].raw, 7, i + 1);
    }
    kit_tenants_flush(store);
    uint32_t tokens[64 * 64], n;
    kit_raw_tokens(tokens, 7, 12);
    quire_prompt p = {.size = sizeof p, .tokens = tokens, .n_tokens = 12 * 64};
    assert_int_equal(quire_namespace_pin(t[11].raw.ns, &p, 1, 10000, &n), QUIRE_OK);
    kit_usage u = kit_usage_get(store);
    assert_int_equal(u.n, 40);
    for (uint32_t i = 0; i < 40; i++) {
        const quire_namespace_usage *one = kit_usage_of(&u, &t[i]);
        assert_non_null(one);
        assert_int_equal(one->objects, i + 1);
        assert_int_equal(one->bytes, (i + 1) * quire_record_bytes(5000));
        assert_int_equal(one->pinned, i == 11 ? 12 : 0);
        assert_int_equal(one->quota_bytes, 0);
        assert_true(one->last_used_us >= begin && one->last_used_us <= quire_now_us() + 1000);
        quire_namespace_stats s = {.size = sizeof s};
        assert_int_equal(quire_namespace_stats_get(t[i].raw.ns, &s), QUIRE_OK);
        assert_int_equal(s.disk_objects, i + 1);
        assert_int_equal(s.disk_bytes, one->bytes);
        assert_int_equal(s.saved[0], i + 1);
        assert_int_equal(s.saved_bytes[0], (i + 1) * 5000);
    }
    int calls = 0;
    assert_int_equal(quire_store_usage_each(store, stop, &calls), QUIRE_EIO);
    assert_int_equal(calls, 1);
    assert_int_equal(quire_namespace_pin(t[11].raw.ns, &p, 0, 10000, &n), QUIRE_OK);
    u = kit_usage_get(store);
    assert_int_equal(kit_usage_of(&u, &t[11])->pinned, 0);
    for (uint32_t i = 0; i < 40; i++) kit_tenant_end(&t[i]);
    quire_store_close(store);
    kit_remove(dir);
}

/* Counters are those of the namespace that did it, and their sums those of the store. */
static void counters(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_tenant t[2];
    kit_tenant_begin(&t[0], store, 1, "a", "m", 5000);
    kit_tenant_begin(&t[1], store, 2, "b", "m", 9000);
    kit_raw_save(&t[0].raw, 1, 4);
    kit_raw_save(&t[1].raw, 1, 6);
    kit_tenants_flush(store);
    assert_int_equal(kit_raw_load(&t[0].raw, 1, 6, 5000), 4);
    assert_int_equal(kit_raw_load(&t[1].raw, 1, 6, 5000), 6);
    assert_int_equal(kit_raw_load(&t[1].raw, 2, 3, 5000), 0);
    quire_namespace_stats s[2] = {{.size = sizeof s[0]}, {.size = sizeof s[0]}};
    for (int i = 0; i < 2; i++) assert_int_equal(quire_namespace_stats_get(t[i].raw.ns, &s[i]), QUIRE_OK);
    assert_int_equal(s[0].loads, 1);
    assert_int_equal(s[1].loads, 2);
    assert_int_equal(s[0].loaded[0], 4);
    assert_int_equal(s[1].loaded[0], 6);
    assert_int_equal(s[1].loaded_bytes[0], 6 * 9000);
    assert_int_equal(s[0].misses[QUIRE_MISS_ABSENT], 2);
    assert_int_equal(s[1].misses[QUIRE_MISS_ABSENT], 3);
    assert_int_equal(s[0].saved[0], 4);
    assert_int_equal(s[1].saved[0], 6);
    quire_store_stats all = kit_stats(store);
    assert_int_equal(all.loads, 3);
    assert_int_equal(all.loaded[0], 10);
    assert_int_equal(all.saved[0], 10);
    assert_int_equal(quire_namespace_stats_get(NULL, &s[0]), QUIRE_EINVAL);
    kit_tenant_end(&t[0]);
    kit_tenant_end(&t[1]);
    quire_store_close(store);
    kit_remove(dir);
}

/* ----------------------------------------------------------------- removal */

static void removal(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), path[512];
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_tenant a, a2, b;
    uint64_t n = 77;
    uint32_t tokens[64 * 64];
    kit_tenant_begin(&a, store, 1, "alice", "large", 20000);
    kit_tenant_begin(&a2, store, 1, "alice", "small", 9000);
    kit_tenant_begin(&b, store, 2, "bob", "large", 20000);
    kit_raw_save(&a.raw, 1, 20);
    kit_raw_save(&a2.raw, 1, 20);
    kit_raw_save(&b.raw, 1, 20);
    kit_tenants_flush(store);
    /* Evicted pages lie in free space: they go, too. */
    kit_raw_tokens(tokens, 1, 20);
    quire_prompt p = {.size = sizeof p, .tokens = tokens, .n_tokens = 20 * 64};
    assert_int_equal(quire_namespace_pin(a.raw.ns, &p, 1, 10000, NULL), QUIRE_OK);
    quire_key objects[20];
    kit_raw_objects(&a2.raw, 1, 20, NULL, objects);
    assert_int_equal(quire_disk_remove(store->disk, objects, 5), 5);

    quire_store_selection s = {.size = sizeof s};
    assert_int_equal(quire_store_remove(store, &s, &n), QUIRE_EINVAL);
    assert_int_equal(quire_store_remove(store, NULL, &n), QUIRE_EINVAL);
    s.tenant_name = "nobody";
    assert_int_equal(quire_store_remove(store, &s, &n), QUIRE_OK);
    assert_int_equal(n, 0);
    s.tenant_name = "alice";
    s.model_name = "medium";
    assert_int_equal(quire_store_remove(store, &s, &n), QUIRE_OK);
    assert_int_equal(n, 0);
    s.model_name = NULL;
    s.tenant = b.tenant; /* both must match */
    assert_int_equal(quire_store_remove(store, &s, &n), QUIRE_OK);
    assert_int_equal(n, 0);
    s.tenant = a.tenant;
    assert_int_equal(quire_store_remove(store, &s, &n), QUIRE_OK);
    assert_int_equal(n, 35);
    assert_int_equal(kit_raw_load(&a.raw, 1, 20, 5000), 0);
    assert_int_equal(kit_raw_load(&a2.raw, 1, 20, 5000), 0);
    assert_int_equal(kit_raw_load(&b.raw, 1, 20, 5000), 20);
    assert_int_equal(kit_stats(store).pinned_objects, 0);
    kit_usage u = kit_usage_get(store);
    assert_int_equal(u.n, 1);
    assert_string_equal(u.one[0].tenant_name, "bob");
    assert_int_equal(kit_verify(store), 20);

    /* The same pages can be saved again at once, and removed through their namespace. */
    kit_raw_save(&a.raw, 1, 20);
    kit_tenants_flush(store);
    assert_int_equal(kit_raw_load(&a.raw, 1, 20, 5000), 20);
    kit_raw_save(&a.raw, 2, 3); /* queued pages go, too */
    assert_int_equal(quire_namespace_remove(a.raw.ns, &n), QUIRE_OK);
    assert_int_equal(n, 23);
    kit_raw_save(&a.raw, 3, 2);
    kit_tenants_flush(store);
    assert_int_equal(kit_raw_load(&a.raw, 3, 2, 5000), 2);
    s = (quire_store_selection){.size = sizeof s, .tenant_name = "alice", .model_name = "large"};
    assert_int_equal(quire_store_remove(store, &s, NULL), QUIRE_OK);

    /* Nothing of it comes back with a new index, and no file has its bytes. */
    kit_tenant_end(&a);
    kit_tenant_end(&a2);
    kit_tenant_end(&b);
    quire_store_close(store);
    for (uint32_t i = 0; i < 20; i++) {
        assert_false(kit_is_in_files(dir, &a, 1, i));
        assert_false(kit_is_in_files(dir, &a2, 1, i));
        assert_true(kit_is_in_files(dir, &b, 1, i));
    }
    snprintf(path, sizeof path, "%s/index", dir);
    assert_int_equal(unlink(path), 0);
    store = kit_open(dir, 0, NULL);
    kit_wait_for_scan(store);
    assert_int_equal(kit_verify(store), 20);
    u = kit_usage_get(store);
    assert_int_equal(u.n, 1);
    assert_string_equal(u.one[0].tenant_name, "bob");
    quire_store_close(store);
    kit_remove(dir);
}

/* A removal that begins while the index is made anew finds everything. */
static void removal_during_scan(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), path[512];
    quire_store *store = kit_open(dir, 512ull << 20, NULL);
    kit_tenant a, b;
    kit_tenant_begin(&a, store, 1, "alice", "m", 8000);
    kit_tenant_begin(&b, store, 2, "bob", "m", 8000);
    for (uint32_t i = 0; i < 20; i++) {
        kit_raw_save(&a.raw, i, 30);
        kit_raw_save(&b.raw, i, 30);
    }
    kit_tenants_flush(store);
    kit_tenant_end(&a);
    kit_tenant_end(&b);
    quire_store_close(store);
    snprintf(path, sizeof path, "%s/index", dir);
    assert_int_equal(unlink(path), 0);
    store = kit_open(dir, 0, NULL);
    quire_disk_usage usage;
    quire_disk_usage_get(store->disk, &usage);
    printf("%s when the removal begins\n", usage.is_scanning ? "scanning" : "not scanning");
    quire_store_selection s = {.size = sizeof s, .tenant_name = "alice"};
    uint64_t n;
    assert_int_equal(quire_store_remove(store, &s, &n), QUIRE_OK);
    assert_int_equal(n, 600);
    assert_int_equal(kit_verify(store), 600);
    kit_usage u = kit_usage_get(store);
    assert_int_equal(u.n, 1);
    assert_string_equal(u.one[0].tenant_name, "bob");
    quire_store_close(store);
    assert_int_equal(unlink(path), 0);
    store = kit_open(dir, 0, NULL);
    kit_wait_for_scan(store);
    assert_int_equal(kit_verify(store), 600);
    quire_store_close(store);
    kit_remove(dir);
}

/* ------------------------------------------------------------------ limits */

#define RECORD quire_record_bytes(5000)

static uint64_t bytes_of(quire_store *store, const kit_tenant *t)
{
    kit_usage u = kit_usage_get(store);
    const quire_namespace_usage *one = kit_usage_of(&u, t);
    return one ? one->bytes : 0;
}

static void limits(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    kit_log log = {0};
    quire_log l = {sizeof l, &log, kit_log_write};
    quire_store_options o = kit_options(dir, KIT_CAP, NULL);
    quire_store *store = NULL;
    o.tenant_bytes = 40 * RECORD;
    o.log = &l;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    kit_tenant a, b;
    kit_tenant_begin(&a, store, 1, "a", "m", 5000);
    kit_tenant_begin(&b, store, 2, "b", "m", 5000);
    kit_raw_save(&b.raw, 1, 30);
    kit_tenants_flush(store);
    for (uint32_t i = 0; i < 80; i++) { /* twenty times the limit */
        kit_raw_save(&a.raw, i, 10);
        kit_tenants_flush(store);
        assert_true(bytes_of(store, &a) <= 40 * RECORD);
        assert_int_equal(kit_raw_load(&a.raw, i, 10, 5000), 10);
    }
    assert_true(bytes_of(store, &a) >= 30 * RECORD);
    assert_int_equal(bytes_of(store, &b), 30 * RECORD);
    assert_int_equal(kit_raw_load(&b.raw, 1, 30, 5000), 30); /* older than all others, and still there */
    assert_int_equal(kit_raw_load(&a.raw, 78, 10, 5000), 10);
    assert_int_equal(kit_raw_load(&a.raw, 10, 10, 5000), 0);
    assert_int_equal(kit_stats(store).dropped[0] + kit_stats(store).failed[0], 0);

    /* A limit of its own, at once and in the next process. */
    assert_int_equal(quire_store_set_quota(store, a.tenant, 15 * RECORD), QUIRE_OK);
    assert_int_equal(bytes_of(store, &a), 15 * RECORD);
    assert_int_equal(quire_store_set_quota(store, NULL, 1), QUIRE_EINVAL);
    assert_int_equal(quire_store_set_quota(store, b.tenant, UINT64_MAX), QUIRE_OK);
    kit_tenant_end(&a);
    kit_tenant_end(&b);
    quire_store_close(store);
    o.tenant_bytes = 0;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    kit_tenant_begin(&a, store, 1, "a", "m", 5000);
    kit_tenant_begin(&b, store, 2, "b", "m", 5000);
    kit_usage u = kit_usage_get(store);
    assert_int_equal(kit_usage_of(&u, &a)->quota_bytes, 15 * RECORD);
    assert_int_equal(kit_usage_of(&u, &b)->quota_bytes, 0);
    kit_raw_save(&a.raw, 200, 20);
    kit_raw_save(&b.raw, 200, 50);
    kit_tenants_flush(store);
    assert_true(bytes_of(store, &a) <= 15 * RECORD);
    assert_int_equal(bytes_of(store, &b), 80 * RECORD);

    /* What is pinned stays; then nothing can be saved. */
    uint32_t tokens[64 * 64], n;
    assert_int_equal(quire_store_set_quota(store, a.tenant, 20 * RECORD), QUIRE_OK);
    kit_raw_save(&a.raw, 300, 20);
    kit_tenants_flush(store);
    kit_raw_tokens(tokens, 300, 20);
    quire_prompt p = {.size = sizeof p, .tokens = tokens, .n_tokens = 20 * 64};
    assert_int_equal(quire_namespace_pin(a.raw.ns, &p, 1, 10000, &n), QUIRE_OK);
    uint64_t pinned = kit_stats(store).pinned_objects;
    assert_true(pinned >= 15 && n >= 15 * 64);
    assert_int_equal(quire_store_set_quota(store, a.tenant, pinned * RECORD), QUIRE_OK);
    kit_raw_save(&a.raw, 301, 20);
    kit_tenants_flush(store);
    quire_namespace_stats s = {.size = sizeof s};
    assert_int_equal(quire_namespace_stats_get(a.raw.ns, &s), QUIRE_OK);
    assert_int_equal(s.dropped[0], 20);
    assert_int_equal(s.failed[0], 0);
    assert_int_equal(kit_raw_load(&a.raw, 300, 20, 5000), n / 64);
    assert_int_equal(bytes_of(store, &a), pinned * RECORD);
    assert_int_equal(quire_store_set_quota(store, a.tenant, 2 * RECORD), QUIRE_OK);
    assert_true(bytes_of(store, &a) > 2 * RECORD);

    /* Back to that of all; the file is damaged: that of all which the process was given. */
    assert_int_equal(quire_store_set_quota(store, a.tenant, 0), QUIRE_OK);
    u = kit_usage_get(store);
    assert_int_equal(kit_usage_of(&u, &a)->quota_bytes, 40 * RECORD);
    assert_int_equal(log.n_warnings, 0);
    kit_tenant_end(&a);
    kit_tenant_end(&b);
    quire_store_close(store);
    char path[512];
    snprintf(path, sizeof path, "%s/quotas", dir);
    kit_flip_bit(path, 40, 3);
    o.tenant_bytes = 0;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    u = kit_usage_get(store);
    assert_int_equal(u.n, 2);
    assert_int_equal(u.one[0].quota_bytes + u.one[1].quota_bytes, 0);
    assert_int_equal(log.n_warnings, 1);
    assert_non_null(strstr(log.last, "quotas is damaged"));
    assert_int_equal(quire_store_set_quota(store, a.tenant, 33 * RECORD), QUIRE_EFORMAT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(quire_store_set_quota(store, a.tenant, 33 * RECORD), QUIRE_OK);
    u = kit_usage_get(store);
    assert_int_equal(u.one[0].quota_bytes + u.one[1].quota_bytes, 33 * RECORD);
    quire_store_close(store);
    kit_remove(dir);
}

/* --------------------------------------------------------------- processes */

/* Program: saves for one tenant until killed or for so many rounds; the limit of both tenants holds all the time. */
static int work(const char *dir, const char *tenant, const char *rounds)
{
    kit_tenant t;
    uint32_t who = (uint32_t)atoi(tenant), n = (uint32_t)atoi(rounds);
    quire_store *store = kit_open(dir, 0, NULL);
    kit_tenant_begin(&t, store, (uint8_t)who, tenant, "m", 5000);
    for (uint32_t i = 0; i < n; i++) {
        kit_raw_save(&t.raw, i, 10);
        if (i % 4 == 3) kit_tenants_flush(store);
        kit_usage u = kit_usage_get(store);
        for (uint32_t k = 0; k < u.n; k++)
            KIT_REQUIRE(!u.one[k].quota_bytes || u.one[k].bytes <= u.one[k].quota_bytes);
    }
    kit_tenants_flush(store);
    quire_store_stats s = kit_stats(store);
    KIT_REQUIRE(s.failed[0] == 0 && s.dropped[0] == 0);
    for (int i = QUIRE_MISS_MAGIC; i <= QUIRE_MISS_DISK; i++) KIT_REQUIRE(s.misses[i] == 0);
    kit_tenant_end(&t);
    quire_store_close(store);
    return 0;
}

static pid_t start(const char *dir, const char *tenant, const char *rounds)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid) return pid;
    execl("/proc/self/exe", "tenants", "work", dir, tenant, rounds, (char *)NULL);
    _exit(127);
}

static void finish(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Two tenants in three processes; a limit that is set while they run holds for all. */
static void limits_of_processes(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_tenant c;
    kit_tenant_begin(&c, store, 3, "3", "m", 5000);
    assert_int_equal(quire_store_set_quota(store, c.tenant, 100 * RECORD), QUIRE_OK);
    kit_tenant t1 = c, t2 = c;
    kit_tenant_id(1, t1.tenant);
    kit_tenant_id(2, t2.tenant);
    assert_int_equal(quire_store_set_quota(store, t1.tenant, 40 * RECORD), QUIRE_OK);
    assert_int_equal(quire_store_set_quota(store, t2.tenant, 60 * RECORD), QUIRE_OK);
    kit_raw_save(&c.raw, 5, 40); /* saved first: would go first */
    kit_tenants_flush(store);
    pid_t a = start(dir, "1", "80"), a2 = start(dir, "1", "80"), b = start(dir, "2", "120");
    finish(a);
    finish(a2);
    finish(b);
    kit_usage u = kit_usage_get(store);
    assert_int_equal(u.n, 3);
    for (uint32_t i = 0; i < 3; i++) {
        bool is_1 = !memcmp(u.one[i].tenant, t1.tenant, 16), is_2 = !memcmp(u.one[i].tenant, t2.tenant, 16);
        uint64_t limit = is_1 ? 40 : is_2 ? 60 : 100;
        assert_int_equal(u.one[i].quota_bytes, limit * RECORD);
        assert_true(u.one[i].bytes <= limit * RECORD);
        if (is_1 || is_2) assert_true(u.one[i].bytes >= (limit - 10) * RECORD);
    }
    assert_int_equal(kit_raw_load(&c.raw, 5, 40, 5000), 40);
    assert_int_equal(kit_verify(store), kit_stats(store).disk_objects);
    kit_tenant_end(&c);
    quire_store_close(store);
    kit_remove(dir);
}

/* Removed while another process saves and loads: what it saves later is new, and nothing is damaged. */
static void removal_beside_others(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    pid_t a = start(dir, "1", "60"), b = start(dir, "2", "60");
    uint8_t tenant[16];
    uint64_t n, sum = 0;
    kit_tenant_id(1, tenant);
    quire_store_selection s = {.size = sizeof s, .tenant = tenant};
    int status = 0, rounds = 0;
    while (waitpid(a, &status, WNOHANG) == 0) {
        assert_int_equal(quire_store_remove(store, &s, &n), QUIRE_OK);
        sum += n;
        rounds++;
        usleep(20000);
    }
    assert_int_equal(status, 0);
    finish(b);
    assert_int_equal(quire_store_remove(store, &s, &n), QUIRE_OK);
    printf("%llu pages removed in %d rounds while they were saved\n", (unsigned long long)(sum + n), rounds);
    assert_true(rounds > 1 && sum > 0);
    kit_usage u = kit_usage_get(store);
    assert_int_equal(u.n, 1);
    assert_string_equal(u.one[0].tenant_name, "2");
    assert_int_equal(u.one[0].objects, 600);
    assert_int_equal(kit_verify(store), 600);
    quire_store_close(store);
    kit_remove(dir);
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "work")) return work(argv[2], argv[3], argv[4]);
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(usage),
        cmocka_unit_test(counters),
        cmocka_unit_test(removal),
        cmocka_unit_test(removal_during_scan),
        cmocka_unit_test(limits),
        cmocka_unit_test(limits_of_processes),
        cmocka_unit_test(removal_beside_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
