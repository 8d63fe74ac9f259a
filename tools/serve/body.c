/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "serve/body.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

struct body {
    yyjson_doc *doc;
};

/* ------------------------------------------------------------------- memory */

/* Of all documents at a time. */
#define MOST_MEMORY ((size_t)2 << 30)
/* Of one document. Two bytes of JSON can become 40 here and more in llama-server; no prompt has so many tokens. */
#define MOST_VALUES ((size_t)4 << 20)

static atomic_size_t taken;

/* Before each piece: how large it is, in the space that malloc() would align to. */
typedef union piece {
    size_t size;
    max_align_t align;
} piece;

static bool take(size_t n)
{
    if (n > MOST_MEMORY) return false;
    if (atomic_fetch_add(&taken, n) + n <= MOST_MEMORY) return true;
    atomic_fetch_sub(&taken, n);
    return false;
}

static void *json_malloc(void *ctx, size_t n)
{
    (void)ctx;
    if (!take(n)) return NULL;
    piece *p = (piece *)malloc(sizeof *p + n);
    if (!p) {
        atomic_fetch_sub(&taken, n);
        return NULL;
    }
    p->size = n;
    return p + 1;
}

static void json_free(void *ctx, void *memory)
{
    (void)ctx;
    if (!memory) return;
    piece *p = (piece *)memory - 1;
    atomic_fetch_sub(&taken, p->size);
    free(p);
}

static void *json_realloc(void *ctx, void *memory, size_t old, size_t n)
{
    (void)ctx;
    (void)old;
    piece *p = (piece *)memory - 1;
    size_t before = p->size;
    if (n > before && !take(n - before)) return NULL;
    piece *more = (piece *)realloc(p, sizeof *p + n);
    if (!more) {
        if (n > before) atomic_fetch_sub(&taken, n - before);
        return NULL;
    }
    if (n < before) atomic_fetch_sub(&taken, before - n);
    more->size = n;
    return more + 1;
}

static const yyjson_alc memory = {json_malloc, json_realloc, json_free, NULL};

/* Counts commas of strings too, which does not matter. */
static bool has_too_many(const char *bytes, size_t n)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) found += bytes[i] == ',' || bytes[i] == '[' || bytes[i] == '{';
    return found > MOST_VALUES;
}

static yyjson_doc *read_json(const char *bytes, size_t n, yyjson_read_flag flags)
{
    if (has_too_many(bytes, n)) return NULL;
    return yyjson_read_opts((char *)(size_t)bytes, n, flags | YYJSON_READ_NUMBER_AS_RAW, &memory, NULL);
}

/* ----------------------------------------------------------------- requests */

/* What llama-server reads must be read here: it takes a mark of byte order before the text. */
body *body_read(const char *bytes, size_t n)
{
    body *b = (body *)calloc(1, sizeof *b);
    if (b) b->doc = read_json(bytes, n, YYJSON_READ_ALLOW_BOM);
    if (b && b->doc && yyjson_is_obj(yyjson_doc_get_root(b->doc))) return b;
    body_free(b);
    return NULL;
}

void body_free(body *b)
{
    if (!b) return;
    yyjson_doc_free(b->doc);
    free(b);
}

struct yyjson_val *body_root(const body *b)
{
    return yyjson_doc_get_root(b->doc);
}

struct yyjson_val *body_member(struct yyjson_val *object, const char *name)
{
    yyjson_val *key, *found = NULL;
    yyjson_obj_iter all = yyjson_obj_iter_with(object);
    while ((key = yyjson_obj_iter_next(&all)))
        if (yyjson_equals_str(key, name)) found = yyjson_obj_iter_get_val(key);
    return found;
}

/* -1: not a whole number of at most nine digits. */
static long whole(const yyjson_val *v)
{
    const char *text = yyjson_is_raw(v) ? yyjson_get_raw(v) : NULL;
    size_t n = text ? yyjson_get_len(v) : 0;
    long value = 0;
    if (!n || n > 10) return -1;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        value = value * 10 + (text[i] - '0');
    }
    return value <= INT32_MAX ? value : -1;
}

/* 0: not a number. */
static double real(const yyjson_val *v)
{
    char text[40] = "";
    if (yyjson_is_raw(v) && yyjson_get_len(v) < sizeof text)
        memcpy(text, yyjson_get_raw(v), yyjson_get_len(v));
    return strtod(text, NULL);
}

static bool is_absent(yyjson_val *v)
{
    return !v || yyjson_is_null(v);
}

