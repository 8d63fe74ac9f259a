/* SPDX-License-Identifier: MIT */
/* The structures of store.h as older and newer programs pass them: sizes that are none, shorter ones, longer ones with zeros, and with
 * something that the library does not know. unit_sized has those of the other headers. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/raw_kit.h"

#include <string.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define BYTES 2000u
#define PAGES 2u
#define TEXT 1u

typedef struct scene {
    char *dir, *second; /* of stores that are opened by the way */
    quire_store *store;
    kit_raw raw;
    quire_namespace *ns; /* of a plan */
    quire_plan *plan;
    quire_pool *pool;
    quire_seq *seq;
    quire_chain *chain;
    uint32_t tokens[PAGES * 64];
    uint8_t page[BYTES], root[32];
    quire_media media;
} scene;

static scene *scene_open(void)
{
    scene *s = (scene *)calloc(1, sizeof *s);
    assert_non_null(s);
    quire_geometry g = kit_geometry(1, 32, 32);
    quire_identity id = kit_identity(1);
    s->dir = kit_directory(NULL);
    s->second = kit_directory(NULL);
    quire_store_close(kit_open(s->second, KIT_CAP, NULL));
    s->store = kit_open(s->dir, KIT_CAP, NULL);
    kit_raw_begin(&s->raw, s->store, BYTES);
    kit_raw_save(&s->raw, TEXT, PAGES);
    kit_raw_tokens(s->tokens, TEXT, PAGES);
    kit_raw_page(&s->raw, TEXT, 0, s->page);
    quire_namespace_root(s->raw.ns, s->root);
    assert_int_equal(quire_store_flush(s->store, 20000), QUIRE_OK);
    s->plan = kit_plan(&g, "r4", NULL);
    s->pool = kit_pool(s->plan, 1 << 20, NULL);
    s->seq = kit_seq(s->pool, 0, 0, 0);
    assert_int_equal(quire_namespace_create(&s->ns, s->store, &id, s->plan, NULL), QUIRE_OK);
    assert_int_equal(quire_chain_create(&s->chain, s->raw.ns), QUIRE_OK);
    return s;
}

static void scene_close(scene *s)
{
    quire_chain_destroy(s->chain);
    quire_namespace_destroy(s->ns);
    quire_seq_destroy(s->seq);
    quire_pool_destroy(s->pool);
    quire_plan_destroy(s->plan);
    kit_raw_end(&s->raw);
    quire_store_close(s->store);
    kit_remove(s->second);
    kit_remove(s->dir);
    free(s);
}

/* ------------------------------------------------------------------- inputs */

/* Each puts a good structure at `it` (init) or uses what is there (use). */
#define INPUT(name, type, init, ...)                       \
    static void name##_init(scene *s, void *it)            \
    {                                                      \
        (void)s;                                           \
        type good = init;                                  \
        good.size = sizeof good;                           \
        memcpy(it, &good, sizeof good);                    \
    }                                                      \
    static quire_status name##_use(scene *s, void *memory) \
    {                                                      \
        quire_status status = QUIRE_OK;                    \
        type *it = (type *)memory;                         \
        (void)s;                                           \
        __VA_ARGS__                                        \
        return status;                                     \
    }
#define LIST(...) __VA_ARGS__

static quire_status open_with(const quire_store_options *o)
{
    quire_store *store = NULL;
    quire_status status = quire_store_open(&store, o);
    quire_store_close(store);
    return status;
}

static void ignore_page(void *ctx, uint32_t page, const void *bytes)
{
    (void)ctx;
    (void)page;
    (void)bytes;
}

static void ignore_line(void *ctx, quire_log_level level, const char *sentence)
{
    (void)ctx;
    (void)level;
    (void)sentence;
}

INPUT(options, quire_store_options, LIST({.directory = s->second}), status = open_with(it);)
INPUT(remote, quire_store_remote, LIST({.host = "127.0.0.1", .port = 1}),
      quire_store_options o = kit_options(s->second, 0, it);
      status = open_with(&o);)
INPUT(no_remote, quire_store_remote, {0}, quire_store_options o = kit_options(s->second, 0, it);
      status = open_with(&o);)
INPUT(store_log, quire_log, LIST({.write = ignore_line}),
      quire_store_options o = kit_options(s->second, 0, NULL);
      o.log = it; status = open_with(&o);)
INPUT(allocator, quire_allocator, {0}, quire_store_options o = kit_options(s->second, 0, NULL);
      o.allocator = it; status = open_with(&o);)
INPUT(identity, quire_identity, kit_identity(3), quire_namespace *ns = NULL;
      status = quire_namespace_create(&ns, s->store, it, s->plan, NULL); quire_namespace_destroy(ns);)
