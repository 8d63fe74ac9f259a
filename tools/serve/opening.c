/* SPDX-License-Identifier: MIT */
#include "serve/opening.h"

#include "serve/body.h"
#include "serve/choose.h"

#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

enum { TEXT_BYTES = 4096, TEXT_TOKENS = 1024 };

typedef struct reader {
    uint64_t hash;
    bool found;
} reader;

static void add(reader *r, const char *text, size_t n)
{
    r->hash = choose_hash(r->hash, text, n);
    r->hash = choose_hash(r->hash, "", 1); /* where it ends */
    r->found = true;
}

/* Any value, as it would be written without spaces: how a client has indented its tools does not matter. */
static void add_value(reader *r, const yyjson_val *v)
{
    size_t n;
    char *text = v && !yyjson_is_null(v) ? yyjson_val_write(v, 0, &n) : NULL;
    if (text) add(r, text, n);
    free(text);
}

/* The beginning of a text, or of a list of parts that have a text; anything else whole. */
static void add_beginning(reader *r, yyjson_val *v)
{
    size_t left = TEXT_BYTES, n;
    yyjson_val *part;
    yyjson_arr_iter parts = yyjson_arr_iter_with(v);
    if (yyjson_is_str(v)) {
        n = yyjson_get_len(v);
        add(r, yyjson_get_str(v), n < left ? n : left);
        return;
    }
    if (!yyjson_is_arr(v)) {
        add_value(r, v);
        return;
    }
    while (left && (part = yyjson_arr_iter_next(&parts))) {
        yyjson_val *text = yyjson_obj_get(part, "text");
        if (!yyjson_is_str(text)) { /* an image */
            add_value(r, part);
            continue;
        }
        n = yyjson_get_len(text) < left ? yyjson_get_len(text) : left;
        r->hash = choose_hash(r->hash, yyjson_get_str(text), n);
        r->found = true;
        left -= n;
    }
}

static bool is_instruction(yyjson_val *message)
{
    yyjson_val *role = yyjson_obj_get(message, "role");
    return yyjson_equals_str(role, "system") || yyjson_equals_str(role, "developer");
}

/* Up to the first message of the user, which makes one conversation differ from others with the same instructions. */
static void add_messages(reader *r, yyjson_val *messages)
{
    yyjson_val *message;
    yyjson_arr_iter all = yyjson_arr_iter_with(messages);
    while ((message = yyjson_arr_iter_next(&all))) {
        bool goes_on = is_instruction(message);
        yyjson_val *content = yyjson_obj_get(message, "content");
        if (goes_on)
            add_value(r, content);
        else
            add_beginning(r, content);
        if (!goes_on) return;
    }
}

/* A text, tokens, or a list of prompts, of which the first counts. */
static void add_prompt(reader *r, yyjson_val *prompt)
{
    size_t n = 0;
    yyjson_val *v;
    yyjson_arr_iter all = yyjson_arr_iter_with(prompt);
    if (!yyjson_is_arr(prompt)) {
        add_beginning(r, prompt);
        return;
    }
    while (n++ < TEXT_TOKENS && (v = yyjson_arr_iter_next(&all))) {
        if (yyjson_is_raw(v)) {
            add(r, yyjson_get_raw(v), yyjson_get_len(v));
            continue;
        }
        add_beginning(r, v);
        return;
    }
}

bool opening_key(const char *bytes, size_t n, const char *tenant, uint64_t *key)
{
    static const char *const before[] = {"tools", "system",
                                         "instructions"}; /* the names of three interfaces */
    reader r = {.hash = CHOOSE_START};
    body *b = body_read(bytes, n);
    yyjson_val *root = b ? body_root(b) : NULL;
    if (tenant) r.hash = choose_hash(r.hash, tenant, strlen(tenant) + 1);
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        add_value(&r, yyjson_obj_get(root, before[i]));
    yyjson_val *messages = yyjson_obj_get(root, "messages"), *input = yyjson_obj_get(root, "input");
    yyjson_val *prompt = yyjson_obj_get(root, "prompt");
    if (messages)
        add_messages(&r, messages);
    else if (yyjson_is_arr(input))
        add_messages(&r, input);
    else if (input)
        add_beginning(&r, input);
    else if (prompt)
        add_prompt(&r, prompt);
    else
        add_beginning(&r, yyjson_obj_get(root, "input_prefix"));
    body_free(b);
    *key = r.hash;
    return r.found;
}