/* Messages of text alone. */
static bool is_text(yyjson_val *messages)
{
    yyjson_val *message, *part;
    yyjson_arr_iter all = yyjson_arr_iter_with(messages);
    if (!yyjson_is_arr(messages)) return false;
    while ((message = yyjson_arr_iter_next(&all))) {
        yyjson_val *content = yyjson_is_obj(message) ? body_member(message, "content") : NULL;
        if (is_absent(content) || yyjson_is_str(content)) continue;
        yyjson_arr_iter parts = yyjson_arr_iter_with(content);
        if (!yyjson_is_arr(content)) return false;
        while ((part = yyjson_arr_iter_next(&parts))) {
            yyjson_val *type = yyjson_is_obj(part) ? body_member(part, "type") : NULL;
            if (!yyjson_equals_str(type, "text")) return false;
        }
    }
    return true;
}

static bool are_tokens(yyjson_val *list)
{
    yyjson_val *v;
    yyjson_arr_iter all = yyjson_arr_iter_with(list);
    while ((v = yyjson_arr_iter_next(&all)))
        if (whole(v) < 0) return false;
    return yyjson_arr_size(list) > 0;
}

bool body_is_alone(const body *b)
{
    static const char *const alone[] = {"n", "n_cmpl"};
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        yyjson_val *v = body_member(yyjson_doc_get_root(b->doc), alone[i]);
        if (!is_absent(v) && whole(v) != 1) return false;
    }
    return true;
}

/* Members with which rows of the slot depend on more than the tokens, or several slots are used. */
static bool is_watched(const body *b)
{
    yyjson_val *root = yyjson_doc_get_root(b->doc), *keep = body_member(root, "cache_prompt");
    return body_is_alone(b) && is_absent(body_member(root, "lora")) &&
           (is_absent(keep) || yyjson_is_true(keep));
}

body_prompt body_kind(const body *b, bool is_chat)
{
    yyjson_val *root = yyjson_doc_get_root(b->doc), *prompt = body_member(root, "prompt");
    if (!is_watched(b)) return BODY_OTHER;
    if (is_chat) return is_text(body_member(root, "messages")) ? BODY_CHAT : BODY_OTHER;
    if (yyjson_is_str(prompt)) return BODY_TEXT;
    return yyjson_is_arr(prompt) && are_tokens(prompt) ? BODY_TOKENS : BODY_OTHER;
}

const char *body_text(const body *b, size_t *n)
{
    yyjson_val *prompt = body_member(yyjson_doc_get_root(b->doc), "prompt");
    *n = yyjson_get_len(prompt);
    return yyjson_get_str(prompt);
}

static uint32_t *numbers(yyjson_val *list, uint32_t *n)
{
    size_t size = yyjson_arr_size(list);
    uint32_t *found = size < UINT32_MAX ? (uint32_t *)malloc(sizeof *found * (size + 1)) : NULL;
    yyjson_val *v;
    yyjson_arr_iter all = yyjson_arr_iter_with(list);
    *n = 0;
    while (found && (v = yyjson_arr_iter_next(&all))) {
        long value = whole(v);
        if (value < 0) {
            free(found);
            return NULL;
        }
        found[(*n)++] = (uint32_t)value;
    }
    return found;
}

uint32_t *body_tokens(const body *b, uint32_t *n)
{
    return numbers(body_member(yyjson_doc_get_root(b->doc), "prompt"), n);
}

char *body_for_slot(body *b, int32_t slot, body_reuse reuse, size_t *n)
{
    yyjson_mut_doc *doc = yyjson_doc_mut_copy(b->doc, &memory);
    yyjson_mut_val *root = doc ? yyjson_mut_doc_get_root(doc) : NULL;
    char *text = NULL;
    if (root) {
        yyjson_mut_obj_remove_key(root, "id_slot"); /* all of them */
        yyjson_mut_obj_remove_key(root, "n_cache_reuse");
        if (reuse != BODY_REUSES_AS_IT_SAYS) yyjson_mut_obj_remove_key(root, "cache_prompt");
        if ((slot < 0 || yyjson_mut_obj_add_int(doc, root, "id_slot", slot)) &&
            (reuse == BODY_REUSES_AS_IT_SAYS ||
             yyjson_mut_obj_add_bool(doc, root, "cache_prompt", reuse == BODY_REUSES)))
            text = yyjson_mut_write(doc, 0, n);
    }
    yyjson_mut_doc_free(doc);
    return text;
}

