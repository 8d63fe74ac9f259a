/* SPDX-License-Identifier: MIT */
/* quire store du, rm and quota on a real directory. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/run_kit.h"
#include "store/kit/tenant_kit.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 60000u

static char out[KIT_OUTPUT];

static void fill(const char *dir)
{
    static const struct {
        uint8_t number;
        const char *tenant, *model;
        uint32_t n_texts;
    } who[] = {{1, "acme", "llama-8b", 6},
               {1, "acme", "qwen-32b", 2},
               {2, "zenith", "llama-8b", 3},
               {3, NULL, NULL, 1}};
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    for (size_t i = 0; i < sizeof who / sizeof *who; i++) {
        kit_tenant t;
        kit_tenant_begin(&t, store, who[i].number, who[i].tenant, who[i].model, PAGE + 8 * (size_t)i);
        for (uint64_t text = 0; text < who[i].n_texts; text++) kit_raw_save(&t.raw, text, 5);
        kit_tenants_flush(store);
        kit_tenant_end(&t);
    }
    quire_store_close(store);
}

/* The line of the output in which this stands. */
static const char *line_with(const char *words)
{
    static char line[1024];
    const char *at = strstr(out, words);
    if (!at) fail_msg("no \"%s\" in:\n%s", words, out);
    while (at > out && at[-1] != '\n') at--;
    snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
    return line;
}

static void hex(char *to, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) sprintf(to + 2 * i, "%02x", bytes[i]);
}

static void write_secret(const char *dir, uint8_t number)
{
    char path[600];
    quire_identity id = kit_identity(number);
    snprintf(path, sizeof path, "%s/secret", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(id.secret, 32, 1, f), 1);
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
}

static void shares(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), number[40];
    uint8_t tenant[16];
    fill(dir);
    assert_int_equal(kit_quire_store(out, "du --dir %s --json", dir), 0);
    assert_non_null(strstr(line_with("\"tenant_name\":\"acme\""), "\"namespaces\":2,\"objects\":40,"));
    assert_non_null(strstr(line_with("\"tenant_name\":\"zenith\""), "\"objects\":15,"));
    kit_tenant_id(3, tenant);
    hex(number, tenant, 16);
    assert_non_null(strstr(line_with(number), "\"tenant_name\":\"\",\"namespaces\":1,\"objects\":5,"));
    assert_true(strstr(out, "acme") < strstr(out, "zenith")); /* the largest first */
    assert_int_equal(kit_quire_store(out, "du --dir %s --by model --json", dir), 0);
    assert_non_null(strstr(line_with("\"model_name\":\"llama-8b\""), "\"namespaces\":2,\"objects\":45,"));
    assert_null(strstr(out, "acme"));
    assert_int_equal(kit_quire_store(out, "du --dir %s --by namespace --json", dir), 0);
    assert_non_null(strstr(line_with("qwen-32b"), "\"objects\":10,"));
    assert_int_equal(kit_quire_store(out, "du --dir %s", dir), 0);
    assert_non_null(strstr(line_with("acme"), "40 objects"));
    (void)line_with(number);
    assert_int_equal(kit_quire_store(out, "du --dir %s --by namespace", dir), 0);
    assert_int_equal(kit_quire_store(out, "du --dir %s --by owner", dir), 2);
    kit_remove(dir);
}

/* A terminal takes U+009B for the beginning of a command, as it does the escape character. */
static void names_on_a_terminal(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_tenant t;
    kit_tenant_begin(&t, store, 1,
                     "ac\xc2\x9b"
                     "2Jme \xc3\xa4",
                     "m\xc2\x9b", PAGE);
    kit_raw_save(&t.raw, 1, 1);
    kit_tenants_flush(store);
    kit_tenant_end(&t);
    quire_store_close(store);
    assert_int_equal(kit_quire_store(out, "du --dir %s --by namespace", dir), 0);
    (void)line_with("ac??2Jme \xc3\xa4");
    assert_null(strstr(out, "\xc2\x9b"));
    kit_remove(dir);
}