INPUT(raw_identity, quire_identity, kit_identity(3), quire_namespace *ns = NULL;
      status = quire_namespace_create_raw(&ns, s->store, it, "test pages", BYTES);
      quire_namespace_destroy(ns);)
INPUT(ring, quire_seq_options, {0}, quire_namespace *ns = NULL; quire_identity id = kit_identity(3);
      status = quire_namespace_create(&ns, s->store, &id, s->plan, it); quire_namespace_destroy(ns);)

static quire_prompt prompt_of(const scene *s)
{
    return (quire_prompt){.tokens = s->tokens, .n_tokens = PAGES * 64};
}

static quire_status page_load(scene *s, const quire_prompt *prompt)
{
    quire_load *load = NULL;
    quire_status status = quire_load_begin(&load, s->ns, prompt, s->seq, 1000);
    if (status) return status;
    return quire_load_end(load, NULL);
}

INPUT(save, quire_prompt, prompt_of(s), status = quire_namespace_save(s->ns, it, s->seq);)
INPUT(save_raw, quire_prompt, prompt_of(s), status = quire_namespace_save_raw(s->raw.ns, it, 0, s->page);)
INPUT(lookup, quire_prompt, prompt_of(s), uint32_t n; status = quire_namespace_lookup(s->raw.ns, it, 0, &n);)
INPUT(lookup_many, quire_prompt, prompt_of(s), uint32_t n;
      status = quire_namespace_lookup_many(s->raw.ns, it, 65536, 1, 0, &n);)
INPUT(pin, quire_prompt, prompt_of(s), uint32_t n; status = quire_namespace_pin(s->raw.ns, it, 0, 10000, &n);)
INPUT(load, quire_prompt, prompt_of(s), status = page_load(s, it);)
INPUT(load_raw, quire_prompt, prompt_of(s), uint32_t n;
      status = quire_namespace_load_raw(s->raw.ns, it, 1000, ignore_page, NULL, &n);)
INPUT(selection, quire_store_selection, LIST({.tenant_name = "nobody"}),
      status = quire_store_remove(s->store, it, NULL);)

static const struct input {
    const char *name;
    void (*init)(scene *s, void *it);
    quire_status (*use)(scene *s, void *it);
    size_t size;
    size_t least; /* bytes without which the call cannot work; what it says then is up to it */
} inputs[] = {
#define I(name, type, least)                                \
    {                                                       \
#name, name##_init, name##_use, sizeof(type), least \
    }
    I(options, quire_store_options, offsetof(quire_store_options, disk_bytes)),
    I(remote, quire_store_remote, offsetof(quire_store_remote, tls)),
    I(no_remote, quire_store_remote, 8),
    I(store_log, quire_log, sizeof(quire_log)), /* half a pointer would be called */
    I(allocator, quire_allocator, 8),
    I(identity, quire_identity, offsetof(quire_identity, tenant_name)),
    I(raw_identity, quire_identity, offsetof(quire_identity, tenant_name)),
    I(ring, quire_seq_options, 8),
    I(save, quire_prompt, offsetof(quire_prompt, n_media)),
    I(save_raw, quire_prompt, offsetof(quire_prompt, n_media)),
    I(lookup, quire_prompt, offsetof(quire_prompt, n_media)),
    I(lookup_many, quire_prompt, offsetof(quire_prompt, n_media)),
    I(pin, quire_prompt, offsetof(quire_prompt, n_media)),
    I(load, quire_prompt, offsetof(quire_prompt, n_media)),
    I(load_raw, quire_prompt, offsetof(quire_prompt, n_media)),
    I(selection, quire_store_selection, offsetof(quire_store_selection, model_name)),
};

static void expect(scene *s, const struct input *in, size_t size, size_t at, quire_status expected)
{
    _Alignas(16) static uint8_t memory[1 << 17];
    memset(memory, 0, sizeof memory);
    in->init(s, memory);
    if (size < in->size) memset(memory + size, 0xee, in->size - size); /* behind the end: not ours */
    memcpy(memory, &size, sizeof size);
    if (at) memory[at] = 1;
    quire_status status = in->use(s, memory);
    if (status != expected)
        fail_msg("%s of size %zu of %zu, byte %zu set: %s, not %s", in->name, size, in->size, at,
                 quire_status_name(status), quire_status_name(expected));
}