char *body_compute(const uint32_t *tokens, uint32_t n, uint32_t slot, bool reuse, size_t *size)
{
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = doc ? yyjson_mut_obj(doc) : NULL;
    yyjson_mut_val *list = root ? yyjson_mut_arr_with_uint32(doc, tokens, n) : NULL;
    char *made = NULL;
    if (list) {
        yyjson_mut_doc_set_root(doc, root);
        if (yyjson_mut_obj_add_val(doc, root, "prompt", list) &&
            yyjson_mut_obj_add_int(doc, root, "n_predict", 0) &&
            yyjson_mut_obj_add_uint(doc, root, "id_slot", slot) &&
            yyjson_mut_obj_add_bool(doc, root, "cache_prompt", reuse))
            made = yyjson_mut_write(doc, 0, size);
    }
    yyjson_mut_doc_free(doc);
    return made;
}

char *body_tokenize(const char *text, size_t n, size_t *size)
{
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = doc ? yyjson_mut_obj(doc) : NULL;
    char *made = NULL;
    if (root) {
        yyjson_mut_doc_set_root(doc, root);
        if (yyjson_mut_obj_add_strn(doc, root, "content", text, n) &&
            yyjson_mut_obj_add_bool(doc, root, "add_special", true) &&
            yyjson_mut_obj_add_bool(doc, root, "parse_special", true))
            made = yyjson_mut_write(doc, 0, size);
    }
    yyjson_mut_doc_free(doc);
    return made;
}

/* A member of an answer that is an object; *doc is to be freed in any case. */
static yyjson_val *read_member(const char *bytes, size_t size, const char *name, yyjson_doc **doc)
{
    *doc = read_json(bytes, size, 0);
    yyjson_val *root = *doc ? yyjson_doc_get_root(*doc) : NULL;
    return yyjson_is_obj(root) ? body_member(root, name) : NULL;
}

uint32_t *body_read_tokens(const char *bytes, size_t size, uint32_t *n)
{
    yyjson_doc *doc;
    yyjson_val *list = read_member(bytes, size, "tokens", &doc);
    uint32_t *found = yyjson_is_arr(list) ? numbers(list, n) : NULL;
    yyjson_doc_free(doc);
    return found;
}

char *body_read_prompt(const char *bytes, size_t size, size_t *n)
{
    yyjson_doc *doc;
    yyjson_val *prompt = read_member(bytes, size, "prompt", &doc);
    char *text = NULL;
    if (yyjson_is_str(prompt)) {
        *n = yyjson_get_len(prompt);
        text = (char *)malloc(*n + 1);
        if (text) memcpy(text, yyjson_get_str(prompt), *n + 1);
    }
    yyjson_doc_free(doc);
    return text;
}

static uint32_t count_of(yyjson_val *v)
{
    return whole(v) > 0 ? (uint32_t)whole(v) : 0;
}

/* An object alone; *doc is to be freed in any case. */
static yyjson_val *read_object(const char *text, size_t n, yyjson_doc **doc)
{
    *doc = read_json(text, n, 0);
    yyjson_val *root = *doc ? yyjson_doc_get_root(*doc) : NULL;
    return yyjson_is_obj(root) ? root : NULL;
}

bool body_read_timings(const char *text, size_t n, body_timings *out)
{
    yyjson_doc *doc;
    yyjson_val *t = read_object(text, n, &doc);
    yyjson_val *cache = t ? body_member(t, "cache_n") : NULL, *prompt = t ? body_member(t, "prompt_n") : NULL;
    bool good = whole(cache) >= 0 && whole(prompt) >= 0;
    if (good)
        *out = (body_timings){count_of(cache), count_of(prompt), count_of(body_member(t, "predicted_n")),
                              real(body_member(t, "prompt_ms"))};
    yyjson_doc_free(doc);
    return good;
}

/* The names differ: "input_tokens" of /v1/messages leaves out what was reused. */
bool body_read_usage(const char *text, size_t n, body_timings *out)
{
    yyjson_doc *doc;
    yyjson_val *u = read_object(text, n, &doc);
    yyjson_val *input = u ? body_member(u, "input_tokens") : NULL;
    yyjson_val *reused = u ? body_member(u, "cache_read_input_tokens") : NULL;
    yyjson_val *details = u ? body_member(u, "input_tokens_details") : NULL;
    yyjson_val *cached = yyjson_is_obj(details) ? body_member(details, "cached_tokens") : NULL;
    uint32_t all = count_of(input), cache = count_of(reused ? reused : cached);
    bool good = whole(input) >= 0 && whole(reused ? reused : cached) >= 0 && (reused || cache <= all);
    if (good) *out = (body_timings){.cache_n = cache, .prompt_n = reused ? all : all - cache};
    if (u && whole(body_member(u, "output_tokens")) >= 0)
        out->predicted_n = count_of(body_member(u, "output_tokens"));
    yyjson_doc_free(doc);
    return good;
}
