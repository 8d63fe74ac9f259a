/* SPDX-License-Identifier: MIT */
/* Any bytes as the answer of a llama-server: what is read from it does not depend on how it is cut into pieces, and of an answer that
 * is one object only the member of the object itself counts. */
#include "support/fuzz.h"

#include "serve/timings.h"

#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

static void check(bool ok)
{
    if (!ok) abort();
}

static bool is_same(const timings *a, const timings *b)
{
    return a->is_found == b->is_found && a->depth == b->depth && a->in_string == b->in_string &&
           (!a->is_found || (a->found.cache_n == b->found.cache_n && a->found.prompt_n == b->found.prompt_n &&
                             a->found.predicted_n == b->found.predicted_n));
}

/* With a reader of whole documents. Names with escapes and values that are too long are left out: no server writes them. */
static void check_object(const char *bytes, size_t n, const timings *t)
{
    yyjson_doc *doc = memchr(bytes, '\\', n) ? NULL : yyjson_read(bytes, n, YYJSON_READ_NUMBER_AS_RAW);
    yyjson_val *root = doc ? yyjson_doc_get_root(doc) : NULL, *key, *last = NULL;
    if (yyjson_is_obj(root) && n < TIMINGS_TEXT) {
        yyjson_obj_iter all = yyjson_obj_iter_with(root);
        body_timings found;
        size_t size = 0;
        while ((key = yyjson_obj_iter_next(&all)))
            if (yyjson_equals_str(key, "timings")) last = yyjson_obj_iter_get_val(key);
        char *text = last ? yyjson_val_write(last, 0, &size) : NULL;
        bool is_found = text && body_read_timings(text, size, &found);
        check(is_found == t->is_found);
        if (is_found)
            check(found.cache_n == t->found.cache_n && found.prompt_n == t->found.prompt_n &&
                  found.predicted_n == t->found.predicted_n);
        free(text);
    }
    yyjson_doc_free(doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *bytes = (const char *)data;
    timings whole = {0}, single = {0}, halves = {0};
    body_timings own;
    uint32_t n_tokens = 0;
    size_t size = 0;
    timings_read(&whole, bytes, n);
    for (size_t i = 0; i < n; i++) timings_read(&single, bytes + i, 1);
    timings_read(&halves, bytes, n / 2);
    timings_read(&halves, bytes + n / 2, n - n / 2);
    check(is_same(&whole, &single) && is_same(&whole, &halves));
    check_object(bytes, n, &whole);

    (void)body_read_timings(bytes, n, &own);
    uint32_t *tokens = body_read_tokens(bytes, n, &n_tokens);
    for (uint32_t i = 0; tokens && i < n_tokens; i++) check(tokens[i] <= INT32_MAX);
    free(tokens);
    char *prompt = body_read_prompt(bytes, n, &size);
    if (prompt) {
        check(prompt[size] == 0);
        char *request = body_tokenize(prompt, size, &size);
        check(request && strlen(request) == size);
        free(request);
    }
    free(prompt);
    return 0;
}