static void sizes(void **state)
{
    (void)state;
    scene *s = scene_open();
    for (size_t i = 0; i < COUNT(inputs); i++) {
        const struct input *in = &inputs[i];
        static const size_t none[] = {0, 1, 7, 65537, (size_t)1 << 40, SIZE_MAX - 7, SIZE_MAX};
        for (size_t k = 0; k < COUNT(none); k++) expect(s, in, none[k], 0, QUIRE_EINVAL);
        expect(s, in, in->size, 0, QUIRE_OK);
        for (size_t size = in->least; size < in->size; size += 4) expect(s, in, size, 0, QUIRE_OK);
        static const size_t more[] = {1, 7, 8, 9, 64, 4000};
        for (size_t k = 0; k < COUNT(more); k++) {
            expect(s, in, in->size + more[k], 0, QUIRE_OK);
            expect(s, in, in->size + more[k], in->size, QUIRE_EUNSUPPORTED);
            expect(s, in, in->size + more[k], in->size + more[k] - 1, QUIRE_EUNSUPPORTED);
            expect(s, in, in->size + more[k], in->size + more[k], QUIRE_OK); /* behind the end */
        }
        expect(s, in, 65536, 0, QUIRE_OK);
        expect(s, in, 65536, 65535, QUIRE_EUNSUPPORTED);
    }
    scene_close(s);
}

/* A call that is refused has done nothing: a later version's selection is not read as a wider one, nor its prompt as a shorter one. */
static void nothing_is_done(void **state)
{
    (void)state;
    scene *s = scene_open();
    struct {
        quire_store_selection it;
        uint64_t unknown;
    } selection = {{sizeof selection, .root = s->root}, 1};
    struct {
        quire_prompt it;
        uint64_t unknown;
    } prompt = {prompt_of(s), 1};
    uint64_t n_removed = 77;
    uint32_t n = 77;
    assert_int_equal(quire_store_remove(s->store, &selection.it, &n_removed), QUIRE_EUNSUPPORTED);
    assert_true(n_removed == 77 && kit_stats(s->store).disk_objects == PAGES);

    prompt.it.size = sizeof prompt;
    s->tokens[0] ^= 1; /* pages that nobody has */
    assert_int_equal(quire_namespace_save_raw(s->raw.ns, &prompt.it, 0, s->page), QUIRE_EUNSUPPORTED);
    s->tokens[0] ^= 1;
    assert_int_equal(quire_store_flush(s->store, 20000), QUIRE_OK);
    assert_int_equal(kit_stats(s->store).disk_objects, PAGES);
    assert_int_equal(quire_namespace_pin(s->raw.ns, &prompt.it, 1, 10000, &n), QUIRE_EUNSUPPORTED);
    assert_true(n == 77 && kit_stats(s->store).pinned_objects == 0);

    selection.unknown = prompt.unknown = 0;
    assert_int_equal(quire_namespace_lookup(s->raw.ns, &prompt.it, 0, &n), QUIRE_OK);
    assert_int_equal(n, PAGES * 64);
    assert_int_equal(quire_store_remove(s->store, &selection.it, &n_removed), QUIRE_OK);
    assert_true(n_removed == PAGES && kit_stats(s->store).disk_objects == 0);
    scene_close(s);
}

/* What is wrong is said, too. */
static void options_say_why(void **state)
{
    (void)state;
    scene *s = scene_open();
    char message[200];
    struct {
        quire_store_remote it;
        uint64_t unknown;
    } remote = {{sizeof remote, .host = "127.0.0.1", .port = 1}, 1};
    quire_store_options o = kit_options(s->second, 0, &remote.it);
    o.message = message;
    o.message_size = sizeof message;
    assert_int_equal(open_with(&o), QUIRE_EUNSUPPORTED);
    assert_non_null(strstr(message, "what this version does not know"));
    o.remote = NULL;
    o.reserved = 1;
    assert_int_equal(open_with(&o), QUIRE_EINVAL);
    assert_non_null(strstr(message, "reserved"));
    scene_close(s);
}

/* ------------------------------------------------------------------ outputs */

static quire_status store_stats(scene *s, void *out)
{
    return quire_store_stats_get(s->store, (quire_store_stats *)out);
}

static quire_status store_times(scene *s, void *out)
{
    return quire_store_times_get(s->store, QUIRE_TIMED_DISK_SAVE, (quire_store_times *)out);
}

static quire_status namespace_stats(scene *s, void *out)
{
    return quire_namespace_stats_get(s->raw.ns, (quire_namespace_stats *)out);
}

typedef struct output {
    const char *name;
    quire_status (*get)(scene *s, void *out);
    size_t size;
} output;

