/* SPDX-License-Identifier: MIT */
/* Counters and durations: what is counted, and the text for Prometheus, checked here and by promtool where it is installed. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/raw_kit.h"
#include "store/kit/servers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 60000u
#define PAGES 5u

typedef struct text {
    char bytes[1 << 16];
    size_t n, fails_at;
} text;

static quire_status take(void *ctx, const void *bytes, size_t n)
{
    text *t = (text *)ctx;
    if (t->fails_at && t->n >= t->fails_at) return QUIRE_EIO;
    assert_true(t->n + n < sizeof t->bytes);
    memcpy(t->bytes + t->n, bytes, n);
    t->n += n;
    t->bytes[t->n] = 0;
    return QUIRE_OK;
}

/* The value of a sample, named with its labels; -1: there is none. */
static double value_of(const text *t, const char *sample)
{
    size_t n = strlen(sample);
    for (const char *at = t->bytes; (at = strstr(at, sample)); at++)
        if ((at == t->bytes || at[-1] == '\n') && at[n] == ' ') return strtod(at + n + 1, NULL);
    return -1;
}

/* Every line is a comment or a sample of the family whose TYPE came last, and no sample comes twice. */
static void check_form(const text *t)
{
    static char copy[1 << 16];
    char family[128] = "", type[32] = "", *lines[2048], *rest = copy;
    size_t n_lines = 0;
    memcpy(copy, t->bytes, t->n + 1);
    assert_true(t->n && t->bytes[t->n - 1] == '\n');
    for (char *line; (line = strsep(&rest, "\n")) && rest;) {
        if (strncmp(line, "# HELP ", 7) == 0) {
            assert_int_equal(sscanf(line, "# HELP %127s", family), 1);
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            char name[128];
            assert_int_equal(sscanf(line, "# TYPE %127s %31s", name, type), 2);
            assert_string_equal(name, family);
            assert_int_equal(strcmp(type, "counter") == 0,
                             strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_total") == 0);
        } else {
            char *end, *value = strrchr(line, ' ');
            assert_non_null(value);
            assert_memory_equal(line, family, strlen(family));
            assert_true(strtod(value + 1, &end) >= 0 && !*end);
            *value = 0;
            for (size_t i = 0; i < n_lines; i++) assert_string_not_equal(lines[i], line);
            assert_true(n_lines < sizeof lines / sizeof *lines);
            lines[n_lines++] = line;
        }
    }
    assert_true(n_lines > 100);
}

/* A tool that reads such texts for a living. */
static void check_with_promtool(const text *t)
{
    if (system("command -v promtool >/dev/null 2>&1")) {
        print_message("promtool is not installed; the text was checked without it\n");
        return;
    }
    FILE *f = popen("promtool check metrics", "w");
    assert_non_null(f);
    assert_int_equal(fwrite(t->bytes, t->n, 1, f), 1);
    assert_int_equal(pclose(f), 0);
}

static uint64_t count_of(quire_store *store, quire_timed what)
{
    quire_store_times t = {.size = sizeof t};
    uint64_t n = 0;
    assert_int_equal(quire_store_times_get(store, what, &t), QUIRE_OK);
    assert_int_equal(t.n_bounds, 18);
    assert_int_equal(t.bound_ns[0], 100000);
    assert_int_equal(t.bound_ns[17], 60 * QUIRE_SECOND);
    for (uint64_t i = 0; i <= t.n_bounds; i++) n += t.counts[i];
    assert_int_equal(n, t.n);
    assert_true(!t.n == !t.sum_ns);
    return t.n;
}

static void disk_tier(void **state)
{
    (void)state;
    static text t;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_raw raw;
    kit_raw_begin(&raw, store, PAGE);
    for (int i = 0; i < QUIRE_TIMED_COUNT; i++) assert_int_equal(count_of(store, (quire_timed)i), 0);
    kit_raw_save(&raw, 1, PAGES);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    assert_int_equal(kit_raw_load(&raw, 1, PAGES, 5000), PAGES);
    assert_int_equal(kit_raw_load(&raw, 2, PAGES, 5000), 0);
    assert_int_equal(count_of(store, QUIRE_TIMED_LOAD), 2);
    assert_int_equal(count_of(store, QUIRE_TIMED_DISK_READ), PAGES);
    assert_int_equal(count_of(store, QUIRE_TIMED_DISK_QUEUE), PAGES);
    assert_in_range(count_of(store, QUIRE_TIMED_DISK_SAVE), 1, PAGES);
    assert_int_equal(count_of(store, QUIRE_TIMED_REMOTE_READ), 0);
    quire_store_times times = {.size = sizeof times};
    assert_int_equal(quire_store_times_get(store, QUIRE_TIMED_COUNT, &times), QUIRE_EINVAL);
    assert_int_equal(quire_store_times_get(NULL, QUIRE_TIMED_LOAD, &times), QUIRE_EINVAL);

    t.n = 0;
    assert_int_equal(quire_store_write_metrics(store, "server=\"a \\\"b\\\"\",_x9=\"\"", take, &t), QUIRE_OK);
    check_form(&t);
    check_with_promtool(&t);
#define OF "server=\"a \\\"b\\\"\",_x9=\"\""
    assert_true(value_of(&t, "quire_store_loads_total{" OF "}") == 2);
    assert_true(value_of(&t, "quire_store_loaded_pages_total{" OF ",tier=\"disk\"}") == PAGES);
    assert_true(value_of(&t, "quire_store_loaded_bytes_total{" OF ",tier=\"disk\"}") == PAGES * PAGE);
    assert_true(value_of(&t, "quire_store_missed_pages_total{" OF ",reason=\"ABSENT\"}") == PAGES);
    assert_true(value_of(&t, "quire_store_disk_cap_bytes{" OF "}") == KIT_CAP);
    assert_true(value_of(&t, "quire_store_disk_pages{" OF "}") == PAGES);
    assert_true(value_of(&t, "quire_store_queue_cap_bytes{" OF "}") == 256 << 20);
    assert_true(value_of(&t, "quire_store_read_seconds_count{" OF ",tier=\"disk\"}") == PAGES);
    assert_true(value_of(&t, "quire_store_read_seconds_bucket{" OF ",tier=\"disk\",le=\"60.0\"}") == PAGES);
    assert_true(value_of(&t, "quire_store_read_seconds_bucket{" OF ",tier=\"disk\",le=\"+Inf\"}") == PAGES);
    assert_true(value_of(&t, "quire_store_read_seconds_sum{" OF ",tier=\"disk\"}") > 0);
    assert_true(value_of(&t, "quire_store_nodes{" OF "}") == -1); /* no such tier */
    assert_null(strstr(t.bytes, "tier=\"remote\""));

    static const char *const wrong[] = {"server",        "server=",   "server=a", "server=\"a",
                                        "server=\"a\",", "=\"a\"",    "1=\"a\"",  "a=\"b\"}",
                                        "a=\"\n\"",      "a=\"\\x\"", "a=\"\\",   "a=\"b\" c=\"d\""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(quire_store_write_metrics(store, wrong[i], take, &t), QUIRE_EINVAL);
    assert_int_equal(quire_store_write_metrics(store, NULL, NULL, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_store_write_metrics(NULL, NULL, take, &t), QUIRE_EINVAL);
    t = (text){.fails_at = 3000};
    assert_int_equal(quire_store_write_metrics(store, NULL, take, &t), QUIRE_EIO);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_remove(dir);
}

static void both_tiers(void **state)
{
    (void)state;
    static text t;
    kit_server server;
    kit_raw raw;
    kit_server_start(&server, NULL);
    quire_store_remote remote = kit_remote(server.port);
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(NULL, 0, &remote);
    kit_raw_begin(&raw, store, PAGE);
    kit_raw_save(&raw, 1, PAGES);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    assert_int_equal(count_of(store, QUIRE_TIMED_REMOTE_QUEUE), PAGES);
    assert_in_range(count_of(store, QUIRE_TIMED_REMOTE_SAVE), 1, PAGES);
    kit_raw_end(&raw);
    quire_store_close(store);

    store = kit_open(dir, KIT_CAP, &remote);
    kit_raw_begin(&raw, store, PAGE);
    assert_int_equal(kit_raw_load(&raw, 1, PAGES, 5000), PAGES);
    assert_int_equal(count_of(store, QUIRE_TIMED_REMOTE_READ), PAGES);
    assert_int_equal(count_of(store, QUIRE_TIMED_DISK_READ), 0);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    assert_int_equal(kit_raw_load(&raw, 1, PAGES, 5000), PAGES);
    assert_int_equal(count_of(store, QUIRE_TIMED_DISK_READ), PAGES);
    t.n = 0;
    assert_int_equal(quire_store_write_metrics(store, NULL, take, &t), QUIRE_OK);
    check_form(&t);
    check_with_promtool(&t);
    assert_true(value_of(&t, "quire_store_nodes") == 1);
    assert_true(value_of(&t, "quire_store_nodes_down") == 0);
    assert_true(value_of(&t, "quire_store_nodes_refusing") == 0);
    assert_true(value_of(&t, "quire_store_loads_total") == 2);
    assert_true(value_of(&t, "quire_store_loaded_pages_total{tier=\"remote\"}") == PAGES);
    assert_true(value_of(&t, "quire_store_read_seconds_count{tier=\"remote\"}") == PAGES);
    assert_true(value_of(&t, "quire_store_load_seconds_count") == 2);
    if (getenv("QUIRE_TEST_METRICS")) { /* for another parser */
        FILE *f = fopen(getenv("QUIRE_TEST_METRICS"), "w");
        assert_non_null(f);
        fputs(t.bytes, f);
        fclose(f);
    }
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_remove(dir);
    kit_server_end(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(disk_tier), cmocka_unit_test(both_tiers)};
    kit_need_redis();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