static void expect_objects(const char *dir, unsigned n)
{
    char words[64];
    snprintf(words, sizeof words, "{\"objects\":%u,", n);
    assert_int_equal(kit_quire_store(out, "stat --dir %s --json", dir), 0);
    if (!strstr(out, words)) fail_msg("not %s in %s", words, out);
}

static void removals(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), *other = kit_directory(NULL), number[40];
    uint8_t tenant[16];
    fill(dir);
    assert_int_equal(kit_quire_store(out, "rm --dir %s", dir), 2);
    assert_int_equal(kit_quire_store(out, "rm --dir %s --root 12 --yes", dir), 2);
    assert_int_equal(kit_quire_store(out, "rm --dir %s --tenant '' --yes", dir), 2);
    assert_int_equal(kit_quire_store(out, "rm --dir %s --tenant acme", dir), 1); /* nobody can be asked */
    assert_non_null(strstr(out, "40 objects"));
    assert_non_null(strstr(out, "give --yes"));
    expect_objects(dir, 60);
    assert_int_equal(kit_quire_store(out, "rm --dir %s --tenant acme --model qwen-32b --yes --json", dir), 0);
    assert_non_null(strstr(out, "{\"removed\":10,\"bytes\":"));
    expect_objects(dir, 50);
    assert_int_equal(kit_quire_store(out, "rm --dir %s --tenant nobody --yes", dir), 0);
    assert_non_null(strstr(out, "0 objects removed"));
    write_secret(other, 2);
    assert_int_equal(kit_quire_store(out, "rm --dir %s --secret-file %s/secret --yes", dir, other), 0);
    assert_non_null(strstr(out, "15 objects removed"));
    kit_tenant_id(3, tenant);
    hex(number, tenant, 16);
    assert_int_equal(kit_quire_store(out, "rm --dir %s --tenant %s --yes", dir, number), 0);
    assert_non_null(strstr(out, "5 objects removed"));
    assert_int_equal(kit_quire_store(out, "du --dir %s --by namespace --json", dir), 0);
    const char *root = strstr(line_with("acme"), "\"root\":\"");
    assert_non_null(root);
    char copy[65];
    snprintf(copy, sizeof copy, "%s", root + 8);
    assert_int_equal(kit_quire_store(out, "rm --dir %s --root %s --yes", dir, copy), 0);
    assert_non_null(strstr(out, "30 objects removed"));
    expect_objects(dir, 0);
    kit_remove(dir);
    kit_remove(other);
}

static void limits(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    fill(dir);
    assert_int_equal(kit_quire_store(out, "quota --dir %s --tenant acme", dir), 2);
    assert_int_equal(kit_quire_store(out, "quota --dir %s --bytes 1M", dir), 2);
    assert_int_equal(kit_quire_store(out, "quota --dir %s --tenant nobody --bytes 1M", dir), 1);
    assert_non_null(strstr(out, "no tenant with pages in this directory is called nobody"));
    assert_int_equal(kit_quire_store(out, "quota --dir %s --tenant acme --bytes 1M", dir), 0);
    assert_non_null(strstr(out, "the tenant may have 1.00 MiB in this directory"));
    assert_int_equal(kit_quire_store(out, "du --dir %s --json", dir), 0);
    const char *line = line_with("\"tenant_name\":\"acme\"");
    assert_non_null(strstr(line, "\"quota_bytes\":1048576"));
    unsigned long long bytes = 0;
    assert_int_equal(sscanf(strstr(line, "\"bytes\":"), "\"bytes\":%llu", &bytes), 1);
    assert_in_range(bytes, 1, 1 << 20);
    assert_non_null(strstr(line_with("zenith"), "\"objects\":15,"));   /* others lose nothing */
    assert_int_equal(kit_quire_store(out, "doctor --dir %s", dir), 0); /* knows the file of the limits */
    if (strstr(out, "disk.files ")) fail_msg("%s", out);
    kit_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shares), cmocka_unit_test(names_on_a_terminal),
                                       cmocka_unit_test(removals), cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