/* false: the figures changed meanwhile. */
static bool check_output(scene *s, const output *o, size_t size)
{
    _Alignas(16) static uint8_t full[2][2048], memory[4096];
    for (int i = 0; i < 2; i++) {
        memset(full[i], 0, sizeof full[i]);
        memcpy(full[i], &o->size, sizeof o->size);
    }
    assert_int_equal(o->get(s, full[0]), QUIRE_OK);
    memset(memory, 0xa5, sizeof memory);
    memcpy(memory, &size, sizeof size);
    quire_status status = o->get(s, memory);
    if (status != (size < 8 ? QUIRE_EINVAL : QUIRE_OK))
        fail_msg("%s of size %zu: %s", o->name, size, quire_status_name(status));
    assert_int_equal(o->get(s, full[1]), QUIRE_OK);
    if (memcmp(full[0], full[1], o->size) != 0) return false;
    size_t filled = size < 8 ? 8 : size;
    assert_memory_equal(memory, &size, sizeof size);
    for (size_t b = 8; b < filled; b++)
        if (memory[b] != (b < o->size ? full[0][b] : 0))
            fail_msg("%s of size %zu: byte %zu is %02x", o->name, size, b, memory[b]);
    for (size_t b = filled; b < filled + 64; b++)
        if (memory[b] != 0xa5) fail_msg("%s of size %zu: byte %zu was written", o->name, size, b);
    return true;
}

/* As many bytes as the size says, the same whatever it is, zeros behind what the library knows, nothing behind that. */
static void outputs(void **state)
{
    (void)state;
    static const output outs[] = {
        {"store_stats", store_stats, sizeof(quire_store_stats)},
        {"store_times", store_times, sizeof(quire_store_times)},
        {"namespace_stats", namespace_stats, sizeof(quire_namespace_stats)},
    };
    static const size_t none[] = {65537, (size_t)1 << 40, SIZE_MAX};
    scene *s = scene_open();
    for (size_t i = 0; i < COUNT(outs); i++) {
        for (size_t size = 0; size < outs[i].size + 40; size++) {
            int n_tries = 0;
            while (!check_output(s, &outs[i], size)) {
                assert_true(++n_tries < 1000);
                usleep(5000);
            }
        }
        for (size_t k = 0; k < COUNT(none); k++) {
            size_t size = none[k];
            assert_int_equal(outs[i].get(s, &size), QUIRE_EINVAL);
        }
        assert_int_equal(outs[i].get(s, NULL), QUIRE_EINVAL);
    }
    scene_close(s);
}

/* Structures that the library passes say how long they are. */
static quire_status see_object(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    (void)bytes;
    (void)n;
    assert_int_equal(info->size, sizeof *info);
    ++*(uint32_t *)ctx;
    return QUIRE_OK;
}

static quire_status see_usage(void *ctx, const quire_namespace_usage *usage)
{
    assert_int_equal(usage->size, sizeof *usage);
    ++*(uint32_t *)ctx;
    return QUIRE_OK;
}

static void passed(void **state)
{
    (void)state;
    scene *s = scene_open();
    uint32_t n = 0;
    assert_int_equal(quire_store_each(s->store, 0, see_object, &n), QUIRE_OK);
    assert_int_equal(quire_store_each(s->store, 1, see_object, &n), QUIRE_OK);
    assert_int_equal(n, 2 * PAGES);
    assert_int_equal(quire_store_usage_each(s->store, see_usage, &n), QUIRE_OK);
    assert_int_equal(n, 2 * PAGES + 1);
    scene_close(s);
}

/* ------------------------------------------------------------------- arrays */

/* Media have no size; their array has a stride. */
static void media(void **state)
{
    (void)state;
    scene *s = scene_open();
    _Alignas(16) uint8_t memory[400];
    uint32_t n;
    for (size_t stride = 0; stride <= 100; stride++)
        for (uint8_t tail = 0; tail < 2; tail++) {
            quire_media one = {.position = 1};
            memset(memory, 0, sizeof memory);
            for (size_t i = 0; i < 2; i++, one.position++)
                memcpy(memory + i * stride, &one, stride < sizeof one ? stride : sizeof one);
            if (stride > sizeof one) memory[stride + stride - 1] = tail;
            quire_status expected = stride < sizeof one           ? QUIRE_EINVAL
                                    : stride > sizeof one && tail ? QUIRE_EUNSUPPORTED
                                                                  : QUIRE_OK;
            quire_prompt p = prompt_of(s);
            p.size = sizeof p;
            p.media = (const quire_media *)(const void *)memory;
            p.media_stride = stride;
            p.n_media = 2;
            quire_status looked = quire_namespace_lookup(s->raw.ns, &p, 0, &n);
            quire_status appended = quire_chain_append(s->chain, s->tokens, 64, p.media, stride, 2);
            if (looked != expected || appended != expected)
                fail_msg("media %zu bytes apart: %s, %s, not %s", stride, quire_status_name(looked),
                         quire_status_name(appended), quire_status_name(expected));
            assert_int_equal(quire_chain_length(s->chain), appended ? 0 : 64); /* after a failure as before */
            assert_int_equal(quire_chain_truncate(s->chain, 0), QUIRE_OK);
        }
    scene_close(s);
}

int main(int argc, char **argv)
{
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),   cmocka_unit_test(nothing_is_done), cmocka_unit_test(options_say_why),
        cmocka_unit_test(outputs), cmocka_unit_test(passed),          cmocka_unit_test(media),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
